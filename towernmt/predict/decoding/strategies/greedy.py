"""Greedy search as a strategy: the most probable token, until that is the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.processors.processor import NEVER
from towernmt.predict.decoding.scores import Scoring
from towernmt.predict.decoding.step import History, StepContext
from towernmt.predict.decoding.strategies.strategy import Choice, Decoded, Strategy


class GreedyState(NamedTuple):
    """What a step of greedy search hands to the next.

    Attributes:
        log_prob: float32 `[batch, 1]`, of the hypothesis so far.
        score: float32 `[batch, 1]`; `NEVER` as long as it is unfinished.
        done: bool `[batch, 1]`.
    """

    log_prob: Tensor
    score: Tensor
    done: Tensor


class GreedySearch(Strategy):
    """One hypothesis a sentence, which grows by the most probable token; of equal ones, by the smaller id."""

    width, reorders = 1, False

    def __init__(self, scoring: Scoring) -> None:
        """
        Args:
            scoring: what the score of the translation is.
        """
        self._scoring, self.reads_attention = scoring, scoring.reads_attention

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> GreedyState:
        one = tf.shape(empty.tokens)[:2]  # [batch, 1]
        return GreedyState(tf.zeros(one), tf.fill(one, NEVER), tf.zeros(one, tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: GreedyState) -> Choice:
        length = context.step + 1
        log_prob, token = candidates.best(1)
        gain, place = tf.math.top_k(log_prob, 1)  # the first one may be forbidden
        token = tf.where(state.done, PAD, tf.gather(token, place, batch_dims=1))
        log_prob = state.log_prob + gain
        done = state.done | tf.equal(token, EOS) | (length >= context.limit)[:, None]
        score = self._scoring(log_prob, length, context.grown(None, token), context.inputs)
        return Choice(None, token, GreedyState(log_prob, tf.where(done & ~state.done, score, state.score), done))

    def is_done(self, state: GreedyState) -> Tensor:
        return state.done[:, 0]

    def result(self, state: GreedyState, live: History) -> Decoded:
        # Where every token was forbidden, there is no translation.
        found = live._replace(tokens=tf.where((state.score > NEVER)[:, :, None], live.tokens, PAD))
        found = found.without_attention_of_padding()
        return Decoded(found.tokens, state.score, found.attention, found.log_probs)
