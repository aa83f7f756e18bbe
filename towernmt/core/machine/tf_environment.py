"""What TensorFlow reads from the environment at its start, as towernmt sets it; needs no TensorFlow itself."""

from __future__ import annotations

import os

from towernmt.core.machine.processor import processor_flags


def set_environment() -> None:
    """Set what is not set already; `import towernmt` calls it, before TensorFlow's libraries are loaded."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # TensorFlow takes oneDNN's operations by itself on newer processors only; without AVX-512 they pay as well.
    if "avx2" in processor_flags():
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # oneDNN compiles a kernel for each new shape and keeps 1,024 of them; the batches of a corpus need some thousands.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    # Else all sessions of the process share the threads of the first one, whatever `session_config` asks for.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
