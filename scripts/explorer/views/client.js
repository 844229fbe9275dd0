// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** The page's side of worker.js: requests as promises, and models with the texts of their tokens. */

import { endsOf } from "../model/generate.js";

const waiting = new Map();
let lastId = 0;
let worker = null;

/** A worker that begins as a `blob:` is under the page's policy; one that begins as a file is under none. */
function startWorker() {
  const code = `import ${JSON.stringify(new URL("../worker.js", import.meta.url).href)};`;
  worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
  worker.onmessage = ({ data: { id, type, ...reply } }) => {
    const request = waiting.get(id);
    if (request === undefined) return;
    if (type === "step") return request.onStep?.(reply);
    waiting.delete(id);
    if (type === "error") request.reject(new Error(reply.message));
    else request.resolve(type === "result" ? reply : null);
  };
  worker.onerror = worker.onmessageerror = (event) => {
    event.preventDefault();
    worker.terminate();
    worker = null; // the next request starts another, which has no models
    dispatchEvent(new Event("workerstopped"));
    for (const { reject } of waiting.values()) reject(new Error("The worker that runs the models stopped, or could not be loaded."));
    waiting.clear();
  };
}

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
    if (!worker) startWorker();
    worker.postMessage({ id, ...request });
  });
}

/** A loaded model; `key` is its name for the worker. */
export class Model {
  constructor(name, key, description) {
    Object.assign(this, { name, key });
    Object.assign(this, description); // config, is_translator, generation_config, num_parameters, vocabulary, ...
  }

  /** @param {(share: number) => void} onProgress told which share of the weights has been read, from 0 to 1. */
  static async load(name, source, onProgress) {
    const key = `${name} ${++lastId}`; // one that is loaded again is another
    return new Model(name, key, await ask({ type: "load", model: key, source }, ({ progress }) => onProgress(progress)));
  }

  /** Let its memory be used for another. */
  free() {
    return ask({ type: "free", model: this.key });
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

  /** As many beams as the page shows: from 1 to 8, by default the folder's. */
  beamsOf(beams) {
    return Math.max(1, Math.min(8, Math.round(Number(beams)) || Math.round(this.generation_config.num_beams) || 1));
  }

  search(text, { prefix = [], options = {} }, onStep) {
    return ask({ type: "search", channel: "search", model: this.key, text, prefix, options }, onStep);
  }

  predict(given, channel = "predict") {
    return ask({ type: "predict", channel, model: this.key, ...given });
  }

  inspect(given, channel = "inspect") {
    return ask({ type: "inspect", channel, model: this.key, ...given });
  }

  /** What the head would predict at each vector of a Float32Array (n * width): n lists of alternatives. */
  async lens(stack, states, num_alternatives = 5) {
    const result = await ask({ type: "lens", channel: "lens", model: this.key, stack, states, num_alternatives });
    return result?.alternatives;
  }

  /** The logits (vocabulary) of the token after a text: {input_ids, logits}; null if the text is full. */
  async peek(given) {
    if (given.input_ids?.length > this.config.max_position_embeddings) return null;
    return this.predict({ ...given, from: Infinity }, "peek");
  }
}
