// @ts-check
/** Texts to ids and back, as `composer.data.tokenizer` does it. */

import { Tokenizer } from "./runtime/tokenizers.min.mjs";

/** @typedef {{tokenizer: string, lowercase: boolean, prepare: string, joiner: string, prefix: string}} TextSettings */

const SPACES = /[\p{White_Space}\x1c-\x1f]+/u; // where Python splits
const MARK = /[^\p{L}\p{N}_\p{White_Space}\x1c-\x1f]/gu;
const ZERO = /(?<=[01])@0\.00(?!\S)/g;
const BREAK = /\r\n|[\n-\r\x1c-\x1e\x85\u2028\u2029]/g;
const LONGEST = 10_000; // tokens
const NO_CHARACTER = "\u{10FFFF}"; // stands in a tokenizer's file where text is not parsed for special tokens

/** The tokenizer of a side. */
export class Text {
  /**
   * @param {TextSettings} settings
   * @param {object} content of the tokenizer's file
   * @param {{unk: number}} model
   */
  constructor(settings, content, { unk }) {
    this.settings = settings;
    this.tokenizer = new Tokenizer(content, {});
    this.unk = unk;
  }

  /** Return the ids of a line with the prefix of its side, without bos and eos. @param {string} line @returns {number[]} */
  encode(line) {
    return this.toIds(line, line.trim() ? this.settings.prefix : "");
  }

  /** Return the ids of the beginning of a line; an empty one is the prefix without spaces. @param {string} line @returns {number[]} */
  encodeBeginning(line) {
    const { prefix } = this.settings;
    return this.toIds(line, line ? prefix : prefix.trimEnd());
  }

  /** @param {string} line @param {string} prefix @returns {number[]} */
  toIds(line, prefix) {
    const { lowercase, prepare, joiner } = this.settings;
    const text = prefix + (lowercase ? line.toLowerCase() : line);
    const ids = isWords(prepare) ? this.encodeWords(asWords(text, prepare, joiner)) : this.encodePieces(text, prepare);
    if (ids.length > LONGEST)
      throw new Error(`This text has ${ids.length} tokens, and ${LONGEST} are read at most: shorten it.`);
    return ids;
  }

  /** @param {string} text @param {string} prepare @returns {number[]} */
  encodePieces(text, prepare) {
    if (!text) return [];
    const plain = prepare === "file" ? text.replaceAll(NO_CHARACTER, "\uFFFD") : text;
    const { ids } = this.tokenizer.encode(plain, { add_special_tokens: false });
    return ids.map((/** @type {number | undefined} */ id) => id ?? this.unk);
  }

  /** @param {string} text @returns {number[]} */
  encodeWords(text) {
    const words = text.split(/\p{White_Space}+/u).filter(Boolean);
    return words.map(word => Math.max(this.tokenizer.token_to_id(word) ?? this.unk, this.unk)); // no special token
  }

  /** Return the text of ids without the prefix of its side, see `toText`. @param {number[]} ids */
  decode(ids, ended = true) {
    const { prefix } = this.settings;
    const text = this.toText(ids, ended);
    const shown = prefix && this.toText(this.encodeBeginning(""));
    if (!shown || !text.startsWith(shown)) return text;
    const rest = text.slice(shown.length);
    const spaces = prefix.slice(prefix.trimEnd().length);
    return rest.startsWith(spaces) ? rest.slice(spaces.length) : rest.trimStart();
  }

  /** Return the text of ids; if it was cut, without an incomplete last character. @param {number[]} ids */
  toText(ids, ended = true) {
    const shown = ids.filter(id => id >= this.unk);
    if (!shown.length) return "";
    const options = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
    const decoded = this.tokenizer.decode(shown, options);
    const text = restore(this.settings.prepare === "file" ? decoded.replaceAll(NO_CHARACTER, "") : decoded, this.settings.joiner);
    return ended ? text : text.replace(/\uFFFD$/, "");
  }
}

/** @param {string} prepare */
function isWords(prepare) {
  return prepare !== "none" && prepare !== "file";
}

/** Return an answer as one line. @param {string} text @returns {string} */
export function oneLine(text) {
  return text.replace(new RegExp(`(${BREAK.source})$`), "").replace(BREAK, " ");
}

/** @param {string} text @param {string} prepare @param {string} joiner @returns {string} */
function asWords(text, prepare, joiner) {
  if (prepare === "marks") return splitMarks(text, joiner);
  return (prepare === "bits" ? text.replace(ZERO, "") : text).split(SPACES).join(" ");
}

/** Return words and marks with spaces between; a joiner is where there was none. @param {string} text @param {string} joiner */
function splitMarks(text, joiner) {
  return text.replace(MARK, (mark, at) => {
    if (/\p{M}/u.test(mark)) return mark; // part of its word
    const before = at && !SPACES.test(text[at - 1]) ? ` ${joiner}` : "";
    const after = /^[\p{L}\p{N}_]/u.test(text.slice(at + mark.length, at + mark.length + 2)) ? `${joiner} ` : "";
    return before + mark + after;
  });
}

/** Put marks where they were. @param {string} text @param {string} joiner @returns {string} */
function restore(text, joiner) {
  if (!joiner) return text;
  const joined = text.replaceAll(`${joiner} `, "").replaceAll(` ${joiner}`, "");
  return joined.replace(new RegExp(`^${joiner}+|${joiner}+$`, "g"), "");
}
