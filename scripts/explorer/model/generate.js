// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/** Greedy search, beam search and sampling, as transformers' `generate()` does them. */

import { concatenate, logSoftmax, softmax } from "./layers.js";

/** Options that change what `generate()` returns, and that are not known here. */
export const NOT_APPLIED = [
  "bad_words_ids", "begin_suppress_tokens", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
  "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
  "min_length", "min_new_tokens", "min_p", "sequence_bias", "suppress_tokens", "typical_p",
];

/** The token that ends a text, or several. */
export const endsOf = ({ eos_token_id: ends }) => new Set([ends ?? []].flat());

/**
 * What `generate()`'s logits processors do to the scores (vocabulary) of the token after `ids`, in their order.
 *
 * `repetition_penalty` divides the positive scores of tokens that are in `ids`, and multiplies the negative ones
 * (Keskar et al. 2019); no `no_repeat_ngram_size` tokens come in the same order again.
 */
export function processScores(scores, ids, { repetition_penalty: penalty = 1, no_repeat_ngram_size: size = 0 }) {
  const processed = scores.slice();
  for (const id of new Set(ids)) processed[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty;
  for (let i = 0; size > 0 && i + size <= ids.length; i++) {
    const isRepeated = ids.slice(i, i + size - 1).every((id, j) => id === ids[ids.length + 1 - size + j]);
    if (isRepeated) processed[ids[i + size - 1]] = -Infinity;
  }
  return processed;
}

/** The indices of the `count` largest numbers, largest first; -Infinity is left out. */
export function topIndices(numbers, count) {
  const best = [];
  for (let i = 0; i < numbers.length; i++) {
    if (best.length === count && !(numbers[i] > numbers[best[count - 1]])) continue;
    if (numbers[i] === -Infinity) continue;
    let place = best.length;
    while (place > 0 && numbers[best[place - 1]] < numbers[i]) place--;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * Beam search, as `GenerationMixin._beam_search`; with `num_beams` 1 greedy search, as `GenerationMixin._sample`.
 *
 * @param {number[]} ids the tokens that are given, of which the cache lacks the last one at least.
 * @param {object} options of the folder's generation_config.json, and of the call.
 * @yields {{step, candidates, running, finished}} `candidates`: the best continuations of all beams, best first, each
 *   {token, parent, log_probability, score, outcome, final_score}; `running`: which of them go on;
 *   `finished`: how many texts have ended. A page can draw the search while it runs, and stop it.
 * @returns {object[]} the best texts, best first: {ids, score, step, candidate}, the last two being where it ended.
 */
export function* search(model, ids, cache, options) {
  const { num_beams: numBeams = 1, length_penalty: penalty = 1, early_stopping: early = false } = options;
  const { max_length: saved = ids.length + 20, max_new_tokens: more } = options;
  const ends = endsOf(options);
  const wanted = more === undefined ? saved : ids.length + more;
  // the last token is never read, so it needs no position
  const longest = Math.min(wanted, model.config.max_position_embeddings + 1);
  if (longest <= ids.length) throw new Error(`There is no room for another token after ${ids.length} of them.`);
  const finalScore = (score, length) => Math.fround(score / Math.fround((length - ids.length) ** penalty));

  let beams = [{ ids, score: 0, candidate: -1 }];
  let finished = [];
  for (let step = 0, isRunning = true; isRunning; step++) {
    const output = model.decode(beams.map((beam) => beam.ids.slice(cache.length)), cache);
    const length = beams[0].ids.length + 1;
    const rows = output.logits.map((logits, i) => {
      const process = (scores) => processScores(scores, beams[i].ids, options);
      return numBeams > 1 ? process(logSoftmax(logits)) : logSoftmax(process(logits));
    });
    const scores = concatenate(...rows.map((row, i) => row.map((number) => number + beams[i].score)));
    const rowOf = (index) => Math.floor(index / rows[0].length);
    const tokenOf = (index) => index % rows[0].length;
    const extend = (index) => [...beams[rowOf(index)].ids, tokenOf(index)];

    // twice as many as beams, or more with several end tokens: enough that do not end
    const best = topIndices(scores, numBeams > 1 ? Math.max(2, 1 + ends.size) * numBeams : 1);
    const candidates = best.map((index, rank) => {
      const [row, token] = [rowOf(index), tokenOf(index)];
      // the others are only there to go on: they must not end
      const canEnd = (ends.has(token) || length >= longest) && rank < numBeams;
      return {
        token,
        parent: beams[row].candidate,
        log_probability: rows[row][token],
        score: scores[index],
        outcome: canEnd ? (ends.has(token) ? "ended" : "cut") : "dropped",
        final_score: canEnd ? finalScore(scores[index], length) : null,
      };
    });
    const ended = candidates.map(({ final_score: score }, i) => ({ ids: extend(best[i]), score, step, candidate: i }));
    finished = [...finished, ...ended.filter(({ score }) => score !== null)];
    finished = finished.sort((a, b) => b.score - a.score).slice(0, numBeams);

    const goOn = [...candidates.keys()].filter((i) => !ends.has(candidates[i].token) && length < longest);
    const running = goOn.slice(0, numBeams);
    cache = output.cache.select(running.map((i) => rowOf(best[i])));
    beams = running.map((i) => ({ ids: extend(best[i]), score: candidates[i].score, candidate: i }));

    // `_check_early_stop_heuristic` and `_beam_search_has_unfinished_sequences`
    const isFull = finished.length === numBeams;
    const bestLength = early === "never" && penalty > 0 ? longest : length;
    const canImprove = () => finalScore(beams[0].score, bestLength) > finished.at(-1).score;
    isRunning = beams.length > 0 && !(isFull && (early === true || !canImprove()));
    if (isRunning) running.forEach((i) => (candidates[i].outcome = "kept"));
    yield { step, candidates, running: isRunning ? running : [], finished: finished.length };
  }
  return finished;
}

/**
 * The probabilities that `generate(do_sample=True)` draws from.
 *
 * @param {Float32Array} logits (vocabulary).
 * @param {object} options `temperature` divides the logits, and at 0 only the likeliest token stays; only the `top_k`
 *   likeliest stay (0: all), and of them only the fewest that together have at least the probability `top_p`.
 * @returns {Float32Array} (vocabulary), their sum is 1.
 */
export function shapeProbabilities(logits, { temperature = 1, top_k = 0, top_p = 1 } = {}) {
  const scores = logits.map((logit) => logit / (temperature || 1));
  const sorted = scores.slice().sort(); // a typed array sorts numbers
  const count = temperature === 0 ? 1 : top_k || sorted.length;
  let lowest = sorted[Math.max(0, sorted.length - count)];
  if (top_p < 1) {
    const probabilities = softmax(sorted.map((score) => (score < lowest ? -Infinity : score)));
    let sum = 0;
    let i = 0;
    while (i < sorted.length - 1 && (sum += probabilities[i]) <= 1 - top_p) i++;
    lowest = sorted[i];
  }
  return softmax(scores.map((score) => (score < lowest ? -Infinity : score)));
}

/** What a row of logits says of a token: `predict_tokens` of tests/explained.py, without texts. */
export function predict(logits, token, numAlternatives = 10) {
  const probabilities = softmax(logits.slice());
  const rank = probabilities.reduce((count, probability) => count + (probability > probabilities[token]), 0);
  const describe = (id) => ({ token: id, probability: probabilities[id] });
  return { ...describe(token), rank, alternatives: topIndices(probabilities, numAlternatives).map(describe) };
}

/** A number from 0 to 1, which looks random and is the same for the same seed (mulberry32). */
export function makeRandom(seed) {
  const state = (seed + 0x6d2b79f5) >>> 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
}

/** Draw a token: the one at which the sum of the probabilities passes a number from 0 to 1. */
export function draw(probabilities, number) {
  let last = 0;
  for (let token = 0, sum = 0; token < probabilities.length && sum <= number; token++) {
    if (probabilities[token] > 0) [last, sum] = [token, sum + probabilities[token]];
  }
  return last;
}
