// Files that are dropped or selected: sent to the server one after the other, polled while they are translated, and fetched.

import {Refused, documentResult, documentState, forgetDocument, sendDocument} from "./server.js";

const input = document.getElementById("file"), list = document.getElementById("files");
const POLL = 1000, TRIES = 5;       // milliseconds between two polls of a document, and attempts without an answer
const sent = new Set();             // documents on the server
let last = Promise.resolve();       // resolves when all earlier files are finished
let nameOf = code => code, refused = () => {};

/** Translate files that are dropped on the page or selected.
 *
 * @param {string[]} formats suffixes of the names that the server accepts
 * @param {() => {source: string, target: string}} languages
 * @param {(code: string) => string} names returns the name of a language
 * @param {(error: Refused) => void} onRefused called with the error of a file that the server has refused
 */
export function watchFiles(formats, languages, names, onRefused) {
  [nameOf, refused] = [names, onRefused];
  document.getElementById("formats").textContent = `Formats: ${formats.map(one => one.replace(".", "")).join(", ")}`;
  input.accept = formats.join(",");
  document.getElementById("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => { send([...input.files], languages()); input.value = ""; });
  document.addEventListener("dragover", event => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", event => {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    send([...event.dataTransfer.files], languages());
  });
  addEventListener("pagehide", () => { for (const one of sent) forgetDocument(one); });
}

function send(files, languages) {
  for (const file of files) {
    const row = new Row(file.name);
    last = last.then(() => translated(file, languages, row)).catch(reportError);     // so that the next file follows
  }
}

/** Translate a file, and show its progress. */
async function translated(file, {source, target}, row) {
  if (row.signal.aborted) return;
  let one = null;
  try {
    row.say("sending …");
    one = await withRetries(() => sendDocument(file, source, target, row.signal), row);
    sent.add(one);
    let state = one;
    while (!["done", "error"].includes(state.status)) {
      row.progress(state);
      await pause(POLL, row.signal);
      state = await withRetries(() => documentState(one, row.signal), row);
    }
    if (state.status === "error") throw new Refused(state.error, 400);
    row.progress(state);
    row.done(await withRetries(() => documentResult(one, row.signal), row), target);
  } catch (error) {
    if (!row.signal.aborted && !(error instanceof Refused)) { row.failed("The page failed."); throw error; }
    row.failed(row.signal.aborted ? "cancelled" : error.message);
    if (!row.signal.aborted) refused(error);
  } finally {
    if (one) { sent.delete(one); await forgetDocument(one); }
  }
}

/** Send a request, again after a temporary error, and return its answer. */
async function withRetries(request, row) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await request();
    } catch (error) {
      if (!(error instanceof Refused) || !error.wait || (!error.status && tries >= TRIES)) throw error;
      row.say(`${error.message} Trying again in ${Math.ceil(error.wait)} s.`);
      await pause(1000 * error.wait, row.signal);
    }
  }
}

/** Wait for some time; throws if the signal aborts the wait. */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal.removeEventListener("abort", stop); resolve(); }, milliseconds);
    signal.addEventListener("abort", stop, {once: true});
    if (signal.aborted) stop();
  });
}

/** The row of a file in the list. */
class Row {
  constructor(name) {
    const control = new AbortController(), part = kind => document.createElement(kind);
    [this.name, this.signal] = [name, control.signal];
    [this.item, this.state, this.bar, this.button] = [part("li"), part("span"), part("progress"), part("button")];
    const title = part("span");
    title.className = "name";
    title.textContent = name;
    this.state.className = "state";
    this.bar.hidden = true;
    this.bar.setAttribute("aria-label", `Translating ${name}`);
    this.button.type = "button";
    this.label("Cancel");
    this.button.addEventListener("click", () => {
      if (this.over) this.remove(); else { control.abort(); this.failed("cancelled"); }
    });
    this.item.append(title, this.bar, this.state, this.button);
    list.append(this.item);
    this.say("waiting");
  }

  label(text) {
    this.button.textContent = text;
    this.button.setAttribute("aria-label", `${text} ${this.name}`);
  }

  say(text) { if (!this.over) this.state.textContent = text; }

  progress({status, source, translated, sentences, seconds_remaining: seconds}) {
    this.bar.hidden = false;
    if (sentences && status !== "queued") { this.bar.max = sentences; this.bar.value = translated; } else this.bar.removeAttribute("value");
    const time = !seconds ? "" : seconds < 90 ? `, about ${Math.ceil(seconds)} s left` : `, about ${Math.round(seconds / 60)} minutes left`;
    this.say(status === "queued" ? "waiting for its turn"
      : `${translated.toLocaleString("en")} of ${sentences.toLocaleString("en")} sentences from ${nameOf(source)}${time}`);
  }

  done(blob, target) {
    const link = document.createElement("a"), dot = this.name.lastIndexOf(".");
    this.address = link.href = URL.createObjectURL(blob);
    link.download = dot > 0 ? `${this.name.slice(0, dot)}.${target}${this.name.slice(dot)}` : `${this.name}.${target}`;
    link.textContent = `Save ${link.download}`;
    this.end(link);
  }

  remove() {
    this.item.remove();
    if (this.address) URL.revokeObjectURL(this.address);     // or the browser keeps the file in memory
  }

  failed(text) {
    this.item.classList.add("failed");
    this.end(text);
  }

  end(shown) {
    if (this.over) return;
    this.over = true;
    this.bar.hidden = true;
    this.state.replaceChildren(shown);
    this.label("Remove");
  }
}
