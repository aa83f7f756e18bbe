// Stores all files of the export, so that the page works without a connection. The export writes the line above, so each
// export has a different service worker. Browsers notice this, and fetch the new files next to the old ones.
importScripts("files.js");

const byPath = new Map(EXPORT.files.map(file => [file.path, file]));

self.addEventListener("install", event => event.waitUntil(fill()));

// Stores all files or fails. If a file is missing or damaged, the old export stays.
async function fill() {
  const store = await caches.open(storeOf(EXPORT.version));
  for (const file of EXPORT.files) {
    if (await store.match(addressOf(file))) continue;
    await keep(file, await kept(file) ?? await fetched(file), EXPORT.version);
  }
}

self.addEventListener("activate", event => event.waitUntil(takeOver()));

async function takeOver() {
  for (const name of await caches.keys())
    if (name.startsWith(storePrefix) && name !== storeOf(EXPORT.version)) await caches.delete(name);
  await self.clients.claim();
}

// The page sends this message when its user wants the new export at once.
self.addEventListener("message", event => { if (event.data === "activate") self.skipWaiting(); });

self.addEventListener("fetch", event => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== self.location.origin || !url.pathname.startsWith(folder)) return;
  const file = byPath.get(url.pathname.slice(folder.length) || "index.html");
  if (file) event.respondWith(answer(file, event.request));
});

async function answer(file, request) {
  const store = await caches.open(storeOf(EXPORT.version));
  return await store.match(addressOf(file)) ?? fetch(request);
}
