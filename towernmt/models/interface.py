"""The one interface of every architecture: an `NMTModel` is a tower function with an encoder and a decoder.

Training, validation, search and scoring are written once against `encode`, `decode` and
`decode_step`; they build the same variables again under reuse.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.train.model_desc import ModelDesc

from towernmt.core.default_optimizer import default_optimizer
from towernmt.core.errors import SettingsError
from towernmt.core.shared_batch import towers_of_batch
from towernmt.core.tensors import Nest, Optimizer, Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.layers.dropout import drop_words
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.randomness import start_clock
from towernmt.models.losses.cross_entropy import smoothed_cross_entropy
from towernmt.models.losses.guided_alignment import guided_alignment_loss
from towernmt.models.losses.r_drop import r_drop_cross_entropy

ALIGNMENT = "alignment"
"""The name of the input that only training towers with guided alignment read."""


class DecoderState(NamedTuple):
    """What stepwise decoding carries from one target position to the next.

    Attributes:
        memory: nest of tensors, first dimension batch; the same for every hypothesis of a sentence
            and at every step (for the Transformer: keys and values of the source).
        cache: nest of tensors, first dimension batch x beam; search gathers the rows of the surviving
            hypotheses in it. A tensor's second dimension may grow by one a step.
        step: int32 scalar, the number of tokens decoded so far.
        blocks: `StepBlocks`, for what steps write and search need not move; a tuple of those of several models, or ()
            without. Search makes room in them.
    """

    memory: Nest
    cache: Nest
    step: Tensor
    blocks: Any = ()


class NMTModel(ModelDesc):
    """An encoder-decoder as a tower function (tensorpack's `ModelDesc`).

    The tower's inputs are `source` int32 `[batch, source length]`, `source_length` int32 `[batch]`,
    `target` int32 `[batch, target length]`, `target_length` int32 `[batch]` and `target_tokens`
    float32 `[]`. Sentences end with EOS, which their length counts, and are padded with PAD.
    `target_tokens` counts the target tokens of the batch: with `GeneralQueueInput` those of the *global* batch, over
    all towers; where each tower has a batch of its own, as with tensorpack's inputs, those of that one.

    With source factors, `source` is int32 `[batch, source length, 1 + factors]`: the words, and for each
    its factors; EOS and PAD have the same ids everywhere. With guided alignment there is one more input,
    `alignment` uint8 `[batch, target length, source length]`: 1 where two words are translations.
    """

    architecture: str
    """The name by which `towernmt.models.architecture` finds the class, where that is not one's own. A class that is
    derived from another only to be trained in another way takes the other's name, so that its runs are searched as the
    other's; see `towernmt.models.name_of_model`."""
    make_optimizer: Callable[[], Optimizer] | None = None
    """Makes the `tf1.train.Optimizer`; handed to the model by whoever assembles a run."""
    optimizer_settings: Any = None
    """`OptimizerSettings`, which make the optimizer of a model without `make_optimizer`."""
    clip_norm: float = 0.0
    """With `optimizer_settings`: clip gradients to this global norm; 0 for no clipping."""
    recomputes: ClassVar[bool] = True
    """Whether it can have layers that `checkpointed` computes again; others refuse `train.gradient_checkpointing`."""
    source_vocab_size: int
    target_vocab_size: int

    def optimizer(self) -> Optimizer:
        """The optimizer that the model was given; without one, the default of the package."""
        if self.make_optimizer is not None:
            return self.make_optimizer()
        if self.optimizer_settings is not None:
            return self.optimizer_settings.make(self.clip_norm)
        return default_optimizer()

    def inputs(self) -> list[TensorSpec]:
        return batch_signature(self.source_factor_count, self.guided_alignment_weight > 0.0)

    def encoder_inputs(self) -> list[TensorSpec]:
        """What `encode` takes, in its order: a `tf.TensorSpec` with a name each.

        A model that reads more of a sentence to be translated declares that behind these two.
        """
        return batch_signature(self.source_factor_count)[:2]

    @abstractmethod
    def encode(self, source: Tensor, source_length: Tensor) -> Nest:
        """Encode sentences.

        Args:
            source: int32 `[batch, source length]`, or `[batch, source length, 1 + factors]`.
            source_length: int32 `[batch]`.
        Returns:
            The memory: a nest of tensors whose first dimension is batch.
        """

    @abstractmethod
    def decode_hidden(self, memory: Nest, target_in: Tensor) -> Tensor:
        """Teacher-forced decoding up to the last hidden layer.

        Args:
            memory: what `encode` returned.
            target_in: int32 `[batch, target length]`, the target shifted right behind BOS.
        Returns:
            float32 `[batch, target length, depth]`.
        """

    @abstractmethod
    def output_projection(self) -> Projection:
        """The map from the last hidden layer to the logits."""

    @abstractmethod
    def start_state(self, memory: Nest, beam: int) -> DecoderState:
        """The state before the first token, for `beam` hypotheses a sentence."""

    @abstractmethod
    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        """One step of decoding.

        Args:
            token: int32 `[batch * beam]`, the previous token (BOS at first).
            state: from `start_state` or the previous step.
            attention: give the attention of this step, too. Only a model that `gives_step_attention` is asked for it;
                a model of one's own may leave this argument out.
        Returns:
            logits float32 `[batch * beam, target vocabulary]`, the new state and, if asked for, what
            `decode_with_attention` gives for this position: float32 `[batch * beam, source length]`.
        """

    def decode_with_attention(self, memory: Nest, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """`decode_hidden`, with one attention distribution over the source for each target position.

        Built only for guided alignment, so that nothing is spent on it elsewhere.

        Returns:
            float32 `[batch, target length, depth]`, and float32 `[batch, target length, source length]`: rows sum
            to 1, and are 0 at padding of the source.
        """
        raise SettingsError(f"{type(self).__name__} has guided_alignment_weight={self.guided_alignment_weight} but no "
                            "decode_with_attention: write that method, or set the weight to 0.")

    @property
    def gives_attention(self) -> bool:
        """Whether `decode_with_attention` can be called."""
        return type(self).decode_with_attention is not NMTModel.decode_with_attention

    @property
    def gives_step_attention(self) -> bool:
        """Whether `decode_step` can be asked for attention."""
        return self.gives_attention and "attention" in inspect.signature(self.decode_step).parameters

    def decode(self, memory: Nest, target_in: Tensor) -> Tensor:
        """Teacher-forced logits, float32 `[batch, target length, target vocabulary]`."""
        return self.output_projection().logits(self.decode_hidden(memory, target_in))

    @property
    def label_smoothing(self) -> float:
        """Probability mass spread evenly over the vocabulary (Szegedy et al. 2016)."""
        return 0.0

    @property
    def word_dropout(self) -> float:
        """The share of the words that a training tower reads as the unknown word; see `drop_words`."""
        return 0.0

    @property
    def dropout_divergence(self) -> float:
        """The weight of the divergence between two passes with different dropout (R-Drop); 0 for one pass."""
        return 0.0

    @property
    def source_factor_count(self) -> int:
        """How many factors each source word has."""
        return 0

    @property
    def guided_alignment_weight(self) -> float:
        """The weight of the loss of an attention head against given alignments; 0 for none."""
        return 0.0

    def build_graph(self, source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor,
                    target_tokens: Tensor, alignment: Tensor = None) -> Tensor:
        """The training and teacher-forced validation tower.

        Args:
            alignment: for guided alignment; towers that do not train do not look at it.
        Returns:
            float32 `[]`: the tower's summed token loss x the towers that share its batch / target tokens, so
            that the mean over towers is the mean over all target tokens of the global batch (see `shared_batch`).
            Tensors `loss` and `nll` (the same without label smoothing) are there by name in each tower, and
            with guided alignment `alignment_loss` (without its weight) in those that train. Towers that do not train
            have `logits`, float32 `[batch, target length, target vocabulary]`, for tensorpack's predictors.
        """
        context = get_current_tower_context()
        divergence = self.dropout_divergence if context.is_training else 0.0
        guided = context.is_training and self.guided_alignment_weight > 0.0
        if context.is_training:
            start_clock(target_tokens)
        if divergence:
            source, source_length, target, target_length = (
                tf.concat([x, x], 0) for x in (source, source_length, target, target_length))
        memory = self.encode(drop_words(source, self.word_dropout, "source_words"), source_length)
        target_in = drop_words(shift_right(target), self.word_dropout, "target_words")
        if guided:
            hidden, attention = self.decode_with_attention(memory, target_in)
        else:
            hidden = self.decode_hidden(memory, target_in)
        smoothing, projection = self.label_smoothing if context.is_training else 0.0, self.output_projection()
        if not context.is_training:
            tf.identity(projection.logits(hidden), name="logits")
        if divergence:
            loss_sum, nll_sum = r_drop_cross_entropy(
                hidden, projection, target, target_length, smoothing, divergence)
        else:
            loss_sum, nll_sum = smoothed_cross_entropy(
                hidden, projection, target, target_length, smoothing)
        scale = towers_of_batch() / tf.maximum(target_tokens, 1.0)
        tf.multiply(nll_sum, scale, name="nll")
        if guided:
            alignment_sum = guided_alignment_loss(attention, alignment, passes=2 if divergence else 1)
            loss_sum += self.guided_alignment_weight * alignment_sum
            tf.multiply(alignment_sum, scale, name="alignment_loss")
        return tf.multiply(loss_sum, scale, name="loss")


def shift_right(target: Tensor) -> Tensor:
    """The decoder's input: `target` int32 `[batch, target length]` behind BOS, without its last column."""
    return tf1.pad(target, [[0, 0], [1, 0]], constant_values=BOS)[:, :-1]


def batch_signature(source_factors: int = 0, alignments: bool = False) -> list[TensorSpec]:
    """The tensors of a batch, as `tf.TensorSpec`: those that `NMTModel` describes.

    Args:
        source_factors: how many each source word has.
        alignments: whether links between the words come with the sentences.
    """
    source = [None, None, 1 + source_factors] if source_factors else [None, None]
    return [
        tf.TensorSpec(source, tf.int32, "source"),
        tf.TensorSpec([None], tf.int32, "source_length"),
        tf.TensorSpec([None, None], tf.int32, "target"),
        tf.TensorSpec([None], tf.int32, "target_length"),
        tf.TensorSpec([], tf.float32, "target_tokens"),
        *([tf.TensorSpec([None, None, None], tf.uint8, ALIGNMENT)] if alignments else []),
    ]
