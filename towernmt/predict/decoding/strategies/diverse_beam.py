"""Diverse beam search as a strategy: groups of a beam that differ from each other.

Vijayakumar et al. (2016), "Diverse Beam Search: Decoding Diverse Solutions from Neural Sequence Models", with Hamming
diversity: at each step the groups choose one after the other, and a token is the less attractive to a group the more
hypotheses of earlier groups have taken it at this step. What a token loses so stays with its hypothesis when it is
compared with others of its group, as in the authors' program; scores of finished hypotheses are without it.
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


class Group(NamedTuple):
    """The hypotheses of a group.

    Attributes:
        log_prob: float32 `[batch, size]`, of the live ones.
        value: float32 `[batch, size]`, descending: their log-probability less what their tokens lost.
        finished: the best finished ones, `size` of them.
        ended: how many have finished, as `Stopping` counts them.
        decided: bool `[batch]`, whether the finished ones are final, but for the other groups.
    """

    log_prob: Tensor
    value: Tensor
    finished: Finished
    ended: Tensor
    decided: Tensor


class DiverseBeamState(NamedTuple):
    """What a step hands to the next: the groups, and which sentences are done (bool `[batch]`)."""

    groups: tuple[Group, ...]
    done: Tensor


class _Extensions(NamedTuple):
    """One-token extensions of a group's live hypotheses, each `[batch, n]`; parents are places in the whole beam."""

    value: Tensor
    log_prob: Tensor
    parent: Tensor
    token: Tensor

    def at(self, place: Tensor) -> _Extensions:
        return _Extensions(*(tf.gather(tensor, place, batch_dims=1) for tensor in self))


class DiverseBeamSearch(Strategy):
    """Each group keeps its most probable hypotheses, and its own finished ones."""

    def __init__(self, beam_size: int, groups: int, diversity: float, n_best: int, scoring: Scoring,
                 stopping: Stopping = EXACT) -> None:
        """
        Args:
            beam_size: how many live in all groups together.
            groups: a divisor of the beam size.
            diversity: what a token loses for each hypothesis of an earlier group that has taken it, in nats.
            n_best: how many are given, of all groups together.
            scoring: what finished hypotheses are compared by.
            stopping: when those of a group are final before the length limit is reached.
        """
        self.width, self.reads_attention = beam_size, scoring.reads_attention
        self._groups, self._size, self._diversity = groups, beam_size // groups, diversity
        self._n_best, self._scoring, self._stopping = n_best, scoring, stopping

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> DiverseBeamState:
        batch = tf.shape(empty.tokens)[0]
        # One live hypothesis in each group, the empty one; the others have probability 0.
        log_prob = tf.tile(tf.constant([[0.0] + [NEVER] * (self._size - 1)]), [batch, 1])
        none = Finished.none(tf.nest.map_structure(lambda tensor: tensor[:, :self._size], empty))
        undecided = tf.zeros([batch], tf.bool)
        group = Group(log_prob, log_prob, none, self._stopping.start(batch), undecided)
        return DiverseBeamState((group,) * self._groups, undecided)

    def choose(self, candidates: Candidates, context: StepContext, state: DiverseBeamState) -> Choice:
        # An earlier group can take one of these tokens from a group for each of its hypotheses.
        log_prob, token = candidates.best(2 * self._size + self.width - self._size)
        log_prob, token = (tf.reshape(tensor, [-1, self.width, token.shape[1]]) for tensor in (log_prob, token))
        taken, parents = tf.zeros([tf.shape(state.done)[0], 0], tf.int32), []
        groups = []
        for number, group in enumerate(state.groups):
            rows = slice(number * self._size, (number + 1) * self._size)
            extensions = self._best(group, log_prob[:, rows], token[:, rows], taken, number * self._size)
            group, live = self._grown(group, extensions, context, state.done)
            groups.append(group)
            taken = tf.concat([taken, live.token], axis=1)
            parents.append(live.parent)
        decided = tf.reduce_all(tf.stack([group.decided for group in groups]), axis=0)
        return Choice(tf.concat(parents, axis=1), taken, DiverseBeamState(
            tuple(groups), state.done | decided | (context.step + 1 >= context.limit)))

    def is_done(self, state: DiverseBeamState) -> Tensor:
        return state.done

    def result(self, state: DiverseBeamState, live: History) -> Decoded:
        every = tf.nest.map_structure(lambda *groups: tf.concat(groups, axis=1),
                                      *(group.finished for group in state.groups))
        score, place = tf.math.top_k(every.score, self._n_best)
        best = every.history.selected(place)
        return Decoded(best.tokens, score, best.attention, best.log_probs)

    def _best(self, group: Group, log_prob: Tensor, token: Tensor, taken: Tensor, first: int) -> _Extensions:
        """The best 2 * size extensions of a group's live hypotheses, best first.

        Args:
            log_prob, token: of the next tokens of each, `[batch, size, count]`.
            taken: int32 `[batch, n]`, the tokens that the live hypotheses of earlier groups have taken.
            first: the place of the group's first hypothesis in the beam.
        """
        times = tf.math.count_nonzero(tf.equal(token[..., None], taken[:, None, None]), axis=3, dtype=tf.float32)
        count = token.shape[2]
        value, place = tf.math.top_k(_flat(log_prob - self._diversity * times + group.value[:, :, None]),
                                     2 * self._size)
        log_prob, token = (tf.gather(_flat(tensor), place, batch_dims=1)
                           for tensor in (log_prob + group.log_prob[:, :, None], token))
        return _Extensions(value, log_prob, first + place // count, token)

    def _grown(self, group: Group, extensions: _Extensions, context: StepContext,
               done: Tensor) -> tuple[Group, _Extensions]:
        """A group after the step, and the extensions that live on in it, `[batch, size]`."""
        size = self._size
        at_limit = context.step + 1 >= context.limit
        is_eos = tf.equal(extensions.token, EOS)
        final = tf.logical_or(is_eos[:, :size], at_limit[:, None]) & ~done[:, None]
        ended = context.grown(extensions.parent[:, :size], extensions.token[:, :size])
        score = self._scoring(extensions.log_prob[:, :size], context.step + 1, ended, context.inputs)
        finished = group.finished.merged(ended, tf.where(final, score, NEVER))

        value, place = tf.math.top_k(tf.where(is_eos, NEVER, extensions.value), size)
        live = extensions.at(place)
        log_prob = tf.where(value > NEVER, live.log_prob, NEVER)
        count = self._stopping.counted(group.ended, final)
        decided = self._stopping.is_decided(
            count, finished.score[:, min(self._n_best, size) - 1], tf.reduce_max(log_prob, axis=1), context.limit,
            self._scoring)
        return Group(log_prob, value, finished, count, group.decided | decided), live


def _flat(tensor: Tensor) -> Tensor:
    """`[batch, size, count]` as `[batch, size * count]`."""
    return tf.reshape(tensor, [-1, tensor.shape[1] * tensor.shape[2]])
