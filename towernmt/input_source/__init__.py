"""From batches to the towers: the queue runner, and the InputSource that uses it."""

from towernmt.input_source.input_statistics import InputStatistics
from towernmt.input_source.queue_input import GeneralQueueInput
from towernmt.input_source.queue_monitor import QueueMonitor
from towernmt.input_source.queue_runner import GeneralQueueRunner

__all__ = ["GeneralQueueInput", "GeneralQueueRunner", "InputStatistics", "QueueMonitor"]
