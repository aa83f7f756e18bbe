"""The connection to a Ray cluster: an existing one, or one on this machine for as long as it is needed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any

from towernmt.core.errors import SettingsError


def check_ray(option: str = "--ray") -> None:
    """See that Ray is installed.

    Args:
        option: that needs it.
    Raises:
        SettingsError: it is not.
    """
    if find_spec("ray") is None:
        raise SettingsError(f"{option} needs the package ray: pip install 'towernmt[ray]'.")


@contextmanager
def connected(address: str, processes: int, say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, this process is connected to Ray.

    A program that is connected stays so.

    Args:
        address: of the cluster; empty: that of `RAY_ADDRESS`, or the one that was started on this machine by `ray
            start`; "local", or if there is none: one that is started here and ends with the block.
        processes: of a cluster that is started here; 0: one a processor.
        say: is called with where the work is done.
    Raises:
        SettingsError: there is no cluster at the address.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with redirect_stdout(sys.stderr):   # Ray prints there, and our output may go to a file
        _connect(address or os.environ.get("RAY_ADDRESS", ""), processes)
    try:
        cpus, nodes = int(ray.cluster_resources().get("CPU", 0)), len(ray.nodes())
        say(f"Ray: {nodes} {'machine' if nodes == 1 else 'machines'}, "
            f"{cpus} {'processor' if cpus == 1 else 'processors'}")
        yield
    finally:
        ray.shutdown()


def _connect(address: str, processes: int) -> None:
    import ray

    # Whoever runs this towernmt from a folder has it on the other processes' path, too.
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "runtime_env": {"env_vars": path}}
    if address != "local":
        try:
            _knock(address)
            ray.init(address=address or "auto", **options)
            return
        except (OSError, ValueError) as error:      # a ConnectionError is an OSError
            if address:
                raise SettingsError(f"--ray {address}: there is no Ray cluster ({' '.join(str(error).split())[:200]}). "
                                    "Start it, or pass --ray local to start one on this machine; if it asks for a "
                                    "token, export RAY_AUTH_MODE=token.") from error
    ray.init(address="local", num_cpus=processes or None, include_dashboard=False, **options)


def _knock(address: str) -> None:
    """See that something listens there: Ray itself would try for minutes.

    Raises:
        OSError: nothing does.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
