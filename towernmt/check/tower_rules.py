"""The rules of tower functions: each examines the builds of a tower function and yields its breaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorpack.tfutils.collection import CollectionGuard
from tensorpack.train.model_desc import ModelDesc
from tensorpack.utils.naming import MOVING_SUMMARY_OPS_KEY

from towernmt.check.tower_builds import (
    KEYS,
    Build,
    VariableRecord,
    is_variable,
    location_of_creation,
    location_of_definition,
    location_of_error,
    location_of_growth,
)
from towernmt.core.tensors import Operation
from towernmt.core.tf_compat import tf

RULES = {
    "fails": "the function can be called again, in every way that a tower is built",
    "enclosing-scope": "a trainable variable's name starts with the variable scope that encloses the call",
    "scope-twice": "a trainable variable's name contains the enclosing variable scope once",
    "name-scope": "a trainable variable's name does not depend on a name scope",
    "tensor-name": "a trainable variable's name does not depend on a tensor's name",
    "second-tower": "the second tower creates no trainable variable: it reuses those of the first one",
    "reuse": "the function does not switch on the reuse of its caller's variable scope",
    "trainable-collection": "TRAINABLE_VARIABLES contains variables that gradient descent trains, each once",
    "model-variables": "variables that are not trained, but needed for prediction, are in MODEL_VARIABLES",
    "cost": "the function of a model returns one cost",
    "random": "training draws no random numbers with a state that no checkpoint contains",
    "tower-word": "no scope or variable has 'tower' in its name",
    "grows": "graph collections and attributes do not grow with each call",
    "mode": "training creates every variable that prediction uses, in the same shape",
}
"""Rules by name, from tensorpack's "Rules of Tower Function"."""
DECODER_RULES = {
    "padding": "a sentence's logits do not depend on the padding of its source",
    "causal": "a target position's logits do not depend on later target words",
    "stepwise": "decode_step (after reordering, too) and decode_with_attention return the logits of decode",
}
"""Further rules, for an `NMTModel`."""


class Breach(NamedTuple):
    """A breach of a rule by a variable.

    Attributes:
        rule: a key of `RULES` or of `DECODER_RULES`.
        variable: name of the variable in a single training tower; for some rules a scope, an operation, a collection
            or an attribute; "" means the function itself.
        message: one sentence: what is wrong, and how to fix it.
        location: position in the user's code, `file:line`; "" if unknown.
    """

    rule: str
    variable: str
    message: str
    location: str

    def __str__(self) -> str:
        return f"{self.location or '?'}: [{self.rule}] {self.message}"


ENCLOSING = "outer_variables"
MAY_GROW = {*CollectionGuard._default_diff_whitelist(), KEYS.SUMMARIES, MOVING_SUMMARY_OPS_KEY, KEYS.MODEL_VARIABLES,
            KEYS.REGULARIZATION_LOSSES}
"""Collections that TensorFlow fills at every call, and collections that tensorpack restores."""


@dataclass
class Builds:
    """The builds of one tower function. `first` to `uses` share a graph; each other build has a separate graph.

    Attributes:
        alone: a single training tower.
        first, second: two training towers.
        predict, second_predict: two predicting towers in the same graph.
        uses: towers that commands build with an `NMTModel` in the same graph, by their use ("translating"); empty for
            other models.
        in_name_scope: a training tower in an outer name scope.
        in_variable_scope: a training tower in the variable scope `ENCLOSING`.
        predict_alone: a predicting tower alone, as in a predictor.
    """

    subject: Any
    function: Any
    alone: Build
    first: Build
    second: Build
    predict: Build
    second_predict: Build
    uses: dict[str, Build]
    in_name_scope: Build
    in_variable_scope: Build
    predict_alone: Build

    def all_builds(self) -> list[Build]:
        return [self.alone, self.in_name_scope, self.in_variable_scope, self.first, self.second, self.predict,
                self.second_predict, *self.uses.values(), self.predict_alone]

    def name_of(self, record: VariableRecord) -> str:
        """Return the name of a variable in the training tower alone."""
        return next((candidate.name for candidate in self.alone.variables if candidate.key == record.key), record.name)


