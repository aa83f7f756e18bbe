"use strict";
// Functions that fetch, check and store the files of the export, for the worker and the service worker.
// A file is {path, bytes, sha256, type}. Paths are relative to the folder of the page.

// Each export and each folder of a host has a separate store.
const folder = new URL("./", self.location).pathname;
const storePrefix = `towernmt ${folder} `;
const storeOf = version => storePrefix + version;
// Because of the checksum in the address, no cache of a proxy returns the file of an older export.
const addressOf = file => new URL(`${file.path}?v=${file.sha256.slice(0, 16)}`, self.location).href;

// Browsers store files only for secure pages (https, or this machine).
const canKeep = () => "caches" in self && "crypto" in self && "subtle" in self.crypto;

// Returns the stored file, of this export or of an older export with the same file; null if it is not stored.
async function kept(file) {
  if (!canKeep()) return null;
  const response = await caches.match(addressOf(file), {ignoreVary: true}).catch(() => null);     // a private window
  return response ? new Uint8Array(await response.arrayBuffer()) : null;
}

// Returns the file from the network after a check. `progress` is called with the number of bytes received so far.
async function fetched(file, progress = () => {}) {
  let response;
  try {
    response = await fetch(addressOf(file), {cache: "no-cache"});
  } catch {
    throw new Error(`${file.path} could not be loaded: there is no connection to ${self.location.host}. Reload the page to try again.`);
  }
  if (!response.ok)
    throw new Error(`${file.path} could not be loaded: ${self.location.host} answers ${response.status}. Reload the page to `
                    + "try again.");
  const content = new Uint8Array(file.bytes);
  const reader = response.body.getReader();
  let length = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    if (length + part.value.length > file.bytes) throw damaged(file);
    content.set(part.value, length);
    length += part.value.length;
    progress(length);
  }
  if (length !== file.bytes || !await fits(file, content)) throw damaged(file);
  return content;
}

const damaged = file => new Error(`${file.path} is not the file of this export: reload the page, or copy the folder again.`);

async function fits(file, content) {
  if (!canKeep()) return true;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("") === file.sha256;
}

async function keep(file, content, version) {
  const store = await caches.open(storeOf(version));
  await store.put(addressOf(file), new Response(content, {headers: {"Content-Type": file.type}}));
}
