// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Load a folder that `save_pretrained` wrote: from a URL, from dropped files, or from a Map. */

import { NOT_APPLIED } from "./generate.js";
import { MODELS } from "./models.js";
import { readSafetensors } from "./safetensors.js";
import { Tokenizer } from "./tokenizer.js";

const LARGEST = { json: 64e6, safetensors: 1e9 }; // bytes

/**
 * The files under a URL that ends with "/".
 *
 * @returns {(name: string) => Promise<ArrayBuffer | null>} null for a file that is not there.
 */
export function fromUrl(url) {
  return async (name) => {
    const response = await fetch(url + name);
    if (response.status === 404) return null;
    if (!response.ok) throw new Error(`${name} could not be loaded: the server says ${response.status}.`);
    checkSize(name, Number(response.headers.get("content-length")));
    return response.arrayBuffer();
  };
}

/** Files that a user chose or dropped: File objects, or a Map of paths to Files or ArrayBuffers. */
export function fromFiles(files) {
  const pathOf = (file) => file.webkitRelativePath || file.name;
  const paths = files instanceof Map ? files : new Map(Array.from(files, (file) => [pathOf(file), file]));
  // the folder may lie in another: take the config.json that is highest
  const depth = (path) => path.split("/").length;
  const isConfig = (path) => path === "config.json" || path.endsWith("/config.json");
  const [config = ""] = [...paths.keys()].filter(isConfig).sort((a, b) => depth(a) - depth(b));
  const folder = config.slice(0, -"config.json".length);
  return async (name) => {
    const file = paths.get(folder + name);
    if (file === undefined) return null;
    checkSize(name, file.size ?? file.byteLength);
    return file instanceof ArrayBuffer ? file : file.arrayBuffer();
  };
}

function checkSize(file, bytes) {
  const largest = LARGEST[file.split(".").at(-1)];
  if (bytes > largest) throw new Error(`${file} is larger than ${largest / 1e6} MB, too large for this page.`);
}

/** A JSON object, or what `missing()` returns or throws if the file is not there. */
async function readJson(source, name, missing) {
  const bytes = await source(name);
  if (bytes === null) return missing();
  try {
    const value = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  } catch {
    // the same sentence
  }
  throw new Error(`${name} is not whole: it holds no JSON object.`);
}

function absent(file, what) {
  return () => {
    throw new Error(`This folder holds no ${what}: there is no ${file} in it.`);
  };
}

async function readWeights(source) {
  const whole = await source("model.safetensors");
  if (whole !== null) return readSafetensors(whole);
  const index = await readJson(source, "model.safetensors.index.json", absent("model.safetensors", "weights"));
  const tensors = new Map();
  for (const name of new Set(Object.values(index.weight_map ?? {}))) {
    const shard = await source(name);
    if (shard === null) throw new Error(`The weights are not whole: ${name} is missing.`);
    readSafetensors(shard).forEach((tensor, key) => tensors.set(key, tensor));
  }
  return tensors;
}

/** Refuse a config.json of another kind of model, or one that would fill the memory. */
function checkConfig({ model_type: type = "no model type", max_position_embeddings: longest, is_causal: isCausal }) {
  if (!Object.hasOwn(MODELS, type)) {
    throw new Error(`config.json names ${type}; this page runs ${Object.keys(MODELS).join(" and ")}.`);
  }
  if (!(longest <= 1e5)) throw new Error("config.json says no max_position_embeddings, or too many.");
  if (isCausal === false) throw new Error("This model fills in masked tokens: it predicts no next one.");
}

/**
 * Load a model with its tokenizer.
 *
 * @param source what `fromUrl` or `fromFiles` returned.
 * @returns {{model, tokenizer, targetTokenizer, generation_config, num_parameters, dtype, warnings}} the two tokenizers
 *   are the same one, unless the folder has two vocabularies.
 * @throws {Error} the folder is no model of ours, or a file is missing or damaged; the message is one sentence.
 */
export async function loadModel(source) {
  const config = await readJson(source, "config.json", absent("config.json", "model"));
  checkConfig(config);
  const tokenizerConfig = await readJson(source, "tokenizer_config.json", () => ({}));
  const readTokenizer = async (file, what) => new Tokenizer(await readJson(source, file, absent(file, what)));
  const tokenizer = await readTokenizer("tokenizer.json", "tokenizer");
  const hasTwo = tokenizerConfig.tokenizer_class === "SourceTargetTokenizer";
  const targetTokenizer = hasTwo ? await readTokenizer("target_tokenizer.json", "target tokenizer") : tokenizer;
  const tensors = await readWeights(source);
  const model = new MODELS[config.model_type](config, tensors);
  const sizes = [[tokenizer, config.vocab_size], [targetTokenizer, model.decoder.vocabSize]];
  for (const [{ size }, vocabSize] of sizes) {
    if (size > vocabSize) throw new Error(`The tokenizer has ${size} tokens, but the model only ${vocabSize}.`);
  }
  const saved = await readJson(source, "generation_config.json", () => ({}));
  const generation_config = { eos_token_id: config.eos_token_id, ...saved };
  const ignored = NOT_APPLIED.filter((name) => ![undefined, null, 0, 1].includes(generation_config[name]));
  const warnings = ignored.map((name) => `generation_config.json sets ${name}, which is not applied here.`);
  const dtype = [...new Set([...tensors.values()].map((tensor) => tensor.dtype))].join(", ");
  const num_parameters = [...tensors.values()].reduce((sum, tensor) => sum + tensor.data.length, 0);
  return { model, tokenizer, targetTokenizer, generation_config, num_parameters, dtype, warnings };
}
