"""The trainer and its towers. The package can be called: `towernmt.train(settings, data, logdir)` trains a run."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports, make_callable

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    ".core.graph_state": ["towers_of_batch"],
    ".core.runs": ["Run", "belong_to", "run_as"],
    "config": ["TrainConfig"],
    "trainer": ["SyncMultiGPUTrainer"],
})
make_callable(__name__, "towernmt.run.launch", "train")
