// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Matrices as small heat maps: blue above zero, orange below, with a number for the cell under the pointer. */

import { decimal, el, plain } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const COLORS = {
  light: { zero: [251, 250, 247], positive: [30, 86, 184], negative: [199, 98, 0], masked: [222, 220, 214] },
  dark: { zero: [28, 31, 38], positive: [122, 176, 255], negative: [247, 160, 76], masked: [58, 62, 71] },
};

/** Rows of a tensor (length, heads, size) of one head, as a matrix (length, size). */
export function headOf({ shape: [length, heads, size], data }, head) {
  const matrix = new Float32Array(length * size);
  for (let i = 0; i < length; i++) {
    const start = (i * heads + head) * size;
    matrix.set(data.subarray(start, start + size), i * size);
  }
  return { shape: [length, size], data: matrix };
}

/** One head of a tensor (heads, queries, keys). */
export function sliceOf({ shape: [, queries, keys], data }, head) {
  return { shape: [queries, keys], data: data.subarray(head * queries * keys, (head + 1) * queries * keys) };
}

/** A row of a matrix. */
export const rowOf = ({ shape: [, columns], data }, row) => data.subarray(row * columns, (row + 1) * columns);

/**
 * A figure of a matrix.
 *
 * @param {{shape, data}} matrix (rows, columns); -Infinity is drawn as masked.
 * @param {string} caption its name, as text before the shape.
 * @param {string[]} rows texts of the rows.
 * @param {string[]} [columns] texts of the columns: the cells are squares then.
 * @param {number} selected the row that is marked.
 * @param {number} power of the share of the largest number that the colour shows: below 1, small numbers stay visible.
 * @param {(row: number) => void} onRow called with the row that is clicked.
 */
export function heatMap(matrix, { caption, rows, columns = null, selected, onRow, power = 0.7 }) {
  const [height, width] = matrix.shape;
  const finite = matrix.data.filter(Number.isFinite);
  const largest = finite.reduce((most, number) => Math.max(most, Math.abs(number)), 1e-12);
  const lowest = finite.reduce((least, number) => Math.min(least, number), Infinity);
  const cell = columns ? Math.max(14, Math.min(30, Math.floor(420 / width))) : height > 24 ? 10 : 14;

  const canvas = el("canvas", { role: "img", "aria-label": `${caption}, ${height} by ${width}, from ${decimal(lowest)} to ${decimal(finite.reduce((most, number) => Math.max(most, number), -Infinity))}` });
  [canvas.width, canvas.height] = [width, height];
  canvas.style.setProperty("height", `${height * cell}px`);
  if (columns) canvas.style.setProperty("width", `${width * cell}px`);
  paint(canvas, matrix, largest, power);

  const reading = el("span.reading");
  const quiet = `${lowest < 0 ? `−${largest.toPrecision(2)} to ` : "0 to "}${largest.toPrecision(2)}`;
  reading.textContent = quiet;
  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const along = (position, size, count) => Math.max(0, Math.min(count - 1, Math.floor((position / size) * count)));
    return [along(event.clientY - box.top, box.height, height), along(event.clientX - box.left, box.width, width)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = placeOf(event);
    const value = matrix.data[row * width + column];
    const name = columns ? `“${plain(columns[column]).trim()}”` : column;
    reading.textContent = `“${plain(rows[row]).trim()}”, ${name}: ${Number.isFinite(value) ? decimal(value, 3) : "masked"}`;
  });
  canvas.addEventListener("pointerleave", () => (reading.textContent = quiet));
  canvas.addEventListener("click", (event) => onRow(placeOf(event)[0]));

  const label = (text, i) => el("bdi", { text, class: i === selected ? "here" : null });
  const frame = el("span.frame", { "aria-hidden": "true", style: { top: `${selected * cell}px`, height: `${cell}px` } });
  return el(
    "figure.heat",
    { style: { "--cell": `${cell}px` }, class: columns ? "square" : null },
    el("figcaption", {}, el("span", {}, el("b", { text: caption }), ` ${height} × ${width}`), reading),
    el(
      "div.scroll",
      {},
      columns ? el("div.columns", { "aria-hidden": "true" }, ...columns.map((text) => el("bdi", { text }))) : null,
      el("div.rows", { "aria-hidden": "true" }, ...rows.map(label)),
      el("div.canvas", {}, canvas, selected === null ? null : frame),
    ),
  );
}

function paint(canvas, { data }, largest, power) {
  const { zero, positive, negative, masked } = COLORS[dark.matches ? "dark" : "light"];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < data.length; i++) {
    const share = Math.min(1, Math.abs(data[i]) / largest) ** power;
    const end = data[i] < 0 ? negative : positive;
    for (let channel = 0; channel < 3; channel++) {
      image.data[4 * i + channel] = Number.isFinite(data[i]) ? zero[channel] + share * (end[channel] - zero[channel]) : masked[channel];
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
