// @ts-check
/** Search for the answers to a question, as `composer.inference` does it: beam search and sampling. */

import { booleans, padded } from "./network.js";

/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Step} Step */
/**
 * @typedef {object} Question
 * @property {import("./network.js").Tensors} sources by the names of the inputs of `encode`
 * @property {Record<string, number>} lengths positions of each source
 * @property {number} longest positions of the longest source that are no padding, 0 without one
 * @property {number[]} prefix tokens with which the answer begins
 */
/**
 * @typedef {object} Hypothesis
 * @property {number[]} ids without the prefix, bos and eos
 * @property {number} score sum of log p, that of eos and of the prefix too
 * @property {number} rank what hypotheses are compared by
 * @property {boolean} ended false if it was cut at its limit
 * @property {Float32Array[]} attention of each token
 */
/** @typedef {Hypothesis & {row: number}} Open a hypothesis that goes on, and its row of the state */
/** @typedef {{size: number, own: number}} Size tokens of the answer with prefix and eos, and the least; 0 if sizes do not matter */
/** @typedef {(answers: Hypothesis[]) => Promise<boolean>} Show takes the answers so far; false stops the search */
/** @typedef {(logProbs: Float32Array, ids: number[]) => Float32Array} Allow log p of the next token, -inf where it cannot be */

const ALWAYS = 50; // tokens that every answer may have, however short its source is
const ROUNDING = 1e-9;

/**
 * Return the answers that a search finds, best first; the ended ones come before those that were cut.
 * @param {Network} model @param {Question} question @param {any} settings of `beam` or `sample` @param {Show} show
 */
export async function answer(model, question, settings, show) {
  const method = settings.size ? beam : sample;
  /** @type {Hypothesis[]} */
  const answers = [];
  for (const size of answerSizes(model, question, settings))
    answers.push(...(await method(model, question, size, settings, show)));
  answers.sort((one, other) => Number(other.ended) - Number(one.ended) || other.rank - one.rank);
  return distinct(answers).slice(0, settings.size || 1);
}

/** @param {Hypothesis[]} answers @returns {Hypothesis[]} */
function distinct(answers) {
  const seen = new Set();
  return answers.filter(({ ids }) => !seen.has(String(ids)) && seen.add(String(ids)));
}

/**
 * Beam search with a length penalty (Wu et al. 2016): a hypothesis that ends keeps its place in the beam.
 * @param {Network} model @param {Question} question @param {Size} size @param {any} settings @param {Show} show
 * @returns {Promise<Hypothesis[]>}
 */
async function beam(model, question, size, settings, show) {
  const limit = tokenLimit(model, question, size, settings);
  const allow = allowed(model, question, size, settings);
  const penalty = (/** @type {number} */ tokens) =>
    ((5 + question.prefix.length + tokens) / 6) ** settings.length_penalty;
  let { last, score } = await prefill(model, question, size);
  /** @type {Open[]} */
  let open = [{ ids: [], score, rank: score, ended: false, attention: [], row: 0 }];
  /** @type {Hypothesis[]} */
  let ended = [];
  let places = settings.size;
  for (let step = 1; ; step += 1) {
    const grown = continuations(model, open, last, allow, places);
    for (const each of grown) each.rank = each.score / penalty(step);
    open = grown.filter(each => !each.ended);
    const ending = grown.filter(each => each.ended);
    ended = best([...ended, ...ending], settings.size);
    places -= ending.length;
    const shown = [...ended, ...open].slice(0, settings.size);
    // log p only falls, and no answer is longer than the limit
    const bound = open.length ? open[0].score / penalty(limit) : -Infinity;
    const isDone = step >= limit || !open.length || (ended[settings.size - 1]?.rank ?? -Infinity) >= bound;
    if (!(await show(shown)) || isDone) return shown;
    const rows = open.map(each => each.row);
    last = await model.step(open.map(each => each.ids[step - 1]), model.select(last.state, rows));
  }
}

/**
 * Return the best hypotheses with one more token, as many as there are places.
 * @param {Network} model @param {Open[]} open @param {Step} last @param {Allow} allow @param {number} places
 * @returns {Open[]}
 */
