"""Compare scores of sentence pairs by CTranslate2 with those of the TensorFlow graph."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer
from towernmt.predict.scorer import Scorer


def test_scores_are_those_of_the_graph_here(original_run: Path, tmp_path: Path, lines: list[str]) -> None:
    run = shutil.copytree(original_run, tmp_path / "run")
    pairs = [*zip(lines, reversed(lines), strict=True), ("w1 unseen", "")]
    expected = Scorer(run, device="cpu").score(pairs, per_token=True)
    scorer = CTranslate2Scorer(run, device="cpu", batch_tokens=30)
    for ours, theirs in zip(expected, scorer.score(pairs, per_token=True), strict=True):
        assert theirs.pieces == ours.pieces and theirs.tokens == ours.tokens
        assert theirs.log_prob == pytest.approx(ours.log_prob, abs=1e-4)
        np.testing.assert_allclose(theirs.log_probs or (), ours.log_probs or (), atol=1e-5)
    with pytest.raises(SettingsError, match="Sentences of 2,001 tokens"):
        scorer.score([("w1", "w2 " * 2000)])
