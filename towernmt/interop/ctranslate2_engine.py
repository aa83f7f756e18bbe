"""Search, translate and score with CTranslate2, without TensorFlow.

The results equal those of the built-in search. Settings and options that CTranslate2 does not support are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.interop.ctranslate2_models import FORMAT, Description, ExportedModel, Wanted, exported, is_export
from towernmt.interop.export import export_format
from towernmt.predict.line_translator import LineTranslator, search_settings
from towernmt.predict.lines.hypotheses import Found
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest
from towernmt.predict.pair_scorer import PairScorer, token_batches
from towernmt.predict.reranking import Reranker
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings

SETTINGS: dict[str, tuple[Any, str]] = {
    "selection": ("beam", "its samples do not have a seed for each sentence"),
    "beam_groups": (1, "it has no groups of beams"),
    "coverage_penalty": (0.0, "its coverage penalty is computed differently"),
    "temperature": (1.0, "it applies a temperature only to sampling"),
    "repetition_penalty": (1.0, "its repetition penalty changes logits, not log-probabilities"),
    "shortlist": ("", "it does not support shortlists of this kind"),
}
"""Search settings with the only value that CTranslate2 supports, and the reason."""
OPTIONS: dict[str, str] = {
    "ensemble_weights": "it does not support ensembles",
    "ensemble_mean": "it does not support ensembles",
    "alignments": "towernmt does not read its attention",
    "attention": "towernmt does not read its attention",
    "plot": "towernmt does not read its attention",
    "replace_unknown": "towernmt does not read its attention",
    "samples": "its samples do not have a seed for each sentence",
    "prefix": "its scores leave out the tokens of a prefix",
    "partial_word": "its prefixes end at the end of a token",
    "avoid": "it avoids tokens, not phrases",
    "constraints": "it does not support lexical constraints",
    "terminology": "it does not support lexical constraints",
}
"""Command-line options that are not supported, by argument name, and the reason."""
_LINE_OPTIONS = ("prefix", "avoid", "constraints", "terminology", "inputs")
"""Fields of `LineOptions` that are not supported; `partial_word` and `prefix_every_piece` only qualify `prefix`."""
ENGINE = "--engine ctranslate2"


def check_options(arguments: Mapping[str, Any]) -> None:
    """Check that CTranslate2 supports the options of a command line.

    Raises:
        SettingsError: an option is not supported.
    """
    for name, reason in OPTIONS.items():
        if arguments.get(name):
            raise SettingsError(f"--{name.replace('_', '-')} cannot be combined with {ENGINE}: {reason}. Leave out one "
                                "of them.")
    for name in ("model", "checkpoint"):
        if isinstance(arguments.get(name), list) and len(arguments[name]) > 1:
            raise SettingsError(f"Several --{name} cannot be combined with {ENGINE}: it does not support ensembles. "
                                f"Pass one --{name}.")


def check_search(search: SearchSettings) -> None:
    """Check that CTranslate2 supports the settings of a search.

    Raises:
        SettingsError: a setting is not supported.
    """
    for name, (supported, reason) in SETTINGS.items():
        value = getattr(search, name)
        if value != supported:
            raise SettingsError(f"{name}={value} cannot be combined with {ENGINE}: {reason}. Set "
                                f"{name}={supported or repr(supported)}, or leave out --engine.")


def check_line(options: LineOptions, search: SearchSettings) -> None:
    """Check that CTranslate2 supports the options of a line, with the search settings that all lines share.

    Raises:
        SettingsError: an option is not supported.
    """
    for name in _LINE_OPTIONS:
        if getattr(options, name) != getattr(PLAIN, name):
            reason = OPTIONS.get(name, "it reads only the source text")
            raise SettingsError(f"'{name}' cannot be combined with {ENGINE}: {reason}. Leave out one of them.")
    if options.search:
        check_search(dataclasses.replace(search, **options.search))


def check_requests(requests: Iterable[LineRequest], search: SearchSettings, name: str,
                   first: int) -> Iterator[LineRequest]:
    """Yield each request after a check with `check_line`.

    Args:
        requests: requests of lines.
        search: search settings that all lines share.
        name: name of the text, for messages.
        first: number of the first line.

    Raises:
        DataError: an option of a line is not supported.
    """
    for number, request in enumerate(requests, start=first):
        try:
            check_line(request.options, search)
        except SettingsError as error:
            raise DataError(f"{name} line {number}: {error}") from None
        yield request


NO_PENALTY = 1e-9
EXACT_PATIENCE, NO_END = 2.0, 1e4
"""Number of finished hypotheses that ends a search, divided by the beam size: for `stopping=exact`, and for a search
that runs up to its maximum length."""


class LengthLimits(NamedTuple):
    """Limits of the number of tokens in a translation.

    Attributes:
        most: maximum, EOS included.
        least: minimum, EOS excluded.
    """

    most: int
    least: int


class _Hypothesis(NamedTuple):
    """The ids of a hypothesis, with EOS if it is finished, the sum of the log-probabilities and, if requested, each."""

    ids: list[int]
    log_prob: float
    log_probs: Sequence[float] = ()

    @property
    def ended(self) -> bool:
        return self.ids[-1:] == [EOS]


class CTranslate2Search:
    """A search that divides each batch into smaller ones for the threads of CTranslate2.

    Args:
        model: the loaded model.
        search: search settings.
        stream: limits of the batches.
        log_probs: whether to return the log-probability of each token.

    Raises:
        SettingsError: a setting is not supported, or a sentence may have more tokens than the model has positions.
    """

    def __init__(self, model: ExportedModel, search: SearchSettings, stream: StreamSettings,
                 log_probs: bool = False) -> None:
        check_search(search)
        longest = stream.max_source_length + 1
        model.check_lengths(longest, limits_of(search, longest).most)
        self._model, self._search, self._stream, self._log_probs = model, search, stream, log_probs

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch.

        Args:
            **inputs: `source`, int32 `[batch, length]` or `[batch, length, streams]`, and `source_length`, int32
                `[batch]`, EOS included.
        """
        lengths = inputs["source_length"].tolist()
        sentences = [row[:length - 1].tolist() for row, length in zip(inputs["source"], lengths, strict=True)]
        found = self._found(sentences, range(len(sentences)), lengths)
        # PAD and BOS are suppressed only if they occur, because suppression raises the probabilities of other tokens.
        odd = [row for row, hypotheses in enumerate(found) if any({PAD, BOS} & set(one.ids) for one in hypotheses)]
        for row, hypotheses in zip(odd, self._found(sentences, odd, lengths, [PAD, BOS]), strict=True):
            found[row] = hypotheses
        changed = range(len(sentences)) if self._forbids or self._log_probs else odd
        self._count_again(sentences, found, changed)
        return _as_arrays([self._scored(hypotheses) for hypotheses in found], self._search.n_best, self._log_probs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """Return the same search with some settings changed.

        Raises:
            SettingsError: a value is invalid, or CTranslate2 does not support it.
        """
        search = dataclasses.replace(self._search, **changed)
        return CTranslate2Search(self._model, search, self._stream, self._log_probs)

    @property
    def _forbids(self) -> bool:
        """Whether the search forbids tokens; then the log-probabilities that CTranslate2 returns are too large."""
        search = self._search
        return bool(search.min_length or search.min_length_factor or search.no_repeat_ngram)

    def _found(self, sentences: list[list[Any]], rows: Sequence[int], lengths: list[int],
               forbidden: Sequence[int] = ()) -> list[list[_Hypothesis]]:
        """Return the hypotheses of each of these rows, sorted by log-probability."""
        begun = [(batch, self._begin([sentences[row] for row in batch], limits, forbidden))
                 for limits, batch in self._batches(rows, lengths)]
        found = {row: self._hypotheses(result.result())
                 for batch, results in begun for row, result in zip(batch, results, strict=True)}
        return [found[row] for row in rows]

    def _batches(self, rows: Iterable[int], lengths: list[int]) -> Iterator[tuple[LengthLimits, list[int]]]:
        """Yield the rows of each batch, the longest sentences first, so that all threads end at about the same time."""
        def limits(row: int) -> LengthLimits:
            return limits_of(self._search, lengths[row])

        by_limit = sorted(rows, key=lambda row: (limits(row), lengths[row]), reverse=True)
        for batch_limits, group in groupby(by_limit, limits):
            same = list(group)
            size = max(1, min(self._stream.batch_sentences, self._stream.batch_tokens // lengths[same[0]]))
            yield from ((batch_limits, same[start:start + size]) for start in range(0, len(same), size))

    def _begin(self, sentences: list[list[Any]], limits: LengthLimits, forbidden: Sequence[int]) -> list[Any]:
        """Start the translation of a batch, and return its asynchronous results."""
        search, model = self._search, self._model
        begun: list[Any] = model.engine.translate_batch(
            [model.source_tokens(ids) for ids in sentences], asynchronous=True, beam_size=search.beam_size,
            num_hypotheses=search.beam_size, patience=patience_of(search), length_penalty=NO_PENALTY,
            max_decoding_length=limits.most, min_decoding_length=limits.least, max_input_length=0,
            no_repeat_ngram_size=search.no_repeat_ngram, return_scores=True, return_end_token=True,
            suppress_sequences=[[piece] for piece in model.target_tokens(forbidden)] or None)
        return begun

    def _hypotheses(self, result: Any) -> list[_Hypothesis]:
        return [_Hypothesis(self._model.target_ids(tokens), log_prob)
                for log_prob, tokens in zip(result.scores, result.hypotheses, strict=True)]

    def _count_again(self, sentences: list[list[Any]], found: list[list[_Hypothesis]], rows: Iterable[int]) -> None:
        """Replace the log-probabilities in the hypotheses of these rows by those that the model gives its tokens."""
        engine, model = self._model.engine, self._model
        begun = []
        for row in rows:
            targets = [model.target_tokens(one.ids[:-1] if one.ended else one.ids) for one in found[row]]
            sources = [model.source_tokens(sentences[row])] * len(targets)
            begun.append((row, engine.score_batch(sources, targets, max_input_length=0, asynchronous=True)))
        for row, results in begun:
            for index, (one, result) in enumerate(zip(found[row], results, strict=True)):
                log_probs = result.result().log_probs[:len(one.ids)]
                found[row][index] = _Hypothesis(one.ids, float(np.sum(log_probs)), log_probs)

    def _scored(self, hypotheses: list[_Hypothesis]) -> list[tuple[float, _Hypothesis]]:
        """Return the hypotheses with their scores, best first."""
        scored = [(self._score(one.log_prob, len(one.ids)), one) for one in hypotheses]
        return sorted(scored, key=lambda one: -one[0])

    def _score(self, log_prob: float, tokens: int) -> float:
        search = self._search
        base = (5.0 + tokens) / 6.0 if search.length_normalization == "gnmt" else float(tokens)
        return float((log_prob + search.word_reward * tokens) / base ** search.length_penalty)


def limits_of(search: SearchSettings, source_length: int) -> LengthLimits:
    """Return the limits of a translation, for a source length in tokens, EOS included."""
    def share(tokens: int, factor: float) -> int:
        return int(np.floor(np.float32(tokens) * np.float32(factor)))       # as TensorFlow computes it

    most = max(share(source_length, search.max_length_factor) + search.max_length_constant, 1)
    least = max(share(source_length - 1, search.min_length_factor), search.min_length)
    return LengthLimits(min(most, search.max_tokens) if search.max_tokens else most, least)


def patience_of(search: SearchSettings) -> float:
    """Return the number of finished hypotheses that ends a search, divided by the beam size."""
    if search.beam_size == 1:
        return 1.0
    if search.stopping == "first":
        return search.patience
    return EXACT_PATIENCE if search.stopping == "exact" and not search.word_reward else NO_END


def _as_arrays(found: list[list[tuple[float, _Hypothesis]]], n_best: int, with_log_probs: bool) -> Found:
    best = [hypotheses[:n_best] for hypotheses in found]
    length = max((len(one.ids) for hypotheses in best for _, one in hypotheses), default=0)
    tokens = np.full([len(best), n_best, length], PAD, np.int32)
    scores = np.full([len(best), n_best], -np.inf, np.float32)
    log_probs = np.zeros([len(best), n_best, length], np.float32) if with_log_probs else None
    for row, hypotheses in enumerate(best):
        for k, (score, one) in enumerate(hypotheses):
            tokens[row, k, :len(one.ids)] = one.ids
            scores[row, k] = score
            if log_probs is not None:
                log_probs[row, k, :len(one.ids)] = one.log_probs
    return Found(tokens, scores, log_probs)


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
        self._model, checkpoint = open_model(open_exported(model, trust_code), checkpoint, precision, averaged, device)
        super().__init__(self._model.source_vocabulary, self._model.target_vocabulary, checkpoint, batch_tokens)

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        model = self._model
        sizes = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
        model.check_lengths(*sizes)
        begun = [(batch, model.engine.score_batch(
            [model.source_tokens(sources[i]) for i in batch], [model.target_tokens(targets[i]) for i in batch],
            max_input_length=0, asynchronous=True)) for batch in token_batches(sizes, self._batch_tokens)]
        found: list[tuple[float, np.ndarray]] = [(0.0, np.empty(0))] * len(sources)
        for batch, results in begun:
            for i, result in zip(batch, results, strict=True):
                log_probs = np.array(result.result().log_probs)
                found[i] = float(log_probs.sum()), log_probs
        return found


class CTranslate2Translator(LineTranslator):
    """A translator of text that uses CTranslate2.

    Args:
        model: a training run (its --logdir), an export, or a package. A run is exported when it is first used. Of a
            package, the export with the requested precision is used; without one, the package is exported like a run.
        precision: precision of the weights: float32, bfloat16, float16, int16 or int8; None for the precision of the
            export, of the package's first export, or float32.
        device: "cpu", "gpu" or "gpu:N"; None for a GPU if CTranslate2 finds one.
        beam_size, n_best, checkpoint, stream, options, retry, reranker, log_probs, trust_code, search: see
            `Translator`.

    Attributes:
        checkpoint: prefix of the run's checkpoint files, or directory of the export.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: CTranslate2 is not installed or does not support a request, or a value is invalid.
    """

    def __init__(self, model: str | Path | SavedRun, beam_size: int | None = None, *, n_best: int | None = None,
                 checkpoint: str | None = None, precision: str | None = None, device: str | None = None,
                 stream: StreamSettings = StreamSettings(), options: LineOptions = PLAIN,  # noqa: B008 -- immutable
                 retry: bool = False, reranker: Reranker | None = None, log_probs: bool = False,
                 trust_code: bool = False, **search: Any) -> None:
        opened = open_exported(model, trust_code)
        saved = opened.group("search", SearchSettings()) if isinstance(opened, SavedRun) else (
            Description.read(opened).search)
        settings = search_settings(saved, beam_size, n_best, search)
        check_search(settings)      # before the export, which takes longer
        check_line(options, settings)
        self.model, checkpoint = open_model(opened, checkpoint, precision, settings.averaged, device,
                                            threads=1 if stream.window == 1 else stream.threads)
        # All lines that were read ahead go to the engine together, which divides them into batches for its threads.
        everything = dataclasses.replace(stream, batch_sentences=stream.window, batch_tokens=2 ** 62, threads=1,
                                         shares=1)
        super().__init__(CTranslate2Search(self.model, settings, stream, log_probs), self.model.source_vocabulary,
                         self.model.target_vocabulary, checkpoint=checkpoint, search=settings, stream=everything,
                         options=options, retry=retry, reranker=reranker)

    def requests(self, lines: Iterable[str | bytes | LineRequest], name: str, first: int,
                 options: Iterable[LineOptions] | None) -> Iterator[LineRequest]:
        """Yield the request of each line. An unsupported option raises an error that names the line."""
        return check_requests(super().requests(lines, name, first, options), self.search, name, first)


def open_exported(model: str | Path | SavedRun, trust_code: bool = False) -> Path | SavedRun:
    """Return the directory of an export, or the opened run or package."""
    if isinstance(model, SavedRun) or not is_export(model):
        return open_run(model, trust_code)
    return Path(model)


def open_model(model: Path | SavedRun, checkpoint: str | None, precision: str | None, averaged: bool,
               device: str | None, threads: int = 0) -> tuple[ExportedModel, str]:
    """Load the model of a run or an export, and return it with its checkpoint.

    Args:
        model: a result of `open_exported`.
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
    with exported(Wanted(model, checkpoint, averaged, FORMAT, precision)) as (directory, prefix):
        return ExportedModel(directory, device, threads), prefix


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