def fails(builds: Builds) -> Iterator[Breach]:
    """Yield builds that raised an error; equal messages are reported once."""
    reported = set()
    for build in builds.all_builds():
        if build.error is None:
            continue
        text = (str(build.error).strip().splitlines() or [""])[0]
        if text not in reported:
            reported.add(text)
            yield Breach("fails", "", f"{build.title} cannot be built: {type(build.error).__name__}: {text}",
                         location_of_error(build.error))


def enclosing_scope(builds: Builds) -> Iterator[Breach]:
    """Yield trainable variables whose names do not start with the enclosing variable scope."""
    for record in _trainable(builds.in_variable_scope):
        if not record.name.startswith(f"{ENCLOSING}/"):
            name = builds.name_of(record)
            yield Breach("enclosing-scope", name, (
                f"the trainable variable '{name}' is called '{record.name}' inside the variable scope '{ENCLOSING}', "
                "but its name must begin with that scope: create it with tf1.get_variable in the current scope."),
                record.location)


def scope_twice(builds: Builds) -> Iterator[Breach]:
    """Yield trainable variables whose names contain the enclosing variable scope twice."""
    for record in _trainable(builds.in_variable_scope):
        if record.name.split("/").count(ENCLOSING) > 1:
            name = builds.name_of(record)
            yield Breach("scope-twice", name, (
                f"the trainable variable '{name}' is called '{record.name}' inside the variable scope '{ENCLOSING}', "
                "and repeats the name of that scope: open scopes with fixed names, not with the name of the current "
                "scope."),
                record.location)


def names(builds: Builds) -> Iterator[Breach]:
    """Yield trainable variables whose names change with the name scope, or with the names of tensors."""
    reported = set()
    for build in (builds.in_name_scope, builds.first):
        for record in _trainable(build):
            name = builds.name_of(record)
            if record.name == name or record.key in reported:
                continue
            reported.add(record.key)
            tensor = _tensor_in_name(record, build) if record.from_store else None
            rule, cause = ("name-scope", "a name scope") if tensor is None else ("tensor-name", "the name of a tensor")
            yield Breach(rule, name, (
                f"the trainable variable '{name}' is called '{record.name}' in {build.title}: its name depends on "
                f"{cause}{'' if tensor is None else f' ({tensor})'}; create it with tf1.get_variable and a fixed "
                "name."),
                record.location)


def second_tower(builds: Builds) -> Iterator[Breach]:
    """Yield trainable variables that the second training tower creates."""
    for record in _trainable(builds.second):
        name = builds.name_of(record)
        yield Breach("second-tower", name, (
            f"the second training tower creates the trainable variable '{record.name}' instead of reusing '{name}': "
            "the towers would train different variables; create it with tf1.get_variable, with the same name in every "
            "call."),
            record.location)


def reuse(builds: Builds) -> Iterator[Breach]:
    """Yield a call that switches on reuse in the enclosing scope."""
    location = next((build.reuse_location for build in builds.all_builds() if build.reuse_location is not None), None)
    if location is not None:
        yield Breach("reuse", "", (
            "the function switches on reuse (reuse_variables) in the variable scope that encloses it, which belongs "
            "to the caller: open a scope, tf1.variable_scope(name, reuse=True), around the shared variables."),
            location)


def trainable_collection(builds: Builds) -> Iterator[Breach]:
    """Yield items of TRAINABLE_VARIABLES that gradient descent cannot train."""
    reported = []
    for item, problem in not_trainable(builds.alone.trainables):
        reported.append(item)
        yield in_trainable_collection(item, problem)
    for item in builds.alone.untrained:
        if not any(item is reported_item for reported_item in reported):
            yield in_trainable_collection(item, "the cost has no gradient for it")


def not_trainable(items: list[Any]) -> Iterator[tuple[Any, str]]:
    """Yield (item, problem) for items that TRAINABLE_VARIABLES must not contain, as far as one tower shows."""
    for index, item in enumerate(items):
        if not is_variable(item):
            yield item, "it is not a variable"
        elif any(item is earlier_item for earlier_item in items[:index]):
            yield item, "it occurs twice and would be updated twice"
        elif not item.dtype.is_floating:
            yield item, f"it is of type {item.dtype.base_dtype.name}"
        elif not item.trainable:
            yield item, "it was created with trainable=False"


