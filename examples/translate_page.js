// Translates lines with an exported page's own worker, outside of a browser: node translate_page.js SITE < text > translations
//
// What it says is what the page says: the worker runs as it is, with what it asks a browser for put in place.
"use strict";
const {readFileSync} = require("node:fs");
const {fileURLToPath, pathToFileURL} = require("node:url");
const {resolve} = require("node:path");
const {runInThisContext} = require("node:vm");

const site = pathToFileURL(`${resolve(process.argv[2] ?? ".")}/`);
const page = readFileSync(new URL("index.html", site), "utf-8");
const told = JSON.parse(/<script type="application\/json" id="export">(.*?)<\/script>/su.exec(page)[1]);
const file = address => fileURLToPath(new URL(new URL(address, site).pathname, site));

globalThis.self = globalThis;
self.location = new URL(told.worker, site);
self.importScripts = (...names) => names.forEach(name => runInThisContext(readFileSync(file(name), "utf-8"), name));
self.fetch = async address => new Response(readFileSync(file(address)));
self.postMessage = data => {
  if (data.error) throw Error(data.error);
  if (data.ready) self.onmessage({data: {id: 1, text: readFileSync(0, "utf-8").replace(/\n$/u, ""), html: false}});
  if (data.lines) process.stdout.write(data.lines.map(line => `${line.text}\n`).join(""));
};
self.importScripts(told.worker);
self.onmessage({data: {load: told}});
