// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/**
 * The blocks of "Attention Is All You Need" (Vaswani et al. 2017): hf_scratch/models/scratch_layers.py in JavaScript.
 *
 * Hidden states are Float32Arrays of (positions, width), row by row. Where several beams run at once, their positions
 * follow each other. Into `trace`, an object, a block writes what it computes, as tensors {shape, data}.
 */

/** The weights of a model by name. Each must be there, have the shape that the configuration says, and be used. */
export class Weights {
  /** `tied`: names that stand for one tensor. A file may hold it under any of them. */
  constructor(tensors, tied) {
    this.tensors = tensors;
    this.tied = tied;
    this.unused = new Set(tensors.keys());
  }

  take(name, ...shape) {
    const names = this.tied.includes(name) ? this.tied : [name];
    names.forEach((each) => this.unused.delete(each));
    const tensor = this.tensors.get(names.find((each) => this.tensors.has(each)));
    if (tensor?.shape.join() !== shape.join()) {
      const found = tensor ? `has the shape ${tensor.shape.join(" x ")}` : "is missing";
      throw new Error(`The weights do not fit config.json: "${name}" ${found}; it should be ${shape.join(" x ")}.`);
    }
    return tensor.data;
  }

  /** Refuse weights that no block took: they are another model's. */
  checkAllUsed() {
    const [name] = this.unused;
    if (name !== undefined) throw new Error(`The weights do not fit config.json: "${name}" is not in the model.`);
  }
}

/** A tensor (positions, ...widths) for a trace. */
export function tensor(data, ...widths) {
  return { shape: [data.length / widths.reduce((a, b) => a * b, 1), ...widths], data };
}

/** Equal parts of an array, which share its memory. */
export function splitRows(states, numRows) {
  const size = states.length / numRows;
  return Array.from({ length: numRows }, (_, row) => states.subarray(row * size, (row + 1) * size));
}

/** The positions of (positions, width). */
export const rowsOf = (states, width) => splitRows(states, states.length / width);

export function concatenate(...parts) {
  const all = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  parts.reduce((end, part) => (all.set(part, end), end + part.length), 0);
  return all;
}

export const add = (first, second) => first.map((number, i) => number + second[i]);

/** x W^T + b, as torch.nn.Linear. */
export class Linear {
  constructor(weights, name, inputs, outputs, hasBias = true) {
    this.inputs = inputs;
    this.outputs = outputs;
    this.weight = weights.take(`${name}.weight`, outputs, inputs);
    this.bias = hasBias ? weights.take(`${name}.bias`, outputs) : null;
  }

  /** (positions, inputs) -> (positions, outputs). */
  forward(x) {
    const { weight, inputs, outputs, bias } = this;
    const positions = x.length / inputs;
    const y = new Float32Array(positions * outputs);
    for (let p = 0; p < positions; p += 2) {
      for (let o = 0; o < outputs; o += 4) multiplyBlock(x, weight, y, p, o, inputs, outputs);
    }
    if (bias) for (let i = 0; i < y.length; i++) y[i] += bias[i % outputs];
    return y;
  }
}

/** Two positions times four rows of weights: from six numbers that are read, eight sums, none of which waits. */
function multiplyBlock(x, weight, y, position, output, inputs, outputs) {
  // at the edges, the last position or row is computed again
  const p1 = Math.min(position + 1, x.length / inputs - 1);
  const o1 = Math.min(output + 1, outputs - 1);
  const o2 = Math.min(output + 2, outputs - 1);
  const o3 = Math.min(output + 3, outputs - 1);
  let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
  for (let i = 0; i < inputs; i++) {
    const a = x[position * inputs + i];
    const b = x[p1 * inputs + i];
    const w0 = weight[output * inputs + i];
    const w1 = weight[o1 * inputs + i];
    const w2 = weight[o2 * inputs + i];
    const w3 = weight[o3 * inputs + i];
    a0 += a * w0;
    a1 += a * w1;
    a2 += a * w2;
    a3 += a * w3;
    b0 += b * w0;
    b1 += b * w1;
    b2 += b * w2;
    b3 += b * w3;
  }
  y[position * outputs + output] = a0;
  y[position * outputs + o1] = a1;
  y[position * outputs + o2] = a2;
  y[position * outputs + o3] = a3;
  y[p1 * outputs + output] = b0;
  y[p1 * outputs + o1] = b1;
  y[p1 * outputs + o2] = b2;
  y[p1 * outputs + o3] = b3;
}

