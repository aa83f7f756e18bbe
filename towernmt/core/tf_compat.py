"""TensorFlow as towernmt uses it: graph mode, through `tf` and `tf1` (= `tf.compat.v1`).

Import TensorFlow from here only, so that its start-up noise is off and eager execution is
switched off before the first graph is built.
"""

from __future__ import annotations

import os

from towernmt.core.machine.processor import processor_flags
from towernmt.core.terminal.stderr_noise import without_noise

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# TensorFlow takes oneDNN's operations by itself on newer processors only; where there is no AVX-512 they pay as well.
if "avx2" in processor_flags():
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# oneDNN compiles a kernel for each new shape and keeps 1,024 of them; the batches of a corpus need some thousands.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
with without_noise():
    import tensorflow as tf

    tf.config.list_physical_devices("GPU")  # the search for a GPU driver is as noisy as the import

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.ERROR)

__all__ = ["tf", "tf1"]
