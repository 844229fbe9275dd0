// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** What a block of the map does, in words, as an equation, by its function of scratch_layers.py, and with its numbers. */

import { decimal, el, equation, makeBars, makeChoice, percent, plain } from "./dom.js";
import { drawMatrix, headOf, heatMap, rowOf, sliceOf } from "./heat.js";
import { describe, nameOf, PARTS } from "./map.js";
import { showRow } from "./row.js";
import { makeMenu } from "./save.js";

const NORM = "LayerNorm(x) = (x − μ) / √(σ^2 + ε) · γ + β";

/**
 * The contents of the panel of a block.
 *
 * @param {object} reading {model, trace, tokens, keys, ids, position, head, step, stage, isWide, lens, lensNote}: the texts of the
 *   stack's tokens and of the source's; the token that is followed; which step of the panel is shown, and of the one row its
 *   stage; whether the heads of all layers are shown; what the head would predict at this block, or null.
 * @param {object} on what the user does: `row` (position), `head` (head, layer), `step` (name), `stage` (number), `wide` (boolean).
 * @returns {Node[]}
 */
export function showBlock(block, reading, on) {
  const { model, trace, tokens, position } = reading;
  const stack = trace[block.stack];
  const record = block.layer === undefined ? null : stack.layers[block.layer][block.part];
  const strip = (matrix, caption) => heatMap(matrix, { caption, rows: tokens, selected: position, onRow: on.row });
  const { title, code, formula, text, figures, picker = [] } = CONTENTS[block.kind === "sublayer" && block.part === "feed_forward" ? "feed_forward" : block.kind]({
    ...reading, block, stack, record, strip, on,
  });
  // what does not fit on a screen comes step by step: {name: nodes}
  const steps = Array.isArray(figures) ? { Numbers: figures } : { ...figures };
  if (reading.lens) steps.Lens = showLens(reading);
  const names = Object.keys(steps);
  const step = names.includes(reading.step) ? reading.step : names[0];
  return [
    el("p.kicker", { text: describe(block, nameOf(block, model), model) }),
    el("h2", { text: title }),
    el("p", {}, ...[text].flat()),
    formula ? equation(formula) : "",
    el("div.picker", {}, ...picker, names.length > 1 ? makeChoice("step", names.map((name) => ({ value: name, text: name })), step, on.step).element : ""),
    ...steps[step],
    el("p.code", {}, el("span", { text: "in Python: " }), el("code", { text: code })),
  ];
}

const term = (name, text = name) => el("button.term", { type: "button", "data-term": name, text });

