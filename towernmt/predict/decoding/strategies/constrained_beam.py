"""Beam search for translations that hold given phrases, as a strategy.

The beam is shared by hypotheses that have different parts of the phrases (dynamic beam allocation: Post & Vilar 2018,
"Fast Lexically Constrained Decoding with Dynamic Beam Allocation"; vectorised over a batch: Hu et al. 2019, "Improved
Lexically Constrained Decoding for Translation and Monolingual Rewriting"). A sentence without phrases gets what
`BeamSearch` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.processors.processor import NEVER
from towernmt.predict.decoding.scores import Scoring
from towernmt.predict.decoding.step import History, StepContext
from towernmt.predict.decoding.strategies.allocation import allocated
from towernmt.predict.decoding.strategies.phrases import Phrases, Progress
from towernmt.predict.decoding.strategies.stopping import EXACT, Stopping
from towernmt.predict.decoding.strategies.strategy import Choice, Decoded, Strategy


class FinishedWithPhrases(NamedTuple):
    """Hypotheses that have ended, best first: those that lack fewer phrases, then those with the higher score.

    Attributes:
        history: `[batch, beam, length]`.
        score: float32 `[batch, beam]`; `NEVER` for an empty place.
        missing: int32 `[batch, beam]`, phrases that a hypothesis lacks.
    """

    history: History
    score: Tensor
    missing: Tensor


class ConstrainedBeamState(NamedTuple):
    """What a step hands to the next.

    Attributes:
        log_prob: float32 `[batch, beam]`, of the live hypotheses.
        progress: of the live hypotheses.
        phrases: of the sentences; the same at every step.
        finished: the best finished hypotheses.
        ended: how many hypotheses have finished, as `Stopping` counts them.
        done: bool `[batch]`, whether these are final.
    """

    log_prob: Tensor
    progress: Progress
    phrases: Phrases
    finished: FinishedWithPhrases
    ended: Tensor
    done: Tensor


class ConstrainedBeamSearch(Strategy):
    """Keeps the most probable hypotheses of each state of the phrases. It reads the input `constraints`.

    A hypothesis ends with EOS only when all phrases of its sentence have occurred. If the length limit comes before
    that, the hypotheses that lack the fewest phrases are given.
    """

    def __init__(self, beam_size: int, n_best: int, scoring: Scoring, stopping: Stopping = EXACT) -> None:
        """
        Args:
            beam_size: how many live, and how many finished ones are kept. Twice as many as there are tokens in the
                phrases leave room for choice.
            n_best: how many are given.
            scoring: what finished hypotheses are compared by.
            stopping: when they are final before the length limit is reached.
        """
        self.width, self.reads_attention = beam_size, scoring.reads_attention
        self._n_best, self._scoring, self._stopping = n_best, scoring, stopping

    def inputs(self) -> Sequence[TensorSpec]:
        """`constraints`: the phrases of each sentence, `[batch, phrases, tokens]`, padded with PAD (0)."""
        return [tf.TensorSpec([None, None, None], tf.int32, "constraints")]

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> ConstrainedBeamState:
        batch = tf.shape(empty.tokens)[0]
        phrases = Phrases.of(inputs["constraints"])
        none = tf.fill([batch, self.width], NEVER)
        return ConstrainedBeamState(
            # One live hypothesis, the empty one; the others of the beam have probability 0.
            log_prob=tf.tile(tf.constant([[0.0] + [NEVER] * (self.width - 1)]), [batch, 1]),
            progress=phrases.start(self.width), phrases=phrases,
            finished=FinishedWithPhrases(empty, none, tf.zeros_like(none, tf.int32)),
            ended=self._stopping.start(batch), done=tf.zeros([batch], tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: ConstrainedBeamState) -> Choice:
        beam, phrases = self.width, state.phrases
        log_prob, parent, token = self._extensions(candidates, state)           # each [batch, m]
        progress = phrases.after(state.progress.selected(parent), token)
        log_prob = tf.where(tf.equal(token, EOS) & (phrases.missing(progress) > 0), NEVER, log_prob)

        place = allocated(log_prob, phrases.tokens_met(progress), 2 * beam)
        log_prob, parent, token = (tf.gather(x, place, batch_dims=1) for x in (log_prob, parent, token))
        progress = progress.selected(place)
        is_eos = tf.equal(token, EOS)

        # As in plain beam search: what ends among the first `beam` is finished, or is cut at the sentence's limit.
        at_limit = context.step + 1 >= context.limit                            # [batch]
        final = tf.logical_or(is_eos[:, :beam], at_limit[:, None]) & ~state.done[:, None]
        ended = context.grown(parent[:, :beam], token[:, :beam])
        score = self._scoring(log_prob[:, :beam], context.step + 1, ended, context.inputs)
        finished = self._merged(state.finished, FinishedWithPhrases(
            ended, tf.where(final, score, NEVER), phrases.missing(progress)[:, :beam]))

        # At most one candidate of a hypothesis is EOS, so at least `beam` of 2 * beam live on.
        _, first = tf.math.top_k(-tf.range(2 * beam) - tf.where(is_eos, 2 * beam, 0), beam)
        live = tf.gather(tf.where(is_eos, NEVER, log_prob), first, batch_dims=1)
        count = self._stopping.counted(state.ended, final)
        done = state.done | at_limit | self._is_decided(count, live, finished, context.limit)
        return Choice(
            parent=tf.gather(parent, first, batch_dims=1), token=tf.gather(token, first, batch_dims=1),
            state=ConstrainedBeamState(live, progress.selected(first), phrases, finished, count, done))

    def is_done(self, state: ConstrainedBeamState) -> Tensor:
        return state.done

    def result(self, state: ConstrainedBeamState, live: History) -> Decoded:
        """Of the n best, those that lack no more phrases than the best."""
        history, score, missing = tf.nest.map_structure(lambda tensor: tensor[:, :self._n_best], state.finished)
        score = tf.where(tf.equal(missing, missing[:, :1]), score, NEVER)
        history = _where(score > NEVER, history)
        return Decoded(history.tokens, score, history.attention, history.log_probs)

    def _extensions(self, candidates: Candidates, state: ConstrainedBeamState) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest next tokens of each live hypothesis, and those that bring its phrases on, each once.

        Returns:
            log-probability float32, parent (place in the beam) int32, token int32, each `[batch, m]`.
        """
        beam = self.width
        log_prob, token = candidates.best(2 * beam)                             # [batch * beam, count]
        wanted, needed = (tf.reshape(x, [tf.shape(token)[0], -1]) for x in state.phrases.next_tokens(state.progress))
        number = tf.range(tf.shape(wanted)[1])
        repeated = tf.reduce_any(tf.equal(wanted[:, :, None], wanted[:, None]) & needed[:, None]
                                 & (number[None, :] < number[:, None]), axis=2)
        there = tf.reduce_any(tf.equal(wanted[:, :, None], token[:, None]), axis=2)
        wanted_log_prob = tf.where(needed & ~repeated & ~there, candidates.log_probs(wanted), NEVER)

        log_prob = tf.concat([log_prob, wanted_log_prob], axis=1)
        count = tf.shape(log_prob)[1]
        log_prob = tf.reshape(log_prob, [-1, beam, count]) + state.log_prob[:, :, None]
        batch = tf.shape(log_prob)[0]
        parent = tf.tile(tf.repeat(tf.range(beam), count)[None], [batch, 1])
        return (tf.reshape(log_prob, [batch, beam * count]), parent,
                tf.reshape(tf.concat([token, wanted], axis=1), [batch, beam * count]))

    def _merged(self, before: FinishedWithPhrases, new: FinishedWithPhrases) -> FinishedWithPhrases:
        """The best `beam` of the finished hypotheses so far and of `new` ones, which are longer by a token."""
        score = tf.concat([before.score, new.score], axis=1)
        missing = tf.concat([before.missing, new.missing], axis=1)
        _, by_score = tf.math.top_k(score, 2 * self.width)
        lack = tf.where(score > NEVER, missing, tf.int32.max)
        _, place = tf.math.top_k(-tf.gather(lack, by_score, batch_dims=1), self.width)
        place = tf.gather(by_score, place, batch_dims=1)

        def merged(one: Tensor, other: Tensor) -> Tensor:
            padding = [[0, 0], [0, 0], [0, 1]] + [[0, 0]] * (one.shape.rank - 3)
            both = tf.concat([tf.pad(one, padding, constant_values=PAD), other], axis=1)
            return tf.gather(both, place, batch_dims=1)

        score = tf.gather(score, place, batch_dims=1)
        history = _where(score > NEVER, tf.nest.map_structure(merged, before.history, new.history))
        return FinishedWithPhrases(history, score, tf.gather(missing, place, batch_dims=1))

    def _is_decided(self, ended: Tensor, log_prob: Tensor, finished: FinishedWithPhrases, limit: Tensor) -> Tensor:
        """Whether the finished hypotheses are final, bool `[batch]`."""
        if self.width == 1:         # greedy: the first end is the end
            return finished.score[:, 0] > NEVER
        last = self._n_best - 1
        score = tf.where(tf.equal(finished.missing[:, last], 0), finished.score[:, last], NEVER)
        return self._stopping.is_decided(ended, score, tf.reduce_max(log_prob, axis=1), limit, self._scoring)


def _where(taken: Tensor, history: History) -> History:
    """PAD and 0 where a place is not taken, bool `[batch, n]`."""
    def cleared(tensor: Tensor) -> Tensor:
        shape = tf.concat([tf.shape(taken), tf.ones([tensor.shape.rank - 2], tf.int32)], axis=0)
        return tf.where(tf.reshape(taken, shape), tensor, tf.zeros_like(tensor))
    return tf.nest.map_structure(cleared, history)