def in_trainable_collection(item: Any, problem: str) -> Breach:
    """Return the breach of an item that TRAINABLE_VARIABLES must not contain."""
    name = getattr(getattr(item, "op", None), "name", repr(item))
    return Breach("trainable-collection", name, (
        f"'{name}' is in TRAINABLE_VARIABLES, but {problem}: create variables that gradient descent does not train "
        "with trainable=False, and do not add anything to this collection."), location_of_creation(item))


def returned_cost(builds: Builds) -> Iterator[Breach]:
    """Yield the result of a model's tower function if it is not one cost."""
    if isinstance(builds.subject, ModelDesc) and builds.alone.error is None:
        problem = why_no_cost(builds.alone.result)
        if problem:
            yield Breach("cost", "", f"the function returns {problem}.", location_of_definition(builds.function))


def why_no_cost(result: Any) -> str:
    """Return what a tower function returned instead of one cost, and how to fix that; "" if the result is a cost."""
    if isinstance(result, tf.Tensor):
        if result.shape.rank == 0 and result.dtype.is_floating:
            return ""
        returned = f"{result.dtype.base_dtype.name} {result.shape}"
    elif isinstance(result, (list, tuple, dict)):
        returned = f"{len(result)} values"
    else:
        returned = "None" if result is None else f"a value of type {type(result).__name__}"
    return (f"{returned} instead of one cost, such as float32 (): add several costs, and take the mean or the sum over "
            "a batch (tf.reduce_mean, tf.reduce_sum)")


def hidden_randomness(builds: Builds) -> Iterator[Breach]:
    """Yield the operations of a training tower that draw random numbers with a hidden state."""
    yield from random_draws(builds.alone.result, builds.alone.operations)


_RANDOM = ("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle",
           "RandomGamma", "RandomPoissonV2", "Multinomial")
"""Types of operations whose random numbers depend on a state outside of the variables."""


def random_draws(result: Any, operations: Sequence[Operation]) -> Iterator[Breach]:
    """Yield the operations of `_RANDOM` on which a result depends, one for each line of code.

    Args:
        result: the result of a tower function.
        operations: the operations of the tower, including those of initial values, which do not count.
    """
    draws = [draw for draw in operations if draw.type in _RANDOM and "/Initializer/" not in draw.name]
    if not draws:
        return
    needed = _needed_operations(result)
    reported: set[str] = set()
    for operation in draws:
        location = location_of_creation(operation)
        if operation in needed and location not in reported:
            reported.add(location)
            yield Breach("random", operation.name, (
                f"the operation '{operation.name}' draws random numbers with a state that no checkpoint contains, so a "
                "resumed run differs from an uninterrupted one: use dropout of towernmt.models."), location)


def _needed_operations(result: Any) -> set[Operation]:
    needed: set[Operation] = set()
    waiting = [tensor.op for tensor in tf.nest.flatten(result) if isinstance(tensor, tf.Tensor)]
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return needed


def model_variables(builds: Builds) -> Iterator[Breach]:
    """Yield untrained variables that a predicting tower needs but that are not in MODEL_VARIABLES."""
    for record in builds.predict_alone.variables:
        if record.trainable or KEYS.GLOBAL_VARIABLES not in record.collections or record.name == "global_step":
            continue
        if KEYS.MODEL_VARIABLES not in record.collections:
            yield Breach("model-variables", record.name, (
                f"'{record.name}' is not trained, but prediction needs it, and it is not in MODEL_VARIABLES: add it "
                "with tf1.add_to_collection(tf1.GraphKeys.MODEL_VARIABLES, variable)."), record.location)


