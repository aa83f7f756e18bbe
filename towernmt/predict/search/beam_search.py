"""Beam search and greedy search as strategies, and the rule for the end of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.models.kernels import as_ids
from towernmt.predict.search.decoding_interfaces import Candidates, Decoded, StepChoice, Strategy
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.scores import Scoring
from towernmt.predict.search.step_context import History, StepContext


@dataclass(frozen=True)
class Stopping:
    """A rule for the end of a beam's search.

    Attributes:
        exact: end when no unfinished hypothesis can become one of the n best any more. The result equals that of a
            search up to the length limit.
        max_finished: number of finished hypotheses at which the search ends; 0 for no limit. Most systems use the beam
            size; a multiple of it is a patience (Kasai et al. 2022, "A Call for Clarity in Beam Search").
    """

    exact: bool = True
    max_finished: int = 0

    def start(self, batch: Tensor) -> Tensor:
        """Return the number of finished hypotheses before the first step, ids `[batch]`; `()` if it is not needed."""
        return as_ids(tf.zeros([batch], tf.int32)) if self.max_finished else ()

    def count_finished(self, num_finished: Tensor, score: Tensor) -> Tensor:
        """Return the number of finished hypotheses after a step, ids `[batch]`.

        Args:
            num_finished: number before the step.
            score: float32 `[batch, n]`, scores of the candidates of the step; `NEG_INF` for unfinished ones, and for
                impossible ones, which fill up a beam with fewer possible candidates.
        """
        if not self.max_finished:
            return ()
        return num_finished + tf.math.count_nonzero(score > NEG_INF, axis=1, dtype=num_finished.dtype)

    def is_decided(self, num_finished: Tensor, last_score: Tensor, best_live: Tensor, limit: Tensor,
                   scoring: Scoring) -> Tensor:
        """Return whether the finished hypotheses are final, bool `[batch]`.

        Args:
            num_finished: number of finished hypotheses, from `count_finished`.
            last_score: float32 `[batch]`, score of the last of the n best hypotheses.
            best_live: float32 `[batch]`, highest log-probability of an unfinished hypothesis.
            limit: int32 `[batch]`, maximum number of tokens of a hypothesis.
            scoring: the scoring.
        """
        decided = tf.zeros_like(limit, tf.bool)
        if self.exact:
            decided = last_score >= scoring.bound(best_live, limit)
        return decided | (num_finished >= self.max_finished) if self.max_finished else decided


EXACT = Stopping()


class Finished(NamedTuple):
    """The best finished hypotheses of each sentence.

    Attributes:
        history: `[batch, n, length]`; PAD and 0 in empty entries.
        score: float32 `[batch, n]`, descending; `NEG_INF` in empty entries.
    """

    history: History
    score: Tensor

    @classmethod
    def none(cls, empty: History) -> Finished:
        """Return the state before the first step; `empty` has n hypotheses without tokens."""
        return cls(empty, tf.fill(tf.shape(empty.tokens)[:2], NEG_INF))

    def merged(self, new: History, score: Tensor) -> Finished:
        """Return the best n of the finished hypotheses before a step and of new ones.

        Args:
            new: new hypotheses, `[batch, m, length + 1]`.
            score: float32 `[batch, m]`; `NEG_INF` for unfinished hypotheses.
        """
        best, index = tf.math.top_k(tf.concat([self.score, score], axis=1), self.score.shape[1])
        return Finished(self.history.joined_with(new).selected(index).where(best > NEG_INF), best)


class GreedyState(NamedTuple):
    """State of greedy search between two steps.

    Attributes:
        log_prob: float32 `[batch, 1]`, log-probability of the hypothesis.
        score: float32 `[batch, 1]`; `NEG_INF` while the hypothesis is unfinished.
        done: bool `[batch, 1]`, whether the hypothesis is finished.
    """

    log_prob: Tensor
    score: Tensor
    done: Tensor


class GreedySearch(Strategy):
    """One hypothesis per sentence, extended by the most probable token; of equal tokens, by the smaller id."""

    width, reorders = 1, False

    def __init__(self, scoring: Scoring) -> None:
        self._scoring, self.reads_attention = scoring, scoring.reads_attention

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> GreedyState:
        shape = tf.shape(empty.tokens)[:2]  # [batch, 1]
        return GreedyState(tf.zeros(shape), tf.fill(shape, NEG_INF), tf.zeros(shape, tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: GreedyState) -> StepChoice:
        length = context.step + 1
        log_prob, token = candidates.best(1)
        token_log_prob, index = tf.math.top_k(log_prob, 1)  # the first one may be forbidden
        token = tf.where(state.done, tf.constant(PAD, token.dtype), tf.gather(token, index, batch_dims=1))
        log_prob = state.log_prob + token_log_prob
        done = state.done | tf.equal(token, EOS) | (length >= context.limit)[:, None]
        score = self._scoring(log_prob, length, context.extend(None, token), context.inputs)
        return StepChoice(None, token, GreedyState(log_prob, tf.where(done & ~state.done, score, state.score), done))

    def is_done(self, state: GreedyState) -> Tensor:
        return state.done[:, 0]

    def result(self, state: GreedyState, live: History) -> Decoded:
        # A sentence has no translation if every token was forbidden.
        exists = (state.score > NEG_INF)[:, :, None]
        history = live._replace(tokens=tf.where(exists, live.tokens, tf.constant(PAD, live.tokens.dtype)))
        history = history.without_attention_of_padding()
        return Decoded(history.tokens, state.score, history.attention, history.log_probs)


class BeamState(NamedTuple):
    """State of beam search between two steps.

    Attributes:
        live_log_prob: float32 `[batch, beam]`, log-probabilities of the live hypotheses, descending.
        finished: the best `beam` finished hypotheses.
        num_finished: number of finished hypotheses; see `Stopping.count_finished`.
        done: bool `[batch]`, whether the finished hypotheses are final.
    """

    live_log_prob: Tensor
    finished: Finished
    num_finished: Tensor
    done: Tensor


class BeamSearch(Strategy):
    """Beam search. With equal scores, the earlier hypothesis and the smaller token id win.

    Args:
        beam_size: number of live, and maximum number of finished hypotheses.
        n_best: number of returned hypotheses.
        scoring: scoring of finished hypotheses.
        stopping: rule for an end before the length limit.
    """

    def __init__(self, beam_size: int, n_best: int, scoring: Scoring, stopping: Stopping = EXACT) -> None:
        self.width, self.reads_attention = beam_size, scoring.reads_attention
        self._n_best, self._scoring, self._stopping = n_best, scoring, stopping

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> BeamState:
        batch = tf.shape(empty.tokens)[0]
        # One live hypothesis, the empty one; the others of the beam have probability 0.
        log_prob = tf.constant([[0.0] + [NEG_INF] * (self.width - 1)])
        return BeamState(
            live_log_prob=tf.tile(log_prob, [batch, 1]), finished=Finished.none(empty),
            num_finished=self._stopping.start(batch), done=tf.zeros([batch], tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: BeamState) -> StepChoice:
        beam, length = self.width, context.step + 1
        log_prob, parent, token = self._best_extensions(candidates, state)  # each [batch, 2 * beam]
        is_eos = tf.equal(token, EOS)

        # A hypothesis is finished if it ends among the best `beam`, or is cut at the sentence's limit.
        at_limit = length >= context.limit  # [batch]
        final = tf.logical_or(is_eos[:, :beam], at_limit[:, None]) & ~state.done[:, None]
        extended = context.extend(parent[:, :beam], token[:, :beam])
        score = tf.where(final, self._scoring(log_prob[:, :beam], length, extended, context.inputs), NEG_INF)
        finished = state.finished.merged(extended, score)

        # At most `beam` of the 2 * beam candidates end, so at least `beam` stay live.
        live_log_prob, index = tf.math.top_k(tf.where(is_eos, NEG_INF, log_prob), beam)
        count = self._stopping.count_finished(state.num_finished, score)
        decided = self._stopping.is_decided(
            count, finished.score[:, self._n_best - 1], live_log_prob[:, 0], context.limit, self._scoring)
        return StepChoice(
            parent=tf.gather(parent, index, batch_dims=1), token=tf.gather(token, index, batch_dims=1),
            state=BeamState(live_log_prob, finished, count, state.done | at_limit | decided))

    def is_done(self, state: BeamState) -> Tensor:
        return state.done

    def result(self, state: BeamState, live: History) -> Decoded:
        history, score = tf.nest.map_structure(lambda tensor: tensor[:, :self._n_best], state.finished)
        return Decoded(history.tokens, score, history.attention, history.log_probs)

    def _best_extensions(self, candidates: Candidates, state: BeamState) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best 2 * beam one-token extensions of a sentence's live hypotheses, best first.

        Returns:
            log-probability float32, parent (index in the beam) and token ids, each `[batch, 2 * beam]`.
        """
        beam = self.width
        log_prob, token = candidates.best(2 * beam)  # [batch * beam, count]
        count = token.shape[1]
        log_prob = tf.reshape(log_prob, [-1, beam, count]) + state.live_log_prob[:, :, None]
        log_prob, index = tf.math.top_k(tf.reshape(log_prob, [-1, beam * count]), 2 * beam)
        token = tf.gather(tf.reshape(token, [-1, beam * count]), index, batch_dims=1)
        return log_prob, as_ids(index) // count, token
