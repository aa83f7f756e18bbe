"""Each optimizer, compared with its paper's formulas in NumPy, on fixed gradients, dense and sparse."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import sum_over_towers
from towernmt.optim.optimizer import make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings

STEPS = 5
SHAPES = {"matrix": (5, 3), "vector": (4,), "scalar": (), "tensor": (2, 3, 4), "zero": (3, 2)}
ROWS = np.array([3, 1, 3, 3])


def start() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    values = {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}
    values["zero"] *= 0
    return values


def dense_gradients() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(2)
    return [{name: random.normal(0, 2, shape).astype(np.float32) for name, shape in SHAPES.items()}
            for _ in range(STEPS)]


def sparse_gradients() -> list[np.ndarray]:
    """Return sparse gradients of the matrix's rows 3, 1, 3, 3."""
    random = np.random.default_rng(3)
    return [random.normal(0, 2, (4, 3)).astype(np.float32) for _ in range(STEPS)]


def as_dense(rows: np.ndarray) -> np.ndarray:
    dense = np.zeros(SHAPES["matrix"], np.float32)
    np.add.at(dense, ROWS, rows)
    return dense


def train(settings: OptimizerSettings, clip: float = 0.0, towers: int = 1) -> tuple[dict, dict, set[str]]:
    """Return all variables after dense gradients, the matrix after sparse ones (from towers), and the names."""
    with tf.Graph().as_default():
        variables = {name: tf1.get_variable(name, initializer=value) for name, value in start().items()}
        fed = {name: tf1.placeholder(tf.float32, shape) for name, shape in SHAPES.items()}
        train_op = make_optimizer(settings, clip).apply_gradients([(fed[name], variables[name]) for name in SHAPES])
        names = {v.op.name for v in tf1.global_variables()}
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for gradients in dense_gradients():
                session.run(train_op, {fed[name]: gradients[name] for name in SHAPES})
            dense = session.run(variables)
    with tf.Graph().as_default():
        matrix = tf1.get_variable("matrix", initializer=start()["matrix"])
        rows = tf1.placeholder(tf.float32, [None, 3])
        shares = zip(tf.split(rows, towers), np.split(ROWS, towers), strict=True)
        gradients = sum_over_towers([[(tf.IndexedSlices(part, tf.constant(indices), [5, 3]), matrix)]
                                     for part, indices in shares])
        assert isinstance(gradients[0][0], tf.IndexedSlices)
        train_op = make_optimizer(settings, clip).apply_gradients(gradients)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for values in sparse_gradients():
                session.run(train_op, {rows: values})
            sparse = session.run(matrix)
    return dense, {"matrix": sparse}, names


