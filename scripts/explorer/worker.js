// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/**
 * The model behind messages, so that the page never waits for it. README.md lists the requests and their replies.
 *
 * A request is {id, type, ...}. Its replies carry the same id: any number of type "step", then one of type "result",
 * "error" or "cancelled". A request with a `channel` cancels the older ones of that channel.
 */

import { predict, search } from "./model/generate.js";
import { fromFiles, fromUrl, loadModel } from "./model/load.js";

const CHUNK = 16; // tokens of a given text that are read before other messages are

/** A loaded model that answers requests: each is a generator, which stops when it is not asked for its next step. */
class Session {
  constructor({ model, tokenizer, targetTokenizer, ...facts }) {
    Object.assign(this, { model, tokenizer, targetTokenizer, facts });
    this.isTranslator = Boolean(this.model.encoder);
    this.last = null; // what `read` computed
  }

  /** The ids that the model reads, and those that its decoder reads. */
  idsOf({ text, input_ids: inputIds = this.tokenizer.encode(text), decoder_input_ids: decoderInputIds }) {
    if (inputIds.length === 0) throw new Error("There is no token in this text. Write some words.");
    return { inputIds, decoderInputIds: this.isTranslator ? decoderInputIds : inputIds };
  }

  /** Run the decoder over ids: their logits and the cache. What the last text began with is not computed again. */
  *read(inputIds, ids) {
    const source = this.isTranslator ? inputIds.join() : "";
    if (this.last?.source !== source) this.last = { source, ids: [], logits: [], cache: this.model.encode(inputIds) };
    const { last } = this;
    const other = ids.findIndex((id, i) => id !== last.ids[i]);
    let length = other < 0 ? ids.length : other;
    let cache = last.cache.crop(length);
    let logits = last.logits.slice(0, length);
    while (length < ids.length) {
      const next = ids.slice(length, length + CHUNK);
      const output = this.model.decode([next], cache, true);
      cache = output.cache;
      logits = [...logits, ...output.logits];
      length += next.length;
      yield null;
    }
    this.last = { source, ids, logits, cache };
    return this.last;
  }

  *search({ prefix = [], options, ...request }) {
    const { inputIds } = this.idsOf(request);
    const prompt = this.model.promptOf(inputIds);
    const ids = [...prompt, ...prefix];
    const all = { ...this.facts.generation_config, ...options };
    const { cache } = yield* this.read(inputIds, ids.slice(0, -1));
    const found = yield* search(this.model, ids, cache, all);
    const sequences = found.map((sequence) => {
      const own = sequence.ids.slice(prompt.length);
      return { ...sequence, ids: own, text: this.targetTokenizer.decode(own) };
    });
    return { input_ids: inputIds, prompt, sequences };
  }

  *predict({ num_alternatives, from = 1, ...request }) {
    const { inputIds, decoderInputIds: ids } = this.idsOf(request);
    const { logits } = yield* this.read(inputIds, ids);
    const predictions = ids.slice(from).map((token, i) => predict(logits[from + i - 1], token, num_alternatives));
    return { input_ids: inputIds, predictions, logits: logits.at(-1).slice() };
  }

  *inspect(request) {
    const { inputIds, decoderInputIds } = this.idsOf(request);
    return { input_ids: inputIds, ...this.model.inspect(inputIds, decoderInputIds) };
  }

  *lens({ stack, states, num_alternatives: count }) {
    return { alternatives: this.model.lens(stack, states).map((logits) => predict(logits, 0, count).alternatives) };
  }

  /** What a page shows of the model. */
  get description() {
    const textsOf = (each) => Array.from({ length: each.size }, (_, id) => each.read(id));
    const vocabulary = textsOf(this.targetTokenizer);
    const source_vocabulary = this.tokenizer === this.targetTokenizer ? vocabulary : textsOf(this.tokenizer);
    const { facts, isTranslator: is_translator, model: { config } } = this;
    return { config, is_translator, ...facts, vocabulary, source_vocabulary };
  }
}

/**
 * Answer requests.
 *
 * @param {(reply: object) => void} post sends a reply.
 * @returns {(request: object) => Promise<void>} receives a request.
 */
export function serve(post) {
  const sessions = new Map();
  const running = new Map(); // the channel of each running request, by its id

  async function* answer({ id, type, model, source, ...request }) {
    if (type === "free") return { freed: sessions.delete(model) };
    if (type !== "load") {
      if (!sessions.has(model)) throw new Error("This model is no longer loaded: open it again.");
      return yield* sessions.get(model)[type](request);
    }
    const files = source.url ? fromUrl(source.url) : fromFiles(source.files);
    const session = new Session(await loadModel(files, (progress) => post({ id, type: "step", progress })));
    sessions.set(model, session);
    return session.description;
  }

  return async function receive({ channel = null, ...request }) {
    const { id } = request;
    for (const [other, its] of running) if (channel !== null && its === channel) running.delete(other);
    running.set(id, channel);
    try {
      for (const replies = answer(request); ; await pause()) {
        const { done, value } = await replies.next();
        if (!running.has(id)) return post({ id, type: "cancelled" });
        if (done) return post({ id, type: "result", ...value });
        if (value) post({ id, type: "step", ...value });
      }
    } catch (error) {
      post({ id, type: "error", message: error.message });
    } finally {
      running.delete(id);
    }
  };
}

/** Let waiting messages be received. A timer would wait for four milliseconds in a browser. */
function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => resolve(port1.close());
    port2.postMessage(null);
  });
}

if (typeof WorkerGlobalScope !== "undefined") {
  const receive = serve((reply) => self.postMessage(reply));
  self.onmessage = ({ data }) => receive(data);
}
