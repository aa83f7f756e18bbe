"""The TensorFlow session of a run: threads, determinism, what the processor can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from towernmt.tf_compat import tf, tf1


def session_config() -> Any:
    """A `ConfigProto`: all processors, memory of a GPU as it is needed."""
    config = tf1.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    return config


class SessionCreator(tf1.train.SessionCreator):
    """A session with `session_config` and initialised variables.

    tensorpack's own creator gives an operation one thread, or warns of a configuration that was given to it.
    """

    def create_session(self) -> Any:
        """The session."""
        session = tf1.Session(config=session_config())
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer(), tf1.tables_initializer()])
        return session


def make_deterministic() -> None:
    """Let TensorFlow use only kernels that add in a fixed order: the same run gives the same bits."""
    tf.config.experimental.enable_op_determinism()


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512_BF16 or AMX); False where unknown."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
