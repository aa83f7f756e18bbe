"use strict";
// Bergamot in a worker: loads the engine and the model, and then translates the newest text.
//
// The page sends {load: export} once, and {id, text, html} for each text. The worker sends {progress, total} while it
// loads, {ready, kept} when it has loaded, {id, first, lines, done} for some lines of a text, each {text, sentences}, and
// {error, id} for an error. `kept` is whether the browser has stored all files.
importScripts(`files.js${self.location.search}`);        // with the version in the address

// The engine's program requires this name.
var Module = {};
// Products of 8-bit matrices, which the engine imports by the first names and exports by the second ones.
const PRODUCTS = {
  int8_prepare_a: "int8PrepareAFallback", int8_prepare_b: "int8PrepareBFallback",
  int8_prepare_b_from_transposed: "int8PrepareBFromTransposedFallback",
  int8_prepare_b_from_quantized_transposed: "int8PrepareBFromQuantizedTransposedFallback",
  int8_prepare_bias: "int8PrepareBiasFallback", int8_multiply_and_add_bias: "int8MultiplyAndAddBiasFallback",
  int8_select_columns_of_b: "int8SelectColumnsOfBFallback"};
// Number of sentences whose translations are cached, since each key changes only one sentence of a text.
const CACHED_SENTENCES = 4096;
// Characters that are translated before the worker looks for a newer text. The first portion is small for an early result.
const FIRST_PORTION = 400, PORTION = 3000;

let service, model, newest = null, busy = false, lastMessage = "";

self.onmessage = async ({data}) => {
  if (data.load) return load(data.load).catch(error => self.postMessage({error: error.message}));
  newest = data;
  if (busy || !model) return;
  busy = true;
  while (newest) {
    const request = newest;
    newest = null;
    try {
      await translate(request);
    } catch (error) {
      self.postMessage({id: request.id, error: `The engine could not translate this text: ${lastMessage || error.message}`});
      return;         // the engine may be damaged, and the page starts another worker
    }
  }
  busy = false;
};

async function load({version, files, options}) {
  const all = [files.wasm, files.model, ...files.vocabularies, ...(files.shortlist ? [files.shortlist] : [])];
  const total = all.reduce((sum, file) => sum + file.bytes, 0);
  const loadedBytes = new Map();
  const progress = (file, bytes) => {
    loadedBytes.set(file, bytes);
    self.postMessage({progress: Array.from(loadedBytes.values()).reduce((sum, one) => sum + one, 0), total});
  };
  let allKept = canKeep();
  const get = async file => {
    const keptContent = await kept(file);
    if (keptContent) return progress(file, file.bytes), keptContent;
    const content = await fetched(file, bytes => progress(file, bytes));
    if (canKeep()) await keep(file, content, version).catch(() => { allKept = false; });    // the disk is full
    return content;
  };
  const [wasm, ...contents] = await Promise.all(all.map(get));
  await startEngine(wasm, files.glue);
  makeModel(contents, files.vocabularies.length, options);
  translateLines(["."], false);      // the engine builds its graph at the first sentence
  self.postMessage({ready: true, kept: allKept});
}

function startEngine(wasm, glue) {
  return new Promise((resolve, reject) => {
    Module = {
      instantiateWasm(imports, accept) {
        const products = Object.entries(PRODUCTS).map(
          ([imported, exported]) => [imported, (...values) => Module.asm[exported](...values)]);
        WebAssembly.instantiate(wasm, {...imports, wasm_gemm: Object.fromEntries(products)})
          .then(({instance}) => accept(instance))
          .catch(error => reject(new Error(`This browser cannot run the engine (${error.message}). Use a newer browser.`)));
        return {};
      },
      onRuntimeInitialized: resolve,
      print() {},
      printErr(text) { if (text.trim() && !text.startsWith("Aborted(")) lastMessage = text.trim(); },
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
  service = new Module.BlockingService({cacheSize: CACHED_SENTENCES});
  model = new Module.TranslationModel(options, inEngine(content, 256), shortlist, vocabularies, null);
}

function inEngine(content, alignment) {
  const memory = new Module.AlignedMemory(content.length, alignment);
  memory.getByteArrayView().set(new Int8Array(content.buffer, content.byteOffset, content.length));
  return memory;
}

// Translates the lines of a text in portions, until all are translated or a newer text has arrived.
async function translate({id, text, html}) {
  const lines = html ? [text] : text.split("\n");
  if (text === "") return self.postMessage({id, first: 0, lines: [], done: true});
  for (let first = 0, portion = FIRST_PORTION; first < lines.length; portion = PORTION) {
    let last = first, characters = 0;
    while (last < lines.length && (last === first || characters + lines[last].length <= portion))
      characters += lines[last++].length;
    const translated = translateLines(lines.slice(first, last), html);
    self.postMessage({id, first, lines: translated, done: last === lines.length});
    first = last;
    await new Promise(resolve => setTimeout(resolve));      // receives a waiting message
    if (newest) return;
  }
}

// Returns the translation of each line, and the ranges of each sentence in the line and in its translation:
// [begin, end, begin, end] in UTF-16 units.
function translateLines(lines, html) {
  const input = new Module.VectorString(), options = new Module.VectorResponseOptions();
  for (const line of lines) {
    input.push_back(line.normalize("NFC"));
    options.push_back({alignment: false, html, qualityScores: false});
  }
  const responses = service.translate(model, input, options);
  const translated = lines.map((line, number) => {
    const response = responses.get(number), text = response.getTranslatedText();
    return {text, sentences: html ? [] : sentencesOf(response, line, text)};
  });
  for (const one of [input, options, responses]) one.delete();
  return translated;
}

function sentencesOf(response, line, text) {
  const numbers = Array.from({length: response.size()}, (_, number) => number);
  const source = units(line.normalize("NFC"), numbers.map(number => response.getSourceSentence(number)));
  const target = units(text, numbers.map(number => response.getTranslatedSentence(number)));
  return numbers.map(number => [...source[number], ...target[number]]);
}

// Converts ranges of bytes in UTF-8 to ranges of UTF-16 units.
function units(text, ranges) {
  const bytes = new TextEncoder().encode(text), decoder = new TextDecoder("utf-8", {ignoreBOM: true});
  let position = 0, count = 0;
  const unitsBefore = offset => {
    count += decoder.decode(bytes.subarray(position, offset)).length;
    position = offset;
    return count;
  };
  return ranges.map(({begin, end}) => [unitsBefore(begin), unitsBefore(end)]);
}
