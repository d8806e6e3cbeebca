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
  return brush.getImageData(0, 0, image.width, image.height);
};
const read = picture => {
  if (!pictures.has(picture)) pictures.set(picture, pixels(picture));
  return pictures.get(picture);
};
const cell = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
const showWeight = async event => {
  const picture = event.target.closest(".map image");
  if (!picture) return;
  const axes = document.querySelector(picture.previousElementSibling.getAttribute("href"));
  const rows = axes.querySelectorAll(".row"), columns = axes.querySelectorAll(".column");
  const box = picture.getBoundingClientRect();
  const row = cell((event.clientY - box.top) / box.height, rows.length);
  const column = cell((event.clientX - box.left) / box.width, columns.length);
  const figure = picture.closest("figure");
  const white = Number(figure.dataset.white ?? 0), black = Number(figure.dataset.black ?? 1);
  const share = 1 - (await read(picture)).data[4 * (row * columns.length + column)] / 255;
  const weight = white + (black - white) * share;
  const head = figure.querySelector("figcaption").textContent;
  const names = [rows[row], columns[column]].map(each => `\u2068${each.textContent}\u2069`);
  const readout = `${head}: ${names.join(figure.dataset.between ?? " reads ")}: ${weight.toFixed(2)}`;
  figure.closest(".block").querySelector("output").textContent = readout;
};
// what is laid over a picture has the weight as its opacity
const showCell = async event => {
  const picture = event.target.closest(".strip image");
  if (!picture) return;
  const strip = picture.closest(".strip"), box = picture.getBoundingClientRect();
  const { data, width, height } = await read(picture);
  const row = cell((event.clientY - box.top) / box.height, height);
  const column = cell((event.clientX - box.left) / box.width, width);
  const weight = strip.dataset.opaque * data[4 * (row * width + column) + 3] / 255;
  const word = picture.closest("figure").querySelector("figcaption").textContent;
  strip.querySelector("output").textContent =
    `\u2068${word}\u2069 reads row ${row + 1}, column ${column + 1}: ${weight.toFixed(2)}`;
};
// all of them at a glance: the pictures are in the page once
document.querySelectorAll(".maps").forEach(maps => {
  const drawn = maps.querySelectorAll(".map image");
  maps.querySelectorAll(".glance img").forEach((small, at) => { small.src = drawn[at].getAttribute("href"); });
});
["pointermove", "pointerdown"].forEach(kind => [showWeight, showCell].forEach(show => document.addEventListener(kind, show)));

// ---- pictures of a sentence as a PNG file: the SVG of its link, drawn at twice its size
const savePng = async link => {
  const image = new Image(), canvas = document.createElement("canvas"), saved = document.createElement("a");
  image.src = link.href;
  await image.decode();
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  saved.href = canvas.toDataURL("image/png");
  saved.download = link.download.replace("svg", "png");
  saved.click();
};
document.querySelectorAll(".save a").forEach(link => {
  const button = document.createElement("button");
  button.textContent = "save as PNG";
  button.addEventListener("click", () => savePng(link));
  link.after(" ", button);
});