const CONTENTS = {
  tokens({ tokens, ids, position, model, block }) {
    const rows = tokens.map((text, i) => el("tr", { class: i === position ? "here" : null }, el("td", { text: i }), el("td", {}, el("bdi", { text })), el("td", { text: ids[i] })));
    const isTarget = model.is_translator && block.stack === "decoder";
    return {
      title: isTarget ? "What was written so far" : "The text in pieces",
      code: "tokenizer(text)",
      text: ["The tokenizer cuts the text into ", term("token", "tokens"), ", and each has a number. ", isTarget ? "The decoder reads a start token and then its own words: each position predicts the token to come." : "A dot stands for a space."],
      figures: [el("table", {}, el("tr", {}, ...["position", "token", "id"].map((text) => el("th", { scope: "col", text }))), ...rows)],
    };
  },
  embedding({ stack, strip, tokens, position, model }) {
    const scale = stack.embed_scale === 1 ? "" : " · √d_{model}";
    return {
      title: "A vector for each token",
      code: model.is_translator ? "ScratchTransformerStack.embed" : "ScratchGPTModel.embed_tokens",
      formula: `x = E[token]${scale}`,
      text: ["Each token’s number picks a row of a table that was learned: its ", term("embedding"), ". Equal tokens get equal vectors, wherever they stand."],
      figures: [strip(stack.embed_tokens, "embedding"), numbers(rowOf(stack.embed_tokens, position), tokens[position])],
    };
  },
  position({ stack, strip, model, tokens, position }) {
    const isLearned = model.config.position_embedding_type === "learned";
    return {
      title: "A vector for each place",
      code: isLearned ? "make_position_embedding" : "SinusoidalPositionalEmbedding",
      formula: isLearned ? "p = P[position]" : "PE(pos, 2i) = sin(pos / 10000^{2i/d}),  PE(pos, 2i + 1) = cos(pos / 10000^{2i/d})",
      text: isLearned ? "Attention by itself does not know the order of the words. So each place in the text has a vector, learned like the embeddings." : "Attention by itself does not know the order of the words. So each place in the text has a vector: waves, short ones on the left, long ones on the right.",
      figures: [strip(stack.embed_positions, "positions"), numbers(rowOf(stack.embed_positions, position), tokens[position])],
    };
  },
  sum({ stack, strip, tokens, position, model }) {
    return {
      title: "What and where, added",
      code: model.is_translator ? "ScratchTransformerStack.embed" : "ScratchGPTModel.forward",
      formula: "x = embedding + position",
      text: ["The two vectors are added. This begins the ", term("residual stream"), ": one vector for each token, to which every block above adds something."],
      figures: [strip(stack.embed_sum, "x"), numbers(rowOf(stack.embed_sum, position), tokens[position])],
    };
  },
  embed_norm: ({ stack, ...reading }) => showNorm("Brought to one size", "ScratchGPTModel.embed_norm", stack.embed_sum, stack.embed_norm, reading),
  norm: ({ record, block, ...reading }) => showNorm(`Brought to one size, before ${PARTS[block.part]}`, "ResidualLayer.residual", record.x, record.input, reading),
  sublayer: showAttention,
  feed_forward({ record, strip, tokens, position, model }) {
    const inner = rowOf(record.activation, position);
    const active = inner.reduce((count, number) => count + (number > 0), 0);
    const name = model.config.activation_function ?? model.config.hidden_act;
    return {
      title: "Each token by itself",
      code: "FeedForward.forward",
      formula: name === "relu" ? "FFN(x) = max(0, x W_1 + b_1) W_2 + b_2" : `FFN(x) = ${name.replaceAll("_", " ")}(x W_1 + b_1) W_2 + b_2`,
      text: `A small network works on each vector alone: it widens it to ${inner.length} numbers, applies ${name}, and narrows it again. For “${plain(tokens[position]).trim()}”, ${active} of the ${inner.length} are above zero.`,
      figures: {
        Widened: [strip(record.input, "input"), strip(record.fc1, "x W₁ + b₁")],
        Narrowed: [strip(record.activation, `after ${name}`), strip(record.output, "output")],
      },
    };
  },
  add({ record, block, strip, tokens, position, model }) {
    const first = model.config.norm_first;
    const size = (matrix) => Math.hypot(...rowOf(matrix, position));
    return {
      title: first ? "Added to what was there" : "Added, then brought to one size",
      code: "ResidualLayer.residual",
      formula: first ? "x ← x + Sublayer(LayerNorm(x))" : "x ← LayerNorm(x + Sublayer(x))",
      text: [
        `The output of ${PARTS[block.part]} is added to the `,
        term("residual stream"),
        `. For “${plain(tokens[position]).trim()}”, a vector of length ${decimal(size(record.x))} is changed by one of length ${decimal(size(record.output))}.`,
      ],
      figures: {
        Added: [strip(record.x, "x"), strip(record.output, "output"), strip(record.sum, "x + output")],
        ...(!first && { Normalized: [strip(record.sum, "x + output"), strip(record.hidden_states, "after LayerNorm")] }),
      },
    };
  },
  last_norm({ stack, model, block, ...reading }) {
    const code = model.is_translator ? `ScratchTransformer${block.stack === "encoder" ? "Encoder" : "Decoder"}.norm` : "ScratchGPTModel.norm";
    const text = block.stack === "encoder" ? "These vectors are what the decoder’s cross-attention looks at." : "The sums have grown on their way. Once more they are brought to one size, before the head reads them.";
    return showNorm("The last LayerNorm", code, stack.layers.at(-1).feed_forward.hidden_states, stack.norm, reading, text);
  },
  linear({ trace, model, position, tokens, stack, strip }) {
    const logits = rowOf(trace.logits, position);
    const best = topOf(logits, 10);
    const largest = Math.max(...best.map((token) => Math.abs(logits[token])));
    const tied = model.config.tie_word_embeddings ? " Its weights are the embedding table again: a token scores high whose embedding points where the vector points." : "";
    return {
      title: "A score for every token",
      code: "lm_head",
      formula: model.config.tie_word_embeddings ? "logits = x E^T" : "logits = x W^T",
      text: [`The last vector is compared with each of the ${logits.length.toLocaleString("en")} tokens that the model knows. The scores are called `, term("logit", "logits"), `.${tied}`],
      figures: [
        strip(stack.last_hidden_state, "x"),
        el("p.note", { text: `The ten highest after “${plain(tokens[position]).trim()}”` }),
        el("div.bars", {}, ...best.map((token) => el("div.bar", {}, el("span.name", {}, el("bdi", { text: model.read(token) })), el("span.track", {}, el("span.fill", { style: { width: `${(100 * Math.max(0, logits[token])) / largest}%` } })), el("span.number", { text: decimal(logits[token]) })))),
      ],
    };
  },
  softmax({ trace, model, position, tokens }) {
    const logits = rowOf(trace.logits, position);
    const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
    const sum = logits.reduce((total, logit) => total + Math.exp(logit - largest), 0);
    const best = topOf(logits, 10).map((token) => ({ token, text: model.read(token), probability: Math.exp(logits[token] - largest) / sum }));
    return {
      title: "Scores become probabilities",
      code: "softmax, in generate()",
      formula: "p_i = e^{logit} / Σ e^{logit}",
      text: [term("softmax"), ` makes each score positive and all of them sum to 1. After “${plain(tokens[position]).trim()}”, these are likeliest.`],
      figures: [makeBars(best, { label: "Ten likeliest tokens" }).element],
    };
  },
};

