"""The TensorFlow session of a run: its threads, and what the processor can do."""

from __future__ import annotations

from typing import Any

from towernmt.core.machine.forked import refuse_second_process
from towernmt.core.machine.processor import has_share, processors
from towernmt.core.tensors import Session
from towernmt.core.tf_compat import tf1
from towernmt.core.world import present_world


def session_config(cpu_towers: int = 1, runs_in_caller: bool = False) -> Any:
    """A `ConfigProto`: all processors, memory of a GPU as it is needed.

    Several towers on the CPU share its processors: each operation gets a tower's share of them as threads, so that
    the towers run side by side. (Small operations gain little from a second thread.)

    Args:
        cpu_towers: towers on the CPU.
        runs_in_caller: each run stays in the thread that asks for it (where it has one device): small operations, one
            after the other, are not handed from thread to thread.
    """
    config = tf1.ConfigProto(allow_soft_placement=True)
    if runs_in_caller:
        config.inter_op_parallelism_threads = -1
    if cpu_towers > 1 or has_share():
        config.intra_op_parallelism_threads = max(1, processors() // cpu_towers)
    config.gpu_options.allow_growth = True
    return config


class SessionCreator(tf1.train.SessionCreator):
    """A session with `session_config` and initialised variables.

    tensorpack's own creator gives an operation one thread, or warns of a configuration that was given to it.

    Attributes:
        cpu_towers: see `session_config`; a trainer of several towers sets it.
        runs_in_caller: see `session_config`.
    """

    def __init__(self, cpu_towers: int = 1, runs_in_caller: bool = False) -> None:
        self.cpu_towers, self.runs_in_caller = cpu_towers, runs_in_caller

    def create_session(self) -> Session:
        """The session.

        Raises:
            SettingsError: the process was forked from one that had a session.
        """
        refuse_second_process()
        config = session_config(self.cpu_towers, self.runs_in_caller)
        session = tf1.Session(present_world().session_target(config), config=config)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer(), tf1.tables_initializer()])
        return session
