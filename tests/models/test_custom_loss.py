"""A model with a custom `loss`, compared with formulas in NumPy: in towers, in update cycles, and with other terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext
from tensorpack.train.interface import launch_train_with_config

from tests.models import tiny_models as tiny
from towernmt.core.errors import TowerRuleError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.input_source import GeneralQueueInput
from towernmt.models import NMTModel, Transformer, TransformerSettings
from towernmt.models.interface import shift_right
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


class FocalLoss(NMTModel):
    """The focal loss (Lin et al. 2017) with gamma 2: a token counts less if its probability is already high."""

    def loss(self, logits: Any, batch: Any) -> Any:
        log_p = tf.gather(tf.nn.log_softmax(logits), batch.labels, batch_dims=1)        # [tokens]
        return -tf.reduce_sum(tf.square(1.0 - tf.exp(log_p)) * log_p)


class Focal(FocalLoss, Transformer):
    """The Transformer with the focal loss."""

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(1.0)


def make(**settings: Any) -> Focal:
    """A small model without dropout, whose label smoothing the focal loss does not use."""
    sizes = {**tiny.MODELS["transformer"][2], **tiny.NO_DROPOUT["transformer"], "decoder_layers": 1,
             "source_vocab_size": 19, "target_vocab_size": 19, "label_smoothing": 0.1}
    return Focal(TransformerSettings(**{**sizes, **settings}))


def probabilities(logits: np.ndarray, target: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distributions `[tokens, vocabulary]` and the labels `[tokens]` of the real target tokens."""
    real = np.arange(target.shape[1]) < length[:, None]
    chosen = logits[real].astype(np.float64)
    exponentials = np.exp(chosen - chosen.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True), target[real]


def focal_loss(q: np.ndarray, labels: np.ndarray) -> float:
    p = q[np.arange(len(labels)), labels]
    return float((-(1 - p) ** 2 * np.log(p)).sum())


