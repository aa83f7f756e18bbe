// Where the sentences and words of a translation stand in the text that was typed. Nothing here touches the page.

/** Where words stand in a text, which holds their letters in this order; spaces and symbols may be between them.
 *
 * @param {string} text
 * @param {string[]} words
 * @param {number} from where the first may begin
 * @returns {{start: number, end: number}[]}
 */
export function places(text, words, from = 0) {
  let at = from;
  return words.map(word => {
    let start = -1;
    for (const letter of word.replace(/\s+/gu, "")) {
      while (at < text.length && /\s/u.test(text[at])) at += 1;     // a normalised letter may not stand in the text
      const next = text.indexOf(letter, at);
      if (next >= 0 && !/[\p{L}\p{Nd}]/u.test(text.slice(at, next))) at = next;
      if (start < 0) start = at;
      at += letter.length;
    }
    return {start: start < 0 ? at : Math.min(start, text.length), end: Math.min(at, text.length)};
  });
}

/** The sentences of a line with their places in it. */
export function located(line, sentences) {
  let at = 0;
  return sentences.map(sentence => {
    const words = places(line, sentence.words ?? sentence.source.split(/\s+/u).filter(Boolean), at);
    const start = words.length ? words[0].start : at;
    at = words.length ? words[words.length - 1].end : at;
    return {...sentence, start, end: at, places: words};
  });
}

/** The words of a translation: what the server names, or what stands between spaces. */
export function wordsOf(translation) {
  return translation.words ?? translation.text.split(/\s+/u).filter(Boolean);
}

/** What stands before the word with this number, as the beginning of a translation. */
export function before(translation, number) {
  const found = places(translation.text, wordsOf(translation));
  return number < found.length ? translation.text.slice(0, found[number].start).trimEnd() : translation.text;
}

/** The translation of a line, from its sentences, with the spaces that the line has between them. */
export function lineText(line, sentences) {
  let text = "", at = 0;
  for (const sentence of sentences) {
    text += line.slice(at, sentence.start) + sentence.shown.text;
    at = sentence.end;
  }
  return text + line.slice(at);
}

/** The words with which several translations go on behind a beginning, each once. */
export function nextWords(translations, beginning) {
  const count = beginning.split(/\s+/u).filter(Boolean).length;
  const found = new Map();
  for (const translation of translations) {
    const word = translation.text.split(/\s+/u).filter(Boolean)[count];
    if (word && !found.has(word)) found.set(word, translation);
  }
  return found;
}