// ---- charts: Plotly figures that take their colours from the page, so that they follow light and dark
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const axis = () => ({ gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true });
const template = () => ({ layout: {
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, sans-serif", size: 12, color: color("ink") },
  colorway: [0, 1, 2, 3, 4, 5, 6, 7].map(number => color(`c${number}`)),
  xaxis: { ...axis(), nticks: 8 }, yaxis: { ...axis(), title: { standoff: 12 } },
  modebar: { bgcolor: "rgba(0,0,0,0)", color: color("soft"), activecolor: color("ink") },
  annotationdefaults: { bgcolor: color("panel"), borderpad: 1 },
  hoverlabel: { bgcolor: color("page"), bordercolor: color("line"), font: { color: color("ink") } },
} });
const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [buttons] };
// learning curves over steps, epochs or minutes, by the rows of metrics.jsonl: [step, epoch, minutes]
const clock = JSON.parse(document.querySelector("[data-clock]")?.dataset.clock ?? "[]");
const control = name => document.querySelector(`[data-control="${name}"]`);
const elapsed = (step, column) => {
  const next = clock.findIndex(row => row[0] >= step);
  if (next === -1) return clock.at(-1)[column];
  const [from, to] = [clock[next - 1] ?? [0, 0, 0], clock[next]];
  return from[column] + (to[column] - from[column]) * (step - from[0]) / (to[0] - from[0]);
};
const choose = (data, layout) => {
  const unit = control("x").value, column = ["step", "epoch", "minutes"].indexOf(unit);
  if (column > 0) data.forEach(curve => {
    curve.x = curve.x.map(step => elapsed(step, column));
    curve.hovertemplate = curve.hovertemplate.replace("step %{x:,.0f}", unit === "epoch" ? "epoch %{x:.4~g}" : "%{x:.3~g} minutes");
  });
  layout.xaxis.title.text = unit;
  if (control("log").checked) Object.assign(layout.yaxis, { type: "log", range: null });
};
const plot = chart => {
  const { data, layout } = JSON.parse(chart.dataset.figure);
  if (clock.length * (chart.closest("#curves") ? 1 : 0)) choose(data, layout);
  // a logarithmic axis of less than two decades would have two labels
  const shown = layout.yaxis?.type === "log" ? data.flatMap(curve => curve.y).filter(y => y > 0) : [];
  if (shown.length ? 30 * Math.min(...shown) > Math.max(...shown) : false)
    Object.assign(layout.yaxis, { tickmode: "array", tickvals: ticks(shown), tickformat: "~g" });
  const level = data.flatMap(curve => curve.y ?? []), more = chart.closest("#curves") ? 18 * Math.max(0, data.length - 2) : 0;
  if (level.length ? Math.min(...level) === Math.max(...level) : false) layout.yaxis.rangemode = "tozero";
  layout.margin = { ...layout.margin, r: Math.max(layout.margin?.r ?? 0, 28) }; // room for half of the last label
  if (layout.height) { layout.height += more; layout.margin.t += more; } // and for the lines of the legend
  Plotly.react(chart, data, { ...layout, template: template() }, options);
};
const ticks = values => {
  const low = Math.min(...values), high = Math.max(...values), decade = 10 ** Math.floor(Math.log10(low));
  const rough = [1, 1.5, 2, 3, 4, 5, 6, 8].flatMap(digit => [digit * decade, 10 * digit * decade]);
  const seen = rough.filter(tick => tick >= low).filter(tick => high >= tick);
  return seen.length > 1 || low === high ? rough : evenTicks(low, high);
};
const evenTicks = (low, high) => { // two or more between them
  const half = (high - low) / 2, power = 10 ** Math.floor(Math.log10(half));
  const step = power * ([5, 2].find(digit => half >= digit * power) ?? 1);
  const count = Math.ceil(high / step) - Math.floor(low / step) + 1;
  return [...Array(count).keys()].map(at => (Math.floor(low / step) + at) * step).filter(tick => tick > 0);
};
const charts = document.querySelectorAll("[data-figure]");
const plotAll = () => charts.forEach(plot);
plotAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", plotAll);
// Plotly's own links are for pages of a server only
charts.forEach(chart => chart.on("plotly_click", ({ points: [{ customdata: place }] }) => {
  if (String(place).startsWith("#")) location.hash = place;
}));
["x", "log"].forEach(name => control(name)?.addEventListener("change", plotAll));

