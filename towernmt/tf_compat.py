"""TensorFlow as towernmt uses it: graph mode, through `tf` and `tf1` (= `tf.compat.v1`).

Import TensorFlow from here only, so that its start-up noise is off and eager execution is
switched off before the first graph is built.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own start-up chatter

import tensorflow as tf  # noqa: E402

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.ERROR)

__all__ = ["tf", "tf1"]
