"""From batches to the towers: `InputSource`s whose queue is filled by feeder threads, and their queue runner."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "fed_input": ["FedInput"],
    "feeding": ["InputStatistics"],
    "queue_input": ["GeneralQueueInput", "QueueMonitor"],
    "queue_runner": ["GeneralQueueRunner"],
})