/** A LayerNorm: the vectors before and after it. */
function showNorm(title, code, before, after, { strip, tokens, position }, text) {
  text ??= ["Each vector gets the mean 0 and the standard deviation 1; then each of its numbers is scaled and shifted by learned weights. This is ", term("LayerNorm"), "."];
  const figures = [strip(before, "before"), strip(after, "after"), moments(tokens[position], { before: rowOf(before, position), after: rowOf(after, position) })];
  return { title, code, formula: NORM, text, figures };
}

/** Scaled dot-product attention of one head, from Q, K and V to the weighted values. */
function showAttention({ record, stack, block, tokens, keys, position, head, stage, isWide, model, strip, on }) {
  const isCross = block.part === "cross_attn";
  const names = isCross ? keys : tokens;
  const [numHeads, , numKeys] = record.weights.shape;
  const [headDim, vHeadDim, width] = [record.query.shape[2], record.value.shape[2], record.input.shape[1]];
  const weights = sliceOf(record.weights, head);
  const row = [...rowOf(weights, position)];
  const best = row.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([weight]) => weight > 0);
  const shares = best.map(([weight, i]) => `“${plain(names[i]).trim()}” ${percent(weight)}`).join(", ");
  const ofQueries = (matrix, caption) => heatMap(matrix, { caption, rows: tokens, selected: position, onRow: on.row });
  const ofKeys = (matrix, caption) => heatMap(matrix, { caption, rows: names, selected: isCross ? null : position, onRow: isCross ? () => {} : on.row });
  const square = (matrix, caption, power) => heatMap(matrix, { caption, rows: tokens, columns: names, selected: position, onRow: on.row, power });
  const isMasked = !isCross && block.stack === "decoder";
  const say = (...text) => el("p.note", {}, ...text);
  const one = { token: tokens[position], names, headDim, isMasked, scores: rowOf(sliceOf(record.scores, head), position), weights: row, query: rowOf(headOf(record.query, head), position), key: headOf(record.key, head), value: headOf(record.value, head), context: rowOf(headOf(record.context, head), position) };
  const begins = isCross ? "Each token of the translation asks with its query; where the key of a source token fits, its value is taken." : "Each token asks with its query; where the key of a token fits, its value is taken.";
  return {
    title: isCross ? "Looking at the source" : "Looking at the other tokens",
    code: "MultiHeadAttention.forward, eager_attention_forward",
    text: [`${begins} `, numHeads > 1 ? el("span", {}, `${numHeads} `, term("head", "heads"), " ask at once.") : ""],
    picker: [makeHeads(stack, block, head, isWide, on)],
    figures: {
      "Q, K": [
        equation("Attention(Q, K, V) = softmax(Q K^T / √d_k) V"),
        say(`Each vector of ${width} numbers, times learned matrices: a query and a key of ${headDim} numbers${isCross ? "; the keys come from the source" : ""}.`),
        ofQueries(headOf(record.query, head), "Q"), ofKeys(headOf(record.key, head), "K"),
      ],
      "One row": showRow(one, stage, on.stage),
      Scores: [
        say("Each query times each key, divided by the root of their size. ", ...(isMasked ? ["Grey: ", term("mask", "masked"), ", because a token must not see those after it."] : [])),
        square(sliceOf(record.scores, head), isMasked ? "Q Kᵀ / √dₖ, masked" : "Q Kᵀ / √dₖ"),
      ],
      Weights: [
        say(term("softmax"), ` makes weights of the scores: each row sums to 1. “${plain(tokens[position]).trim()}” looks at ${shares}${numKeys > best.length ? ", …" : "."}`),
        square(weights, "weights", 1),
      ],
      Values: [
        say(`The values, ${vHeadDim} numbers each, weighted and added; then what all heads found, side by side, times a last matrix.`),
        ofKeys(headOf(record.value, head), "V"), ofQueries(headOf(record.context, head), "weights · V"), strip(record.output, "output"),
      ],
    },
  };
}

