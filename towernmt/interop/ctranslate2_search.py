"""Search with CTranslate2 whose results equal those of the built-in search, and sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np

from towernmt.core.thread_maps import stop_if_abandoned
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.interop.ctranslate2_hypotheses import EngineHypothesis, rescore, score_by_model, with_end_column
from towernmt.interop.ctranslate2_loader import ExportedModel
from towernmt.interop.ctranslate2_requests import BEGINNING_ONLY, INPUTS, check_search, difference
from towernmt.interop.ctranslate2_sentences import (
    NO_END,
    Ids,
    SentenceRequest,
    limits_of,
    longest_of,
    patience_of,
    sentence_requests,
)
from towernmt.predict.lines.batch_inputs import LEAST_SHARE, LinePiece
from towernmt.predict.lines.hypotheses import SearchOutput
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings, limit_hypotheses

NO_PENALTY = 1e-9
_BATCHES_PER_THREAD = 2
"""Minimum number of batches of a thread, so that one with short sentences follows one with long sentences."""
_SHORTER = "Choose a smaller --max-source-length or --max-tokens."


class CTranslate2Search:
    """A search that divides each batch into smaller ones for the threads of CTranslate2.

    Args:
        model: the loaded model.
        search: search settings.
        stream: limits of the batches.
        log_probs: whether to return the log-probability of each token.
        attention: whether to return the attention of each token.
        batches_per_thread: minimum number of batches of a thread; 0 divides only batches that are too large.

    Attributes:
        engine: name, version and precision of the engine.

    Raises:
        SettingsError: a setting is not supported.
    """

    def __init__(self, model: ExportedModel, search: SearchSettings, stream: StreamSettings,
                 log_probs: bool = False, attention: bool = False,
                 batches_per_thread: int = _BATCHES_PER_THREAD) -> None:
        check_search(search)
        self._model, self._search, self._stream = model, search, limit_hypotheses(stream, search)
        self._log_probs, self._attention, self.engine = log_probs, attention, model.name
        self._batches_per_thread = batches_per_thread
        self._never_tokens = model.target_tokens((PAD, BOS))        # a translation never contains them
        self._length_factor = cache(search.length_factor)

    def __call__(self, **inputs: np.ndarray) -> SearchOutput:
        """Return the best translations of each sentence of a batch.

        Args:
            **inputs: `source`, int32 `[batch, length]` or `[batch, length, streams]`; `source_length`, int32
                `[batch]`, EOS included; optionally `prefix`, int32 `[batch, tokens]`, and `avoid`, int32 `[batch,
                phrases, length]` (see `AvoidedPhrases`), padded with PAD.

        Raises:
            SettingsError: an input is not supported, or a sentence or its translation may have more tokens than the
                model has positions.
        """
        return self._translate(inputs)[0]

    def search_rows(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray],
                    details: bool) -> tuple[SearchOutput, Mapping[int, str]]:
        """Translate a batch, and report the rows whose translations may differ from those of the graph.

        Args:
            changed: changed search settings.
            inputs: see `__call__`.
            details: whether to return the log-probabilities and the attention that the search has.

        Returns:
            the translations; by row, why its translations may differ, a clause.

        Raises:
            SettingsError: see `__call__`.
        """
        search = self.with_settings(changed) if details else self.without_details(changed)
        output, rows = search._translate(inputs)
        return output, dict.fromkeys(rows, f"avoid: {BEGINNING_ONLY}")

    def check_longest(self) -> None:
        """Check that the longest sentences of the stream, and their translations, are not too long for the model.

        Raises:
            SettingsError: one of them may have more tokens than the model has positions.
        """
        longest = self._stream.max_source_length + 1
        self._model.check_length(max(longest, limits_of(self._search, longest).maximum), _SHORTER)

    def _translate(self, inputs: Mapping[str, np.ndarray]) -> tuple[SearchOutput, Sequence[int]]:
        """Return the result of `__call__`, and the rows in which too much was forbidden; see `_forbid_occurrences`."""
        check_search(self._search, inputs)
        sentences = sentence_requests(inputs, self._search)
        self._model.check_length(max((max(len(sentence.source) + 1, sentence.limits.maximum) for sentence in sentences),
                                     default=0), _SHORTER)
        hypotheses = self._run_search(sentences, range(len(sentences)))
        inexact_rows = self._forbid_occurrences(sentences, hypotheses)
        forbidding_rows = [row for row, sentence in enumerate(sentences) if sentence.forbidden or self._forbids_tokens]
        endings = self._prefix_endings(sentences)
        for row, ending in endings.items():
            hypotheses[row].append(ending)
        score_by_model(self._model, self._stream.batch_tokens, sentences, hypotheses, forbidding_rows, endings)
        for sentence_hypotheses in hypotheses:
            sentence_hypotheses.sort(key=self._score, reverse=True)
        self._remove_unconfirmed_endings(sentences, hypotheses, endings)
        best = [sentence_hypotheses[:self._search.n_best] for sentence_hypotheses in hypotheses]
        if self._log_probs:
            rescore(self._model, self._stream.batch_tokens, sentences, best, [
                (row, k) for row, sentence_hypotheses in enumerate(best)
                for k, hypothesis in enumerate(sentence_hypotheses) if not len(hypothesis.log_probs)])
        return self._as_arrays(best, inputs["source"].shape[1]), inexact_rows

    def with_settings(self, changed: Mapping[str, Any]) -> CTranslate2Search:
        """Return the same search with some settings changed.

        Raises:
            SettingsError: a value is invalid, or CTranslate2 does not support it.
        """
        return CTranslate2Search(self._model, self._changed(changed), self._stream, self._log_probs, self._attention,
                                 self._batches_per_thread)

    def without_details(self, changed: Mapping[str, Any]) -> CTranslate2Search:
        """Return the same search with some settings changed, and without log-probabilities and attention."""
        return CTranslate2Search(self._model, self._changed(changed), self._stream,
                                 batches_per_thread=self._batches_per_thread)

    def among_others(self) -> CTranslate2Search:
        """Return the same search, which divides only batches that are too large; see `DividingSearch`."""
        return CTranslate2Search(self._model, self._search, self._stream, self._log_probs, self._attention, 0)

    def is_undivided(self, piece: LinePiece) -> bool:
        """Return whether all pieces of this kind form one batch, which is always so."""
        return True

    def difference(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> str:
        """Return why the result of a request would differ from that of the graph, a clause; "" if it is the same.

        Args:
            changed: changed search settings.
            inputs: inputs of a batch without `source`, or of one of its sentences.
        """
        search = self._changed(changed)
        if reason := difference(search, inputs):
            return reason
        if "avoid" in inputs and (inputs["avoid"][..., :1] == BOS).any():
            return f"avoid: {BEGINNING_ONLY}"
        if "prefix" in inputs and (inputs["prefix"] == EOS).any():      # a whole translation
            return f"constraints: {INPUTS['constraints']}"
        problem = self._model.why_too_long(longest_of(search, inputs["source_length"], inputs.get("prefix")))
        return problem and f"they or their translations may be too long: {problem}"

    def _changed(self, changed: Mapping[str, Any]) -> SearchSettings:
        """Return changed search settings. Without changes, nothing is checked again, which takes 0.1 ms."""
        return dataclasses.replace(self._search, **changed) if changed else self._search

    def _word_breaks(self) -> np.ndarray:
        return self._model.word_breaks

    @property
    def _is_sampling(self) -> bool:
        return self._search.selection == "sampling"

    @property
    def _beam_width(self) -> int:
        """Number of hypotheses of a sentence in a step of the beam."""
        return 1 if self._is_sampling else self._search.beam_size

    @property
    def _forbids_tokens(self) -> bool:
        """Whether the search forbids tokens; then the log-probabilities that CTranslate2 returns are too large."""
        search = self._search
        return bool(search.min_length or search.min_length_factor or search.no_repeat_ngram)

    def _run_search(self, sentences: Sequence[SentenceRequest], rows: Iterable[int],
                    same_limit: bool = False) -> list[list[EngineHypothesis]]:
        """Return the hypotheses of each of these rows.

        Those with a prefix do not end with it: CTranslate2 treats an end at the first free position in another way.

        Args:
            sentences: the sentences.
            rows: the rows.
            same_limit: whether the sentences of a batch have the same maximum length. Otherwise the batch has the
                largest of them, and sentences with hypotheses that reach their own maximum are translated again.

        Raises:
            CancelledError: nobody needs the hypotheses; see `stop_if_abandoned`.
        """
        stop_if_abandoned()
        rows, started = list(rows), []
        for batch in self._batches(sentences, rows, same_limit):
            requests = [sentences[row] for row in batch]
            started.append((batch, self._start_translation(requests), self._start_first_attention(requests)))
        hypotheses: dict[int, list[EngineHypothesis]] = {}
        capped = []         # rows of sentences with a hypothesis that is longer than they may be
        for batch, results, attentions in started:
            batch_limit = max(sentences[row].limits.maximum for row in batch)
            for row, result, attention in zip(batch, results, attentions, strict=True):
                found = self._hypotheses(result.result(), attention and attention.result().attention[0][:1])
                limit = sentences[row].limits.maximum
                if limit < batch_limit and any(len(hypothesis.tokens) >= limit for hypothesis in found):
                    capped.append(row)
                hypotheses[row] = self._needed(sentences[row], found)
        if capped:
            hypotheses |= zip(capped, self._run_search(sentences, capped, same_limit=True), strict=True)
        return [hypotheses[row] for row in rows]

    def _batches(self, sentences: Sequence[SentenceRequest], rows: Sequence[int],
                 same_limit: bool) -> Iterator[list[int]]:
        """Yield the rows of each batch, the longest sentences first, so that all threads end at about the same time."""
        same_limit = same_limit or self._is_sampling or patience_of(self._search) == NO_END

        def kind(row: int) -> tuple[int, int, int, tuple[Ids, ...]]:
            _, limits, prefix, _, forbidden = sentences[row]
            prefix_length = len(prefix) if self._beam_width > 1 else 0
            return limits.maximum if same_limit else 0, limits.minimum, prefix_length, forbidden

        num_batches = max(self._batches_per_thread * self._model.engine.num_translators, 1)
        share = max(LEAST_SHARE, -(-len(rows) // num_batches))
        sorted_rows = sorted(rows, key=lambda row: (kind(row), len(sentences[row].source)), reverse=True)
        for _, group in groupby(sorted_rows, kind):
            remaining = list(group)
            while remaining:
                tokens = len(sentences[remaining[0]].source) + 1
                size = max(1, min(self._stream.batch_sentences, self._stream.batch_tokens // tokens, share))
                yield remaining[:size]
                remaining = remaining[size:]

    def _start_translation(self, sentences: Sequence[SentenceRequest]) -> list[Any]:
        """Start the translation of a batch of one kind, and return its asynchronous results."""
        search, model = self._search, self._model
        maximum = max(sentence.limits.maximum for sentence in sentences)
        minimum, prefix_length = sentences[0].limits.minimum, len(sentences[0].prefix)
        if prefix_length and self._beam_width > 1:
            minimum = max(minimum, prefix_length + 1)
        patience = patience_of(search, prefix_length)
        selection: dict[str, Any] = {"beam_size": self._beam_width, "patience": patience,
                                     "num_hypotheses": round(self._beam_width * patience)}
        if self._is_sampling:
            top_k = search.top_k if search.top_k < model.target_vocabulary.size else 0
            selection = {"beam_size": 1, "num_hypotheses": search.n_best, "sampling_topk": top_k,
                         "sampling_topp": search.top_p, "sampling_temperature": search.temperature}
        results: list[Any] = model.engine.translate_batch(
            [model.source_tokens(sentence.source) for sentence in sentences],
            [model.target_tokens(sentence.prefix) for sentence in sentences],
            asynchronous=True, length_penalty=NO_PENALTY, max_decoding_length=maximum,
            min_decoding_length=min(minimum, maximum), max_input_length=0, no_repeat_ngram_size=search.no_repeat_ngram,
            return_scores=True, return_end_token=True, return_attention=self._attention,
            suppress_sequences=self._suppressed(sentences[0]), **selection)
        return results

    def _suppressed(self, sentence: SentenceRequest) -> list[list[str]] | None:
        return [self._model.target_tokens(ids) for ids in sentence.forbidden] or None

    def _start_first_attention(self, sentences: Sequence[SentenceRequest]) -> Sequence[Any]:
        """Start the computation of the first token's attention, which all hypotheses of a sentence share.

        A beam search of CTranslate2 returns that of another sentence of the batch.

        Returns:
            asynchronous results; None for each sentence if its own search returns the right attention.
        """
        if not self._attention or self._beam_width == 1 or len(sentences) == 1:
            return [None] * len(sentences)
        results: list[Any] = self._model.engine.translate_batch(
            [self._model.source_tokens(sentence.source) for sentence in sentences], asynchronous=True, beam_size=1,
            max_decoding_length=1, min_decoding_length=0, max_input_length=0, return_end_token=True,
            return_attention=True)
        return results

    def _hypotheses(self, result: Any, first: Sequence[Sequence[float]] | None = None) -> list[EngineHypothesis]:
        """Return the hypotheses of a result.

        Args:
            result: result of CTranslate2.
            first: attention of the first token, in place of that of the result; None for that of the result.
        """
        hypotheses = list(map(EngineHypothesis, result.hypotheses, result.scores))      # each access copies all tokens
        if not self._attention:
            return hypotheses
        return [hypothesis._replace(attention=with_end_column(rows if first is None else [*first, *rows[1:]]))
                for hypothesis, rows in zip(hypotheses, result.attention, strict=True)]

    def _needed(self, sentence: SentenceRequest, hypotheses: list[EngineHypothesis]) -> list[EngineHypothesis]:
        """Return the hypotheses that the next steps need.

        These are the best ones, unless scores or forbidden tokens can still change. The tokens of all hypotheses would
        be many objects, which Python's garbage collector would visit again and again.
        """
        is_plain = not (sentence.prefix or sentence.avoided.lengths or sentence.forbidden or self._forbids_tokens)
        if is_plain and not any(token in hypothesis.tokens for hypothesis in hypotheses
                                for token in self._never_tokens):
            return sorted(hypotheses, key=self._score, reverse=True)[:self._search.n_best]
        return hypotheses

    def _forbid_occurrences(self, sentences: list[SentenceRequest],
                            hypotheses: list[list[EngineHypothesis]]) -> Sequence[int]:
        """Search again for sentences with forbidden tokens and phrases, which are then forbidden literally.

        PAD and BOS are forbidden only if they occur, because this raises the probabilities of other tokens.
        CTranslate2 has neither `WORD_BREAK` nor BOS in a phrase. A phrase after a `WORD_BREAK` is forbidden after the
        token that precedes it, and a phrase at the beginning is forbidden everywhere.

        Returns:
            the rows of the sentences in which a phrase is forbidden everywhere, although it is allowed after the
            beginning or inside of words.
        """
        rows, inexact_rows = list(range(len(sentences))), set[int]()
        never = {token: (id,) for id, token in zip((PAD, BOS), self._never_tokens, strict=True)}
        while rows:
            changed_rows = []
            for row in rows:
                sentence, forbidden = sentences[row], set[Ids]()
                for hypothesis in hypotheses[row]:
                    forbidden |= {ids for token, ids in never.items() if token in hypothesis.tokens}
                    if not sentence.avoided.lengths:
                        continue
                    ids = self._model.target_ids(hypothesis.tokens)
                    for start, phrase in sentence.avoided.occurrences(ids, len(sentence.prefix), self._word_breaks):
                        forbidden.add((ids[start - 1], *phrase) if start else phrase)
                        if not start and None not in sentence.avoided.marks[phrase]:
                            inexact_rows.add(row)
                if not forbidden <= set(sentence.forbidden):
                    sentences[row] = sentence._replace(forbidden=(*sentence.forbidden, *sorted(forbidden)))
                    changed_rows.append(row)
            for row, new_hypotheses in zip(changed_rows, self._run_search(sentences, changed_rows), strict=True):
                hypotheses[row] = new_hypotheses
            rows = changed_rows
        return sorted(inexact_rows)

    def _prefix_endings(self, sentences: Sequence[SentenceRequest]) -> dict[int, EngineHypothesis]:
        """Return, by row, the hypothesis that ends with the prefix, if a beam may contain it."""
        endings = {}
        for row, (_, limits, prefix, avoided, _) in enumerate(sentences):
            if self._beam_width > 1 and prefix and limits.minimum <= len(prefix):
                ids = [*prefix, EOS]
                if not any(True for _ in avoided.occurrences(ids, len(prefix), self._word_breaks)):
                    endings[row] = EngineHypothesis(self._model.target_tokens(ids), 0.0)
        return endings

    def _remove_unconfirmed_endings(self, sentences: Sequence[SentenceRequest],
                                    hypotheses: list[list[EngineHypothesis]],
                                    endings: Mapping[int, EngineHypothesis]) -> None:
        """Remove the hypotheses `endings` unless EOS is among the best tokens of the beam after the prefix.

        Only those among the n best are checked, by a search of one step, which also returns their attention.
        """
        search, model, started = self._search, self._model, []
        ends = model.target_tokens((EOS, PAD))
        for row, ending in endings.items():
            indices = [k for k, hypothesis in enumerate(hypotheses[row]) if hypothesis.tokens == ending.tokens]
            if indices and indices[0] < search.n_best:
                started.append((row, indices[0], model.engine.translate_batch(
                    [model.source_tokens(sentences[row].source)], [model.target_tokens(sentences[row].prefix)],
                    asynchronous=True, beam_size=search.beam_size, num_hypotheses=search.beam_size,
                    max_decoding_length=len(ending.tokens), min_decoding_length=0, max_input_length=0,
                    return_scores=True, no_repeat_ngram_size=search.no_repeat_ngram, return_end_token=True,
                    return_attention=self._attention, suppress_sequences=self._suppressed(sentences[row]))[0]))
            elif indices:
                del hypotheses[row][indices[0]]
        for row, index, result in started:
            # CTranslate2 replaces EOS by PAD at the first position after a prefix, except in the best hypothesis.
            finished = [hypothesis for hypothesis in self._hypotheses(result.result())
                        if hypothesis.tokens[-1] in ends]
            if finished:
                hypotheses[row][index] = hypotheses[row][index]._replace(attention=finished[0].attention)
            else:
                del hypotheses[row][index]

    def _score(self, hypothesis: EngineHypothesis) -> float:
        if self._is_sampling:
            return hypothesis.log_prob
        tokens = len(hypothesis.tokens)
        return float((hypothesis.log_prob + self._search.word_reward * tokens) / self._length_factor(tokens))

    def _as_arrays(self, best: list[list[EngineHypothesis]], source_length: int) -> SearchOutput:
        n_best = self._search.n_best
        length = max((len(hypothesis.tokens) for hypotheses in best for hypothesis in hypotheses), default=0)
        tokens = np.full([len(best), n_best, length], PAD, np.int32)
        scores = np.full([len(best), n_best], -np.inf, np.float32)
        log_probs = np.zeros([len(best), n_best, length], np.float32) if self._log_probs else None
        attention = np.zeros([len(best), n_best, length, source_length], np.float32) if self._attention else None
        for row, hypotheses in enumerate(best):
            for k, hypothesis in enumerate(hypotheses):
                end = len(hypothesis.tokens)
                tokens[row, k, :end] = self._model.target_ids(hypothesis.tokens)
                scores[row, k] = self._score(hypothesis)
                if log_probs is not None:
                    log_probs[row, k, :end] = hypothesis.log_probs
                if attention is not None and hypothesis.attention is not None:
                    attention[row, k, :end, :hypothesis.attention.shape[1]] = hypothesis.attention
        return SearchOutput(tokens, scores, log_probs, attention)
