"""What this machine can do here and now, and what others take of it: beside a measurement, in the same process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from towernmt.core.tf_compat import tf, tf1

SIZE = {"cpu": 2048, "gpu": 8192}


def matmul_gflops(precision: str, config: Any, device: str = "/cpu:0", side_by_side: int = 1, size: int | None = None,
                  repeats: int = 12, seconds: float = 5.0) -> float:
    """The best rate of a product of two large square matrices, in 10^9 operations a second.

    Args:
        precision: dtype of both factors and of the result.
        config: `ConfigProto` of the session. TensorFlow makes the threads of an operation once a process: measure
            with the configuration of the training beside it.
        device: where.
        side_by_side: independent products in one run, as many as towers share the processors.
        size: rows and columns; None for what keeps the device busy.
        repeats: the best of so many.
        seconds: stop repeating after so long (a precision that the machine emulates is slow).
    """
    size = size or SIZE["gpu" if "gpu" in device else "cpu"]
    with tf.Graph().as_default():
        with tf1.device(device):
            factors = [tf1.get_variable(f"factor_{i}", initializer=tf.cast(tf.random.stateless_normal(
                [size, size], [1, i], stddev=size ** -0.5), precision), use_resource=True)
                for i in range(side_by_side + 1)]
            products = [tf.matmul(a, b) for a, b in zip(factors, factors[1:], strict=False)]
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            # Not in a group: TensorFlow would leave out what nothing but a group asks for.
            run = session.make_callable([product.op for product in products])
            run()
            return 2e-9 * size ** 3 * side_by_side / _best(run, repeats, seconds)


def _best(run: Any, repeats: int, seconds: float) -> float:
    """Seconds of the fastest of `repeats` calls, or of those that began within `seconds`."""
    end, best = time.perf_counter() + seconds, float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return best


class Load:
    """Wall and processor seconds since it was made, and the share of the machine that other processes used."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._machine = time.perf_counter(), time.process_time(), _machine_seconds()

    def figures(self) -> dict[str, float]:
        """`wall_s`, `cpu_s`, and `others_cpu_share` (0 to 1; left out where /proc/stat is not there)."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        figures = {"wall_s": wall, "cpu_s": cpu}
        now = _machine_seconds()
        if now and self._machine:
            busy, total = (after - before for after, before in zip(now, self._machine, strict=True))
            figures["others_cpu_share"] = max(0.0, busy / 100 - cpu) / max(total / 100, 1e-9)
        return figures


def _machine_seconds() -> tuple[float, float] | None:
    """Hundredths of a second that all processors were busy, and that they were there."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return None
    times = list(map(float, first))     # user, nice, system, idle, waiting for the disk, ...
    return sum(times) - times[3] - times[4], sum(times)