/** (x - mean) / sqrt(variance + eps) * weight + bias, over the width of each position (Ba et al. 2016). */
export class LayerNorm {
  constructor(weights, name, width, eps) {
    this.weight = weights.take(`${name}.weight`, width);
    this.bias = weights.take(`${name}.bias`, width);
    this.eps = eps;
  }

  /** (positions, width) -> (positions, width). */
  forward(x) {
    const { weight, bias, eps } = this;
    const width = weight.length;
    const y = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += width) {
      let mean = 0;
      for (let i = 0; i < width; i++) mean += x[start + i];
      mean /= width;
      let variance = 0;
      for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2;
      const scale = 1 / Math.sqrt(variance / width + eps);
      for (let i = 0; i < width; i++) y[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
    }
    return y;
  }
}

/** log(sum(exp(x))) of the `length` numbers from `start`. */
function logSumExp(x, start, length) {
  let largest = -Infinity;
  for (let i = start; i < start + length; i++) largest = Math.max(largest, x[i]);
  let sum = 0;
  for (let i = start; i < start + length; i++) sum += Math.exp(x[i] - largest);
  return largest + Math.log(sum);
}

/** exp(x) / sum(exp(x)) of the `length` numbers from `start`, in place. */
export function softmax(x, start = 0, length = x.length) {
  const shift = logSumExp(x, start, length);
  for (let i = start; i < start + length; i++) x[i] = Math.exp(x[i] - shift);
  return x;
}

/** log(softmax(x)). */
export function logSoftmax(x) {
  const shift = logSumExp(x, 0, x.length);
  return x.map((number) => number - shift);
}

/**
 * softmax(Q K^T / sqrt(d_k)) V, equation (1), section 3.2.1: `eager_attention_forward`.
 *
 * @param query (queries, heads, head_dim); a causal query sees the keys up to its own position, the last query all.
 * @param key (keys, heads, head_dim).
 * @param value (keys, heads, v_head_dim).
 * @param context where the weighted values (queries, heads, v_head_dim) are written.
 */
function scaledDotProductAttention(query, key, value, context, { numHeads, headDim, vHeadDim, isCausal }, trace) {
  const queries = query.length / (numHeads * headDim);
  const keys = key.length / (numHeads * headDim);
  const scores = new Float32Array(numHeads * queries * keys).fill(-Infinity);
  const weights = new Float32Array(scores.length);
  const scaling = 1 / Math.sqrt(headDim);
  for (let head = 0, row = 0; head < numHeads; head++) {
    for (let q = 0; q < queries; q++, row += keys) {
      const seen = isCausal ? keys - queries + q + 1 : keys;
      const from = (q * numHeads + head) * headDim;
      for (let k = 0; k < seen; k++) {
        const to = (k * numHeads + head) * headDim;
        let sum = 0;
        for (let i = 0; i < headDim; i++) sum += query[from + i] * key[to + i];
        scores[row + k] = sum * scaling;
      }
      weights.set(scores.subarray(row, row + keys), row);
      softmax(weights, row, keys);
      const to = (q * numHeads + head) * vHeadDim;
      for (let k = 0; k < seen; k++) {
        const from = (k * numHeads + head) * vHeadDim;
        for (let i = 0; i < vHeadDim; i++) context[to + i] += weights[row + k] * value[from + i];
      }
    }
  }
  Object.assign(trace, {
    query: tensor(query, numHeads, headDim),
    key: tensor(key, numHeads, headDim),
    value: tensor(value, numHeads, vHeadDim),
    scores: tensor(scores, queries, keys),
    weights: tensor(weights, queries, keys),
    context: tensor(context, numHeads, vHeadDim),
  });
}

/** Multi-head attention, section 3.2.2: `MultiHeadAttention`. Keys and values are those of x, or of an encoder. */
export class MultiHeadAttention {
  constructor(weights, name, config, numHeads, isCausal) {
    const { width, attention_bias: hasBias, attention_output_bias: hasOutputBias } = config;
    this.numHeads = numHeads;
    this.headDim = config.head_dim ?? width / numHeads;
    this.vHeadDim = config.v_head_dim ?? this.headDim;
    this.isCausal = isCausal;
    this.q_proj = new Linear(weights, `${name}.q_proj`, width, numHeads * this.headDim, hasBias);
    this.k_proj = new Linear(weights, `${name}.k_proj`, width, numHeads * this.headDim, hasBias);
    this.v_proj = new Linear(weights, `${name}.v_proj`, width, numHeads * this.vHeadDim, hasBias);
    this.o_proj = new Linear(weights, `${name}.o_proj`, numHeads * this.vHeadDim, width, hasOutputBias);
  }

