"""Programs that start as forks of a process that has imported TensorFlow, which takes as long as a short training.

    python fork_server.py SOCKET

`ForkServer` starts this file as a server, which imports the modules of a training and then forks for each program. A
child runs its program as `python` does, up to the end of the interpreter. The modules are imported before a child gets
its environment, so a test of what a program writes or reads while it imports TensorFlow starts a new interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MODULES = ("towernmt.core.tf_compat", "towernmt.cli.train", "towernmt.run.launch", "towernmt.jobs.monolingual_training")


class ForkedProcess:
    """A program that a `ForkServer` has started, with the methods of a `subprocess.Popen`.

    Args:
        pid: its process identifier.
        stdout: binary file with its standard output.
        stderr: binary file with its standard error.
        report: unbuffered file with one line, the exit status, when it has ended.
    """

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes], report: IO[bytes]) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self._report = report
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or the negative number of the signal that ended it; None if it runs."""
        if self._status is None and select.select([self._report], [], [], 0)[0]:
            self.wait()
        return self._status

    def wait(self) -> int:
        """Wait for the end, and return the status of `poll`."""
        if self._status is None:
            self._status = int(self._report.readline())
            self._report.close()
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A server with one order of the elements of sets.

    Args:
        hash_seed: value of PYTHONHASHSEED of all its programs.
    """

    def __init__(self, hash_seed: int) -> None:
        self._connection, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONUNBUFFERED": "1"}
        environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
        # Pipes like those of a child, because Python checks only once whether its standard streams are seekable.
        self._server = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()

    def start(self, command: Sequence[str], directory: Path, environment: Mapping[str, str],
              optimizes: bool = True) -> ForkedProcess:
        """Start a program and return its process.

        Args:
            command: "-m" with a module, or the path of a program, and its arguments.
            directory: its working directory.
            environment: all of its environment variables.
            optimizes: whether TensorFlow optimises its graphs, as for users.
        """
        request = {"command": list(command), "directory": str(directory), "environment": dict(environment),
                   "optimizes": optimizes}
        mine, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        stdout, stderr = (os.fdopen(descriptor, "rb") for descriptor in mine[:2])
        report = os.fdopen(mine[2], "rb", buffering=0)
        socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        line = report.readline()
        if not line:
            raise RuntimeError(f"the fork server has ended: {self._server.communicate()[1].decode()}")
        return ForkedProcess(int(line), stdout, stderr, report)

    def stop(self) -> None:
        """Let the server end."""
        self._connection.close()
        self._server.wait()
        for stream in (self._server.stdout, self._server.stderr):
            stream.close()


def serve(connection: socket.socket, started_with: dict[str, str]) -> list[str]:
    """Start a child for each request, and return the command in the child. In the server it does not return.

    Args:
        connection: the requests of a `ForkServer`.
        started_with: environment variables of the server before its imports, which set further ones.
    """
    while True:
        line, descriptors, *_ = socket.recv_fds(connection, 1 << 16, 3)
        while line and not line.endswith(b"\n"):
            line += connection.recv(1 << 16)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not line:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            return start_child(json.loads(line), descriptors, started_with)
        for descriptor in descriptors:
            os.close(descriptor)


def start_child(request: dict[str, Any], descriptors: list[int], started_with: dict[str, str]) -> list[str]:
    """Return the command in a child of this process. This process reports the identifier and the status, and ends."""
    stdout, stderr, report = descriptors
    child = os.fork()
    if child:
        for descriptor in (stdout, stderr):
            os.close(descriptor)
        os.write(report, b"%d\n" % child)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(report, b"%d\n" % status)
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, stdout, stderr)):
        os.dup2(descriptor, number)
    for descriptor in (nothing, *descriptors):
        os.close(descriptor)
    os.chdir(request["directory"])
    for name in started_with.keys() - request["environment"].keys():
        os.environ.pop(name, None)
    os.environ.update(request["environment"])
    os.fsync = lambda descriptor: None      # as in tests/conftest.py
    tempfile.tempdir = None     # an import may have looked it up
    if not request["optimizes"]:
        from tests.graphs_as_built import run_graphs_as_built

        run_graphs_as_built()
    return request["command"]


def run(command: list[str]) -> None:
    """Run a program in this process as `python` does."""
    if command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], os.getcwd()
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = command, str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    requests, variables = socket.socket(fileno=int(sys.argv[1])), dict(os.environ)
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    run(serve(requests, variables))
