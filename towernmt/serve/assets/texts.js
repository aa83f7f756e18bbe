// The positions of sentences and words in a text. These functions do not use the page.

/** Return the range of each word in a text, which contains their letters in this order, with spaces and symbols between them.
 *
 * @param {string} text
 * @param {string[]} words
 * @param {number} from index at which the first word may begin
 * @returns {{start: number, end: number}[]}
 */
export function wordRanges(text, words, from = 0) {
  let at = from;
  return words.map(word => {
    let start = -1;
    for (const letter of word.replace(/\s+/gu, "")) {
      while (at < text.length && /\s/u.test(text[at])) at += 1;     // the text may lack a normalised letter
      const next = text.indexOf(letter, at);
      if (next >= 0 && !/[\p{L}\p{Nd}]/u.test(text.slice(at, next))) at = next;
      if (start < 0) start = at;
      at += letter.length;
    }
    return {start: start < 0 ? at : Math.min(start, text.length), end: Math.min(at, text.length)};
  });
}

/** Set the ranges of the sentences of a line and of their words, and return the sentences as a new list. */
export function located(line, sentences) {
  let at = 0;
  return sentences.map(sentence => {
    const words = wordRanges(line, sentence.words ?? sentence.source.split(/\s+/u).filter(Boolean), at);
    const start = words.length ? words[0].start : at;
    at = words.length ? words[words.length - 1].end : at;
    return Object.assign(sentence, {start, end: at, wordRanges: words});
  });
}

/** Return the words of a translation as the server divides it, or else those between spaces. */
export function wordsOf(translation) {
  return translation.words ?? translation.text.split(/\s+/u).filter(Boolean);
}

/** Return the text before the word with this number, as a prefix of a translation. */
export function before(translation, number) {
  const found = wordRanges(translation.text, wordsOf(translation));
  return number < found.length ? translation.text.slice(0, found[number].start).trimEnd() : translation.text;
}

/** Return the translation of a line: its translated sentences, with the spaces that the line has between them.
 *
 * @param {string} line
 * @param {object[]} sentences its sentences, of `located`
 * @param {(sentence: object) => {text: string}} translationOf returns the translation of a sentence
 */
export function lineText(line, sentences, translationOf) {
  let text = "", at = 0;
  for (const sentence of sentences) {
    text += line.slice(at, sentence.start) + translationOf(sentence).text;
    at = sentence.end;
  }
  return text + line.slice(at);
}

/** Return the words that follow a prefix in several translations, each with the first of these translations. */
export function nextWords(translations, beginning) {
  const count = beginning.split(/\s+/u).filter(Boolean).length;
  const found = new Map();
  for (const translation of translations) {
    const word = translation.text.split(/\s+/u).filter(Boolean)[count];
    if (word && !found.has(word)) found.set(word, translation);
  }
  return found;
}
