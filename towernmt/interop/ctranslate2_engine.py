"""Translate and score with CTranslate2, without TensorFlow.

The results equal those of the built-in search. Settings and options that CTranslate2 does not support are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import is_export
from towernmt.core.errors import SettingsError
from towernmt.core.unfinished_work import unfinished_work
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.interop.ctranslate2_loader import FORMAT, Description, ExportedModel
from towernmt.interop.ctranslate2_requests import check_line, check_requests, check_search
from towernmt.interop.ctranslate2_search import CTranslate2Search
from towernmt.interop.export import UnsupportedModelError, export_format
from towernmt.interop.export_cache import ExportSpec, exported_run
from towernmt.predict.line_translator import LineTranslator, languages_of, search_settings, with_default_prefix
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest
from towernmt.predict.lines.unknown_words import UnknownWords
from towernmt.predict.pair_scorer import PairScorer, token_batches
from towernmt.predict.reranking import Reranker
from towernmt.predict.search.search_settings import (
    SearchSettings,
    SpecialLineSettings,
    StreamSettings,
    limit_hypotheses,
)


class CTranslate2Scorer(PairScorer):
    """A scorer of sentence pairs that uses CTranslate2.

    Args:
        model, precision, device, trust_code: see `CTranslate2Translator`.
        checkpoint, averaged, batch_tokens: see `Scorer`.

    Attributes:
        checkpoint: prefix of the run's checkpoint files, or directory of the export.
    """

    def __init__(self, model: str | Path | SavedRun, checkpoint: str | None = None, *, precision: str | None = None,
                 device: str | None = None, averaged: bool = True, batch_tokens: int = 4096,
                 trust_code: bool = False) -> None:
        self._model, checkpoint = load_exported_model(
            open_export_or_run(model, trust_code), checkpoint, precision, averaged, device)
        super().__init__(self._model.source_vocabulary, self._model.target_vocabulary, checkpoint, batch_tokens)
        self.max_length = self._model.description.positions

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        model = self._model
        sizes = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
        model.check_length(max(sizes, default=0), "Leave out --engine to score them with TensorFlow's graph.")
        scores: list[tuple[float, np.ndarray]] = [(0.0, np.empty(0))] * len(sources)
        with unfinished_work():
            started = [(batch, model.engine.score_batch(
                [model.source_tokens(sources[i]) for i in batch], [model.target_tokens(targets[i]) for i in batch],
                max_input_length=0, asynchronous=True)) for batch in token_batches(sizes, self._batch_tokens)]
            for batch, results in started:
                for i, result in zip(batch, results, strict=True):
                    log_probs = np.array(result.result().log_probs)
                    scores[i] = float(log_probs.sum()), log_probs
        return scores


class CTranslate2Translator(LineTranslator):
    """A translator of text that uses CTranslate2.

    Args:
        model: a training run (its --logdir), an export, or a package. A run is exported when it is first used. Of a
            package, the export with the requested precision is used; without one, the package is exported like a run.
        precision: precision of the weights: float32, bfloat16, float16, int16 or int8; None for the precision of the
            export, of the package's first export, or float32.
        device: "cpu", "gpu" or "gpu:N"; None for a GPU if CTranslate2 finds one.
        beam_size, n_best, checkpoint, stream, options, retry, reranker, replace_unknown, log_probs, attention,
            trust_code, special_lines, languages, search: see `Translator`.

    Attributes:
        checkpoint: prefix of the run's checkpoint files, or directory of the export.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: CTranslate2 is not installed or does not support a request, or a value is invalid.
    """

    def __init__(self, model: str | Path | SavedRun, beam_size: int | None = None, *, n_best: int | None = None,
                 checkpoint: str | None = None, precision: str | None = None, device: str | None = None,
                 stream: StreamSettings = StreamSettings(), options: LineOptions = PLAIN,  # noqa: B008 -- immutable
                 retry: bool = False, reranker: Reranker | None = None,
                 replace_unknown: bool | Mapping[str, str] = False, log_probs: bool = False, attention: bool = False,
                 trust_code: bool = False,
                 special_lines: SpecialLineSettings = SpecialLineSettings(),  # noqa: B008 -- immutable
                 languages: tuple[str, str] | None = None, **search: Any) -> None:
        opened = open_export_or_run(model, trust_code)
        if isinstance(opened, SavedRun):
            saved, source_prefix = opened.group("search", SearchSettings()), opened.source_prefix
        else:
            description = Description.read(opened)
            saved, source_prefix = description.search, description.source_prefix
        settings = search_settings(saved, beam_size, n_best, search)
        options = with_default_prefix(options, source_prefix)
        check_search(settings)      # before the export, which takes longer
        check_line(options, settings)
        stream = limit_hypotheses(stream, settings)
        self.model, checkpoint = load_exported_model(opened, checkpoint, precision, settings.averaged, device,
                                                     threads=1 if stream.window == 1 else stream.threads)
        self.engine = self.model.name
        attention = attention or replace_unknown is not False
        vocabularies = self.model.source_vocabulary, self.model.target_vocabulary
        fast_search = CTranslate2Search(self.model, settings, stream, log_probs, attention)
        fast_search.check_longest()
        super().__init__(
            fast_search, *vocabularies, checkpoint=checkpoint, search=settings, stream=stream, options=options,
            retry=retry, reranker=reranker,
            unknown=None if replace_unknown is False else UnknownWords(
                *vocabularies, None if replace_unknown is True else replace_unknown),
            special_lines=special_lines,
            languages=languages or (languages_of(opened) if isinstance(opened, SavedRun) else ("", "")),
            source_text=opened.source_text() if isinstance(opened, SavedRun) else SourceText.load(opened))

    def check(self, options: LineOptions) -> None:
        """Check whether a line can have these options; see `LineTranslator.check`.

        Raises:
            SettingsError: CTranslate2 does not support an option, or the vocabulary cannot write it.
        """
        check_line(options, self.search)
        super().check(options)

    def requests(self, lines: Iterable[str | bytes | LineRequest], name: str, first: int,
                 options: Iterable[LineOptions] | None) -> Iterator[LineRequest]:
        """Yield the request of each line. An unsupported option raises an error that names the line."""
        return check_requests(super().requests(lines, name, first, options), self.search, name, first)


def open_export_or_run(model: str | Path | SavedRun, trust_code: bool = False) -> Path | SavedRun:
    """Return the directory of an export, or the opened run or package."""
    if isinstance(model, SavedRun) or not is_export(model):
        return open_run(model, trust_code)
    return Path(model)


def load_exported_model(model: Path | SavedRun, checkpoint: str | None, precision: str | None, averaged: bool,
                        device: str | None, threads: int = 0) -> tuple[ExportedModel, str]:
    """Load the model of a run or an export, and return it with its checkpoint.

    Args:
        model: a result of `open_export_or_run`.
        checkpoint: see `CTranslate2Translator`.
        precision: see `CTranslate2Translator`.
        averaged: whether to use the moving averages of the weights.
        device: see `CTranslate2Translator`.
        threads: see `ExportedModel`.

    Raises:
        CheckpointError: the checkpoint does not exist.
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
        raise SettingsError(f"--precision {precision}: CTranslate2 supports {', '.join(precisions)}.")
    try:
        with exported_run(ExportSpec(model, checkpoint, averaged, precision)) as (directory, prefix):
            return ExportedModel(directory, device, threads), prefix
    except UnsupportedModelError as error:
        raise SettingsError(f"{error} Leave out --engine to use TensorFlow's graph.") from error


def _check_export(directory: Path, checkpoint: str | None, precision: str | None, averaged: bool) -> None:
    """Check that an export has the requested checkpoint, precision and kind of weights."""
    exported_as = Description.read(directory)
    if checkpoint is not None:
        raise SettingsError(f"--checkpoint {checkpoint}: {directory} is an export, which has one checkpoint. Leave "
                            "out --checkpoint, or pass the run as --model.")
    if precision not in (None, exported_as.precision):
        raise SettingsError(f"--precision {precision}: {directory} is an export in {exported_as.precision}. Leave out "
                            "--precision, or pass the run as --model.")
    if exported_as.averaged and not averaged:
        raise SettingsError(f"--last-weights: {directory} is an export of the averaged weights. Leave out "
                            "--last-weights, or pass the run as --model.")
