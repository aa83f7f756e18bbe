"""The search in LiteRT's builtin operations, run by `ai-edge-litert`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import PATIENCE
from towernmt.core.directories import EXPORT_DESCRIPTION
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.interop import litert
from towernmt.interop.export import ExportJob, export_model
from towernmt.interop.litert import replace_new_axes, run_litert
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator

pytest.importorskip("ai_edge_litert")

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "exporting.md"
PLAIN: dict[str, Any] = {"beam_size": 3, "n_best": 2}
RULES: dict[str, Any] = {"beam_size": 4, "beam_groups": 2, "n_best": 3, "temperature": 1.3, "repetition_penalty": 1.2,
                         "no_repeat_ngram": 2, "min_length_factor": 0.7, "max_length_factor": 1.0,
                         "length_normalization": "average", "coverage_penalty": 0.2, "stopping": "first"}


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [      # the program of the manual searches with a plain beam
    pytest.param(PLAIN, id="plain", marks=pytest.mark.slow), pytest.param(RULES, id="rules"),
    pytest.param({"beam_size": 1}, id="greedy", marks=pytest.mark.slow)])
def test_a_converted_search_gives_the_hypotheses_of_the_translator(
        run_on_disk: Path, tmp_path: Path, lines: list[str], settings: dict[str, Any]) -> None:
    translator = Translator(run_on_disk, checkpoint="step-1", **settings, engine="graph")
    with TrainedModel(run_on_disk, "step-1") as trained:
        path = export_model(trained, "litert", tmp_path / "lite", search=translator.search)
    model = (path / json.loads((path / EXPORT_DESCRIPTION).read_text())["file"]).read_bytes()
    for some in (lines, lines[3:4]):
        source, length = pad_sentences(translator.source_vocabulary.encode_batch(some))
        found = run_litert(model, {"source": source, "source_length": length})
        tokens, scores = translator.predictor(source, length)
        np.testing.assert_array_equal(found["tokens"], tokens)
        np.testing.assert_allclose(found["scores"], scores, rtol=1e-4)


def test_a_missing_package_is_reported_before_the_conversion(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    monkeypatch.setattr(litert, "search_graph", lambda job: pytest.fail("the graph was built"))
    with TrainedModel(run_on_disk, "step-1") as trained, pytest.raises(SettingsError, match=r"towernmt\[litert\]"):
        export_model(trained, "litert", tmp_path / "lite")


def test_sampling_is_refused(run_on_disk: Path, tmp_path: Path) -> None:
    with TrainedModel(run_on_disk, "step-1") as trained, pytest.raises(SettingsError, match="selection=sampling"):
        export_model(trained, "litert", tmp_path / "lite", search=SearchSettings(selection="sampling"))


@pytest.mark.thorough
def test_an_operation_that_litert_does_not_have_is_named(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TrainedModel(run_on_disk, "step-1") as trained:
        encode = trained.model.encode

        def with_digamma(source: Any, source_length: Any) -> Any:
            return tf.nest.map_structure(lambda x: x + 0 * tf.math.digamma(x), encode(source, source_length))

        monkeypatch.setattr(trained.model, "encode", with_digamma)
        with pytest.raises(SettingsError, match="Digamma"):
            litert.write(ExportJob(trained, SearchSettings(beam_size=1), "float32", tmp_path))


@pytest.mark.parametrize(("error", "reported"), [
    pytest.param(MemoryError(), MemoryError, marks=pytest.mark.thorough), (RuntimeError(), SettingsError)])
def test_an_error_of_the_converter_without_a_message_is_reported(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception,
        reported: type[Exception]) -> None:
    class Converter:
        def convert(self) -> bytes:
            raise error

    monkeypatch.setattr(tf1.lite.TFLiteConverter, "from_session", lambda *_: Converter())
    with TrainedModel(run_on_disk, "step-1") as trained, pytest.raises(reported):
        litert.write(ExportJob(trained, SearchSettings(beam_size=1), "float32", tmp_path))


@pytest.mark.thorough
def test_a_conversion_that_goes_wrong_without_a_word_is_refused(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_graph = litert.frozen_graph

    def other_weights(search: Any) -> Any:
        frozen = frozen_graph(search)
        for node in frozen.node:
            value = node.attr["value"].tensor
            if node.op == "Const" and value.dtype == tf.float32.as_datatype_enum and len(value.tensor_shape.dim) == 2:
                value.CopyFrom(tf.make_tensor_proto(-tf.make_ndarray(value)))
        return frozen

    monkeypatch.setattr(litert, "frozen_graph", other_weights)
    with TrainedModel(run_on_disk, "step-1") as trained, pytest.raises(SettingsError, match="changed this search"):
        litert.write(ExportJob(trained, SearchSettings(beam_size=1), "float32", tmp_path))


def test_slices_that_only_make_new_axes_become_expand_dims_also_in_loops(graph: Any) -> None:
    x = tf1.placeholder(tf.float32, [None, 3], "x")
    made = {"both": x[None, :, None], "behind": x[..., None, None], "before": x[:, None], "cut": x[:, 1:, None],
            "loop": tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, y + tf.reduce_sum(y[:, None, None], [1, 2])),
                                  (0, x))[1]}
    outputs = [tf.identity(tensor, name) for name, tensor in made.items()]
    changed = replace_new_axes(graph.as_graph_def())
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tf1.Session() as session:
        expected = session.run(outputs, {x: values})
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.import_graph_def(changed, name="")
        for one, other in zip(session.run([f"{name}:0" for name in made], {"x:0": values}), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    left = [node.name for nodes in (changed.node, *(f.node_def for f in changed.library.function)) for node in nodes
            if node.op == "StridedSlice" and node.attr["new_axis_mask"].i]
    assert len(left) == 1       # the one that cuts


@pytest.mark.processes
def test_the_program_of_the_manual_translates_with_litert_alone(
        run_on_disk: Path, lines: list[str], tmp_path: Path) -> None:
    program = re.search(r"^```python\n(\"\"\"Translate standard input with LiteRT.*?)^```", PAGE.read_text(),
                        re.M | re.S)
    assert program is not None
    with TrainedModel(run_on_disk, "step-1") as trained:
        path = export_model(trained, "litert", tmp_path / "lite")
    blocked = "import sys; sys.modules.update(towernmt=None, tensorpack=None, tensorflow=None)\n"
    (tmp_path / "translate_lite.py").write_text(blocked + program[1])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    lines = [*lines, "w1\u2028w2\x85w3\fw4\rw5"]      # characters that end a line for `str.splitlines`
    expected = Translator(run_on_disk, checkpoint="step-1", engine="graph").translate(lines)
    for text, translations in (("\ufeff" + "".join(f"{line}\n" for line in lines), expected), ("", [])):
        done = subprocess.run([sys.executable, "translate_lite.py", str(path)], input=text.encode(), cwd=tmp_path,
                              capture_output=True, env=environment, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode().splitlines() == translations
