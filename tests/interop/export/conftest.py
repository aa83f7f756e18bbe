"""A run on disk with random weights and SentencePiece vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tensorpack.tfutils.tower import PredictTowerContext

from tests.variables import assign_random
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.models import architecture, make_model

LINES = ["der hund schläft", "", "die katze sieht den hund", "ein kleiner vogel singt am morgen",
         "am morgen schläft die katze", "der vogel sieht ein kleines haus", "das haus ist klein", "den hund"]
STUDENT = {"hidden_size": 64, "filter_size": 128, "heads": 4, "encoder_layers": 2, "decoder_layers": 2,
           "decoder_cell": "ssru", "preprocess": "", "postprocess": "drn", "start": "zero"}
SIZES = {"hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def random_run(path: Path, name: str = "transformer", sizes: dict[str, Any] | None = None) -> Path:
    """Write a run of a tiny model: settings, vocabularies and one checkpoint, `step-1`."""
    vocabulary = learn_sentence_piece([line for line in LINES if line] * 5, "unigram", 60)
    save_vocabularies(vocabulary, vocabulary, path / "vocabulary")
    model = {**(SIZES if sizes is None else sizes), "source_vocab_size": vocabulary.size,
             "target_vocab_size": vocabulary.size}
    search = {"beam_size": 3, "length_penalty": 0.3, "max_length_constant": 4}
    (path / "settings.yaml").write_text(yaml.safe_dump({"architecture": name, "model": model, "search": search}))
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    with tf1.Graph().as_default(), PredictTowerContext(""):
        tower = make_model(name, architecture(name).settings(**model))
        tower.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in tower.inputs()])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assign_random(session, np.random.default_rng(1), 0.5)       # far from uniform: no two scores are close
            tf1.train.Saver().save(session, str(path / "checkpoints/step-1/model"), write_meta_graph=False)
    return path


@pytest.fixture(scope="session")
def run_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny Transformer."""
    return random_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def student_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny student that the browser engines support."""
    return random_run(tmp_path_factory.mktemp("student"), sizes=STUDENT)


@pytest.fixture(scope="session")
def lines() -> list[str]:
    """The text from which the run's vocabularies were learned, and a blank line."""
    return LINES
