// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The page's side of worker.js: requests as promises, and models with the texts of their tokens. */

import { endsOf } from "../model/generate.js";

const worker = new Worker(new URL("../worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let lastId = 0;

worker.onmessage = ({ data: { id, type, ...reply } }) => {
  const request = waiting.get(id);
  if (request === undefined) return;
  if (type === "step") return request.onStep?.(reply);
  waiting.delete(id);
  if (type === "error") request.reject(new Error(reply.message));
  else request.resolve(type === "result" ? reply : null);
};
worker.onerror = (event) => {
  event.preventDefault();
  for (const { reject } of waiting.values()) reject(new Error("The model stopped: reload the page."));
  waiting.clear();
};

/**
 * Ask the worker.
 *
 * @param {object} request see README.md. A newer request of the same `channel` cancels this one.
 * @param {(step) => void} onStep called for each step.
 * @returns {Promise<object | null>} the result; null if the request was cancelled.
 */
export function ask(request, onStep = null) {
  const id = ++lastId;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject, onStep });
    worker.postMessage({ id, ...request });
  });
}

/** A loaded model. */
export class Model {
  constructor(name, description) {
    this.name = name;
    Object.assign(this, description); // config, is_translator, generation_config, num_parameters, vocabulary, ...
  }

  /** @param {(share: number) => void} onProgress told which share of the weights has been read, from 0 to 1. */
  static async load(name, source, onProgress) {
    return new Model(name, await ask({ type: "load", model: name, source }, ({ progress }) => onProgress(progress)));
  }

  /** The text of a token that the model writes. */
  read(id) {
    return this.vocabulary[id] ?? `#${id}`;
  }

  /** The text of a token of the source, which may have a vocabulary of its own. */
  readSource(id) {
    return this.source_vocabulary[id] ?? `#${id}`;
  }

  get ends() {
    return endsOf(this.generation_config);
  }

  search(text, { prefix = [], options = {} }, onStep) {
    return ask({ type: "search", channel: "search", model: this.name, text, prefix, options }, onStep);
  }

  predict(given, channel = "predict") {
    return ask({ type: "predict", channel, model: this.name, ...given });
  }

  inspect(given, channel = "inspect") {
    return ask({ type: "inspect", channel, model: this.name, ...given });
  }

  /** What the head would predict at each vector of a Float32Array (n * width): n lists of alternatives. */
  async lens(stack, states, num_alternatives = 5) {
    const result = await ask({ type: "lens", channel: "lens", model: this.name, stack, states, num_alternatives });
    return result?.alternatives;
  }

  /** The logits (vocabulary) of the token after a text: {input_ids, logits}; null if the text is full. */
  async peek(given) {
    if (given.input_ids?.length > this.config.max_position_embeddings) return null;
    return this.predict({ ...given, from: Infinity }, "peek");
  }
}
