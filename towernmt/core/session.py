"""The TensorFlow session of a run: its threads, and what the processor can do."""

from __future__ import annotations

import os
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Session
from towernmt.core.tf_compat import tf1
from towernmt.core.world import present_world


def session_config(cpu_towers: int = 1) -> Any:
    """A `ConfigProto`: all processors, memory of a GPU as it is needed.

    Several towers on the CPU share its processors: each operation gets a tower's share of them as threads, so that
    the towers run side by side. (Small operations gain little from a second thread.)

    Args:
        cpu_towers: towers on the CPU.
    """
    config = tf1.ConfigProto(allow_soft_placement=True)
    if cpu_towers > 1:
        config.intra_op_parallelism_threads = max(1, processors() // cpu_towers)
    config.gpu_options.allow_growth = True
    return config


class SessionCreator(tf1.train.SessionCreator):
    """A session with `session_config` and initialised variables.

    tensorpack's own creator gives an operation one thread, or warns of a configuration that was given to it.

    Attributes:
        cpu_towers: see `session_config`; a trainer of several towers sets it.
    """

    cpu_towers = 1

    def create_session(self) -> Session:
        """The session.

        Raises:
            SettingsError: the process was forked from one that had a session.
        """
        global _first_process
        _first_process = _first_process or os.getpid()
        refuse_forked(_first_process)
        config = session_config(self.cpu_towers)
        session = tf1.Session(present_world().session_target(config), config=config)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer(), tf1.tables_initializer()])
        return session


_first_process: int | None = None
"""The process that made the first session, here or in a process that this one was forked from."""


def refuse_forked(process: int) -> None:
    """Refuse to use TensorFlow in a process that was forked from one that had used it: it would wait for ever.

    The child process does not have TensorFlow's threads.

    Args:
        process: the one in which TensorFlow was used.
    Raises:
        SettingsError: this is another process.
    """
    if os.getpid() != process:
        raise SettingsError("TensorFlow was used before this process was forked, and cannot be used in it: use it in "
                            'one of the two only, or start processes by multiprocessing.get_context("spawn").')


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
