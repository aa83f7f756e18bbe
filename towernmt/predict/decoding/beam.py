"""Beam search as one graph, for any `NMTModel`: encode once, then a loop of `decode_step`.

Finished hypotheses leave the beam and are kept apart, so that the beam is always full; a sentence is
done as soon as no unfinished hypothesis can still win. What a sentence gets never depends on its
neighbours in the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.predict.decoding.settings import SearchSettings

NEVER = float("-inf")  # log-probability of what cannot be, and score of an empty place


class SearchResult(NamedTuple):
    """Translations, best first.

    Attributes:
        tokens: int32 `[batch, n_best, length]`: no BOS; EOS where the hypothesis ended by itself (a
            hypothesis cut at the length limit has none); PAD behind.
        scores: float32 `[batch, n_best]`: log-probability divided by the length penalty; -inf (and only
            PAD) where fewer than n_best hypotheses exist.
    """

    tokens: Any
    scores: Any


def beam_search(model: NMTModel, source: Any, source_length: Any, settings: SearchSettings) -> SearchResult:
    """Search the most probable translations.

    The score of a hypothesis Y is log p(Y | source) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, without
    the coverage term), where |Y| counts EOS. PAD and BOS are never generated, yet keep their share of
    the probability, so that a score agrees with teacher forcing. At equal scores the earlier hypothesis
    and the smaller token id win.

    Args:
        model: its variables are created here or, under reuse, found.
        source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
        source_length: int32 `[batch]`, EOS counted.
    """
    search = _BeamSearch(model, model.encode(source, source_length), source_length, settings)
    start = search.start()
    # The first step stands outside the loop: variables cannot be created inside it.
    first = search.step(start)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
        last = tf1.while_loop(
            search.is_running, lambda *beams: search.step(_Beams(*beams)), first,
            shape_invariants=_shape_invariants(start, first), back_prop=False)
    last = _Beams(*last)
    return SearchResult(last.finished_tokens[:, :settings.n_best], last.finished_score[:, :settings.n_best])


def length_penalty(length: Any, alpha: float) -> Any:
    """((5 + length) / 6) ** alpha, float32; `length` is an int32 tensor (Wu et al. 2016)."""
    return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, alpha)


class _Beams(NamedTuple):
    """What a step hands to the next; `length` is the number of steps taken."""

    step: Any  # int32 []
    token: Any  # int32 [batch * beam], the last token of each live hypothesis
    live_tokens: Any  # int32 [batch, beam, length]
    live_log_prob: Any  # float32 [batch, beam], descending
    finished_tokens: Any  # int32 [batch, beam, length]
    finished_score: Any  # float32 [batch, beam], descending
    done: Any  # bool [batch]: the finished hypotheses are final
    cache: Any  # the model's nest, first dimension batch * beam


class _BeamSearch:
    def __init__(self, model: NMTModel, memory: Any, source_length: Any, settings: SearchSettings) -> None:
        self._model = model
        self._memory = memory
        self._settings = settings
        self._batch = tf.shape(source_length)[0]
        longest = tf.cast(source_length, tf.float32) * settings.max_length_factor
        self._limit = tf.maximum(tf.cast(tf.floor(longest), tf.int32) + settings.max_length_constant, 1)

    def start(self) -> _Beams:
        beam = self._settings.beam_size
        state = self._model.start_state(self._memory, beam)
        # One live hypothesis, the empty one; the others of the beam have probability 0.
        log_prob = tf.constant([[0.0] + [NEVER] * (beam - 1)])
        return _Beams(
            step=tf.convert_to_tensor(state.step),
            token=tf.fill([self._batch * beam], BOS),
            live_tokens=tf.zeros([self._batch, beam, 0], tf.int32),
            live_log_prob=tf.tile(log_prob, [self._batch, 1]),
            finished_tokens=tf.zeros([self._batch, beam, 0], tf.int32),
            finished_score=tf.fill([self._batch, beam], NEVER),
            done=tf.zeros([self._batch], tf.bool),
            cache=state.cache)

    def is_running(self, *beams: Any) -> Any:
        return tf.logical_not(tf.reduce_all(_Beams(*beams).done))

    def step(self, beams: _Beams) -> _Beams:
        """Let every live hypothesis grow by one token, and keep the best."""
        beam = self._settings.beam_size
        length = beams.step + 1
        logits, state = self._model.decode_step(
            beams.token, DecoderState(self._memory, beams.cache, beams.step))
        log_prob, parent, token = self._best_candidates(logits, beams)  # each [batch, 2 * beam]
        is_eos = tf.equal(token, EOS)

        # A hypothesis is finished if it ends among the best `beam`, or is cut at the sentence's limit.
        at_limit = length >= self._limit  # [batch]
        final = tf.logical_or(is_eos[:, :beam], at_limit[:, None]) & ~beams.done[:, None]
        score = log_prob[:, :beam] / length_penalty(length, self._settings.length_penalty)
        finished_tokens, finished_score = _merge_finished(
            beams, tf.where(final, score, tf.fill(tf.shape(score), NEVER)),
            _extend(beams.live_tokens, parent[:, :beam], token[:, :beam]))

        # At most `beam` of the 2 * beam candidates end, so at least `beam` live on.
        going_on = tf.where(is_eos, tf.fill(tf.shape(log_prob), NEVER), log_prob)
        live_log_prob, place = tf.math.top_k(going_on, beam)
        live_parent = tf.gather(parent, place, batch_dims=1)  # [batch, beam]
        live_token = tf.gather(token, place, batch_dims=1)
        return _Beams(
            step=length,
            token=tf.reshape(live_token, [-1]),
            live_tokens=_extend(beams.live_tokens, live_parent, live_token),
            live_log_prob=live_log_prob,
            finished_tokens=finished_tokens,
            finished_score=finished_score,
            done=beams.done | at_limit | self._is_decided(live_log_prob, finished_score),
            cache=self._reorder(state.cache, live_parent))

    def _best_candidates(self, logits: Any, beams: _Beams) -> tuple[Any, Any, Any]:
        """The best 2 * beam one-token extensions of a sentence's live hypotheses, best first.

        Only the best few logits of a hypothesis are normalised; the full log-softmax never exists.

        Args:
            logits: `[batch * beam, vocabulary]`.
        Returns:
            log-probability float32, parent (place in the beam) int32, token int32, each `[batch, 2 * beam]`.
        """
        beam = self._settings.beam_size
        logits = tf.cast(logits, tf.float32)
        # Up to 3 tokens are forbidden: with 3 more, 2 * beam legal ones are always among them.
        count = min(2 * beam + 3, self._model.target_vocab_size)
        top, token = tf.math.top_k(logits, count)  # [batch * beam, count]
        log_sum = top[:, :1] + tf.math.log(tf.reduce_sum(tf.exp(logits - top[:, :1]), axis=1, keepdims=True))
        too_short = beams.step < self._settings.min_length
        forbidden = tf.equal(token, PAD) | tf.equal(token, BOS) | (tf.equal(token, EOS) & too_short)
        log_prob = tf.where(forbidden, tf.fill(tf.shape(top), NEVER), top - log_sum)
        log_prob = tf.reshape(log_prob, [self._batch, beam, count]) + beams.live_log_prob[:, :, None]
        log_prob, place = tf.math.top_k(tf.reshape(log_prob, [self._batch, beam * count]), 2 * beam)
        token = tf.gather(tf.reshape(token, [self._batch, beam * count]), place, batch_dims=1)
        return log_prob, place // count, token

    def _is_decided(self, live_log_prob: Any, finished_score: Any) -> Any:
        """Whether no live hypothesis can come under the n best finished ones any more, bool `[batch]`.

        Log-probabilities only fall, so none can score more than the best live one at the largest
        possible length penalty. Greedy search ends with its first finished hypothesis.
        """
        if self._settings.beam_size == 1:
            return finished_score[:, 0] > NEVER
        if not self._settings.stop_early:
            return tf.zeros([self._batch], tf.bool)
        bound = live_log_prob[:, 0] / length_penalty(self._limit, self._settings.length_penalty)
        return finished_score[:, self._settings.n_best - 1] >= bound

    def _reorder(self, cache: Any, parent: Any) -> Any:
        """Each live hypothesis takes over its parent's rows of the cache; `parent` is `[batch, beam]`."""
        beam = self._settings.beam_size
        if beam == 1:
            return cache
        rows = tf.reshape(tf.range(self._batch)[:, None] * beam + parent, [-1])  # [batch * beam]
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache)


