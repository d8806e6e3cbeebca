"""How a page looks, and the few lines that say a cell's weight when it is pointed at.

What `use` draws again knows nothing of the elements around it, so the rules for a map's tokens name classes only. The
script has none of the characters that XML would read as markup.
"""

from __future__ import annotations

SHADES = 10
"""How dark a cell of a table can be: s1 to s10, which words can be read upon in light and in dark."""

STYLE = """
:root {
  --page: #ffffff; --ink: #1b1e23; --soft: #59616d; --line: #d9dde3; --panel: #f5f6f8;
  --c0: #1c5fcf; --c1: #c2410c; --good: #15803d; --warn: #92400e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #13151a; --ink: #e7e9ed; --soft: #a0a8b4; --line: #343a44; --panel: #1c1f26;
    --c0: #74a9ff; --c1: #ff9a52; --good: #5fd08a; --warn: #f2b56b;
  }
  .map image { filter: invert(1); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
header, main, footer { max-width: 76rem; margin: 0 auto; padding: 1rem clamp(0.75rem, 3vw, 2rem); }
h1 { margin: 0.5rem 0 0; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
header { padding-bottom: 0; }
h2 { margin: 1.75rem 0 0.75rem; padding-bottom: 0.25rem; border-bottom: 1px solid var(--line); font-size: 1.3rem; }
h3 { margin: 1.25rem 0 0.5rem; font-size: 1rem; }
h4 { margin: 1rem 0 0.25rem; font: 600 0.85rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
p { margin: 0.5rem 0; max-width: 46rem; }
a { color: var(--c0); }
nav { display: flex; flex-wrap: wrap; gap: 0 1rem; margin-top: 0.75rem; }
footer, .soft { color: var(--soft); font-size: 0.875rem; }
.status { margin-left: 0.6rem; padding: 0.1rem 0.6rem; border: 1px solid; border-radius: 1rem; color: var(--warn);
  font-size: 0.875rem; font-weight: 400; vertical-align: middle; white-space: nowrap; }
.status.finished { color: var(--good); }
.note { margin: 0.75rem 0; padding: 0.5rem 0.9rem; border-left: 4px solid var(--warn); background: var(--panel); }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 0.75rem 1rem;
  margin: 1.25rem 0; }
.facts dt { color: var(--soft); font-size: 0.8rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-size: 0.85rem; font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
.chart { padding: 0.75rem; border-radius: 0.5rem; background: var(--panel); }
.chart svg { display: block; width: 100%; height: auto; }
.chart figcaption { min-height: 2.9rem; font-size: 0.9rem; }
.chart b { display: block; }
.key { display: inline-block; margin-right: 0.9rem; color: var(--ink); font-size: 0.85rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 1.1rem; margin-right: 0.35rem; border-top: 3px solid;
  vertical-align: middle; }
.key.c0::before { border-color: var(--c0); }
.key.c1::before { border-color: var(--c1); }
text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.row, .column { font-size: 11px; }
.left, .row { text-anchor: end; }
.foot, .above { text-anchor: middle; }
.grid { stroke: var(--line); }
.curve { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
.c0 { stroke: var(--c0); }
.c1 { stroke: var(--c1); }
.dot { stroke-width: 2; fill: var(--panel); }
.bar { fill: var(--c0); }
.samples { margin: 0; padding: 0; list-style: none; }
.samples li { padding: 0.6rem 0; border-bottom: 1px solid var(--line); }
.sample { display: grid; grid-template-columns: 7rem 1fr; gap: 0.1rem 0.75rem; margin: 0; }
.sample dt { color: var(--soft); font-size: 0.85rem; }
.sample dd { margin: 0; overflow-wrap: anywhere; }
.same { color: var(--good); }
.same::after { content: " ✓"; }
summary { padding: 0.35rem 0; cursor: pointer; overflow-wrap: anywhere; }
.sentence { margin: 0.5rem 0; padding: 0.25rem 0.9rem; border-radius: 0.5rem; background: var(--panel); }
.sentence > summary { font-weight: 600; }
.heads { display: flex; flex-wrap: wrap; gap: 0.75rem 1.25rem; align-items: flex-end; }
.level { align-items: flex-start; }
.told { display: block; height: 1.4rem; overflow: hidden; font-size: 0.85rem; text-overflow: ellipsis;
  white-space: nowrap; }
.map { max-width: 100%; overflow-x: auto; }
.map figcaption { color: var(--soft); font-size: 0.8rem; }
.map svg, .film svg { display: block; }
.film { margin: 0.75rem 0; }
.film figcaption { margin-bottom: 0.25rem; color: var(--soft); font: 0.85rem/1.4 ui-monospace, monospace;
  overflow-wrap: anywhere; }
.map image, .film image { image-rendering: pixelated; }
.border { fill: none; stroke: var(--line); stroke-width: 2; }
.unseen { visibility: hidden; }
.none { position: absolute; width: 0; height: 0; }
.shaded { margin: 0.25rem 0 0.75rem; }
.shaded th, .shaded td { padding: 0.1rem 0.5rem; border-color: var(--page); font-size: 0.875rem; }
.shaded th:first-child, .shaded td:first-child { padding-left: 0; overflow-wrap: anywhere; }
.shaded .number { min-width: 3rem; text-align: center; }
pre { margin: 0; padding: 0.75rem; overflow-x: auto; border-radius: 0.5rem; background: var(--panel);
  font: 0.85rem/1.5 ui-monospace, monospace; }
@media (max-width: 34rem) {
  .sample { grid-template-columns: 1fr; }
  .sample dd { margin-bottom: 0.35rem; }
}
"""
STYLE += "".join(f".s{level} {{ background: rgb(28 95 207 / {6 * level}%); }}\n" for level in range(1, SHADES + 1))

SCRIPT = """
"use strict";
const pictures = new WeakMap();
const pixels = async picture => {
  const image = new Image();
  image.src = picture.getAttribute("href");
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const brush = canvas.getContext("2d");
  brush.drawImage(image, 0, 0);
  return brush.getImageData(0, 0, image.width, image.height).data;
};
const tell = async event => {
  const picture = event.target.closest(".map image");
  if (!picture) return;
  const axes = document.querySelector(picture.previousElementSibling.getAttribute("href"));
  const rows = axes.querySelectorAll(".row"), columns = axes.querySelectorAll(".column");
  const box = picture.getBoundingClientRect();
  const cell = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  const row = cell((event.clientY - box.top) / box.height, rows.length);
  const column = cell((event.clientX - box.left) / box.width, columns.length);
  if (!pictures.has(picture)) pictures.set(picture, pixels(picture));
  const figure = picture.closest("figure");
  const white = Number(figure.dataset.white ?? 0);
  const share = 1 - (await pictures.get(picture))[4 * (row * columns.length + column)] / 255;
  const weight = white + (1 - white) * share;
  const head = figure.querySelector("figcaption").textContent;
  const names = [rows[row], columns[column]].map(each => `\\u2068${each.textContent}\\u2069`);
  const told = `${head}: ${names.join(figure.dataset.between ?? " reads ")}: ${weight.toFixed(2)}`;
  figure.closest(".block").querySelector("output").textContent = told;
};
["pointermove", "pointerdown"].forEach(kind => document.addEventListener(kind, tell));
"""
