// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Runs the explorer's model for test_explorer_model.py: a file of cases, {kind, ...} each, to a list of results. */

import { readFileSync, readdirSync } from "node:fs";

import { processScores, search, shapeProbabilities } from "../scripts/explorer/model/generate.js";
import { ACTIVATIONS } from "../scripts/explorer/model/layers.js";
import { fromFiles, loadModel } from "../scripts/explorer/model/load.js";
import { MODELS } from "../scripts/explorer/model/models.js";
import { readSafetensors } from "../scripts/explorer/model/safetensors.js";
import { Tokenizer } from "../scripts/explorer/model/tokenizer.js";
import { serve } from "../scripts/explorer/worker.js";

const readJson = (path) => JSON.parse(readFileSync(path, "utf8"));
const toBase64 = (arrays) => arrays.map((array) => Buffer.from(Float32Array.from(array).buffer).toString("base64"));

/** A folder's own files, as a page gets them from a user. */
function filesOf(folder) {
  const names = readdirSync(folder).filter((name) => /\.(json|safetensors)$/.test(name));
  return new Map(names.map((name) => [name, new Blob([readFileSync(`${folder}/${name}`)])]));
}

/** A folder, with its tokenizer if it has one. */
const loaded = new Map();
async function load(folder) {
  const files = filesOf(folder);
  if (!loaded.has(folder) && files.has("tokenizer.json")) {
    loaded.set(folder, await loadModel(fromFiles(files)));
  }
  if (!loaded.has(folder)) {
    const tensors = readSafetensors(await files.get("model.safetensors").arrayBuffer());
    const config = readJson(`${folder}/config.json`);
    const model = new MODELS[config.model_type](config, tensors);
    loaded.set(folder, { model, generation_config: readJson(`${folder}/generation_config.json`) });
  }
  return loaded.get(folder);
}

const KINDS = {
  /** Logits of each row: of all positions at once, and token by token with a cache for all rows. */
  async logits({ folder, rows, source, steps }) {
    const { model } = await load(folder);
    const whole = rows.flatMap((row) => model.decode([row], model.encode(source), true).logits);
    const stepwise = [];
    let cache = model.encode(source);
    for (let i = 0; steps && i < rows[0].length; i++) {
      const output = model.decode(rows.map((row) => [row[i]]), cache);
      cache = output.cache;
      stepwise.push(...output.logits);
    }
    return { whole: toBase64(whole), stepwise: toBase64(stepwise) };
  },
  activations: ({ numbers }) =>
    Object.fromEntries(Object.entries(ACTIVATIONS).map(([name, activation]) => [name, numbers.map(activation)])),
  encode({ file, texts }) {
    const tokenizer = new Tokenizer(readJson(file));
    return texts.map((text) => {
      const ids = tokenizer.encode(text);
      return { ids, text: tokenizer.decode(ids), shown: ids.map((id) => tokenizer.read(id)) };
    });
  },
  async generate({ folder, sources, options, prefix }) {
    const { model, tokenizer, generation_config: generationConfig } = await load(folder);
    return sources.map((source) => {
      const inputIds = typeof source === "string" ? tokenizer.encode(source) : source;
      const ids = [...model.promptOf(inputIds), ...prefix];
      const steps = search(model, ids, model.encode(inputIds), { ...generationConfig, ...options });
      const trace = [];
      for (;;) {
        const { done, value } = steps.next();
        if (done) return { steps: trace, sequences: value };
        trace.push(value);
      }
    });
  },
  shape: ({ logits, ids, options }) =>
    Array.from(shapeProbabilities(processScores(Float32Array.from(logits), ids, options), options)),
  async inspect({ folder, inputIds, decoderInputIds, lens }) {
    const { model } = await load(folder);
    const trace = model.inspect(inputIds, decoderInputIds ?? inputIds);
    const at = ([stack, layer, part, name]) => trace[stack].layers[layer][part][name];
    const logits = lens.map((path) => toBase64(model.lens(path[0], at(path).data)));
    const encode = (value) => {
      if (value instanceof Float32Array) return toBase64([value])[0];
      if (typeof value !== "object" || value === null) return value;
      if (Array.isArray(value)) return value.map(encode);
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, encode(each)]));
    };
    return { trace: encode(trace), logits };
  },
  /** What loading a folder says, with some files changed. */
  async load({ folder, changes }) {
    const files = filesOf(folder);
    for (const [name, text] of Object.entries(changes)) {
      if (text === null) files.delete(name);
      else files.set(name, new Blob([text]));
    }
    try {
      const { num_parameters, dtype, warnings } = await loadModel(fromFiles(files));
      return { num_parameters, dtype, warnings };
    } catch (error) {
      return { error: error.message };
    }
  },
  /** Replies of the worker to requests, which are sent at once, or each when the one before is answered. */
  async worker({ folder, requests, atOnce }) {
    const replies = [];
    const receive = serve((reply) => replies.push(structuredClone(reply)));
    await receive({ id: 0, type: "load", model: "m", source: { files: filesOf(folder) } });
    const sent = [];
    for (const request of requests) {
      sent.push(receive({ model: "m", ...request }));
      if (!atOnce) await sent.at(-1);
    }
    await Promise.all(sent);
    return replies;
  },
};

const results = [];
for (const { kind, ...given } of readJson(process.argv[2])) {
  results.push(await KINDS[kind](given));
}
const toList = (_, value) => (value instanceof Float32Array ? Array.from(value) : value);
process.stdout.write(JSON.stringify(results, toList));
