// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** One row of attention, step by step: one token's scores, the mask, softmax, and the values that are weighted and added. */

import { decimal, el, percent, plain } from "./dom.js";
import { drawMatrix, largestOf } from "./heat.js";
import { makeMenu } from "./save.js";

const PACE = 1500; // milliseconds a stage
const NUMBERS = 3; // of a value that are written out
let timer = null;

/** Stop what plays, as when another block is opened. */
export function pauseRow() {
  clearInterval(timer);
  timer = null;
}

/**
 * @param {object} row {token, names, headDim, isMasked, scores, weights, query, key, value, context} of the token that is
 *   followed and one head; `key` and `value` are matrices (keys, size), the others vectors.
 * @param {number} stage how many of its columns are shown, from 0.
 * @param {(stage: number) => void} onStage called when another stage is shown.
 * @returns {Node[]}
 */
export function showRow({ token, names, headDim, isMasked, scores, weights, query, key, value, context }, stage, onStage) {
  const root = Math.sqrt(headDim);
  const size = context.length;
  const dot = (i) => query.reduce((sum, number, j) => sum + number * key.data[i * headDim + j], 0);
  const name = (text) => `“${plain(text).trim()}”`;
  const best = weights.indexOf(Math.max(...weights));
  const numbers = (vector) => [...Array(Math.min(NUMBERS, size)).keys()].map((i) => decimal(vector[i]));
  const valueOf = (i) => value.data.subarray(i * size, (i + 1) * size);
  const largest = largestOf(value);
  const strip = (vector) => drawMatrix({ shape: [1, size], data: vector }, { largest });
  const cellsOf = (vector) => [...numbers(vector).map((text) => el("span", { text })), strip(vector)];
  const stages = [
    { title: "q · k", text: `The query of ${name(token)} times each key: ${headDim} products, added.`, cell: (i) => decimal(dot(i)) },
    { title: "/ √dₖ", text: `Divided by √${headDim} = ${decimal(root)}, so that the scores stay small.`, cell: (i) => decimal(dot(i) / root) },
    { title: "mask", text: isMasked ? "What stands after the token is hidden: its score becomes −∞." : "Nothing is hidden here: this attention sees all of these tokens.", cell: (i) => (Number.isFinite(scores[i]) ? decimal(scores[i]) : "−∞") },
    { title: "softmax", text: `e to the power of each score, divided by their sum: weights that sum to 1. The largest is that of ${name(names[best])}.`, cell: (i) => [el("span.fill", { "aria-hidden": "true", style: { width: `${100 * weights[i]}%` } }), el("span", { text: percent(weights[i]) })] },
    { title: "weight × value", text: `Each value, times its weight: of ${size} numbers the first ${Math.min(NUMBERS, size)}, and all as colours.`, cell: (i) => cellsOf(valueOf(i).map((number) => number * weights[i])) },
    { title: "sum", text: `All of them added: what this head found for ${name(token)}.`, cell: () => "" },
  ];
  const text = el("p.stage-text", { "aria-live": "polite" });
  const head = stages.slice(0, -1).map(({ title }) => el("th", { scope: "col", text: title }));
  const line = (label, cells, kind) => el(kind, {}, el("th", { scope: "row" }, el("bdi", { text: plain(label).trim() || "·" })), ...cells);
  const lines = names.map((label, i) => line(label, stages.slice(0, -1).map(({ title, cell }) => el("td", { "data-title": title }, ...[cell(i)].flat())), "tr"));
  const sum = line("sum", [el("td", { colspan: 3 }), el("td", { text: "100 %" }), el("td", { "data-title": "sum" }, ...cellsOf(context))], "tr.sum");
  const table = el("table.one-row", { "aria-label": `The row of ${name(token)}` }, el("tr", {}, el("th", { scope: "col", text: "key" }), ...head), ...lines, sum);

  let shown = Math.min(stage, stages.length - 1);
  const show = (next) => {
    shown = Math.max(0, Math.min(stages.length - 1, next));
    text.textContent = `${shown + 1} of ${stages.length}. ${stages[shown].text}`;
    for (const { cells } of table.rows) [...cells].slice(1).forEach((cell, i) => cell.classList.toggle("later", i > shown));
    [...sum.cells].forEach((cell) => cell.classList.toggle("later", shown < stages.length - 1));
    [back.disabled, on.disabled] = [shown === 0, shown === stages.length - 1];
    if (shown === stages.length - 1) pause();
    onStage(shown);
  };
  const pause = () => {
    pauseRow();
    play.textContent = "Play";
  };
  const button = (label, click) => el("button", { type: "button", text: label, on: { click } });
  const step = (by) => () => {
    pause();
    show(shown + by);
  };
  const [back, on] = [button("◂ Back", step(-1)), button("Next ▸", step(1))];
  const play = button("Play", () => {
    if (timer) return pause();
    if (shown === stages.length - 1) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => show(shown + 1), PACE);
  });
  pauseRow();
  show(shown);
  return [el("div.move.stages", {}, back, on, play), text, el("div.scroll", { tabindex: 0, role: "region", "aria-label": "One row of attention" }, table), makeMenu("one row of attention", () => table)];
}
