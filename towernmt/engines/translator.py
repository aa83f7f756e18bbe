"""A trained run, or an export of one, as a translator by CTranslate2; without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from towernmt.checkpoint.packaged.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.engines.export_cache import Wanted, exported
from towernmt.engines.exported import FORMAT, Description, ExportedModel, is_export
from towernmt.engines.refusals import check_line, check_search, checked_lines
from towernmt.engines.search import CTranslate2Search
from towernmt.export.formats import export_format
from towernmt.predict.decoding.settings import SearchSettings, StreamSettings
from towernmt.predict.hypotheses import Translation
from towernmt.predict.line_translator import LineTranslator, search_settings
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.predict.reranking.reranker import Reranker


class CTranslate2Translator(LineTranslator):
    """Translates text by CTranslate2.

    Attributes:
        checkpoint: the run's checkpoint (TensorFlow's prefix), or the directory of the export.
    """

    def __init__(self, model: str | Path | SavedRun, beam_size: int | None = None, *, n_best: int | None = None,
                 checkpoint: str | None = None, precision: str | None = None, device: str | None = None,
                 stream: StreamSettings = StreamSettings(), options: LineOptions = PLAIN,  # noqa: B008 -- immutable
                 retry: bool = False, reranker: Reranker | None = None, log_probs: bool = False,
                 trust_code: bool = False, **search: Any) -> None:
        """
        Args:
            model: a training run (its --logdir), which is exported when it is first needed, an export, or a package: of
                its exports the one in this precision, else it is exported as a run is.
            precision: of the weights: float32, bfloat16, float16, int16 or int8; by default that of the export, of a
                package's first one, else float32.
            device: "cpu", "gpu" or "gpu:N"; by default a GPU if CTranslate2 sees one.
            beam_size, n_best, checkpoint, stream, options, retry, reranker, log_probs, trust_code, search: as of
                `Translator`.
        Raises:
            CheckpointError: there is no such checkpoint.
            SettingsError: CTranslate2 is not installed, or cannot do what is asked for; or a value that cannot work.
        """
        opened = open_exported(model, trust_code)
        saved = opened.group("search", SearchSettings()) if isinstance(opened, SavedRun) else (
            Description.read(opened).search)
        settings = search_settings(saved, beam_size, n_best, search)
        check_search(settings)      # before the run is exported, which takes longer
        check_line(options, settings)
        self.model, checkpoint = open_model(opened, checkpoint, precision, settings.averaged, device,
                                            threads=1 if stream.window == 1 else stream.threads)
        # What is read ahead goes to the engine at once, which cuts it into batches for its threads.
        everything = dataclasses.replace(stream, batch_sentences=stream.window, batch_tokens=2 ** 62, threads=1,
                                         shares=1)
        super().__init__(CTranslate2Search(self.model, settings, stream, log_probs), self.model.source_vocabulary,
                         self.model.target_vocabulary, checkpoint=checkpoint, search=settings, stream=everything,
                         options=options, retry=retry, reranker=reranker)

    def translate_stream(self, lines: Iterable[str | bytes], name: str = "input", inputs: Any = None,
                         options: Iterable[LineOptions] | None = None, first: int = 1) -> Iterator[Translation]:
        """As of `LineTranslator`; what CTranslate2 cannot do for a line is an error that names the line."""
        if options is not None:
            options = checked_lines(options, self.search, name, first)
        return super().translate_stream(lines, name, inputs, options, first)


def open_exported(model: str | Path | SavedRun, trust_code: bool = False) -> Path | SavedRun:
    """An export as its directory; of a run or a package, the run."""
    if isinstance(model, SavedRun) or not is_export(model):
        return open_run(model, trust_code)
    return Path(model)


def open_model(model: Path | SavedRun, checkpoint: str | None, precision: str | None, averaged: bool,
               device: str | None, threads: int = 0) -> tuple[ExportedModel, str]:
    """The model of a run or of an export, and the checkpoint that it is of.

    Args:
        model: as `open_exported` gives it.
        checkpoint, precision, device: as of `CTranslate2Translator`.
        averaged: whether the moving averages of the weights are taken.
        threads: as of `ExportedModel`.
    Raises:
        CheckpointError: there is no such checkpoint.
        SettingsError: see `CTranslate2Translator`.
    """
    if isinstance(model, PackagedRun):
        model.check_weights(averaged)
        model = (model.included_export(FORMAT, precision) if checkpoint is None else None) or model
    if not isinstance(model, SavedRun):
        _check_export(model, checkpoint, precision, averaged)
        return ExportedModel(model, device, threads), str(model)
    precisions = export_format(FORMAT).precisions
    precision = precision or precisions[0]
    if precision not in precisions:
        raise SettingsError(f"--precision {precision}: CTranslate2 has {', '.join(precisions)}.")
    with exported(Wanted(model, checkpoint, averaged, FORMAT, precision)) as (place, prefix):
        return ExportedModel(place, device, threads), prefix


def _check_export(place: Path, checkpoint: str | None, precision: str | None, averaged: bool) -> None:
    """Refuse to take an export for another one."""
    told = Description.read(place)
    if checkpoint is not None:
        raise SettingsError(f"--checkpoint {checkpoint}: {place} is an export, which holds one checkpoint. Leave it "
                            "out, or pass the run as --model.")
    if precision not in (None, told.precision):
        raise SettingsError(f"--precision {precision}: {place} is an export in {told.precision}. Leave it out, or pass "
                            "the run as --model.")
    if told.averaged and not averaged:
        raise SettingsError(f"--last-weights: {place} is an export of the averaged weights. Leave it out, or pass the "
                            "run as --model.")