function continuations(model, open, last, allow, places) {
  const { eos } = model.settings;
  /** @type {Open[]} */
  const grown = [];
  open.forEach((from, row) => {
    const logProbs = allow(last.logProbs[row], from.ids);
    for (const token of largest(logProbs, places)) {
      const ended = token === eos;
      const ids = ended ? from.ids : [...from.ids, token];
      const attention = last.attention.length ? [...from.attention, last.attention[row]] : [];
      grown.push({ ids, score: from.score + logProbs[token], rank: 0, ended, attention, row });
    }
  });
  grown.sort((one, other) => other.score - one.score);
  return grown.slice(0, places);
}

/**
 * Draw each token by its probability.
 * @param {Network} model @param {Question} question @param {Size} size @param {any} settings @param {Show} show
 * @returns {Promise<Hypothesis[]>}
 */
async function sample(model, question, size, settings, show) {
  const limit = tokenLimit(model, question, size, settings);
  const allow = allowed(model, question, size, settings);
  let { last, score } = await prefill(model, question, size);
  /** @type {Hypothesis} */
  const drawn = { ids: [], score, rank: score, ended: false, attention: [] };
  for (let step = 1; ; step += 1) {
    const logProbs = allow(last.logProbs[0], drawn.ids);
    const token = draw(probabilities(logProbs, last.logits[0], [...question.prefix, ...drawn.ids], settings));
    drawn.score = drawn.rank = drawn.score + logProbs[token];
    drawn.ended = token === model.settings.eos;
    if (!drawn.ended) drawn.ids.push(token);
    if (last.attention.length) drawn.attention.push(last.attention[0]);
    if (!(await show([drawn])) || drawn.ended || step >= limit) return [drawn];
    last = await model.step([token], last.state);
  }
}

/**
 * Return the probabilities by which a token is drawn; their sum need not be 1.
 * @param {Float32Array} logProbs @param {Float32Array} logits @param {number[]} history @param {any} settings
 * @returns {Float64Array}
 */
function probabilities(logProbs, logits, history, settings) {
  const seen = new Set(settings.repetition_penalty > 1 ? history : []);
  const scores = Float64Array.from(logProbs, (logP, token) => {
    if (!seen.size || logP === -Infinity) return logP;
    const logit = logits[token];
    if (!seen.has(token)) return logit;
    return logit > 0 ? logit / settings.repetition_penalty : logit * settings.repetition_penalty;
  });
  const highest = scores.reduce((one, other) => Math.max(one, other));
  const weights = scores.map(score => Math.exp((score - highest) / settings.temperature));
  return truncate(weights, settings);
}

/** Leave out what is outside top-k, top-p and min-p. @param {Float64Array} weights of which 1 is the highest @param {any} settings */
function truncate(weights, { top_k, top_p, min_p }) {
  const order = [...weights.keys()].sort((one, other) => weights[other] - weights[one] || one - other);
  const inside = order.slice(0, top_k ?? order.length);
  const total = inside.reduce((sum, token) => sum + weights[token], 0);
  const kept = new Float64Array(weights.length);
  let before = 0;
  for (const token of inside) {
    if (before >= (top_p ?? 1) * total || weights[token] < (min_p ?? 0)) break;
    kept[token] = weights[token];
    before += weights[token];
  }
  return kept;
}

/** @param {Float64Array} weights @returns {number} */
function draw(weights) {
  let left = Math.random() * weights.reduce((one, other) => one + other);
  return weights.findIndex(weight => (left -= weight) < 0);
}

/**
 * Read the prefix. -> the step after it, and the sum of log p of its tokens
 * @param {Network} model @param {Question} question @param {Size} size
 */
async function prefill(model, { sources, prefix }, { size }) {
  const inputs = size ? withRoom(model, sources, size) : sources;
  let last = await model.step([model.settings.bos], await model.start(inputs));
  let score = 0;
  for (const token of prefix) {
    score += last.logProbs[0][token];
    last = await model.step([token], last.state);
  }
  return { last, score };
}

/** Return sources with room for an answer, all of one length. @param {Network} model @param {import("./network.js").Tensors} sources @param {number} size */
function withRoom(model, sources, size) {
  const length = Math.max(size, ...Object.values(sources).map(source => source.dims[1]));
  const places = Array.from({ length }, (_, at) => at < size);
  /** @type {import("./network.js").Tensors} */
  const inputs = { answer: booleans(places, [1, length]) };
  for (const [name, source] of Object.entries(sources)) inputs[name] = padded(source, length, model.settings.pad);
  return inputs;
}

// ---- lengths

