"""An export of a run that a thread writes may fail in any way, and the graph translates meanwhile."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.core.errors import SettingsError
from towernmt.predict import background_export
from towernmt.predict.background_export import BackgroundExport


class FailingEngine:
    """An engine whose exports raise these errors, one after the other, and then succeed.

    Attributes:
        exports: number of exports that were begun.
    """

    def __init__(self, *errors: BaseException) -> None:
        self._errors, self.exports = list(errors), 0

    def open_existing(self, checkpoint: str) -> None:
        return None

    def export(self, checkpoint: str, wait: bool) -> str:
        self.exports += 1
        if self._errors:
            raise self._errors.pop(0)
        return "the search"


def background(engine: FailingEngine, export_first: bool = False) -> BackgroundExport[Any]:
    run: Any = SimpleNamespace(name="runs/x")
    return BackgroundExport(run, "model", engine, export_first)     # type: ignore[arg-type]


def translate_stream(export: BackgroundExport[Any]) -> None:
    assert list(export.export_during(iter("abc"))) == ["a", "b", "c"]
    for thread in threading.enumerate():
        if thread.name == "export":
            thread.join()


@pytest.mark.parametrize("error", [
    RuntimeError("two\nlines"), ValueError("two\nlines"), MemoryError("two\nlines"), OSError("two\nlines")],
    ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("export_first", [True, False], ids=["first", "in a thread"])
def test_a_failure_that_may_pass_is_one_sentence_and_a_later_stream_tries_again(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, export_first: bool
        ) -> None:
    engine = FailingEngine(error)
    export = background(engine, export_first)
    if not export_first:
        translate_stream(export)
    [message] = caplog.messages
    assert message.startswith("runs/x: TensorFlow's graph is used, because the export failed with ")
    assert f"{type(error).__name__}: two lines. The export is tried again after 10 minutes." in message
    assert export.result is None
    translate_stream(export)
    assert engine.exports == 1 and export.result is None       # not in each stream
    monkeypatch.setattr(background_export, "time", SimpleNamespace(monotonic=lambda: float("inf")))
    translate_stream(export)
    assert engine.exports == 2 and export.result == "the search"


def test_a_model_that_the_engine_cannot_express_is_not_exported_again(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "towernmt")
    engine = FailingEngine(SettingsError("two of its tokens have the same text."))
    export = background(engine)
    translate_stream(export)
    monkeypatch.setattr(background_export, "time", SimpleNamespace(monotonic=lambda: float("inf")))
    translate_stream(export)
    assert engine.exports == 1 and export.result is None
    assert caplog.messages == ["runs/x: TensorFlow's graph is used: two of its tokens have the same text."]