def focal_gradient(q: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The gradient of `focal_loss` with respect to the bias of the softmax, `[vocabulary]`."""
    p = q[np.arange(len(labels)), labels]
    slope = 2 * (1 - p) * np.log(p) - (1 - p) ** 2 / p
    return ((slope * p)[:, None] * (np.eye(q.shape[1])[labels] - q)).sum(0)


@pytest.mark.parametrize("training", [True, False])
def test_training_and_validation_towers_use_the_custom_loss_per_token(graph: Any, training: bool) -> None:
    model = make()
    with (TrainTowerContext if training else PredictTowerContext)(""):
        cost = model.build_graph(*map(tf.constant, tiny.INPUTS))
        with tf1.variable_scope("", reuse=True):
            memory = model.encode(tf.constant(tiny.SOURCE), tf.constant(tiny.SOURCE_LENGTH))
            logits = model.decode(memory, shift_right(tf.constant(tiny.TARGET)))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        got, nll, values = session.run([cost, "nll:0", logits])
    q, labels = probabilities(values, tiny.TARGET, tiny.TARGET_LENGTH)
    assert len(labels) == 8
    assert got == pytest.approx(focal_loss(q, labels) / 8, rel=1e-5)
    assert nll == pytest.approx(-np.log(q[np.arange(8), labels]).mean(), rel=1e-5)


class TwoBatches:
    """Two batches with different numbers of target tokens."""

    def __init__(self) -> None:
        lengths = [tiny.TARGET_LENGTH, np.array([1, 2], np.int32)]
        targets = [tiny.TARGET, np.array([[2, 0], [9, 2]], np.int32)]
        self.batches = [Batch(tiny.SOURCE, tiny.SOURCE_LENGTH, target, length, np.float32(length.sum()))
                        for target, length in zip(targets, lengths, strict=True)]

    def batches_per_epoch(self) -> int:
        return len(self.batches)

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Any:
        for i in range((position.batch if position else 0) + start, len(self.batches), step):
            yield Position(0, 0, i + 1), self.batches[i]


class Weights(Callback):
    """Record the bias of the softmax before and after training, and the initial distributions of both batches."""

    def __init__(self, model: Focal, batches: list[Batch]) -> None:
        self.model, self.batches = model, batches

    def _setup_graph(self) -> None:
        self._inputs = [tf1.placeholder(tf.int32, shape) for shape in ([None, None], [None], [None, None])]
        with tf1.variable_scope("", reuse=True), PredictTowerContext("reference"):
            source, length, target = self._inputs
            self._logits = self.model.decode(self.model.encode(source, length), shift_right(target))
        (self._bias,) = [v for v in tf1.trainable_variables() if v.op.name.endswith("softmax_bias")]

    def _before_train(self) -> None:
        tiny.scramble(self.trainer.sess)
        self.before = self.trainer.sess.run(self._bias)
        self.tokens = []
        for batch in self.batches:
            inputs = dict(zip(self._inputs, (batch.source, batch.source_length, batch.target), strict=True))
            logits = self.trainer.sess.run(self._logits, inputs)
            self.tokens.append(probabilities(logits, batch.target, batch.target_length))

    def _after_train(self) -> None:
        self.after = np.array(self.trainer.sess.run(self._bias))


@pytest.mark.thorough
@pytest.mark.parametrize("towers", [1, 2])
def test_an_update_cycle_averages_the_custom_loss_over_all_tokens_of_its_batches(graph: Any, towers: int) -> None:
    model, data = make(), TwoBatches()
    weights = Weights(model, data.batches)
    launch_train_with_config(TrainConfig(model, GeneralQueueInput(data), callbacks=[weights], monitors=[],
                                         update_cycle=2), SyncMultiGPUTrainer(towers=towers, update_cycle=2))
    gradient = sum(focal_gradient(*tokens) for tokens in weights.tokens) / 11       # 8 and 3 tokens
    assert np.abs(gradient).max() > 0.01
    np.testing.assert_allclose(weights.before - weights.after, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_custom_loss_combines_with_r_drop_and_guided_alignment() -> None:
    def cost_and_alignment(**settings: Any) -> tuple[float, float]:
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            model = make(**settings)
            guided = bool(model.guided_alignment_weight)
            with TrainTowerContext(""):
                cost = model.build_graph(*map(tf.constant, [*tiny.INPUTS, *([tiny.ALIGNMENT] if guided else [])]))
            session.run(tf1.global_variables_initializer())
            tiny.scramble(session)
            alignment = graph.get_tensor_by_name("alignment_loss:0") if guided else tf.constant(0.0)
            return tuple(float(x) for x in session.run([cost, alignment]))      # type: ignore[return-value]

    plain, _ = cost_and_alignment()
    assert cost_and_alignment(r_drop_alpha=5.0)[0] == pytest.approx(plain, rel=1e-4)    # no dropout: no divergence
    guided, alignment = cost_and_alignment(guided_alignment_weight=0.5, r_drop_alpha=5.0)
    assert alignment > 0.1 and guided == pytest.approx(plain + 0.5 * alignment, rel=1e-4)


def test_the_default_loss_can_be_extended(graph: Any) -> None:
    class Penalised(Transformer):
        def loss(self, logits: Any, batch: Any) -> Any:
            return super().loss(logits, batch) + 0.5 * tf.reduce_sum(tf.square(tf.reduce_logsumexp(logits, axis=1)))

    costs, gradients = [], []
    for kind in (Penalised, Transformer):
        model = kind(make().settings)
        with TrainTowerContext(kind.__name__), tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            costs.append(model.build_graph(*map(tf.constant, tiny.INPUTS)))
            (bias,) = [v for v in tf1.trainable_variables() if v.op.name.endswith("softmax_bias")]
            gradients.append(tf1.gradients(costs[-1], bias)[0])
            memory = model.encode(*map(tf.constant, tiny.INPUTS[:2]))
            logits = model.decode(memory, shift_right(tf.constant(tiny.TARGET)))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        (more, plain), (steep, slope), values = session.run([costs, gradients, logits])
    q, _ = probabilities(values, tiny.TARGET, tiny.TARGET_LENGTH)
    real = np.arange(5) < tiny.TARGET_LENGTH[:, None]
    normaliser = np.log(np.exp(values[real].astype(np.float64)).sum(1))
    assert more == pytest.approx(plain + 0.5 * (normaliser ** 2).sum() / 8, rel=1e-5)
    np.testing.assert_allclose(steep - slope, (normaliser[:, None] * q).sum(0) / 8, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("result, description", [
    (lambda logits: tf.reduce_sum(logits, 1), r"float32 \(None,\)"),
    (lambda logits: tf.cast(tf.reduce_sum(logits), tf.float64), r"float64 \(\)")])
def test_a_loss_that_is_not_a_float32_scalar_is_refused(graph: Any, result: Any, description: str) -> None:
    class Wrong(Transformer):
        def loss(self, logits: Any, batch: Any) -> Any:
            return result(logits)

    with TrainTowerContext(""), pytest.raises(TowerRuleError, match=rf"Wrong\.loss returned {description}; .* sum of"):
        Wrong(make().settings).build_graph(*map(tf.constant, tiny.INPUTS))


def test_a_loss_of_unknown_shape_is_checked_when_it_is_computed(graph: Any) -> None:
    class Unknown(Transformer):
        def loss(self, logits: Any, batch: Any) -> Any:
            return tf1.placeholder_with_default(super().loss(logits, batch), None)

    with TrainTowerContext(""):
        assert Unknown(make().settings).build_graph(*map(tf.constant, tiny.INPUTS)).shape.rank == 0
