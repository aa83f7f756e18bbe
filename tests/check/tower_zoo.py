"""Tower functions that break one rule each. Lines that break it are marked, for the tests, by `# broken`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.train.model_desc import ModelDesc

from towernmt.core.tf_compat import tf, tf1


class Tame(ModelDesc):
    """A model without a breach: x float32 [batch, 3] times a matrix, with a moving mean."""

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None, 3], tf.float32, "x")]

    def build_graph(self, x: Any) -> Any:
        return self.cost(self.layer(x))

    def layer(self, x: Any) -> Any:
        return tf.matmul(x, tf1.get_variable("kernel", [3, 2]))

    def cost(self, y: Any) -> Any:
        return tf.reduce_mean(tf.square(y), name="cost")

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.1)


class TameStatistics(Tame):
    """A moving mean that is declared correctly."""

    def layer(self, x: Any) -> Any:
        mean = tf1.get_variable("mean", [3], trainable=False, initializer=tf1.zeros_initializer(), collections=[
            tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.MODEL_VARIABLES])
        context = get_current_tower_context()
        if context.is_training and context.is_main_training_tower:
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, mean.assign(tf.reduce_mean(x, 0)).op)
        with tf1.variable_scope("shared"):
            y = super().layer(x - mean)
        with tf1.variable_scope("shared", reuse=True):
            return y + super().layer(x)


class NamedByNameScope(Tame):
    """A `tf.Variable`, which is named by the name scope and created again in each tower."""

    def layer(self, x: Any) -> Any:
        return tf.matmul(x, tf.Variable(tf.zeros([3, 2]), name="kernel"))  # broken


class AsksForTheNameScope(Tame):
    """A variable of `get_variable` whose name contains the name scope."""

    def layer(self, x: Any) -> Any:
        scope = tf1.get_default_graph().get_name_scope() or "top"
        return tf.matmul(x, tf1.get_variable(f"{scope}/kernel", [3, 2]))  # broken


class NamedByTensor(Tame):
    """A layer named by its input."""

    def layer(self, x: Any) -> Any:
        return tf.matmul(x, tf1.get_variable(x.op.name.replace("/", "_") + "_kernel", [3, 2]))  # broken


class OutsideTheScope(Tame):
    """A layer in a variable scope from outside the tower."""

    def layer(self, x: Any) -> Any:
        top = tf1.VariableScope(reuse=tf1.AUTO_REUSE, name="")
        with tf1.variable_scope(top):
            return super().layer(x) + tf.matmul(x, tf1.get_variable("other", [3, 2]))  # broken


class RepeatsTheScope(Tame):
    """A scope that is opened by the full name of the current scope."""

    def layer(self, x: Any) -> Any:
        with tf1.variable_scope(tf1.get_variable_scope().name or "top"):
            return tf.matmul(x, tf1.get_variable("kernel", [3, 2]))  # broken


class OneATower(Tame):
    """A variable for each tower."""

    def layer(self, x: Any) -> Any:
        index = getattr(get_current_tower_context(), "index", 0)
        return tf.matmul(x, tf1.get_variable(f"kernel_{index}", [3, 2]))  # broken


class SwitchesReuse(Tame):
    """A call that switches on reuse for the rest of the caller's scope."""

    def layer(self, x: Any) -> Any:
        y = super().layer(x)
        tf1.get_variable_scope().reuse_variables()  # broken
        return y + super().layer(x)


class TrainsAStatistic(Tame):
    """A moving mean that was left trainable."""

    def layer(self, x: Any) -> Any:
        mean = tf1.get_variable("mean", [3], initializer=tf1.zeros_initializer())  # broken
        if get_current_tower_context().is_training:
            with tf1.control_dependencies([mean.assign(tf.reduce_mean(x, 0))]):
                x = tf.identity(x)
        return super().layer(x - tf.stop_gradient(mean))


class TrainsATensor(Tame):
    """A tensor in the collection of trainable variables."""

    def layer(self, x: Any) -> Any:
        y = super().layer(x)
        if get_current_tower_context().is_training and not tf1.get_variable_scope().reuse:
            tf1.add_to_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, tf.identity(y, name="extra"))  # broken
        return y


