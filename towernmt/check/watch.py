"""The cheap check of a trainer's own graph: it looks at each tower as it is built."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.utils import logger

from towernmt.check.breach import Breach
from towernmt.check.origin import where_made, where_raised
from towernmt.check.rules import in_trainable_collection, not_trainable, tower_in_name
from towernmt.check.scratch import KEYS, Build, Made, noted_reuse, variables_made
from towernmt.core.errors import TowerRuleError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf1


class TowerWatch:
    """Watches a tower function while a trainer or predictor builds towers with it.

    What would spoil the training raises `TowerRuleError`: a trainable variable of a second or predicting tower, a
    name that such a tower does not find, reuse switched on, things in TRAINABLE_VARIABLES that are
    not trained. Other breaches give a warning. `check_tower` finds more, since it builds more.

    Attributes:
        seconds: the time that the checks took.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def attach(self, tower_func: Any) -> None:
        """Watch tensorpack's `TowerFunc` from now on."""
        tower_func._tower_fn = self.around(tower_func._tower_fn)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The tower function, watched."""
        def watched(*inputs: Tensor) -> Any:
            began = time.perf_counter()
            graph, build = tf1.get_default_graph(), Build("")
            trainable = graph.get_collection_ref(KEYS.TRAINABLE_VARIABLES)
            count = len(trainable)
            with noted_reuse(build):
                self.seconds += time.perf_counter() - began
                try:
                    result = function(*inputs)
                except ValueError as error:
                    explained = _explained(error)
                    if explained is None:
                        raise
                    del trainable[count:]       # tensorpack's assertion on the way out would hide the sentence
                    raise explained from error
            began = time.perf_counter()
            build.trainables = trainable[count:]
            build.made = variables_made(graph, {KEYS.TRAINABLE_VARIABLES: build.trainables}, places=False)
            self._look(build)
            self.seconds += time.perf_counter() - began
            return result

        return watched

    def _look(self, build: Build) -> None:
        if build.switched is not None:
            _refuse(Breach("reuse", "", (
                "it switches on reuse (reuse_variables) in a variable scope that is not its own: open a scope, "
                "tf1.variable_scope(name, reuse=True), for what is to be shared"), build.switched))
        context = get_current_tower_context()
        if not context.has_own_variables:
            if build.made:
                del tf1.get_collection_ref(KEYS.TRAINABLE_VARIABLES)[-len(build.trainables):]
                _refuse(_made_again(build.made[0], context.is_training))
            return
        for item, problem in not_trainable(build.trainables):
            _refuse(in_trainable_collection(item, problem))
        for made in build.made:
            for breach in _oddities(made):
                logger.warning(f"The tower function breaks a rule: {breach}")


def _made_again(made: Made, training: bool) -> Breach:
    if training:
        return Breach("second-tower", made.name, (
            f"the second training tower makes the trainable variable '{made.name}' instead of reusing one of the "
            "first: make it by tf1.get_variable, with the same name in every call"), where_made(made.variable))
    return Breach("mode", made.name, (
        f"the predicting tower makes the trainable variable '{made.name}', which no training tower has: make it by "
        "tf1.get_variable, with the same name in every mode"), where_made(made.variable))


def _oddities(made: Made) -> list[Breach]:
    breaches = []
    if not made.from_store:
        breaches.append(Breach("name-scope", made.name, (
            f"the trainable variable '{made.name}' is named by its name scope and made anew by each tower: make it by "
            "tf1.get_variable."), where_made(made.variable)))
    if "tower" in made.name:
        breaches.append(tower_in_name("variable", made.name, where_made(made.variable)))
    return breaches


def _explained(error: ValueError) -> TowerRuleError | None:
    """TensorFlow's error for a variable that reuse does not find, in a sentence; None for any other."""
    context = get_current_tower_context()
    text = (str(error).splitlines() or [""])[0]
    if "does not exist, or was not created with" not in text or context.has_own_variables:
        return None
    name = text.removeprefix("Variable ").split(" ")[0]
    tower = f"training tower {context.index}" if context.is_training else "a predicting tower"
    return TowerRuleError(
        f"The tower function breaks a rule: {where_raised(error) or '?'}: [second-tower] {tower} asks for the variable "
        f"'{name}', which the first training tower did not make: name variables by variable scopes alone (not by name "
        "scopes, tensors or the tower's number), and make the same ones in every mode; check_tower(model) tells more.")


def _refuse(breach: Breach) -> None:
    raise TowerRuleError(f"The tower function breaks a rule: {str(breach).rstrip('.')}; check_tower(model) tells more.")
