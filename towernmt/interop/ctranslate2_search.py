"""Beam search with CTranslate2 whose results equal those of the built-in search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.interop.ctranslate2_models import ExportedModel
from towernmt.interop.ctranslate2_requests import check_search, difference
from towernmt.predict.lines.hypotheses import Found
from towernmt.predict.pair_scorer import token_batches
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings

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


class _Sentence(NamedTuple):
    """A sentence of a batch.

    Attributes:
        source: ids without EOS.
        limits: limits of its translation.
        prefix: ids with which its translation begins.
    """

    source: list[Any]
    limits: LengthLimits
    prefix: tuple[int, ...] = ()


class _Hypothesis(NamedTuple):
    """A hypothesis.

    Attributes:
        ids: tokens, with EOS if it is finished.
        log_prob: sum of the log-probabilities of its tokens.
        log_probs: log-probability of each token; empty if not computed.
        attention: float32 `[tokens, source tokens]`, EOS included; None if not requested.
    """

    ids: list[int]
    log_prob: float
    log_probs: Sequence[float] = ()
    attention: np.ndarray | None = None

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
        attention: whether to return the attention of each token.

    Attributes:
        engine: name, version and precision of the engine.

    Raises:
        SettingsError: a setting is not supported, or a sentence may have more tokens than the model has positions.
    """

    def __init__(self, model: ExportedModel, search: SearchSettings, stream: StreamSettings,
                 log_probs: bool = False, attention: bool = False) -> None:
        check_search(search)
        longest = stream.max_source_length + 1
        model.check_lengths(longest, limits_of(search, longest).most)
        self._model, self._search, self._stream = model, search, stream
        self._log_probs, self._attention, self.engine = log_probs, attention, model.name

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch.

        Args:
            **inputs: `source`, int32 `[batch, length]` or `[batch, length, streams]`; `source_length`, int32
                `[batch]`, EOS included; and optionally `prefix`, int32 `[batch, tokens]`, padded with PAD.

        Raises:
            SettingsError: an input is not supported, or a translation may have more tokens than the model has
                positions.
        """
        check_search(self._search, inputs)
        sentences = self._sentences(inputs)
        self._model.check_lengths(*(sentence.limits.most for sentence in sentences))
        every = range(len(sentences))
        found = self._found(sentences, every)
        # PAD and BOS are suppressed only if they occur, because suppression raises the probabilities of other tokens.
        odd = [row for row, hypotheses in enumerate(found) if any({PAD, BOS} & set(one.ids) for one in hypotheses)]
        for row, hypotheses in zip(odd, self._found(sentences, odd, [PAD, BOS]), strict=True):
            found[row] = hypotheses
        forced = [row for row in every if sentences[row].prefix]
        ends = self._ends(sentences, forced)
        for row, end in ends.items():
            found[row].append(end)
        self._count_again(sentences, found, [(row, k) for row in (every if self._forbids else {*odd, *forced})
                                             for k in range(len(found[row]))])
        for hypotheses in found:
            hypotheses.sort(key=self._score, reverse=True)
        self._confirm(sentences, found, ends)
        best = [hypotheses[:self._search.n_best] for hypotheses in found]
        if self._log_probs:
            self._count_again(sentences, best, [(row, k) for row, hypotheses in enumerate(best)
                                                for k, one in enumerate(hypotheses) if not len(one.log_probs)])
        return self._as_arrays(best, inputs["source"].shape[1])

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """Return the same search with some settings changed.

        Raises:
            SettingsError: a value is invalid, or CTranslate2 does not support it.
        """
        search = dataclasses.replace(self._search, **changed)
        return CTranslate2Search(self._model, search, self._stream, self._log_probs, self._attention)

    def difference(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> str:
        """Return why the result of a request would differ from that of the graph, a clause; "" if it is the same.

        Args:
            changed: changed search settings.
            inputs: inputs of a batch besides `source` and `source_length`, or of one of its sentences.
        """
        search = dataclasses.replace(self._search, **changed)
        if reason := difference(search, inputs):
            return reason
        longest = limits_of(search, self._stream.max_source_length + 1,
                            inputs["prefix"].shape[-1] if "prefix" in inputs else 0).most
        return self._model.why_too_long(longest)

    def _sentences(self, inputs: Mapping[str, np.ndarray]) -> list[_Sentence]:
        sentences = []
        for row, length in enumerate(inputs["source_length"].tolist()):
            prefix = [id for id in inputs["prefix"][row].tolist() if id != PAD] if "prefix" in inputs else []
            sentences.append(_Sentence(inputs["source"][row, :length - 1].tolist(),
                                       limits_of(self._search, length, len(prefix)), tuple(prefix)))
        return sentences

    @property
    def _forbids(self) -> bool:
        """Whether the search forbids tokens; then the log-probabilities that CTranslate2 returns are too large."""
        search = self._search
        return bool(search.min_length or search.min_length_factor or search.no_repeat_ngram)

    def _found(self, sentences: Sequence[_Sentence], rows: Sequence[int],
               forbidden: Sequence[int] = ()) -> list[list[_Hypothesis]]:
        """Return the hypotheses of each of these rows.

        Those with a prefix do not end with it: CTranslate2 treats an end at the first free position in another way.
        """
        begun = []
        for batch in self._batches(sentences, rows):
            together = [sentences[row] for row in batch]
            begun.append((batch, self._begin(together, forbidden), self._begin_first_attention(together)))
        found = {row: self._hypotheses(result.result(), first and first.result().attention[0][:1])
                 for batch, results, firsts in begun
                 for row, result, first in zip(batch, results, firsts, strict=True)}
        return [found[row] for row in rows]

    def _batches(self, sentences: Sequence[_Sentence], rows: Iterable[int]) -> Iterator[list[int]]:
        """Yield the rows of each batch, the longest sentences first, so that all threads end at about the same time."""
        def kind(row: int) -> tuple[LengthLimits, int]:
            sentence = sentences[row]
            return sentence.limits, len(sentence.prefix) if self._search.beam_size > 1 else 0

        by_kind = sorted(rows, key=lambda row: (kind(row), len(sentences[row].source)), reverse=True)
        for _, group in groupby(by_kind, kind):
            same = list(group)
            tokens = len(sentences[same[0]].source) + 1
            size = max(1, min(self._stream.batch_sentences, self._stream.batch_tokens // tokens))
            yield from (same[start:start + size] for start in range(0, len(same), size))

    def _begin(self, sentences: Sequence[_Sentence], forbidden: Sequence[int]) -> list[Any]:
        """Start the translation of a batch with the same limits, and return its asynchronous results."""
        search, model = self._search, self._model
        (most, least), prefix = sentences[0].limits, len(sentences[0].prefix)
        if prefix and search.beam_size > 1:
            least = max(least, prefix + 1)
        patience = patience_of(search)
        begun: list[Any] = model.engine.translate_batch(
            [model.source_tokens(sentence.source) for sentence in sentences],
            [model.target_tokens(sentence.prefix) for sentence in sentences],
            asynchronous=True, beam_size=search.beam_size, num_hypotheses=round(search.beam_size * patience),
            patience=patience, length_penalty=NO_PENALTY, max_decoding_length=most,
            min_decoding_length=min(least, most), max_input_length=0, no_repeat_ngram_size=search.no_repeat_ngram,
            return_scores=True, return_end_token=True, return_attention=self._attention,
            suppress_sequences=[[piece] for piece in model.target_tokens(forbidden)] or None)
        return begun

    def _begin_first_attention(self, sentences: Sequence[_Sentence]) -> Sequence[Any]:
        """Start the computation of the first token's attention, which all hypotheses of a sentence share.

        A beam search of CTranslate2 returns that of another sentence of the batch.

        Returns:
            asynchronous results; None for each sentence if its own search returns the right attention.
        """
        if not self._attention or self._search.beam_size == 1 or len(sentences) == 1:
            return [None] * len(sentences)
        begun: list[Any] = self._model.engine.translate_batch(
            [self._model.source_tokens(sentence.source) for sentence in sentences], asynchronous=True, beam_size=1,
            max_decoding_length=1, min_decoding_length=0, max_input_length=0, return_end_token=True,
            return_attention=True)
        return begun

    def _hypotheses(self, result: Any, first: Sequence[Sequence[float]] | None = None) -> list[_Hypothesis]:
        """Return the hypotheses of a result.

        Args:
            result: result of CTranslate2.
            first: attention of the first token, in place of that of the result; None for that of the result.
        """
        attention: list[np.ndarray | None] = [None] * len(result.hypotheses)
        if self._attention:
            attention = [_with_end(rows if first is None else [*first, *rows[1:]]) for rows in result.attention]
        return [_Hypothesis(self._model.target_ids(tokens), log_prob, (), weights)
                for log_prob, tokens, weights in zip(result.scores, result.hypotheses, attention, strict=True)]

    def _ends(self, sentences: Sequence[_Sentence], rows: Iterable[int]) -> dict[int, _Hypothesis]:
        """Return, by row, the hypothesis that ends with the prefix, if a beam may contain it."""
        if self._search.beam_size == 1:
            return {}
        return {row: _Hypothesis([*sentences[row].prefix, EOS], 0.0) for row in rows
                if sentences[row].limits.least <= len(sentences[row].prefix)}

    def _confirm(self, sentences: Sequence[_Sentence], found: list[list[_Hypothesis]],
                 ends: Mapping[int, _Hypothesis]) -> None:
        """Remove the hypotheses `ends` unless EOS is among the best tokens of the beam after the prefix.

        The question is asked only for those among the n best. The answers contain their attention.
        """
        search, model, begun = self._search, self._model, []
        for row, end in ends.items():
            places = [k for k, one in enumerate(found[row]) if one.ids == end.ids]
            if places and places[0] < search.n_best:
                begun.append((row, places[0], model.engine.translate_batch(
                    [model.source_tokens(sentences[row].source)], [model.target_tokens(sentences[row].prefix)],
                    asynchronous=True, beam_size=search.beam_size, num_hypotheses=search.beam_size,
                    max_decoding_length=len(end.ids), min_decoding_length=0, max_input_length=0, return_scores=True,
                    return_end_token=True, return_attention=self._attention)[0]))
            elif places:
                del found[row][places[0]]
        for row, place, result in begun:
            # CTranslate2 replaces EOS by PAD at the first position after a prefix, except in the best hypothesis.
            ended = [one for one in self._hypotheses(result.result()) if one.ids[-1] in (EOS, PAD)]
            if ended:
                found[row][place] = found[row][place]._replace(attention=ended[0].attention)
            else:
                del found[row][place]

    def _count_again(self, sentences: Sequence[_Sentence], found: list[list[_Hypothesis]],
                     places: Iterable[tuple[int, int]]) -> None:
        """Replace the log-probabilities of hypotheses by those that the model gives their tokens.

        Args:
            sentences: the sentences.
            found: hypotheses of each sentence.
            places: pairs of a row and the index of a hypothesis.
        """
        places, model = list(places), self._model
        sizes = [max(len(sentences[row].source), len(found[row][k].ids)) + 1 for row, k in places]
        begun = []
        for batch in token_batches(sizes, self._stream.batch_tokens):
            pairs = [(sentences[row].source, found[row][k]) for row, k in (places[i] for i in batch)]
            begun.append((batch, model.engine.score_batch(
                [model.source_tokens(source) for source, _ in pairs],
                [model.target_tokens(one.ids[:-1] if one.ended else one.ids) for _, one in pairs],
                max_input_length=0, asynchronous=True)))
        for batch, results in begun:
            for i, result in zip(batch, results, strict=True):
                row, k = places[i]
                log_probs = result.result().log_probs[:len(found[row][k].ids)]
                found[row][k] = found[row][k]._replace(log_prob=float(np.sum(log_probs)), log_probs=log_probs)

    def _score(self, one: _Hypothesis) -> float:
        search, tokens = self._search, len(one.ids)
        base = (5.0 + tokens) / 6.0 if search.length_normalization == "gnmt" else float(tokens)
        return float((one.log_prob + search.word_reward * tokens) / base ** search.length_penalty)

    def _as_arrays(self, best: list[list[_Hypothesis]], source_length: int) -> Found:
        n_best = self._search.n_best
        length = max((len(one.ids) for hypotheses in best for one in hypotheses), default=0)
        tokens = np.full([len(best), n_best, length], PAD, np.int32)
        scores = np.full([len(best), n_best], -np.inf, np.float32)
        log_probs = np.zeros([len(best), n_best, length], np.float32) if self._log_probs else None
        attention = np.zeros([len(best), n_best, length, source_length], np.float32) if self._attention else None
        for row, hypotheses in enumerate(best):
            for k, one in enumerate(hypotheses):
                tokens[row, k, :len(one.ids)] = one.ids
                scores[row, k] = self._score(one)
                if log_probs is not None:
                    log_probs[row, k, :len(one.ids)] = one.log_probs
                if attention is not None and one.attention is not None:
                    attention[row, k, :len(one.ids), :one.attention.shape[1]] = one.attention
        return Found(tokens, scores, log_probs, attention)


def _with_end(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """Return attention with a column for the source's EOS, which CTranslate2 leaves out; the weights of a row sum to 1.

    Args:
        rows: weights of the source tokens without EOS, for each target token.
    """
    weights = np.array(rows, np.float32).reshape(len(rows), -1)
    return np.concatenate([weights, np.maximum(1.0 - weights.sum(1, keepdims=True), 0.0)], 1)


def limits_of(search: SearchSettings, source_length: int, prefix_length: int = 0) -> LengthLimits:
    """Return the limits of a translation.

    Args:
        search: search settings.
        source_length: in tokens, EOS included.
        prefix_length: number of tokens with which the translation begins.
    """
    def share(tokens: int, factor: float) -> int:
        return int(np.floor(np.float32(tokens) * np.float32(factor)))       # as TensorFlow computes it

    most = max(share(source_length, search.max_length_factor) + search.max_length_constant, 1)
    most = min(most, search.max_tokens) if search.max_tokens else most
    if prefix_length:
        most = max(most, prefix_length + max(search.max_length_constant, 1))
    least = max(share(source_length - 1, search.min_length_factor), search.min_length)
    return LengthLimits(most, min(least, most))


def patience_of(search: SearchSettings) -> float:
    """Return the number of finished hypotheses that ends a search, divided by the beam size."""
    if search.beam_size == 1:
        return 1.0
    if search.stopping == "first":
        return math.ceil(search.patience * search.beam_size) / search.beam_size
    return EXACT_PATIENCE if search.stopping == "exact" and not search.word_reward else NO_END
