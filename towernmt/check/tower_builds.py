"""Build a tower function in scratch graphs, as trainers and predictors do, and locate the user code of an operation."""

from __future__ import annotations

import copy
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tensorpack.tfutils.tower import BaseTowerContext, PredictTowerContext, TrainTowerContext

from towernmt.core.tensors import Graph, Operation, TensorSpec, Variable
from towernmt.core.tf_compat import tf, tf1

_HERE = str(Path(__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep


def location_of_creation(item: Any) -> str:
    """Return the `file:line` that created a variable, tensor or operation; "" for other objects."""
    operation = getattr(item, "op", item)
    frames = getattr(operation, "traceback", None)
    return "" if frames is None else _user_location(frames)


def location_of_error(error: BaseException) -> str:
    """Return the last `file:line` of the user's code in the traceback of an exception."""
    return _user_location(traceback.extract_tb(error.__traceback__))


def location_of_caller() -> str:
    """Return the `file:line` of the user's code that called the calling function."""
    return _user_location(traceback.extract_stack()[:-2])


def location_of_definition(function: Any) -> str:
    """Return `file:line` of a Python function or method, or "" for other objects."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return "" if code is None else _relative_location(code.co_filename, code.co_firstlineno)


def location_of_growth(owner: Any, attribute: str) -> str:
    """Return the `file:line` in the class of `owner` that adds an item to an attribute; "" if unknown."""
    growth = re.compile(rf"\b\w+\.{re.escape(attribute)}\b\s*"
                        r"(\.(append|extend|add|update|insert|setdefault|appendleft)\(|\[[^]]*\]\s*=[^=]|\+=)")
    for kind in type(owner).__mro__:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is None or _is_library(file):
            continue
        for line_number, line in enumerate(Path(file).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if growth.search(line):
                return _relative_location(file, line_number)
    return ""


def _user_location(frames: Iterable[Any]) -> str:
    """Return the innermost frame of user code inside the tower function; for a built-in model, its innermost frame."""
    tower_frames: list[Any] = []
    for frame in frames:
        tower_frames = [] if frame.filename.startswith(_HERE) else [*tower_frames, frame]
    user_frames = [f for f in tower_frames if not _is_library(f.filename)]
    # The user's own files come before the layers of installed packages.
    local_frames = [f for f in user_frames if not f.filename.startswith(_installed())]
    for candidates in (local_frames, user_frames, [f for f in tower_frames if f.filename.startswith(_OURS)]):
        if candidates:
            return _relative_location(candidates[-1].filename, candidates[-1].lineno)
    return ""


@cache
def _installed() -> str:
    import tensorflow

    return str(Path(tensorflow.__file__).parents[1]) + os.sep


@cache
def _libraries() -> tuple[str, ...]:
    import tensorflow
    import tensorpack

    packages = [str(Path(module.__file__).parent) + os.sep for module in (tensorflow, tensorpack)]
    return (*packages, _OURS)


@cache
def _is_library(file: str) -> bool:
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    return (file.startswith(_libraries()) or file.startswith("<")
            or (file.startswith(standard) and "site-packages" not in file))


def _relative_location(file: str, line: int) -> str:
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line}"


_CONTAINERS = (list, dict, set, tuple)
_DEEPEST = 3


def sizes_of_attributes(subject: Any) -> dict[str, int]:
    """Return the lengths of all containers in the attributes of a model, by path (`self.cache.keys`).

    For a plain function, these are the containers in its closure.
    """
    sizes: dict[str, int] = {}
    owner = getattr(subject, "__self__", subject)
    _visit(owner, "self", sizes, set(), 0)
    for owner_class in type(owner).__mro__:
        if owner_class.__module__.partition(".")[0] not in _QUIET:
            _visit_all(vars(owner_class), "self", sizes, set(), 0)
    code, cells = getattr(subject, "__code__", None), getattr(subject, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        _visit(cell.cell_contents, name, sizes, set(), 0)
    return sizes


_QUIET = {"builtins", "tensorpack", "tensorflow", "abc", "typing"}


def _visit(value: Any, path: str, sizes: dict[str, int], visited: set[int], depth: int) -> None:
    if id(value) in visited or depth > _DEEPEST:
        return
    visited.add(id(value))
    if isinstance(value, _CONTAINERS) or (isinstance(value, Sized) and hasattr(value, "append")):
        sizes[path] = len(value)
        if isinstance(value, dict):
            for key, item in list(value.items()):
                _visit(item, f"{path}[{key!r}]", sizes, visited, depth + 1)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value[:64]):
                _visit(item, f"{path}[{index}]", sizes, visited, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and _is_plain(value):
        _visit_all(vars(value), path, sizes, visited, depth + 1)


def _visit_all(attributes: Any, path: str, sizes: dict[str, int], visited: set[int], depth: int) -> None:
    for name, value in list(attributes.items()):
        if not name.startswith("__") and not callable(value):
            _visit(value, f"{path}.{name}", sizes, visited, depth)


def _is_plain(value: Any) -> bool:
    """Return whether an object does not belong to a library whose objects grow with the graph."""
    return type(value).__module__.partition(".")[0] not in {"tensorflow", "tensorpack", "numpy"}


KEYS = tf1.GraphKeys
Function = Callable[..., Any]


@dataclass
class VariableRecord:
    """A variable that a tower created.

    Attributes:
        variable: the variable.
        name: name of its operation.
        key: line of code, and number of variables that this line created before; the same in every build.
        from_store: whether `get_variable` created it.
        collections: graph collections that contain it.
    """

    variable: Variable
    name: str
    key: tuple[str, int]
    from_store: bool
    collections: set[str]

    @property
    def location(self) -> str:
        return self.key[0]

    @property
    def trainable(self) -> bool:
        return KEYS.TRAINABLE_VARIABLES in self.collections


@dataclass
class Build:
    """Effects of one call of the tower function.

    Attributes:
        title: name of the tower in messages.
        variables: created variables.
        trainables: items added to TRAINABLE_VARIABLES.
        grown: graph collections that grew, each with one added item.
        attributes: sizes of the model's attributes before and after the call.
        reuse_location: location where reuse was enabled in the enclosing scope, or None.
        operations: operations added to the graph.
        untrained: variables without a gradient of the cost (computed for one build only).
        error: raised exception.
    """

    title: str
    variables: list[VariableRecord] = field(default_factory=list)
    trainables: list[Any] = field(default_factory=list)
    grown: dict[str, Any] = field(default_factory=dict)
    attributes: tuple[dict[str, int], dict[str, int]] = ({}, {})
    reuse_location: str | None = None
    operations: list[Operation] = field(default_factory=list)
    untrained: list[Variable] = field(default_factory=list)
    result: Any = None
    error: Exception | None = None


class Scratch:
    """A scratch graph with its own copy of the model."""

    def __init__(self, subject: Any, signature: Sequence[TensorSpec]) -> None:
        self.graph, self._signature = tf.Graph(), signature
        try:
            self.subject = copy.deepcopy(subject)
        except Exception:       # locks and files cannot be copied: use the model itself
            self.subject = subject

    def build(self, function: Callable[[Any], Function], title: str, scope: str = "", index: int = 0, total: int = 1,
              training: bool = True, variables: str = "", reuse: bool = False, inputs: str = "inputs",
              signature: Sequence[TensorSpec] = ()) -> Build:
        """Call the tower function once.

        Args:
            function: returns the tower function of the checked model.
            title: name of the tower in messages.
            scope: name scope of the tower.
            index: index of the training tower.
            total: number of training towers.
            training: whether the tower is a training tower.
            variables: an enclosing variable scope.
            reuse: whether to reuse existing variables; missing ones are created and recorded, not refused.
            inputs: name scope of the input tensors.
            signature: the input tensors; by default those of the tower function.
        """
        build = Build(title)
        with self.graph.as_default(), ExitStack() as stack:
            with tf1.name_scope(f"{inputs}/"):
                tensors = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in signature or self._signature]
            if reuse:
                stack.enter_context(tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE))
            stack.enter_context(_Training(scope, variables, index, total) if training
                                else _Predicting(scope, variables))
            with _recorded_effects(build, self.subject):
                build.result = function(self.subject)(*tensors)
        return build

    def find_untrained(self, build: Build) -> None:
        """Record the trainable variables of a training tower without a gradient of the cost."""
        cost = build.result
        variables = [item for item in build.trainables if is_variable(item) and item.dtype.is_floating]
        if not isinstance(cost, tf.Tensor) or cost.shape.rank not in (0, None) or not variables:
            return
        with self.graph.as_default():
            gradients = tf1.gradients(cost, variables)
        build.untrained = [v for v, g in zip(variables, gradients, strict=True) if g is None]


class _CreatingTower(BaseTowerContext):
    """Mixin of towers that may create variables where tensorpack's contexts raise an error."""

    _leaving = False

    @property
    def has_own_variables(self) -> bool:
        return self._leaving or super().has_own_variables

    def __exit__(self, *error: Any) -> bool:
        self._leaving = True
        return bool(super().__exit__(*error))


class _Training(_CreatingTower, TrainTowerContext):
    """A training tower that may create variables at its end."""


class _Predicting(_CreatingTower, PredictTowerContext):
    """A predicting tower that may create variables at its end."""


@contextmanager
def _recorded_effects(build: Build, subject: Any) -> Iterator[None]:
    """Record the effects of the tower function that is called inside the block, and its exception."""
    graph = tf1.get_default_graph()
    items_before = _collections(graph)
    sizes_before = sizes_of_attributes(subject)
    operation_count = len(graph.get_operations())
    with recorded_reuse(build):
        try:
            yield
        except Exception as error:
            build.error = error
    items_after = _collections(graph)
    added_items = {key: items[len(items_before.get(key, [])):] for key, items in items_after.items()}
    build.trainables = added_items.get(KEYS.TRAINABLE_VARIABLES, [])
    build.variables = variable_records(graph, added_items)
    build.grown = {key: items[-1] for key, items in added_items.items() if items}
    build.attributes = sizes_before, sizes_of_attributes(subject)
    build.operations = graph.get_operations()[operation_count:]


@contextmanager
def recorded_reuse(build: Build) -> Iterator[None]:
    """Record a call of `reuse_variables` on the current variable scope; the call still takes effect."""
    scope = tf1.get_variable_scope()
    switch = scope.reuse_variables

    def recorded_switch() -> None:
        build.reuse_location = location_of_caller()
        switch()

    scope.reuse_variables = recorded_switch
    try:
        yield
    finally:
        del scope.reuse_variables


def is_variable(item: Any) -> bool:
    """Return whether `item` is a TensorFlow variable."""
    return isinstance(item, (tf.Variable, tf1.Variable))


def variable_records(graph: Graph, added_items: dict[str, list[Any]], with_locations: bool = True
                     ) -> list[VariableRecord]:
    """Return the variables that were added to collections, in the order of their creation.

    Args:
        graph: the graph.
        added_items: the items that were added to each collection.
        with_locations: whether to find the line of code that created each variable, which takes most of the time.
            Without it, the lines in the keys are "".
    """
    store = graph.get_collection(("__variable_store",))
    stored = store[0]._vars if store else {}
    collections: dict[int, set[str]] = {}
    variables: dict[int, Variable] = {}
    for key, items in added_items.items():
        for item in items:
            if is_variable(item):
                variables[id(item)] = item
                collections.setdefault(id(item), set()).add(key)
    records: list[VariableRecord] = []
    counts: dict[str, int] = {}
    for identity, variable in variables.items():
        location, name = location_of_creation(variable) if with_locations else "", variable.op.name
        counts[location] = counts.get(location, -1) + 1
        records.append(VariableRecord(variable, name, (location, counts[location]), stored.get(name) is variable,
                                      collections[identity]))
    return records


def _collections(graph: Graph) -> dict[str, list[Any]]:
    return {key: list(graph.get_collection_ref(key)) for key in graph.collections if isinstance(key, str)}
