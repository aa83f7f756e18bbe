"""`check_tower` checks a tower function in scratch graphs; `TowerWatch` checks each tower of a trainer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.train.model_desc import ModelDescBase
from tensorpack.utils import logger

from towernmt.check import stepwise_check, tower_rules
from towernmt.check.tower_builds import (
    KEYS,
    Build,
    Scratch,
    VariableRecord,
    location_of_creation,
    location_of_error,
    recorded_reuse,
    variable_records,
)
from towernmt.check.tower_rules import (
    DECODER_RULES,
    RULES,
    Breach,
    in_trainable_collection,
    not_trainable,
    random_draws,
    tower_in_name,
)
from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel, batch_signature, shift_right


class TowerWatch:
    """Check of a tower function while a trainer or predictor builds towers with it.

    Breaches that would break the training raise `TowerRuleError`: a trainable variable that a second or predicting
    tower creates, a variable that such a tower does not find, enabled reuse, and items of TRAINABLE_VARIABLES that
    cannot be trained. Other breaches are logged as warnings. `check_tower` builds more towers and finds more breaches.

    Attributes:
        seconds: duration of the checks.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def attach(self, tower_func: Any) -> None:
        """Check all further towers of a tensorpack `TowerFunc`."""
        tower_func._tower_fn = self.around(tower_func._tower_fn)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a tower function that also checks each of its calls."""
        def watched(*inputs: Tensor) -> Any:
            start_time = time.perf_counter()
            graph, build = tf1.get_default_graph(), Build("")
            trainable = graph.get_collection_ref(KEYS.TRAINABLE_VARIABLES)
            count, operation_count = len(trainable), len(graph.get_operations())
            with recorded_reuse(build):
                self.seconds += time.perf_counter() - start_time
                try:
                    result = function(*inputs)
                except ValueError as error:
                    explained = _explained(error)
                    if explained is None:
                        raise
                    del trainable[count:]       # tensorpack's assertion on the way out would hide the sentence
                    raise explained from error
            start_time = time.perf_counter()
            build.trainables = trainable[count:]
            added_items = {KEYS.TRAINABLE_VARIABLES: build.trainables}
            build.variables = variable_records(graph, added_items, with_locations=False)
            self._check_build(build)
            if get_current_tower_context().has_own_variables:
                _warn(random_draws(result, graph.get_operations()[operation_count:]))
            self.seconds += time.perf_counter() - start_time
            return result

        return watched

    def _check_build(self, build: Build) -> None:
        if build.reuse_location is not None:
            _refuse(Breach("reuse", "", (
                "it switches on reuse (reuse_variables) in a variable scope that is not its own: open a scope, "
                "tf1.variable_scope(name, reuse=True), for what is to be shared"), build.reuse_location))
        context = get_current_tower_context()
        if not context.has_own_variables:
            if build.variables:
                del tf1.get_collection_ref(KEYS.TRAINABLE_VARIABLES)[-len(build.trainables):]
                _refuse(_created_again(build.variables[0], context.is_training))
            return
        for item, problem in not_trainable(build.trainables):
            _refuse(in_trainable_collection(item, problem))
        for record in build.variables:
            _warn(_oddities(record))


def _warn(breaches: Iterable[Breach]) -> None:
    for breach in breaches:
        logger.warning(f"The tower function breaks a rule: {breach}")


def _created_again(record: VariableRecord, training: bool) -> Breach:
    location = location_of_creation(record.variable)
    if training:
        return Breach("second-tower", record.name, (
            f"the second training tower creates the trainable variable '{record.name}' instead of reusing one of the "
            "first: create it with tf1.get_variable, with the same name in every call"), location)
    return Breach("mode", record.name, (
        f"the predicting tower creates the trainable variable '{record.name}', which no training tower has: create it "
        "with tf1.get_variable, with the same name in training"), location)


def _oddities(record: VariableRecord) -> list[Breach]:
    breaches = []
    if not record.from_store:
        breaches.append(Breach("name-scope", record.name, (
            f"the trainable variable '{record.name}' is named by its name scope, so each tower creates a separate one: "
            "create it with tf1.get_variable."), location_of_creation(record.variable)))
    if "tower" in record.name:
        breaches.append(tower_in_name("variable", record.name, location_of_creation(record.variable)))
    return breaches


def _explained(error: ValueError) -> TowerRuleError | None:
    """Return the explanation of TensorFlow's error for a missing variable under reuse; None for other errors."""
    context = get_current_tower_context()
    text = (str(error).splitlines() or [""])[0]
    if "does not exist, or was not created with" not in text or context.has_own_variables:
        return None
    name = text.removeprefix("Variable ").split(" ")[0]
    tower = f"training tower {context.index}" if context.is_training else "a predicting tower"
    return TowerRuleError(
        f"The tower function breaks a rule: {location_of_error(error) or '?'}: [second-tower] {tower} requests the "
        f"variable '{name}', which the first training tower did not create: name variables by variable scopes alone "
        "(not by name scopes, tensors or the tower's number), and create each of them in training; "
        "check_tower(model) reports more.")


def _refuse(breach: Breach) -> None:
    raise TowerRuleError(f"The tower function breaks a rule: {str(breach).rstrip('.')}; check_tower(model) reports "
                         "more.")


