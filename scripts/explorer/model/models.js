// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** ScratchTransformer (figure 1 of the paper) and ScratchGPT: hf_scratch/models/modeling_*.py in JavaScript. */

import {
  add, concatenate, embed, FeedForward, LayerNorm, Linear, makeSinusoids, MultiHeadAttention, residual, rowsOf, tensor,
  Weights,
} from "./layers.js";

/**
 * The keys and values of the tokens so far. It never changes: `decode` returns a new one, and the old stays of use.
 *
 * @param self for each layer, for each row (each text or beam): {key, value} of the decoder's own tokens.
 * @param source for each layer {key, value} of the encoder's output, which all rows share.
 */
export class Cache {
  constructor(self = null, source = null, length = 0) {
    Object.assign(this, { self, source, length });
  }

  /** The cache of other rows: those that beam search continues. */
  select(rows) {
    return new Cache(this.self.map((layer) => rows.map((row) => layer[row])), this.source, this.length);
  }

  /** The cache of the first `length` tokens. */
  crop(length) {
    const cut = (states) => states.subarray(0, (states.length / this.length) * length);
    const self = this.self?.map((layer) => layer.map(({ key, value }) => ({ key: cut(key), value: cut(value) })));
    return new Cache(self, this.source, length);
  }
}

/** Self-attention, in a decoder cross-attention, then feed-forward (section 3.1): the layers of both families. */
class Layer {
  constructor(weights, name, config, { numHeads, innerWidth, isCausal, hasCrossAttention }) {
    const norm = (part) => new LayerNorm(weights, `${name}.${part}_norm`, config.width, config.layer_norm_eps);
    this.normFirst = config.norm_first;
    this.self_attn = new MultiHeadAttention(weights, `${name}.self_attn`, config, numHeads, isCausal);
    this.self_attn_norm = norm("self_attn");
    if (hasCrossAttention) {
      this.cross_attn = new MultiHeadAttention(weights, `${name}.cross_attn`, config, numHeads, false);
      this.cross_attn_norm = norm("cross_attn");
    }
    this.feed_forward = new FeedForward(weights, `${name}.feed_forward`, config.width, innerWidth, config.activation);
    this.feed_forward_norm = norm("feed_forward");
  }

  /** (positions, width) -> (positions, width), and the keys and values of the cache, extended. */
  forward(x, numRows, past, source, trace) {
    let present;
    const run = (part, states, sublayer) => {
      const record = (trace[part] = {});
      return residual(states, this[`${part}_norm`], this.normFirst, (input) => sublayer(input, record), record);
    };
    let states = run("self_attn", x, (input, record) => {
      present = this.self_attn.keysAndValues(input, numRows, past);
      return this.self_attn.forward(input, present, record);
    });
    if (this.cross_attn) {
      const shared = new Array(numRows).fill(source);
      states = run("cross_attn", states, (input, record) => this.cross_attn.forward(input, shared, record));
    }
    states = run("feed_forward", states, (input, record) => this.feed_forward.forward(input, record));
    return { states, present };
  }
}

/** Embeddings, positions, N layers and a last LayerNorm: an encoder, a decoder or the GPT. */
class Stack {
  constructor(weights, name, config, options) {
    const { width, max_position_embeddings: longest, layer_norm_eps: eps } = config;
    const { vocabSize, numLayers, scale = 1, hasEmbedNorm, hasLastNorm } = options;
    Object.assign(this, { width, longest, vocabSize, scale });
    this.embed_tokens = weights.take(`${name}.embed_tokens.weight`, vocabSize, width);
    this.embed_positions =
      config.position_embedding_type === "learned"
        ? weights.take(`${name}.embed_positions.weight`, longest, width)
        : makeSinusoids(longest, width);
    this.embed_norm = hasEmbedNorm ? new LayerNorm(weights, `${name}.embed_norm`, width, eps) : null;
    const makeLayer = (_, i) => new Layer(weights, `${name}.layers.${i}`, config, options);
    this.layers = Array.from({ length: numLayers }, makeLayer);
    this.norm = hasLastNorm ? new LayerNorm(weights, `${name}.norm`, width, eps) : null;
  }

  /** Tokens, times sqrt(d_model) in the paper, plus positions (sections 3.4 and 3.5): (rows * length, width). */
  embed(rows, pastLength, trace) {
    const { width, longest, scale } = this;
    const [ids, length] = [rows.flat(), rows[0].length];
    const end = pastLength + length;
    if (end > longest) throw new Error(`The text has ${end} tokens, but this model has only ${longest} positions.`);
    const tokens = embed(this.embed_tokens, width, ids).map((number) => number * scale);
    const positions = embed(this.embed_positions, width, ids.map((_, i) => pastLength + (i % length)));
    const sum = add(tokens, positions);
    const states = this.embed_norm ? this.embed_norm.forward(sum) : sum;
    Object.assign(trace, {
      embed_scale: scale,
      embed_tokens: tensor(tokens, width),
      embed_positions: tensor(positions, width),
      embed_sum: tensor(sum, width),
      embed_norm: this.embed_norm && tensor(states, width),
    });
    return states;
  }

  /** ids of each row, all of one length, to hidden states (rows * length, width) and the cache with these tokens. */
  forward(rows, cache, trace = {}) {
    let states = this.embed(rows, cache.length, trace);
    trace.layers = this.layers.map(() => ({}));
    const self = this.layers.map((layer, i) => {
      const output = layer.forward(states, rows.length, cache.self?.[i], cache.source?.[i], trace.layers[i]);
      states = output.states;
      return output.present;
    });
    const last = this.norm ? this.norm.forward(states) : states;
    Object.assign(trace, { norm: this.norm && tensor(last, this.width), last_hidden_state: tensor(last, this.width) });
    return { states: last, cache: new Cache(self, cache.source, cache.length + rows[0].length) };
  }
}