def tower_word(builds: Builds) -> Iterator[Breach]:
    """Yield variables and scopes with the word `tower` in their names."""
    reported = set()
    for record in builds.alone.variables:
        if "tower" in record.name:
            reported.add(record.name)
            yield tower_in_name("variable", record.name, record.location)
    for operation in builds.alone.operations:
        components = operation.name.split("/")[:-1]
        for depth, component in enumerate(components, 1):
            scope = "/".join(components[:depth])
            if "tower" in component and not any(f"{name}/".startswith(f"{scope}/") for name in reported):
                reported.add(scope)
                yield tower_in_name("scope", scope, location_of_creation(operation))


def tower_in_name(kind: str, name: str, location: str) -> Breach:
    """Return the breach of a variable or scope with a name like tensorpack's scopes."""
    return Breach("tower-word", name, (
        f"the {kind} '{name}' has the word 'tower' in its name, by which tensorpack recognises its own scopes: choose "
        "another name."), location)


def grows(builds: Builds) -> Iterator[Breach]:
    """Yield collections and attributes that grew in the first call and again in the second."""
    function = location_of_definition(builds.function)
    collections: dict[str, Any] = {}
    attributes: dict[str, str] = {}
    for build, first_build in ((builds.second, builds.first), (builds.second_predict, builds.predict)):
        for key, item in build.grown.items():
            if key in first_build.grown and key not in MAY_GROW:
                collections.setdefault(key, item)
        for path, size in build.attributes[1].items():
            sizes_before, sizes_after = first_build.attributes
            if path in sizes_after and sizes_before.get(path, 0) < sizes_after[path] < size:
                attributes.setdefault(path, location_of_growth(builds.subject, path.split(".")[-1].split("[")[0]))
    for key, item in collections.items():
        yield Breach("grows", key, (
            f"the graph collection '{key}' grows with each call of the function: add to it in the first tower only "
            "(get_current_tower_context().is_main_training_tower)."), location_of_creation(item) or function)
    for path, location in attributes.items():
        yield Breach("grows", path, (
            f"'{path}' grows with each call of the function: a tower function is called many times, so it must not "
            "keep anything from one call to the next."), location or function)


def mode(builds: Builds) -> Iterator[Breach]:
    """Yield variables that predicting uses but training does not create, or creates in another shape.

    Variables that only training uses, such as those of a second task, are allowed.
    """
    training, predicting = builds.alone, builds.predict_alone
    if training.error or predicting.error:
        return
    for record in _unshared([m for m in predicting.variables if KEYS.GLOBAL_VARIABLES in m.collections], training):
        yield _mode(record.name, "is created only for prediction: nothing trains it, and no checkpoint contains it",
                    record.location)
    shapes = {record.name: record.variable.shape for record in training.variables}
    for record in predicting.variables:
        shape = shapes.get(record.name, record.variable.shape)
        if shape.as_list() != record.variable.shape.as_list():
            yield _mode(record.name, f"has the shape {shape.as_list()} in training and "
                                     f"{record.variable.shape.as_list()} in prediction", record.location)
    for use, build in builds.uses.items():
        for record in build.variables:
            yield _mode(record.name, f"is created only for {use} ({build.title}): no training tower has it, so {use} "
                                   "with a checkpoint will not work", record.location)


def _mode(name: str, problem: str, location: str) -> Breach:
    return Breach("mode", name, f"the variable '{name}' {problem}; create the variable in training, too.", location)


def _unshared(records: list[VariableRecord], other_build: Build) -> list[VariableRecord]:
    keys, names = {m.key for m in other_build.variables}, {m.name for m in other_build.variables}
    return [m for m in records if m.key not in keys and m.name not in names]


def _trainable(build: Build) -> list[VariableRecord]:
    return [record for record in build.variables if record.trainable]


def _tensor_in_name(record: VariableRecord, build: Build) -> str | None:
    """Return the tensor whose name a variable's name contains, with slashes unchanged or replaced."""
    name = f"/{record.name.replace('_', '/')}/"
    for operation in record.variable.graph.get_operations():
        if operation.name != record.name and f"/{operation.name.replace('_', '/')}/" in name:
            return str(operation.name)
    return None


ALL = (enclosing_scope, scope_twice, names, second_tower, reuse, trainable_collection, model_variables, returned_cost,
       hidden_randomness, tower_word, grows, mode, fails)
