// The page of a server, which translates text while the user types.

import {showModel, watchCard} from "./about.js";
import {closeChoices, openChoices} from "./choices.js";
import {watchFiles} from "./files.js";
import {beginEntry, remember, watchHistory} from "./history.js";
import {Refused, served, translate, useKey} from "./server.js";
import {lightSource, setSource, watchSource} from "./source-box.js";
import {offerSuggestion, watchSuggestion} from "./suggestion.js";
import {closeHint, shade, showHint, watchSwitches} from "./switches.js";
import {firstTranslation, lightTarget, redraw, sentenceAt, showLine, showLines, showText, sourceStart, translation, watchTarget} from "./target-box.js";
import {located, wordsOf} from "./texts.js";

const element = id => document.getElementById(id);
const source = element("source"), from = element("from"), to = element("to"), html = element("html");
const PAUSE = 300;          // milliseconds after the last key until the text is translated
const LINES = 50;           // maximum number of lines of a request
const REMEMBERED = 5000;    // maximum number of lines that are not requested again

let server = null;          // description of the server: names of languages, models, limits, settings
let known = new Map();      // translated sentences by line, in the selected direction
let running = null;         // cancels the requests of the current text
let timer = 0, retry = 0, detected = null;

// Languages

const auto = () => from.value === "auto";
const languages = () => ({source: auto() ? "auto" : from.value, target: to.value});
const modelOf = (language = sourceLanguage()) =>
  server.models.find(one => one.target === to.value && (!language || one.source === language)) ?? server.models[0];

const nameOf = code => server.names.get(code) ?? code;

/** Set the languages of a menu. A single language is shown as a name without a menu. */
function setOptions(select, codes, selected) {
  select.replaceChildren(...codes.map(code => new Option(code === "auto" ? "Auto-detect" : nameOf(code), code)));
  if (codes.includes(selected)) select.value = selected;
  const name = element(`${select.id}-name`);
  select.hidden = codes.length < 2;
  name.hidden = !select.hidden;
  name.textContent = nameOf(codes[0]);
}

function setSourceLanguages(selected) {
  const codes = [...new Set(server.models.map(one => one.source))];
  setOptions(from, codes.length > 1 ? ["auto", ...codes] : codes, selected);
}

function setTargetLanguages(selected) {
  const codes = server.models.filter(one => auto() || one.source === from.value).map(one => one.target);
  setOptions(to, [...new Set(codes)], selected);
}

function directionChanged() {
  known = new Map();
  detected = null;
  closeChoices();
  const model = modelOf();
  for (const [box, code] of [[source, from.value], [element("target"), to.value]]) {
    if (code === "auto") box.removeAttribute("lang"); else box.lang = code;
  }
  shade(model.alignments);
  updateSwap();
  showModel(model, `${nameOf(model.source)} to ${nameOf(model.target)}`, server.limits.characters);
  changed();
}

const sourceLanguage = () => auto() ? detected : from.value;

function updateSwap() {
  const pairs = new Set(server.models.map(one => `${one.source} ${one.target}`));
  const swap = element("swap");
  swap.hidden = !server.models.some(one => pairs.has(`${one.target} ${one.source}`));
  swap.disabled = !pairs.has(`${to.value} ${sourceLanguage()}`);
  element("arrow").toggleAttribute("hidden", !swap.hidden);
}

function swap() {
  const text = result(), [oldSource, oldTarget] = [sourceLanguage(), to.value];
  beginEntry();
  setSourceLanguages(oldTarget);
  setTargetLanguages(oldSource);
  setSource(text);
  directionChanged();
}

// Translating

function changed() {
  showCount();
  element("clear").hidden = !source.value;
  offerSuggestion(false);       // until the translation is complete
  if (!source.value.trim()) { element("copy").hidden = true; closeHint(); }
  running?.abort();
  clearTimeout(timer);
  clearTimeout(retry);
  if (server) timer = setTimeout(translateNow, PAUSE);      // without a server, `begin` calls this function again
}

/** Show the number of characters of the text, and the server's limit of a request.
 *
 * A text that exceeds the limit is sent as several requests of complete lines. So the limit is shown only if a line exceeds
 * it, or if the text does not. HTML is sent as one request.
 */
function showCount() {
  const count = letters(source.value), limit = server?.limits.characters, shown = element("count");
  const longest = html.checked ? count : source.value.split("\n").reduce((most, line) => Math.max(most, letters(line)), 0);
  const counted = limit && longest > limit ? longest : count;
  const most = limit && (longest > limit || count <= limit) ? ` of ${limit.toLocaleString("en")}` : "";
  shown.classList.toggle("over", Boolean(limit) && longest > limit);
  const unit = document.createElement("span");
  unit.className = "text";
  unit.textContent = ` ${counted === 1 && !most ? "character" : "characters"}${counted < count ? " in a line" : ""}`;
  shown.replaceChildren(...(count ? [`${counted.toLocaleString("en")}${most}`, unit] : []));
}

/** Return the number of characters as the server counts them: a pair of surrogates is one. */
const letters = text => { let count = 0; for (const _ of text) count += 1; return count; };

function fail(message) {
  element("error").textContent = message;
  element("error").hidden = !message;
}

async function translateNow() {
  if (!server) return;
  clearTimeout(timer);
  clearTimeout(retry);
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
  updateSwap();
  element("copy").hidden = !text.trim();
  const translated = Boolean(text.trim()) && sourceLanguage() !== to.value;
  offerSuggestion(server.settings.suggestions && translated && !html.checked);
  if (!html.checked && text.trim()) showHint();
  element("status").textContent = text.trim() ? statusText() : "";
  remember({text: source.value, translation: text, source: from.value, target: to.value, time: Date.now()});
}

