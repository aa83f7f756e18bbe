"""The clients of npm: `deepl-node` and `libretranslate`.

The environment variable TOWERNMT_NODE_CLIENTS names a directory in which `npm install deepl-node@1.28.0
libretranslate@1.0.1` was run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests.waiting import PATIENCE

LIBRETRANSLATE = """
const { translate } = require("libretranslate");
(async () => {
  const asked = { query: "guten tag", source: "de", target: "en", apiurl: process.argv[1], apiKey: "any" };
  console.log(JSON.stringify([await translate(asked), await translate({ ...asked, source: "auto" })]));
})();
"""
DEEPL = """
const deepl = require("deepl-node"), fs = require("fs"), wait = setTimeout;
// The client polls a document every 50 ms instead of every 5 s.
globalThis.setTimeout = (call, milliseconds, ...more) => wait(call, milliseconds === 5000 ? 50 : milliseconds, ...more);
(async () => {
  const client = new deepl.DeepLClient("any", { serverUrl: process.argv[1], maxRetries: 1 });
  const told = {};
  told.texts = (await client.translateText(["guten tag", "gute nacht"], "de", "en-US")).map((one) => one.text);
  told.sources = (await client.getSourceLanguages()).map((one) => one.code);
  told.targets = (await client.getTargetLanguages()).map((one) => one.code);
  told.usage = (await client.getUsage()).character.count > 0;
  const entries = new deepl.GlossaryEntries({ entries: { haus: "house" } });
  const glossary = await client.createGlossary("ours", "de", "en", entries);
  told.term = (await client.translateText("haus", "de", "en-US", { glossary })).text;
  told.entries = (await client.getGlossaryEntries(glossary)).toTsv();
  await client.deleteGlossary(glossary);
  const several = await client.createMultilingualGlossary("several", [
    { sourceLangCode: "de", targetLangCode: "en", entries }]);
  const found = await client.getMultilingualGlossaryDictionaryEntries(several, "de", "en");
  told.several = found.entries.toTsv();
  await client.deleteMultilingualGlossary(several);
  fs.writeFileSync("brief.txt", "erste zeile\\n");
  await client.translateDocument("brief.txt", "letter.txt", "de", "en-US");
  told.document = fs.readFileSync("letter.txt", "utf-8");
  try { await client.translateText("a", null, "xx"); } catch (error) { told.error = error.message; }
  console.log(JSON.stringify(told));
})();
"""


@pytest.fixture
def run(server, tmp_path):
    """Return a function that runs a script with the address of a server, and returns its output."""
    clients, node = os.environ.get("TOWERNMT_NODE_CLIENTS"), shutil.which("node")
    if not clients or node is None:
        pytest.skip("TOWERNMT_NODE_CLIENTS names no directory with npm's clients, or there is no Node")

    def done(script: str):
        found = subprocess.run([node, "-e", script, server.url], cwd=tmp_path, capture_output=True, text=True,
                               timeout=PATIENCE, env={**os.environ, "NODE_PATH": f"{clients}/node_modules"})
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    return done


@pytest.mark.processes
def test_libretranslate_speaks_with_a_server(run):
    assert run(LIBRETRANSLATE) == ["GUTEN TAG", "GUTEN TAG"]


@pytest.mark.processes
def test_deepl_node_speaks_with_a_server(run):
    told = run(DEEPL)
    assert "value for 'target_lang' not supported" in told.pop("error").lower()
    assert told == {"texts": ["GUTEN TAG", "GUTE NACHT"], "sources": ["de"], "targets": ["en-US", "en-GB"],
                    "usage": True, "term": "house", "entries": "haus\thouse", "several": "haus\thouse",
                    "document": "ERSTE ZEILE\n"}
