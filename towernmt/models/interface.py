"""`NMTModel`: the interface of every architecture, a tower function with an encoder and a stepwise decoder.

`ConfiguredModel` adds what the built-in architectures share, such as settings and vocabulary sizes.
"""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.train.model_desc import ModelDesc

from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.graph_state import towers_of_batch
from towernmt.core.startup import default_optimizer
from towernmt.core.tensors import Nest, Optimizer, Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.compiled_towers import check_compilation, compiled, is_compiled, padded_batch
from towernmt.models.kernels import to_float32
from towernmt.models.layers.projections import Projection, lhuc
from towernmt.models.layers.randomness import drop_words, start_clock
from towernmt.models.losses import LossBatch, TokenRows, guided_alignment_loss, r_drop_loss


def limited_to(model: NMTModel, tokens: Tensor) -> NMTModel:
    """Return a copy of a model whose `decode_step` returns the logits of some tokens only, float32 `[rows, n]`.

    Its `output_projection` has only the rows of these tokens. They are gathered at the first call, which must be
    outside of a loop. If `decode_step` does not call `output_projection`, the columns are gathered from its logits.

    Args:
        model: the model to copy.
        tokens: int32 `[n]`.
    """
    limited = copy.copy(model)
    projections: list[Projection] = []
    calls: list[bool] = []

    def output_projection() -> Projection:
        calls.append(True)
        if not projections:
            full_projection = model.output_projection()
            weights = (tf.gather(tf.convert_to_tensor(weight), tokens) for weight in full_projection)
            projections.append(Projection(*weights))
        return projections[0]

    decode_step = limited.decode_step

    def limited_step(token: Tensor, state: DecoderState, **options: bool) -> tuple[Any, ...]:
        calls.clear()
        logits, *extras = decode_step(token, state, **options)
        return logits if calls else tf.gather(logits, tokens, axis=1), *extras

    limited.__dict__.update(output_projection=output_projection, decode_step=limited_step)
    return limited


ALIGNMENT = "alignment"
"""The name of the input that only training towers with guided alignment read."""


