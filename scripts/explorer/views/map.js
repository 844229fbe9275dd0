// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Figure 1 of the paper as the map of a model, as it is configured: its blocks, and the way from one to the next. */

import { svg } from "./dom.js";

const [WIDTH, GAP, SIDE, BETWEEN] = [148, 10, 34, 62];
const HEIGHTS = { sublayer: 38, norm: 23, add: 18, embedding: 27, linear: 26, softmax: 26, tokens: 19, sum: 18 };
export const PARTS = { self_attn: "self-attention", cross_attn: "cross-attention", feed_forward: "feed-forward" };

/**
 * The blocks of a stack from its tokens upwards, all layers.
 *
 * @returns {object[]} {stack, kind, layer, part}; kind: "tokens", "embedding", "position", "sum", "embed_norm", "norm"
 *   (before a sub-layer), "sublayer", "add" (x + output; with the norm after it, if that comes last), "last_norm",
 *   "linear" or "softmax".
 */
export function listBlocks(model, stack) {
  const { config } = model;
  const isDecoder = stack === "decoder";
  const numLayers = model.is_translator ? config[`${stack}_layers`] : config.num_hidden_layers;
  const parts = isDecoder && model.is_translator ? ["self_attn", "cross_attn", "feed_forward"] : ["self_attn", "feed_forward"];
  const blocks = ["tokens", "embedding", "position", "sum"].map((kind) => ({ kind }));
  if (!model.is_translator && config.embedding_layernorm) blocks.push({ kind: "embed_norm" });
  for (let layer = 0; layer < numLayers; layer++) {
    for (const part of parts) {
      for (const kind of config.norm_first ? ["norm", "sublayer", "add"] : ["sublayer", "add"]) blocks.push({ kind, layer, part });
    }
  }
  if (model.is_translator ? config.norm_first : config.final_layernorm) blocks.push({ kind: "last_norm" });
  if (isDecoder) blocks.push({ kind: "linear" }, { kind: "softmax" });
  return blocks.map((block) => ({ stack, ...block }));
}

export const isSame = (a, b) => ["stack", "kind", "layer", "part"].every((key) => a[key] === b[key]);

/** What a block is called on the map. */
export function nameOf({ kind, part, stack }, model) {
  const { config } = model;
  if (kind === "sublayer" && part === "self_attn") return stack === "decoder" ? ["Masked", "self-attention"] : ["Multi-head", "self-attention"];
  const names = {
    tokens: [model.is_translator && stack === "decoder" ? "translation so far" : model.is_translator ? "source tokens" : "tokens"],
    embedding: ["Embedding"],
    position: ["positions"],
    sum: ["+"],
    embed_norm: ["LayerNorm"],
    norm: ["LayerNorm"],
    sublayer: part === "cross_attn" ? ["Multi-head", "cross-attention"] : ["Feed-forward"],
    add: config.norm_first ? ["+"] : ["Add & LayerNorm"],
    last_norm: ["LayerNorm"],
    linear: ["Linear"],
    softmax: ["Softmax"],
  };
  return names[kind];
}

/**
 * Draw the map.
 *
 * @param {{encoder, decoder}} layers the layer of each stack that is shown.
 * @param {object} selected the selected block.
 * @param {(block) => void} onSelect called with the block that is clicked.
 */
