"""The batches of lines for the device of a model."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from typing import Any

from towernmt.core.gpus import has_gpu_driver, why_missing
from towernmt.predict.search.search_settings import BATCH_ON_GPU, StreamSettings

log = logging.getLogger(__name__)


def uses_gpu(device: str | None) -> bool:
    """Return whether a model is on a GPU; without a driver, TensorFlow is not imported to find that out.

    Args:
        device: "cpu", "gpu", "gpu:N" or None, as for `TrainedModel`.
    """
    if device is not None:
        return "gpu" in device.lower()
    if not has_gpu_driver() and "tensorflow" not in sys.modules:
        return False
    from towernmt.core.session import count_gpus  # takes seconds

    if count_gpus():
        return True
    if has_gpu_driver():
        _report_unused_gpu()
    return False


@cache
def _report_unused_gpu() -> None:
    """Log once why the GPU of this machine is not used, unless the user has hidden it."""
    from towernmt.core.tf_compat import tf

    if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        log.warning("The GPU is not used: %s.", why_missing(tf.sysconfig.get_build_info()))


def batching_for(device: str | None, batch_tokens: int | None = None, batch_sentences: int | None = None,
                 **others: Any) -> StreamSettings:
    """Return the settings of the batches for a device: larger batches on a GPU.

    Args:
        device: "cpu", "gpu", "gpu:N" or None, as for `Translator`.
        batch_tokens: maximum source tokens in a batch; None for the default of the device.
        batch_sentences: maximum sentences in a batch; None for the default of the device.
        others: further fields of `StreamSettings`.
    """
    sizes = dict(BATCH_ON_GPU) if uses_gpu(device) else {}
    sizes |= {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    sizes |= {} if batch_sentences is None else {"batch_sentences": batch_sentences}
    return StreamSettings(**sizes, **others)
