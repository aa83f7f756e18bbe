"""TensorFlow in graph mode, as `tf` and `tf1` (= `tf.compat.v1`).

Import TensorFlow only from this module. It hides TensorFlow's start-up noise, and switches eager execution off before
the first graph is built. If the package tf_keras is installed (the extra `layers`), TensorFlow uses it as its Keras:
`tf.layers`, and so tensorpack's layers, need it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec

from towernmt.core.gpus import load_cuda_libraries
from towernmt.core.machine import processors
from towernmt.core.standard_streams import without_noise

# TensorFlow reads this when Keras or tf.layers is first used. TF_USE_LEGACY_KERAS=0 keeps Keras 3.
if find_spec("tf_keras") is not None:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
if processors() == 1:
    # With one thread for all operations of the process, one that waits for another would wait for ever.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")

load_cuda_libraries()
with without_noise():
    import tensorflow as tf

    with suppress(tf.errors.InternalError):     # of a driver that fails; `why_missing` explains it
        for gpu in tf.config.list_physical_devices("GPU"):  # the search for a driver is as noisy as the import
            tf.config.experimental.set_memory_growth(gpu, True)     # else TensorFlow's context takes all of its memory

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.ERROR)

__all__ = ["tf", "tf1"]
