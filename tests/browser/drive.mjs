// @ts-check
/** Opens a page in Chromium and asks it: `node drive.mjs < plan.json > seen.json`. */

import { text } from "node:stream/consumers";
import { chromium } from "playwright-core";

/**
 * @typedef {object} Plan
 * @property {string} chromium the program
 * @property {string} url
 * @property {number} [width] of the window
 * @property {"light" | "dark"} [scheme]
 * @property {Record<string, string>[]} [questions] texts or files by the ids of their fields, asked one after the other
 * @property {Record<string, string>} [settings] values of the form by id
 * @property {string[]} [keys] pressed in place of questions; `=text` is typed
 * @property {string} [script] evaluated in the page; its value is the result
 * @property {string} [screenshot] a file
 */

const plan = /** @type {Plan} */ (JSON.parse(await text(process.stdin)));
const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox"] });
const viewport = { width: plan.width ?? 1100, height: 800 };
const page = await browser.newPage({ viewport, colorScheme: plan.scheme ?? "light", reducedMotion: "reduce" });
/** @type {string[]} */
const requests = [];
/** @type {string[]} */
const complaints = [];
page.on("request", request => requests.push(request.url()));
page.on("console", message => complaints.push(message.text()));
page.on("pageerror", error => complaints.push(String(error)));
await page.goto(plan.url);
const seen = plan.url.startsWith("file:") ? await unstarted() : { answers: await ask(), focused: await press() };
const result = plan.script ? await page.evaluate(plan.script) : null;
const layout = await page.evaluate(() => ({
  overflow: document.documentElement.scrollWidth - innerWidth,
  background: getComputedStyle(document.body).backgroundColor,
}));
if (plan.screenshot) await page.screenshot({ path: plan.screenshot, fullPage: true });
process.stdout.write(JSON.stringify({ ...seen, ...layout, result, requests, complaints, status: await page.locator("#status").textContent() }));
await browser.close();

/** Return what is visible of a page that cannot start. */
async function unstarted() {
  await page.waitForTimeout(1000);
  return { note: await page.locator("#needs-server").innerText(), form: await page.locator("form").isVisible() };
}

/** Return the answers to each question: pairs of a text and its score. */
async function ask() {
  await page.locator("#go:enabled").waitFor({ timeout: 60_000 });
  for (const [id, value] of Object.entries(plan.settings ?? {})) await set(id, value);
  const answers = [];
  for (const question of plan.questions ?? []) {
    for (const [id, value] of Object.entries(question)) await set(id, value);
    await page.locator("#go").click();
    answers.push(await answer());
  }
  return answers;
}

/** @param {string} id @param {string} value */
async function set(id, value) {
  const field = page.locator(`[id="${id}"]`);
  if ((await field.getAttribute("type")) === "file") await field.setInputFiles(value);
  else if ((await field.evaluate(node => node.tagName)) === "SELECT") await field.selectOption(value);
  else await field.fill(value);
}

/** Wait for an answer. @returns {Promise<[string, number][]>} */
async function answer() {
  await page.locator("#status").filter({ hasText: " s: " }).waitFor({ timeout: 60_000 });
  const rows = await page.locator("#answers li").all();
  return Promise.all(rows.map(async row => [await row.locator(".text").innerText(), parseScore(await row.locator(".soft").innerText())]));
}

/** @param {string} note @returns {number} */
function parseScore(note) {
  return Number(/log p (-?[\d.]+)/.exec(note.replace("−", "-"))?.[1]);
}

/** Press keys; return the ids of what has the focus after each. */
async function press() {
  const focused = [];
  for (const key of plan.keys ?? []) {
    if (key.startsWith("=")) await page.keyboard.type(key.slice(1));
    else await page.keyboard.press(key);
    if (key === "Enter") await answer();
    focused.push(await page.evaluate(() => document.activeElement?.id));
  }
  return focused;
}