export function drawMap(model, layers, selected, onSelect) {
  const stacks = model.is_translator ? ["encoder", "decoder"] : ["decoder"];
  const columns = stacks.map((stack, i) => placeBlocks(model, stack, layers[stack], SIDE + 22 + i * (WIDTH + BETWEEN)));
  const height = Math.max(...columns.map(({ height }) => height)) + 26;
  const width = 2 * (SIDE + 22) + stacks.length * WIDTH + (stacks.length - 1) * BETWEEN;
  const up = (y) => height - 4 - y; // y counts from the bottom
  const line = (points) => `M${points.map(([x, y]) => `${x},${up(y)}`).join("L")}`;
  const picture = svg("svg.figure1", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Map of the model" });

  columns.forEach(({ placed, x, frame }, i) => {
    const stack = stacks[i];
    const outer = i === 0 ? -1 : 1; // residual lines run on the side that is free
    const middle = x + WIDTH / 2;
    picture.append(svg("rect.layer", { x: x - 22, y: up(frame.top), width: WIDTH + 44, height: frame.top - frame.bottom, rx: 12 }));
    const count = model.is_translator ? model.config[`${stack}_layers`] : model.config.num_hidden_layers;
    picture.append(svg("text.times", { x: outer < 0 ? x - 27 : x + WIDTH + 27, y: up((frame.top + frame.bottom) / 2) + 5, "text-anchor": outer < 0 ? "end" : "start", text: `${count}×` }));
    const top = placed.at(-1);
    const end = stack === "decoder" ? top.y + top.height + 14 : top.y + top.height + 6;
    picture.append(svg("path.wire", { d: line([[middle, placed[0].y + placed[0].height], [middle, end]]) }));
    if (stack === "decoder") picture.append(svg("text.caption", { x: middle, y: up(end + 6), "text-anchor": "middle", text: "probabilities" }));
    for (const { block, y, height: size, from } of placed) {
      if (block.kind !== "add") continue;
      const edge = outer < 0 ? x : x + WIDTH;
      const target = model.config.norm_first ? middle + outer * 9 : edge;
      picture.append(svg("path.wire.residual", { d: line([[middle, from], [edge + outer * 11, from], [edge + outer * 11, y + size / 2], [target, y + size / 2]]) }));
    }
    if (stack === "decoder" && i === 1) {
      const source = columns[0];
      const last = source.placed.at(-1);
      const cross = placed.find(({ block }) => block.kind === "sublayer" && block.part === "cross_attn");
      const from = source.x + WIDTH / 2;
      const lane = x - 31;
      picture.append(svg("path.wire.cross", { d: line([[from, last.y + last.height + 6], [lane, last.y + last.height + 6], [lane, cross.y + cross.height / 2], [x, cross.y + cross.height / 2]]) }));
    }
    for (const each of placed) picture.append(drawBlock(each, { model, x, middle, outer, up, isSelected: isSame(each.block, selected), onSelect }));
  });
  for (const stack of stacks) {
    const blocks = [...picture.querySelectorAll(`.block[data-stack="${stack}"]`)];
    const entry = blocks.find((block) => block.getAttribute("aria-pressed") === "true") ?? blocks[0];
    entry.setAttribute("tabindex", 0);
  }
  return picture;
}

function placeBlocks(model, stack, layer, x) {
  const blocks = listBlocks(model, stack).filter((block) => block.layer === undefined || block.layer === layer);
  let y = 2;
  let from = 0;
  const frame = {};
  const placed = blocks.map((block, i) => {
    const isFirstOfPart = block.layer !== undefined && blocks[i - 1].part !== block.part;
    if (block.layer !== undefined && frame.bottom === undefined) {
      frame.bottom = y;
      y += 14;
    }
    if (block.layer === undefined && frame.bottom !== undefined && frame.top === undefined) {
      frame.top = y;
      y += GAP;
    }
    if (isFirstOfPart) {
      from = y - 4;
      y += 6;
    }
    const kind = { embed_norm: "norm", last_norm: "norm" }[block.kind] ?? block.kind;
    const size = block.kind === "add" && !model.config.norm_first ? HEIGHTS.norm : HEIGHTS[kind] ?? 18;
    if (block.kind === "position") return { block, y: y - 1, height: 20, from }; // beside the sum
    const place = { block, y, height: size, from };
    y += size + (block.kind === "norm" ? 8 : GAP);
    return place;
  });
  frame.top ??= y;
  const top = placed.at(-1);
  return { placed, x, frame, height: Math.max(frame.top, top.y + top.height) + 30 };
}

function drawBlock({ block, y, height }, { model, x, middle, outer, up, isSelected, onSelect }) {
  const lines = nameOf(block, model);
  const isRound = lines[0] === "+";
  const center = up(y + height / 2);
  const label = describe(block, lines, model);
  const shapes = [];
  const write = (text, line, count) => svg("text", { x: middle, y: center + 4.5 + (line - (count - 1) / 2) * 15, "text-anchor": "middle", text });
  if (block.kind === "position") {
    const left = outer < 0 ? x + 8 : x + WIDTH - 8;
    const [a, b] = [left - 7, left + 7];
    shapes.push(svg("path.wire", { d: `M${left - outer * 12},${center}L${middle + outer * 9},${center}` }));
    shapes.push(svg("circle", { cx: left, cy: center, r: 12 }));
    shapes.push(svg("text.caption.position", { x: left + outer * 15, y: center + 4, "text-anchor": outer < 0 ? "end" : "start", text: "position" }));
    shapes.push(svg("path.wave", { d: `M${a},${center}C${a + 4},${center - 11} ${left - 3},${center - 8} ${left},${center}S${b - 4},${center + 11} ${b},${center}` }));
  } else if (isRound) {
    shapes.push(svg("circle", { cx: middle, cy: center, r: 9 }), svg("path.plus", { d: `M${middle - 5},${center}h10M${middle},${center - 5}v10` }));
  } else if (block.kind === "tokens") {
    shapes.push(svg("rect.bare", { x, y: up(y + height), width: WIDTH, height, rx: 6 }), write(lines[0], 0, 1));
  } else {
    shapes.push(svg("rect", { x, y: up(y + height), width: WIDTH, height, rx: 7 }), ...lines.map((line, i) => write(line, i, lines.length)));
  }
  return svg(
    "g.block",
    {
      "data-stack": block.stack,
      "data-kind": block.part === "feed_forward" && block.kind === "sublayer" ? "feed-forward" : block.kind === "sublayer" ? "attention" : block.kind,
      role: "button",
      tabindex: -1,
      "aria-pressed": String(isSelected),
      "aria-label": label,
      on: {
        click: () => onSelect(block),
        keydown: (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          onSelect(block);
        },
      },
    },
    svg("title", { text: label }),
    ...shapes,
  );
}

/** A block's name in words. */
export function describe({ kind, layer, part, stack }, lines, model) {
  const owner = model.is_translator ? `${stack}, ` : "";
  const where = layer === undefined ? "" : `layer ${layer + 1}, `;
  if (kind === "sum") return `${owner}embedding + position`;
  if (kind === "position") return `${owner}positions`;
  if (kind === "add") return `${owner}${where}residual sum after ${PARTS[part]}${model.config.norm_first ? "" : ", LayerNorm"}`;
  if (kind === "norm") return `${owner}${where}LayerNorm before ${PARTS[part]}`;
  if (kind === "last_norm") return `${owner}last LayerNorm`;
  return `${owner}${where}${lines.join(" ")}`;
}
