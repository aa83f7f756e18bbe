"""A search by CTranslate2 that gives what the search here gives, as a predictor of `predict.stream`.

CTranslate2 differs in three places, and is asked for what does not:

- Its length limit is one for a batch. Sentences are grouped by their limits, so that each has its own.
- Its length penalty is another. It is asked for all that the beam holds, by log-probability alone (a penalty of nearly
  0; with exactly 0 it ends a search too early), after twice as many have finished, unless `stopping` says how many.
  These are scored as here.
- What it forbids, it forbids before it normalises probabilities. Where tokens are forbidden, the hypotheses that it
  finds are scored by teacher forcing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.engines.exported import ExportedModel
from towernmt.engines.refusals import check_search
from towernmt.predict.decoding.settings import SearchSettings, StreamSettings
from towernmt.predict.hypotheses import Found

NO_PENALTY = 1e-9
EXACT_PATIENCE, NO_END = 2.0, 1e4
"""Finished hypotheses after which a search ends, in beams: of `stopping=exact`, and of a search up to the limit."""


class Limits(NamedTuple):
    """Of the tokens of a translation.

    Attributes:
        most: EOS counted.
        least: EOS not counted.
    """

    most: int
    least: int


class _Hypothesis(NamedTuple):
    """Ids, EOS the last one if it ended; log p of all tokens, and of each where that was asked for."""

    ids: list[int]
    log_prob: float
    log_probs: Sequence[float] = ()

    @property
    def ended(self) -> bool:
        return self.ids[-1:] == [EOS]


class CTranslate2Search:
    """Translates batches of any size, cut into such as CTranslate2 likes, which its threads share.

    Args:
        model: what translates.
        search: the settings.
        stream: how large batches are.
        log_probs: give the log-probability of each token.
    Raises:
        SettingsError: a setting that CTranslate2 cannot do, or more tokens than the model has positions.
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
            inputs: `source`, int32 `[batch, length]` or `[batch, length, streams]`, and `source_length`, int32
                `[batch]`, EOS counted.
        """
        lengths = inputs["source_length"].tolist()
        sentences = [row[:length - 1].tolist() for row, length in zip(inputs["source"], lengths, strict=True)]
        found = self._found(sentences, range(len(sentences)), lengths)
        # Not suppressed at once: that would make the probabilities of all other tokens larger than the model's.
        odd = [row for row, hypotheses in enumerate(found) if any({PAD, BOS} & set(one.ids) for one in hypotheses)]
        for row, hypotheses in zip(odd, self._found(sentences, odd, lengths, [PAD, BOS]), strict=True):
            found[row] = hypotheses
        changed = range(len(sentences)) if self._forbids or self._log_probs else odd
        self._count_again(sentences, found, changed)
        return _as_arrays([self._scored(hypotheses) for hypotheses in found], self._search.n_best, self._log_probs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """The same, with some settings of the search changed.

        Raises:
            SettingsError: a value that cannot work, or that CTranslate2 cannot do.
        """
        search = dataclasses.replace(self._search, **changed)
        return CTranslate2Search(self._model, search, self._stream, self._log_probs)

    @property
    def _forbids(self) -> bool:
        """Whether the search forbids tokens, by which CTranslate2 makes those of the others larger than the model's."""
        search = self._search
        return bool(search.min_length or search.min_length_factor or search.no_repeat_ngram)

    def _found(self, sentences: list[list[Any]], rows: Sequence[int], lengths: list[int],
               forbidden: Sequence[int] = ()) -> list[list[_Hypothesis]]:
        """The hypotheses of each of these rows, by log-probability."""
        begun = [(batch, self._begin([sentences[row] for row in batch], limits, forbidden))
                 for limits, batch in self._batches(rows, lengths)]
        found = {row: self._hypotheses(result.result())
                 for batch, results in begun for row, result in zip(batch, results, strict=True)}
        return [found[row] for row in rows]

    def _batches(self, rows: Iterable[int], lengths: list[int]) -> Iterator[tuple[Limits, list[int]]]:
        """The rows of each batch, the longest sentences first, so that no thread gets them when others are done."""
        def limits(row: int) -> Limits:
            return limits_of(self._search, lengths[row])

        by_limit = sorted(rows, key=lambda row: (limits(row), lengths[row]), reverse=True)
        for own, group in groupby(by_limit, limits):
            same = list(group)
            size = max(1, min(self._stream.batch_sentences, self._stream.batch_tokens // lengths[same[0]]))
            yield from ((own, same[start:start + size]) for start in range(0, len(same), size))

    def _begin(self, sentences: list[list[Any]], limits: Limits, forbidden: Sequence[int]) -> list[Any]:
        """Have a batch translated by a thread; gives what its results will be in."""
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
        """Give the hypotheses of these rows the log-probabilities of their tokens by the model."""
        engine, model = self._model.engine, self._model
        begun = []
        for row in rows:
            targets = [model.target_tokens(one.ids[:-1] if one.ended else one.ids) for one in found[row]]
            sources = [model.source_tokens(sentences[row])] * len(targets)
            begun.append((row, engine.score_batch(sources, targets, max_input_length=0, asynchronous=True)))
        for row, results in begun:
            for place, (one, result) in enumerate(zip(found[row], results, strict=True)):
                log_probs = result.result().log_probs[:len(one.ids)]
                found[row][place] = _Hypothesis(one.ids, float(np.sum(log_probs)), log_probs)

    def _scored(self, hypotheses: list[_Hypothesis]) -> list[tuple[float, _Hypothesis]]:
        """Each with its score, best first."""
        scored = [(self._score(one.log_prob, len(one.ids)), one) for one in hypotheses]
        return sorted(scored, key=lambda one: -one[0])

    def _score(self, log_prob: float, tokens: int) -> float:
        search = self._search
        base = (5.0 + tokens) / 6.0 if search.length_normalization == "gnmt" else float(tokens)
        return float((log_prob + search.word_reward * tokens) / base ** search.length_penalty)


def limits_of(search: SearchSettings, source_length: int) -> Limits:
    """Those of the translation of a sentence.

    Args:
        source_length: EOS counted.
    """
    def share(tokens: int, factor: float) -> int:
        return int(np.floor(np.float32(tokens) * np.float32(factor)))       # as TensorFlow computes it

    most = max(share(source_length, search.max_length_factor) + search.max_length_constant, 1)
    least = max(share(source_length - 1, search.min_length_factor), search.min_length)
    return Limits(min(most, search.max_tokens) if search.max_tokens else most, least)


def patience_of(search: SearchSettings) -> float:
    """After how many finished hypotheses, in beams, a search ends."""
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
