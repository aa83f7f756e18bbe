"""Decoders with a step form that differs from teacher forcing; `# broken` marks the line that the check reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.projections import Projection

DEPTH = 8


class TameDecoder(NMTModel):
    """A minimal model: predicts the next word from the mean of the source and the sum of the previous words."""

    source_vocab_size = target_vocab_size = 12

    def encode(self, source: Any, source_length: Any) -> Any:
        mask = tf.sequence_mask(source_length, tf.shape(source)[1], tf.float32)[:, :, None]
        embedded = tf.gather(self.table("source", self.source_vocab_size), source) * mask
        return tf.reduce_sum(embedded, 1) / tf.reduce_sum(mask, 1)

    def decode_hidden(self, memory: Any, target_in: Any) -> Any:
        words = tf.gather(self.table("target", self.target_vocab_size), target_in)
        return tf.tanh(tf.cumsum(words, 1) + memory[:, None])

    def output_projection(self) -> Projection:
        bias = tf1.get_variable("bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
        return Projection(self.table("softmax", self.target_vocab_size), bias)

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        return DecoderState(memory, tf.zeros_like(tf.repeat(memory, beam, 0)), 0)

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:
        cache = state.cache + self.word(token)
        beam = tf.shape(cache)[0] // tf.shape(state.memory)[0]
        hidden = tf.tanh(cache + tf.repeat(state.memory, beam, 0))
        return self.output_projection().logits(hidden), DecoderState(state.memory, cache, state.step + 1)

    def word(self, token: Any) -> Any:
        return tf.gather(self.table("target", self.target_vocab_size), token)

    def table(self, name: str, size: int) -> Any:
        with tf1.variable_scope("tables", reuse=tf1.AUTO_REUSE):
            return tf1.get_variable(name, [size, DEPTH])

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.1)


class StepsElsewhere(TameDecoder):
    """A step that adds a value to the state which training does not add."""

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:  # broken
        return super().decode_step(token, state._replace(cache=state.cache - 3.0 * self.word(token)))


class ForgetsTheStart(TameDecoder):
    """A decoder that is correct at the first step and wrong from the second on."""

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:  # broken
        return super().decode_step(token, state._replace(cache=tf.zeros_like(state.cache)))


class AttendsElsewhere(TameDecoder):
    """A form with attention, for guided alignment, whose hidden layer is not that of the form without it."""

    def decode_with_attention(self, memory: Any, target_in: Any) -> tuple[Any, Any]:  # broken
        return 2.0 * self.decode_hidden(memory, target_in), tf.ones_like(target_in, tf.float32)[..., None]


class KeepsWordsOutsideTheCache(TameDecoder):
    """Words are kept outside the cache, so reordered hypotheses lose the words that they have read."""

    read: Any = None

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        state = super().start_state(memory, beam)
        self.read = state.cache
        return state

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:  # broken
        logits, after = super().decode_step(token, state._replace(cache=self.read))
        self.read = after.cache
        return logits, after


class SeesTheFuture(TameDecoder):
    """Each position reads the complete target, also later words."""

    def decode_hidden(self, memory: Any, target_in: Any) -> Any:  # broken
        words = tf.gather(self.table("target", self.target_vocab_size), target_in)
        return tf.tanh(tf.cumsum(words, 1) + 0.1 * tf.reduce_mean(words, 1, keepdims=True) + memory[:, None])


class ReadsPadding(TameDecoder):
    """The mean of the source includes its padding."""

    def encode(self, source: Any, source_length: Any) -> Any:  # broken
        return tf.reduce_mean(tf.gather(self.table("source", self.source_vocab_size), source), 1)


class TakesARowASentence(TameDecoder):
    """A cache with a row for each sentence instead of each hypothesis."""

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        return DecoderState(memory, tf.zeros_like(memory), 0)


@dataclass(frozen=True)
class Beast:
    """Expected result of the check of a decoder."""

    model: type[TameDecoder]
    rule: str
    message: str


ZOO = [
    Beast(StepsElsewhere, "stepwise",
          "decode_step and decode return different logits for target position 1 of the same words: both must compute "
          "the same function; otherwise translation does not use the model that was trained."),
    Beast(ForgetsTheStart, "stepwise",
          "decode_step and decode return different logits for target position 2 of the same words: both must compute "
          "the same function; otherwise translation does not use the model that was trained."),
    Beast(AttendsElsewhere, "stepwise",
          "decode_with_attention and decode return different logits for target position 1 of the same words: both must "
          "compute the same function; otherwise translation does not use the model that guided alignment trains."),
    Beast(KeepsWordsOutsideTheCache, "stepwise",
          "decode_step and decode return different logits for target position 3 after hypotheses are reordered: keep "
          "the complete state of a hypothesis in its row of the cache, and nowhere else."),
    Beast(SeesTheFuture, "causal",
          "the logits of decode for target position 1 change with later target words: mask later positions; otherwise "
          "training sees words that translation cannot see."),
    Beast(ReadsPadding, "padding",
          "the logits of a sentence (target position 1) change when its source has 4 more columns of padding: mask "
          "the padding by source_length; otherwise a translation depends on the other sentences of its batch."),
]
