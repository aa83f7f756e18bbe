"""The TensorFlow session of a run: threads, precision, determinism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorpack.tfutils.sesscreate import NewSessionCreator

from towernmt.errors import SettingsError
from towernmt.tf_compat import tf, tf1

PRECISIONS = ("float32", "bfloat16")


def session_config(precision: str = "float32", gpus: bool = False) -> Any:
    """A `ConfigProto`.

    Args:
        precision: `float32`, or `bfloat16`: matrix products in bfloat16 by oneDNN's graph rewrite (on
            processors with AVX512_BF16 or AMX), with parameters, optimizer and loss in float32.
        gpus: whether towers run on GPUs, for which the rewrite does not exist.
    Raises:
        SettingsError: bfloat16 on a GPU.
    """
    config = tf1.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    if precision == "bfloat16":
        if gpus:
            raise SettingsError("train.precision=bfloat16 is a rewrite for CPUs; "
                                "use train.precision=float32 with --gpu.")
        options = config.graph_options.rewrite_options
        options.auto_mixed_precision_onednn_bfloat16 = options.ON
    return config


def session_creator(precision: str = "float32", gpus: bool = False) -> NewSessionCreator:
    """tensorpack's session creator with `session_config`."""
    return NewSessionCreator(config=session_config(precision, gpus))


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