class Reference:
    """The update rule of one variable: `step(value, gradient, t)` returns the new value, t from 1."""

    def step(self, x: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        raise NotImplementedError


class AdamReference(Reference):
    rate, b1, b2, epsilon, decay = 0.02, 0.8, 0.95, 1e-6, 0.0

    def __init__(self, decay: float = 0.0) -> None:
        self.decay = decay
        self.m = self.v = 0.0

    def direction(self, g, t):
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g ** 2
        return self.m / (1 - self.b1 ** t) / (np.sqrt(self.v / (1 - self.b2 ** t)) + self.epsilon)

    def step(self, x, g, t):
        decay = self.decay if x.ndim >= 2 else 0.0
        return x - self.rate * (self.direction(g, t) + decay * x)


class LambReference(AdamReference):
    def step(self, x, g, t):
        r = self.direction(g, t) + (self.decay * x if x.ndim >= 2 else 0.0)
        length, step = np.sqrt((x ** 2).sum()), np.sqrt((r ** 2).sum())
        return x - self.rate * (length / step if length > 0 and step > 0 else 1.0) * r


class LazyAdamReference(AdamReference):
    """The rule of LazyAdam, which changes only the rows of the sparse gradient."""

    def step(self, x, g, t):
        rows = np.unique(ROWS)
        if t == 1:
            self.m, self.v = np.zeros_like(x), np.zeros_like(x)
        x = x.copy()
        self.m[rows] = self.b1 * self.m[rows] + (1 - self.b1) * g[rows]
        self.v[rows] = self.b2 * self.v[rows] + (1 - self.b2) * g[rows] ** 2
        corrected = self.rate * np.sqrt(1 - self.b2 ** t) / (1 - self.b1 ** t)
        x[rows] -= corrected * self.m[rows] / (np.sqrt(self.v[rows]) + self.epsilon)
        return x


class AdafactorReference(Reference):
    def __init__(self, relative: bool = True, clip: float = 1.0, momentum: float = 0.0) -> None:
        self.relative, self.clip, self.momentum = relative, clip, momentum
        self.r = self.c = self.v = self.mean = 0.0

    def step(self, x, g, t):
        b = 1 - t ** -0.8
        squares = g.astype(np.float64) ** 2 + 1e-30
        if x.ndim < 2:
            self.v = b * self.v + (1 - b) * squares
            v = self.v
        else:       # algorithm 4: sums over rows and columns, separately for each of the leading dimensions
            self.r = b * self.r + (1 - b) * squares.sum(-1, keepdims=True)
            self.c = b * self.c + (1 - b) * squares.sum(-2, keepdims=True)
            v = self.r * self.c / self.r.sum(-2, keepdims=True)
        u = g / np.sqrt(v)
        if self.clip:
            u = u / max(1.0, rms(u) / self.clip)
        step = 0.02 * u * (max(1e-3, rms(x)) if self.relative else 1.0)
        if self.momentum:
            self.mean = self.momentum * self.mean + (1 - self.momentum) * step
            step = self.mean
        return x - step


def rms(x: np.ndarray) -> float:
    return float(np.sqrt((x ** 2).mean()))


class SgdReference(Reference):
    def __init__(self, nesterov: bool) -> None:
        self.nesterov, self.speed = nesterov, 0.0

    def step(self, x, g, t):
        self.speed = 0.7 * self.speed + g
        return x - 0.02 * (g + 0.7 * self.speed if self.nesterov else self.speed)


ADAM = {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}
FACTOR = {"learning_rate": 0.02}
CASES = {
    "adam": ({"name": "adam", **ADAM}, AdamReference, AdamReference),
    "adamw": ({"name": "adamw", "weight_decay": 0.3, **ADAM}, lambda: AdamReference(0.3), lambda: AdamReference(0.3)),
    "adamw without decay": ({"name": "adamw", "weight_decay": 0.0, **ADAM}, AdamReference, AdamReference),
    "lazyadam": ({"name": "lazyadam", **ADAM}, AdamReference, LazyAdamReference),
    "lamb": ({"name": "lamb", "weight_decay": 0.3, **ADAM}, lambda: LambReference(0.3), lambda: LambReference(0.3)),
    "adafactor": ({"name": "adafactor", **FACTOR}, AdafactorReference, AdafactorReference),
    "adafactor, absolute, unclipped, momentum": (
        {"name": "adafactor", **FACTOR, "adafactor_relative": False, "adafactor_clip": 0.0, "adafactor_momentum": 0.6},
        lambda: AdafactorReference(False, 0.0, 0.6), lambda: AdafactorReference(False, 0.0, 0.6)),
    "sgd": ({"name": "sgd", "learning_rate": 0.02, "momentum": 0.7},
            lambda: SgdReference(False), lambda: SgdReference(False)),
    "nesterov": ({"name": "sgd", "learning_rate": 0.02, "momentum": 0.7, "nesterov": True},
                 lambda: SgdReference(True), lambda: SgdReference(True)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_makes_the_steps_of_its_formula(case):
    settings, dense_rule, sparse_rule = CASES[case]
    dense, sparse, _ = train(OptimizerSettings(**settings))
    for name in SHAPES:
        value, rule = start()[name].astype(np.float64), dense_rule()
        for t, gradients in enumerate(dense_gradients(), start=1):
            value = rule.step(value, gradients[name], t)
        np.testing.assert_allclose(dense[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    value, rule = start()["matrix"].astype(np.float64), sparse_rule()
    for t, rows in enumerate(sparse_gradients(), start=1):
        value = rule.step(value, as_dense(rows), t)
    np.testing.assert_allclose(sparse["matrix"], value, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["adam", "lazyadam", "adafactor"])
def test_clipped_sparse_gradients_make_the_same_step_from_two_towers(name):
    settings = OptimizerSettings(name, learning_rate=0.02, epsilon=1.0)
    with_one_tower, with_two_towers = (train(settings, clip=0.5, towers=towers)[1]["matrix"] for towers in (1, 2))
    np.testing.assert_allclose(with_one_tower, with_two_towers, rtol=1e-6)


@pytest.mark.parametrize("name, slots", [
    ("adam", {"matrix/Adam", "matrix/Adam_1", "beta1_power", "beta2_power"}),
    ("adamw", {"matrix/Adam", "matrix/Adam_1", "beta1_power", "beta2_power"}),
    ("lazyadam", {"matrix/Adam", "matrix/Adam_1", "beta1_power", "beta2_power"}),
    ("lamb", {"matrix/LAMB", "matrix/LAMB_1", "beta1_power", "beta2_power"}),
    ("adafactor", {"matrix/Adafactor_row", "matrix/Adafactor_column", "vector/Adafactor_square", "adafactor_step"}),
    ("sgd", {"matrix/Momentum"}),
])
def test_slots_have_the_names_by_which_checkpoints_keep_them(name, slots):
    names = train(OptimizerSettings(name))[2]
    assert slots <= names
    assert {n for n in names if n.startswith("matrix/")} == {s for s in slots if s.startswith("matrix/")}


def test_rows_without_a_gradient_stay_as_they_are_with_lazyadam():
    sparse = train(OptimizerSettings("lazyadam"))[1]["matrix"]
    untouched = [0, 2, 4]
    assert np.array_equal(sparse[untouched], start()["matrix"][untouched])
    assert not np.allclose(sparse[[1, 3]], start()["matrix"][[1, 3]])


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_of_the_average_that_cannot_work_is_refused(graph, decay):
    with pytest.raises(SettingsError, match="optimizer.ema_decay"):
        make_optimizer(OptimizerSettings(ema_decay=decay))


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_sparse_gradients_are_applied_by_one_pass_over_the_variable(name):
    """TensorFlow's operations for sparse gradients take about ten, which is slow for a table of a large vocabulary."""
    with tf.Graph().as_default() as graph:
        matrix = tf1.get_variable("matrix", initializer=start()["matrix"])
        gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 3]), [5, 3])
        make_optimizer(OptimizerSettings(name)).apply_gradients([(gradient, matrix)])
        operations = {operation.type for operation in graph.get_operations()}
    assert "ResourceApplyAdam" in operations
    assert not {kind for kind in operations if kind.startswith("ResourceScatter")}
