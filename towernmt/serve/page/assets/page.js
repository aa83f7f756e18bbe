// The page of a server: text is translated while it is typed.

import {closeChoices, openChoices} from "./choices.js";
import {watchFiles} from "./files.js";
import {beginEntry, remember, watchHistory} from "./history.js";
import {Refused, served, translate, useKey} from "./server.js";
import {lightSource, setSource, watchSource} from "./source-box.js";
import {watchSwitches} from "./switches.js";
import {lightTarget, redraw, sentenceAt, showLine, showLines, showText, sourceStart, translation, watchTarget} from "./target-box.js";
import {located, wordsOf} from "./texts.js";

const element = id => document.getElementById(id);
const source = element("source"), from = element("from"), to = element("to"), html = element("html");
const PAUSE = 300;          // milliseconds without a key after which is translated
const LINES = 50;           // of a request
const REMEMBERED = 5000;    // lines that are not asked for again

let server = null;          // what is served
let known = new Map();      // lines with their sentences, in the direction that is chosen
let running = null;         // the requests of the text as it is
let timer = 0, retry = 0, detected = null;

// Languages

const auto = () => from.value === "auto";
const languages = () => ({source: auto() ? "auto" : from.value, target: to.value});
const modelOf = () => server.models.find(one => one.target === to.value && (auto() ? !detected || one.source === detected : one.source === from.value))
  ?? server.models[0];

function options(select, codes, chosen) {
  select.replaceChildren(...codes.map(code => new Option(
    code === "auto" ? "Detect language" : server.names.get(code) ?? code, code)));
  if (codes.includes(chosen)) select.value = chosen;
}

function chooseSource(chosen) {
  const codes = [...new Set(server.models.map(one => one.source))];
  options(from, codes.length > 1 ? ["auto", ...codes] : codes, chosen);
}

function chooseTarget(chosen) {
  const codes = server.models.filter(one => auto() || one.source === from.value).map(one => one.target);
  options(to, [...new Set(codes)], chosen);
}

function directionChanged() {
  known = new Map();
  detected = null;
  closeChoices();
  const model = modelOf();
  for (const [box, code] of [[source, from.value], [element("target"), to.value]]) {
    if (code === "auto") box.removeAttribute("lang"); else box.lang = code;
  }
  element("confidence-choice").hidden = !model.alignments;
  canSwap();
  element("model").textContent = `Model: ${model.model}`;
  changed();
}

const sourceLanguage = () => auto() ? detected : from.value;

function canSwap() {
  element("swap").disabled = !server.models.some(one => one.source === to.value && one.target === sourceLanguage());
}

function swap() {
  const text = result(), [before, behind] = [sourceLanguage(), to.value];
  beginEntry();
  chooseSource(behind);
  chooseTarget(before);
  setSource(text);
  directionChanged();
}

// Translating

function changed() {
  const {length} = source.value, limit = server?.settings.charLimit;
  const most = limit ? ` of ${limit.toLocaleString("en")}` : "";
  element("count").textContent = length ? `${length.toLocaleString("en")}${most} characters` : "";
  element("clear").disabled = !length;
  running?.abort();
  clearTimeout(timer);
  clearTimeout(retry);
  if (server) timer = setTimeout(translateNow, PAUSE);      // else `begin` comes here again
}

function fail(message) {
  element("error").textContent = message;
  element("error").hidden = !message;
}

async function translateNow() {
  if (!server) return;
  clearTimeout(timer);
  running?.abort();
  const mine = running = new AbortController();
  closeChoices();
  element("status").textContent = source.value.trim() ? "Translating …" : "";
  try {
    await (html.checked ? translateHtml(mine.signal) : translateLines(mine.signal));
    if (mine.signal.aborted) return;
    fail("");
    finish();
  } catch (error) {
    if (error.name === "AbortError" || mine.signal.aborted) return;
    if (!(error instanceof Refused)) throw error;
    refused(error);
  }
}

const result = () => html.checked ? [...element("target").children].map(line => line.textContent).join("\n") : translation();

function finish() {
  const text = result();
  canSwap();
  element("copy").disabled = !text.trim();
  element("words-help").hidden = html.checked || !text.trim();
  element("status").textContent = text.trim() ? told() : "";
  remember({text: source.value, translation: text, source: from.value, target: to.value, time: Date.now()});
}

const told = () => auto() && detected ? `Translated from ${server.names.get(detected) ?? detected}.` : "Translated.";

