"""Training with monolingual text that is killed in its stages, and resumed by the same command or by another one."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.test_monolingual_training import FaultyTranslator, prepared_pairs, sentences, translated
from towernmt.checkpoint.records import INITIAL_WEIGHTS, provenance
from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.core.settings import apply_overrides, flatten
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.jobs import monolingual_training
from towernmt.jobs.monolingual_job import MonolingualJob, check_job, open_record, save_record
from towernmt.jobs.monolingual_text import text_facts
from towernmt.jobs.monolingual_training import _Stages, train_with_monolingual_text
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.resumable import Journal
from towernmt.run.directory import RunDirectory
from towernmt.run.resolve import Overrides, ResolvedSettings, SettingsSources
from towernmt.run.run_settings import default_settings
from towernmt.run.started_run import StartingModel

LINES = 10      # two windows of the translator, and two more lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Pairs with one vocabulary, and a validation set."""
    return prepared_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def model(data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> StartingModel:
    """A trained model with the vocabulary of the pairs, whose checkpoint is an empty file."""
    run = RunDirectory(tmp_path_factory.mktemp("model") / "run")
    run.save_settings(default_settings("transformer", "mini"))
    data.copy_vocabularies(run.vocabulary)
    checkpoint = run.checkpoints / "step-1"
    write_text(checkpoint / "model.index", "weights")
    return StartingModel("m", str(run.path), run, checkpoint=str(checkpoint))


def existing_run(logdir: Path) -> RunDirectory | None:
    run = RunDirectory(logdir)
    return run if run.exists() else None


class ReversingTranslator(FaultyTranslator):
    """A `Translator` that spells each word backwards."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(LINES)

    def translate(self, lines: Sequence[str]) -> list[str]:
        return translated(list(lines))

    def _translations(self, lines: Iterable[bytes], first: int) -> Iterator[Translation]:
        for line in lines:
            yield Translation([Hypothesis(translated([line.decode().strip()])[0], 0.0)])


class Trainings:
    """Trainings of three updates, which write a line for each update: its number, and the settings and the data."""

    def train(self, resolved: ResolvedSettings, data: Any, logdir: Path, gpus: Any) -> int:
        """Begin or resume a training."""
        settings, run = resolved.settings, RunDirectory(logdir)
        if not run.exists():
            checksum = {INITIAL_WEIGHTS: StartingModel("", "", RunDirectory(settings.init.checkpoint), (), str(
                Path(settings.init.checkpoint) / "checkpoints" / "step-1")).weights_checksum()
                        } if settings.init.checkpoint else {}
            run.save_settings(settings, provenance(checksum))
        updates = Path(logdir) / "updates"
        done = updates.read_text().splitlines() if updates.exists() else []
        for number in range(len(done), 3):
            self.update()
            done.append(f"{number} {sorted(flatten(settings).items())} {data.fingerprint}")
            write_text(updates, "".join(f"{line}\n" for line in done))
        return 0

    def update(self) -> None:
        """Begin an update."""


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    """Replace the trainings and the translator of the stages."""
    trainings = Trainings()
    monkeypatch.setattr(monolingual_training, "train_resolved_settings", trainings.train)
    monkeypatch.setattr(monolingual_training, "Translator", ReversingTranslator)
    return trainings


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "teachers"), [("source", 2), ("target", 0)])
def test_a_kill_in_any_stage_of_a_training_from_a_model_changes_no_result(
        side: str, teachers: int, data: PreparedData, model: StartingModel, trainings: Trainings,
        killed_after: Callable[..., Any], tmp_path: Path) -> None:
    text = tmp_path / "text"
    lines = sentences(LINES, 2)
    text.write_text("".join(f"{line}\n" for line in (lines if side == "source" else translated(lines))))
    specified = Overrides("--set", {"train.steps": 3, "optimizer.learning_rate": 0.0007, "data.general_share": 0.3})

    def run_command(name: str) -> None:
        logdir = tmp_path / name
        sources = SettingsSources(start=model, run=existing_run(logdir), overrides=(specified,))
        job = MonolingualJob(text, side, data, logdir, sources, [model] * teachers)  # type: ignore[arg-type]
        assert train_with_monolingual_text(job, lambda sentence: None) == 0

    def results(name: str) -> dict[str, bytes]:
        """Return the content of all files, except times, by name."""
        files = [path for path in sorted((tmp_path / name).rglob("*")) if path.is_file()]
        return {str(path.relative_to(tmp_path / name)): b"" if path.name in ("record.json", "manifest.json") else
                path.read_bytes().replace(f"{tmp_path}/{name}".encode(), b"LOGDIR") for path in files}

    run_command("whole")
    expected = results("whole")
    assert ("monolingual/model/updates" in expected) == (not teachers)
    assert len(expected["monolingual/translations"].splitlines()) == LINES
    functions = [(monolingual_training, "save_record"), (monolingual_training, "prepare"), (Journal, "add"),
                 (Journal, "remove"), (trainings, "update")]
    for operations in itertools.count():
        name = f"killed-{operations}"
        with killed_after(operations, functions) as left:
            run_command(name)
        if left[0] >= 0:
            break
        run_command(name)
        assert results(name) == expected, operations
    assert operations == 14 + (0 if teachers else 3)


@pytest.fixture
def make_job(data: PreparedData, tmp_path: Path) -> Callable[..., MonolingualJob]:
    """Make the order of a training with back-translation, with some attributes changed."""
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in translated(sentences(LINES, 2))))
    return lambda **changed: dataclasses.replace(
        MonolingualJob(text, "target", data, tmp_path / "run", SettingsSources()), **changed)


@pytest.mark.parametrize("began_with", ["the model", "another model", "no model", "an unknown model"])
def test_the_model_of_start_cannot_change_before_the_final_model_begins(
        began_with: str, make_job: Callable[..., MonolingualJob], model: StartingModel) -> None:
    without = make_job()
    started = make_job(sources=SettingsSources(start=model))
    record = {"the model": open_record(started, "abc"), "no model": open_record(without, "abc"),
              "another model": dataclasses.replace(open_record(started, "abc"), start="def"),
              "an unknown model": dataclasses.replace(open_record(without, "abc"), start=None)}[began_with]
    (without.directory / "model").mkdir(parents=True)
    save_record(without, record)
    begun = f"{without.logdir} was begun"
    is_missing = f"{begun} with --start: pass the same --start to resume it, or another --logdir."
    expected = {
        "the model": ("", is_missing), "an unknown model": ("", ""),
        "another model": (f"--start m: {begun} with another model: pass that model to resume it, or pass another "
                          "--logdir.", is_missing),
        "no model": (f"--start m: {begun} without --start: leave it out to resume it, or pass another --logdir.", "")
    }[began_with]
    for job, message in zip((started, without), expected, strict=True):
        try:
            assert open_record(job, "abc") == record and not message
        except SettingsError as error:
            assert str(error) == message
    # The final model has begun, and its settings name the model that it began with.
    assert open_record(make_job(sources=SettingsSources(run=model.run)), "abc") == record  # type: ignore[arg-type]


def test_the_share_of_the_translated_pairs_stays_when_the_final_model_is_resumed(
        make_job: Callable[..., MonolingualJob], data: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
        ) -> None:
    run = RunDirectory(tmp_path / "other")
    settings = apply_overrides(default_settings("transformer"), {"data.general_share": 0.3}, "--set")
    passed: list[SettingsSources] = []
    job = make_job(sources=SettingsSources(run=run))
    stages = _Stages(job, settings, text_facts(job.text), lambda line: None)
    monkeypatch.setattr(stages, "_prepared", data.directory)
    monkeypatch.setattr(stages, "_train", lambda sources, *_: passed.append(sources) or 0)
    assert stages._train_final() == 0
    assert passed[0].overrides[0].values == {"data.general_share": 0.3}


def test_unfinished_translations_of_another_engine_are_removed(
        make_job: Callable[..., MonolingualJob], monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()

    def translate(last: int, engine: str) -> list[str]:
        translator = FaultyTranslator(last)
        translator.engine = engine
        stages = _Stages(job, default_settings("transformer"), text_facts(job.text), lambda line: None)
        monkeypatch.setattr(stages, "_open_translator", lambda: translator)
        monkeypatch.setattr("os.getpid", lambda: 1_000_000 + last)      # of another process
        with suppress(KeyboardInterrupt):
            stages._translate()
        return sorted(path.name for path in job.directory.iterdir())

    assert translate(5, "graph") == ["record.json", "translations.unfinished-1000005",
                                     "translations.unfinished-1000005.journal"]
    assert translate(6, "ctranslate2") == ["record.json", "translations.unfinished-1000006",
                                           "translations.unfinished-1000006.journal"]
    assert translate(LINES, "ctranslate2") == ["record.json", "translations"]


def test_a_final_model_is_resumed_although_the_results_of_the_first_stages_were_removed(
        make_job: Callable[..., MonolingualJob], trainings: Trainings) -> None:
    sources = SettingsSources(overrides=(Overrides("--set", {"train.steps": 3}),))
    job = make_job(sources=sources)
    assert train_with_monolingual_text(job, lambda line: None) == 0
    shutil.rmtree(job.directory / "model")
    (job.directory / "translations").unlink()
    (job.logdir / "updates").unlink()
    reports: list[str] = []
    resumed = make_job(sources=dataclasses.replace(sources, run=existing_run(job.logdir)))
    assert train_with_monolingual_text(resumed, reports.append) == 0
    assert [report.partition(":")[0] for report in reports] == ["Stage 4 of 4"]
    assert (job.logdir / "updates").exists()


def test_a_share_of_zero_is_refused_because_it_leaves_out_the_translations(make_job: Callable[..., MonolingualJob]
                                                                           ) -> None:
    job = make_job()
    settings = apply_overrides(default_settings("transformer"), {"train.steps": 5, "data.general_share": 0}, "--set")
    with pytest.raises(SettingsError) as error:
        check_job(job, settings)
    assert str(error.value) == (f"{job.option}: data.general_share=0 would leave out all translations: set it above 0, "
                                "or train without --monolingual.")
