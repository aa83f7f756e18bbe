"use strict";
// The page: sends the text to the worker while the user types, and shows the translations.

const exported = JSON.parse(document.getElementById("export").textContent);
const element = id => document.getElementById(id);
const source = element("source"), target = element("target"), html = element("html");
const WAIT = 250;                   // milliseconds after the last key until the text is translated
const DRAFT = `towernmt draft ${location.pathname}`;        // key of the text while the page reloads for a new version

let worker, ready = false, requestId = 0, shownId = 0, startTime = 0, timer;
let requestedInput = "";            // the input of the last request; see `input`
let failedInput = null;             // the input that the engine could not translate
let doctype = "";                   // the document type of an HTML document, which the engine does not accept
let lines = [];                     // the translated lines, each with its sentences

const input = () => `${html.checked} ${source.value}`;

function fail(message) {
  element("error").textContent = message;
  element("error").hidden = false;
  element("loading").hidden = true;
  target.removeAttribute("aria-busy");
}

const megabytes = bytes => (bytes / 1e6).toFixed(1);

function start() {
  if (location.protocol === "file:")
    return fail("Browsers do not run the programs of a page that is opened as a file. Serve this folder, for example with "
                + "“python -m http.server”, and open its address.");
  if (!("Worker" in window && "WebAssembly" in window))
    return fail("This browser does not support WebAssembly, which the translator needs. Use a newer browser.");
  ready = false;
  worker = new Worker(exported.worker);
  worker.onmessage = ({data}) => receive(data);
  worker.onerror = event => fail(`The translator could not be started: ${event.message || "one of its files is missing"}.`);
  worker.postMessage({load: exported});
}

function receive(data) {
  if (data.error) {
    fail(data.error);
    if (!data.id) return;
    failedInput = requestedInput;
    worker.terminate();
    start();
  } else if ("progress" in data) {
    element("progress").value = data.progress / data.total;
    element("loading-text").textContent = data.progress < data.total
      ? `Loading the translator: ${megabytes(data.progress)} of ${megabytes(data.total)} MB` : "Starting the translator …";
  } else if (data.ready) {
    ready = true;
    element("loading").hidden = true;
    if (failedInput === null) keepOffline();
    if (!data.kept) element("offline").textContent = reasonNotKept();
    translate();
  } else if (data.id === requestId) {
    show(data);
  }
}

const reasonNotKept = () => window.isSecureContext
  ? "Needs a connection each time: this browser has no space to store the translator."
  : "Needs a connection each time: browsers store only pages from https addresses.";

function translate() {
  clearTimeout(timer);
  if (!ready || input() === failedInput) return;
  requestId += 1;
  requestedInput = input();
  startTime = performance.now();
  target.setAttribute("aria-busy", "true");
  element("figures").textContent = source.value ? "Translating …" : "";
  worker.postMessage({id: requestId, text: html.checked ? wellFormed(source.value) : source.value, html: html.checked});
}

// Returns HTML as a browser understands it: tags are closed, and `<` outside of tags is an entity. The engine needs this.
function wellFormed(text) {
  const parsed = new DOMParser().parseFromString(text, "text/html");
  doctype = parsed.doctype ? `<!DOCTYPE ${parsed.doctype.name}>\n` : "";
  const isDocument = /<(!doctype|html|head|body)\b/iu.test(text);
  return isDocument ? parsed.documentElement.outerHTML : parsed.head.innerHTML + parsed.body.innerHTML;
}

function changed() {
  const words = source.value.split(/\s+/u).filter(Boolean).length;
  element("count").textContent = words ? `${words.toLocaleString("en")} ${words === 1 ? "word" : "words"}` : "";
  element("clear").disabled = !source.value;
  clearTimeout(timer);
  timer = setTimeout(translate, WAIT);
}

function show(data) {
  if (shownId !== data.id) lines = [];
  shownId = data.id;
  failedInput = null;
  element("error").hidden = true;
  if (data.first === 0) {
    target.replaceChildren();
    if (html.checked && data.lines.length) data.lines[0].text = doctype + data.lines[0].text;
  }
  lines.push(...data.lines);
  target.append(...data.lines.map((line, number) => paragraph(line, data.first + number)));
  markSentence();
  if (!data.done) return;
  target.removeAttribute("aria-busy");
  for (const id of ["copy", "save"]) element(id).disabled = !lines.length;
  const sentences = lines.reduce((sum, line) => sum + line.sentences.length, 0);
  const seconds = ((performance.now() - startTime) / 1000).toFixed(2);
  element("figures").textContent = sentences ? `${sentences} ${sentences === 1 ? "sentence" : "sentences"} in ${seconds} s` : "";
}