async function translateLines(signal) {
  const lines = source.value.split("\n");
  showLines(lines, line => known.get(line) ?? null);
  const missing = [...new Set(lines)].filter(line => line.trim() && !known.get(line)?.whole);
  const wanted = {alignments: modelOf().alignments, confidence: modelOf().alignments, n_best: modelOf().alternatives};
  for (let first = 0; first < missing.length; first += LINES) {
    const part = missing.slice(first, first + LINES), parts = part.map(() => []);
    const last = await translate({...languages(), text: part, ...wanted}, signal, ({text, sentence, ...found}) => {
      parts[text][sentence] = {...found, shown: found.translations[0]};
      if (signal.aborted || !inOrder(parts[text])) return;
      keep(part[text], parts[text], false);
    });
    if (signal.aborted) return;
    detected = last.detected?.language ?? detected;
    part.forEach((line, number) => keep(line, parts[number], true));
  }
}

const inOrder = sentences => !sentences.includes(undefined);

function keep(line, sentences, whole) {
  const found = located(line, sentences);
  found.whole = whole;
  if (known.size > REMEMBERED) known.clear();
  known.set(line, found);
  showLine(line, found);
}

async function translateHtml(signal) {
  if (!source.value.trim()) { showText(""); return; }
  const last = await translate({...languages(), text: source.value, format: "html"}, signal, () => {});
  if (!signal.aborted) showText(last.translations[0]);
}

/** Say what the server refuses; wait and try again where that helps, ask for a key where one is missing. */
function refused(error) {
  element("status").textContent = "";
  const needsKey = error.status === 401 || (error.status === 403 && server?.settings.keyRequired);
  element("key-form").hidden = !needsKey;
  if (needsKey) element("key").focus();
  fail(error.message);
  if (error.wait) countDown(error.message, Math.ceil(error.wait));
}

function countDown(message, seconds) {
  if (!seconds) { if (server) translateNow(); else begin(); return; }
  element("status").textContent = `Trying again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.`;
  retry = setTimeout(countDown, 1000, message, seconds - 1);
}

// Words that belong together

function lightBoth(sentence, start, sourceWords, targetWords) {
  lightTarget(sentence, targetWords);
  lightSource(sourceWords.sort((a, b) => a - b).map(number => sentence.places[number]).filter(Boolean)
    .map(one => ({start: start + one.start, end: start + one.end})));
}

function lookAtTarget(word) {
  if (!word) { lightTarget(null, []); lightSource([]); return; }
  const {sentence} = word.closest(".sentence");
  const linked = (sentence.shown.links ?? []).filter(link => link[1] === word.number).map(link => link[0]);
  lightBoth(sentence, sourceStart(word), [...new Set(linked)], [word.number]);
}

function lookAtSource(place) {
  const found = place === null ? null : sentenceAt(place);
  const number = found ? found.sentence.places.findIndex(one => one.start <= place - found.start && place - found.start < one.end) : -1;
  if (number < 0) { lightTarget(null, []); lightSource([]); return; }
  const linked = (found.sentence.shown.links ?? []).filter(link => link[0] === number).map(link => link[1]);
  lightBoth(found.sentence, found.start, [number], linked);
}

function chooseAt(word) {
  const {sentence} = word.closest(".sentence");
  openChoices(word, sentence, modelOf(), languages(), (changedOne, number) => {
    const fresh = redraw(changedOne, number);
    fresh?.focus();
    element("status").textContent = `Now: ${wordsOf(changedOne.shown).join(" ")}`;
    remember({text: source.value, translation: translation(), source: from.value, target: to.value, time: Date.now()});
  });
}

// The beginning

async function begin() {
  try {
    server = await served();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    fail(error.message);
    countDown(error.message, Math.ceil(error.wait || 5));
    return;
  }
  fail("");
  chooseSource(from.value);
  chooseTarget(to.value);
  watchFiles(server.settings.supportedFilesFormat, languages);
  element("key-form").hidden = true;
  directionChanged();
}

watchSwitches();
watchSource(changed, lookAtSource);
watchTarget(lookAtTarget, chooseAt);
watchHistory(entry => {
  if (server) { chooseSource(entry.source); chooseTarget(entry.target); }
  setSource(entry.text);
  if (server) directionChanged();
});
from.addEventListener("change", () => { chooseTarget(to.value); beginEntry(); directionChanged(); });
to.addEventListener("change", () => { beginEntry(); directionChanged(); });
html.addEventListener("change", changed);
element("swap").addEventListener("click", swap);
element("clear").addEventListener("click", () => { beginEntry(); setSource(""); source.focus(); });
element("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(result());
    element("status").textContent = "Copied.";
  } catch { element("status").textContent = "The browser did not let the text be copied."; }
});
element("key-form").addEventListener("submit", event => {
  event.preventDefault();
  useKey(element("key").value, element("keep-key").checked);
  element("key-form").hidden = true;
  translateNow();
});
addEventListener("online", () => { if (server) translateNow(); });
source.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); translateNow(); }
});
begin();
