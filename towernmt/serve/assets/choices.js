// The menu of a word: other words at its position, after which the rest is translated again, and other translations.

import {Refused, translateSentence} from "./server.js";
import {before, nextWords, wordsOf} from "./texts.js";

const box = document.getElementById("choices");
const word = document.getElementById("word");
const note = document.getElementById("choices-note");
const onlyWord = document.getElementById("only-word");
const lists = {continuations: document.getElementById("continuations"), alternatives: document.getElementById("alternatives")};
const PAUSE = 250;      // milliseconds after the last key until continuations are requested
let timer = 0;          // requests continuations after PAUSE
let open = null;        // of the open menu: {sentence, number, element, model, languages, changed, controller}

/** Open the menu at a word.
 *
 * @param {HTMLElement} element the word
 * @param {object} sentence its sentence
 * @param {object} model the server's description of the model
 * @param {object} languages {source, target}
 * @param {(sentence: object, number: number) => void} changed called when another translation is selected
 */
export function openChoices(element, sentence, model, languages, changed) {
  closeChoices();
  open = {sentence, number: element.number, element, model, languages, changed, controller: null};
  element.classList.add("chosen");
  word.value = "";
  word.placeholder = element.textContent;
  lists.continuations.replaceChildren();
  document.getElementById("continuations-part").hidden = !model.constraints;
  say(model.constraints ? "" : "This engine cannot continue from a word: only the word itself is changed.");
  showAlternatives();
  box.hidden = false;
  moveTo(element);
  word.focus();
  if (model.constraints) showContinuations("");
}

/** Close the menu, if it is open. */
export function closeChoices(focus = false) {
  if (!open) return;
  const {element, controller} = open;
  controller?.abort();
  element.classList.remove("chosen");
  open = null;
  box.hidden = true;
  if (focus) element.focus();
}

function moveTo(element) {
  const field = box.parentElement.getBoundingClientRect(), at = element.getBoundingClientRect();
  box.style.top = `${at.bottom - field.top + 6}px`;
  box.style.left = `${Math.max(0, Math.min(at.left - field.left - 8, field.width - box.offsetWidth))}px`;
}

const button = (text, chosen) => {
  const item = document.createElement("li"), made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.dir = "auto";
  made.addEventListener("click", chosen);
  item.append(made);
  return item;
};

function showAlternatives() {
  const {sentence} = open, seen = new Map(sentence.translations.map(one => [one.text, one]));
  document.getElementById("alternatives-part").hidden = seen.size < 2;
  lists.alternatives.replaceChildren(...[...seen.values()].map(one => {
    const item = button(one.text, () => show(one));
    if (one.text === sentence.shown.text) item.firstChild.setAttribute("aria-current", "true");
    return item;
  }));
}

function show(translation) {
  const {sentence, number, changed} = open;
  sentence.shown = translation;
  closeChoices();
  changed(sentence, number);
}

/** Return the fields of a request for this sentence with a prefix of the translation. */
function fields(prefix, more = {}) {
  const {sentence, model, languages} = open;
  return {...languages, text: sentence.source, prefix, alignments: model.alignments, confidence: model.alignments, ...more};
}

/** Return the translations of a request of the open menu; null if it was refused, or the menu needs them no longer. */
async function requested(body) {
  open.controller?.abort();
  const mine = open, controller = new AbortController();
  open.controller = controller;
  try {
    const found = await translateSentence(body, controller.signal);
    return open === mine && !controller.signal.aborted ? found : null;
  } catch (error) {
    if (error.name === "AbortError" || open !== mine) return null;
    if (!(error instanceof Refused)) throw error;
    say(error.message, true);
    onlyWord.hidden = !word.value.trim();
    return null;
  }
}

/** Show words with which the translation can continue, and which begin with the typed letters. */
async function showContinuations(typed) {
  const {sentence, number, model} = open;
  const beginning = before(sentence.shown, number);
  const prefix = [beginning, typed].filter(Boolean).join(" ");
  const all = model.alternatives;
  const found = await requested(fields(prefix, {n_best: all, partial_word: Boolean(typed)}));
  if (!found) return;
  const words = nextWords(found, beginning);
  drawContinuations(words);
  if (typed || !words.size || words.size > 2) return;
  const others = await requested(fields(prefix, {n_best: all, avoid: [...words.keys()]}));     // most hypotheses of a beam differ later
  if (!others) return;        // perhaps another menu is open by now
  for (const [text, one] of nextWords(others, beginning)) if (!words.has(text)) words.set(text, one);
  drawContinuations(words);
}

/** Show words with their translations. The focus stays on the word that has it, or moves to the field if it is no longer there. */
function drawContinuations(words) {
  const focused = lists.continuations.contains(document.activeElement) ? document.activeElement.textContent : null;
  const items = [...words].map(([text, one]) => button(text, () => show(one)));
  lists.continuations.replaceChildren(...items);
  if (focused !== null) (items.map(item => item.firstChild).find(one => one.textContent === focused) ?? word).focus();
}

/** Use the typed word, and let the model translate the rest. */
async function useTyped() {
  const typed = word.value.trim(), {sentence, number, model} = open;
  if (!typed) return;
  clearTimeout(timer);        // a request for continuations would abort this one
  if (!model.constraints) { changeWord(); return; }
  say("Translating …");
  const found = await requested(fields([before(sentence.shown, number), typed].filter(Boolean).join(" ")));
  if (found?.length) show(found[0]);
  else if (found) say("The model has no translation with this word.", true);
}

/** Replace only the word by the typed one, because the model cannot continue from it. */
function changeWord() {
  const typed = word.value.trim(), {sentence, number} = open;
  if (!typed) return;
  const words = [...wordsOf(sentence.shown)];
  words[number] = typed;
  show({...sentence.shown, text: words.join(" "), words: null, links: null, confidence: null});
}

function say(text, failed = false) {
  note.textContent = text;
  note.classList.toggle("failed", failed);
  onlyWord.hidden = true;
}

word.addEventListener("input", () => {
  clearTimeout(timer);
  if (note.classList.contains("failed") || open?.model.constraints) say("");      // the message was about another word
  if (open?.model.constraints) timer = setTimeout(() => { if (open) showContinuations(word.value.trim()); }, PAUSE);
});
document.getElementById("word-form").addEventListener("submit", event => { event.preventDefault(); useTyped(); });
onlyWord.addEventListener("click", changeWord);
document.addEventListener("keydown", event => {
  if (!open) return;
  if (event.key === "Escape") { event.preventDefault(); closeChoices(true); }
  if (event.key === "Tab" && leaves(event.shiftKey)) closeChoices(true);      // the browser moves the focus on from the word
});

/** Return whether the tab key leaves the menu. */
function leaves(backwards) {
  const stops = [...box.querySelectorAll("input, button")].filter(one => one.offsetParent && !one.disabled);
  const edge = backwards ? stops[0] : stops[stops.length - 1];
  return !box.contains(document.activeElement) || document.activeElement === edge;
}
document.addEventListener("pointerdown", event => {
  if (open && !box.contains(event.target) && !event.target.closest(".word")) closeChoices();
});
