// Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
/**
 * Greedy search, beam search and sampling, as transformers' `generate()` does them.
 *
 * Each is a generator: it yields after every step, so that a page can draw the search while it runs, and stop it.
 * `start` is {ids, cache}: the tokens that are given, of which the cache lacks the last one at least.
 */

/** Options that change what `generate()` returns, and that are not known here. */
export const NOT_APPLIED = [
  "bad_words_ids", "begin_suppress_tokens", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
  "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
  "min_length", "min_new_tokens", "min_p", "sequence_bias", "suppress_tokens", "typical_p",
];

const DEFAULTS = {
  num_beams: 1, length_penalty: 1, early_stopping: false, repetition_penalty: 1, no_repeat_ngram_size: 0,
  temperature: 1, top_k: 50, top_p: 1,
};

/** The options of a call, of the folder's generation_config.json, and `generate()`'s defaults, in this order. */
export function completeOptions(model, generationConfig, given, promptLength) {
  const isGiven = ([, value]) => value !== null && value !== undefined;
  const entries = [DEFAULTS, generationConfig, given].flatMap((source) => Object.entries(source).filter(isGiven));
  const { max_length: saved = promptLength + 20, max_new_tokens: more, ...options } = Object.fromEntries(entries);
  const longest = model.config.max_position_embeddings + 1; // the last token is never read, so it needs no position
  const max_length = Math.min(more === undefined ? saved : promptLength + more, longest);
  if (max_length <= promptLength) throw new Error(`There is no room for another token after ${promptLength} of them.`);
  return { ...options, max_length, promptLength, ends: new Set([options.eos_token_id ?? []].flat()) };
}

/** log(softmax(x)) in float32. */
export function logSoftmax(logits) {
  let largest = -Infinity;
  for (let i = 0; i < logits.length; i++) if (logits[i] > largest) largest = logits[i];
  let sum = 0;
  for (let i = 0; i < logits.length; i++) sum += Math.exp(logits[i] - largest);
  const shift = largest + Math.log(sum);
  return logits.map((logit) => logit - shift);
}

/** What `generate()`'s logits processors do to the scores of the token after `ids`, in their order; in place. */
function processScores(scores, ids, { repetition_penalty: penalty, no_repeat_ngram_size: size }) {
  if (penalty !== 1) for (const id of new Set(ids)) scores[id] *= scores[id] < 0 ? penalty : 1 / penalty;
  for (let i = 0; size > 0 && i + size <= ids.length; i++) {
    const isRepeated = ids.slice(i, i + size - 1).every((id, j) => id === ids[ids.length + 1 - size + j]);
    if (isRepeated) scores[ids[i + size - 1]] = -Infinity;
  }
  return scores;
}

