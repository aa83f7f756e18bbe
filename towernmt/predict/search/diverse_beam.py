"""Diverse beam search: groups of hypotheses that avoid the tokens of earlier groups (Vijayakumar et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS
from towernmt.models.kernels import as_ids
from towernmt.predict.search.beam_search import EXACT, Finished, Stopping
from towernmt.predict.search.decoding_interfaces import Candidates, Decoded, StepChoice, Strategy
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.scores import Scoring
from towernmt.predict.search.step_context import History, StepContext


class Group(NamedTuple):
    """Hypotheses of a group.

    Attributes:
        log_prob: float32 `[batch, size]`, log-probabilities of the live hypotheses.
        value: float32 `[batch, size]`, descending: `log_prob` minus the penalties of their tokens.
        finished: the best `size` finished hypotheses.
        num_finished: number of finished hypotheses; see `Stopping.count_finished`.
        decided: bool `[batch]`, whether the finished hypotheses of this group are final.
    """

    log_prob: Tensor
    value: Tensor
    finished: Finished
    num_finished: Tensor
    decided: Tensor


class DiverseBeamState(NamedTuple):
    """State between two steps: the groups, and whether a sentence is done, bool `[batch]`."""

    groups: tuple[Group, ...]
    done: Tensor


class _Extensions(NamedTuple):
    """Extensions of live hypotheses by one token, each `[batch, n]`; parents are indices in the complete beam."""

    value: Tensor
    log_prob: Tensor
    parent: Tensor
    token: Tensor

    def at(self, index: Tensor) -> _Extensions:
        return _Extensions(*(tf.gather(tensor, index, batch_dims=1) for tensor in self))


class DiverseBeamSearch(Strategy):
    """Diverse beam search: each group keeps its most probable live hypotheses and its best finished ones.

    Args:
        beam_size: number of live hypotheses in all groups together.
        groups: number of groups, a divisor of the beam size.
        diversity: penalty of a token for each hypothesis of an earlier group that ends with it at this step, in nats.
        n_best: number of hypotheses to return, of all groups together.
        scoring: scores of finished hypotheses.
        stopping: rule for ending the search of a group before the length limit.
    """

    def __init__(self, beam_size: int, groups: int, diversity: float, n_best: int, scoring: Scoring,
                 stopping: Stopping = EXACT) -> None:
        self.width, self.reads_attention = beam_size, scoring.reads_attention
        self._groups, self._size, self._diversity = groups, beam_size // groups, diversity
        self._n_best, self._scoring, self._stopping = n_best, scoring, stopping

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> DiverseBeamState:
        batch = tf.shape(empty.tokens)[0]
        # One live hypothesis in each group, the empty one; the others have probability 0.
        log_prob = tf.tile(tf.constant([[0.0] + [NEG_INF] * (self._size - 1)]), [batch, 1])
        none = Finished.none(tf.nest.map_structure(lambda tensor: tensor[:, :self._size], empty))
        undecided = tf.zeros([batch], tf.bool)
        group = Group(log_prob, log_prob, none, self._stopping.start(batch), undecided)
        return DiverseBeamState((group,) * self._groups, undecided)

    def choose(self, candidates: Candidates, context: StepContext, state: DiverseBeamState) -> StepChoice:
        # Each hypothesis of an earlier group can penalise one of these tokens.
        log_prob, token = candidates.best(2 * self._size + self.width - self._size)
        log_prob, token = (tf.reshape(tensor, [-1, self.width, token.shape[1]]) for tensor in (log_prob, token))
        tokens, parents = tf.zeros([tf.shape(state.done)[0], 0], token.dtype), []
        groups = []
        for group_number, group in enumerate(state.groups):
            rows = slice(group_number * self._size, (group_number + 1) * self._size)
            extensions = self._best(group, log_prob[:, rows], token[:, rows], tokens, group_number * self._size)
            group, live = self._grown(group, extensions, context, state.done)
            groups.append(group)
            tokens = tf.concat([tokens, live.token], axis=1)
            parents.append(live.parent)
        decided = tf.reduce_all(tf.stack([group.decided for group in groups]), axis=0)
        return StepChoice(tf.concat(parents, axis=1), tokens, DiverseBeamState(
            tuple(groups), state.done | decided | (context.step + 1 >= context.limit)))

    def is_done(self, state: DiverseBeamState) -> Tensor:
        return state.done

    def result(self, state: DiverseBeamState, live: History) -> Decoded:
        finished = tf.nest.map_structure(lambda *groups: tf.concat(groups, axis=1),
                                         *(group.finished for group in state.groups))
        score, index = tf.math.top_k(finished.score, self._n_best)
        best = finished.history.selected(index)
        return Decoded(best.tokens, score, best.attention, best.log_probs)

    def _best(self, group: Group, log_prob: Tensor, token: Tensor, earlier_tokens: Tensor, first: int) -> _Extensions:
        """Return the best 2 * size extensions of a group's live hypotheses, best first.

        Args:
            group: the group before the step.
            log_prob: float32 `[batch, size, count]`, log-probabilities of the next tokens of each hypothesis.
            token: int32 `[batch, size, count]`, these tokens.
            earlier_tokens: int32 `[batch, n]`, last tokens of the live hypotheses of earlier groups.
            first: index of the group's first hypothesis in the beam.
        """
        is_same = tf.equal(token[..., None], earlier_tokens[:, None, None])
        repeats, count = tf.math.count_nonzero(is_same, axis=3, dtype=tf.float32), token.shape[2]
        value, index = tf.math.top_k(_flat(log_prob - self._diversity * repeats + group.value[:, :, None]),
                                     2 * self._size)
        log_prob, token = (tf.gather(_flat(tensor), index, batch_dims=1)
                           for tensor in (log_prob + group.log_prob[:, :, None], token))
        return _Extensions(value, log_prob, first + as_ids(index) // count, token)

    def _grown(self, group: Group, extensions: _Extensions, context: StepContext,
               done: Tensor) -> tuple[Group, _Extensions]:
        """Return a group after the step, and the extensions that stay live in it, `[batch, size]`."""
        size = self._size
        at_limit = context.step + 1 >= context.limit
        is_eos = tf.equal(extensions.token, EOS)
        final = tf.logical_or(is_eos[:, :size], at_limit[:, None]) & ~done[:, None]
        extended = context.extend(extensions.parent[:, :size], extensions.token[:, :size])
        score = self._scoring(extensions.log_prob[:, :size], context.step + 1, extended, context.inputs)
        score = tf.where(final, score, NEG_INF)
        finished = group.finished.merged(extended, score)

        value, index = tf.math.top_k(tf.where(is_eos, NEG_INF, extensions.value), size)
        live = extensions.at(index)
        log_prob = tf.where(value > NEG_INF, live.log_prob, NEG_INF)
        count = self._stopping.count_finished(group.num_finished, score)
        decided = self._stopping.is_decided(
            count, finished.score[:, min(self._n_best, size) - 1], tf.reduce_max(log_prob, axis=1), context.limit,
            self._scoring)
        return Group(log_prob, value, finished, count, group.decided | decided), live


def _flat(tensor: Tensor) -> Tensor:
    """Reshape `[batch, size, count]` to `[batch, size * count]`."""
    return tf.reshape(tensor, [-1, tensor.shape[1] * tensor.shape[2]])
