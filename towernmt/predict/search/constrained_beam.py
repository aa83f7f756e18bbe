"""Beam search with lexical constraints: phrases that each translation must contain (Post & Vilar 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.models.kernels import padded_tensor
from towernmt.predict.search.beam_search import EXACT, Stopping
from towernmt.predict.search.decoding_interfaces import Candidates, Decoded, StepChoice, Strategy
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.scores import Scoring
from towernmt.predict.search.step_context import History, StepContext


class PhraseProgress(NamedTuple):
    """Matched tokens of the phrases in hypotheses.

    Attributes:
        begun: bool `[batch, n, phrases, longest + 1]`: at k, whether the last k tokens of the hypothesis are the first
            k of the phrase; at 0, whether an occurrence may begin with the next token.
        met: bool `[batch, n, phrases]`, whether the phrase has occurred.
    """

    begun: Tensor
    met: Tensor

    def selected(self, index: Tensor) -> PhraseProgress:
        """Return the progress of the hypotheses at the indices `index`, int32 `[batch, m]`."""
        return PhraseProgress(*(tf.gather(tensor, index, batch_dims=1) for tensor in self))


class Phrases(NamedTuple):
    """The phrases of the sentences of a batch. A phrase without tokens is padding, and met from the beginning.

    Attributes:
        tokens: int32 `[batch, phrases, longest]`, padded with PAD.
        length: int32 `[batch, phrases]`.
        repeats: bool `[batch, phrases, phrases]`, whether a phrase equals an earlier one.
        ending: bool `[batch, phrases]`, whether a phrase ends with EOS, and so ends the translation.
    """

    tokens: Tensor
    length: Tensor
    repeats: Tensor
    ending: Tensor

    @classmethod
    def of(cls, constraints: Tensor) -> Phrases:
        """Return the phrases of int32 `[batch, constraints, length]`, padded with PAD; `constraints` may be 0."""
        tokens = padded_tensor(constraints, [[0, 0], [0, 1], [0, 1]], PAD)   # an empty phrase and a column at least
        length = tf.math.count_nonzero(tokens, axis=2, dtype=tokens.dtype)
        equal = tf.reduce_all(tf.equal(tokens[:, :, None], tokens[:, None]), axis=3)
        index = tf.range(tf.shape(tokens)[1])
        earlier = index[None, :] < index[:, None]
        ending = tf.reduce_any(tf.equal(tokens, EOS), axis=2)
        return cls(tokens, length, equal & earlier & (length > 0)[:, :, None], ending)

    def start(self, hypotheses: int) -> PhraseProgress:
        """Return the progress of hypotheses without tokens."""
        batch, phrases, longest = tf.unstack(tf.shape(self.tokens))
        met = tf.tile(tf.equal(self.length, 0)[:, None], [1, hypotheses, 1])
        none = tf.zeros([batch, hypotheses, phrases, longest], tf.bool)
        return PhraseProgress(tf.concat([self._may_begin(met)[..., None], none], axis=3), met)

    def after(self, progress: PhraseProgress, token: Tensor) -> PhraseProgress:
        """Return the progress after the tokens int32 `[batch, n]` are appended to the hypotheses."""
        longer = progress.begun[..., :-1] & tf.equal(self.tokens[:, None], token[:, :, None, None])
        count = tf.cast(tf.range(1, tf.shape(self.tokens)[2] + 1), self.length.dtype)
        is_last = tf.equal(count, self.length[:, :, None])
        met = progress.met | tf.reduce_any(longer & is_last[:, None], axis=3)
        return PhraseProgress(tf.concat([self._may_begin(met)[..., None], longer], axis=3), met)

    def next_tokens(self, progress: PhraseProgress) -> tuple[Tensor, Tensor]:
        """Return the next token of each phrase.

        Returns:
            tokens int32 `[batch, n, phrases]`, and bool of the same shape: whether the phrase still needs a token.
        """
        matched = tf.transpose(self._furthest(progress), [0, 2, 1])
        token = tf.transpose(tf.gather(self.tokens, matched, batch_dims=2), [0, 2, 1])
        return token, progress.begun[..., 0] & ~progress.met & ~self._waiting(progress)

    def tokens_met(self, progress: PhraseProgress) -> Tensor:
        """Return the number of tokens of all met phrases and the longest partial match, int32 `[batch, n]`.

        Some next token always increases this number. So a search that keeps the hypotheses with the highest number
        meets all phrases in as many steps as they have tokens.
        """
        met_length = tf.where(progress.met, self.length[:, None], tf.zeros([], self.length.dtype))
        return tf.reduce_sum(met_length, axis=2) + tf.reduce_max(self._furthest(progress), axis=2)

    def missing(self, progress: PhraseProgress) -> Tensor:
        """Return the number of phrases that have not occurred, int32 `[batch, n]`."""
        return tf.math.count_nonzero(~progress.met, axis=2, dtype=self.length.dtype)

    def _furthest(self, progress: PhraseProgress) -> Tensor:
        """Return the number of matched tokens of each unmet phrase, int32 `[batch, n, phrases]`."""
        count, none = tf.range(tf.shape(self.tokens)[2] + 1), tf.zeros([], self.length.dtype)
        matched = tf.reduce_max(tf.where(progress.begun, tf.cast(count, none.dtype), none), axis=3)
        return tf.where(progress.met | self._waiting(progress), none, matched)

    def _waiting(self, progress: PhraseProgress) -> Tensor:
        """Return bool `[batch, n, phrases]`: whether a phrase ends the translation while others have not occurred."""
        ending = self.ending[:, None]
        return ending & tf.reduce_any(~progress.met & ~ending, axis=2, keepdims=True)

    def _may_begin(self, met: Tensor) -> Tensor:
        """Return bool `[batch, n, phrases]`: whether a phrase may begin. Equal phrases must not overlap."""
        return ~tf.reduce_any(self.repeats[:, None] & ~met[:, :, None], axis=3)


def allocated(log_prob: Tensor, bank: Tensor, count: int) -> Tensor:
    """Return the indices of the candidates of each sentence that get a slot of the beam.

    Only candidates of the same bank compete by log-probability. The slots go in turn to the best candidate of each
    bank, the highest bank first, then to the second best of each, and so on. So the banks share the beam evenly, and
    the other banks get the slots that a bank cannot fill (dynamic beam allocation, Post & Vilar 2018; in turn as in Hu
    et al. 2019). If candidates have equal log-probability, the first one wins.

    Args:
        log_prob: float32 `[batch, m]`; candidates with `NEG_INF` are last.
        bank: int32 `[batch, m]`, from 0.
        count: number of slots, at most m.

    Returns:
        int32 `[batch, count]`, from 0 to m - 1.
    """
    log_prob, by_score = tf.math.top_k(log_prob, tf.shape(log_prob)[1])
    bank, size = tf.gather(bank, by_score, batch_dims=1), tf.cast(tf.shape(log_prob)[1], bank.dtype)
    banks = tf.reduce_max(bank, axis=1, keepdims=True) + 1
    member = tf.one_hot(bank, tf.cast(tf.reduce_max(banks), tf.int32), dtype=bank.dtype)      # [batch, m, banks]
    rank = tf.reduce_sum(tf.cumsum(member, axis=1, exclusive=True) * member, axis=2)
    order = rank * banks + banks - 1 - bank
    order = tf.where(log_prob > NEG_INF, order, size * banks)
    _, index = tf.math.top_k(-order, count)
    return tf.gather(by_score, index, batch_dims=1)


class FinishedWithPhrases(NamedTuple):
    """Finished hypotheses, sorted by the number of missing phrases and then by their score, best first.

    Attributes:
        history: `[batch, beam, length]`.
        score: float32 `[batch, beam]`; `NEG_INF` in empty entries.
        missing: int32 `[batch, beam]`, number of missing phrases.
    """

    history: History
    score: Tensor
    missing: Tensor


class ConstrainedBeamState(NamedTuple):
    """State between two steps.

    Attributes:
        log_prob: float32 `[batch, beam]`, log-probabilities of the live hypotheses.
        progress: progress of the live hypotheses.
        phrases: phrases of the sentences; the same at every step.
        finished: the best finished hypotheses.
        num_finished: number of finished hypotheses; see `Stopping.count_finished`.
        done: bool `[batch]`, whether the finished hypotheses are final.
    """

    log_prob: Tensor
    progress: PhraseProgress
    phrases: Phrases
    finished: FinishedWithPhrases
    num_finished: Tensor
    done: Tensor


class ConstrainedBeamSearch(Strategy):
    """Beam search with lexical constraints from the input `constraints`.

    The beam is shared evenly by hypotheses with different numbers of matched tokens. A hypothesis may end with EOS only
    when all phrases of its sentence have occurred. If no hypothesis reaches this before the length limit, the
    hypotheses that lack the fewest phrases are returned.

    Args:
        beam_size: number of live hypotheses, and of finished ones; at least twice the number of tokens in the phrases
            is recommended.
        n_best: number of hypotheses to return.
        scoring: scores of finished hypotheses.
        stopping: rule for ending the search before the length limit.
    """

    def __init__(self, beam_size: int, n_best: int, scoring: Scoring, stopping: Stopping = EXACT) -> None:
        self.width, self.reads_attention = beam_size, scoring.reads_attention
        self._n_best, self._scoring, self._stopping = n_best, scoring, stopping

    def inputs(self) -> Sequence[TensorSpec]:
        """Return `constraints`: the phrases of each sentence, `[batch, phrases, tokens]`, padded with PAD (0)."""
        return [tf.TensorSpec([None, None, None], tf.int32, "constraints")]

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> ConstrainedBeamState:
        batch = tf.shape(empty.tokens)[0]
        phrases = Phrases.of(inputs["constraints"])
        none = tf.fill([batch, self.width], NEG_INF)
        return ConstrainedBeamState(
            # One live hypothesis, the empty one; the others of the beam have probability 0.
            log_prob=tf.tile(tf.constant([[0.0] + [NEG_INF] * (self.width - 1)]), [batch, 1]),
            progress=phrases.start(self.width), phrases=phrases,
            finished=FinishedWithPhrases(empty, none, tf.zeros_like(none, phrases.length.dtype)),
            num_finished=self._stopping.start(batch), done=tf.zeros([batch], tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: ConstrainedBeamState) -> StepChoice:
        beam, phrases = self.width, state.phrases
        log_prob, parent, token = self._extensions(candidates, state)           # each [batch, m]
        progress = phrases.after(state.progress.selected(parent), token)
        log_prob = tf.where(tf.equal(token, EOS) & (phrases.missing(progress) > 0), NEG_INF, log_prob)

        index = allocated(log_prob, phrases.tokens_met(progress), 2 * beam)
        log_prob, parent, token = (tf.gather(x, index, batch_dims=1) for x in (log_prob, parent, token))
        progress = progress.selected(index)
        is_eos = tf.equal(token, EOS)

        # Only the first `beam` candidates can finish, by EOS or the length limit. Plain beam search does the same.
        at_limit = context.step + 1 >= context.limit                            # [batch]
        final = tf.logical_or(is_eos[:, :beam], at_limit[:, None]) & ~state.done[:, None]
        extended = context.extend(parent[:, :beam], token[:, :beam])
        score = self._scoring(log_prob[:, :beam], context.step + 1, extended, context.inputs)
        score = tf.where(final, score, NEG_INF)
        finished = self._merged(state.finished, FinishedWithPhrases(
            extended, score, phrases.missing(progress)[:, :beam]))

        # At most one candidate of a hypothesis is EOS, so at least `beam` of 2 * beam candidates stay live.
        rank = tf.cast(tf.range(2 * beam), token.dtype)
        eos_last = tf.where(is_eos, tf.constant(2 * beam, token.dtype), tf.zeros([], token.dtype))
        _, kept = tf.math.top_k(-rank - eos_last, beam)
        live = tf.gather(tf.where(is_eos, NEG_INF, log_prob), kept, batch_dims=1)
        count = self._stopping.count_finished(state.num_finished, score)
        done = state.done | at_limit | self._is_decided(count, live, finished, context.limit)
        return StepChoice(
            parent=tf.gather(parent, kept, batch_dims=1), token=tf.gather(token, kept, batch_dims=1),
            state=ConstrainedBeamState(live, progress.selected(kept), phrases, finished, count, done))

    def is_done(self, state: ConstrainedBeamState) -> Tensor:
        return state.done

    def result(self, state: ConstrainedBeamState, live: History) -> Decoded:
        """Return those of the n best hypotheses that lack no more phrases than the best one."""
        history, score, missing = tf.nest.map_structure(lambda tensor: tensor[:, :self._n_best], state.finished)
        score = tf.where(tf.equal(missing, missing[:, :1]), score, NEG_INF)
        history = history.where(score > NEG_INF)
        return Decoded(history.tokens, score, history.attention, history.log_probs)

    def _extensions(self, candidates: Candidates, state: ConstrainedBeamState) -> tuple[Tensor, Tensor, Tensor]:
        """Return the most probable next tokens of each live hypothesis, and the next tokens of its phrases, each once.

        Returns:
            log-probability float32, parent (index in the beam) int32, and token int32, each `[batch, m]`.
        """
        beam = self.width
        log_prob, token = candidates.best(2 * beam)                             # [batch * beam, count]
        phrase_token, is_needed = (tf.reshape(tensor, [tf.shape(token)[0], -1])
                                   for tensor in state.phrases.next_tokens(state.progress))
        index = tf.range(tf.shape(phrase_token)[1])
        repeated = tf.reduce_any(tf.equal(phrase_token[:, :, None], phrase_token[:, None]) & is_needed[:, None]
                                 & (index[None, :] < index[:, None]), axis=2)
        is_candidate = tf.reduce_any(tf.equal(phrase_token[:, :, None], token[:, None]), axis=2)
        phrase_log_prob = tf.where(is_needed & ~repeated & ~is_candidate, candidates.log_probs(phrase_token), NEG_INF)

        log_prob = tf.concat([log_prob, phrase_log_prob], axis=1)
        count = tf.shape(log_prob)[1]
        log_prob = tf.reshape(log_prob, [-1, beam, count]) + state.log_prob[:, :, None]
        batch = tf.shape(log_prob)[0]
        parent = tf.tile(tf.repeat(tf.cast(tf.range(beam), token.dtype), count)[None], [batch, 1])
        return (tf.reshape(log_prob, [batch, beam * count]), parent,
                tf.reshape(tf.concat([token, phrase_token], axis=1), [batch, beam * count]))

    def _merged(self, before: FinishedWithPhrases, new: FinishedWithPhrases) -> FinishedWithPhrases:
        """Return the best `beam` of the previous and the new finished hypotheses, which have one more token."""
        score = tf.concat([before.score, new.score], axis=1)
        missing = tf.concat([before.missing, new.missing], axis=1)
        _, by_score = tf.math.top_k(score, 2 * self.width)
        num_missing = tf.where(score > NEG_INF, missing, tf.constant(tf.int32.max, missing.dtype))
        _, index = tf.math.top_k(-tf.gather(num_missing, by_score, batch_dims=1), self.width)
        index = tf.gather(by_score, index, batch_dims=1)

        score = tf.gather(score, index, batch_dims=1)
        history = before.history.joined_with(new.history).selected(index).where(score > NEG_INF)
        return FinishedWithPhrases(history, score, tf.gather(missing, index, batch_dims=1))

    def _is_decided(self, num_finished: Tensor, log_prob: Tensor, finished: FinishedWithPhrases,
                    limit: Tensor) -> Tensor:
        """Return whether the finished hypotheses are final, bool `[batch]`."""
        if self.width == 1:         # greedy: the first end is the end
            return finished.score[:, 0] > NEG_INF
        last = self._n_best - 1
        score = tf.where(tf.equal(finished.missing[:, last], 0), finished.score[:, last], NEG_INF)
        return self._stopping.is_decided(num_finished, score, tf.reduce_max(log_prob, axis=1), limit, self._scoring)
