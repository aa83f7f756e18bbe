"""Compare translations of the browser engines with an 8-bit search in NumPy, for a model with random weights.

fxtranslate is a package of Python. The wasm is npm's @browsermt/bergamot-translator, whose directory the environment
variable TOWERNMT_BERGAMOT names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece

from tests.interop.marian_npz import read_npz
from tests.waiting import PATIENCE
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.interop.export import export_model
from towernmt.interop.marian_model import MarianModel
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.search_settings import SearchSettings

SENTENCES = ["the cat sat on the mat", "a dog saw the cat", "the dog sat", "a mat is on a dog", "cats see dogs"]
VOCABULARY = learn_sentence_piece(SENTENCES, "unigram", 30)
SETTINGS = TransformerSettings(
    hidden_size=64, filter_size=128, heads=4, encoder_layers=2, decoder_layers=2, decoder_cell="ssru", preprocess="",
    postprocess="drn", start="zero", source_vocab_size=VOCABULARY.size, target_vocab_size=VOCABULARY.size)
WORKER = """
const {Worker} = require('worker_threads'), {readFileSync} = require('fs');
const [worker, place] = process.argv.slice(2), engine = new Worker(worker);
const call = (name, ...args) => new Promise((resolve, reject) => {
  engine.once('message', ({result, error}) => error ? reject(Error(error.message)) : resolve(result));
  engine.postMessage({id: 1, name, args});
});
const bytes = name => new Uint8Array(readFileSync(place + '/' + name)).buffer;
(async () => {
  const told = JSON.parse(readFileSync(place + '/towernmt.json'));
  await call('initialize', {});
  await call('loadTranslationModel', {from: 'a', to: 'b'}, {model: bytes(told.model), vocabs: [bytes('vocab.spm')],
    shortlist: told.shortlist ? bytes(told.shortlist) : new ArrayBuffer(0)});
  const texts = readFileSync(0, 'utf-8').trimEnd().split('\\n').map(text => ({text, html: false}));
  const found = await call('translate', {models: [{from: 'a', to: 'b'}], texts});
  console.log(JSON.stringify(found.map(({target}) => target.text)));
  await engine.terminate();
})();
"""


class Int8Model(MarianModel):
    """A model whose matrix products are rounded to 8 bits, as in intgemm."""

    def __init__(self, parameters: dict[str, np.ndarray], options: dict[str, Any], largest: dict[str, float]) -> None:
        super().__init__(parameters, options)
        self._alphas = {name: 127 / value for name, value in largest.items()}
        for name, table in (("Wemb", parameters["Wemb"]),):
            scale = 127 / np.abs(table).max()
            self._p = {**parameters, name: (np.rint(table * scale) / scale).astype(np.float32)}
            self._source_table = self._target_table = self._output = self._p[name]

    def _multiply(self, x: np.ndarray, matrix: np.ndarray, name: str) -> np.ndarray:
        alpha, scale = self._alphas[name], 127 / np.abs(matrix).max()
        rounded = np.clip(np.rint(x * alpha), -127, 127) @ np.rint(matrix * scale)
        return (rounded / (alpha * scale)).astype(np.float32)


@pytest.fixture(scope="module", params=[False, True], ids=["all words", "with a shortlist"])
def exported(request, tmp_path_factory) -> tuple[Path, list[str]]:
    """An export, and the translations of `SENTENCES` that an engine should return."""
    path = tmp_path_factory.mktemp("marian")
    (path / "run").mkdir()
    random = np.random.default_rng(5)
    values = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in variables()}
    trained = SimpleNamespace(
        model=Transformer(SETTINGS), weights=lambda: values, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY,
        run=SimpleNamespace(architecture=lambda: "transformer", vocabulary=path / "run", source_prefix=""),
        uses_averages=True, checkpoint=str(path / "step-1/model"))
    (path / "text").write_text("\n".join(SENTENCES) + "\n")
    search = SearchSettings()
    if request.param:
        ids = np.arange(4, VOCABULARY.size)
        entries = Entries(ids, ids, np.ones(len(ids)), np.ones(VOCABULARY.size))
        Lexicon.of(entries, VOCABULARY, VOCABULARY).save(path / "lexicon")
        search = SearchSettings(shortlist=str(path / "lexicon"), shortlist_frequent=VOCABULARY.size)
    int8 = export_model(trained, "marian", path / "int8", precision="int8", search=search,
                          calibration=path / "text")
    whole = export_model(trained, "marian", path / "whole", search=SearchSettings())
    parameters, options = read_npz(whole / "model.npz")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(whole / "vocab.spm"))
    plain = MarianModel(parameters, options)
    encoded = [[*pieces.encode(text), 0] for text in SENTENCES]
    for ids in encoded:
        plain.greedy(ids, 2 * (len(ids) - 1) + 10)
    model = Int8Model(parameters, options, {name: max(seen) for name, seen in plain.largest_inputs.items()})
    return int8, [pieces.decode([id for id in model.greedy(ids, 2 * len(ids)) if id]) for ids in encoded]


def variables() -> list[tuple[str, tuple[int, ...]]]:
    depth, inner, size = SETTINGS.hidden_size, SETTINGS.filter_size, VOCABULARY.size
    found: list[tuple[str, tuple[int, ...]]] = [("embedding", (size, depth)), ("softmax_bias", (size,))]
    for stack, sublayers in (("encoder", {"self_attention": {"qkv/kernel": (depth, 3 * depth)}}), ("decoder", {
            "ssru": {"projection/kernel": (depth, 2 * depth), "forget_bias": (depth,)},
            "source_attention": {"query/kernel": (depth, depth), "kv/kernel": (depth, 2 * depth)}})):
        feed = {"inner/kernel": (depth, inner), "inner/bias": (inner,), "outer/kernel": (inner, depth),
                "outer/bias": (depth,)}
        for layer in range(2):
            for name, parts in {**sublayers, "feed_forward": feed}.items():
                if "attention" in name:
                    parts = {**parts, "output/kernel": (depth, depth)}
                scope = f"{stack}/layer_{layer}/{name}"
                found += [(f"{scope}/{part}", shape) for part, shape in parts.items()]
                found += [(f"{scope}_post_norm/{part}", (depth,)) for part in ("scale", "offset")]
    return [(f"transformer/{name}", shape) for name, shape in found]


def check(found: list[str], expected: list[str]) -> None:
    """The engines have different maximum lengths for translations without EOS."""
    assert len(found) == len(expected)
    same = [min(len(a), len(b)) > 3 and (a.startswith(b[:-2]) or b.startswith(a[:-2]))
            for a, b in zip(found, expected, strict=True)]
    assert sum(same) >= len(same) - 1, list(zip(found, expected, strict=True))


@pytest.mark.thorough
def test_fxtranslate_says_what_an_8_bit_search_in_numpy_says(exported):
    fxtranslate = pytest.importorskip("fxtranslate")
    path, expected = exported
    vocabulary = (path / "vocab.spm").read_bytes()
    shortlist = path / "lex.s2t.bin"
    engine = fxtranslate.Translator((path / "model.intgemm.alphas.bin").read_bytes(), vocabulary, vocabulary,
                                    shortlist.read_bytes() if shortlist.is_file() else None)
    check([engine.translate(text) for text in SENTENCES], expected)


@pytest.mark.processes
def test_the_wasm_of_bergamot_says_what_an_8_bit_search_in_numpy_says(exported, tmp_path):
    package, node = os.environ.get("TOWERNMT_BERGAMOT"), shutil.which("node")
    if not package or node is None:
        pytest.skip("TOWERNMT_BERGAMOT names no @browsermt/bergamot-translator, or there is no Node")
    path, expected = exported
    worker = tmp_path / "worker"
    shutil.copytree(Path(package) / "worker", worker)
    for directory in (worker, tmp_path):
        (directory / "package.json").write_text('{"type": "commonjs"}')
    (tmp_path / "run.js").write_text(WORKER)
    done = subprocess.run([node, "run.js", str(worker / "translator-worker.js"), str(path)], cwd=tmp_path,
                          input="\n".join(SENTENCES) + "\n", capture_output=True, text=True, timeout=PATIENCE,
                          check=True)
    check(json.loads(done.stdout.splitlines()[-1]), expected)