const statusText = () => !auto() || !detected ? "Translated." : detected === to.value ? `This is ${nameOf(detected)} already.`
  : `Translated from ${nameOf(detected)}.`;

async function translateLines(signal) {
  const lines = source.value.split("\n");
  showLines(lines, line => known.get(line) ?? null);
  const missing = [...new Set(lines)].filter(line => line.trim() && !known.get(line)?.complete);
  // Several models may translate the text if the server detects its language, and each of them must accept the request.
  const models = server.models.filter(one => one.target === to.value && (auto() || one.source === from.value));
  const aligned = models.every(one => one.alignments);
  const wanted = {alignments: aligned, confidence: aligned, n_best: Math.min(...models.map(one => one.alternatives))};
  for (const part of requests(missing)) {
    const parts = part.map(() => []);
    const last = await translate({...languages(), text: part, ...wanted}, signal, ({text, sentence, ...found}) => {
      parts[text][sentence] = {...found, shown: found.translations[0]};
      if (signal.aborted || !inOrder(parts[text])) return;
      keep(part[text], parts[text], false);
    });
    if (signal.aborted) return;
    for (const one of parts.flat()) one.language = last.source;
    part.forEach((line, number) => keep(line, parts[number], true));
  }
  detected = lines.flatMap(line => known.get(line) ?? []).at(-1)?.language ?? detected;     // also without a new request
}

/** Divide lines into requests, none of which exceeds the limits of the server. */
function requests(lines) {
  const {characters, texts} = server.limits, found = [], tooLong = [];
  let free = 0;
  for (const line of lines) {
    const size = letters(line);
    if (size > characters) { tooLong.push([line]); continue; }      // the server refuses it after the others are translated
    if (size > free || found.at(-1).length >= Math.min(LINES, texts)) {
      found.push([]);
      free = characters;
    }
    found.at(-1).push(line);
    free -= size;
  }
  return [...found, ...tooLong];
}

const inOrder = sentences => !sentences.includes(undefined);

function keep(line, sentences, complete) {
  const found = located(line, sentences);
  found.complete = complete;
  if (known.size > REMEMBERED) known.clear();
  known.set(line, found);
  showLine(line, found);
}

async function translateHtml(signal) {
  if (!source.value.trim()) { showText(""); return; }
  const last = await translate({...languages(), text: source.value, format: "html"}, signal, () => {});
  if (signal.aborted) return;
  detected = last.detected?.language ?? detected;
  showText(last.translations[0]);
}

/** Request the key from the user if the server has refused a request because of a missing or wrong key. */
function requestKey(error) {
  if (error.status !== 401 && !(error.status === 403 && server?.settings.keyRequired)) return;
  element("key-form").hidden = false;
  element("key").focus();
}

/** Show the error of a request. Send it again after a temporary error, and request a missing key from the user. */
function refused(error) {
  element("status").textContent = "";
  element("key-form").hidden = true;
  requestKey(error);
  fail(error.message);
  if (error.wait) countDown(error.message, Math.ceil(error.wait));
}

function countDown(message, seconds) {
  if (!seconds) { if (server) translateNow(); else begin(); return; }
  element("status").textContent = `Trying again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.`;
  retry = setTimeout(countDown, 1000, message, seconds - 1);
}

// Words that are aligned with each other

function lightBoth(sentence, start, sourceWords, targetWords) {
  lightTarget(sentence, targetWords);
  lightSource(sourceWords.sort((a, b) => a - b).map(number => sentence.wordRanges[number]).filter(Boolean)
    .map(one => ({start: start + one.start, end: start + one.end})));
}

function lookAtTarget(word) {
  if (!word) { lightTarget(null, []); lightSource([]); return; }
  const {sentence} = word.closest(".sentence");
  const linked = (sentence.shown.links ?? []).filter(link => link[1] === word.number).map(link => link[0]);
  lightBoth(sentence, sourceStart(word), [...new Set(linked)], [word.number]);
}

function lookAtSource(index) {
  const found = index === null ? null : sentenceAt(index);
  const number = found ? found.sentence.wordRanges.findIndex(one => one.start <= index - found.start && index - found.start < one.end) : -1;
  if (number < 0) { lightTarget(null, []); lightSource([]); return; }
  const linked = (found.sentence.shown.links ?? []).filter(link => link[0] === number).map(link => link[1]);
  lightBoth(found.sentence, found.start, [number], linked);
}

function chooseAt(word) {
  const part = word.closest(".sentence"), {sentence} = part;
  closeHint();
  const direction = {...languages(), ...(sentence.language ? {source: sentence.language} : {})};
  openChoices(word, sentence, modelOf(sentence.language), direction, (changedOne, number) => {
    const fresh = redraw(changedOne, number, part);
    fresh?.focus();
    element("status").textContent = `Now: ${wordsOf(changedOne.shown).join(" ")}`;
    remember({text: source.value, translation: translation(), source: from.value, target: to.value, time: Date.now()});
  });
}

// Start

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
  setSourceLanguages(from.value);
  setTargetLanguages(to.value);
  watchFiles(server.settings.supportedFilesFormat, languages, nameOf, requestKey);
  element("key-form").hidden = true;
  directionChanged();
}

watchSwitches();
watchCard();
watchSource(changed, lookAtSource);
watchTarget(lookAtTarget, chooseAt);
watchSuggestion(() => ({q: source.value, s: result(), translation: firstTranslation(), ...languages()}),
                () => { element("status").textContent = "Thank you. The suggestion is stored."; });
watchHistory(entry => {
  if (server) { setSourceLanguages(entry.source); setTargetLanguages(entry.target); }
  setSource(entry.text);
  if (server) directionChanged();
});
from.addEventListener("change", () => { setTargetLanguages(to.value); beginEntry(); directionChanged(); });
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