class TrainsTwice(Tame):
    """A variable that is added to the trainable variables twice."""

    def layer(self, x: Any) -> Any:
        kernel = tf1.get_variable("kernel", [3, 2])  # broken
        if not tf1.get_variable_scope().reuse:
            tf1.add_to_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, kernel)
        return tf.matmul(x, kernel)


class HidesStatistics(Tame):
    """A moving mean that predicting needs, but that is in no collection of model variables."""

    def layer(self, x: Any) -> Any:
        mean = tf1.get_variable("mean", [3], trainable=False, initializer=tf1.zeros_initializer())  # broken
        return super().layer(x - mean)


class ReturnsACostForEachRow(Tame):
    """A cost for each row of the batch, without a mean."""

    def build_graph(self, x: Any) -> Any:  # broken
        return tf.reduce_sum(tf.square(self.layer(x)), 1)


class ReturnsSeveralCosts(Tame):
    """A list of costs instead of their sum."""

    def build_graph(self, x: Any) -> Any:  # broken
        y = self.layer(x)
        return [self.cost(y), self.cost(y - 1.0)]


class DrawsHiddenNumbers(Tame):
    """TensorFlow's dropout, whose random numbers no checkpoint restores."""

    def layer(self, x: Any) -> Any:
        y = super().layer(x)
        return tf.nn.dropout(y, 0.1) if self.training else y  # broken


class SaysTower(Tame):
    """A variable scope whose name contains tensorpack's word `tower`."""

    def layer(self, x: Any) -> Any:
        with tf1.variable_scope("ivory_tower"):
            return tf.matmul(x, tf1.get_variable("kernel", [3, 2]))  # broken


class SaysTowerInANameScope(Tame):
    """A name scope without variables whose name contains the word `tower`."""

    def cost(self, y: Any) -> Any:
        with tf1.name_scope("watchtower"):
            return tf.reduce_mean(y)  # broken


class FillsACollection(Tame):
    """A collection with an entry for each tower."""

    def cost(self, y: Any) -> Any:
        cost = super().cost(y)
        tf1.add_to_collection("costs", tf.identity(cost))  # broken
        return cost


class KeepsAList(Tame):
    """An attribute with an entry for each tower."""

    def __init__(self) -> None:
        self.costs: list[Any] = []

    def cost(self, y: Any) -> Any:
        self.costs.append(super().cost(y))  # broken
        return self.costs[-1]


class TrainsMore(Tame):
    """A head that only training has, which is allowed."""

    def layer(self, x: Any) -> Any:
        y = super().layer(x)
        if self.training:
            y += tf.matmul(x, tf1.get_variable("head", [3, 2]))
        return y


class PredictsMore(Tame):
    """A temperature that only predicting has, which is a breach."""

    def layer(self, x: Any) -> Any:
        y = super().layer(x)
        if not self.training:
            y /= tf1.get_variable("temperature", [])  # broken
        return y


class KeepsATensor(Tame):
    """A tower function that works once: it keeps a tensor of the first call."""

    last: Any = None

    def layer(self, x: Any) -> Any:
        if self.last is not None:
            raise RuntimeError("called a second time")  # broken
        self.last = super().layer(x)
        return self.last


@dataclass(frozen=True)
class Beast:
    """Expected result of the check of a broken tower function.

    Attributes:
        breaches: (rule, variable) of all breaches.
        message: complete message of the first breach.
    """

    model: type[Tame]
    breaches: tuple[tuple[str, str], ...]
    message: str


