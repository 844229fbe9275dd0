// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/**
 * The model behind messages, so that the page never waits for it. README.md lists the requests and their replies.
 *
 * A request is {id, type, ...}. Its replies carry the same id: any number of type "step", then one of type "result",
 * "error" or "cancelled". A request with a `channel` cancels the older ones of that channel.
 */

import { completeOptions, makeRandom, predict, sample, search } from "./model/generate.js";
import { fromFiles, fromUrl, loadModel } from "./model/load.js";

const CHUNK = 16; // tokens of a given text that are read before other messages are
const LONGEST_TEXT = 5000; // characters: a word of as many takes seconds to encode

/** A loaded model that answers requests: each is a generator, which stops when it is not asked for its next step. */
class Session {
  constructor(loaded) {
    Object.assign(this, loaded);
    this.isTranslator = Boolean(this.model.encoder);
    this.last = null; // what `read` computed
  }

  /** The ids that the model reads, and those that its decoder reads. */
  idsOf({ text, input_ids: given, decoder_input_ids: decoderInputIds }) {
    if (text?.length > LONGEST_TEXT) throw new Error(`This text is longer than ${LONGEST_TEXT} characters.`);
    const inputIds = given ?? this.tokenizer.encode(text);
    if (inputIds.length === 0) throw new Error("There is no token in this text. Write some words.");
    return { inputIds, decoderInputIds: this.isTranslator ? decoderInputIds : inputIds };
  }

  /** Run the decoder over ids: their logits and the cache. What the last text began with is not computed again. */
  *read(inputIds, ids) {
    const source = this.isTranslator ? inputIds.join() : "";
    if (this.last?.source !== source) {
      this.last = { source, ids: [], logits: [], cache: this.model.start(inputIds).cache };
    }
    const same = ids.findIndex((id, i) => id !== this.last.ids[i]);
    const length = same < 0 ? ids.length : same;
    let state = {
      source,
      ids: ids.slice(0, length),
      logits: this.last.logits.slice(0, length),
      cache: this.last.cache.crop(length),
    };
    while (state.ids.length < ids.length) {
      const next = ids.slice(state.ids.length, state.ids.length + CHUNK);
      const { logits, cache } = this.model.decode([next], state.cache, true);
      state = { source, ids: [...state.ids, ...next], logits: [...state.logits, ...logits], cache };
      yield null;
    }
    this.last = state;
    return state;
  }

  /** Where a search begins: `start` and `options` of model/generate.js. */
  *begin({ prefix = [], options = {}, ...request }) {
    const { inputIds } = this.idsOf(request);
    const prompt = this.isTranslator ? [this.model.config.decoder_start_token_id] : inputIds;
    const ids = [...prompt, ...prefix];
    const all = completeOptions(this.model, this.generation_config, options, ids.length);
    const { cache } = yield* this.read(inputIds, ids.slice(0, -1));
    const texts = (sequence) => {
      const own = sequence.slice(prompt.length);
      return { ids: own, text: this.targetTokenizer.decode(own) };
    };
    return { inputIds, prompt, start: { ids, cache }, options: all, texts };
  }

  *search(request) {
    const { inputIds, prompt, start, options, texts } = yield* this.begin(request);
    const found = yield* search(this.model, start, options);
    const sequences = found.map(({ ids, ...rest }) => ({ ...texts(ids), ...rest }));
    const { num_beams, length_penalty } = options;
    return { input_ids: inputIds, prompt, num_beams, length_penalty, sequences };
  }

  *write(request) {
    const { start, options, texts } = yield* this.begin(request);
    const { ids, ended } = yield* sample(this.model, start, options, makeRandom(request.seed ?? 0));
    return { ...texts(ids), ended };
  }

  *predict({ options = {}, num_alternatives, from = 1, ...request }) {
    const { inputIds, decoderInputIds: ids } = this.idsOf(request);
    const { logits } = yield* this.read(inputIds, ids);
    const shape = completeOptions(this.model, this.generation_config, options, 0);
    const describe = (token, i) => predict(logits[from + i - 1], token, shape, num_alternatives);
    return { input_ids: inputIds, predictions: ids.slice(from).map(describe), logits: logits.at(-1).slice() };
  }

  *inspect(request) {
    const { inputIds, decoderInputIds } = this.idsOf(request);
    return { input_ids: inputIds, ...this.model.inspect(inputIds, decoderInputIds) };
  }

  *lens({ stack = "decoder", states, num_alternatives: count }) {
    const rows = this.model.lens(stack, states);
    return { alternatives: rows.map((logits) => predict(logits, 0, {}, count).alternatives) };
  }

  /** What a page shows of the model. */
  get description() {
    const { model, tokenizer, targetTokenizer, generation_config, num_parameters, dtype, warnings } = this;
    const textsOf = (each) => Array.from({ length: each.size }, (_, id) => each.read(id));
    const vocabulary = textsOf(targetTokenizer);
    const source_vocabulary = tokenizer === targetTokenizer ? vocabulary : textsOf(tokenizer);
    return {
      config: model.config,
      is_translator: this.isTranslator,
      ...{ generation_config, num_parameters, dtype, warnings, vocabulary, source_vocabulary },
    };
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

  async function* answer({ type, model, source, ...request }) {
    if (type === "cancel") return {};
    if (type === "load") {
      const files = source.url ? fromUrl(source.url) : fromFiles(source.files);
      sessions.set(model, new Session(await loadModel(files)));
      return sessions.get(model).description;
    }
    if (!sessions.has(model)) throw new Error(`No model is loaded as "${model}".`);
    if (!["search", "write", "predict", "inspect", "lens"].includes(type)) throw new Error(`No request is "${type}".`);
    return yield* sessions.get(model)[type](request);
  }

  return async function receive({ id, channel = null, ...request }) {
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
