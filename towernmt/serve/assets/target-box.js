// The box of the translation: lines of sentences of words, which can be highlighted, shaded and selected.

import {lineText, wordsOf} from "./texts.js";

const box = document.getElementById("target");
/** The visible lines: {line, sentences, element}; sentences is null until the first one is translated. */
let lines = [];

/** Show lines.
 *
 * @param {string[]} texts the lines of the source
 * @param {(line: string) => object[] | null} sentencesOf returns the translated sentences of a line
 */
export function showLines(texts, sentencesOf) {
  const oldLines = lines;
  lines = texts.map((line, number) => {
    const sentences = sentencesOf(line), one = oldLines[number];
    if (one && one.line === line && one.sentences === sentences) return one;
    const element = one?.element ?? document.createElement("p");
    const shown = {line, sentences, element};
    if (sentences) draw(shown); else element.classList.toggle("waiting", Boolean(line.trim()));
    if (!sentences && !line.trim()) element.replaceChildren();
    return shown;
  });
  box.replaceChildren(...lines.map(one => one.element));
  reachable();
}

/** Show the translated sentences of a line. */
export function showLine(line, sentences) {
  for (const one of lines) {
    if (one.line === line) {
      one.sentences = sentences;
      draw(one);
    }
  }
  reachable();
}

/** Return the complete translation as text, with the words that the user has selected. */
export function translation() {
  return textOf(sentence => sentence.shown);
}

/** Return the complete translation by the model, without the words that the user has selected, as text. */
export function firstTranslation() {
  return textOf(sentence => sentence.translations[0]);
}

function textOf(translationOf) {
  return lines.map(({line, sentences}) => sentences ? lineText(line, sentences, translationOf) : "").join("\n");
}

/** Show a text that is not divided into sentences, such as HTML. */
export function showText(text) {
  lines = [];
  box.replaceChildren(...text.split("\n").map(line => {
    const element = document.createElement("p");
    element.textContent = line;
    return element;
  }));
}

function draw({line, sentences, element}) {
  const pieces = [];
  let at = 0;
  for (const sentence of sentences) {
    pieces.push(line.slice(at, sentence.start), drawn(sentence));
    at = sentence.end;
  }
  element.classList.remove("waiting");
  element.replaceChildren(...pieces, line.slice(at));
}

function drawn(sentence) {
  const element = document.createElement("span");
  element.className = "sentence";
  element.sentence = sentence;
  wordsOf(sentence.shown).forEach((text, number) => {
    const word = document.createElement("span");
    const sure = sentence.shown.confidence?.[number] ?? 1;
    word.className = `word${sure < 0.3 ? " unsure" : sure < 0.6 ? " doubtful" : ""}`;
    word.textContent = text;
    word.tabIndex = -1;
    word.number = number;
    if (number) element.append(" ");
    element.append(word);
  });
  return element;
}

/** Draw a sentence again in each line that has it, and return its word with this number, its last word, or null.
 *
 * @param {object} sentence
 * @param {number} number
 * @param {HTMLElement} selected the element of the sentence in which the user has selected a word
 */
export function redraw(sentence, number, selected) {
  let found = null;
  for (const element of box.querySelectorAll(".sentence")) {
    if (element.sentence !== sentence) continue;
    const fresh = drawn(sentence);
    element.replaceWith(fresh);
    if (!found || element === selected) found = fresh;
  }
  reachable();
  const words = found?.querySelectorAll(".word") ?? [];
  return words[Math.min(number, words.length - 1)] ?? null;
}

/** Make one word reachable by the tab key; arrow keys move from it to the others. */
function reachable() {
  const words = box.querySelectorAll(".word");
  if (words.length && !box.querySelector('.word[tabindex="0"]')) words[0].tabIndex = 0;
}

/** Highlight the words of a sentence with these numbers, and no others. */
export function lightTarget(sentence, numbers) {
  for (const word of box.querySelectorAll(".lit")) word.classList.remove("lit");
  if (!sentence) return;
  for (const element of box.querySelectorAll(".sentence")) {
    if (element.sentence !== sentence) continue;
    for (const word of element.querySelectorAll(".word")) word.classList.toggle("lit", numbers.includes(word.number));
  }
}

/** Return the index in the source at which the line of a word begins. */
export function sourceStart(element) {
  const paragraph = element.closest("p");
  let start = 0;
  for (const one of lines) {
    if (one.element === paragraph) return start;
    start += one.line.length + 1;
  }
  return start;
}

/** Return the sentence at an index of the source, and the start of its line: {sentence, start}; null without a sentence. */
export function sentenceAt(index) {
  let start = 0;
  for (const {line, sentences} of lines) {
    if (index <= start + line.length) {
      const found = sentences?.find(one => one.start <= index - start && index - start <= one.end);
      return found ? {sentence: found, start} : null;
    }
    start += line.length + 1;
  }
  return null;
}

/** Call `looked` with the word under the mouse or with the focus (null for none), and `chosen` with a selected word. */
export function watchTarget(looked, chosen) {
  box.addEventListener("mouseover", event => looked(event.target.closest(".word")));
  box.addEventListener("mouseleave", () => looked(null));
  box.addEventListener("focusin", event => looked(event.target.closest(".word")));
  box.addEventListener("focusout", () => looked(null));
  box.addEventListener("click", event => {
    const word = event.target.closest(".word");
    if (word && String(getSelection()) === "") chosen(word);
  });
  box.addEventListener("keydown", event => move(event, chosen));
}

function move(event, chosen) {
  const word = event.target.closest(".word");
  if (!word) return;
  const words = [...box.querySelectorAll(".word")], at = words.indexOf(word);
  const right = getComputedStyle(box).direction === "rtl" ? -1 : 1;
  const steps = {ArrowRight: right, ArrowLeft: -right, ArrowDown: 5, ArrowUp: -5, Home: -words.length, End: words.length};
  if (event.key === "Enter" || event.key === " ") {
    chosen(word);
  } else if (event.key in steps) {
    const next = words[Math.max(0, Math.min(words.length - 1, at + steps[event.key]))];
    word.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  } else {
    return;
  }
  event.preventDefault();
}
