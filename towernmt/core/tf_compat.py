"""TensorFlow as towernmt uses it: graph mode, through `tf` and `tf1` (= `tf.compat.v1`).

Import TensorFlow from here only, so that its start-up noise is off and eager execution is
switched off before the first graph is built.
"""

from __future__ import annotations

from towernmt.core.terminal.stderr_noise import without_noise

with without_noise():
    import tensorflow as tf

    tf.config.list_physical_devices("GPU")  # the search for a GPU driver is as noisy as the import

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.ERROR)

__all__ = ["tf", "tf1"]
