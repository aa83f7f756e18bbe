"""The automatic preset for a corpus."""

from __future__ import annotations

import pytest

from towernmt.models import settings_and_presets
from towernmt.run.automatic_options import proposed_preset


@pytest.mark.parametrize(("pairs", "gpus", "preset", "reason"), [
    (50, 0, "tiny", "there are 50 pairs, and no GPU"),
    (999_999, 0, "tiny", "there are 999,999 pairs, and no GPU"),
    (1_000_000, 0, "base", "there are 1,000,000 pairs"),
    (99_999, 1, "tiny", "there are 99,999 pairs, too few for base"),
    (100_000, 1, "base", "there are 100,000 pairs, and a GPU"),
    (4_500_000, 8, "base", "there are 4,500,000 pairs"),
])
def test_the_preset_follows_pairs_and_gpus(pairs: int, gpus: int, preset: str, reason: str) -> None:
    assert proposed_preset(pairs, gpus) == ("--preset", preset, reason)
    assert preset in settings_and_presets("transformer")[1]


@pytest.mark.parametrize(("gpus", "tokens", "preset"), [
    (0, 3e6, "mini"), (0, 20e6, "tiny"), (0, 60e6, "base"), (1, 3e6, "base")])
def test_processors_train_a_small_model_in_a_short_time(gpus: int, tokens: float, preset: str) -> None:
    assert proposed_preset(4_500_000, gpus, tokens).value == preset
