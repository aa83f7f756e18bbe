"""Adapt a model to corrections: the directory, the decision, and an adaptation of a toy model."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import shutil
import signal
import stat
import sys
import threading
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.jobs.test_corrections import write_corrections
from tests.run_command import run_command
from tests.waiting import PATIENCE
from towernmt.checkpoint.package_manifest import MANIFEST
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError, SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import open_prepared
from towernmt.dataflow.text.text_lines import read_lines
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.evaluate.comparison import SignificanceSettings, System, compare
from towernmt.evaluate.metrics import MetricSettings
from towernmt.interop.model_card import CardText, DataSource, card_text_of_package, make_card
from towernmt.jobs import adaptation, adaptation_checks, adaptation_comparison
from towernmt.jobs.adaptation import (
    AdaptationJob,
    _adaptation_key,
    _begin_or_resume,
    _finish,
    _prepare_corrections,
    _resolve,
    adapt_model,
    with_rate_of_adaptation,
)
from towernmt.jobs.adaptation_checks import check_direction, check_pairs, unseen_sentences
from towernmt.jobs.adaptation_comparison import SetResult, compare_models, rejection_of
from towernmt.jobs.corrections import Correction, read_corrections, split_corrections
from towernmt.run.directory import RunDirectory
from towernmt.run.resolve import ResolvedSettings
from towernmt.run.rules.automatic_value import AutomaticSetting
from towernmt.run.run_settings import default_settings
from towernmt.run.started_run import StartingModel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "fine-tuning.md"


@pytest.mark.parametrize(("corrections", "test", "rejection"), [
    ((10.0, 12.0, 0.3), (30.0, 30.0, 1.0), ""), ((10.0, 12.0, 0.3), (30.0, 29.0, 0.2), ""),
    ((10.0, 12.0, 0.01), (30.0, 29.0, 0.04), "the new model is significantly worse on the old test set"),
    ((10.0, 12.0, 0.01), (30.0, 33.0, 0.04), ""),
    ((10.0, 10.0, 1.0), (30.0, 33.0, 0.04), "the new model is not better on the held-out corrections"),
    ((10.0, 9.0, 0.6), (30.0, 30.0, 1.0), "the new model is not better on the held-out corrections")])
def test_a_model_is_packaged_if_it_is_better_on_corrections_and_not_significantly_worse_before(
        corrections: tuple[float, ...], test: tuple[float, ...], rejection: str) -> None:
    assert rejection_of(SetResult("corrections", 9, *corrections), SetResult("test", 9, *test)) == rejection


@pytest.mark.parametrize(("wrong", "is_worse"), [(50, True), (1, False), (0, False)])
def test_a_loss_is_significant_by_the_paired_bootstrap(monkeypatch: pytest.MonkeyPatch, wrong: int, is_worse: bool
                                                       ) -> None:
    sources = [f"a{number} b{number} c{number} d{number} e{number}" for number in range(100)]
    worse = [source.upper() if number < wrong else source for number, source in enumerate(sources)]
    monkeypatch.setattr(adaptation_comparison, "PackagedRun", lambda *_, **__: lambda lines: worse)
    monkeypatch.setattr(adaptation_comparison, "default_precision", lambda *_: "float32")
    monkeypatch.setattr(adaptation_comparison, "Translator", lambda run, **_: SimpleNamespace(translate=run))
    model: Any = SimpleNamespace(run=lambda lines: lines, checkpoint=None)
    result, = compare_models(model, Path("package"), Path("unpacked"), CardText(), {"test set": [sources, sources]},
                             lambda line: None)
    systems = [System("old", sources), System("new", worse)]
    new = compare(systems, [sources], MetricSettings(("bleu",)), SignificanceSettings(trials=1)).scores["BLEU"][1]
    assert (result.new, result.p) == (new.score, new.bootstrap_p if wrong else 1.0)
    assert result.is_significantly_worse == is_worse
    assert bool(rejection_of(SetResult("corrections", 9, 1.0, 2.0, 0.1), result)) == is_worse


def test_the_statements_of_a_package_are_those_of_the_package_that_is_made_from_it() -> None:
    text = CardText(licence="CC0-1.0", languages="de-en", name="A", authors=["B"], data=[DataSource("C", pairs=3)])
    facts = {"date": "2026-01-01", "model": {}, "training_data": {"pairs": 3}, "scores": [], "settings": {},
             "versions": {}, "exports": []}
    card = make_card(text, facts)
    assert card_text_of_package(card, {"licence": None, "languages": None}) == text
    assert card_text_of_package(card, {"licence": "MIT"}).licence == "MIT"


def test_a_model_that_was_replaced_is_not_compared_with_the_run_of_the_old_one(tmp_path: Path) -> None:
    index = tmp_path / "step-1" / "model.index"
    index.parent.mkdir()
    model = StartingModel("m", "m", SavedRun(tmp_path), checkpoint=str(index.parent))
    job = AdaptationJob(model, tmp_path / "a.tsv", ("s", "r"), tmp_path / "o", tmp_path / "w", CardText())
    keys = []
    for content in (b"first", b"second", b"first"):
        index.write_bytes(content)
        keys.append(_adaptation_key(job, "de-en"))
    assert keys[0] == keys[2] != keys[1]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdaptationJob:
    """Return a job without a real model and settings, with 200 corrections and a test set of 100 sentences."""
    monkeypatch.setattr(adaptation, "_check_settings", lambda job: None)
    file = write_corrections(tmp_path / "a.tsv", [(f"source {number}", "s") for number in range(200)])
    (tmp_path / "test").write_text("a\n" * 100)
    model: Any = SimpleNamespace(name="m", weights_checksum=str)
    return AdaptationJob(model, file, (str(tmp_path / "test"), str(tmp_path / "test")), tmp_path / "o", tmp_path / "w",
                         CardText(), text_check=False)


def job_of_run(directory: Path, **values: Any) -> AdaptationJob:
    """Return a job with the settings of a run, without files."""
    run = RunDirectory(directory)
    run.save_settings(default_settings("transformer", "mini"))
    return AdaptationJob(**{"model": StartingModel("m", str(directory), run), "corrections": directory / "a.tsv",
                            "test": ("s", "r"), "output": directory / "o", "work": directory / "w",
                            "card": CardText(), **values})


@pytest.mark.parametrize(("general", "given", "share"), [
    ("data", {}, 0.75), ("data", {"data.general_share": "0.5"}, 0.5), (None, {}, 0.5)])
def test_three_quarters_of_the_pairs_are_general_unless_the_user_sets_another_share(
        tmp_path: Path, general: str | None, given: dict[str, str], share: float) -> None:
    assert _resolve(job_of_run(tmp_path, general=general, overrides=given)).settings.data.general_share == share


CHECKS: dict[str, tuple[dict[str, Any], str]] = {
    "a share without general data": (
        {"overrides": {"data.general_share": "0.5"}},
        "--set: data.general_share=0.5 has no effect without --general: pass --general with prepared data, or leave it "
        "out."),
    "sampling with general data": (
        {"overrides": {"data.subword_sampling": "true"}, "general": "general"},
        "data.subword_sampling=true changes pairs as they are read, which --general does not support: leave out one of "
        "them."),
    "text as general data": (
        {"general": "general.tsv"},
        "--general general.tsv is not prepared data: prepare it with `towernmt prepare --vocabulary-of m`."),
    "another vocabulary": (
        {"general": "general"},
        "--general general has another vocabulary than the model of --model m (source.words differs): prepare it with "
        "`towernmt prepare --vocabulary-of m`."),
    "a missing tracker": (
        {"overrides": {"log.tracker": "mlflow"}},
        "log.tracker=mlflow needs the package mlflow, which cannot be imported (import of mlflow halted; None in "
        "sys.modules): pip install 'towernmt[mlflow]', or set log.tracker=none."),
    "a missing tokeniser": (
        {"card": CardText(languages="en-ja")},
        "The tokeniser of this language needs MeCab, which is missing: pip install 'sacrebleu[ja]'. `towernmt "
        "evaluate --tokenize char` works without it and counts characters.")}


@pytest.mark.parametrize("case", CHECKS)
def test_what_cannot_work_is_refused_before_the_corrections_are_read(case: str, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.chdir(tmp_path)
    values, message = CHECKS[case]
    for directory, text in (("general", "a b"), ("data", "c d")):
        Path("text").write_text(f"{text}\n" * 9)
        prepare(PrepareSettings(source="text", target="text", vocab_kind="word", output=directory, workers=1))
    job = job_of_run(tmp_path / "run", **values)
    open_prepared("data").copy_vocabularies(job.model.run.vocabulary)
    with pytest.raises(SettingsError) as error:
        adapt_model(job, lambda line: None)     # the file of corrections is missing
    assert str(error.value) == message and not job.work.exists()


@pytest.mark.parametrize(("optimizer", "automatic", "rate"), [
    ("muon", True, 0.0003), ("muon", False, 0.001), ("adam", True, 0.001)])
def test_an_automatic_rate_of_muon_is_lower(optimizer: str, automatic: bool, rate: float) -> None:
    settings = apply_overrides(default_settings(), {"optimizer.name": optimizer, "optimizer.learning_rate": 0.001})
    other = AutomaticSetting("train.clip_norm", 1.0, "it is small")
    found = [AutomaticSetting("optimizer.learning_rate", 0.001, "the model is trained"), other]
    resolved = with_rate_of_adaptation(ResolvedSettings(settings, found if automatic else [other]))
    assert resolved.settings.optimizer.learning_rate == rate
    recorded = {setting.key: setting.value for setting in resolved.automatic or ()}
    assert recorded == {"train.clip_norm": 1.0, **({"optimizer.learning_rate": rate} if automatic else {})}
    resumed = ResolvedSettings(settings)
    assert with_rate_of_adaptation(resumed).settings.optimizer.learning_rate == 0.001


def test_only_a_changed_limit_resumes_the_run_of_other_settings(job: AdaptationJob) -> None:
    def key(**values: Any) -> str:
        overrides = {name.replace("_", ".", 1): value for name, value in values.items()}
        return _adaptation_key(replace(job, overrides=overrides), "de-en")

    assert key(train_minutes=5.0) == key(train_minutes=60.0, train_steps="9", train_epochs="2") == key()
    keys = {key(), key(optimizer_learning_rate="0.0005"), key(optimizer_learning_rate="0.001"),
            key(optimizer_name="adam"), _adaptation_key(job, "en-de"),
            _adaptation_key(replace(job, card=CardText(source_prefix="<2de>")), "de-en")}
    assert len(keys) == 6
    assert key(optimizer_name="adam", data_seed="2") == key(data_seed="2", optimizer_name="adam")


def test_general_data_that_were_prepared_again_do_not_resume_a_run(job: AdaptationJob, tmp_path: Path) -> None:
    lines = [f"a{number} b{number % 3}" for number in range(20)]

    def key(name: str, text: list[str]) -> str:
        (tmp_path / "text").write_text("".join(f"{line}\n" for line in text))
        prepare(PrepareSettings(source=str(tmp_path / "text"), target=str(tmp_path / "text"), vocab_kind="word",
                                output=str(tmp_path / name), workers=1, overwrite=True))
        return _adaptation_key(replace(job, general=str(tmp_path / name)), "de-en")

    assert key("general", lines) != key("general", lines[:10])
    assert key("general", lines) == key("copy", lines) != _adaptation_key(job, "de-en")


def test_an_interrupted_adaptation_resumes_with_its_own_corrections(job: AdaptationJob) -> None:
    first, second = [Correction("a", "A")], [Correction("a", "A"), Correction("b", "B")]
    reports: list[str] = []

    def begin(corrections: list[Correction], job: AdaptationJob = job) -> tuple[Path, Any]:
        return _begin_or_resume(job, "de-en", corrections, reports.append)

    directory, _ = begin(first)
    assert begin(first) == (directory, first) and not reports
    assert begin(second) == (directory, first)
    assert reports == [f"Resuming the interrupted adaptation in {directory} with its own 1 corrections; the next "
                       f"adaptation uses those that {job.corrections} has now (remove the directory to begin with "
                       "them)."]
    other, _ = begin(first, replace(job, overrides={"optimizer.name": "adam"}))
    assert other != directory

    _finish(directory)
    assert begin(first) == (directory, first)       # for example with more minutes, and killed again
    assert begin(second) == (directory, first)
    _finish(directory)
    newer, corrections = begin(second)
    assert newer != directory and corrections == second and directory.exists()
    _finish(newer)
    assert sorted(job.work.iterdir()) == sorted([newer, other]) and len(reports) == 2


def test_what_a_kill_during_the_removal_left_is_not_resumed(job: AdaptationJob) -> None:
    directory, _ = _begin_or_resume(job, "de-en", [Correction("a", "A")], lambda line: None)
    (directory / "run").mkdir()
    (directory / "corrections.tsv").unlink()
    assert _begin_or_resume(job, "de-en", [Correction("b", "B")], lambda line: None)[0] != directory
    shutil.rmtree(next(path for path in job.work.iterdir() if path != directory))
    assert _begin_or_resume(job, "de-en", [Correction("a", "A")], lambda line: None)[0] == directory
    assert [path.name for path in directory.iterdir()] == ["corrections.tsv"]


def test_suggestions_during_an_adaptation_do_not_change_its_corrections(job: AdaptationJob,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[list[Correction]] = []
    monkeypatch.setattr(adaptation, "check_pairs", lambda *_: write_corrections(job.corrections, [("late", "s")]))
    monkeypatch.setattr(adaptation, "_prepare_corrections",
                        lambda job, splits, *_: trained.append(sorted(sum(splits.values(), []))))
    monkeypatch.setattr(adaptation, "_train", lambda *_: 128 + signal.SIGTERM)
    stored = sorted(read_corrections(job.corrections)[1])
    reports: list[str] = []
    for _ in range(2):
        assert adapt_model(replace(job, text_check=True), reports.append).status == 143
    assert trained == [stored, stored] and len(list(job.work.iterdir())) == 1
    assert [line.partition(" ")[0] for line in reports] == ["Corrections:", "Resuming", "Corrections:"]


def test_a_test_set_on_which_hardly_any_loss_is_significant_is_refused(job: AdaptationJob, tmp_path: Path) -> None:
    (tmp_path / "test").write_text("a\n" * 99 + "\n" * 9)
    with pytest.raises(DataError) as caught:
        adapt_model(job, lambda line: None)
    assert str(caught.value) == (
        f"--test {tmp_path}/test {tmp_path}/test has 99 sentences with a translation: pass at least 100 of the old "
        "domain, because on fewer, even a loss of several BLEU points may not be significant.")
    assert not job.work.exists()


def test_an_output_that_would_replace_the_original_model_a_directory_or_another_file_is_refused(
        job: AdaptationJob, tmp_path: Path) -> None:
    original = tmp_path / "original.zip"
    original.write_bytes(b"package")
    document, text = tmp_path / "document.docx", tmp_path / "text"
    with zipfile.ZipFile(document, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    text.write_bytes(b"text")
    (tmp_path / "link.zip").symlink_to(original)
    job.model.name = str(original)
    for output, problem in ((original, "is the file of --model"), (tmp_path / "link.zip", "is the file of --model"),
                            (tmp_path, "is a directory: pass the path of a file"),
                            (document, "exists and is not a package, so the adapted model would replace another file"),
                            (text, "exists and is not a package")):
        with pytest.raises(SettingsError, match=f"--output {output} {problem}"):
            adapt_model(replace(job, output=output), lambda line: None)
    assert original.read_bytes() == b"package" and text.read_bytes() == b"text" and not job.work.exists()


def test_corrected_sentences_do_not_count_in_the_test_set(job: AdaptationJob) -> None:
    splits = {"train": [Correction("a", "A")], "valid": [Correction("b", "B")], "test": [Correction("c", "C")]}
    sources = ["a", "b", "c", "", *(f"d{number}" for number in range(99))]
    test = ValidationSet("test", sources, [[f"reference {source}" for source in sources]])
    unseen = unseen_sentences(test, splits, job.test)
    assert unseen.source == sources[2:] and unseen.references == [test.references[0][2:]]
    with pytest.raises(DataError) as caught:
        unseen_sentences(test.first(102), splits, job.test)
    assert str(caught.value) == (
        f"--test {' '.join(job.test)} has 99 sentences with a translation, without the 2 that are sources of "
        "corrections: pass at least 100 of the old domain, because on fewer, even a loss of several BLEU points may "
        "not be significant.")


def test_a_test_set_of_corrections_reports_what_is_left_out_and_packages_the_rest(
        job: AdaptationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"source {number}" for number in range(300)]
    (tmp_path / "test").write_text("".join(f"{line}\n" for line in lines))
    write_older_package(job.output)
    job.output.chmod(0o460)
    packaged: list[tuple[str, str]] = []
    use_fakes(monkeypatch, lambda name: packaged.append(name))
    reports: list[str] = []
    assert adapt_model(job, reports.append).rejection == ""
    splits = split_corrections(read_corrections(job.corrections)[1], "a")
    seen = {correction.source for name in ("train", "valid") for correction in splits[name]}
    assert reports[1] == f"--test: {len(seen)} sentences are left out, because they are sources of corrections."
    rest = [line for line in lines if line not in seen]
    assert [Path(file).read_text().splitlines() for file in packaged[0]] == [rest, rest]
    assert [Path(file).name for file in packaged[0]] == ["test", "test"]
    assert job.output.read_bytes() == b"package" and stat.S_IMODE(job.output.stat().st_mode) == 0o460


@pytest.mark.parametrize("kind", ["test.gz", "TEST.GZ", "pipe"])
def test_the_package_is_tested_on_the_text_of_a_file_that_is_compressed_or_cannot_be_read_again(
        job: AdaptationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    lines = [f"sentence {number}" for number in range(100)]
    content = "".join(f"{line}\n" for line in lines).encode()
    readers: list[int] = []

    def path() -> str:
        if kind != "pipe":
            (tmp_path / kind).write_bytes(gzip.compress(content))
            return str(tmp_path / kind)
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        readers.append(reader)
        return f"/dev/fd/{reader}"

    packaged: list[tuple[str, str]] = []
    use_fakes(monkeypatch, lambda files: packaged.append(files))
    assert adapt_model(replace(job, test=(path(), path())), lambda line: None).rejection == ""
    assert [[*read_lines(file)] for file in packaged[0]] == [lines, lines]
    for reader in readers:
        os.close(reader)


def test_adaptations_in_two_work_directories_do_not_share_an_unfinished_package(
        job: AdaptationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Path] = []

    def compare_after_another(model: StartingModel, package: Path, *_: Any) -> list[SetResult]:
        compared.append(package)
        if len(compared) == 1:
            assert adapt_model(replace(job, work=job.work / "other"), lambda line: None).rejection == ""
        assert package.exists()
        return [SetResult("corrections", 9, 1.0, 2.0, 0.1), SetResult("test", 9, 1.0, 1.0, 1.0)]

    use_fakes(monkeypatch)
    monkeypatch.setattr(adaptation, "compare_models", compare_after_another)
    assert adapt_model(job, lambda line: None).rejection == ""
    assert len(set(compared)) == 2 and job.output.read_bytes() == b"package"
    assert [path.name for path in job.output.parent.glob("*.new")] == []


def write_older_package(file: Path) -> None:
    """Write a file that is recognised as a package."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(MANIFEST, "{}")


