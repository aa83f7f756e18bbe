// What else a translation could say: other words at a place, after which the rest is new, and other whole sentences.

import {Refused, translateSentence} from "./server.js";
import {before, nextWords, wordsOf} from "./texts.js";

const box = document.getElementById("choices");
const word = document.getElementById("word");
const note = document.getElementById("choices-note");
const onlyWord = document.getElementById("only-word");
const lists = {continuations: document.getElementById("continuations"), alternatives: document.getElementById("alternatives")};
const PAUSE = 250;      // milliseconds without a key after which a word is asked for
let timer = 0;          // asks for continuations after PAUSE
let open = null;        // what the menu is for: {sentence, number, element, model, languages, changed, asked}

/** Open the menu at a word.
 *
 * @param {HTMLElement} element the word
 * @param {object} sentence of which it is
 * @param {object} model what the server says of its model
 * @param {object} languages {source, target}
 * @param {(sentence: object, number: number) => void} changed told when another translation is shown
 */
export function openChoices(element, sentence, model, languages, changed) {
  closeChoices();
  open = {sentence, number: element.number, element, model, languages, changed, asked: null};
  element.classList.add("chosen");
  word.value = "";
  word.placeholder = element.textContent;
  lists.continuations.replaceChildren();
  document.getElementById("continuations-part").hidden = !model.constraints;
  say(model.constraints ? "" : "This engine cannot go on from a word: only the word itself is changed.");
  showAlternatives();
  box.hidden = false;
  place(element);
  word.focus();
  if (model.constraints) askContinuations("");
}

/** Close the menu, if it is open. */
export function closeChoices(focus = false) {
  if (!open) return;
  const {element, asked} = open;
  asked?.abort();
  element.classList.remove("chosen");
  open = null;
  box.hidden = true;
  if (focus) element.focus();
}

function place(element) {
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

/** The fields of a request for this sentence with a beginning. */
function fields(prefix, more = {}) {
  const {sentence, model, languages} = open;
  return {...languages, text: sentence.source, prefix, alignments: model.alignments, confidence: model.alignments, ...more};
}

async function asked(body) {
  open.asked?.abort();
  const mine = open, controller = new AbortController();
  open.asked = controller;
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

/** Words with which the translation could go on, which begin as what is typed. */
async function askContinuations(typed) {
  const {sentence, number, model} = open;
  const beginning = before(sentence.shown, number);
  const prefix = [beginning, typed].filter(Boolean).join(" ");
  const all = model.alternatives;
  const found = await asked(fields(prefix, {n_best: all, partial_word: Boolean(typed)}));
  if (!found) return;
  const words = nextWords(found, beginning);
  if (!typed && words.size && words.size < 3) {       // what a beam finds often differs only further behind
    const others = await asked(fields(prefix, {n_best: all, avoid: [...words.keys()]}));
    for (const [text, one] of nextWords(others ?? [], beginning)) if (!words.has(text)) words.set(text, one);
    if (!open) return;
  }
  lists.continuations.replaceChildren(...[...words].map(([text, one]) => button(text, () => show(one))));
}

/** The word that was typed, and what the model goes on with. */
async function useTyped() {
  const typed = word.value.trim(), {sentence, number, model} = open;
  if (!typed) return;
  clearTimeout(timer);        // a request for continuations would abort this one
  if (!model.constraints) { changeWord(); return; }
  say("Translating …");
  const found = await asked(fields([before(sentence.shown, number), typed].filter(Boolean).join(" ")));
  if (found?.length) show(found[0]);
  else if (found) say("The model has no translation with this word.", true);
}

/** The word that was typed in its place, and nothing else changed: where the model cannot continue from it. */
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
  if (note.classList.contains("failed") || open?.model.constraints) say("");      // it was about another word
  if (open?.model.constraints) timer = setTimeout(() => { if (open) askContinuations(word.value.trim()); }, PAUSE);
});
document.getElementById("word-form").addEventListener("submit", event => { event.preventDefault(); useTyped(); });
onlyWord.addEventListener("click", changeWord);
document.addEventListener("keydown", event => {
  if (!open) return;
  if (event.key === "Escape") { event.preventDefault(); closeChoices(true); }
  if (event.key === "Tab" && leaves(event.shiftKey)) closeChoices(true);      // from the word on the browser moves on
});

/** Whether the tab key leaves the menu. */
function leaves(backwards) {
  const stops = [...box.querySelectorAll("input, button")].filter(one => one.offsetParent && !one.disabled);
  const edge = backwards ? stops[0] : stops[stops.length - 1];
  return !box.contains(document.activeElement) || document.activeElement === edge;
}
document.addEventListener("pointerdown", event => {
  if (open && !box.contains(event.target) && !event.target.closest(".word")) closeChoices();
});
