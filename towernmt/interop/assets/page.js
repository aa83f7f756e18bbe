"use strict";
// The page: hands the text to the worker while one types, and shows what it says.

const told = JSON.parse(document.getElementById("export").textContent);
const element = id => document.getElementById(id);
const source = element("source"), target = element("target"), html = element("html");
const WAIT = 250;                   // milliseconds without a key, before the text is translated
const DRAFT = `towernmt draft ${location.pathname}`;        // the text, over a reload for a new version

let worker, ready = false, asked = 0, answered = 0, began = 0, timer;
let refused = null;                 // the text that the engine failed on
let before = "";                    // what stands before an HTML document, which the engine does not take
let lines = [];                     // the translation so far: a line each, with its sentences

function fail(message) {
  element("error").textContent = message;
  element("error").hidden = false;
  element("loading").hidden = true;
  target.removeAttribute("aria-busy");
}

const megabytes = bytes => (bytes / 1e6).toFixed(1);

function start() {
  if (location.protocol === "file:")
    return fail("Browsers run no programs of pages that are opened as files: serve this folder, as by "
                + "“python -m http.server”, and open its address.");
  if (!("Worker" in window && "WebAssembly" in window))
    return fail("This browser cannot run the translator, for it lacks WebAssembly: take a newer one.");
  ready = false;
  worker = new Worker(told.worker);
  worker.onmessage = ({data}) => heard(data);
  worker.onerror = event => fail(`The translator could not be started: ${event.message || "a file of it is missing"}.`);
  worker.postMessage({load: told});
}

function heard(data) {
  if (data.error) {
    fail(data.error);
    if (!data.id) return;
    refused = source.value;
    worker.terminate();
    start();
  } else if ("progress" in data) {
    element("progress").value = data.progress / data.total;
    element("loading-text").textContent = data.progress < data.total
      ? `Loading the translator: ${megabytes(data.progress)} of ${megabytes(data.total)} MB` : "Starting the translator …";
  } else if (data.ready) {
    ready = true;
    element("loading").hidden = true;
    if (refused === null) keepOffline();
    if (!data.kept) element("offline").textContent = reasonNotKept();
    translate();
  } else if (data.id === asked) {
    show(data);
  }
}

const reasonNotKept = () => window.isSecureContext
  ? "This browser had no room to keep the translator: it needs the connection each time."
  : "Needs the connection each time: browsers keep pages of https addresses only.";

function translate() {
  clearTimeout(timer);
  if (!ready || source.value === refused) return;
  asked += 1;
  began = performance.now();
  target.setAttribute("aria-busy", "true");
  element("figures").textContent = source.value ? "Translating …" : "";
  worker.postMessage({id: asked, text: html.checked ? wellFormed(source.value) : source.value, html: html.checked});
}

// HTML as a browser understands it: each tag closed, each `<` that is none an entity. The engine takes no other.
function wellFormed(text) {
  const found = new DOMParser().parseFromString(text, "text/html");
  before = found.doctype ? `<!DOCTYPE ${found.doctype.name}>\n` : "";
  const whole = /<(!doctype|html|head|body)\b/iu.test(text);
  return whole ? found.documentElement.outerHTML : found.head.innerHTML + found.body.innerHTML;
}

function changed() {
  const words = source.value.split(/\s+/u).filter(Boolean).length;
  element("count").textContent = words ? `${words.toLocaleString("en")} ${words === 1 ? "word" : "words"}` : "";
  element("clear").disabled = !source.value;
  clearTimeout(timer);
  timer = setTimeout(translate, WAIT);
}

function show(data) {
  if (answered !== data.id) lines = [];
  answered = data.id;
  refused = null;
  element("error").hidden = true;
  if (data.first === 0) {
    target.replaceChildren();
    if (html.checked && data.lines.length) data.lines[0].text = before + data.lines[0].text;
  }
  lines.push(...data.lines);
  target.append(...data.lines.map((line, number) => paragraph(line, data.first + number)));
  markSentence();
  if (!data.done) return;
  target.removeAttribute("aria-busy");
  for (const id of ["copy", "save"]) element(id).disabled = !lines.length;
  const sentences = lines.reduce((sum, line) => sum + line.sentences.length, 0);
  const seconds = ((performance.now() - began) / 1000).toFixed(2);
  element("figures").textContent = sentences ? `${sentences} ${sentences === 1 ? "sentence" : "sentences"} in ${seconds} s` : "";
}

// A line of the translation: a span for each sentence, and what stands between them.
function paragraph({text, sentences}, number) {
  const line = document.createElement("p");
  line.dir = "auto";
  let at = 0;
  sentences.forEach(([, , begin, end], which) => {
    if (end <= begin) return;
    const span = document.createElement("span");
    span.textContent = text.slice(begin, end);
    span.dataset.line = number;
    span.dataset.sentence = which;
    line.append(text.slice(at, begin), span);
    at = end;
  });
  line.append(text.slice(at));
  return line;
}

// Marks the sentence of the translation that belongs to where the cursor is in the text.
function markSentence() {
  target.querySelectorAll(".here").forEach(span => span.classList.remove("here"));
  if (document.activeElement !== source || source.selectionStart !== source.selectionEnd || lines.length < 1) return;
  const before = source.value.slice(0, source.selectionStart).split("\n");
  const number = before.length - 1, place = before[number].length;
  const all = lines[number]?.sentences ?? [];
  if (all.length + lines.length < 3) return;          // the only sentence needs no mark
  const which = all.findIndex(([begin, end]) => begin <= place && place <= end);
  target.querySelector(`[data-line="${number}"][data-sentence="${which}"]`)?.classList.add("here");
}

// Selects the sentence of the text that a sentence of the translation comes from.
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
    element("figures").textContent = "This browser lets no page copy: the translation is selected, press Ctrl+C.";
  }
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${translation()}\n`], {type: "text/plain"}));
  link.download = html.checked ? "translation.html" : "translation.txt";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function open(file) {
  if (!file) return;
  const text = new TextDecoder("utf-8", {fatal: true});
  try {
    source.value = text.decode(await file.arrayBuffer());
  } catch {
    return fail(`${file.name} is no text in UTF-8: save it as such, and open it again.`);
  }
  element("error").hidden = true;
  html.checked = /\.html?$/iu.test(file.name);
  changed();
  source.focus();
}

// Keeps the page for use without a connection, and tells of new versions.
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
    element("offline").textContent = `Needs the connection each time (${error.message}).`;
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
element("file").addEventListener("change", event => { open(event.target.files[0]); event.target.value = ""; });
const box = source.parentElement;
box.addEventListener("dragover", event => { event.preventDefault(); box.classList.add("dropping"); });
box.addEventListener("dragleave", () => box.classList.remove("dropping"));
box.addEventListener("drop", event => {
  box.classList.remove("dropping");
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  open(event.dataTransfer.files[0]);
});
source.value = sessionStorage.getItem(DRAFT) ?? source.value;
sessionStorage.removeItem(DRAFT);
changed();
start();
