"use strict";
// An XML parser must be able to read the pages too, so nothing here uses its two special characters.

// ---- heat maps: show the weight of the cell under the pointer
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
const showWeight = async event => {
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
  const names = [rows[row], columns[column]].map(each => `\u2068${each.textContent}\u2069`);
  const readout = `${head}: ${names.join(figure.dataset.between ?? " reads ")}: ${weight.toFixed(2)}`;
  figure.closest(".block").querySelector("output").textContent = readout;
};
["pointermove", "pointerdown"].forEach(kind => document.addEventListener(kind, showWeight));

// ---- charts: Plotly figures that take their colours from the page, so that they follow light and dark
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const axis = () => ({ gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true });
const template = () => ({ layout: {
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, sans-serif", size: 12, color: color("ink") },
  colorway: [0, 1, 2, 3, 4, 5, 6, 7].map(number => color(`c${number}`)),
  xaxis: axis(), yaxis: axis(),
  modebar: { bgcolor: "rgba(0,0,0,0)", color: color("soft"), activecolor: color("ink") },
  hoverlabel: { bgcolor: color("page"), bordercolor: color("line"), font: { color: color("ink") } },
} });
const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [buttons] };
const plot = chart => {
  const { data, layout } = JSON.parse(chart.dataset.figure);
  Plotly.react(chart, data, { ...layout, template: template() }, options);
};
const charts = document.querySelectorAll("[data-figure]");
const plotAll = () => charts.forEach(plot);
plotAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", plotAll);