def _extend(tokens: Any, parent: Any, token: Any) -> Any:
    """Hypotheses `[batch, n, length + 1]`: `tokens[parent]` and one `token` more (both `[batch, n]`)."""
    return tf.concat([tf.gather(tokens, parent, batch_dims=1), token[:, :, None]], axis=2)


def _merge_finished(beams: _Beams, score: Any, tokens: Any) -> tuple[Any, Any]:
    """The best `beam` of the finished hypotheses so far and of new ones (`[batch, beam, length + 1]`)."""
    padded = tf.pad(beams.finished_tokens, [[0, 0], [0, 0], [0, 1]], constant_values=PAD)
    best, place = tf.math.top_k(tf.concat([beams.finished_score, score], axis=1), score.shape[1])
    tokens = tf.gather(tf.concat([padded, tokens], axis=1), place, batch_dims=1)
    # A place that no hypothesis has taken yet holds PAD only.
    return tf.where((best > NEVER)[:, :, None], tokens, tf.zeros_like(tokens)), best


def _shape_invariants(start: _Beams, first: _Beams) -> _Beams:
    """Static shapes in the loop: what differed between the start and the first step may grow."""
    def common(before: Any, after: Any) -> Any:
        dimensions = zip(before.shape.as_list(), after.shape.as_list(), strict=True)
        same = [size if size == grown else None for size, grown in dimensions]
        return tf.TensorShape([None, *same[1:]] if same else [])
    return tf.nest.map_structure(common, start, first)