/** The weights of every head of the layer, or of all layers, as small pictures: a click makes one large. */
function makeHeads(stack, block, head, isWide, on) {
  const numLayers = stack.layers.length;
  const layers = isWide ? [...Array(numLayers).keys()] : [block.layer];
  const thumbnail = (layer) => (matrix, i) => {
    const isShown = layer === block.layer && i === head;
    return el(
      "button.thumbnail",
      { type: "button", "aria-pressed": String(isShown), "aria-label": `layer ${layer + 1}, head ${i + 1}`, title: `layer ${layer + 1}, head ${i + 1}`, on: { click: () => on.head(i, layer) } },
      drawMatrix(matrix, { largest: 1, power: 0.8 }),
      isWide ? null : el("span", { text: i + 1 }),
    );
  };
  const rows = layers.map((layer) => {
    const { weights } = stack.layers[layer][block.part];
    const heads = Array.from({ length: weights.shape[0] }, (_, i) => sliceOf(weights, i));
    return el("div.thumbnails", {}, isWide ? el("span.note", { text: layer + 1 }) : null, ...heads.map(thumbnail(layer)));
  });
  const name = isWide ? "heads of all layers" : "heads";
  const grid = el("div.grid", {}, ...rows);
  const wide = numLayers > 1 ? el("button.link", { type: "button", "aria-pressed": String(isWide), text: "All layers", on: { click: () => on.wide(!isWide) } }) : null;
  return el("div.heads", { role: "group", "aria-label": name, class: isWide ? "wide" : null }, el("span.choice-label", { text: "head" }), grid, wide, makeMenu(`${PARTS[block.part]}, ${name}`, () => grid));
}

function showLens({ lens, tokens, position, lensNote }) {
  return [
    el("section.lens", {}, el("p.note", {}, `${lensNote} “${plain(tokens[position]).trim()}”: the `, term("logit lens"), "."), makeBars(lens, { label: "What the model would say here" }).element),
  ];
}

/** The first numbers of a vector. */
function numbers(vector, token) {
  const shown = [...vector.slice(0, 8)].map((number) => decimal(number)).join(", ");
  return el("p.numbers", {}, `“${plain(token).trim()}”: `, el("code", { text: `[${shown}, …]` }), ` ${vector.length} numbers`);
}

/** Mean, standard deviation and length of vectors. */
function moments(token, vectors) {
  const rows = Object.entries(vectors).map(([name, vector]) => {
    const mean = vector.reduce((sum, number) => sum + number, 0) / vector.length;
    const deviation = Math.sqrt(vector.reduce((sum, number) => sum + (number - mean) ** 2, 0) / vector.length);
    return el("tr", {}, el("th", { scope: "row", text: name }), ...[mean, deviation, Math.hypot(...vector)].map((number) => el("td", { text: decimal(number) })));
  });
  return el("table", {}, el("caption", { text: `The vector of “${plain(token).trim()}”` }), el("tr", {}, ...["", "mean", "standard deviation", "length"].map((text) => el("th", { scope: "col", text }))), ...rows);
}

function topOf(logits, count) {
  return [...logits.keys()].sort((a, b) => logits[b] - logits[a]).slice(0, count);
}
