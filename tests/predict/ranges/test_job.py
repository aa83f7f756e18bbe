"""Jobs: after losses, kills and concurrent work, each line is in the output once, at its position."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE
from towernmt.core.directories import LOCK_FILE, DirectoryLock
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.farm.farm import Event, Failed, Lost, Result
from towernmt.predict.ranges import work_directory
from towernmt.predict.ranges.job import RangeJob, RangeResult, RangeTask, translation_farm
from towernmt.predict.ranges.plan import LineRange, RangeReader, make_plan, open_texts
from towernmt.predict.ranges.work_directory import RangeOutput, WorkDirectory
from towernmt.predict.ranges.work_files import Done

TASK = {"model": "a"}


def seeds(quick: int, all_of_them: int) -> list[Any]:
    return [pytest.param(seed, marks=[] if seed < quick else [
        pytest.mark.thorough if seed < all_of_them // 2 else pytest.mark.slow]) for seed in range(all_of_them)]


class Setting:
    """Three texts with an output each or a common one, and a command that translates them repeatedly."""

    def __init__(self, texts: list[Path], place: Path, together: bool = False) -> None:
        self.paths, self.together, self.stream = texts, together, io.StringIO()
        self.outputs = [place / "all.en"] if together else [place / f"{path.stem}.en" for path in texts]
        self.directory = place / "work"

    def command(self, workers: Any, task: dict[str, Any] = TASK) -> RangeJob:
        """Run the job like the command line."""
        directory, texts = WorkDirectory(self.directory), open_texts(list(map(str, self.paths)))
        plan = make_plan(texts, [], [0, 0, 0] if self.together else [0, 1, 2], 500)
        farm = translation_farm(workers, directory.path)
        farm.wait_for_first()
        directory.begin(task, plan)
        job = RangeJob(directory, plan, RangeReader(plan, texts, []), [text.name for text in texts],
                       [[str(path)] for path in self.outputs], farm, self.stream)
        job.run(TASK)
        return job

    def check(self) -> None:
        """Check that each line is in the output once, at its position, and that no other file is left."""
        expected = [b"".join(b" ".join(reversed(line.split())) + b"\n" for line in path.read_bytes().splitlines())
                    for path in self.paths]
        expected = [b"".join(expected)] if self.together else expected
        assert [path.read_bytes() for path in self.outputs] == expected
        assert not self.directory.exists(), sorted(self.directory.rglob("*"))
        assert {path.name for path in self.directory.parent.iterdir()} == {
            path.name for path in (*self.paths, *self.outputs)}


@pytest.fixture(params=[False, True], ids=["a file each", "one file"])
def setting(request: pytest.FixtureRequest, texts: list[Path], tmp_path: Path,
            monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr("towernmt.predict.ranges.job._POLL", 0.0)
    monkeypatch.setattr(work_directory, "_WAIT", 0.001)
    return Setting(texts, tmp_path, request.param)


@pytest.mark.parametrize("seed", seeds(4, 40))
def test_any_order_of_losses_and_stops_gives_each_line_once_in_its_place(
        setting: Setting, fake_workers: Any, seed: int) -> None:
    draws = random.Random(seed)
    stops = 0
    while True:
        workers = fake_workers(draws.randint(1, 4), draws.randrange(1000), losses=0.1,
                               stop_at=draws.randint(0, 12) if stops < 5 else None)
        try:
            setting.command(workers)
        except KeyboardInterrupt:
            stops += 1
            continue
        except DataError as error:      # three workers were lost with one range
            assert "workers were lost with it" in str(error)
            continue
        break
    assert workers.stopped
    setting.check()


@pytest.mark.parametrize("seed", seeds(2, 30))
def test_commands_in_one_directory_share_the_ranges(setting: Setting, fake_workers: Any, seed: int) -> None:
    draws = random.Random(seed)
    commands = [fake_workers(draws.randint(1, 3), draws.randrange(1000), losses=0.02,
                             stop_at=draws.randint(5, 15) if number == 0 else None) for number in range(4)]
    ended: list[BaseException | None] = []

    def run(workers: Any) -> None:
        try:
            setting.command(workers)
            ended.append(None)
        except (KeyboardInterrupt, DataError) as error:
            ended.append(error)

    threads = [threading.Thread(target=run, args=(workers,)) for workers in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == 4
    if (setting.directory / "plan.json").exists():      # all were stopped, or the last after a restart
        setting.command(fake_workers(1))
    setting.check()


@pytest.mark.parametrize("event", [None, Failed(DataError("a.de line 3: it is broken."))], ids=["done", "failed"])
def test_without_locks_a_range_that_another_command_was_faster_with_only_wastes_time(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch, event: Event | None) -> None:
    def without_locks(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(f"{DirectoryLock.__module__}.lock_descriptor", without_locks)
    monkeypatch.setattr("towernmt.predict.ranges.job._SLOW_POLL", 0.0)
    other = fake_workers(1, stop_at=2)      # stops after its first result
    slow = fake_workers(1)
    slow._answer = lambda work: event if event and len(slow.asked) == 1 else Result(slow.translate(work))
    wait = slow.wait

    def wait_for_other(seconds: float) -> list[tuple[int, Event]]:
        if len(slow.asked) == 1 and not other.asked:
            with pytest.raises(KeyboardInterrupt):
                setting.command(other)
            return []
        return wait(seconds)

    slow.wait = wait_for_other
    setting.command(slow)
    assert other.asked[0].line_range == slow.asked[0].line_range
    setting.check()


def test_a_part_that_is_claimed_while_another_command_removes_all_is_not_done(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = WorkDirectory.done

    def done(directory: WorkDirectory, line_range: LineRange) -> Done | None:
        if (directory._folder(line_range) / LOCK_FILE).exists():       # called by a claim
            for output in setting.outputs:
                output.touch()
            shutil.rmtree(directory.path.rename(directory.path.with_name("removed")))
        return real(directory, line_range)

    monkeypatch.setattr(WorkDirectory, "done", done)
    workers = fake_workers(2)
    setting.command(workers)
    assert workers.asked == [] and not setting.directory.exists()


def test_a_part_is_whole_or_not_there_whenever_writing_ends(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = Path.replace, 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count % 3 == 0:
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    for _ in range(200):
        try:
            setting.command(fake_workers(2))
            break
        except KeyboardInterrupt:
            continue
    setting.check()


def test_what_is_done_is_not_done_again(setting: Setting, fake_workers: Any) -> None:
    first = fake_workers(1, stop_at=6)
    with pytest.raises(KeyboardInterrupt):
        setting.command(first)
    second = fake_workers(2)
    setting.command(second)
    done = [work.line_range.number for work in (*first.asked, *second.asked)]
    assert len(done) == len(set(done)) + 1      # the one that was being translated
    assert "going" not in setting.stream.getvalue() and "5,231 of 5,231 lines" in setting.stream.getvalue()
    setting.check()


def test_after_a_fault_the_other_parts_are_done_and_kept_and_a_mended_text_costs_its_own_part_alone(
        setting: Setting, fake_workers: Any) -> None:
    def answer(work: RangeTask) -> Event:
        for number, line in enumerate(work.lines.lines, start=work.line_range.first_line):
            if b"broken" in line:
                return Failed(DataError(f"{work.name} line {number}: it is broken."))
        result: RangeResult = fake_workers.translate(work)
        return Result(result)

    whole = setting.paths[0].read_bytes()
    setting.paths[0].write_bytes(whole.replace(b"\n2222 ", b"\nbroken "))
    first = fake_workers(2, answer=answer)
    with pytest.raises(DataError, match=r"1 of 12 ranges could not be translated: .*a.de line 2223: it is broken\. "):
        setting.command(first)
    assert len(first.asked) == 12
    setting.paths[0].write_bytes(whole)
    second = fake_workers(2, answer=answer)
    setting.command(second)
    assert [work.line_range.first_line for work in second.asked] == [2001]
    setting.check()


def test_another_task_is_refused_and_nothing_is_touched(setting: Setting, fake_workers: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        setting.command(fake_workers(1, stop_at=5))
    with pytest.raises(DataError, match='was begun with model: "a", and not with "b": use the same value, or'):
        setting.command(fake_workers(1), {"model": "b"})
    setting.command(fake_workers(1))
    setting.check()


def test_too_many_losses_end_it_with_a_sentence(setting: Setting, fake_workers: Any) -> None:
    with pytest.raises(TowerNMTError, match=r"6 workers were lost in a row, the last one with .* \(killed\)"):
        setting.command(fake_workers(2, losses=1.0))
    lost_with_one = fake_workers(2)
    lost_with_one._answer = lambda work: (Result(fake_workers(1).translate(work)) if work.line_range.first_line != 1001
                                          else Lost("SIGKILL"))
    with pytest.raises(DataError, match=r"a.de lines 1001 to 1500: 5 workers were lost with it"):
        setting.command(lost_with_one)
    setting.command(fake_workers(2))
    setting.check()


def test_an_error_that_is_no_lines_fault_ends_it_at_once(setting: Setting, fake_workers: Any) -> None:
    workers = fake_workers(2, answer=lambda work: Failed(SettingsError("a setting")))
    with pytest.raises(SettingsError, match="a setting"):
        setting.command(workers)
    assert workers.stopped and len(workers.asked) <= 2


def test_a_removed_work_directory_does_not_pass_for_a_finished_translation(setting: Setting, fake_workers: Any) -> None:
    def answer(work: RangeTask) -> Event:
        shutil.rmtree(setting.directory, ignore_errors=True)
        return Result(fake_workers.translate(work))

    with pytest.raises(DataError, match=r"\.en was not written, because .*work was removed during the translation"):
        setting.command(fake_workers(1, answer=answer))
    setting.command(fake_workers(1))
    setting.check()


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def write_all_and_stop(setting: Setting, workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a command after it has written all outputs, and before it removes its files."""
    with monkeypatch.context() as patch:
        patch.setattr(WorkDirectory, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            setting.command(workers)
    assert all(path.exists() for path in setting.outputs)


@pytest.mark.parametrize("index", [0, 1, -1])
def test_an_output_that_is_removed_between_two_starts_is_written_again_and_no_other_output(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    write_all_and_stop(setting, fake_workers(1), monkeypatch)
    index = 0 if setting.together else index
    setting.outputs[index].unlink()
    second = fake_workers(2)
    setting.command(second)
    names = {str(path) for path in setting.paths if path.stat().st_size}
    assert {work.name for work in second.asked} == (names if setting.together else names & {str(setting.paths[index])})
    setting.check()


def test_an_output_with_a_new_name_is_written_under_this_name(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all_and_stop(setting, fake_workers(1), monkeypatch)
    if not setting.together:
        setting.paths[1] = setting.paths[1].rename(setting.paths[1].with_name("renamed.de"))
    old, setting.outputs[-2:] = setting.outputs[-2:], [path.with_name(f"new-{path.name}")
                                                       for path in setting.outputs[-2:]]
    setting.command(fake_workers(2))
    for path in old:
        path.unlink()
    setting.check()


def test_an_output_that_its_reader_moves_during_the_translation_is_not_written_again(
        setting: Setting, fake_workers: Any) -> None:
    first, moved = setting.outputs[0], setting.outputs[0].with_name("moved")

    def answer(work: RangeTask) -> Event:
        if first.exists():
            first.rename(moved)
        return Result(fake_workers.translate(work))

    setting.command(fake_workers(1, answer=answer))
    assert moved.exists() != setting.together
    if moved.exists():
        assert not first.exists()
        moved.rename(first)
    setting.check()


def test_a_folder_that_another_process_removes_at_the_end_does_no_harm(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def removed_before(path: Path) -> Any:
        if path.name in ("ranges", "joined") and not any(listed(path)):
            path.rmdir()
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", removed_before)
    setting.command(fake_workers(2))
    setting.check()


def tree(place: Path) -> dict[str, bytes | None]:
    """Return all files below a directory."""
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


@pytest.mark.parametrize("name", ["thesis.txt", "ranges/thesis.txt", "joined/0.json", "ranges/000001/0", "done.json",
                                  "settings.yaml", ".hidden", "folder/", "ranges"])
@pytest.mark.parametrize("way", ["path", "link", "."])
def test_a_directory_with_other_files_is_refused_and_left_alone(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch, name: str, way: str) -> None:
    own = setting.directory.with_name("own")
    (own / name).parent.mkdir(parents=True)
    (own / name).mkdir() if name.endswith("/") else (own / name).write_text("mine")
    if way == "link":
        setting.directory.symlink_to(own)
    elif way == ".":
        monkeypatch.chdir(own)
    setting.directory = {"path": own, "link": setting.directory, ".": Path(".")}[way]
    before = tree(own)
    with pytest.raises(DataError, match=r"holds other files \(.*\): pass a new or an empty directory as --work-dir"):
        setting.command(fake_workers(2))
    assert tree(own) == before and not any(path.exists() for path in setting.outputs)


@pytest.mark.parametrize("kind", ["file", "link to nothing", "link to a file"])
def test_what_is_no_directory_is_refused(setting: Setting, fake_workers: Any, kind: str) -> None:
    other = setting.directory.with_name("other")
    if kind != "link to nothing":
        other.write_text("mine")
    setting.directory = other if kind == "file" else setting.directory
    if kind != "file":
        setting.directory.symlink_to(other)
    with pytest.raises(DataError, match="is not a directory: pass a different one as --work-directory"):
        setting.command(fake_workers(2))


@pytest.mark.parametrize("way", ["path", "link", "."])
def test_an_empty_directory_of_the_user_stays(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    own = setting.directory.with_name("own")
    own.mkdir()
    if way == "link":
        setting.directory.symlink_to(own)
    elif way == ".":
        monkeypatch.chdir(own)
    setting.directory = {"path": own, "link": setting.directory, ".": Path(".")}[way]
    with pytest.raises(KeyboardInterrupt):
        setting.command(fake_workers(1, stop_at=6))
    setting.command(fake_workers(2))
    assert tree(own) == {}
    if way == "link":
        setting.directory.unlink()
    own.rmdir()
    setting.directory = own
    setting.check()


def test_files_that_come_meanwhile_stay(setting: Setting, fake_workers: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        setting.command(fake_workers(1, stop_at=6))
    for name in ("thesis.txt", "ranges/thesis.txt", "ranges/000000/thesis.txt", "joined/thesis.txt", "own/0.json"):
        (setting.directory / name).parent.mkdir(exist_ok=True)
        (setting.directory / name).write_text("mine")
    setting.command(fake_workers(2))
    files = {name for name, content in tree(setting.directory).items() if content is not None}
    assert files == {"thesis.txt", "ranges/thesis.txt", "ranges/000000/thesis.txt", "joined/thesis.txt", "own/0.json"}
    shutil.rmtree(setting.directory)
    setting.check()


@pytest.mark.parametrize("operations", range(3, 243, 16))
def test_a_kill_while_files_are_removed_loses_nothing(
        setting: Setting, fake_workers: Any, killed_after: Any, operations: int) -> None:
    functions = [(Path, "unlink"), (Path, "rmdir"), (Path, "mkdir"), (Path, "replace")]
    with killed_after(operations, functions):
        setting.command(fake_workers(2))
    setting.command(fake_workers(2))
    setting.check()


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_in_a_finished_part_never_reaches_the_output(
        setting: Setting, fake_workers: Any, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    draws = random.Random(seed)
    with pytest.raises(KeyboardInterrupt):
        setting.command(fake_workers(1, stop_at=9))
    files = [path for path in (setting.directory / "ranges").rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) > 4
    file = draws.choice(sorted(files))
    flip(file, draws)
    setting.command(fake_workers(2))
    assert f"{file.parent} is damaged" in caplog.text
    setting.check()


def flip(file: Path, draws: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    file.write_bytes(content)


def test_a_part_that_is_damaged_while_the_others_are_done_is_translated_again_by_the_same_command(
        setting: Setting, fake_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = WorkDirectory.join

    def join(directory: WorkDirectory, output: RangeOutput, write: Any) -> bool:
        if output.ranges and not output.number:
            flip(directory._folder(output.ranges[0]) / "0", random.Random(1))
        return real(directory, output, write)

    with monkeypatch.context() as patch:
        patch.setattr(WorkDirectory, "join", join)
        with pytest.raises(DataError, match="0 is damaged: .* Start the same command again"):
            setting.command(fake_workers(1))
    assert not setting.outputs[0].exists()
    second = fake_workers(1)
    setting.command(second)
    assert 1 <= len(second.asked) <= 2      # and that of the other output, if it was later
    setting.check()


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_in_the_plan_is_one_sentence(setting: Setting, fake_workers: Any, seed: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        setting.command(fake_workers(1, stop_at=6))
    plan = setting.directory / "plan.json"
    whole = plan.read_bytes()
    flip(plan, random.Random(seed))
    with pytest.raises(DataError, match="plan.json is not the plan of a translation, or it is damaged"):
        setting.command(fake_workers(1))
    plan.write_bytes(whole)
    setting.command(fake_workers(1))
    setting.check()