def use_fakes(monkeypatch: pytest.MonkeyPatch, packaged: Callable[[Any], object] = lambda test: None) -> None:
    """Replace the training, the package and the comparison of an adaptation; `packaged` gets its test set."""
    def write_package(job: AdaptationJob, run: Any, output: Path, test: tuple[str, str]) -> None:
        packaged(test)
        output.write_bytes(b"package")

    monkeypatch.setattr(adaptation, "_prepare_corrections", lambda *_: None)
    monkeypatch.setattr(adaptation, "_train", lambda *_: 0)
    monkeypatch.setattr(adaptation, "_write_package", write_package)
    monkeypatch.setattr(adaptation, "compare_models", lambda *_: [
        SetResult("corrections", 9, 1.0, 2.0, 0.1), SetResult("test", 9, 1.0, 1.0, 1.0)])


@pytest.mark.parametrize("minutes", ["-1", "nan", "inf"])
def test_an_impossible_time_is_refused_by_the_name_of_its_option(
        minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.touch()
    assert run_command("adapt", "--model", tmp_path, "--corrections", text, "--test", text, text, "--output",
                       tmp_path.with_name("new.zip"), "--minutes", minutes) == 1
    assert f"--minutes {minutes} must be a number of at least 0." in capsys.readouterr().err


def test_two_adaptations_do_not_write_the_same_package(job: AdaptationJob) -> None:
    in_use = pytest.raises(DirectoryInUseError, match=r"w is in use: .*\(towernmt adapt\)")
    with DirectoryLock(job.work, "towernmt adapt"), in_use:
        adapt_model(job, lambda line: None)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the files of a toy language, whose words are spelled backwards, and a model that has hardly learned it."""
    place, chance = tmp_path_factory.mktemp("toy"), random.Random(3)
    words = [first + second for first in "bdfgkl" for second in "aeio"]
    sources = [" ".join(chance.choices(words, k=chance.randint(3, 6))) for _ in range(740)]
    pairs = [(line, " ".join(word[::-1] for word in line.split())) for line in sources]
    for name, split in (("train", pairs[:400]), ("test", pairs[400:500])):
        for side, lines in zip(("source", "target"), zip(*split, strict=True), strict=True):
            (place / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    write_corrections(place / "corrections", pairs[500:])
    write_corrections(place / "reversed", [(target, source) for source, target in pairs[500:]])
    text = ["--source", place / "train.source", "--target", place / "train.target"]
    assert run_command("prepare", *text, "--vocab-kind", "word", "--output", place / "data") == 0
    assert run_command("train", "--data", place / "data", "--logdir", place / "run", "--defaults", "fixed", "--set",
                       "train.steps=60", "model.hidden_size=32", "model.filter_size=64", "model.heads=2",
                       "model.encoder_layers=1", "model.decoder_layers=1", "data.batch_tokens=512",
                       "optimizer.learning_rate=0.01", "schedule.warmup_steps=10", "search.beam_size=2") == 0
    return lambda name: place / name


@pytest.mark.thorough
def test_a_model_that_is_not_better_does_not_replace_the_package(
        toy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "served.towernmt.zip"
    write_older_package(package)
    older_package = package.read_bytes()
    use_fakes(monkeypatch)
    equal = [SetResult(name, 9, 1.0, 1.0, 1.0) for name in ("corrections", "test")]
    monkeypatch.setattr(adaptation, "compare_models", lambda *_: equal)
    assert run_command("adapt", "--model", toy("run"), "--corrections", toy("corrections"), "--test",
                       toy("test.source"), toy("test.target"), "--output", package, "--licence", "CC0-1.0") == 1
    assert "No package was written, because the new model is not better on the held-out" in capsys.readouterr().out
    assert package.read_bytes() == older_package and not list(tmp_path.glob("*.new"))


@pytest.mark.thorough
def test_a_stopped_adaptation_says_how_it_resumes(toy: Callable[[str], Path], tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(adaptation, "_train", lambda *_: 128 + signal.SIGTERM)
    assert run_command("adapt", "--model", toy("run"), "--corrections", toy("corrections"), "--test",
                       toy("test.source"), toy("test.target"), "--output", tmp_path / "new.zip", "--licence",
                       "CC0-1.0", "--no-text-check") == 128 + signal.SIGTERM
    assert capsys.readouterr().out.endswith("\nThe adaptation was stopped; the same command resumes it.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["new.zip.work"]


def rejection(capsys: pytest.CaptureFixture[str], toy: Callable[[str], Path], corrections: str, *test: str) -> str:
    """Return the only line that `towernmt adapt` prints about unsuitable text; it writes nothing."""
    place = toy("refused")
    place.mkdir(exist_ok=True)
    assert run_command("adapt", "--model", toy("run"), "--corrections", toy(corrections), "--test", *map(toy, test),
                       "--output", place / "new.zip", "--licence", "CC0-1.0") == 1
    assert not list(place.iterdir())
    line, = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.thorough
def test_a_wrong_setting_is_refused_before_anything_is_written(toy: Callable[[str], Path], tmp_path: Path,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    for setting in ("train.stepz=3", "optimizer.learning_rate=-1", "model.hidden_size=17"):
        assert run_command("adapt", "--model", toy("run"), "--corrections", toy("corrections"), "--test",
                           toy("test.source"), toy("test.target"), "--output", tmp_path / "new.zip", "--licence",
                           "CC0-1.0", "--set", setting) == 1
        assert setting.partition("=")[0] in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.thorough
def test_text_in_the_opposite_direction_is_one_clear_sentence(toy: Callable[[str], Path],
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    opposite = "run translates in the opposite direction: by its probabilities, the sources are translations of"
    error = rejection(capsys, toy, "reversed", "test.source", "test.target")
    assert error.startswith(f"towernmt: {toy('reversed')}: ") and opposite in error
    assert error.endswith("or --no-text-check if the direction is right.")
    error = rejection(capsys, toy, "corrections", "test.target", "test.source")
    assert error.startswith(f"towernmt: --test {toy('test.target')} {toy('test.source')}: ") and opposite in error


@pytest.mark.thorough
def test_text_that_is_no_translation_is_one_clear_sentence(toy: Callable[[str], Path],
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in toy("corrections").read_text().splitlines()]
    moved = [(row[2], other[4]) for row, other in zip(rows, rows[7:] + rows[:7], strict=True)]
    write_corrections(toy("moved"), moved)
    error = rejection(capsys, toy, "moved", "test.source", "test.target")
    assert re.search(r"moved: by the probabilities of .*/run, the targets are no translations of the sources", error)
    assert error.endswith("pass sources with their translations, or --no-text-check if they are.")


class WordScorer:
    """A fake `Scorer`: a target of three tokens has -3 nats after its source in lower case, and -9 after another."""

    source_vocabulary = SimpleNamespace(streams=1)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def score(self, pairs: list[tuple[str, str]]) -> list[SimpleNamespace]:
        return [SimpleNamespace(log_prob=-3.0 if target == source.upper() else -9.0, tokens=3)
                for source, target in pairs]


def test_corrections_of_another_direction_than_the_models_are_refused(job: AdaptationJob) -> None:
    card = CardText(languages="en-de")
    with pytest.raises(DataError) as error:
        adaptation.adapt_model(replace(job, card=card), lambda sentence: None)
    assert str(error.value) == (
        f"{job.corrections}: the corrections are of the direction de-en, but the languages of the model are en-de: "
        "pass corrections of this direction, or --languages de-en if the model translates de-en.")
    assert not job.work.exists()


@pytest.mark.parametrize(("direction", "languages"), [
    ("de-en", None), ("de-en", ("de", "en")), ("de-en-gb", ("deu", "en-US")), ("my_model", ("de", "en"))])
def test_corrections_of_the_models_languages_and_of_named_models_are_accepted(
        direction: str, languages: tuple[str, str] | None) -> None:
    check_direction("a.tsv", direction, languages)


@pytest.mark.parametrize(("pairs", "shift", "refused"), [(30, 0, False), (30, 3, True), (5, 3, False), (1, 0, False)])
def test_many_lines_without_their_translations_are_refused(pairs: int, shift: int, refused: bool,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation_checks, "Scorer", WordScorer)
    text = [(f"word{number}", f"WORD{number + shift}") for number in range(pairs)]
    model: Any = SimpleNamespace(run=None, checkpoint=None, name="m")
    with pytest.raises(DataError, match="no translations of the sources") if refused else nullcontext():
        check_pairs(model, "", {"text": text})


def test_sources_have_the_source_prefix_where_the_model_reads_them(
        tmp_path: Path, job: AdaptationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, str]] = []

    class RecordingScorer(WordScorer):
        def score(self, pairs: list[tuple[str, str]]) -> list[SimpleNamespace]:
            read.extend(pairs)
            return super().score([(source.removeprefix("<2de> "), target) for source, target in pairs])

    monkeypatch.setattr(adaptation_checks, "Scorer", RecordingScorer)
    model: Any = SimpleNamespace(name="m", run=RunDirectory(tmp_path), checkpoint=None)
    check_pairs(model, "<2de>", {"text": [("word", "WORD")]})
    assert read == [("<2de> word", "WORD"), ("WORD", "word")]

    monkeypatch.setattr(adaptation, "with_vocabulary_of", lambda settings, *_: settings)
    monkeypatch.setattr(adaptation, "prepare", lambda settings: SimpleNamespace(pairs=1))
    tagged = replace(job, card=CardText(source_prefix="<2de>"), model=model)
    splits = {"train": [Correction("a", "A")], "valid": [Correction("b", "B")]}
    _prepare_corrections(tagged, splits, tmp_path, read.append)  # type: ignore[arg-type]
    texts = {name: (tmp_path / name).read_text() for name in ("train.source", "train.target", "valid.source")}
    assert texts == {"train.source": "<2de> a\n", "train.target": "A\n", "valid.source": "<2de> b\n"}


@pytest.mark.parametrize(("short", "long", "unequal", "problem"), [
    (25, 0, 0, None),
    (25, 2, 1, ""),
    (19, 6, 0, "6 of 25 corrections for training are left out: 6 long source"),
    (0, 25, 0, "25 of 25 corrections for training are left out: 25 long source")])
def test_corrections_that_the_preparation_leaves_out_are_reported_and_too_few_are_refused(
        tmp_path: Path, job: AdaptationJob, monkeypatch: pytest.MonkeyPatch, short: int, long: int, unequal: int,
        problem: str | None) -> None:
    train = [*(Correction(f"a {number}", "A") for number in range(short)), *[Correction("a " * 201, "A " * 201)] * long,
             *[Correction("a", "A " * 10)] * unequal]
    monkeypatch.setattr(adaptation, "with_vocabulary_of", lambda settings, *_: replace(settings, vocab_kind="word"))
    model: Any = job.model
    model.run = SimpleNamespace(vocabulary=tmp_path)
    directory, reports = job.work / "key-hash", list[str]()
    (directory / "run").mkdir(parents=True)
    splits = {"train": train, "valid": [Correction("a", "A")]}
    limits = "(the limits are 200 tokens, and the ratio 9)"
    if not problem:
        assert _prepare_corrections(job, splits, directory, reports.append) and (directory / "run").exists()
        assert reports == ([] if problem is None else [
            f"3 of 28 corrections for training are left out: 2 long source, 1 length ratio {limits}."])
        return
    with pytest.raises(DataError) as error:
        _prepare_corrections(job, splits, directory, reports.append)
    assert str(error.value) == (
        f"{job.corrections}: {problem} {limits}, and {short} remain, where at least 20 are needed: divide long "
        "corrections into sentences, or collect more.")
    assert not directory.exists() and not reports       # the next adaptation does not resume with these corrections


def test_targets_are_not_scored_as_sources_of_a_model_with_source_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    class FactorScorer(WordScorer):
        source_vocabulary = SimpleNamespace(streams=2)

        def score(self, pairs: list[tuple[str, str]]) -> list[SimpleNamespace]:
            assert all(source.endswith("|NOUN") for source, _ in pairs)
            return super().score([(source.removesuffix("|NOUN"), target) for source, target in pairs])

    monkeypatch.setattr(adaptation_checks, "Scorer", FactorScorer)
    model: Any = SimpleNamespace(run=None, checkpoint=None, name="m")
    check_pairs(model, "", {"text": [(f"word{number}|NOUN", f"WORD{number}") for number in range(30)]})


def test_a_text_without_pairs_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation_checks, "Scorer", WordScorer)
    model: Any = SimpleNamespace(run=None, checkpoint=None, name="m")
    with pytest.raises(DataError) as caught:
        check_pairs(model, "", {"corrections": [("word", "WORD")], "--test a b": []})
    assert str(caught.value) == (
        "--test a b has no pair with text on both sides: pass sources with their translations.")


@pytest.mark.thorough
def test_a_test_set_that_is_no_text_is_one_clear_sentence(toy: Callable[[str], Path],
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    toy("binary").write_bytes(b"a\n\x89\0\n")
    assert "binary line 2: this is binary data, but a text file with one sentence per line is expected" in rejection(
        capsys, toy, "corrections", "binary", "test.target")


@pytest.mark.processes
@pytest.mark.thorough
def test_the_commands_of_the_page_adapt_the_model_of_a_server_that_answers_all_the_time(
        toy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("starlette")
    from tests.serve.conftest import ServerProcess

    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8").partition("## Adapting to corrections")[2]
    serve, adapt = re.findall(r"^towernmt (.*)$", page.partition("```sh\n")[2].partition("```")[0].replace("\\\n", " "),
                              re.M)
    assert run_command("package", "--model", toy("run"), "--licence", "CC0-1.0", "--languages", "de-en", "--output",
                       "de-en.towernmt.zip") == 0
    shutil.copy("de-en.towernmt.zip", "served.towernmt.zip")
    for side, language in (("source", "de"), ("target", "en")):
        shutil.copy(toy(f"test.{side}"), f"news-test.{language}")
    shutil.copytree(toy("data"), "data/news")
    rows = [line.split("\t") for line in toy("corrections").read_text().splitlines()]
    source, better = ("\n".join(row[column] for row in rows) for column in (2, 4))
    splits = "\n".join(source.splitlines()[:5])

    server = ServerProcess(*shlex.split(serve)[1:], "--engine", "ctranslate2")     # starts in a second

    def post(path: str, **values: str) -> tuple[int, str]:
        with urlopen(f"{server.url}/{path}", urlencode({**values, "source": "de", "target": "en"}).encode(),
                     timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()

    answers: list[tuple[int, str]] = []
    over = threading.Event()

    def translate() -> None:
        while not over.is_set():
            answers.append(post("translate", q=rows[0][2]))
            over.wait(0.2)      # leaves the processors to the adaptation

    thread = threading.Thread(target=translate)
    try:
        assert post("suggest", q=source, s=better)[0] == 200
        before = post("translate", q=splits)[1]
        thread.start()
        small = ["--set", "train.precision=float32", "data.batch_tokens=512", "train.steps=80",
                 "optimizer.learning_rate=0.01"]
        assert run_command(*shlex.split(adapt), *small) == 0
        assert post("translate", q=splits)[1] == before
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("the model was replaced")
        assert post("translate", q=splits)[1] != before
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
        server.stop()
    assert len(answers) > 10 and {status for status, _ in answers} == {200}

    output = capsys.readouterr().out
    assert "held-out corrections: " in output and not list(tmp_path.glob("*.new"))
    old, new = re.findall(r"test set: 100 sentences, BLEU ([\d.]+) before and ([\d.]+) after", output)[0]
    package = PackagedRun(tmp_path / "served.towernmt.zip")
    assert package.card["licence"] == "CC0-1.0"
    precision = package.manifest.processor_precision        # both scores are those of `towernmt evaluate`
    for model, score in (("de-en.towernmt.zip", old), ("served.towernmt.zip", new)):
        assert run_command("evaluate", "--model", model, "--source", "news-test.de", "--reference", "news-test.en",
                           "--precision", precision, "--json") == 0
        assert f"{json.loads(capsys.readouterr().out)['bleu']:.2f}" == score