// ---- translations: mark what differs from the reference
const spaced = text => text.includes(" ") ? text.split(/\s+/) : [...text];
const compare = (reference, output) => { // the words of the output that are in the longest common subsequence
  const rows = reference.map(() => new Uint16Array(output.length + 1)).concat(new Uint16Array(output.length + 1));
  for (let i = reference.length - 1; i >= 0; i--) for (let j = output.length - 1; j >= 0; j--)
    rows[i][j] = reference[i] === output[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
  const same = new Set();
  for (let i = 0, j = 0; reference.length > i ? output.length > j : false;)
    if (reference[i] === output[j]) { same.add(j++); i++; } else if (rows[i + 1][j] >= rows[i][j + 1]) i++; else j++;
  return same;
};
const mark = sample => {
  const reference = sample.querySelector("[data-reference]"), outputs = sample.querySelectorAll("[data-output]");
  const target = spaced(reference.textContent), gap = reference.textContent.includes(" ") ? " " : "";
  [...outputs].filter(output => output.textContent).forEach(output => {
    const words = gap ? output.textContent.split(/\s+/) : [...output.textContent];
    const same = compare(target, words);
    output.replaceChildren(...words.flatMap((word, at) => {
      const part = document.createElement(same.has(at) ? "span" : "mark");
      part.textContent = word;
      return at ? [gap, part] : [part];
    }));
  });
};
document.querySelectorAll(".samples li").forEach(mark);

// ---- drawings: a click on a repeat folds it; the page has a drawing for each choice of repeats
document.querySelectorAll(".drawings").forEach(place => {
  const drawings = [...place.querySelectorAll(".drawing")];
  const keys = drawing => drawing.dataset.folded.split(" ");
  const toggle = repeat => {
    const shown = drawings.find(drawing => !drawing.hidden), key = repeat.dataset.repeat;
    const changes = drawing => [[drawing, shown], [shown, drawing]].flatMap(([one, other]) =>
      keys(one).filter(each => !keys(other).includes(each))).length;
    const others = drawings.filter(drawing => keys(drawing).includes(key) !== keys(shown).includes(key));
    const next = others.sort((one, other) => changes(one) - changes(other))[0];
    drawings.forEach(drawing => { drawing.hidden = drawing !== next; });
    [...next.querySelectorAll("[data-repeat]")].find(each => each.dataset.repeat === key).focus({ preventScroll: true });
  };
  place.querySelectorAll("[data-repeat]").forEach(repeat => {
    const isFolded = keys(repeat.closest(".drawing")).includes(repeat.dataset.repeat);
    const attributes = { tabindex: 0, role: "button", "aria-expanded": !isFolded, "aria-label": "repeat" };
    Object.entries(attributes).forEach(([name, value]) => repeat.setAttribute(name, value));
    repeat.addEventListener("click", () => toggle(repeat));
    repeat.addEventListener("keydown", event => { if (event.key === "Enter") toggle(repeat); });
  });
});

// ---- what is wider than the screen says so
const sideways = new ResizeObserver(boxes => boxes.forEach(({ target }) =>
  target.classList.toggle("cut", target.scrollWidth > target.clientWidth + 1)));
document.querySelectorAll(".scroll:not(.drawing)").forEach(box => sideways.observe(box));

// ---- tables: a click on a head sorts by its column, a second one the other way round
const amount = text => { // 1,234; 1.2M; 45.1%; "at most 3k" and "12.3 ± 0.4" by their first number
  const number = text.match(/(-?[\d,]*\.?\d+)([kMGTP]?)/);
  return number ? Number(number[1].replaceAll(",", "")) * 1000 ** "_kMGTP".indexOf(number[2] || "_") : null;
};
document.querySelectorAll(".sortable th").forEach(head => {
  const sort = () => {
    const column = [...head.parentElement.children].indexOf(head), body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    const cell = row => row.cells[column].textContent.trim();
    const numeric = head.classList.contains("number") || column === 0;
    const order = (one, other) => {
      const [a, b] = [one, other].map(row => numeric ? amount(cell(row)) : cell(row) || null);
      if (a === null || b === null) return (a === null) - (b === null); // what has no value stays below
      return (down ? -1 : 1) * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
    };
    body.append(...[...body.rows].sort(order));
    [...head.parentElement.children].forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
});
