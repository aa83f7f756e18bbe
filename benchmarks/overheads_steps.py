"""Measure the cost of towers, update cycles and callbacks: alternating steps on the same batches in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from alternation import Summary, quartiles, summarize, take_turns
from tensorpack.callbacks import Callback
from train_run import Plan, bare_update, run
from train_work import FixedBatches, make_model, twice_each

from towernmt.callbacks.stateful import find_saver
from towernmt.core.graph_state import graph_state
from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Batch
from towernmt.input_source import GeneralQueueInput
from towernmt.models.kernels import set_precision
from towernmt.models.layers.randomness import set_seed
from towernmt.run.run_settings import CheckpointSettings

TARGETS = {"towers": 1.05, "update_cycle": 1.02, "callbacks": 1.01}
"""Largest allowed ratio to the time of the respective baseline."""
WARM = 2
"""Warm-up rounds."""


class Stepper:
    """A training graph with its session and its feeders, one step at a time, without callbacks.

    Args:
        model: provides the tower function.
        batches: fed by the usual queue in this order.
        plan: precision, towers and update cycle.
    """

    def __init__(self, model: Any, batches: Sequence[Batch], plan: Plan) -> None:
        self.trainer = plan.trainer()
        with tf.Graph().as_default():
            set_seed(1)
            set_precision(plan.precision)
            self.data = GeneralQueueInput(FixedBatches(batches), feeders=1, capacity=8)
            self.trainer.setup_graph(model.get_input_signature(), self.data, model.build_graph, model.get_optimizer)
            self.gradients = [gradient.op for gradient in optimizer_gradients(tf1.get_default_graph())]
            creator = SessionCreator()
            creator.cpu_towers = plan.towers
            self.trainer.sess = creator.create_session()
        self.data.start(self.trainer.sess)

    def update(self) -> float:
        """Return the seconds of one update, which takes as many batches as the update cycle."""
        return _seconds(lambda: bare_update(self.trainer, self.data))

    def forward_and_backward(self, batches: int = 1) -> float:
        """Return the seconds of computing all gradients of `batches` batches without applying them."""
        def compute() -> None:
            for _ in range(batches):
                self.trainer.sess.run(self.gradients)
        return _seconds(compute)

    def close(self) -> None:
        """Stop the feeders and end the session."""
        self.data.stop(self.trainer.sess)
        self.trainer.sess.close()


def optimizer_gradients(graph: Any) -> list[Any]:
    """Return the gradients that the optimizer's operations in the graph apply.

    If those operations are inside a function (conditional float16 updates), return the gradients before clipping.
    """
    gradients = []
    for operation in graph.get_operations():
        names = [argument.name for argument in operation.op_def.input_arg] if operation.op_def else []
        if "var" in names and "grad" in names:
            gradients.append(operation.inputs[names.index("grad")])
    return gradients or [gradient for gradient, _ in graph_state(graph).watched_gradients]


def towers_cost(config: str, batches: Sequence[Batch], precision: str, counts: Sequence[int],
                rounds: int) -> list[dict[str, Any]]:
    """Compare complete updates of N towers with those of one on the same global batches, with the threads of a run."""
    steppers = {count: Stepper(make_model("transformer", config), batches, Plan(precision, towers=count))
                for count in (1, *counts)}
    durations = _alternate({str(count): stepper.update for count, stepper in steppers.items()}, rounds)
    _close(steppers.values())
    summaries = summarize(durations)
    return [_verdict("towers", summaries[str(count)], towers=count) for count in counts]


def update_cycle_cost(config: str, batches: Sequence[Batch], precision: str, cycle: int,
                      rounds: int) -> list[dict[str, Any]]:
    """Compare an update cycle of K with the unavoidable work: K forward and backward passes and one update.

    The baseline computes and discards the gradients of K - 1 batches and takes one plain training step; the difference
    is the cost of accumulating gradients. `to_plain_steps` is the ratio to K plain training steps with K updates. Two
    groups of K batches alternate, so that TensorFlow has seen every shape after the first rounds. Plain steps and the
    baseline use the same graph, which reads each group twice.
    """
    groups = [0, 1] * (rounds + WARM)
    pool = batches[:2 * cycle]
    once = [pool[group * cycle + i] for group in groups for i in range(cycle)]
    twice = [pool[group * cycle + i] for group in groups for _ in range(2) for i in range(cycle)]
    plain, cycled = (Stepper(make_model("transformer", config), order, Plan(precision, update_cycle=k))
                     for k, order in ((1, twice), (cycle, once)))
    durations = _alternate({"base": lambda: plain.forward_and_backward(cycle - 1) + plain.update(),
                            "cycle": cycled.update,
                            "steps": lambda: sum(plain.update() for _ in range(cycle))}, rounds)
    _close([plain, cycled])
    to_steps = summarize({name: durations[name] for name in ("steps", "cycle")})["cycle"]
    return [_verdict("update_cycle", summarize(durations)["cycle"], update_cycle=cycle,
                     to_plain_steps=round(to_steps.ratio, 4))]


class CheckpointClock(Callback):
    """Callback that writes a checkpoint at step `step` and measures its seconds."""

    def __init__(self, step: int) -> None:
        self._step, self.seconds = step, 0.0

    def _trigger_step(self) -> None:
        if self.global_step == self._step:
            self.seconds = _seconds(find_saver(self.trainer).save_now)


def callbacks_cost(config: str, batches: Sequence[Batch], precision: str, pairs: int) -> list[dict[str, Any]]:
    """Compare the complete step with the default callbacks and monitors with the bare update, in alternation.

    `ratio` is the median, which ignores the rare steps that write a progress line and summaries (one in `log.steps`,
    50); `ratio_of_sums` includes them. `checkpoint_share` adds the time of a checkpoint every `checkpoint.steps` steps.
    """
    pairs += pairs % 2
    warm = 6
    clock = CheckpointClock(warm + pairs)
    order = [*range(warm + 1), *twice_each(warm + 1, pairs)]
    meter = run(make_model("transformer", config), FixedBatches(batches, order),
                Plan(precision, warm=1, steps=warm - 1, pairs=pairs), [clock])
    low, ratio, high = quartiles(meter.ratios)
    step = sum(meter.complete_steps) / pairs
    return [{"figure": "callbacks", "target": TARGETS["callbacks"], "ratio": round(ratio, 4),
             "met": ratio <= TARGETS["callbacks"], "quartiles": [round(low, 4), round(high, 4)],
             "ratio_of_sums": round(sum(meter.complete_steps) / sum(meter.bare), 4), "pairs": pairs,
             "step_s": round(step, 4), "checkpoint_s": round(clock.seconds, 3),
             "checkpoint_share": round(clock.seconds / (CheckpointSettings().steps * step), 5)}]


def _alternate(functions: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Take turns after some warm-up rounds."""
    take_turns(functions, WARM)
    return take_turns(functions, rounds)


def _verdict(figure: str, summary: Summary, **figures: Any) -> dict[str, Any]:
    """Return the record of a ratio and its target."""
    return {"figure": figure, **figures, "target": TARGETS[figure], "ratio": round(summary.ratio, 4),
            "met": summary.ratio <= TARGETS[figure], "quartiles": [round(summary.low, 4), round(summary.high, 4)],
            "rounds": summary.rounds, "seconds": round(summary.median, 4)}


def _close(steppers: Iterable[Stepper]) -> None:
    for stepper in steppers:
        stepper.close()


def _seconds(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
