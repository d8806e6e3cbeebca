// @ts-check
/** What is shown of answers: hypotheses with their scores, and attention as a table. */

/** @typedef {import("./search.js").Hypothesis} Hypothesis */

const LEVELS = 10; // shades of style.css

/** @param {string} tag @param {Record<string, any>} properties @param {(Node | string)[]} children */
export function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/**
 * Return an item for each hypothesis; different tokens may spell the same text.
 * @param {Hypothesis[]} answers @param {(answer: Hypothesis) => string} spell @returns {HTMLElement[]}
 */
export function hypothesisList(answers, spell) {
  /** @type {Map<string, Hypothesis>} */
  const byText = new Map();
  for (const each of answers) if (!byText.has(spell(each))) byText.set(spell(each), each);
  return [...byText].map(([text, { score, ended }]) => {
    const note = `${ended ? "" : "cut, "}log p ${score.toFixed(2).replace("-0.00", "0.00").replace("-", "−")}`;
    return element("li", {}, [element("span", { className: "text", dir: "auto", textContent: text }), element("span", { className: "soft", textContent: note })]);
  });
}

/**
 * Return a table with a row for each token of the answer, and a column for each of the source.
 * @param {string[]} columns @param {string[]} rows @param {Float32Array[]} weights @returns {HTMLElement}
 */
export function attentionTable(columns, rows, weights) {
  const head = element("tr", {}, [element("td"), ...columns.map(text => element("th", { className: "number", textContent: text, scope: "col" }))]);
  const body = rows.map((text, row) => {
    const cells = columns.map((_, column) => weightCell(weights[row][column] ?? 0));
    return element("tr", {}, [element("th", { textContent: text, scope: "row" }), ...cells]);
  });
  return element("table", { className: "shaded" }, [head, ...body]);
}

/** @param {number} weight */
function weightCell(weight) {
  const level = Math.ceil(weight * LEVELS - 0.5);
  return element("td", { className: `number ${level > 0 ? `s${level}` : ""}`, textContent: weight.toFixed(2).replace(/^0/, "") });
}
