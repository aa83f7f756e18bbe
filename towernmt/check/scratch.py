"""A tower function built in scratch graphs, in the ways that trainers and predictors build it, with notes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.check.growth import sizes_of_attributes
from towernmt.check.origin import where_made, where_now
from towernmt.core.tensors import Graph, Operation, TensorSpec, Variable
from towernmt.core.tf_compat import tf, tf1

KEYS = tf1.GraphKeys
Function = Callable[..., Any]


@dataclass
class Made:
    """A variable that a tower made.

    Attributes:
        key: the place in the code, and how many variables were made there before; the same in every build.
        from_store: whether `get_variable` made it.
    """

    variable: Variable
    name: str
    key: tuple[str, int]
    from_store: bool
    collections: set[str]

    @property
    def where(self) -> str:
        return self.key[0]

    @property
    def trainable(self) -> bool:
        return KEYS.TRAINABLE_VARIABLES in self.collections


@dataclass
class Build:
    """What one call of the tower function did.

    Attributes:
        title: which tower it was, for messages.
        made: the variables that it made.
        trainables: what it added to TRAINABLE_VARIABLES.
        grown: graph collections that got longer, with one of the things that were added.
        attributes: sizes of the model's attributes before and after the call.
        switched: where reuse was switched on in the enclosing scope; None if it was not.
        operations: what it added to the graph.
        untrained: variables that the cost has no gradient for (asked for one build only).
        error: what it raised.
    """

    title: str
    made: list[Made] = field(default_factory=list)
    trainables: list[Any] = field(default_factory=list)
    grown: dict[str, Any] = field(default_factory=dict)
    attributes: tuple[dict[str, int], dict[str, int]] = ({}, {})
    switched: str | None = None
    operations: list[Operation] = field(default_factory=list)
    untrained: list[Variable] = field(default_factory=list)
    result: Any = None
    error: Exception | None = None


class Scratch:
    """One scratch graph, with a copy of the model that knows of no other."""

    def __init__(self, subject: Any, signature: Sequence[TensorSpec]) -> None:
        self.graph, self._signature = tf.Graph(), signature
        try:
            self.subject = copy.deepcopy(subject)
        except Exception:       # locks and files cannot be copied: then the model itself is tried
            self.subject = subject

    def build(self, function: Callable[[Any], Function], title: str, scope: str = "", index: int = 0, total: int = 1,
              training: bool = True, variables: str = "", reuse: bool = False, inputs: str = "inputs") -> Build:
        """Call the tower function once.

        Args:
            function: gives the tower function of the subject.
            scope: name scope of the tower.
            index, total: of the training tower.
            variables: an enclosing variable scope.
            reuse: whether variables that are there are taken; missing ones are made and noted, not refused.
            inputs: name scope of the input tensors.
        """
        build = Build(title)
        with self.graph.as_default(), ExitStack() as stack:
            with tf1.name_scope(f"{inputs}/"):
                tensors = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in self._signature]
            if reuse:
                stack.enter_context(tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE))
            stack.enter_context(_Training(scope, variables, index, total) if training
                                else _Predicting(scope, variables))
            with _noted(build, self.subject):
                build.result = function(self.subject)(*tensors)
        return build

    def find_untrained(self, build: Build) -> None:
        """Note the trainable variables that the cost of a training tower has no gradient for."""
        cost = build.result
        variables = [item for item in build.trainables if is_variable(item) and item.dtype.is_floating]
        if not isinstance(cost, tf.Tensor) or cost.shape.rank not in (0, None) or not variables:
            return
        with self.graph.as_default():
            gradients = tf1.gradients(cost, variables)
        build.untrained = [v for v, g in zip(variables, gradients, strict=True) if g is None]


class _Training(TrainTowerContext):
    """tensorpack's, but a tower may end that made variables which it must not: they are noted, not refused."""

    _leaving = False

    @property
    def has_own_variables(self) -> bool:
        return self._leaving or super().has_own_variables

    def __exit__(self, *error: Any) -> bool:
        self._leaving = True
        return bool(super().__exit__(*error))


class _Predicting(PredictTowerContext):
    """As `_Training`."""

    _leaving = False

    @property
    def has_own_variables(self) -> bool:
        return self._leaving or super().has_own_variables

    def __exit__(self, *error: Any) -> bool:
        self._leaving = True
        return bool(super().__exit__(*error))


@contextmanager
def _noted(build: Build, subject: Any) -> Iterator[None]:
    """Note what the call inside does. If it raises an exception, that is kept, too."""
    graph = tf1.get_default_graph()
    before = _collections(graph)
    attributes = sizes_of_attributes(subject)
    operations = len(graph.get_operations())
    with noted_reuse(build):
        try:
            yield
        except Exception as error:
            build.error = error
    after = _collections(graph)
    added = {key: items[len(before.get(key, [])):] for key, items in after.items()}
    build.trainables = added.get(KEYS.TRAINABLE_VARIABLES, [])
    build.made = variables_made(graph, added)
    build.grown = {key: items[-1] for key, items in added.items() if items}
    build.attributes = attributes, sizes_of_attributes(subject)
    build.operations = graph.get_operations()[operations:]


@contextmanager
def noted_reuse(build: Build) -> Iterator[None]:
    """Note a call of `reuse_variables` on the present variable scope, which still takes effect."""
    scope = tf1.get_variable_scope()
    switch = scope.reuse_variables

    def noted() -> None:
        build.switched = where_now()
        switch()

    scope.reuse_variables = noted
    try:
        yield
    finally:
        del scope.reuse_variables


def is_variable(item: Any) -> bool:
    """Whether `item` is a TensorFlow variable."""
    return isinstance(item, (tf.Variable, tf1.Variable))


def variables_made(graph: Graph, added: dict[str, list[Any]], places: bool = True) -> list[Made]:
    """The variables among what was added to the collections, in the order in which they were made.

    Without `places` this takes almost no time, and the keys show the order only.
    """
    store = graph.get_collection(("__variable_store",))
    stored = store[0]._vars if store else {}
    collections: dict[int, set[str]] = {}
    variables: dict[int, Variable] = {}
    for key, items in added.items():
        for item in items:
            if is_variable(item):
                variables[id(item)] = item
                collections.setdefault(id(item), set()).add(key)
    made: list[Made] = []
    counts: dict[str, int] = {}
    for number, variable in variables.items():
        where, name = where_made(variable) if places else "", variable.op.name
        counts[where] = counts.get(where, -1) + 1
        made.append(Made(variable, name, (where, counts[where]), stored.get(name) is variable, collections[number]))
    return made


def _collections(graph: Graph) -> dict[str, list[Any]]:
    return {key: list(graph.get_collection_ref(key)) for key in graph.collections if isinstance(key, str)}
