// @ts-check
/** The fields of the form, and what they hold as inputs of the encoders. */

import { integers } from "./model.js";
import { element } from "./view.js";

/** @typedef {{tensor: import("./model.js").Tensor, length: number, real: number, ids: number[] | null}} Source its positions, those that are no padding, and ids of a text */

/** Return a field with its label. @param {{name: string, kind: string}} source @returns {HTMLElement} */
export function sourceField({ name, kind }) {
  const properties = { name, id: `source-${name}`, rows: 3, dir: "auto", autocapitalize: "off" };
  const field = element("textarea", { ...properties, className: kind === "prompt" ? "" : "line" });
  return element("p", {}, [element("label", { htmlFor: field.id, textContent: name }), field]);
}

/**
 * @param {{name: string}} source @param {any} field @param {import("./text.js").Text} text @param {any} settings
 * @returns {Promise<Source>}
 */
export async function readSource({ name }, field, text, { eos }) {
  const line = field.value.replace(/\r?\n/g, " ");
  if (!line.trim()) {
    field.focus();
    throw new Error(`Write a text into “${name}”.`);
  }
  const ids = text.encode(line);
  const length = ids.length + 1;
  return { tensor: integers([...ids, eos], [1, length]), length, real: length, ids };
}
