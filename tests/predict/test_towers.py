"""Searches that lines request: each is built once, and a warning reports too many."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from towernmt.predict import search_towers as module
from towernmt.predict.search.decoding_tower import decoding_for
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search_towers import MANY_SEARCHES, GraphSearch


def test_a_search_is_built_once_and_many_different_ones_are_warned_of(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    built: list[int] = []

    def tower(self: GraphSearch, settings: SearchSettings, extra_inputs: frozenset[str]) -> Any:
        built.append(settings.min_length)
        return lambda **inputs: (np.zeros([1, 1, 1]), np.zeros([1, 1]))

    monkeypatch.setattr(module.GraphSearch, "_tower", tower)
    trained: Any = SimpleNamespace(model=SimpleNamespace(encoder_inputs=list), checkpoint="", device=None,
                                   source_vocabulary=None, target_vocabulary=None)
    search = GraphSearch(trained, trained, decoding_for, SearchSettings())
    with caplog.at_level(logging.WARNING):
        for length in [*range(1, MANY_SEARCHES), *range(1, MANY_SEARCHES)]:
            search.with_settings({"min_length": length})()
        assert built == list(range(1, MANY_SEARCHES)) and not caplog.messages
        for length in (MANY_SEARCHES, MANY_SEARCHES + 1):
            search.with_settings({"min_length": length})()
    message, = caplog.messages
    assert message.startswith(f"The lines request {MANY_SEARCHES} different searches.")