ZOO = [
    Beast(NamedByNameScope, (
        ("enclosing-scope", "kernel"), ("name-scope", "kernel"), ("second-tower", "kernel")),
        "the trainable variable 'kernel' is called 'outer_names/kernel' inside the variable scope 'outer_variables', "
        "but its name must begin with that scope: create it with tf1.get_variable in the current scope."),
    Beast(AsksForTheNameScope, (("name-scope", "top/kernel"), ("second-tower", "top/kernel")),
          "the trainable variable 'top/kernel' is called 'outer_names/inner/kernel' in a training tower in the name "
          "scope 'outer_names/inner': its name depends on a name scope; create it with tf1.get_variable and a fixed "
          "name."),
    Beast(NamedByTensor, (("tensor-name", "inputs_x_kernel"), ("second-tower", "inputs_x_kernel")),
          "the trainable variable 'inputs_x_kernel' is called 'outer_inputs_x_kernel' in a training tower in the name "
          "scope 'outer_names/inner': its name depends on the name of a tensor (outer_inputs/x); create it with "
          "tf1.get_variable and a fixed name."),
    Beast(OutsideTheScope, (("enclosing-scope", "kernel"), ("enclosing-scope", "other")),
          "the trainable variable 'kernel' is called 'kernel' inside the variable scope 'outer_variables', but its "
          "name must begin with that scope: create it with tf1.get_variable in the current scope."),
    Beast(RepeatsTheScope, (("scope-twice", "top/kernel"),),
          "the trainable variable 'top/kernel' is called 'outer_variables/outer_variables/kernel' inside the variable "
          "scope 'outer_variables', and repeats the name of that scope: open scopes with fixed names, not with the "
          "name of the current scope."),
    Beast(OneATower, (("second-tower", "kernel_0"),),
          "the second training tower creates the trainable variable 'kernel_1' instead of reusing 'kernel_0': the "
          "towers would train different variables; create it with tf1.get_variable, with the same name in every call."),
    Beast(SwitchesReuse, (("reuse", ""),),
          "the function switches on reuse (reuse_variables) in the variable scope that encloses it, which belongs to "
          "the caller: open a scope, tf1.variable_scope(name, reuse=True), around the shared variables."),
    Beast(TrainsAStatistic, (("trainable-collection", "mean"),),
          "'mean' is in TRAINABLE_VARIABLES, but the cost has no gradient for it: create variables that gradient "
          "descent does not train with trainable=False, and do not add anything to this collection."),
    Beast(TrainsATensor, (("trainable-collection", "extra"),),
          "'extra' is in TRAINABLE_VARIABLES, but it is not a variable: create variables that gradient descent does "
          "not train with trainable=False, and do not add anything to this collection."),
    Beast(TrainsTwice, (("trainable-collection", "kernel"),),
          "'kernel' is in TRAINABLE_VARIABLES, but it occurs twice and would be updated twice: create variables that "
          "gradient descent does not train with trainable=False, and do not add anything to this collection."),
    Beast(HidesStatistics, (("model-variables", "mean"),),
          "'mean' is not trained, but prediction needs it, and it is not in MODEL_VARIABLES: add it with "
          "tf1.add_to_collection(tf1.GraphKeys.MODEL_VARIABLES, variable)."),
    Beast(ReturnsACostForEachRow, (("cost", ""),),
          "the function returns float32 (None,) instead of one cost, such as float32 (): add several costs, and take "
          "the mean or the sum over a batch (tf.reduce_mean, tf.reduce_sum)."),
    Beast(ReturnsSeveralCosts, (("cost", ""),),
          "the function returns 2 values instead of one cost, such as float32 (): add several costs, and take the mean "
          "or the sum over a batch (tf.reduce_mean, tf.reduce_sum)."),
    Beast(DrawsHiddenNumbers, (("random", "dropout/random_uniform/RandomUniform"),),
          "the operation 'dropout/random_uniform/RandomUniform' draws random numbers with a state that no checkpoint "
          "contains, so a resumed run differs from an uninterrupted one: use dropout of towernmt.models."),
    Beast(SaysTower, (("tower-word", "ivory_tower/kernel"),),
          "the variable 'ivory_tower/kernel' has the word 'tower' in its name, by which tensorpack recognises its own "
          "scopes: choose another name."),
    Beast(SaysTowerInANameScope, (("tower-word", "watchtower"),),
          "the scope 'watchtower' has the word 'tower' in its name, by which tensorpack recognises its own scopes: "
          "choose another name."),
    Beast(FillsACollection, (("grows", "costs"),),
          "the graph collection 'costs' grows with each call of the function: add to it in the first tower only "
          "(get_current_tower_context().is_main_training_tower)."),
    Beast(KeepsAList, (("grows", "self.costs"),),
          "'self.costs' grows with each call of the function: a tower function is called many times, so it must not "
          "keep anything from one call to the next."),
    Beast(PredictsMore, (("mode", "temperature"),),
          "the variable 'temperature' is created only for prediction: nothing trains it, and no checkpoint contains "
          "it; create the variable in training, too."),
    Beast(KeepsATensor, (("fails", ""),),
          "the second of two training towers cannot be built: RuntimeError: called a second time"),
]