// Returns the paragraph of a translated line, with a span for each sentence.
function paragraph({text, sentences}, number) {
  const line = document.createElement("p");
  line.dir = "auto";
  let position = 0;
  sentences.forEach(([, , begin, end], index) => {
    if (end <= begin) return;
    const span = document.createElement("span");
    span.textContent = text.slice(begin, end);
    span.dataset.line = number;
    span.dataset.sentence = index;
    line.append(text.slice(position, begin), span);
    position = end;
  });
  line.append(text.slice(position));
  return line;
}

// Highlights the translation of the sentence under the cursor.
function markSentence() {
  target.querySelectorAll(".here").forEach(span => span.classList.remove("here"));
  if (document.activeElement !== source || source.selectionStart !== source.selectionEnd || lines.length < 1) return;
  const linesBefore = source.value.slice(0, source.selectionStart).split("\n");
  const number = linesBefore.length - 1, column = linesBefore[number].length;
  const sentences = lines[number]?.sentences ?? [];
  if (sentences.length + lines.length < 3) return;    // the only sentence needs no mark
  const index = sentences.findIndex(([begin, end]) => begin <= column && column <= end);
  target.querySelector(`[data-line="${number}"][data-sentence="${index}"]`)?.classList.add("here");
}

// Selects the source of a translated sentence.
function selectSource(span) {
  const number = Number(span.dataset.line), [begin, end] = lines[number].sentences[Number(span.dataset.sentence)];
  const first = source.value.split("\n").slice(0, number).reduce((sum, line) => sum + line.length + 1, 0);
  source.focus();
  source.setSelectionRange(first + begin, first + end);
}

const translation = () => lines.map(line => line.text).join("\n");

async function copy() {
  try {
    await navigator.clipboard.writeText(translation());
    element("figures").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(target);
    element("figures").textContent = "This browser does not let pages copy. The translation is selected: press Ctrl+C.";
  }
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${translation()}\n`], {type: "text/plain"}));
  link.download = html.checked ? "translation.html" : "translation.txt";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function openFile(file) {
  if (!file) return;
  const decoder = new TextDecoder("utf-8", {fatal: true});
  try {
    source.value = decoder.decode(await file.arrayBuffer());
  } catch {
    return fail(`${file.name} is not text in UTF-8: save it in UTF-8, and open it again.`);
  }
  element("error").hidden = true;
  html.checked = /\.html?$/iu.test(file.name);
  changed();
  source.focus();
}

// Stores the page for use without a connection, and offers new versions.
async function keepOffline() {
  if (!("serviceWorker" in navigator)) return;
  try {
    const registration = await navigator.serviceWorker.register("service-worker.js", {updateViaCache: "none"});
    const offer = () => {
      if (registration.waiting && navigator.serviceWorker.controller) element("update").hidden = false;
    };
    registration.addEventListener("updatefound", () => registration.installing?.addEventListener("statechange", offer));
    offer();
    element("update-now").onclick = () => {
      navigator.serviceWorker.addEventListener("controllerchange", () => {
        sessionStorage.setItem(DRAFT, source.value);
        location.reload();
      });
      registration.waiting.postMessage("activate");
    };
    await navigator.serviceWorker.ready;
    element("offline").textContent = "Works without a connection.";
  } catch (error) {
    element("offline").textContent = `Needs a connection each time (${error.message}).`;
  }
}

source.addEventListener("input", changed);
source.addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate(); });
document.addEventListener("selectionchange", markSentence);
html.addEventListener("change", translate);
target.addEventListener("click", event => {
  const span = event.target.closest("span");
  if (span && getSelection().isCollapsed) selectSource(span);
});
element("clear").addEventListener("click", () => { source.value = ""; changed(); source.focus(); });
element("copy").addEventListener("click", copy);
element("save").addEventListener("click", save);
element("open").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", event => { openFile(event.target.files[0]); event.target.value = ""; });
const box = source.parentElement;
box.addEventListener("dragover", event => { event.preventDefault(); box.classList.add("dropping"); });
box.addEventListener("dragleave", () => box.classList.remove("dropping"));
box.addEventListener("drop", event => {
  box.classList.remove("dropping");
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  openFile(event.dataTransfer.files[0]);
});
source.value = sessionStorage.getItem(DRAFT) ?? source.value;
sessionStorage.removeItem(DRAFT);
changed();
start();
