"""One step of decoding for all hypotheses: `decode_step`, and what the strategy keeps of the candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.step_blocks import each_of
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.distribution import Distribution
from towernmt.predict.decoding.shortlist import ListedDistribution, ListedWords
from towernmt.predict.decoding.step import History, StepContext

if TYPE_CHECKING:
    from towernmt.predict.decoding.loop import Decoding


class Sentences(NamedTuple):
    """What belongs to the sentences that are decoded, the same at every step.

    Attributes:
        memory: what the encoder made of them: a nest.
        inputs: by name; those of sentences have a row each.
        limit: int32 `[sentences]`, how many tokens a hypothesis may have.
        listed: float32 `[sentences, n]`, which words of a shortlist may come in each; `()` without one.
    """

    memory: Any
    inputs: Mapping[str, Tensor]
    limit: Tensor
    listed: Any = ()


class StepState(NamedTuple):
    """What a step hands to the next.

    Attributes:
        step: int32 `[]`, the number of tokens so far.
        token: int32 `[rows]`, the last one of each live hypothesis; rows are sentences * width.
        history: the live hypotheses.
        strategy: the strategy's nest; first dimension sentences.
        cache: the model's nest; first dimension rows.
        blocks: the model's `StepBlocks`, or ().
    """

    step: Tensor
    token: Tensor
    history: History
    strategy: Any
    cache: Any
    blocks: Any


class Steps:
    """Makes the steps of decoding some sentences.

    Attributes:
        sentences: which.
        strategy: what is kept of the candidates.
    """

    def __init__(self, model: NMTModel, decoding: Decoding, words: ListedWords | None, sentences: Sentences) -> None:
        """
        Args:
            words: those of a shortlist, whose logits alone the model gives; None for all.
        """
        self.sentences, self.strategy = sentences, decoding.strategy
        self._model, self._decoding, self._words = model, decoding, words

    def of(self, sentences: Sentences) -> Steps:
        """The same for other sentences."""
        return Steps(self._model, self._decoding, self._words, sentences)

    def start(self) -> StepState:
        """Before the first step."""
        batch, width = tf.shape(self.sentences.limit)[0], self.strategy.width
        state = self._model.start_state(self.sentences.memory, width)
        empty = History(tf.zeros([batch, width, 0], tf.int32), self._no_attention(batch),
                        tf.zeros([batch, width, 0]) if self._decoding.log_probs else ())
        blocks = state.blocks
        if not self.strategy.reorders:
            blocks = each_of(lambda blocks: blocks.apart(), blocks)
        return StepState(
            step=tf.convert_to_tensor(state.step), token=tf.fill([batch * width], BOS), history=empty,
            strategy=self.strategy.start(empty, self.sentences.inputs), cache=state.cache, blocks=blocks)

    def take(self, state: StepState) -> StepState:
        """Every live hypothesis grows by a token, or gives way to another."""
        logits, decoder, attention = self._decode(
            state.token, DecoderState(self.sentences.memory, state.cache, state.step, state.blocks))
        distribution = Distribution(logits)
        if self._words is not None:
            distribution = ListedDistribution(logits, self._words._replace(bias=self.sentences.listed))
        context = StepContext(step=state.step, limit=self.sentences.limit, history=state.history, attention=attention,
                              inputs=self.sentences.inputs, vocabulary_size=self._model.target_vocab_size,
                              distribution=distribution if self._decoding.log_probs else None)
        candidates = Candidates(distribution, self._decoding.processors, context)
        choice = self.strategy.choose(candidates, context, state.strategy)
        cache, blocks = decoder.cache, decoder.blocks
        if choice.parent is not None:
            cache = self._reordered(cache, choice.parent)
            blocks = each_of(lambda blocks: blocks.reordered(choice.parent), blocks)
        return StepState(
            step=state.step + 1, token=tf.reshape(choice.token, [-1]),
            history=context.grown(choice.parent, choice.token), strategy=choice.state, cache=cache, blocks=blocks)

    def _decode(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, Tensor]:
        """Logits, new state and attention (see `StepContext`)."""
        if not self._decoding.collects_attention:
            logits, state = self._model.decode_step(token, state)
            return logits, state, ()
        logits, state, attention = self._model.decode_step(token, state, attention=True)
        length = tf.shape(self.sentences.inputs["source"])[1]
        attention = tf.reshape(tf.cast(attention, tf.float32), [-1, self.strategy.width, length])
        return logits, state, attention

    def _no_attention(self, batch: Tensor) -> Tensor:
        """That of no steps."""
        if not self._decoding.collects_attention:
            return ()
        return tf.zeros([batch, self.strategy.width, 0, tf.shape(self.sentences.inputs["source"])[1]])

    def _reordered(self, cache: Any, parent: Tensor) -> Any:
        """Each live hypothesis takes over its parent's rows of the cache; `parent` is `[sentences, width]`."""
        first = tf.range(tf.shape(parent)[0])[:, None] * self.strategy.width
        rows = tf.reshape(first + parent, [-1])     # [rows]
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache)
