"""A server in this process, and servers as processes, with an engine that answers at once."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE, wait_until

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("sentencex")

HERE = Path(__file__).parent
ECHO = f"{HERE / 'echo_engine.py'}:Echo"


class ServerProcess:
    """`towernmt serve` in a separate process.

    Attributes:
        port: port on which it listens.
        lines: its log, as JSON.
    """

    def __init__(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "towernmt", "serve", "--port", "0", *arguments]
        if not any(argument == "--model" for argument in arguments):
            command += ["--model", f"de-en={ECHO}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **environment})
        self.lines: list[dict[str, Any]] = []
        self._new: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.port = int(self.wait_for("Listening at")["message"].rstrip(".").rpartition(":")[2])
        except BaseException:
            self.process.kill()     # no fixture knows it yet
            raise
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for(self, text: str) -> dict[str, Any]:
        """Wait for a line of the log with this text, and return it."""
        while (line := self._new.get(timeout=PATIENCE)) is not None:
            if text in json.dumps(line, ensure_ascii=False):
                return line
        raise AssertionError(f"the server has ended ({self.process.wait()}): {self.lines}")

    def metric(self, name: str) -> float:
        """Return the value of a line of /metrics, such as `towernmt_requests_running`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.removeprefix(name)) for line in lines if line.startswith(f"{name} "))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process, and return its status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line = json.loads(text) if text.startswith("{") else {"message": text}
            self.lines.append(line)
            self._new.put(line)
        self._new.put(None)


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that starts servers, which end with the test."""
    started = []

    def begin(*arguments: str, **environment: str) -> ServerProcess:
        started.append(ServerProcess(*arguments, **environment))
        return started[-1]

    yield begin
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """Return a server as a process, for tests that do not change it."""
    started = ServerProcess("--header-seconds", "1", "--body-seconds", "1", "--max-characters", "2000",
                            "--max-body", "20000", "--max-segments", "50", "--max-texts", "20")
    yield started
    started.stop()


@pytest.fixture
def make_client() -> Iterator[Callable[..., Any]]:
    """Return a function that makes a client of a server within this process.

    Its arguments are fields of `limits` and `access`, and `models`, engines by direction.
    """
    from starlette.testclient import TestClient

    from tests.serve.echo_engine import Echo
    from towernmt.dataflow.text.language_codes import parse_direction
    from towernmt.serve.application import make_app
    from towernmt.serve.model_loading import LoadedModel
    from towernmt.serve.request_limits import ServerLimits
    from towernmt.serve.served_models import Models, ServedModel
    from towernmt.serve.service import Access, Service

    services = []

    def make(limits: dict[str, Any] | None = None, access: dict[str, Any] | None = None,
             models: dict[str, Any] | None = None, queue: int = 5000) -> Any:
        def opened(engine: Any) -> Callable[[], LoadedModel]:
            return lambda: LoadedModel(engine, "echo", getattr(engine, "alternatives", 1),
                                       getattr(engine, "aligns", False), getattr(engine, "constrains", False),
                                       getattr(engine, "card", None), getattr(engine, "check", lambda _: None))

        served = [ServedModel(parse_direction(direction), "echo", opened(engine), 16, queue)
                  for direction, engine in (models or {"de-en": Echo()}).items()]
        for model in served:
            wait_until(lambda model=model: model.is_warm)
        services.append(Service(Models(served), ServerLimits(**(limits or {})), Access(**(access or {}))))
        client = TestClient(make_app(services[-1]), raise_server_exceptions=False)
        client.service = services[-1]  # type: ignore[attr-defined]
        return client

    yield make
    for service in services:
        service.close()