  /** The keys and values of `numRows` texts (positions, width), after those that a cache has of each. */
  keysAndValues(states, numRows, past) {
    const key = splitRows(this.k_proj.forward(states), numRows);
    const value = splitRows(this.v_proj.forward(states), numRows);
    if (!past) return key.map((_, row) => ({ key: key[row], value: value[row] }));
    return past.map((old, i) => ({ key: concatenate(old.key, key[i]), value: concatenate(old.value, value[i]) }));
  }

  /** (positions, width) -> (positions, width): each row of x attends to its own of `keysAndValues`. */
  forward(x, keysAndValues, trace) {
    const queries = splitRows(this.q_proj.forward(x), keysAndValues.length);
    const context = new Float32Array((x.length / this.q_proj.inputs) * this.o_proj.inputs);
    const contexts = splitRows(context, keysAndValues.length);
    keysAndValues.forEach(({ key, value }, row) =>
      scaledDotProductAttention(queries[row], key, value, contexts[row], this, trace),
    );
    return this.o_proj.forward(context);
  }
}

/** erf(x), to 1.2e-7 (Press et al., Numerical Recipes, section 6.2). */
function erf(x) {
  const t = 1 / (1 + Math.abs(x) / 2);
  const coefficients = [
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
  ];
  const tail = t * Math.exp(coefficients.reduce((sum, coefficient) => sum * t + coefficient, 0) - x * x);
  return x >= 0 ? 1 - tail : tail - 1;
}

const silu = (x) => x / (1 + Math.exp(-x));
const geluTanh = (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2;

/** By their names in transformers' ACT2FN. */
export const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  gelu_new: geluTanh,
  gelu_pytorch_tanh: geluTanh,
  silu,
  swish: silu,
};

/** max(0, x W1 + b1) W2 + b2, equation (2), section 3.3, with any activation: `FeedForward`. */
export class FeedForward {
  constructor(weights, name, width, innerWidth, activation) {
    if (!Object.hasOwn(ACTIVATIONS, activation)) throw new Error(`The activation "${activation}" is not known here.`);
    this.fc1 = new Linear(weights, `${name}.fc1`, width, innerWidth);
    this.activation = ACTIVATIONS[activation];
    this.fc2 = new Linear(weights, `${name}.fc2`, innerWidth, width);
  }

  /** (positions, width) -> (positions, width), each position on its own. */
  forward(x, trace) {
    const inner = this.fc1.forward(x);
    const active = inner.map(this.activation);
    Object.assign(trace, { fc1: tensor(inner, this.fc1.outputs), activation: tensor(active, this.fc1.outputs) });
    return this.fc2.forward(active);
  }
}

/** LayerNorm(x + Sublayer(x)), section 3.1; with `normFirst` x + Sublayer(LayerNorm(x)): `ResidualLayer.residual`. */
export function residual(x, norm, normFirst, sublayer, trace) {
  const input = normFirst ? norm.forward(x) : x;
  const output = sublayer(input);
  const sum = add(x, output);
  const states = normFirst ? sum : norm.forward(sum);
  const all = { x, input, output, sum, hidden_states: states };
  for (const [name, data] of Object.entries(all)) trace[name] = tensor(data, norm.weight.length);
  return states;
}

/** A row of a table (rows, width) for each id, as torch.nn.Embedding: ids -> (positions, width). */
export function embed(table, width, ids) {
  const states = new Float32Array(ids.length * width);
  ids.forEach((id, i) => states.set(table.subarray(id * width, (id + 1) * width), i * width));
  return states;
}

/** PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(...), section 3.5: `SinusoidalPositionalEmbedding`. */
export function makeSinusoids(numPositions, width) {
  // in float32 at each step, as torch: the angle at position 100 is rounded at the sixth digit after the point
  return Float32Array.from({ length: numPositions * width }, (_, i) => {
    const [position, column] = [Math.floor(i / width), i % width];
    const angle = Math.fround(position / Math.fround(10000 ** Math.fround((column - (column % 2)) / width)));
    return column % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}