def check_tower(model: Any) -> list[Breach]:
    """Return all breaches of the rules of tower functions by a model, ordered by rule and variable.

    The model is not changed: copies of it are built in scratch graphs without data. If an `NMTModel` passes all rules
    of building, its decoder is also run on a few random sentences (see `stepwise`).

    Args:
        model: a tensorpack `ModelDesc`, such as an `NMTModel`.

    Returns:
        The breaches, grouped by rule; an empty list if the model follows all rules.

    Raises:
        SettingsError: `model` is not a `ModelDesc`.
    """
    if not isinstance(model, ModelDescBase):
        raise SettingsError(f"check_tower({model!r}): pass an instance of tensorpack's ModelDesc, or check a function "
                            "with check_tower_function(function, signature).")
    return _check(model, model.get_input_signature(), lambda subject: subject.build_graph)


def rules_for(model: Any) -> dict[str, str]:
    """Return the rules that `check_tower` checks for a model, by name."""
    return RULES | DECODER_RULES if isinstance(model, NMTModel) else RULES


def check_tower_function(function: Callable[..., Any], signature: Sequence[TensorSpec]) -> list[Breach]:
    """Return all breaches of the rules by a tower function that does not belong to a model; see `check_tower`.

    Args:
        function: the tower function, whose arguments are the input tensors.
        signature: a named `tf.TensorSpec` for each input tensor.
    """
    return _check(function, signature, lambda subject: subject)


def _check(subject: Any, signature: Sequence[TensorSpec], function: Callable[[Any], Any]) -> list[Breach]:
    with _quiet():
        builds = _build(subject, signature, function)
        if builds.alone.error is not None:
            return list(tower_rules.reuse(builds)) + list(tower_rules.fails(builds))[:1]
        breaches = [breach for rule in tower_rules.ALL for breach in rule(builds)]
        if not breaches and isinstance(subject, NMTModel):
            breaches = list(stepwise_check.stepwise(subject))
        return breaches


def _build(subject: Any, signature: Sequence[TensorSpec], function: Callable[[Any], Any]) -> tower_rules.Builds:
    def scratch() -> Scratch:
        return Scratch(subject, signature)

    single, pair = scratch(), scratch()
    alone = single.build(function, "a training tower alone")
    single.find_untrained(alone)
    first = pair.build(function, "the first of two training towers", "tower0", 0, 2, inputs="share_0")
    second = pair.build(function, "the second of two training towers", "tower1", 1, 2, reuse=True, inputs="share_1")
    predict, second_predict = (pair.build(function, "a predicting tower next to the training towers", f"tower-pred-{i}",
                                          training=False, reuse=True, inputs=f"predict_{i}") for i in range(2))
    return tower_rules.Builds(
        subject, function(subject), alone, first, second, predict, second_predict,
        uses={use: pair.build(tower, title, f"tower-use-{number}", training=False, reuse=True, inputs=f"use_{number}",
                              signature=batch_signature(subject.source_factor_count))
              for number, (use, (title, tower)) in enumerate(_uses(subject).items())},
        in_name_scope=scratch().build(function, "a training tower in the name scope 'outer_names/inner'",
                                      "outer_names/inner", inputs="outer_inputs"),
        in_variable_scope=scratch().build(function, f"a training tower in the variable scope '{tower_rules.ENCLOSING}'",
                                          "outer_names", variables=tower_rules.ENCLOSING),
        predict_alone=scratch().build(function, "a predicting tower alone", training=False))


def _uses(model: Any) -> dict[str, tuple[str, Callable[[Any], Callable[..., Any]]]]:
    """Return the towers that commands build with an `NMTModel`, by use: title, and maker of the tower function."""
    if not isinstance(model, NMTModel):
        return {}
    towers: dict[str, tuple[str, Callable[[Any], Callable[..., Any]]]] = {
        "translating": ("a tower of decode_step", _decode_one), "scoring": ("a tower of decode_hidden", _score)}
    if model.gives_attention:
        towers["aligning"] = "a tower of decode_with_attention", _align
    if model.gives_step_attention:
        towers["translating with alignments"] = (
            "a tower of decode_step with attention", partial(_decode_one, attention=True))
    return towers


def _decode_one(model: NMTModel, **options: bool) -> Callable[..., Any]:
    """Return a tower function of the first decoding step; `options` are further arguments of `decode_step`."""
    def decode_one(source: Tensor, source_length: Tensor, *_: Tensor) -> Any:
        state = model.start_state(model.encode(source, source_length), 1)
        return model.decode_step(tf.zeros([tf.shape(source)[0]], tf.int32), state, **options)

    return decode_one


def _score(model: NMTModel) -> Callable[..., Any]:
    """Return a tower function of teacher forcing."""
    def score(source: Tensor, source_length: Tensor, target: Tensor, *_: Tensor) -> Any:
        return NMTModel.decode(model, model.encode(source, source_length), shift_right(target))

    return score


def _align(model: NMTModel) -> Callable[..., Any]:
    """Return a tower function of teacher forcing with attention."""
    def align(source: Tensor, source_length: Tensor, target: Tensor, *_: Tensor) -> Any:
        return model.decode_with_attention(model.encode(source, source_length), shift_right(target))

    return align


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide tensorpack's messages on collections of the scratch graphs."""
    level = logger._logger.level
    logger._logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger._logger.setLevel(level)
