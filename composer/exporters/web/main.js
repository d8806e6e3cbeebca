// @ts-check
/** The page: loads the model, reads the form, and shows answers as they come. */

import { Network, checked } from "./network.js";
import { answer } from "./search.js";
import { readSource, requireContent, sourceField } from "./sources.js";
import { Text, oneLine } from "./text.js";
import { attentionTable, hypothesisList } from "./view.js";

/** @typedef {{model: Network, texts: Record<string, Text>, target: Text}} Loaded */
/** @typedef {import("./search.js").Hypothesis} Hypothesis */

/** @param {string} name @returns {any} */
const part = name => document.getElementById(name);
const form = part("question");
const FORMAT = 1;
const END = "(end)";
let stopped = true;

part("needs-server").remove();
form.hidden = false;
main().catch(error => say(`The model could not be loaded: ${error.message}`));

/** Load the model; then answer whatever is asked. */
async function main() {
  const settings = await (await open("model.json")).json();
  if (settings.format !== FORMAT) throw new Error(`model.json has the format ${settings.format}, and this page reads ${FORMAT}`);
  const reads = settings.sources.length ? settings.sources : [{ name: "prompt", kind: "prompt" }];
  part("sources").append(...reads.map(sourceField));
  chooseMethod(settings);
  const loaded = await load(settings);
  part("loading").hidden = true;
  part("go").disabled = false;
  say("Ready.");
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    ask(loaded).catch(error => say(error.message));
  });
  form.addEventListener("keydown", submitByKey);
  part("stop").addEventListener("click", () => (stopped = true));
}

/** @param {any} settings @returns {Promise<Loaded>} */
async function load(settings) {
  const read = readerWithProgress(JSON.parse(document.body.dataset.sizes ?? "{}"));
  /** @type {Record<string, Text>} */
  const texts = {};
  for (const { name, text } of settings.sources) if (text) texts[name] = await loadText(text, settings);
  const target = await loadText(settings.target, settings);
  return { model: await Network.load(settings, read), texts, target };
}

/** @param {import("./text.js").TextSettings} text @param {any} settings @returns {Promise<Text>} */
async function loadText(text, settings) {
  const content = new Uint8Array(await (await open(text.tokenizer)).arrayBuffer());
  const file = new TextDecoder().decode(await checked(content, text.tokenizer, settings));
  return new Text(text, JSON.parse(file), settings);
}

