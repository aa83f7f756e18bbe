"""Let TensorFlow run graphs as they were built: optimising them takes a third of the time of a small training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run_graphs_as_built(optimizes: Callable[[], bool] = lambda: False) -> None:
    """Let new sessions of this process run graphs as built, unless `optimizes()` is true when they are made."""
    from tensorflow.core.protobuf.config_pb2 import ConfigProto
    from tensorflow.python.client import pywrap_tf_session

    make_options = pywrap_tf_session.TF_NewSessionOptions

    def make(target: Any, config: Any) -> Any:
        changed = ConfigProto()
        if config is not None:      # it is in `Session.reset`
            changed.CopyFrom(config)
        changed.graph_options.rewrite_options.disable_meta_optimizer = not optimizes()
        return make_options(target=target, config=changed)

    pywrap_tf_session.TF_NewSessionOptions = make
