"""Fixtures shared by all tests: a new graph for each test, and real servers.

A server is started once per session, when a test first requests it.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.graphs_as_built import run_graphs_as_built

# The same examples in every run, so that a test fails only where something has changed.
# `pytest --hypothesis-profile=default` draws new ones. No deadline: on a busy machine any example may take long.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fixed")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Programs that tests start import `towernmt` and `tests` from any working directory.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
# Requests to the servers of tests do not go through a proxy of the machine.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

# Under nohup, or in the background of a script, these signals are ignored, and programs that tests start would inherit
# that. A program does not inherit a handler.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# No test cuts the power, and to flush small files to the disk takes longer than to write them.
os.fsync = lambda descriptor: None

gc.disable() # while modules are imported, which creates hardly any garbage; `pytest_collection_finish` enables it again

BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP far.example 127.0.0.1"]
SERVERS = {"postgresql", "mariadb", "seaweedfs"}
"""Fixtures that start a server, which takes seconds: what asks for one is marked `servers`."""


SHARING = ("tests/integration/", "tests/examples/")
"""Folders whose files share fixtures that take long, such as a training."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let `--dist loadfile` give all files of a folder of `SHARING` to the same worker."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FolderScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((folder for folder in SHARING if file.startswith(folder)), file)

    return FolderScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a server, by their fixtures or by the names of their parameters."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        named = {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}
        if named & SERVERS:
            item.add_marker(pytest.mark.servers)


def pytest_collection_finish() -> None:
    """Freeze all existing objects, so that the garbage collector does not traverse them in each test.

    From now on, the sessions of this process run graphs as built, except in marked tests.
    """
    gc.freeze()
    gc.callbacks.append(_freeze_what_is_left)
    gc.enable()
    if "tensorflow" in sys.modules:
        run_graphs_as_built(lambda: _optimizes)


def _freeze_what_is_left(phase: str, info: dict[str, int]) -> None:
    """Freeze what a full collection leaves, mostly graphs, so that the next one does not traverse it.

    Late in the suite, a collection would take seconds.
    """
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let TensorFlow optimise the graphs of a test that is marked `optimized`."""
    global _optimizes
    _optimizes = item.get_closest_marker("optimized") is not None


_optimizes = False
"""Whether TensorFlow optimises the graphs of new sessions."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield Debian's Chromium, driven by Playwright.

    It ends with the module, because Playwright runs an event loop in this thread, which allows no second one.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def no_determinism_left_behind() -> Iterator[None]:
    """Reset op determinism, a switch of the process that a test turns on if it trains like a command."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework.config import disable_op_determinism

        disable_op_determinism()


@pytest.fixture(autouse=True)
def no_gpus_left_behind() -> Iterator[None]:
    """Reset the GPUs that sessions see, which a test may have chosen for the process."""
    yield
    if "towernmt.core.gpus" in sys.modules:
        sys.modules["towernmt.core.gpus"]._chosen.clear()


@pytest.fixture(autouse=True)
def log_level_of_tensorpack() -> Iterator[None]:
    """Reset tensorpack's logger, of which a process has one, after fixtures and tests that silence it.

    It is also reset after a test, because fixtures of the next module are set up before those of its first test.
    """
    logger = logging.getLogger("tensorpack")
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(logging.INFO)


@pytest.fixture(scope="session")
def write_pairs() -> Callable[[Path], None]:
    """Return `write_pairs(place)`, which writes 50 pairs of random words as `source` and `target`, and `valid.*`."""

    def write(place: Path) -> None:
        chance = random.Random(5)
        for name in ("source", "target"):
            lines = [" ".join(chance.choices("abcdefghij", k=chance.randint(2, 12))) for _ in range(50)]
            (place / name).write_text("".join(f"{line}\n" for line in lines))
            (place / f"valid.{name}").write_text("".join(f"{line}\n" for line in lines[:5]))

    return write


@pytest.fixture(scope="session")
def prepare_pairs(write_pairs: Callable[[Path], None]) -> Callable[[Path], Path]:
    """Return `prepare_pairs(place)`, which writes such pairs and prepares them with `valid.*` in `place/data`."""

    def prepare(place: Path) -> Path:
        from towernmt.cli.main import main

        write_pairs(place)
        files = [x for name in ("source", "target")
                 for x in (f"--{name}", str(place / name), f"--valid-{name}", str(place / f"valid.{name}"))]
        assert main(["prepare", *files, "--vocab-kind", "word", "--shared-vocab", "--output", str(place / "data")]) == 0
        return place / "data"

    return prepare


@pytest.fixture(scope="session")
def next_server() -> Iterator[Callable[[], Any]]:
    """Return `next_server()`, which alternates between two servers with different orders of the elements of sets."""
    from tests.fork_server import ForkServer

    servers: list[Any] = []
    turns = itertools.cycle((0, 1))

    def choose() -> Any:
        turn = next(turns)
        if turn == len(servers):
            servers.append(ForkServer(hash_seed=turn))
        return servers[turn]

    yield choose
    for server in servers:
        server.stop()


@pytest.fixture
def start_program(next_server: Callable[[], Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return `start_program(code, ...)`, which starts Python code with arguments, and returns its `Process`.

    It is a fork of a process that has imported TensorFlow, and its working directory is `tmp_path`.
    """
    from tests.program_process import Process

    started = []

    def start(code: str, *arguments: object) -> Any:
        file = tmp_path / f"program-{len(started)}.py"
        file.write_text(code)
        started.append(Process([file, *map(str, arguments)], tmp_path, next_server()))
        return started[-1]

    yield start
    for process in started:
        process.end()


class Killed(BaseException):
    """Raised instead of ending the process."""


@pytest.fixture(scope="session")
def killed_after() -> Callable[..., AbstractContextManager[list[int]]]:
    """End the block of `with killed_after(n, functions) as left:` at the n-th call, from 0, of any of these functions.

    Each function is (owner, name). `left[0]` is the number of remaining calls; below 0 if the block was ended.
    """

    @contextmanager
    def killed(operations: int, functions: Sequence[tuple[Any, str]]) -> Iterator[list[int]]:
        left = [operations]

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return function(*args, **kwargs)
            return call

        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            for owner, name in functions:
                patch.setattr(owner, name, counted(getattr(owner, name)))
            yield left

    return killed


@pytest.fixture
def graph() -> Iterator[object]:
    """Set a new default graph for each test."""
    from towernmt.core.tf_compat import tf

    with tf.Graph().as_default() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    from tests.servers.postgresql import PostgreSQL

    server = PostgreSQL()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Any]:
    from tests.servers.mariadb import MariaDB

    server = MariaDB()
    yield server
    server.close()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.servers.seaweedfs import SeaweedFS

    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.stop()


@pytest.fixture
def s3(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return the S3 server, and set its credentials as the only ones in the environment that boto3 finds."""
    from tests.servers.seaweedfs import ACCESS_KEY, SECRET_KEY
    from towernmt.dataflow.storage import s3_client

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                        "AWS_CONFIG_FILE": str(tmp_path / "no-config"), "AWS_EC2_METADATA_DISABLED": "true",
                        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_client, "FIRST_DELAY", 0.01)
    s3_client._clients.clear()
    yield seaweedfs
    s3_client._clients.clear()


@pytest.fixture
def fault_proxy(s3: Any) -> Iterator[Any]:
    from tests.servers.fault_proxy import FaultProxy

    proxy = FaultProxy(s3.url)
    yield proxy
    proxy.stop()
