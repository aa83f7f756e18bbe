"""The bounded cache: only complete files, the limit, several processes, full disks."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.storage import object_cache, s3_client
from towernmt.dataflow.storage.object_cache import ObjectCache, default_cache
from towernmt.dataflow.storage.s3_client import S3Options

SIZE = 10_000


def content(name: str, size: int = SIZE) -> bytes:
    return (name.encode() * size)[:size]


def writer(name: str, fetched: list[str] | None = None) -> Callable[[BinaryIO], None]:
    def fetch(file: BinaryIO) -> None:
        if fetched is not None:
            fetched.append(name)
        file.write(content(name))
    return fetch


def get(cache: ObjectCache, name: str, fetched: list[str] | None = None) -> bytes:
    with cache.open(name, "1", SIZE, writer(name, fetched)) as file:
        return file.read()


def age(cache: ObjectCache) -> None:
    """Set the times of last use back, in the same order, because clocks of file systems are coarse."""
    for path in sorted(cache.directory.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        moment = path.stat().st_mtime_ns - 10**9
        os.utime(path, ns=(moment, moment))


def test_a_file_is_fetched_once_for_each_version(tmp_path: Path) -> None:
    cache, fetched = ObjectCache(tmp_path, 5 * SIZE), []        # type: ignore[var-annotated]
    assert get(cache, "a", fetched) == content("a") == get(cache, "a", fetched)
    assert fetched == ["a"]
    with cache.open("a", "2", SIZE, writer("b")) as file:
        assert file.read() == content("b")
    cache.discard("a", "1")
    get(cache, "a", fetched)
    assert fetched == ["a", "a"]


def test_the_least_recently_used_copy_is_removed(tmp_path: Path) -> None:
    cache, fetched = ObjectCache(tmp_path, 3 * SIZE + 5), []        # type: ignore[var-annotated]
    for name in ("a", "b", "c", "a", "d", "a", "b"):
        get(cache, name, fetched)
        age(cache)
        assert cache.bytes() <= cache.limit_bytes
    assert fetched == ["a", "b", "c", "d", "b"]


def test_a_mapped_file_stays_readable_after_it_gave_way(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, SIZE)
    with cache.open("a", "1", SIZE, writer("a")) as file:
        mapped = np.memmap(file, np.uint8, mode="r")        # type: ignore[call-overload, unused-ignore]
    get(cache, "b")
    assert cache.bytes() == SIZE and mapped.tobytes() == content("a")


def test_a_file_larger_than_the_cache_is_refused_with_the_settings_to_change(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"s3://b/k: 10,000 bytes do not fit into the cache .* TOWERNMT_CACHE_GB"):
        get(ObjectCache(tmp_path, SIZE - 1), "s3://b/k")


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, 2 * SIZE)

    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise DataError("the server is gone")

    with pytest.raises(DataError, match="the server is gone"):
        cache.open("a", "1", SIZE, fail)
    assert cache.bytes() == 0 and [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert get(cache, "a") == content("a")


def test_files_that_are_no_copies_are_let_be(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_bytes(bytes(10 * SIZE))
    cache = ObjectCache(tmp_path, SIZE)
    get(cache, "a")
    get(cache, "b")
    assert (tmp_path / "thesis.tex").stat().st_size == 10 * SIZE


def test_the_unfinished_copy_of_a_killed_process_is_replaced_and_not_counted(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, 2 * SIZE)
    get(cache, "a")
    [path] = [path for path in tmp_path.iterdir() if path.name != "lock"]
    os.rename(path, f"{path}.tmp")                          # unfinished, and no process holds its lock
    assert get(cache, "b") == content("b") and get(cache, "c") == content("c")
    assert not os.path.exists(f"{path}.tmp")
    Path(f"{path}.tmp").write_bytes(b"x" * 2 * SIZE)
    assert get(cache, "a") == content("a")


def test_threads_that_want_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    cache, fetched, contents = ObjectCache(tmp_path, 5 * SIZE), [], []        # type: ignore[var-annotated]
    threads = [threading.Thread(target=lambda: contents.append(get(cache, "a", fetched))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == ["a"] and contents == [content("a")] * 8


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set as soon as a thread waits for a lock of the cache."""
    event = threading.Event()

    def sleep(seconds: float) -> None:
        event.set()
        time.sleep(seconds)

    monkeypatch.setattr(object_cache, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return event


def test_a_fetch_waits_for_the_room_of_another_that_is_under_way(tmp_path: Path, waits: threading.Event) -> None:
    cache, halfway, go = ObjectCache(tmp_path, SIZE), threading.Event(), threading.Event()

    def slow(file: BinaryIO) -> None:
        halfway.set()
        go.wait()
        file.write(content("a"))

    first = threading.Thread(target=lambda: cache.open("a", "1", SIZE, slow).close())
    first.start()
    assert halfway.wait(PATIENCE)
    contents: list[bytes] = []
    second = threading.Thread(target=lambda: contents.append(get(cache, "b")))
    second.start()
    assert waits.wait(PATIENCE)
    assert contents == [] and cache.bytes() == SIZE
    go.set()
    first.join()
    second.join()
    assert contents == [content("b")] and cache.bytes() == SIZE


def _work(directory: Path, seed: int, results: Any) -> None:
    cache, draws, largest_size = ObjectCache(directory, 3 * SIZE), np.random.default_rng(seed), 0
    for number in draws.integers(0, 8, 150):
        name = f"name-{number}"
        if get(cache, name) != content(name):
            results.put((seed, f"{name} is wrong"))
            return
        largest_size = max(largest_size, cache.bytes())
    results.put((seed, largest_size))


def test_processes_share_a_small_cache_without_a_wrong_byte(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_work, args=(tmp_path, seed, results)) for seed in range(4)]
    for worker in workers:
        worker.start()
    content_by_worker = dict(results.get(timeout=PATIENCE) for _ in workers)
    for worker in workers:
        worker.join()
    # Space is freed before it is allocated; a count without the lock may see a file before and after its rename.
    assert all(isinstance(largest_size, int) for largest_size in content_by_worker.values()), content_by_worker
    assert ObjectCache(tmp_path, 3 * SIZE).bytes() <= 3 * SIZE


