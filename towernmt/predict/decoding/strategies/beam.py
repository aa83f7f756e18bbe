"""Beam search as a strategy.

Finished hypotheses leave the beam and are kept apart, so that the beam is always full; a sentence is
done as soon as no unfinished hypothesis can still win. What a sentence gets never depends on its
neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.processors.processor import NEVER
from towernmt.predict.decoding.scores import Scoring
from towernmt.predict.decoding.step import History, StepContext
from towernmt.predict.decoding.strategies.finished import Finished
from towernmt.predict.decoding.strategies.stopping import EXACT, Stopping
from towernmt.predict.decoding.strategies.strategy import Choice, Decoded, Strategy


class BeamState(NamedTuple):
    """What a step of beam search hands to the next.

    Attributes:
        live_log_prob: float32 `[batch, beam]`, descending.
        finished: the best finished hypotheses, `beam` of them.
        ended: how many hypotheses have finished, as `Stopping` counts them.
        done: bool `[batch]`, whether the finished hypotheses are final.
    """

    live_log_prob: Tensor
    finished: Finished
    ended: Tensor
    done: Tensor


class BeamSearch(Strategy):
    """Keeps the most probable hypotheses. At equal scores the earlier hypothesis and the smaller token id win."""

    def __init__(self, beam_size: int, n_best: int, scoring: Scoring, stopping: Stopping = EXACT) -> None:
        """
        Args:
            beam_size: how many live, and how many finished ones are kept.
            n_best: how many are given.
            scoring: what finished hypotheses are compared by.
            stopping: when they are final before the length limit is reached.
        """
        self.width, self.reads_attention = beam_size, scoring.reads_attention
        self._n_best, self._scoring, self._stopping = n_best, scoring, stopping

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> BeamState:
        batch = tf.shape(empty.tokens)[0]
        # One live hypothesis, the empty one; the others of the beam have probability 0.
        log_prob = tf.constant([[0.0] + [NEVER] * (self.width - 1)])
        return BeamState(
            live_log_prob=tf.tile(log_prob, [batch, 1]), finished=Finished.none(empty),
            ended=self._stopping.start(batch), done=tf.zeros([batch], tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: BeamState) -> Choice:
        beam, length = self.width, context.step + 1
        log_prob, parent, token = self._best_extensions(candidates, state)  # each [batch, 2 * beam]
        is_eos = tf.equal(token, EOS)

        # A hypothesis is finished if it ends among the best `beam`, or is cut at the sentence's limit.
        at_limit = length >= context.limit  # [batch]
        final = tf.logical_or(is_eos[:, :beam], at_limit[:, None]) & ~state.done[:, None]
        ended = context.grown(parent[:, :beam], token[:, :beam])
        score = self._scoring(log_prob[:, :beam], length, ended, context.inputs)
        finished = state.finished.merged(ended, tf.where(final, score, NEVER))

        # At most `beam` of the 2 * beam candidates end, so at least `beam` live on.
        live_log_prob, place = tf.math.top_k(tf.where(is_eos, NEVER, log_prob), beam)
        count = self._stopping.counted(state.ended, final)
        decided = self._stopping.is_decided(
            count, finished.score[:, self._n_best - 1], live_log_prob[:, 0], context.limit, self._scoring)
        return Choice(
            parent=tf.gather(parent, place, batch_dims=1), token=tf.gather(token, place, batch_dims=1),
            state=BeamState(live_log_prob, finished, count, state.done | at_limit | decided))

    def is_done(self, state: BeamState) -> Tensor:
        return state.done

    def result(self, state: BeamState, live: History) -> Decoded:
        history, score = tf.nest.map_structure(lambda tensor: tensor[:, :self._n_best], state.finished)
        return Decoded(history.tokens, score, history.attention, history.log_probs)

    def _best_extensions(self, candidates: Candidates, state: BeamState) -> tuple[Tensor, Tensor, Tensor]:
        """The best 2 * beam one-token extensions of a sentence's live hypotheses, best first.

        Returns:
            log-probability float32, parent (place in the beam) int32, token int32, each `[batch, 2 * beam]`.
        """
        beam = self.width
        log_prob, token = candidates.best(2 * beam)  # [batch * beam, count]
        count = token.shape[1]
        log_prob = tf.reshape(log_prob, [-1, beam, count]) + state.live_log_prob[:, :, None]
        log_prob, place = tf.math.top_k(tf.reshape(log_prob, [-1, beam * count]), 2 * beam)
        token = tf.gather(tf.reshape(token, [-1, beam * count]), place, batch_dims=1)
        return log_prob, place // count, token
