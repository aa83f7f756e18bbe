"use strict";
// The files of the export: how they are fetched, checked and kept in this browser. For the worker and the service worker.
// A file is {path, bytes, sha256, type}; paths are relative to the folder of the page.

// Each export has a store of its own, and so has each folder of a host.
const folder = new URL("./", self.location).pathname;
const storePrefix = `towernmt ${folder} `;
const storeOf = version => storePrefix + version;
// The checksum in the address keeps caches on the way from giving the file of an older export.
const addressOf = file => new URL(`${file.path}?v=${file.sha256.slice(0, 16)}`, self.location).href;

// What the browser keeps is there on secure pages only (https, or this machine).
const canKeep = () => "caches" in self && "crypto" in self && "subtle" in self.crypto;

// The file as kept, of this export or an older one that has the same; null where it is not.
async function kept(file) {
  if (!canKeep()) return null;
  const response = await caches.match(addressOf(file), {ignoreVary: true}).catch(() => null);     // a private window
  return response ? new Uint8Array(await response.arrayBuffer()) : null;
}

// The file from the network, checked; `progress` is told the bytes that have come.
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

const damaged = file => new Error(`${file.path} is not the file of this export: reload the page, or copy the folder anew.`);

async function fits(file, content) {
  if (!canKeep()) return true;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("") === file.sha256;
}

async function keep(file, content, version) {
  const store = await caches.open(storeOf(version));
  await store.put(addressOf(file), new Response(content, {headers: {"Content-Type": file.type}}));
}