def _hang(directory: Path, started: Any) -> None:
    def fetch(file: BinaryIO) -> None:
        file.write(b"half")
        started.set()
        time.sleep(600)

    ObjectCache(directory, SIZE).open("a", "1", SIZE, fetch)


def test_a_fetch_killed_in_the_middle_holds_nobody_up(tmp_path: Path, waits: threading.Event) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    worker = context.Process(target=_hang, args=(tmp_path, started))
    worker.start()
    assert started.wait(PATIENCE)
    contents: list[bytes] = []
    waiting = threading.Thread(target=lambda: contents.append(get(ObjectCache(tmp_path, SIZE), "a")))
    waiting.start()
    assert waits.wait(PATIENCE)
    worker.kill()
    worker.join()
    waiting.join(PATIENCE)
    assert contents == [content("a")]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Return a directory on a disk of 64 KiB."""
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    with tempfile.TemporaryDirectory() as directory:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("this machine lets nobody mount a disk")
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


def test_a_full_disk_is_one_message_and_leaves_no_files(small_disk: Path) -> None:
    cache = ObjectCache(small_disk / "cache", 10**9)
    (small_disk / "other").write_bytes(bytes(60_000))
    with pytest.raises(DataError, match=r"cache: the disk is full; 10,000 bytes for a do not fit.*TOWERNMT_CACHE") as e:
        get(cache, "a")
    assert "\n" not in str(e.value) and cache.bytes() == 0
    (small_disk / "other").unlink()
    assert get(cache, "a") == content("a")


def test_on_a_disk_smaller_than_the_limit_old_copies_give_way(small_disk: Path) -> None:
    cache = ObjectCache(small_disk / "cache", 10**9)
    for number in range(20):
        assert get(cache, f"name-{number}") == content(f"name-{number}")
    assert SIZE <= cache.bytes() <= 1 << 16


def test_a_disk_that_is_full_in_mid_write_is_the_same_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reserving(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    def fetch(file: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_reserving)
    cache = ObjectCache(tmp_path, SIZE)
    with pytest.raises(DataError, match="the disk is full"):
        cache.open("a", "1", SIZE, fetch)
    assert cache.bytes() == 0
    assert get(cache, "a") == content("a")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/cache: the cache of a cannot be used \(Not a directory\)"):
        get(ObjectCache(tmp_path / "file" / "cache", SIZE), "a")


def test_a_complete_copy_on_a_read_only_disk_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path, SIZE)
    get(cache, "a")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert get(cache, "a") == content("a")


def test_the_environment_sets_place_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOWERNMT_CACHE", "TOWERNMT_CACHE_GB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache().directory == tmp_path / "xdg" / "towernmt" / "objects"
    assert default_cache().limit_bytes == 10 * 10**9
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("TOWERNMT_CACHE_GB", "0.5")
    assert default_cache().directory == tmp_path / "here" / "objects"
    assert default_cache().limit_bytes == 5 * 10**8
    for text in ("much", "0", "-1", "nan", "inf", "1e300"):
        monkeypatch.setenv("TOWERNMT_CACHE_GB", text)
        with pytest.raises(SettingsError, match=f"TOWERNMT_CACHE_GB={text}: expected a positive number"):
            default_cache()


def test_locks_are_not_left_to_children(tmp_path: Path) -> None:
    """A process that was forked during a fetch holds the same open file; the lock must still be freed."""
    cache, read_end = ObjectCache(tmp_path, 2 * SIZE), None
    child = 0

    def fetch(file: BinaryIO) -> None:
        nonlocal child, read_end
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write_end)
            os.read(read_end, 1)        # until the parent closes its end
            os._exit(0)
        file.write(content("a"))
        fetch.write_end = write_end     # type: ignore[attr-defined]

    with cache.open("a", "1", SIZE, fetch) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fetch.write_end)       # type: ignore[attr-defined]
    os.waitpid(child, 0)


def test_nothing_of_it_is_needed_where_there_are_no_such_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, importing must not fail, and using the cache is refused in one sentence."""
    program = ("import sys\nsys.modules['fcntl'] = None\n"
               "import towernmt.dataflow.storage.object_cache, towernmt.dataflow.preparation.prepared_data\n"
               "import towernmt.core.directories\n")
    subprocess.run([sys.executable, "-c", program], check=True)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(SettingsError, match="which needs file locks"):
        ObjectCache(tmp_path, 100).open("name", "1", 1, lambda file: None)


def test_a_fetch_is_waited_for_as_long_as_its_requests_are_retried() -> None:
    options = S3Options()
    delays = sum(min(s3_client.LONGEST_DELAY, s3_client.FIRST_DELAY * 2 ** n) for n in range(options.retries))
    attempts = options.retries + 1
    assert object_cache.PATIENCE_SECONDS > 2 * (attempts * options.timeout + delays)      # HEAD, then GET


def test_a_process_that_does_not_go_on_is_not_waited_for_for_ever(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.dataflow.storage.object_cache.PATIENCE_SECONDS", 0.2)
    cache = ObjectCache(tmp_path, 100)
    with open(cache._path("name", "1").with_suffix(".tmp"), "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process has locked .* has not written to it for 0.2 s. End that"):
            cache.open("name", "1", 1, lambda file: None)
        fcntl.flock(held, fcntl.LOCK_UN)
        with cache.open("name", "1", 1, lambda file: file.write(b"x") and None) as copy:
            assert copy.read() == b"x"
