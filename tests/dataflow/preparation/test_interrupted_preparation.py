"""An interrupted preparation resumes with the finished tasks, and its output equals that of an uninterrupted one."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from towernmt.core.errors import DataError, UnfinishedError
from towernmt.dataflow.preparation import passes, task_runners
from towernmt.dataflow.preparation.encode_tasks import EncodePart
from towernmt.dataflow.preparation.input_texts import open_sources, write_text_files
from towernmt.dataflow.preparation.output_directory import STAGE
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.tasks import Task

PREPARE = ("import sys\nfrom towernmt.dataflow.preparation import passes\npasses.CHUNKS_OF_A_PART = 1\n"
           "from towernmt.cli.main import main\nsys.exit(main(['prepare', *sys.argv[1:]]))\n")


def write_corpus(directory: Path, lines: int, words: int = 5) -> None:
    """Write pairs, a tenth of them duplicates, as `train.de` and `train.en`."""
    draw = random.Random(5)
    for side in ("de", "en"):
        text: list[str] = []
        for line in range(lines):
            repeated = line > 50 and line % 10 == 0
            text.append(text[line // 2] if repeated else " ".join(f"{side}{draw.randrange(300)}" for _ in range(words)))
        (directory / f"train.{side}").write_text("".join(f"{sentence}\n" for sentence in text))


def sums(directory: str | Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(Path(directory).rglob("*")) if path.is_file()}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrepareSettings:
    """Return the settings of a preparation with three parts and two shards."""
    write_corpus(tmp_path, 9000)
    monkeypatch.setattr(passes, "CHUNKS_OF_A_PART", 1)
    monkeypatch.setattr(passes, "_RESUMABLE_LINES", 0)
    return PrepareSettings(str(tmp_path / "train.de"), str(tmp_path / "train.en"), str(tmp_path / "out"),
                           vocab_kind="word", vocab_size=400, shard_pairs=5000, workers=1, duplicates="exact")


def interrupting(monkeypatch: pytest.MonkeyPatch, tasks: int) -> list[str]:
    """Interrupt after every `tasks` tasks, and return the list to which each finished task adds its title."""
    done: list[str] = []
    real, calls = task_runners.perform, 0

    def perform(task: Task) -> None:
        nonlocal calls
        if calls == tasks:
            calls = 0
            raise KeyboardInterrupt
        real(task)
        calls += 1
        done.append(task.title)

    monkeypatch.setattr(task_runners, "perform", perform)
    return done


def test_finished_tasks_are_not_repeated_and_the_bytes_are_the_same(settings: PrepareSettings,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(replace(settings, output=settings.output + "-whole"))
    done, interruptions = interrupting(monkeypatch, 2), 0
    while True:
        try:
            prepare(settings)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions >= 7 and len(done) == len(set(done)) >= 15
    assert sums(settings.output) == sums(settings.output + "-whole")


@pytest.mark.parametrize("change", [{"seed": 2}, pytest.param({"vocab_size": 90}, marks=pytest.mark.thorough)])
def test_changed_settings_start_a_new_preparation(settings: PrepareSettings, change: dict[str, Any],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(settings, **change)
    prepare(replace(changed, output=settings.output + "-whole"))
    with monkeypatch.context() as patch:
        interrupting(patch, 9)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings)
    assert (Path(settings.output) / STAGE).exists()
    prepare(changed)
    assert sums(settings.output) == sums(settings.output + "-whole")


def test_text_that_changed_since_the_interruption_is_read_again(settings: PrepareSettings,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupting(patch, 9)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings)
    for path in (Path(settings.source), Path(settings.target)):
        path.write_text(path.read_text() + "neu\n")
    data = prepare(settings)
    prepare(replace(settings, output=settings.output + "-whole"))
    assert data.statistics["lines"] == 9001
    assert sums(settings.output) == sums(settings.output + "-whole")


def test_an_error_of_the_data_keeps_nothing(settings: PrepareSettings) -> None:
    with pytest.raises(DataError, match="no pair is left"):
        prepare(replace(settings, max_length=4))
    assert not Path(settings.output).exists()


@pytest.mark.parametrize("change", [{}, {"valid_source": "missing.de", "valid_target": "missing.en"}])
def test_earlier_work_stays_if_the_next_command_ends_before_it_resumes(settings: PrepareSettings,
                                                                       monkeypatch: pytest.MonkeyPatch,
                                                                       change: dict[str, str]) -> None:
    """The second command is interrupted, or names a missing file, before it encodes anything."""
    with monkeypatch.context() as patch:
        first = interrupting(patch, 12)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings)
    assert first[-1].startswith("encoding")
    before = {path for path in (Path(settings.output) / STAGE).rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        if not change:
            patch.setattr(passes.Passes, "begin", lambda passes, key: _raise(KeyboardInterrupt()))
        with pytest.raises((KeyboardInterrupt, DataError)):
            prepare(replace(settings, **change))
    assert before <= set((Path(settings.output) / STAGE).rglob("*"))
    second = interrupting(monkeypatch, 100)
    prepare(settings)
    assert second and not set(first) & set(second)


def test_work_on_a_new_preparation_stays_if_the_command_of_the_old_one_is_repeated(
        settings: PrepareSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(settings)
    changed, output = replace(settings, seed=2, overwrite=True), io.StringIO()
    with monkeypatch.context() as patch:
        first = interrupting(patch, 12)
        with pytest.raises(KeyboardInterrupt):
            prepare(changed)
    prepare(settings, output)
    assert "was already prepared" in output.getvalue()
    assert f"the work of an earlier command is kept in {Path(settings.output) / STAGE}" in output.getvalue()
    second = interrupting(monkeypatch, 100)
    prepare(changed)
    assert second and not set(first) & set(second)


def fail_at_reads(monkeypatch: pytest.MonkeyPatch, errors: Mapping[int, BaseException]) -> list[int]:
    """Let reads of a source fail, counted from 1, and return the list to which each read adds its number of pairs."""
    from towernmt.dataflow.sources.mixture import MixtureReader

    real, calls = MixtureReader.take, list[int]()

    def take(reader: MixtureReader, pairs: int) -> Any:
        calls.append(pairs)
        if len(calls) in errors:
            raise errors[len(calls)]
        return real(reader, pairs)

    monkeypatch.setattr(MixtureReader, "take", take)
    return calls


def test_pairs_of_an_earlier_command_stay_if_the_next_one_reads_no_more(settings: PrepareSettings, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    from towernmt.dataflow.preparation import input_texts

    monkeypatch.setattr(input_texts, "_RECORD_PAIRS", 4096)
    stream = replace(settings, source=str(tmp_path / "train.{de,en}"), target="")
    fail_at_reads(monkeypatch, {2: KeyboardInterrupt(), 3: DataError("the database is not reachable for 120 s.")})
    for error in (KeyboardInterrupt, DataError):
        with pytest.raises(error):
            prepare(stream)
        assert (Path(settings.output) / STAGE / "corpus.source").read_bytes().count(b"\n") == 4096


def test_a_source_is_read_on_from_where_it_was_interrupted(settings: PrepareSettings, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    from towernmt.dataflow.preparation import input_texts

    monkeypatch.setattr(input_texts, "_RECORD_PAIRS", 4096)
    stream = replace(settings, source=str(tmp_path / "train.{de,en}"), target="")
    prepare(replace(stream, output=settings.output + "-whole"))
    calls = fail_at_reads(monkeypatch, {3: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        prepare(stream)
    assert (Path(settings.output) / STAGE / "corpus.source").read_bytes().count(b"\n") == 8192
    prepare(stream)
    assert len(calls) == 5      # the rest, and the end
    assert sums(settings.output) == sums(settings.output + "-whole")


def test_pairs_that_were_read_stay_when_the_source_fails(settings: PrepareSettings, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    from towernmt.dataflow.preparation import input_texts

    monkeypatch.setattr(input_texts, "_RECORD_PAIRS", 4096)
    stream = replace(settings, source=str(tmp_path / "train.{de,en}"), target="")
    pairs_read = fail_at_reads(monkeypatch, {2: DataError("the database is not reachable for 120 s.")})
    with pytest.raises(DataError, match="not reachable"):
        prepare(stream)
    assert (Path(settings.output) / STAGE / "corpus.source").read_bytes().count(b"\n") == 4096
    assert prepare(stream).statistics["lines"] == 9000
    assert len(pairs_read) == 2 + 3 and not (Path(settings.output) / STAGE).exists()


@pytest.mark.parametrize("change", ["tag: <old>", "on_end: drop", "mix: concatenate", "seed"])
def test_a_mixture_that_changed_since_the_interruption_is_read_again(change: str, tmp_path: Path) -> None:
    for name, count in (("a", 9), ("b", 40)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name}{n}\tB{n}\n" for n in range(count)))

    def text(directory: str, changed: bool) -> tuple[bytes, ...]:
        """Write the text of the mixture into a directory, which may contain the text of another one."""
        lines = {"tag: <old>": "tag: <new>", "on_end: drop": "on_end: restart", "mix: concatenate": "mix: by weight"}
        option = (lines.get(change, "") if changed else change).replace("seed", "")
        entry, mix = ("", option) if option.startswith("mix") else (f", {option}" if option else "", "")
        (tmp_path / "corpora.yaml").write_text(f"sources:\n  - {{uri: '{tmp_path}/a.tsv'{entry}}}\n"
                                               f"  - {{uri: '{tmp_path}/b.tsv'}}\n{mix}\n")
        (tmp_path / directory).mkdir(exist_ok=True)
        settings = PrepareSettings(str(tmp_path / "corpora.yaml"), seed=2 if changed else 1)
        text_settings, mixture = open_sources(settings, None)
        assert mixture is not None
        write_text_files(text_settings, mixture, tmp_path / directory, None, lambda: None)
        return tuple((tmp_path / directory / f"corpus.{side}").read_bytes() for side in ("source", "target"))

    old, new = text("kept", changed=False), text("fresh", changed=True)
    assert text("kept", changed=True) == new != old


def test_a_copy_that_another_mixture_has_begun_to_replace_is_not_resumed(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    from towernmt.dataflow.preparation import input_texts

    monkeypatch.setattr(input_texts, "_READ_PAIRS", 8)
    for name, words in (("short", 1), ("long", 9)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{n}{' a' * words}\t{n}{' b' * words}\n" for n in range(40)))

    def copy(name: str) -> tuple[bytes, ...]:
        settings, mixture = open_sources(PrepareSettings(str(tmp_path / f"{name}.tsv")), None)
        assert mixture is not None
        write_text_files(settings, mixture, tmp_path, None, lambda: None)
        return tuple((tmp_path / f"corpus.{side}").read_bytes() for side in ("source", "target"))

    old = copy("short")
    fail_at_reads(monkeypatch, {4: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        copy("long")
    assert (tmp_path / "corpus.source").stat().st_size > len(old[0])
    assert copy("short") == old


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_worker_that_is_killed_repeatedly_is_reported_with_its_task(settings: PrepareSettings,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runners, "_POOL_BYTES", 0)
    monkeypatch.setattr(task_runners, "_start_method", lambda: "fork")
    monkeypatch.setattr(EncodePart, "run", lambda task: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(UnfinishedError, match=r"3 workers were lost while they were encoding lines .*train.de "
                                              r"\(the last: SIGKILL, which the system sends when memory is short\)\. "
                                              "If memory is short, use fewer --workers"):
        prepare(replace(settings, workers=2))
    assert (Path(settings.output) / STAGE).exists()
    monkeypatch.setattr(EncodePart, "run", lambda task: _raise(MemoryError()))
    with pytest.raises(UnfinishedError, match="not enough memory for encoding lines"):
        prepare(replace(settings, workers=2))


def _raise(error: BaseException) -> None:
    raise error


def test_a_machine_that_does_not_see_the_directory_is_named(tmp_path: Path) -> None:
    task = WriteNothing(tmp_path / "output", 0)
    (tmp_path / "mark").write_text("another")
    for mark in (tmp_path / "mark", tmp_path / "elsewhere" / "mark"):
        with pytest.raises(UnfinishedError, match=f"does not see {mark.parent}: .* need --output"):
            task_runners.make_remote_worker(mark, "token", 0)
    (tmp_path / "mark").write_text("token")
    task_runners.make_remote_worker(tmp_path / "mark", "token", 0)(task)
    assert task.output.exists()


class WriteNothing(Task):
    """Writes an empty file."""

    title = "writing nothing"

    def run(self) -> None:
        self.output.touch()


def children(process: int) -> Iterator[int]:
    """Return the processes that a process or its children have started (Linux)."""
    with suppress(FileNotFoundError):   # it has just ended
        for child in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()):
            yield child
            yield from children(child)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, str]]:
    """Return the command that prepares a large corpus, up to `--output`, and the checksums of an undisturbed result."""
    directory = tmp_path_factory.mktemp("large")
    write_corpus(directory, 66_000, words=9)
    command = [sys.executable, "-c", PREPARE, "--source", str(directory / "train.de"), "--target",
               str(directory / "train.en"), "--vocab-kind", "word", "--shard-pairs", "20000", "--duplicates", "exact",
               "--output"]
    subprocess.run([*command, str(directory / "whole"), "--workers", "1"], capture_output=True, check=True)
    return command, sums(directory / "whole")


@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_killed_workers_and_a_killed_main_process_change_no_byte(large: tuple[list[str], dict[str, str]],
                                                                 tmp_path: Path) -> None:
    command, expected = large
    work = tmp_path / "out" / STAGE / "work"

    def start(workers: int) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, str(tmp_path / "out"), "--workers", str(workers)],
                                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def encoded() -> set[Path]:
        return set(work.glob("part-*.encoded.npz"))

    for workers in (2, 3):
        process, before = start(workers), len(encoded())
        wait_until(lambda before=before: len(encoded()) >= before + 4, process)
        if workers == 2:
            for worker in children(process.pid):
                os.kill(worker, signal.SIGKILL)
            wait_until(lambda before=before: len(encoded()) >= before + 9, process)
        process.kill()
        process.wait()
        assert process.stderr is not None
        assert ("is started again" in process.stderr.read()) == (workers == 2)
    modified_times = {path: path.stat().st_mtime_ns for path in encoded()}
    assert len(modified_times) >= 13
    process = start(2)
    _, output = process.communicate()
    assert process.returncode == 0 and "resuming an interrupted preparation" in output
    assert sums(tmp_path / "out") == expected


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_killed_task_of_ray_is_done_again_and_changes_no_byte(large: tuple[list[str], dict[str, str]],
                                                                tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command, expected = large
    process = subprocess.Popen([*command, str(tmp_path / "out"), "--ray", "local", "--workers", "2"],
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_until(lambda: any((tmp_path / "out" / STAGE / "work").glob("part-*.encoded.npz")), process)
    killed = []
    for child in children(process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):       # other processes of Ray come and go
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"ray::WorkerActor"):
                os.kill(child, signal.SIGKILL)
                killed.append(child)
    _, output = process.communicate()
    assert killed and process.returncode == 0 and "Ray: 1 machine, 2 processors" in output
    assert sums(tmp_path / "out") == expected
