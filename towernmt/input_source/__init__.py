"""From batches to the towers: the queue runner, and the InputSource that owns one."""

from towernmt.input_source.queue_input import GeneralQueueInput
from towernmt.input_source.queue_monitor import QueueMonitor
from towernmt.input_source.queue_runner import GeneralQueueRunner
from towernmt.input_source.statistics import InputStatistics

__all__ = ["GeneralQueueInput", "GeneralQueueRunner", "InputStatistics", "QueueMonitor"]