/** Open a file of the model, or of the runtime, in the version that the server has. @param {string} file @returns {Promise<Response>} */
async function open(file) {
  const url = file.startsWith("runtime/") ? new URL(file, import.meta.url) : file; // beside the modules
  const response = await fetch(url, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${file} is missing (${response.status})`);
  return response;
}

/** Return a function that reads a file, and shows how much of all files is there. @param {Record<string, number>} sizes bytes by file */
function readerWithProgress(sizes) {
  const progress = part("loading");
  progress.max = Object.values(sizes).reduce((one, other) => one + other, 0);
  return async (/** @type {string} */ file) => {
    const bytes = new Uint8Array(sizes[file]);
    let count = 0;
    const reader = /** @type {ReadableStream<Uint8Array>} */ ((await open(file)).body).getReader();
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      const chunk = /** @type {Uint8Array} */ (value);
      if (count + chunk.length > bytes.length) break;
      bytes.set(chunk, count);
      count += chunk.length;
      progress.value += chunk.length;
    }
    if (count !== bytes.length) throw new Error(`${file} has not the ${bytes.length} bytes that it should have`);
    return bytes;
  };
}

// ---- the form

/** Let the form begin with the method of the recipe. @param {any} settings */
function chooseMethod({ decoding, methods }) {
  const [[word, own]] = Object.entries(decoding);
  for (const option of part("method").options) option.disabled = !methods.includes(option.value);
  part("method").value = word === "sample" ? "sample" : "beam";
  begin("size", own.size ?? (word === "greedy" ? 1 : 5));
  begin("temperature", own.temperature ?? 1);
  part("method").addEventListener("change", showMethod);
  showMethod();
}

/** Let a field begin with a value, which its limits allow then. @param {string} name @param {number} value */
function begin(name, value) {
  const { min, max } = part(name);
  Object.assign(part(name), { value, min: Math.min(min, value), max: Math.max(max, value) });
}

/** Show the field of the method; a browser would also check one that is hidden. */
function showMethod() {
  for (const [word, name] of [["beam", "size"], ["sample", "temperature"]])
    part(word).hidden = part(name).disabled = part("method").value !== word;
}

/** Return the settings of a search: those of the recipe, with what the form says. @param {any} settings */
function decoding({ decoding }) {
  const [[word, own]] = Object.entries(decoding);
  const shared = { max_length: 512, max_ratio: 3, no_repeat_ngram: null, ...own };
  if (part("method").value === "sample") return { ...shared, temperature: Number(part("temperature").value), size: 0 };
  const size = Number(part("size").value);
  return { length_penalty: word === "greedy" && size === 1 ? 0 : 0.6, ...shared, size };
}

/** Enter answers a line; Ctrl-Enter anything. @param {KeyboardEvent} event */
function submitByKey(event) {
  const field = /** @type {HTMLElement} */ (event.target);
  const isLine = field.matches("textarea.line") && !event.shiftKey && !event.isComposing;
  if (event.key !== "Enter" || !(isLine || ((event.ctrlKey || event.metaKey) && field.matches("textarea")))) return;
  event.preventDefault();
  if (!part("go").disabled) form.requestSubmit();
}

// ---- an answer

/** @param {Loaded} loaded */
async function ask(loaded) {
  setBusy(true);
  part("answers").replaceChildren();
  part("attention").hidden = true;
  try {
    await showAnswer(loaded, await readQuestion(loaded));
  } finally {
    setBusy(false);
  }
}

/** @param {Loaded} loaded @param {any} question */
async function showAnswer({ model, texts, target }, question) {
  const spell = (/** @type {Hypothesis} */ { ids, ended }) => {
    const text = target.decode([...question.prefix, ...ids], ended);
    return question.longest ? oneLine(text) : text;
  };
  const begin = performance.now();
  let steps = 0;
  const answers = await answer(model, question, decoding(model.settings), async soFar => {
    steps += 1;
    showHypotheses(soFar, spell);
    await painted();
    return !stopped;
  });
  showHypotheses(answers, spell);
  showAttention(answers[0], question, texts, target);
  const seconds = (performance.now() - begin) / 1000;
  say(`${stopped ? "Stopped after" : "Answered in"} ${seconds.toFixed(2)} s: ${steps} ${steps === 1 ? "step" : "steps"}, ${(steps / seconds).toFixed(0)} a second.`);
}

/** @param {Loaded} loaded @returns {Promise<any>} a `Question`, and ids of its texts */
async function readQuestion({ model, texts, target }) {
  /** @type {any} */
  const question = { sources: {}, lengths: {}, longest: 0, prefix: [], ids: {} };
  const prompt = model.settings.sources.length ? "" : form.elements.prompt.value;
  question.prefix = readPrompt(prompt, target, model.settings.max_positions ?? Infinity);
  requireContent(model.settings.sources, form.elements);
  for (const source of model.settings.sources) {
    const { tensor, length, real, ids } = await readSource(source, form.elements[source.name], texts[source.name], model.settings);
    question.sources[`source.${source.name}`] = tensor;
    question.lengths[source.name] = length;
    question.ids[source.name] = ids;
    question.longest = Math.max(question.longest, real);
  }
  return question;
}

/** @param {string} prompt @param {Text} target @param {number} most positions @returns {number[]} */
function readPrompt(prompt, target, most) {
  const ids = target.encodeBeginning(prompt);
  if (ids.length >= most) throw new Error(`This text has ${ids.length} tokens, and the model reads ${most - 1}: enter its end alone.`);
  return ids;
}

/** @param {boolean} isBusy */
function setBusy(isBusy) {
  stopped = !isBusy;
  part("go").disabled = isBusy;
  part("stop").hidden = !isBusy;
  part("answers").setAttribute("aria-busy", isBusy);
  if (isBusy) say("Answering …");
}

/** @param {Hypothesis[]} answers @param {(answer: Hypothesis) => string} spell */
function showHypotheses(answers, spell) {
  part("answers").replaceChildren(...hypothesisList(answers, spell));
}

/** @param {Hypothesis | undefined} best @param {any} question @param {Record<string, Text>} texts @param {Text} target */
function showAttention(best, question, texts, target) {
  const [name] = Object.keys(question.ids);
  part("attention").hidden = !best?.attention.length || !question.ids[name];
  if (part("attention").hidden || !best) return;
  const columns = [...question.ids[name].map((/** @type {number} */ id) => texts[name].toText([id])), END];
  const rows = [...best.ids.map(id => target.toText([id])), END].slice(0, best.attention.length);
  part("attention-source").textContent = name;
  part("attention-map").replaceChildren(attentionTable(columns, rows, best.attention));
}

/** @param {string} text */
function say(text) {
  part("status").textContent = text;
}

/** Wait until the page was drawn. */
function painted() {
  return new Promise(resolve => setTimeout(resolve));
}
