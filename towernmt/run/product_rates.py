"""Measure, within seconds, how fast this machine multiplies matrices in float32 and in bfloat16.

It is measured in a separate process: TensorFlow's first session decides a process's threads, and keeps a GPU's
memory.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

log = logging.getLogger(__name__)

SIZES = (1024, 512, 512)
"""Rows, depth and columns of a matrix product that is typical for a small model."""
SIZES_ON_GPU = (4096, 2048, 2048)
"""The same for GPUs, on which a small product would measure the launch of kernels. The sizes are a guess."""
PRODUCTS = 16
"""Number of products in one session run, so that its overhead is negligible."""
SECONDS = 1.5
"""Duration of the measurement after the first runs, in seconds."""
LIMIT = 60
"""Time limit of the measuring process, in seconds."""


@dataclass(frozen=True)
class ProductRates:
    """Operations per second of matrix products; additions and multiplications count separately."""

    float32: float
    bfloat16: float

    @property
    def gain(self) -> float:
        """Speed of bfloat16 relative to float32."""
        return self.bfloat16 / self.float32


FASTER = 1.2
"""Minimum gain for which bfloat16 is used, because the casts of a step take time. Instructions for bfloat16 are not
sufficient: on an Intel Xeon with AVX512_BF16 but without AMX, products in bfloat16 took 1.8 times as long as in
float32."""


def product_rates(gpus: Sequence[int] | None = None) -> ProductRates | None:
    """Measure the rates of a device. If that fails, log a warning with the reason, and return None.

    Args:
        gpus: numbers of the GPUs, of which the first is measured; None for the CPU.
    """
    command = [sys.executable, "-m", "towernmt.run.product_rates"]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": visible_device(gpus, os.environ),
                 "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True, env=variables)
        return ProductRates(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError, IndexError, TypeError) as error:
        lines = (getattr(error, "stderr", None) or "").strip().splitlines()
        log.warning("The speed of matrix products cannot be measured (%s). Automatic settings that depend on it keep "
                    "their defaults; set train.precision and schedule.warmup_steps by --set if others suit this "
                    "machine.", lines[-1] if lines else error)
        return None


def visible_device(gpus: Sequence[int] | None, environment: Mapping[str, str]) -> str:
    """Return `CUDA_VISIBLE_DEVICES` for a process that uses the first of these GPUs, or none.

    Args:
        gpus: their numbers among the GPUs that are visible to this process; None for the CPU.
        environment: variables of this process.
    """
    if not gpus:
        return "-1"
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",")] if visible else []
    return names[gpus[0]] if gpus[0] < len(names) else str(gpus[0])


def measure_rates() -> ProductRates:
    """Measure the rates of this process: the best of alternating runs, because other programs may be busy."""
    from towernmt.core.tf_compat import tf, tf1  # the parent process does not need TensorFlow

    sizes = SIZES_ON_GPU if tf.config.list_physical_devices("GPU") else SIZES
    with tf.Graph().as_default(), tf1.Session() as session:
        runs = {precision: _products(session, precision, sizes) for precision in ("float32", "bfloat16")}
        best = dict.fromkeys(runs, float("inf"))
        for run in runs.values():
            run()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for precision, run in runs.items():
                start = time.perf_counter()
                run()
                best[precision] = min(best[precision], time.perf_counter() - start)
    rows, depth, width = sizes
    return ProductRates(**{name: 2.0 * rows * depth * width * PRODUCTS / seconds for name, seconds in best.items()})


def _products(session: Any, precision: str, sizes: tuple[int, int, int]) -> Callable[[], Any]:
    """Return a function that computes a chain of products whose elements keep their value."""
    from towernmt.core.tf_compat import tf, tf1

    rows, depth, width = sizes
    value = tf1.placeholder(tf.float32, [])
    left, right = (tf.cast(tf.fill(shape, value), precision) for shape in ([rows, depth], [depth, width]))
    for _ in range(PRODUCTS):
        left = tf.matmul(left, right)
    run = session.make_callable(tf.cast(left[0, 0], tf.float32), [value])
    return lambda: run(1 / depth)


if __name__ == "__main__":
    print(json.dumps(asdict(measure_rates())))
