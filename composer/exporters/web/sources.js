// @ts-check
/** The fields of the form, and what they hold as inputs of the encoders. */

import { readImage } from "./images.js";
import { floats, integers } from "./network.js";
import { readSound, readVectors } from "./sounds.js";
import { element } from "./view.js";

/** @typedef {{tensor: import("./network.js").Tensor, length: number, real: number, ids: number[] | null}} Read its positions, those that are no padding, and ids of a text */
/** @typedef {{name: string, kind: string, shape: number[], column: any}} Source */

const FILES = /** @type {Record<string, string>} */ ({ image: "image/*", audio: "audio/*", vectors: ".npy" });
const LONGEST = 10_000; // frames
const SENTENCE_END = /[.?!](?=\s|$)/g;

/** Return a field with its label. @param {Source} source @returns {HTMLElement} */
export function sourceField({ name, kind }) {
  const id = `source-${name}`;
  const label = element("label", { htmlFor: id, textContent: name });
  if (kind in FILES) {
    const field = element("input", { name, id, type: "file", accept: FILES[kind] });
    const shown = element("span", { className: "preview" });
    field.addEventListener("change", () => shown.replaceChildren(...preview(kind, field.files[0])));
    return element("p", {}, [label, field, ...(kind === "audio" ? [recorder(field)] : []), shown]);
  }
  const className = kind === "prompt" ? "" : "line";
  return element("p", {}, [label, element("textarea", { name, id, className, rows: 3, dir: "auto", autocapitalize: "off" })]);
}

/** Return the picture or the player of a file that was chosen. @param {string} kind @param {File | undefined} file @returns {HTMLElement[]} */
function preview(kind, file) {
  if (!file || kind === "vectors") return [];
  const src = URL.createObjectURL(file);
  return [kind === "image" ? element("img", { src, alt: file.name }) : element("audio", { src, controls: true })];
}

/** Return a button that puts a recording into a field. @param {any} field @returns {HTMLElement} */
function recorder(field) {
  const button = element("button", { type: "button", textContent: "Record" });
  /** @type {MediaRecorder | null} */
  let recording = null;
  button.addEventListener("click", async () => {
    if (recording) return recording.stop();
    recording = new MediaRecorder(await navigator.mediaDevices.getUserMedia({ audio: true }));
    recording.addEventListener("dataavailable", ({ data }) => {
      const files = new DataTransfer();
      files.items.add(new File([data], "recording"));
      field.files = files.files;
      field.dispatchEvent(new Event("change"));
      recording?.stream.getTracks().forEach(track => track.stop());
      recording = null;
      button.textContent = "Record";
    });
    recording.start();
    button.textContent = "End the recording";
  });
  return button;
}

/** Refuse a question without content; a text beside others may be empty. @param {Source[]} sources @param {any} fields by name */
export function requireContent(sources, fields) {
  const empty = sources.filter(({ name }) => !(fields[name].files?.length ?? fields[name].value.trim()));
  const missing = empty.find(({ kind }) => kind in FILES) ?? (empty.length === sources.length ? empty[0] : null);
  if (!missing) return;
  fields[missing.name].focus();
  throw new Error(missing.kind in FILES ? `Choose a file for “${missing.name}”.` : `Write a text into “${missing.name}”.`);
}

/**
 * @param {Source} source @param {any} field @param {import("./text.js").Text} text @param {any} settings
 * @returns {Promise<Read>}
 */
export async function readSource(source, field, text, settings) {
  if (field.files) return readFile(source, field.files[0]);
  const lines = field.value.replace(/^\n+|\n+$/g, "").split("\n");
  if (lines.length > 1 && source.kind === "text")
    throw new Error(`“${source.name}” takes one line, and these are ${lines.length}: join them, or ask one after the other.`);
  const line = lines.join(" ");
  if (source.kind === "story") return readStory(source, text, line, settings.pad);
  const ids = text.encode(source.kind === "question" ? sentences(line).join(" ") : line);
  const length = ids.length + 1;
  return { tensor: integers([...ids, settings.eos], [1, length]), length, real: length, ids };
}

/** @param {Source} source @param {File} file @returns {Promise<Read>} */
async function readFile({ kind, shape, column }, file) {
  if (kind === "image") {
    const { values, positions, real } = await readImage(file, column, shape);
    return { tensor: floats(values, [1, positions, ...shape]), length: positions * shape[0], real, ids: null };
  }
  const { values, positions } = await (kind === "audio" ? readSound(file, column) : readVectors(file, shape[0]));
  if (positions > LONGEST) throw new Error(`This file has ${positions} frames, and ${LONGEST} are read at most: cut it.`);
  return { tensor: floats(values, [1, positions, ...shape]), length: positions, real: positions, ids: null };
}

/** Return the last sentences of a story, each padded. @param {Source} source @param {import("./text.js").Text} text @param {string} line @param {number} pad @returns {Read} */
function readStory({ name, shape: [most, words] }, text, line, pad) {
  const rows = sentences(line).slice(-most).map(sentence => text.encode(sentence));
  if (!rows.length) throw new Error(`“${name}” has no sentence.`);
  const longest = Math.max(...rows.map(row => row.length));
  if (longest > words) throw new Error(`A sentence of “${name}” has ${longest} words, and ${words} are read at most.`);
  const ids = rows.flatMap(row => [...row, ...Array(words - row.length).fill(pad)]);
  return { tensor: integers(ids, [1, rows.length, words]), length: ids.length, real: rows.flat().length, ids: null };
}

/** Return sentences in lower case, without the marks that end them. @param {string} line @returns {string[]} */
function sentences(line) {
  return line.toLowerCase().split(SENTENCE_END).map(sentence => sentence.trim().split(/\s+/).join(" ")).filter(Boolean);
}