/**
 * Return the sizes of answers to try: where encoders make room for an answer, each that it can have.
 * @param {Network} model @param {Question} question @param {any} settings @returns {Size[]}
 */
function answerSizes(model, { lengths, prefix }, settings) {
  const sources = model.settings.sources.filter((/** @type {any} */ source) => source.room);
  if (!sources.length) return [{ size: 0, own: 0 }];
  const own = Math.min(...sources.map((/** @type {any} */ { name }) => lengths[name]));
  const rooms = sources.map((/** @type {any} */ { name, room }) => Math.ceil(room * lengths[name] - ROUNDING));
  const limit = prefix.length + limitByRatio(Math.max(...Object.values(lengths)), settings);
  const first = Math.max(own, prefix.length + 1);
  const last = Math.max(first, Math.min(limit, Math.max(...rooms)));
  return Array.from({ length: last - first + 1 }, (_, at) => ({ size: first + at, own }));
}

/** Return the tokens of an answer at most, eos included. @param {number} source @param {any} settings @returns {number} */
function limitByRatio(source, { max_length, max_ratio }) {
  return source ? Math.min(max_length, Math.ceil(max_ratio * source) + ALWAYS) : max_length;
}

/** The same without the prefix, as far as the model can tell positions apart. @param {Network} model @param {Question} question @param {Size} size @param {any} settings */
function tokenLimit(model, { longest, prefix }, { size }, settings) {
  const limits = [limitByRatio(longest, settings)];
  if (model.settings.max_positions && !longest)
    limits.push(Math.max(1, model.settings.max_positions - prefix.length));
  if (size) limits.push(size - prefix.length);
  return Math.min(...limits);
}

// ---- tokens that cannot be

/**
 * Return a function that gives impossible tokens -inf.
 * @param {Network} model @param {Question} question @param {Size} size @param {any} settings @returns {Allow}
 */
function allowed(model, { prefix }, { size, own }, { no_repeat_ngram }) {
  const { pad, bos, eos, impossible } = model.settings;
  return (row, ids) => {
    const logProbs = row.slice();
    logProbs[pad] = logProbs[bos] = -Infinity;
    if (size) limitSize(logProbs, eos, size - prefix.length - ids.length, size > own);
    if (impossible !== null) exclude(logProbs, token => logProbs[token] < impossible);
    if (no_repeat_ngram) {
      const repeated = repeating([...prefix, ...ids], no_repeat_ngram);
      exclude(logProbs, token => repeated.has(token));
    }
    return logProbs;
  };
}

/** Let an answer end when no token is left, and if its size is exact, not before. @param {Float32Array} logProbs @param {number} eos @param {number} left @param {boolean} exact */
function limitSize(logProbs, eos, left, exact) {
  const end = logProbs[eos];
  if (left <= 1) logProbs.fill(-Infinity);
  logProbs[eos] = exact && left > 1 ? -Infinity : end;
}

/** Exclude tokens, unless none is left. @param {Float32Array} logProbs @param {(token: number) => boolean} test */
function exclude(logProbs, test) {
  const left = logProbs.map((logP, token) => (test(token) ? -Infinity : logP));
  if (left.some(logP => logP > -Infinity)) logProbs.set(left);
}

/** Return the tokens that would repeat an n-gram. @param {number[]} history @param {number} size @returns {Set<number>} */
function repeating(history, size) {
  const last = String(history.slice(history.length - size + 1));
  const repeated = new Set();
  for (let at = 0; at + size <= history.length; at += 1)
    if (size === 1 || String(history.slice(at, at + size - 1)) === last) repeated.add(history[at + size - 1]);
  return repeated;
}

/** Return the tokens with the largest log p, best first; none that cannot be. @param {Float32Array} logProbs @param {number} count */
function largest(logProbs, count) {
  /** @type {number[]} */
  const tokens = [];
  logProbs.forEach((logP, token) => {
    if (logP === -Infinity || (tokens.length === count && logP <= logProbs[tokens[count - 1]])) return;
    const place = tokens.findIndex(other => logProbs[other] < logP);
    tokens.splice(place < 0 ? tokens.length : place, 0, token);
    tokens.length = Math.min(tokens.length, count);
  });
  return tokens;
}

/** @param {Hypothesis[]} hypotheses @param {number} count @returns {Hypothesis[]} */
function best(hypotheses, count) {
  return hypotheses.sort((one, other) => other.rank - one.rank).slice(0, count);
}
