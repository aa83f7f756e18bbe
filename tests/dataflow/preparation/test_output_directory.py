"""A preparation destroys neither old data nor inputs nor files of other programs in its directory."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.directory_contents import contents
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.dataflow.preparation import output_directory
from towernmt.dataflow.preparation.output_directory import STAGE, OutputDirectory
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.vocabulary_learning import VocabularyMaker

PREPARE = "import sys; from towernmt.cli.main import main; sys.exit(main(['prepare', *sys.argv[1:]]))"


@pytest.fixture
def settings(tmp_path: Path) -> PrepareSettings:
    """Return the settings for 200 pairs, in shards of 40, with a vocabulary of words."""
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").write_text("".join(f"{side}{n % 50} wort {side}{n % 7}\n" for n in range(200)))
        (tmp_path / f"valid.{side}").write_text(f"{side}1  {side}2\n{side}3\n")
    return PrepareSettings(str(tmp_path / "train.de"), str(tmp_path / "train.en"), str(tmp_path / "out"),
                           valid_source=str(tmp_path / "valid.de"), valid_target=str(tmp_path / "valid.en"),
                           vocab_kind="word", shard_pairs=40, workers=1)


def read_whole(directory: str | Path) -> tuple[int, str]:
    """Open prepared data, verify every shard, and return the pairs and the fingerprint."""
    data = PreparedData(directory)
    assert sum(len(data.read_block(index)) for index in range(data.num_blocks)) == data.pairs
    return data.pairs, data.fingerprint


@pytest.mark.parametrize("change", [{"vocab_kind": "unigram", "vocab_size": 5}, {"max_length": 1},
                                    {"valid_target": "train.en"}, {"source_vocab": "train.de"}])
def test_overwriting_that_fails_leaves_the_former_preparation(settings: PrepareSettings, change: dict[str, Any],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(settings.output).parent)
    prepare(settings)
    before = contents(settings.output)
    with pytest.raises(DataError):
        prepare(replace(settings, overwrite=True, **change))
    assert contents(settings.output) == before


def test_inputs_inside_the_output_are_read_before_they_are_replaced(settings: PrepareSettings) -> None:
    out = Path(settings.output)
    valid = prepare(settings).valid_target
    again = replace(settings, overwrite=True, valid_source=str(out / "valid.source"),
                    valid_target=str(out / "valid.target"), source_vocab=str(out / "vocabulary/source.words"),
                    max_length_ratio=7.0)
    data = prepare(again)
    assert data.valid_target == valid and data.manifest["settings"]["max_length_ratio"] == 7.0
    assert read_whole(out)[0] == 200


FOREIGN = ("statistics.txt.bak", "valid.source.orig", "vocabulary/source.txt", "manifest.json.v2", "shard-1.pairs",
           "shard-00000.pairs.gz", "vocabulary/source_factor_1.words.bak", "train.de")


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_other_people_stay(settings: PrepareSettings, overwrite: bool) -> None:
    out = Path(settings.output)
    (out / "vocabulary").mkdir(parents=True)
    for name in FOREIGN:
        (out / name).write_text(f"mine: {name}")
    prepare(replace(settings, overwrite=overwrite))
    prepare(replace(settings, overwrite=True, seed=2))
    assert read_whole(out)[0] == 200
    assert {name: (out / name).read_text() for name in FOREIGN} == {name: f"mine: {name}" for name in FOREIGN}


@pytest.mark.parametrize("name", ["valid.source", "statistics.txt", "vocabulary/source.model",
                                  "vocabulary/target.codes"])
def test_a_file_with_a_name_of_ours_that_may_be_somebodys_own_is_not_replaced(settings: PrepareSettings, name: str
                                                                              ) -> None:
    path = Path(settings.output) / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(DataError, match=rf"contains {name}, but no preparation.*--overwrite"):
        prepare(settings)
    assert contents(settings.output) == {name: b"mine"}


@pytest.mark.parametrize("make", [
    lambda out: (out / "shard-00000.pairs").mkdir(parents=True), lambda out: (out / "valid.source").mkdir(parents=True),
    lambda out: (out.mkdir(), (out / "vocabulary").write_text("mine")),
    lambda out: (out.mkdir(), (out / "vocabulary").symlink_to("/")),
    lambda out: (out.mkdir(), (out / STAGE).symlink_to("/"))])
def test_an_obstacle_in_the_output_directory_is_named_before_any_work(settings: PrepareSettings, make: Any) -> None:
    out = Path(settings.output)
    make(out)
    before, stream = sorted(out.iterdir()), io.StringIO()
    with pytest.raises(DataError, match="is in the way of the preparation"):
        prepare(replace(settings, overwrite=True), stream)
    assert (sorted(out.iterdir()), stream.getvalue()) == (before, "")


def test_links_in_the_place_of_files_go_and_what_they_lead_to_stays(settings: PrepareSettings, tmp_path: Path) -> None:
    prepare(settings)
    shard = Path(settings.output) / "shard-00001.pairs"
    elsewhere = shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    read_whole(settings.output)
    assert prepare(replace(settings, overwrite=True, seed=2)).pairs == 200
    assert not shard.is_symlink() and elsewhere.read_bytes() == before


def test_a_run_is_not_prepared_into(settings: PrepareSettings) -> None:
    out = Path(settings.output)
    (out / "vocabulary").mkdir(parents=True)
    for name in ("settings.yaml", "vocabulary/source.words"):
        (out / name).write_text("of a run")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="is the directory of a run"):
            prepare(replace(settings, overwrite=overwrite))
    assert set(contents(out)) == {"settings.yaml", "vocabulary/source.words"}


def test_two_writers_of_one_preparation_exclude_each_other(settings: PrepareSettings) -> None:
    with DirectoryLock(settings.output, "towernmt prepare"):
        with pytest.raises(DirectoryInUseError, match=rf"process {os.getpid()} .*\(towernmt prepare\)"):
            prepare(settings)
    assert prepare(settings).pairs == 200


def test_abandon_before_the_start_removes_nothing(settings: PrepareSettings) -> None:
    with OutputDirectory(settings.output, False) as output:
        (output.stage / "shard-00000.pairs.p0").write_bytes(b"of another process")
        OutputDirectory(settings.output, False).abandon()
        assert (output.stage / "shard-00000.pairs.p0").exists()


def test_a_signal_during_the_first_checks_leaves_the_work_of_an_earlier_command(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "out" / STAGE / "work"
    work.mkdir(parents=True)
    output = OutputDirectory(tmp_path / "out", overwrite=False)

    def end(directory: OutputDirectory) -> None:
        output.abandon()
        raise KeyboardInterrupt     # in place of the end of the process

    monkeypatch.setattr(OutputDirectory, "_check", end)
    with pytest.raises(KeyboardInterrupt):
        output.__enter__()
    assert work.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("moment", range(0, 20, 2))
def test_killed_at_any_moment_of_the_exchange_the_new_data_are_read(
        settings: PrepareSettings, moment: int) -> None:
    """A process is killed before its n-th rename in the directory, after the new data are complete."""
    old = prepare(settings).fingerprint
    new = replace(settings, seed=2, shard_pairs=50, valid_source=None, valid_target=None)
    expected = prepare(replace(new, output=settings.output + "-new")).fingerprint
    child = os.fork()
    if child == 0:
        try:
            _die_in_exchange(moment)
            prepare(replace(new, overwrite=True))
        finally:
            os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert killed or moment > 12
    assert read_whole(settings.output) == (200, expected) != (200, old)
    assert prepare(new).fingerprint == expected
    assert contents(settings.output) == contents(settings.output + "-new")


def _die_in_exchange(moment: int) -> None:
    def dying(change: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal moment
            if moment == 0:
                os._exit(9)
            moment -= 1
            return change(*arguments, **options)
        return call

    exchange = output_directory.exchange

    def patched(directory: Path) -> None:
        os.replace, os.unlink = dying(os.replace), dying(os.unlink)     # type: ignore[assignment]
        Path.unlink = dying(Path.unlink)                                # type: ignore[method-assign]
        exchange(directory)

    output_directory.exchange = patched


def test_files_of_a_killed_preparation_are_removed_by_the_next(settings: PrepareSettings) -> None:
    before = prepare(settings).fingerprint
    stage = Path(settings.output) / STAGE
    stage.mkdir()
    (stage / "shard-00000.pairs.p0").write_bytes(b"half")
    (stage / "corpus.source").write_text("text")
    assert read_whole(settings.output) == (200, before)
    prepare(replace(settings, overwrite=True, seed=2))
    assert not stage.exists() and read_whole(settings.output)[1] != before


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_the_workers_too_and_leaves_no_text(settings: PrepareSettings, number: signal.Signals) -> None:
    """Two workers have work for ten minutes, and the text of the source is in a temporary file."""
    program = (
        "import os, sys, time\n"
        "from towernmt.dataflow.preparation import task_runners\n"
        "from towernmt.dataflow.preparation import vocabulary_learning\n"
        "task_runners._POOL_BYTES = 0\n"
        "def hang(task):\n    os.write(1, b'worker\\n')\n    time.sleep(600)\n"
        "vocabulary_learning.LearnVocabulary.run = hang\n" + PREPARE)
    folder = Path(settings.output).parent
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--source", str(folder / "train.{de,en}"), "--output", settings.output,
         "--vocab-kind", "word", "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"TMPDIR": str(folder)})
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().startswith("worker")
    assert (Path(settings.output) / STAGE / "corpus.source").exists()
    process.send_signal(number)
    assert process.stdout.read() == ""     # which ends when the last of the three processes has ended
    assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
    assert Path(settings.output).exists() == (number == signal.SIGKILL)
    assert prepare(settings).pairs == 200
    assert not [path for path in folder.rglob("*") if path.name.startswith("corpus.") or path.name == STAGE]


def test_a_full_disk_is_reported_with_the_file(settings: PrepareSettings, tmp_path: Path) -> None:
    program = ("import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
               "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n" + PREPARE)
    for arguments in (["--source", settings.source, "--target", settings.target],
                      ["--source", str(tmp_path / "train.{de,en}")]):
        done = subprocess.run([sys.executable, "-c", program, *arguments, "--output", settings.output],
                              capture_output=True, text=True)
        assert done.returncode == 1
        assert f"towernmt: {settings.output}/{STAGE}/" in done.stderr and "File too large" in done.stderr
        assert "Traceback" not in done.stderr and not Path(settings.output).exists()


@pytest.mark.processes
@pytest.mark.parametrize("closed", ["2>&-", "2>&- >&-", "0<&- 2>&- >&-"])
def test_closed_standard_streams_do_not_matter(settings: PrepareSettings, closed: str) -> None:
    command = (f'exec "{sys.executable}" -m towernmt.cli.main prepare --source "{settings.source}" '
               f'--target "{settings.target}" --output "{settings.output}" --vocab-kind word {closed}')
    assert subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE).returncode == 0
    assert read_whole(settings.output)[0] == 200


def test_text_from_a_pipe_is_refused_at_once(settings: PrepareSettings) -> None:
    pipe = Path(settings.output).parent / "pipe"
    os.mkfifo(pipe)
    for name in ("source", "target", "valid_source", "valid_target", "alignments"):
        with pytest.raises(DataError, match="pipe: a pipe or a device can be read only once"):
            prepare(replace(settings, **{name: str(pipe)}))
    assert not Path(settings.output).exists()


@pytest.mark.parametrize("name", ["source", "valid_source"])
def test_text_that_grows_while_it_is_read_is_refused(settings: PrepareSettings, name: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare(settings).fingerprint
    path = Path(getattr(settings, name))
    make = VocabularyMaker.make

    def grow(*arguments: Any) -> Any:
        for grown in (path, Path(settings.target) if name == "source" else path):
            grown.write_text(grown.read_text() + "more\n")
        return make(*arguments)

    monkeypatch.setattr(VocabularyMaker, "make", grow)
    with pytest.raises(DataError, match=r"had \d+ lines at first, and \d+ when|has changed since it was checked"):
        prepare(replace(settings, overwrite=True))
    assert read_whole(settings.output) == (200, before)


def test_text_whose_time_of_modification_alone_changes_is_accepted(settings: PrepareSettings,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    make = VocabularyMaker.make

    def touch(*arguments: Any) -> Any:
        os.utime(settings.source, ns=(1, 1))
        return make(*arguments)

    monkeypatch.setattr(VocabularyMaker, "make", touch)
    assert prepare(settings).pairs == 200


def test_the_manifest_has_the_checksum_of_every_file(settings: PrepareSettings) -> None:
    data = prepare(settings)
    files = {entry["file"]: entry for entry in data.manifest["files"]}
    content_of_files = contents(settings.output)
    assert set(files) == {name for name in content_of_files
                          if name.startswith(("vocabulary", "valid", "statistics", "lengths"))}
    assert all((len(content_of_files[name]), zlib.crc32(content_of_files[name])) == (entry["bytes"], entry["crc32"])
               for name, entry in files.items())


def test_the_fingerprint_is_that_of_what_training_reads(settings: PrepareSettings) -> None:
    data = prepare(settings)
    assert data.fingerprint == data.manifest["fingerprint"]
    copy = prepare(replace(settings, output=settings.output + "-copy", valid_source=None, valid_target=None))
    assert copy.fingerprint == data.fingerprint
    changed = [prepare(replace(settings, output=f"{settings.output}-{n}", **change)).fingerprint for n, change in
               enumerate(({"seed": 2}, {"shard_pairs": 50}, {"vocab_size": 30}, {"source": settings.target}))]
    assert len({data.fingerprint, *changed}) == 5


@pytest.mark.parametrize("kind", ["unigram", "bpe", "bpe-codes", "word"])
def test_another_vocabulary_of_the_same_size_is_refused(settings: PrepareSettings, kind: str) -> None:
    prepare(replace(settings, vocab_kind=kind, vocab_size=35))
    vocabularies = Path(settings.output) / "vocabulary"
    read_whole(settings.output)
    for path in vocabularies.glob("source.*"):
        path.write_bytes((vocabularies / f"target{path.suffix}").read_bytes())
    with pytest.raises(DataError, match="vocabulary/source.*: this is not the vocabulary that the data were prepared"):
        PreparedData(settings.output)


@pytest.mark.parametrize("name", ["valid.source", "valid.target", "statistics.json", "statistics.txt"])
def test_small_files_that_changed_are_refused_by_name(settings: PrepareSettings, name: str) -> None:
    prepare(settings)
    path = Path(settings.output) / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    attribute = {"statistics.json": "statistics", "statistics.txt": "statistics_table"}.get(
        name, name.replace(".", "_"))
    with pytest.raises(DataError, match=rf"{name}: the file has changed since it was prepared"):
        getattr(PreparedData(settings.output), attribute)


@pytest.mark.parametrize("name", ["shard-00000.pairs", "valid.source", "lengths.tsv", "vocabulary/source.words"])
def test_the_advice_on_damaged_files_repairs_them(settings: PrepareSettings, name: str) -> None:
    prepare(settings)
    output = Path(settings.output)
    complete = contents(output)
    path = output / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=rf"{name}: .*repare the data again with --overwrite"):
        data = PreparedData(output)
        _ = data.read_block(0), data.validation_sets, data.pair_lengths
    prepare(replace(settings, overwrite=True))
    assert contents(output) == complete
