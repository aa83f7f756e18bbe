"""Hypotheses of CTranslate2, and their log-probabilities by the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from towernmt.dataflow.vocabulary.base import EOS
from towernmt.interop.ctranslate2_loader import ExportedModel
from towernmt.interop.ctranslate2_sentences import SentenceRequest
from towernmt.predict.pair_scorer import token_batches


class EngineHypothesis(NamedTuple):
    """A hypothesis of a sentence.

    Attributes:
        tokens: CTranslate2's tokens, with that of EOS if it is finished. Only those of the best hypotheses become ids.
        log_prob: sum of the log-probabilities of its tokens.
        log_probs: log-probability of each token; empty if not computed.
        attention: float32 `[tokens, source tokens]`, EOS included; None if not requested.
    """

    tokens: list[str]
    log_prob: float
    log_probs: Sequence[float] = ()
    attention: np.ndarray | None = None


def with_end_column(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """Return attention with a column for the source's EOS, which CTranslate2 leaves out; the weights of a row sum to 1.

    Args:
        rows: weights of the source tokens without EOS, for each target token.
    """
    weights = np.array(rows, np.float32).reshape(len(rows), -1)
    return np.concatenate([weights, np.maximum(1.0 - weights.sum(1, keepdims=True), 0.0)], 1)


def score_by_model(model: ExportedModel, batch_tokens: int, sentences: Sequence[SentenceRequest],
                   hypotheses: list[list[EngineHypothesis]], forbidding_rows: Sequence[int],
                   endings: Mapping[int, EngineHypothesis]) -> None:
    """Replace the log-probabilities of hypotheses by those of the model, if tokens were forced or forbidden.

    Args:
        model: the loaded model.
        batch_tokens: maximum number of tokens of a batch, on the longer side.
        sentences: the sentences.
        hypotheses: hypotheses of each sentence.
        forbidding_rows: rows of sentences with forbidden tokens.
        endings: by row, the last hypothesis, which ends with the prefix.
    """
    returned = [[hypothesis.log_prob for hypothesis in sentence_hypotheses] for sentence_hypotheses in hypotheses]
    # A prefix alone changes all log-probabilities of a sentence by the same value.
    forced_rows = [row for row, sentence in enumerate(sentences) if sentence.prefix and row not in forbidding_rows]
    all_of_forbidding = [(row, k) for row in forbidding_rows for k in range(len(hypotheses[row]))]
    first_of_forced = [(row, 0) for row in forced_rows]
    endings_of_forced = [(row, len(hypotheses[row]) - 1) for row in forced_rows if row in endings]
    rescore(model, batch_tokens, sentences, hypotheses, all_of_forbidding + first_of_forced + endings_of_forced)
    for row in forced_rows:
        change = hypotheses[row][0].log_prob - returned[row][0]
        for k in range(1, len(hypotheses[row]) - (row in endings)):
            hypotheses[row][k] = hypotheses[row][k]._replace(log_prob=returned[row][k] + change)


def rescore(model: ExportedModel, batch_tokens: int, sentences: Sequence[SentenceRequest],
            hypotheses: list[list[EngineHypothesis]], positions: Iterable[tuple[int, int]]) -> None:
    """Replace the log-probabilities of hypotheses by those that the model gives their tokens.

    Args:
        model: the loaded model.
        batch_tokens: maximum number of tokens of a batch, on the longer side.
        sentences: the sentences.
        hypotheses: hypotheses of each sentence.
        positions: pairs of a row and the index of a hypothesis.
    """
    positions = list(positions)
    sizes = [max(len(sentences[row].source), len(hypotheses[row][k].tokens)) + 1 for row, k in positions]
    end, started = model.target_tokens([EOS]), []
    for batch in token_batches(sizes, batch_tokens):
        pairs = [(sentences[row].source, hypotheses[row][k]) for row, k in (positions[i] for i in batch)]
        started.append((batch, model.engine.score_batch(
            [model.source_tokens(source) for source, _ in pairs],
            [hypothesis.tokens[:-1] if hypothesis.tokens[-1:] == end else hypothesis.tokens for _, hypothesis in pairs],
            max_input_length=0, asynchronous=True)))
    for batch, results in started:
        for i, result in zip(batch, results, strict=True):
            row, k = positions[i]
            log_probs = result.result().log_probs[:len(hypotheses[row][k].tokens)]
            hypotheses[row][k] = hypotheses[row][k]._replace(log_prob=float(np.sum(log_probs)), log_probs=log_probs)
