"""`check_tower`: build a tower function in several ways, in scratch graphs, and report what breaks the rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorpack.train.model_desc import ModelDescBase
from tensorpack.utils import logger

from towernmt.check import rules, stepwise
from towernmt.check.breach import DECODER_RULES, RULES, Breach
from towernmt.check.scratch import Scratch
from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.models.interface import NMTModel


def check_tower(model: Any) -> list[Breach]:
    """Every breach of the rules of tower functions by a model, by rule and by variable.

    The model itself stays as it is: copies of it are built, without data, in graphs that are thrown away. The decoder
    of an `NMTModel` that keeps all rules of building is also run, on a few random sentences (see `stepwise`).

    Args:
        model: a tensorpack `ModelDesc`, such as an `NMTModel`.
    Returns:
        the breaches, the same rule's together; none if the model obeys.
    Raises:
        SettingsError: `model` is not of that kind.
    """
    if not isinstance(model, ModelDescBase):
        raise SettingsError(f"check_tower({model!r}): give it a model, an instance of tensorpack's ModelDesc; for a "
                            "function there is check_tower_function(function, input_signature).")
    decode_one = _decode_one if isinstance(model, NMTModel) else None
    return _check(model, model.get_input_signature(), lambda subject: subject.build_graph, decode_one)


def rules_for(model: Any) -> dict[str, str]:
    """The rules that `check_tower` checks for a model, by name."""
    return RULES | DECODER_RULES if isinstance(model, NMTModel) else RULES


def check_tower_function(function: Callable[..., Any], signature: Sequence[TensorSpec]) -> list[Breach]:
    """As `check_tower`, for a tower function that does not belong to a model.

    Args:
        function: takes the input tensors.
        signature: a `tf.TensorSpec` with a name for each.
    """
    return _check(function, signature, lambda subject: subject, None)


def _check(subject: Any, signature: Sequence[TensorSpec], function: Callable[[Any], Any],
           decode_one: Callable[[Any], Any] | None) -> list[Breach]:
    with _quiet():
        builds = _build(subject, signature, function, decode_one)
        if builds.alone.error is not None:
            return list(rules.reuse(builds)) + list(rules.fails(builds))[:1]
        breaches = [breach for rule in rules.ALL for breach in rule(builds)]
        if not breaches and isinstance(subject, NMTModel):
            breaches = list(stepwise.stepwise(subject))
        return breaches


def _build(subject: Any, signature: Sequence[TensorSpec], function: Callable[[Any], Any],
           decode_one: Callable[[Any], Any] | None) -> rules.Builds:
    def scratch() -> Scratch:
        return Scratch(subject, signature)

    lone, side = scratch(), scratch()
    alone = lone.build(function, "a training tower alone")
    lone.find_untrained(alone)
    first = side.build(function, "the first of two training towers", "tower0", 0, 2, inputs="share_0")
    second = side.build(function, "the second of two training towers", "tower1", 1, 2, reuse=True, inputs="share_1")
    predict, again = (side.build(function, "a predicting tower next to the training towers", f"tower-pred-{i}",
                                 training=False, reuse=True, inputs=f"predict_{i}") for i in range(2))
    return rules.Builds(
        subject, function(subject), alone, first, second, predict, again,
        stepwise=side.build(decode_one, "a tower of decode_step", "tower-search", training=False, reuse=True,
                            inputs="search") if decode_one else None,
        named=scratch().build(function, "a training tower in the name scope 'outer_names/inner'", "outer_names/inner",
                              inputs="outer_inputs"),
        scoped=scratch().build(function, f"a training tower in the variable scope '{rules.ENCLOSING}'", "outer_names",
                               variables=rules.ENCLOSING),
        predict_alone=scratch().build(function, "a predicting tower alone", training=False))


def _decode_one(model: NMTModel) -> Callable[..., Any]:
    """A tower function of the first step of decoding."""
    def decode_one(source: Tensor, source_length: Tensor, *_: Tensor) -> Any:
        state = model.start_state(model.encode(source, source_length), 1)
        return model.decode_step(tf.zeros([tf.shape(source)[0]], tf.int32), state)

    return decode_one


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide tensorpack's messages on collections: they are about graphs that are thrown away."""
    level = logger._logger.level
    logger._logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger._logger.setLevel(level)
