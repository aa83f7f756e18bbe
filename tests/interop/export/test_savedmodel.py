"""The search as a SavedModel, run by TensorFlow alone."""

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
from towernmt.interop.export import ExportJob, export_model
from towernmt.interop.savedmodel import search_graph
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "exporting.md"


OTHER_LINE_ENDS = "w1\u2028w2\x85w3\fw4\rw5"
"""A line with characters that end a line for `str.splitlines`."""


@pytest.fixture(scope="module")
def exported(run_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Translate with the search settings of the run."""
    with TrainedModel(run_on_disk, "step-1") as trained:
        return export_model(trained, "savedmodel", tmp_path_factory.mktemp("export") / "saved")


@pytest.fixture(scope="module")
def translator(run_on_disk: Path) -> Translator:
    return Translator(run_on_disk, checkpoint="step-1", engine="graph")


def batch(translator: Translator, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    ids, length = pad_sentences(translator.source_vocabulary.encode_batch(lines))
    return ids, length


@pytest.mark.thorough
def test_plain_tensorflow_gives_the_arrays_that_the_translator_gets(
        exported: Path, translator: Translator, lines: list[str]) -> None:
    about = json.loads((exported / EXPORT_DESCRIPTION).read_text())
    with tf1.Session(graph=tf.Graph()) as session:
        signature = tf1.saved_model.loader.load(session, about["tags"], str(exported)).signature_def[about["signature"]]
        inputs = {name: session.graph.get_tensor_by_name(info.name) for name, info in signature.inputs.items()}
        outputs = {name: session.graph.get_tensor_by_name(info.name) for name, info in signature.outputs.items()}
        for some in (lines, lines[3:4]):
            arrays = dict(zip(("source", "source_length"), batch(translator, some), strict=True))
            found = session.run(outputs, {tensor: arrays[name] for name, tensor in inputs.items()})
            tokens, scores = translator.predictor(*arrays.values())
            np.testing.assert_array_equal(found["tokens"], tokens)
            np.testing.assert_array_equal(found["scores"], scores)
    for told, tensors in ((about["inputs"], inputs), (about["outputs"], outputs)):
        assert told == {name: {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
                        for name, tensor in tensors.items()}


def test_a_model_that_calls_python_is_refused(run_on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TrainedModel(run_on_disk, "step-1") as trained:
        encode = trained.model.encode

        def with_python(source: Any, source_length: Any) -> Any:
            return encode(tf.reshape(tf1.py_func(lambda x: x, [source], tf.int32), tf.shape(source)), source_length)

        monkeypatch.setattr(trained.model, "encode", with_python)
        with pytest.raises(SettingsError, match="calls a Python function"):
            search_graph(ExportJob(trained, SearchSettings(beam_size=1), "float32", run_on_disk))


@pytest.mark.processes
def test_the_program_of_the_manual_translates_without_towernmt(
        exported: Path, translator: Translator, lines: list[str], tmp_path: Path) -> None:
    program = re.search(r"^```python\n(\"\"\"Translate standard input with a SavedModel.*?)^```", PAGE.read_text(),
                        re.M | re.S)
    assert program is not None
    blocked = "import sys; sys.modules.update(towernmt=None, tensorpack=None)\n"
    (tmp_path / "translate_saved.py").write_text(blocked + program[1])
    text = "\ufeff" + "".join(f"{line}\n" for line in [*lines, OTHER_LINE_ENDS])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "translate_saved.py", str(exported)], input=text.encode(), cwd=tmp_path,
                          capture_output=True, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == translator.translate([*lines, OTHER_LINE_ENDS])