/** The indices of the `count` largest numbers, largest first; -Infinity is left out. */
function topIndices(numbers, count) {
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
 * @yields {{step, candidates, running, finished}} `candidates`: the best continuations of all beams, best first, each
 *   {token, parent, log_probability, score, outcome, final_score}; `running`: which of them go on;
 *   `finished`: how many texts have ended.
 * @returns {object[]} the best texts, best first: {ids, score, step, candidate}, the last two being where it ended.
 */
export function* search(model, { ids, cache }, options) {
  const { num_beams: numBeams, length_penalty: penalty, early_stopping: early, ends, promptLength } = options;
  const finalScore = (score, length) => Math.fround(score / Math.fround((length - promptLength) ** penalty));
  let beams = [{ ids, score: 0, candidate: -1 }];
  let finished = [];
  for (let step = 0, isRunning = true; isRunning; step++) {
    const output = model.decode(beams.map((beam) => beam.ids.slice(cache.length)), cache);
    const length = beams[0].ids.length + 1;
    const process = (scores, i) => processScores(scores, beams[i].ids, options);
    const rows = output.logits.map((logits, i) =>
      numBeams > 1 ? process(logSoftmax(logits), i) : logSoftmax(process(logits.slice(), i)),
    );
    const vocabSize = rows[0].length;
    const scores = new Float32Array(rows.length * vocabSize);
    rows.forEach((row, i) => scores.set(row.map((number) => number + beams[i].score), i * vocabSize));

    // twice as many as beams, or more with several end tokens: enough that do not end
    const best = topIndices(scores, numBeams > 1 ? Math.max(2, 1 + ends.size) * numBeams : 1);
    const candidates = best.map((index, rank) => {
      const [beam, token] = [Math.floor(index / vocabSize), index % vocabSize];
      const isEnd = ends.has(token);
      // the others are only there to go on: they must not end
      const canEnd = (isEnd || length >= options.max_length) && rank < numBeams;
      const score = scores[index];
      return {
        token,
        parent: beams[beam].candidate,
        log_probability: rows[beam][token],
        score,
        outcome: canEnd ? (isEnd ? "ended" : "cut") : "dropped",
        final_score: canEnd ? finalScore(score, length) : null,
        beam,
      };
    });
    const goesOn = ({ token }) => !ends.has(token) && length < options.max_length;
    const continued = candidates.filter(goesOn).slice(0, numBeams);
    const extend = (candidate) => [...beams[candidate.beam].ids, candidate.token];
    for (const [i, candidate] of candidates.entries()) {
      if (candidate.final_score === null) continue;
      finished.push({ ids: extend(candidate), score: candidate.final_score, step, candidate: i });
    }
    finished = finished.sort((a, b) => b.score - a.score).slice(0, numBeams);

    beams = continued.map((each) => ({ ids: extend(each), score: each.score, candidate: candidates.indexOf(each) }));
    cache = output.cache.select(continued.map((candidate) => candidate.beam));
    candidates.forEach((candidate) => delete candidate.beam);

    // `_check_early_stop_heuristic` and `_beam_search_has_unfinished_sequences`
    const isFull = finished.length === numBeams;
    const bestLength = early === "never" && penalty > 0 ? options.max_length : length;
    const canImprove = () => finalScore(beams[0].score, bestLength) > finished.at(-1).score;
    isRunning = beams.length > 0 && !(isFull && (early === true || !canImprove()));
    continued.forEach((candidate) => (candidate.outcome = isRunning ? "kept" : "dropped"));
    const running = isRunning ? beams.map((beam) => beam.candidate) : [];
    yield { step, candidates, running, finished: finished.length };
  }
  return finished;
}

/**
 * The probabilities that `generate(do_sample=True)` draws from.
 *
 * @param {Float32Array} logits (vocabulary).
 * @param {object} options `temperature` divides the logits; only the `top_k` likeliest tokens stay (0: all), and of
 *   them only the fewest likeliest that together have at least the probability `top_p`.
 * @returns {Float32Array} (vocabulary), their sum is 1.
 */
export function shapeProbabilities(logits, { temperature = 1, top_k = 0, top_p = 1 } = {}) {
  const scores = logits.map((logit) => logit / (temperature || 1));
  const sorted = scores.slice().sort(); // a typed array sorts numbers
  let lowest = top_k > 0 && top_k < sorted.length ? sorted[sorted.length - top_k] : -Infinity;
  if (top_p < 1) {
    const probabilities = softmaxOf(sorted.map((score) => (score < lowest ? -Infinity : score)));
    let sum = 0;
    let i = 0;
    while (i < sorted.length - 1 && (sum += probabilities[i]) <= 1 - top_p) i++;
    lowest = sorted[i];
  }
  return softmaxOf(scores.map((score) => (score < lowest ? -Infinity : score)));
}

const softmaxOf = (scores) => logSoftmax(scores).map(Math.exp);

/** What a row of logits says of a token: `hf_scratch.explaining.predict_tokens`, without texts. */
export function predict(logits, token, options = {}, numAlternatives = 10) {
  const probabilities = softmaxOf(logits);
  const shaped = shapeProbabilities(logits, options);
  const rank = probabilities.reduce((count, probability) => count + (probability > probabilities[token]), 0);
  const describe = (id) => ({ token: id, probability: probabilities[id], shaped: shaped[id] });
  return { ...describe(token), rank, alternatives: topIndices(probabilities, numAlternatives).map(describe) };
}

/** Random numbers from 0 to 1 that a seed repeats (mulberry32). */
export function makeRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * Draw token by token, or at temperature 0 take the likeliest.
 *
 * @yields {{token, logits}} each token, and the logits (vocabulary) that it was drawn from.
 * @returns {{ids, ended}} all ids, and whether an end token came.
 */
export function* sample(model, { ids, cache }, options, random) {
  while (ids.length < options.max_length) {
    const output = model.decode([ids.slice(cache.length)], cache);
    cache = output.cache;
    const logits = processScores(output.logits[0], ids, options);
    const isGreedy = options.temperature === 0;
    const token = isGreedy ? topIndices(logits, 1)[0] : draw(shapeProbabilities(logits, options), random());
    ids = [...ids, token];
    yield { token, logits };
    if (options.ends.has(token)) return { ids, ended: true };
  }
  return { ids, ended: false };
}

/** The index at which the sum of the probabilities passes a number from 0 to 1. */
function draw(probabilities, number) {
  let last = 0;
  for (let i = 0, sum = 0; i < probabilities.length && sum <= number; i++) {
    if (probabilities[i] > 0) [last, sum] = [i, sum + probabilities[i]];
  }
  return last;
}
