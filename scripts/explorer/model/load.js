// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Load a folder that `save_pretrained` wrote: from a URL, or from files that a user opened or dropped. */

import { NOT_APPLIED } from "./generate.js";
import { MODELS } from "./models.js";
import { readSafetensors } from "./safetensors.js";
import { Tokenizer } from "./tokenizer.js";

const NUMBERS = ["num_beams", "length_penalty", "repetition_penalty", "no_repeat_ngram_size", "temperature", "top_k", "top_p"];
const LARGEST = { json: 64e6, safetensors: 1e9 }; // bytes

/**
 * The files under a URL that ends with "/".
 *
 * @returns {(name: string) => Promise<{size: number, stream: ReadableStream} | null>} null: there is no such file.
 */
export function fromUrl(url) {
  return async (name) => {
    const response = await fetch(url + name).catch(() => {
      throw new Error(`${name} could not be loaded: the server does not answer.`);
    });
    if (response.status === 404) return null;
    if (!response.ok) throw new Error(`${name} could not be loaded: the server says ${response.status}.`);
    return { size: Number(response.headers.get("content-length")), stream: response.body };
  };
}

/** @param {Map<string, Blob>} files by their names in the folder. */
export function fromFiles(files) {
  return async (name) => files.has(name) && { size: files.get(name).size, stream: files.get(name).stream() };
}

/** What `parse` makes of a file's bytes; null if it is not there. `onProgress` is told which share has been read. */
async function readFile(source, name, parse, onProgress = () => {}) {
  const file = await source(name);
  if (!file) return null;
  const largest = LARGEST[name.split(".").at(-1)];
  if (file.size > largest) throw new Error(`${name} is larger than ${largest / 1e6} MB, too large for this page.`);
  let read = 0;
  const count = (chunk, controller) => {
    read += chunk.length;
    if (file.size) onProgress(Math.min(1, read / file.size));
    controller.enqueue(chunk);
  };
  const counted = file.stream.pipeThrough(new TransformStream({ transform: count }));
  const bytes = await new Response(counted).arrayBuffer().catch(() => {
    throw new Error(`${name} could not be read to its end: the connection was cut, the file changed, or it is too large.`);
  });
  try {
    return parse(bytes);
  } catch (error) {
    if (error.constructor === Error) throw error; // it is a sentence already
    throw new Error(`${name} is damaged, or is of another kind.`, { cause: error });
  }
}

function parseJson(bytes) {
  return JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
}

async function readWeights(source, onProgress) {
  const tensors = await readFile(source, "model.safetensors", readSafetensors, onProgress);
  if (!tensors) throw new Error("This folder holds no weights: there is no model.safetensors in it.");
  return tensors;
}

async function readTokenizer(source, name) {
  const tokenizer = await readFile(source, name, (bytes) => new Tokenizer(parseJson(bytes)));
  if (!tokenizer) throw new Error(`This folder holds no tokenizer: there is no ${name} in it.`);
  return tokenizer;
}

/** A config.json; refused if it is of another kind of model, or one that would fill the memory. */
function parseConfig(bytes) {
  const config = parseJson(bytes);
  const { model_type: type = "no model type", max_position_embeddings: longest, is_causal: isCausal } = config;
  if (!Object.hasOwn(MODELS, type)) {
    throw new Error(`config.json names ${type}; this page runs ${Object.keys(MODELS).join(" and ")}.`);
  }
  if (!(longest <= 1e5)) throw new Error("config.json says no max_position_embeddings, or too many.");
  if (isCausal === false) throw new Error("This model fills in masked tokens: it predicts no next one.");
  return config;
}

/**
 * Load a model with its tokenizer.
 *
 * @param source what `fromUrl` or `fromFiles` returned.
 * @param {(share: number) => void} onProgress told which share of the weights has been read, from 0 to 1.
 * @returns {{model, tokenizer, targetTokenizer, generation_config, num_parameters, dtype, warnings}} the two tokenizers
 *   are the same one, unless the folder has two vocabularies.
 * @throws {Error} the folder is no model of ours, or a file is missing or damaged; the message is one sentence.
 */
export async function loadModel(source, onProgress = () => {}) {
  const config = await readFile(source, "config.json", parseConfig);
  if (!config) throw new Error("This folder holds no model: there is no config.json in it.");
  const [tokenizer, tokenizerConfig, saved, tensors] = await Promise.all([
    readTokenizer(source, "tokenizer.json"),
    readFile(source, "tokenizer_config.json", parseJson),
    readFile(source, "generation_config.json", parseJson),
    readWeights(source, onProgress),
  ]);
  const hasTwo = tokenizerConfig?.tokenizer_class === "SourceTargetTokenizer"; // of a vocabulary each
  const targetTokenizer = hasTwo ? await readTokenizer(source, "target_tokenizer.json") : tokenizer;
  const model = new MODELS[config.model_type](config, tensors);
  if (tokenizer.size > config.vocab_size || targetTokenizer.size > model.decoder.vocabSize) {
    throw new Error("The tokenizer has more tokens than the model.");
  }
  const options = Object.entries({ eos_token_id: config.eos_token_id, ...saved });
  const generation_config = Object.fromEntries(options.filter(([, value]) => value !== null));
  for (const name of NUMBERS) {
    const value = generation_config[name] ?? 1;
    if (typeof value === "number" && (value > 0 || !/beams|repetition/.test(name))) continue;
    throw new Error(`generation_config.json sets ${name} to ${JSON.stringify(value)}, which generate() cannot use.`);
  }
  const ignored = NOT_APPLIED.filter((name) => ![undefined, 0, 1].includes(generation_config[name]));
  const warnings = ignored.map((name) => `generation_config.json sets ${name}, which is not applied here.`);
  const all = [...tensors.values()];
  const dtype = [...new Set(all.map((tensor) => tensor.dtype))].join(", ");
  const num_parameters = all.reduce((sum, tensor) => sum + tensor.data.length, 0);
  return { model, tokenizer, targetTokenizer, generation_config, num_parameters, dtype, warnings };
}
