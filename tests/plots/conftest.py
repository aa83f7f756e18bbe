"""Runs on disk: the records of `Progress` and of validations, and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("name", rows, settings)` writes a run below `tmp_path`, and returns its directory."""

    def make(name: str, rows: Sequence[Mapping[str, Any]] = (), settings: Mapping[str, Any] | None = None) -> Path:
        path = tmp_path / name
        (path / "log").mkdir(parents=True)
        if rows:
            (path / "log" / "stats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (path / "settings.yaml").write_text(yaml.safe_dump(dict(settings or {"architecture": "transformer"})))
        return path

    return make


@pytest.fixture
def rows() -> list[dict[str, float]]:
    """Return rows of ten minutes at 1,000 tokens per second, with one minute of validation after the fifth."""
    return [{"nll": 8.0 / minute, "learning_rate": 0.001, "target_tokens_per_second": 1000.0, "steps_per_second": 1.0,
             "target_tokens_trained": 60_000.0 * minute, "minutes_trained": minute + (minute > 5), "epoch_num": 1,
             "global_step": 60 * minute,
             **({"validation_bleu": 2.0 * minute, "validation_loss": 4.0 - abs(minute - 5)} if minute % 5 == 0 else {})}
            for minute in range(1, 11)]
