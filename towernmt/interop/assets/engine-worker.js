"use strict";
// Bergamot in a worker: loads the engine and the model, then translates whatever text came last.
//
// It gets {load: export} once, and {id, text, html} for each text. It answers {progress, total} and {ready, kept} while and
// when it has loaded; {id, first, lines, done} for some lines of a text, each {text, sentences}; and {error, id}.
importScripts(`files.js${self.location.search}`);        // with the address of this version, too

// Named as the engine's own program expects it.
var Module = {};
// Products of 8-bit matrices: the engine asks for them by these names, and has them itself by others.
const PRODUCTS = {
  int8_prepare_a: "int8PrepareAFallback", int8_prepare_b: "int8PrepareBFallback",
  int8_prepare_b_from_transposed: "int8PrepareBFromTransposedFallback",
  int8_prepare_b_from_quantized_transposed: "int8PrepareBFromQuantizedTransposedFallback",
  int8_prepare_bias: "int8PrepareBiasFallback", int8_multiply_and_add_bias: "int8MultiplyAndAddBiasFallback",
  int8_select_columns_of_b: "int8SelectColumnsOfBFallback"};
// Sentences whose translations are remembered: who types changes one of them.
const REMEMBERED = 4096;
// Characters that are translated before a newer text is looked for: few at first, for an early answer.
const FIRST_PORTION = 400, PORTION = 3000;

let service, model, wanted = null, busy = false, lastWords = "";

self.onmessage = async ({data}) => {
  if (data.load) return load(data.load).catch(error => self.postMessage({error: error.message}));
  wanted = data;
  if (busy || !model) return;
  busy = true;
  while (wanted) {
    const request = wanted;
    wanted = null;
    try {
      await translate(request);
    } catch (error) {
      self.postMessage({id: request.id, error: `The engine could not translate this text: ${lastWords || error.message}`});
      return;         // it cannot be trusted from here on: the page starts another
    }
  }
  busy = false;
};

async function load({version, files, options}) {
  const all = [files.wasm, files.model, ...files.vocabularies, ...(files.shortlist ? [files.shortlist] : [])];
  const total = all.reduce((sum, file) => sum + file.bytes, 0);
  const come = new Map();
  const progress = (file, bytes) => {
    come.set(file, bytes);
    self.postMessage({progress: Array.from(come.values()).reduce((sum, one) => sum + one, 0), total});
  };
  let everythingKept = canKeep();
  const get = async file => {
    const found = await kept(file);
    if (found) return progress(file, file.bytes), found;
    const content = await fetched(file, bytes => progress(file, bytes));
    if (canKeep()) await keep(file, content, version).catch(() => { everythingKept = false; });   // the disk is full
    return content;
  };
  const [wasm, ...contents] = await Promise.all(all.map(get));
  await startEngine(wasm, files.glue);
  makeModel(contents, files.vocabularies.length, options);
  translateLines(["."], false);      // the engine builds its graph at the first sentence
  self.postMessage({ready: true, kept: everythingKept});
}

function startEngine(wasm, glue) {
  return new Promise((resolve, reject) => {
    Module = {
      instantiateWasm(imports, accept) {
        const own = Object.entries(PRODUCTS).map(([name, ours]) => [name, (...values) => Module.asm[ours](...values)]);
        WebAssembly.instantiate(wasm, {...imports, wasm_gemm: Object.fromEntries(own)})
          .then(({instance}) => accept(instance))
          .catch(error => reject(new Error(`This browser cannot run the engine (${error.message}): take a newer one.`)));
        return {};
      },
      onRuntimeInitialized: resolve,
      print() {},
      printErr(text) { if (text.trim() && !text.startsWith("Aborted(")) lastWords = text.trim(); },
    };
    try {
      importScripts(addressOf(glue));
    } catch (error) {
      reject(new Error(`${glue.path} could not be loaded: ${error.message}`));
    }
  });
}

function makeModel([content, ...rest], vocabularyCount, options) {
  const vocabularies = new Module.AlignedMemoryList();
  for (const one of rest.slice(0, vocabularyCount)) vocabularies.push_back(inEngine(one, 64));
  const shortlist = inEngine(rest[vocabularyCount] ?? new Uint8Array(0), 64);
  service = new Module.BlockingService({cacheSize: REMEMBERED});
  model = new Module.TranslationModel(options, inEngine(content, 256), shortlist, vocabularies, null);
}

function inEngine(content, alignment) {
  const memory = new Module.AlignedMemory(content.length, alignment);
  memory.getByteArrayView().set(new Int8Array(content.buffer, content.byteOffset, content.length));
  return memory;
}

// Translates line by line, some lines at once, until all are done or a newer text has come.
async function translate({id, text, html}) {
  const lines = html ? [text] : text.split("\n");
  if (text === "") return self.postMessage({id, first: 0, lines: [], done: true});
  for (let first = 0, portion = FIRST_PORTION; first < lines.length; portion = PORTION) {
    let last = first, characters = 0;
    while (last < lines.length && (last === first || characters + lines[last].length <= portion))
      characters += lines[last++].length;
    const found = translateLines(lines.slice(first, last), html);
    self.postMessage({id, first, lines: found, done: last === lines.length});
    first = last;
    await new Promise(resolve => setTimeout(resolve));      // lets a message in
    if (wanted) return;
  }
}

// Of each line its translation, and where each sentence is in both: [begin, end, begin, end] in UTF-16 units.
function translateLines(lines, html) {
  const input = new Module.VectorString(), options = new Module.VectorResponseOptions();
  for (const line of lines) {
    input.push_back(line.normalize("NFC"));
    options.push_back({alignment: false, html, qualityScores: false});
  }
  const responses = service.translate(model, input, options);
  const found = lines.map((line, number) => {
    const response = responses.get(number), text = response.getTranslatedText();
    return {text, sentences: html ? [] : sentencesOf(response, line, text)};
  });
  for (const one of [input, options, responses]) one.delete();
  return found;
}

function sentencesOf(response, line, text) {
  const numbers = Array.from({length: response.size()}, (_, number) => number);
  const source = units(line.normalize("NFC"), numbers.map(number => response.getSourceSentence(number)));
  const target = units(text, numbers.map(number => response.getTranslatedSentence(number)));
  return numbers.map(number => [...source[number], ...target[number]]);
}

// Ranges of bytes in UTF-8 as ranges of UTF-16 units.
function units(text, ranges) {
  const bytes = new TextEncoder().encode(text), decoder = new TextDecoder("utf-8", {ignoreBOM: true});
  let at = 0, count = 0;
  const place = offset => {
    count += decoder.decode(bytes.subarray(at, offset)).length;
    at = offset;
    return count;
  };
  return ranges.map(({begin, end}) => [place(begin), place(end)]);
}
