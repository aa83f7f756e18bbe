// Requests to the server: texts as streams of sentences, files, and the errors of refused requests.

const KEY = "towernmt.key";
let key = stored("sessionStorage") ?? stored("localStorage") ?? "";

function stored(storage) {
  try { return window[storage].getItem(KEY); } catch { return null; }     // the browser may forbid it
}

/** Send a key with all further requests, and store it for this window or on this device.
 *
 * Characters that no key has, such as invisible ones that were pasted with it, are removed: `fetch` sends no header with them.
 */
export function useKey(value, onDevice) {
  key = value.replace(/[^!-~]+/g, "");
  try {
    (onDevice ? sessionStorage : localStorage).removeItem(KEY);     // an old key would be used instead after a reload
    (onDevice ? localStorage : sessionStorage).setItem(KEY, key);
  } catch { /* the page requests it again */ }
}

/** The error of a request that the server refused or did not answer. */
export class Refused extends Error {
  /** @param {number} status of HTTP; 0 without an answer. @param {number} wait seconds before a new attempt; 0 if it would be refused, too. */
  constructor(message, status, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

/** Send a request, and return its answer; throws `Refused`. */
async function request(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, {...options, cache: "no-store", credentials: "omit",
                                   headers: {...options.headers, ...(key ? {Authorization: `Bearer ${key}`} : {})}});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer.", 0, 3);
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const wait = [429, 503].includes(answer.status) ? Number(answer.headers.get("Retry-After")) || 3 : 0;
  throw new Refused(body.error ?? `The server answers with status ${answer.status}.`, answer.status, wait);
}

const connectionLost = () => new Refused("The connection to the server was lost.", 0, 3);

/** Send a request, and return the body of its answer. @param {"json" | "blob"} kind */
async function requestBody(kind, address, options) {
  const answer = await request(address, options);
  try {
    return await answer[kind]();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw connectionLost();     // the body is incomplete
  }
}

/** Return the names of the languages, the models, the limits of a request, and the settings of the server. */
export async function served() {
  const [languages, models, settings] = await Promise.all(
    ["languages", "api/v1/models", "frontend/settings"].map(address => requestBody("json", address)));
  return {names: new Map(languages.map(one => [one.code, one.name])), ...models, settings};
}

const post = (body, signal) => ({
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});

/** Translate texts.
 *
 * @param {object} body fields of the native interface
 * @param {(sentence: object) => void} onSentence called with each sentence as soon as it is translated
 * @returns {Promise<object>} the last line of the answer
 */
export async function translate(body, signal, onSentence) {
  const answer = await request("api/v1/translate", post({...body, stream: true}, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", last = null;
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const sentence = JSON.parse(line);
        if (sentence.error) throw new Refused(sentence.error, sentence.status, sentence.status === 503 ? 3 : 0);
        if (sentence.done) last = sentence; else onSentence(sentence);
      }
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw connectionLost();
  }
  if (!last) throw connectionLost();
  return last;
}

/** Return the translations of one sentence. */
export async function translateSentence(body, signal) {
  const answer = await requestBody("json", "api/v1/translate", post(body, signal));
  return answer.translations[0].sentences[0]?.translations ?? [];
}

/** Send a better translation: {q, s, source, target, translation}. */
export function sendSuggestion(body) {
  return request("suggest", post(body));
}

const documentAddress = ({id}, part = "") => `api/v1/documents/${encodeURIComponent(id)}${part}`;
const documentKey = ({key: value}) => ({"X-Document-Key": value});

/** Send a file, and return its state: {id, key, status, sentences, translated ...}. */
export function sendDocument(file, source, target, signal) {
  const form = new FormData();
  form.append("file", file);
  form.append("source", source);
  form.append("target", target);
  return requestBody("json", "api/v1/documents", {method: "POST", body: form, signal});
}

/** Return the current state of a document. */
export function documentState(sent, signal) {
  return requestBody("json", documentAddress(sent), {headers: documentKey(sent), signal});
}

/** Return the translated file as a `Blob`. */
export function documentResult(sent, signal) {
  return requestBody("blob", documentAddress(sent, "/result"), {headers: documentKey(sent), signal});
}

/** Cancel the translation of a document, and delete it from the server; works also while the page closes. */
export function forgetDocument(sent) {
  return request(documentAddress(sent), {method: "DELETE", headers: documentKey(sent), keepalive: true}).catch(() => {});
}