/** What both families do alike with a decoder and a head. */
class ScratchModel {
  /** What decoding begins with: the start token, or the GPT's text. */
  promptOf(inputIds) {
    return this.encoder ? [this.config.decoder_start_token_id] : inputIds;
  }

  /**
   * Predict the token after each row.
   *
   * @param {number[][]} rows ids of each row that the cache does not have, all of one length.
   * @param {Cache} cache of as many rows; that of `encode` fits any number.
   * @param {boolean} all logits at every position, not at the last of each row.
   * @returns {{logits: Float32Array[], cache: Cache}} logits (vocabulary), row by row and position by position.
   */
  decode(rows, cache, all = false) {
    const { states, cache: extended } = this.decoder.forward(rows, cache);
    const positions = rowsOf(states, this.decoder.width);
    const kept = all ? positions : positions.filter((_, i) => (i + 1) % rows[0].length === 0);
    const logits = this.score(concatenate(...kept));
    return { logits: rowsOf(logits, this.lm_head.outputs), cache: extended };
  }

  /** The head: hidden states (positions, width) -> logits (positions, vocabulary). */
  score(states) {
    const logits = this.lm_head.forward(states);
    if (!logits.every(Number.isFinite)) throw new Error("The numbers of this model grow too large: its logits are not finite.");
    return logits;
  }

  /** Every intermediate of one text: see the README. The GPT's ids are both arguments. */
  inspect(inputIds, decoderInputIds) {
    const trace = { ...(this.encoder && { encoder: {} }), decoder: {} };
    const { states } = this.decoder.forward([decoderInputIds], this.encode(inputIds, trace.encoder), trace.decoder);
    trace.logits = tensor(this.score(states), this.lm_head.outputs);
    return trace;
  }

  /**
   * What would be predicted from hidden states on their way through a stack (the logit lens, nostalgebraist 2020).
   *
   * @param states (positions, width), from between two layers: the last LayerNorm is applied to them, then the head.
   * @returns {Float32Array[]} logits (vocabulary) of each position. An encoder with a vocabulary of its own has none.
   */
  lens(stackName, states) {
    if (stackName === "encoder" && !this.config.share_encoder_decoder_embeddings) return [];
    const { norm } = this[stackName];
    return rowsOf(this.lm_head.forward(norm ? norm.forward(states) : states), this.lm_head.outputs);
  }
}

/** The encoder-decoder: `ScratchTransformerForConditionalGeneration`. */
export class ScratchTransformer extends ScratchModel {
  /** @param config a config.json. @param tensors what `readSafetensors` returned. */
  constructor(config, tensors) {
    super();
    const { d_model: width, share_encoder_decoder_embeddings: shares, tie_word_embeddings: ties } = config;
    const names = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"];
    const weights = new Weights(tensors, names.filter((_, i) => [shares, shares || ties, ties][i]));
    const common = { ...config, width, activation: config.activation_function };
    const makeStack = (stack, vocabSize, options) =>
      new Stack(weights, `model.${stack}`, common, {
        vocabSize,
        scale: config.scale_embedding ? Math.sqrt(width) : 1,
        numLayers: config[`${stack}_layers`],
        numHeads: config[`${stack}_attention_heads`],
        innerWidth: config[`${stack}_ffn_dim`],
        hasLastNorm: config.norm_first,
        ...options,
      });
    this.config = config;
    this.encoder = makeStack("encoder", config.vocab_size);
    this.decoder = makeStack("decoder", config.decoder_vocab_size, { isCausal: true, hasCrossAttention: true });
    this.lm_head = new Linear(weights, "lm_head", width, config.decoder_vocab_size, config.lm_head_bias);
    weights.checkAllUsed();
  }

  /** The left half of figure 1, and what each decoder layer keeps of it: the cache that decoding starts from. */
  encode(inputIds, trace = {}) {
    const { states } = this.encoder.forward([inputIds], new Cache(), trace);
    return new Cache(null, this.decoder.layers.map((layer) => layer.cross_attn.keysAndValues(states, 1)[0]));
  }
}

/** The decoder without an encoder: `ScratchGPTForCausalLM`. */
export class ScratchGPT extends ScratchModel {
  /** @param config a config.json. @param tensors what `readSafetensors` returned. */
  constructor(config, tensors) {
    super();
    const names = ["model.embed_tokens.weight", "lm_head.weight"];
    const weights = new Weights(tensors, config.tie_word_embeddings ? names : []);
    const common = { ...config, width: config.hidden_size, activation: config.hidden_act };
    this.config = config;
    this.decoder = new Stack(weights, "model", common, {
      vocabSize: config.vocab_size,
      numLayers: config.num_hidden_layers,
      numHeads: config.num_attention_heads,
      innerWidth: config.intermediate_size,
      hasEmbedNorm: config.embedding_layernorm,
      hasLastNorm: config.final_layernorm,
      isCausal: config.is_causal,
    });
    this.lm_head = new Linear(weights, "lm_head", config.hidden_size, config.vocab_size, config.lm_head_bias);
    weights.checkAllUsed();
  }

  /** There is no encoder: decoding starts from an empty cache. */
  encode() {
    return new Cache();
  }
}

export const MODELS = { scratch_transformer: ScratchTransformer, scratch_gpt: ScratchGPT };
