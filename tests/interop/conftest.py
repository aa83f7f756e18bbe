"""A run of a tiny Transformer with random weights, whose vocabularies are words."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from tensorpack.tfutils.tower import PredictTowerContext

from tests.variables import assign
from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer

WORDS = [f"w{i}" for i in range(16)]
SIZES = {"hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture(scope="session")
def original_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run whose translations end early. Tests use copies of it, because engines write exports into runs."""
    return write_run(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def run_on_disk(original_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy `original_run` for the tests of a module, which may write exports into it."""
    return Path(shutil.copytree(original_run, tmp_path_factory.mktemp("copy") / "run"))


def write_run(path: Path, end: float = 0.0, vocabulary: Vocabulary | None = None) -> Path:
    """Write a run with random weights.

    Args:
        path: its directory.
        end: addend of the logit of EOS.
        vocabulary: vocabulary of both languages; None for `WORDS`.
    """
    vocabulary = vocabulary or WordVocabulary([*SPECIAL_PIECES, *WORDS])
    save_vocabularies(vocabulary, vocabulary, path / "vocabulary")
    model = {**SIZES, "source_vocab_size": vocabulary.size, "target_vocab_size": vocabulary.size}
    (path / "settings.yaml").write_text(yaml.safe_dump({
        "architecture": "transformer", "model": model, "search": {"beam_size": 4, "max_length_constant": 4}}))
    with tf1.Graph().as_default(), PredictTowerContext(""):
        tower = Transformer(TransformerSettings(**model))  # type: ignore[arg-type]
        tower.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in tower.inputs()])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            random = np.random.default_rng(3)
            values = {variable.op.name: random.normal(0, 0.6, variable.shape.as_list())
                      for variable in tf1.trainable_variables()}
            (bias,) = [value for name, value in values.items() if name.endswith("softmax_bias")]
            bias[[PAD, BOS]] = -20.0        # a trained model never generates these
            bias[EOS] += end
            assign(session, values)
            write_checkpoint(tf1.train.Saver(), session, path / "checkpoints", 1,
                             {"step": 1, "position": None, "callbacks": {}})
    return path


@pytest.fixture(scope="session")
def lines() -> list[str]:
    """Return sentences of several lengths, one of them twice, and a blank line."""
    random = np.random.default_rng(1)
    sentences = [" ".join(random.choice(WORDS, length)) for length in (1, 3, 3, 5, 5, 5, 8, 12, 2, 7)]
    return [*sentences, "", sentences[3]]
