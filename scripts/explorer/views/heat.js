// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Matrices as small heat maps: blue above zero, orange below, with a number for the cell under the pointer. */

import { decimal, el, plain } from "./dom.js";
import { makeMenu, makeTable } from "./save.js";

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

/** The cell whose number stays when the pointer leaves, in each figure that has such a cell: {caption, row, column}. */
let pinned = null;

/**
 * A figure of a matrix. A cell is read with the pointer, a tap, or the arrow keys.
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
  const largest = largestOf(matrix);
  const lowest = finite.reduce((least, number) => Math.min(least, number), Infinity);
  const highest = finite.reduce((most, number) => Math.max(most, number), -Infinity);
  const cell = columns ? Math.max(14, Math.min(28, Math.floor(400 / width), Math.floor(300 / height))) : height > 24 ? 10 : height > 10 ? 12 : 14;
  const quote = (text) => `“${plain(text).trim()}”`;
  const show = (value) => (Number.isFinite(value) ? decimal(value, 3) : "masked");

  const canvas = drawMatrix(matrix, { largest, power });
  const about = `${caption}, ${height} by ${width}, from ${decimal(lowest)} to ${decimal(highest)}; the arrow keys lead from cell to cell`;
  for (const [name, value] of Object.entries({ role: "img", tabindex: 0, "aria-label": about })) canvas.setAttribute(name, value);
  canvas.style.setProperty("height", `${height * cell}px`);
  if (columns) canvas.style.setProperty("width", `${width * cell}px`);

  const reading = el("span.reading", { "aria-live": "polite" });
  const cursor = el("span.cursor", { "aria-hidden": "true", hidden: true, style: { height: `${cell}px`, width: `max(${100 / width}%, 3px)` } });
  const read = (row, column) => {
    const name = columns ? quote(columns[column]) : column;
    reading.textContent = `${quote(rows[row])}, ${name}: ${show(matrix.data[row * width + column])}`;
    cursor.hidden = false;
    cursor.style.setProperty("top", `${row * cell}px`);
    cursor.style.setProperty("left", `${(100 * column) / width}%`);
  };
  const rest = () => {
    const isHere = pinned?.caption === caption && pinned.row < height && pinned.column < width;
    cursor.hidden = !isHere;
    if (isHere) read(pinned.row, pinned.column);
    else reading.textContent = `${lowest < 0 ? `−${largest.toPrecision(2)} to ` : "0 to "}${largest.toPrecision(2)}`;
  };
  const pin = (row, column) => {
    pinned = { caption, row, column };
    document.querySelectorAll(".heat .canvas").forEach((each) => each.dispatchEvent(new Event("rest"))); // another loses its cell
  };
  const move = (down, right) => {
    const { row, column } = pinned?.caption === caption ? pinned : { row: selected ?? 0, column: -right };
    pin(Math.max(0, Math.min(height - 1, row + down)), Math.max(0, Math.min(width - 1, column + right)));
  };
  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const along = (position, size, count) => Math.max(0, Math.min(count - 1, Math.floor((position / size) * count)));
    return [along(event.clientY - box.top, box.height, height), along(event.clientX - box.left, box.width, width)];
  };
  canvas.addEventListener("pointermove", (event) => read(...placeOf(event)));
  canvas.addEventListener("pointerleave", rest);
  canvas.addEventListener("click", (event) => {
    pin(...placeOf(event));
    onRow(placeOf(event)[0]);
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (by) move(...by);
    else if (event.key === "Enter" && pinned?.caption === caption) onRow(pinned.row);
    else return;
    event.preventDefault();
  });

  const label = (text, i) => el("bdi", { text, class: i === selected ? "here" : null });
  const frame = el("span.frame", { "aria-hidden": "true", style: { top: `${selected * cell}px`, height: `${cell}px` } });
  const arrow = (text, name, ...by) => el("button", { type: "button", tabindex: -1, text, "aria-label": `One cell ${name}`, on: { click: () => move(...by) } });
  const pad = el("span.pad", {}, arrow("◂", "left", 0, -1), arrow("▸", "right", 0, 1), arrow("▴", "up", -1, 0), arrow("▾", "down", 1, 0));
  const toRow = (text, row) => [plain(text).trim(), ...Array.from(rowOf(matrix, row), show)];
  const table = () => makeTable([["", ...(columns?.map((text) => plain(text).trim()) ?? Array(width).keys())], ...rows.map(toRow)], caption);
  const figure = el(
    "figure.heat",
    { style: { "--cell": `${cell}px` }, class: columns ? "square" : null },
    el("figcaption", {}, el("span", {}, el("b", { text: caption }), ` ${height} × ${width}`), reading, pad),
    el(
      "div.scroll",
      {},
      columns ? el("div.columns", { "aria-hidden": "true" }, ...columns.map((text) => el("bdi", { text }))) : null,
      el("div.rows", { "aria-hidden": "true" }, ...rows.map(label)),
      el("div.canvas", { on: { rest } }, canvas, selected === null ? null : frame, cursor),
    ),
    makeMenu(caption, () => figure, table),
  );
  rest();
  return figure;
}

/** The largest finite number of a matrix, without its sign. */
export const largestOf = ({ data }) => data.reduce((most, number) => (Number.isFinite(number) ? Math.max(most, Math.abs(number)) : most), 1e-12);

/** A matrix as a canvas of a pixel for each number. */
export function drawMatrix(matrix, { largest = largestOf(matrix), power = 0.7 } = {}) {
  const { shape: [height, width], data } = matrix;
  const canvas = el("canvas", { width, height });
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
  return canvas;
}