class DecoderState(NamedTuple):
    """State of stepwise decoding between two target positions.

    Attributes:
        memory: nest of tensors whose first dimension is batch; the same for every hypothesis of a sentence and at every
            step (for the Transformer: keys and values of the source).
        cache: nest of tensors whose first dimension is batch x beam. Search gathers the rows of the surviving
            hypotheses. The second dimension of a tensor may grow by one in each step.
        step: int32 scalar, number of decoded tokens.
        blocks: `StepBlocks` of values that search does not move, a tuple of those of several models, or (). Search
            increases their capacity.
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
    `target_tokens` is the number of target tokens of the batch. With `GeneralQueueInput` it is that of the *global*
    batch of all towers. With tensorpack's inputs each tower has a separate batch, and the number of its tokens.

    With source factors, `source` is int32 `[batch, source length, 1 + factors]`: the words, followed by the factors of
    each word. EOS and PAD have the same ids in all streams. With guided alignment there is one more input, `alignment`
    uint8 `[batch, target length, source length]`: 1 where two words are translations of each other.
    """

    architecture: str
    """The name with which `towernmt.models.architecture` finds a built-in class. A derived class that changes only the
    training keeps the name of its base class, and its runs are then searched with the base class; see
    `towernmt.models.name_of_model`."""
    make_optimizer: Callable[[], Optimizer] | None = None
    """Creates the `tf1.train.Optimizer`, unless a class overrides `optimizer`. A run sets it from its settings; None
    means Adam with the default settings."""
    recomputes: ClassVar[bool] = False
    """Whether `checkpointed` computes its layers again; other models refuse `train.gradient_checkpointing`."""
    compiles: ClassVar[bool] = False
    """Whether XLA can compile its training towers; others refuse `train.xla`."""
    source_vocab_size: int
    target_vocab_size: int

    def optimizer(self) -> Optimizer:
        """Return a new optimizer (tensorpack's `ModelDesc.optimizer`)."""
        return (self.make_optimizer or default_optimizer)()

    def inputs(self) -> list[TensorSpec]:
        return batch_signature(self.source_factor_count, self.guided_alignment_weight > 0.0)

    def encoder_inputs(self) -> list[TensorSpec]:
        """Return the inputs of `encode` in their order, as `tf.TensorSpec` with names.

        A model that needs further inputs for translation appends them.
        """
        return batch_signature(self.source_factor_count)[:2]

    @abstractmethod
    def encode(self, source: Tensor, source_length: Tensor) -> Nest:
        """Return the memory of source sentences: a nest of tensors whose first dimension is batch.

        Args:
            source: int32 `[batch, source length]`, or `[batch, source length, 1 + factors]`.
            source_length: int32 `[batch]`.
        """

    @abstractmethod
    def decode_hidden(self, memory: Nest, target_in: Tensor) -> Tensor:
        """Return the last hidden layer of teacher-forced decoding, float32 `[batch, target length, depth]`.

        Args:
            memory: result of `encode`.
            target_in: int32 `[batch, target length]`, BOS followed by the target without its last column.
        """

    @abstractmethod
    def output_projection(self) -> Projection:
        """Return the map from the last hidden layer to the logits."""

    @abstractmethod
    def start_state(self, memory: Nest, beam: int) -> DecoderState:
        """Return the state before the first token, for `beam` hypotheses of each sentence."""

    @abstractmethod
    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        """Decode one target position of each hypothesis.

        Args:
            token: int32 `[batch * beam]`, the previous token (first BOS).
            state: state from `start_state` or the previous step.
            attention: whether to return the attention of this step. Only passed if `gives_step_attention`; a custom
                model may omit this argument.

        Returns:
            Logits float32 `[batch * beam, target vocabulary]`, the new state and, if requested, the attention of
            `decode_with_attention` at this position, float32 `[batch * beam, source length]`.
        """

    def decode_with_attention(self, memory: Nest, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """Return `decode_hidden` and an attention distribution over the source for each target position.

        Called only for guided alignment and alignments, so that other towers do not compute it.

        Returns:
            float32 `[batch, target length, depth]`, and float32 `[batch, target length, source length]`, whose rows sum
            to 1 and are 0 at padding of the source.
        """
        raise SettingsError(f"{type(self).__name__} has guided_alignment_weight={self.guided_alignment_weight} but no "
                            "decode_with_attention: write that method, or set the weight to 0.")

    @property
    def gives_attention(self) -> bool:
        """Whether the model implements `decode_with_attention`."""
        return type(self).decode_with_attention is not NMTModel.decode_with_attention

    @property
    def gives_step_attention(self) -> bool:
        """Whether `decode_step` can return attention."""
        return self.gives_attention and "attention" in inspect.signature(self.decode_step).parameters

    def decode(self, memory: Nest, target_in: Tensor) -> Tensor:
        """Return teacher-forced logits, float32 `[batch, target length, target vocabulary]`.

        Do not override it: training, scoring and validation call `decode_hidden` and `output_projection` themselves.
        """
        return self.output_projection().logits(self.decode_hidden(memory, target_in))

    @property
    def overrides_loss(self) -> bool:
        """Whether the model has a custom loss."""
        return type(self).loss is not NMTModel.loss

    @property
    def label_smoothing(self) -> float:
        """Probability mass spread evenly over the vocabulary (Szegedy et al. 2016)."""
        return 0.0

    @property
    def softmax_sample(self) -> float:
        """Fraction of the vocabulary in the softmax of a training tower, in addition to its labels; 0 for all of it."""
        return 0.0

    @property
    def word_dropout(self) -> float:
        """Share of the words that a training tower reads as the unknown word; see `drop_words`."""
        return 0.0

    @property
    def dropout_divergence(self) -> float:
        """Weight of the divergence between two passes with different dropout (R-Drop); 0 for one pass."""
        return 0.0

    @property
    def source_factor_count(self) -> int:
        """Number of factors of each source word."""
        return 0

    @property
    def guided_alignment_weight(self) -> float:
        """Weight of the guided alignment loss; 0 for no guided alignment."""
        return 0.0

    def loss(self, logits: Tensor, batch: LossBatch) -> Tensor:
        """Return the summed loss of a tower's target tokens; override it for a custom loss.

        Training and validation towers call it. The default is cross-entropy, in training with label smoothing.
        `build_graph` divides the sum by the number of target tokens of the global batch and combines it with R-Drop and
        guided alignment. Therefore the loss must be a sum over tokens, not a mean.

        Args:
            logits: float32 `[tokens, target vocabulary]`, of the real target tokens, without padding. A training tower
                with `softmax_sample` has fewer columns, but then a custom loss is refused.
            batch: source and target of the tower, and the position and label of each token; see `LossBatch`.

        Returns:
            float32 `[]`, in nats for cross-entropy.
        """
        return batch.cross_entropy(self.label_smoothing if batch.is_training else 0.0)

    def build_graph(self, source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor,
                    target_tokens: Tensor, alignment: Tensor = None) -> Tensor:
        """Build a tower for training or for teacher-forced validation, and return its scaled loss.

        Each tower contains the tensors `loss` (the result) and `nll` (the negative log-likelihood with the same scale).
        A training tower with guided alignment also contains `alignment_loss`, without its weight. A validation tower
        contains `logits`, float32 `[batch, target length, target vocabulary]`, for tensorpack's predictors.

        Args:
            source: int32 `[batch, source length]`, or `[batch, source length, 1 + factors]`.
            source_length: int32 `[batch]`.
            target: int32 `[batch, target length]`.
            target_length: int32 `[batch]`.
            target_tokens: float32 `[]`, target tokens of the global batch.
            alignment: uint8 `[batch, target length, source length]`, for guided alignment; validation towers ignore it.

        Returns:
            float32 `[]`: the summed `loss` of the tower, times the number of towers that share its batch, divided by
            the target tokens. The mean over the towers is the mean over all target tokens of the global batch (see
            `towers_of_batch`).
        """
        context = get_current_tower_context()
        guided = context.is_training and self.guided_alignment_weight > 0.0
        if context.is_training:
            start_clock(target_tokens)
        batch = [source, source_length, target, target_length]
        if is_compiled(context.is_training):
            check_compilation(self)
            loss_sum, nll_sum = compiled(self._sums, padded_batch(*batch))
        else:
            loss_sum, nll_sum, *alignment_sum = self._sums(*batch, *([alignment] if guided else []))
        scale = towers_of_batch() / tf.maximum(target_tokens, 1.0)
        tf.multiply(nll_sum, scale, name="nll")
        if guided:
            loss_sum += self.guided_alignment_weight * alignment_sum[0]
            tf.multiply(alignment_sum[0], scale, name="alignment_loss")
        return tf.multiply(loss_sum, scale, name="loss")

    def _sums(self, source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor,
              *alignment: Tensor) -> tuple[Tensor, ...]:
        """Return sums over the target tokens of a tower: its loss, its negative log-likelihood, its alignment loss.

        Args:
            source: int32 `[batch, source length]`, or `[batch, source length, 1 + factors]`.
            source_length: int32 `[batch]`.
            target: int32 `[batch, target length]`.
            target_length: int32 `[batch]`.
            alignment: uint8 `[batch, target length, source length]` with guided alignment; otherwise nothing.
        """
        context = get_current_tower_context()
        divergence = self.dropout_divergence if context.is_training else 0.0
        sample = self.softmax_sample if context.is_training else 0.0
        if sample and self.overrides_loss:
            raise SettingsError(f"model.softmax_sample={sample} does not work with the loss of {type(self).__name__}, "
                                "whose logits would not be those of the vocabulary: set it to 0.")
        if divergence:
            source, source_length, target, target_length = (
                tf.concat([x, x], 0) for x in (source, source_length, target, target_length))
        memory = self.encode(drop_words(source, self.word_dropout, "source_words"), source_length)
        target_in = drop_words(shift_right(target), self.word_dropout, "target_words")
        if alignment:
            hidden, attention = self.decode_with_attention(memory, target_in)
        else:
            hidden = self.decode_hidden(memory, target_in)
        projection = self.output_projection()
        if not context.is_training:
            tf.identity(projection.logits(hidden), name="logits")
        batch = LossBatch(source, source_length, target, target_length, hidden, projection, context.is_training,
                          is_compiled(context.is_training), sample)
        loss_sum = self._checked_loss(batch)
        nll_sum = batch.negative_log_likelihood()
        if divergence:
            loss_sum, nll_sum = r_drop_loss(loss_sum, batch.logits, divergence), nll_sum / 2.0
        if not alignment:
            return loss_sum, nll_sum
        return loss_sum, nll_sum, guided_alignment_loss(attention, alignment[0], passes=2 if divergence else 1)

    def _checked_loss(self, batch: LossBatch) -> Tensor:
        """Return the result of `loss`, float32 `[]`, or raise TowerRuleError if it has another shape or dtype."""
        loss = tf.convert_to_tensor(self.loss(batch.logits, batch))
        if loss.dtype != tf.float32 or loss.shape.rank not in (0, None):
            raise TowerRuleError(f"{type(self).__name__}.loss returned {loss.dtype.name} {loss.shape}; it must return "
                                 "float32 []: the sum of the losses of all target tokens.")
        return tf.ensure_shape(loss, []) if loss.shape.rank is None else loss


def shift_right(target: Tensor) -> Tensor:
    """Return the input of the decoder: BOS, and `target` int32 `[batch, target length]` without its last column."""
    return tf1.pad(target, [[0, 0], [1, 0]], constant_values=BOS)[:, :-1]


def batch_signature(source_factors: int = 0, alignments: bool = False) -> list[TensorSpec]:
    """Return the tensors of a batch as `tf.TensorSpec`; `NMTModel` describes them.

    Args:
        source_factors: number of factors of each source word.
        alignments: whether the batch contains word alignments.
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


def token_log_probabilities(model: NMTModel, memory: Nest, target: Tensor, target_length: Tensor) -> Tensor:
    """Return log p(token | source, earlier tokens) by teacher forcing, with a gradient.

    Args:
        model: creates its variables in the current variable scope, or reuses them.
        memory: result of `model.encode`.
        target: int32 `[batch, target length]`, ending with EOS (or cut), padded with PAD.
        target_length: int32 `[batch]`.

    Returns:
        float32 `[batch, target length]`, in nats; 0 after the end of a sentence.
    """
    rows = TokenRows(target_length, tf.shape(target)[1])
    hidden, labels = rows.select(model.decode_hidden(memory, shift_right(target))), rows.select(target)
    logits = to_float32(model.output_projection().flat_logits(hidden))          # [tokens, vocabulary]
    label_logits = tf.gather(logits, labels, batch_dims=1)
    return rows.padded(label_logits - tf.reduce_logsumexp(logits, axis=1))


def sentence_log_probabilities(model: NMTModel, memory: Nest, target: Tensor, target_length: Tensor) -> Tensor:
    """Return log p(target | source), float32 `[batch]`, in nats; see `token_log_probabilities` for the arguments."""
    return tf.reduce_sum(token_log_probabilities(model, memory, target, target_length), axis=1)


@dataclass
class ConfiguredModel(NMTModel):
    """An `NMTModel` made from a dataclass of settings.

    Args:
        settings: settings including both vocabulary sizes. Missing `CommonSettings` are 0.
    """

    settings: Any

    def __post_init__(self) -> None:
        self.source_vocab_size = self.settings.source_vocab_size
        self.target_vocab_size = self.settings.target_vocab_size

    @property
    def source_factor_count(self) -> int:
        return len(getattr(self.settings, "source_factor_vocab_sizes", []))

    @property
    def label_smoothing(self) -> float:
        return self._rate("label_smoothing")

    @property
    def softmax_sample(self) -> float:
        return self._rate("softmax_sample")

    @property
    def word_dropout(self) -> float:
        return self._rate("word_dropout")

    @property
    def dropout_divergence(self) -> float:
        return self._rate("r_drop_alpha")

    @property
    def guided_alignment_weight(self) -> float:
        return self._rate("guided_alignment_weight")

    def _rate(self, name: str) -> float:
        """Return one of the `CommonSettings`, or 0 if a custom model does not have it."""
        return float(getattr(self.settings, name, 0.0))

    def adapted(self, x: Tensor, name: str) -> Tensor:
        """Return `x` `[..., depth]`, scaled by `lhuc` in the variable scope `name` if the settings request it."""
        return lhuc(x, name) if getattr(self.settings, "lhuc", False) else x
