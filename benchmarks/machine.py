"""Measure the peak arithmetic rate of this machine and its load from other processes, next to a benchmark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from towernmt.core.tf_compat import tf, tf1

SIZE = {"cpu": 2048, "gpu": 8192}


def matmul_gflops(precision: str, config: Any, device: str = "/cpu:0", side_by_side: int = 1, size: int | None = None,
                  repeats: int = 12, seconds: float = 5.0, tf32: bool = True) -> float:
    """Return the best rate of a product of two large square matrices, in 10^9 operations per second.

    Args:
        precision: dtype of both factors and of the result.
        config: `ConfigProto` of the session. TensorFlow creates its thread pools once per process, so pass the
            configuration of the training that is measured in the same process.
        device: device name.
        side_by_side: number of independent products in one run: the number of towers on the processors.
        size: rows and columns; None means a size that keeps the device busy.
        repeats: number of repetitions, of which the best counts.
        seconds: time limit for the repetitions (emulated precisions are slow).
        tf32: whether a GPU rounds float32 factors to TF32, from now on in the whole process. Without TF32, products of
            float32 are not computed by tensor cores, and the rate is much lower.
    """
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    size = size or SIZE["gpu" if "gpu" in device else "cpu"]
    with tf.Graph().as_default():
        with tf1.device(device):
            factors = [tf1.get_variable(f"factor_{i}", initializer=tf.cast(tf.random.stateless_normal(
                [size, size], [1, i], stddev=size ** -0.5), precision), use_resource=True)
                for i in range(side_by_side + 1)]
            products = [tf.matmul(a, b) for a, b in zip(factors, factors[1:], strict=False)]
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            # Fetched one by one: TensorFlow prunes products whose only consumer is a group.
            run = session.make_callable([product.op for product in products])
            run()
            return 2e-9 * size ** 3 * side_by_side / _shortest_call(run, repeats, seconds)


def _shortest_call(run: Any, repeats: int, seconds: float) -> float:
    """Return the seconds of the fastest call among `repeats` calls that begin within `seconds`."""
    end, shortest = time.perf_counter() + seconds, float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return shortest


class Load:
    """Wall and processor seconds since construction, and the share of the machine that other processes used."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._machine = time.perf_counter(), time.process_time(), _machine_seconds()

    def figures(self) -> dict[str, float]:
        """Return `wall_s`, `cpu_s` and, where /proc/stat exists, `others_cpu_share` (0 to 1)."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        figures = {"wall_s": wall, "cpu_s": cpu}
        machine_seconds = _machine_seconds()
        if machine_seconds and self._machine:
            busy, total = (after - before for after, before in zip(machine_seconds, self._machine, strict=True))
            figures["others_cpu_share"] = max(0.0, busy / 100 - cpu) / max(total / 100, 1e-9)
        return figures


def _machine_seconds() -> tuple[float, float] | None:
    """Return the busy time and the total time of all processors, in hundredths of a second."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return None
    times = list(map(float, first))     # user, nice, system, idle, waiting for the disk, ...
    return sum(times) - times[3] - times[4], sum(times)
