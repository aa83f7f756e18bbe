"""Training with monolingual text: refused orders, divided limits, and the error for a changed input."""

from __future__ import annotations

import dataclasses
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.batches.training_data import with_general_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.jobs.monolingual_job import (
    MonolingualJob,
    check_job,
    check_space,
    final_limits,
    model_limits,
    open_record,
    save_record,
    translated_share,
)
from towernmt.jobs.monolingual_text import are_nearly_all_faulty, check_side, check_source_tags, text_facts
from towernmt.jobs.monolingual_training import _Stages, train_with_monolingual_text
from towernmt.predict.lines.faults import EMPTY, FaultCounts, counted
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.run.resolve import Overrides, SettingsSources
from towernmt.run.run_settings import default_settings
from towernmt.run.training_conditions import training_conditions

WORDS = [first + second for first in "bdfgkl" for second in "aeio"]


def sentences(count: int, seed: int) -> list[str]:
    """Return random sentences of the source language."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 6))) for _ in range(count)]


def translated(lines: list[str]) -> list[str]:
    """Return the lines in the target language, in which each word is spelled backwards."""
    return [" ".join(word[::-1] for word in line.split()) for line in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Pairs with one vocabulary, and a validation set."""
    return prepared_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def tagged_data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """The pairs of `data`, with a tag before each source."""
    return prepared_pairs(tmp_path_factory.mktemp("tagged"), "<2de> ")


def prepared_pairs(place: Path, tag: str = "") -> PreparedData:
    """Prepare pairs in a folder, with a tag before each source."""
    lines = sentences(200, 1)
    (place / "source").write_text("".join(f"{tag}{line}\n" for line in lines))
    (place / "target").write_text("".join(f"{line}\n" for line in translated(lines)))
    files = {side: str(place / side) for side in ("source", "target")}
    return prepare(PrepareSettings(
        **files, valid_source=files["source"], valid_target=files["target"],  # type: ignore[arg-type]
        vocab_kind="word", shared_vocab=True, output=str(place / "data"), workers=1))


@pytest.fixture
def make_job(data: PreparedData, tmp_path: Path) -> Callable[..., MonolingualJob]:
    """Make the order of a training with back-translation, with some attributes changed."""
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in translated(sentences(20, 2))))
    sources = SettingsSources(defaults="automatic")
    return lambda **changed: dataclasses.replace(
        MonolingualJob(text, "target", data, tmp_path / "run", sources), **changed)


def test_lines_and_bytes_of_a_text_are_counted_and_a_sample_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("ä b\n\n \nc".encode())
    facts = text_facts(tmp_path / "a")
    assert (facts.lines, facts.bytes, facts.sample) == (4, 9, ["ä b", "c"])


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a", b"", "a has no text: pass a file with one sentence per line"),
    ("a", b"\n \n", "a has no text: pass a file"), ("a.gz", b"x", "a.gz is compressed, but .* decompress it"),
    ("a", b"b\n\xff\n", "a line 2: .*UTF-8"), ("b/c", b"", "b/c: the file does not exist")])
def test_unsuitable_text_is_one_clear_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    if "/" not in name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        text_facts(tmp_path / name)


def test_text_in_another_language_is_refused_and_text_in_the_language_is_not(data: PreparedData) -> None:
    source = sentences(100, 3)
    check_side(data, "source", source, "--a")
    check_side(data, "target", translated(source), "--a")
    with pytest.raises(DataError, match="--a: by its words, the text is in the source language, not in the target"):
        check_side(data, "target", source, "--a")
    with pytest.raises(DataError, match="--a: by its words, the text is in the target language, not in the source"):
        check_side(data, "source", translated(source), "--a")
    both = [f"{line} {other}" for line, other in zip(source, translated(source), strict=True)]
    with pytest.raises(DataError, match="--a: by its words, the text is in another language, not in the source .* or "
                                        "--no-text-check if it is in that language"):
        check_side(data, "source", both, "--a")
    with pytest.raises(DataError, match="--a: 100% of its tokens are unknown to the target vocabulary .* pass text in "
                                        "the target language, or --no-text-check if it is in that language"):
        check_side(data, "target", ["Да нет", "не знаю"], "--a")


@pytest.mark.parametrize(("translations", "message"), [
    (["", " "], "--teacher m: its translations of the first 2 lines of .*text are empty: pass another model"),
    (translated(sentences(100, 3)), "--teacher m does not translate into the source language of .*: pass a model of")])
def test_the_error_about_a_teacher_says_what_is_wrong_with_its_translations(
        make_job: Callable[..., MonolingualJob], translations: list[str], message: str) -> None:
    stages: Any = SimpleNamespace(_job=make_job(models=[SimpleNamespace(name="m")]))
    with pytest.raises(SettingsError, match=message):
        _Stages._check_translations(stages, translations)
    _Stages._check_translations(stages, ["", *sentences(100, 3)])


def test_source_text_without_the_tags_of_several_languages_is_refused(
        make_job: Callable[..., MonolingualJob], tagged_data: PreparedData, tmp_path: Path) -> None:
    text, tagged = sentences(20, 3), [f"<2de> {line}" for line in sentences(20, 3)]
    check_source_tags(tagged_data, tagged, "--a", "write it")
    (tmp_path / "untagged").write_text("".join(f"{line}\n" for line in text))
    with pytest.raises(DataError) as error:
        train_with_monolingual_text(make_job(side="source", text=tmp_path / "untagged", data=tagged_data), print)
    assert str(error.value) == (
        f"--source-monolingual {tmp_path / 'untagged'}: most lines do not begin with a tag, but each source of "
        f"{tagged_data.directory} does, as with <2de>: write the tag of the target language before each line, or pass "
        "--no-text-check if the lines are right.")
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_leaves_out_the_tags_of_the_sources_is_refused(
        make_job: Callable[..., MonolingualJob], tagged_data: PreparedData) -> None:
    stages: Any = SimpleNamespace(_job=make_job(models=[SimpleNamespace(name="m")], data=tagged_data))
    with pytest.raises(DataError, match="--teacher m: most lines do not begin with a tag, .* <2de>: pass a model that"):
        _Stages._check_translations(stages, sentences(100, 3))
    _Stages._check_translations(stages, ["", *(f"<2de> {line}" for line in sentences(100, 3))])


LOOPS = ["", "ab " * 20, "ha" * 20]
"""Translations without any use."""


@pytest.mark.parametrize(("sound", "faulty", "expected"), [(0, 30, True), (1, 99, False), (1, 101, True)])
def test_translations_are_useless_if_fewer_than_one_in_a_hundred_is_sound(tmp_path: Path, sound: int, faulty: int,
                                                                          expected: bool) -> None:
    translations = [*(LOOPS * faulty)[:faulty], *sentences(sound, 4), ""]
    lines = [*sentences(sound + faulty, 5), "", "not translated"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "translations").write_text("".join(f"{line}\n" for line in translations))
    assert are_nearly_all_faulty(tmp_path / "text", tmp_path / "translations", len(translations)) == expected


def test_repetition_of_the_text_is_no_fault_of_a_translation(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab ab ab ab ab\n")
    assert not are_nearly_all_faulty(tmp_path / "text", tmp_path / "text", 1)


def test_useless_translations_name_the_model_and_its_score_and_are_made_again(
        make_job: Callable[..., MonolingualJob]) -> None:
    job = make_job(sources=SettingsSources(defaults="automatic", overrides=(Overrides("--set", {"train.steps": 40}),)))
    (job.directory / "model" / "best").mkdir(parents=True)
    (job.directory / "model" / "best" / "record.json").write_text(
        '[{"step": 20, "score": 0.034, "metric": "validation_bleu"}]')
    save_record(job, open_record(job, text_facts(job.text).sha256))
    (job.directory / "translations").write_text("".join(f"{line}\n" for line in (LOOPS * 7)[:20]))
    with pytest.raises(DataError) as error:
        train_with_monolingual_text(job, lambda line: None)
    assert str(error.value) == (
        f"--monolingual {job.text}: all or nearly all translations by {job.directory / 'model'} (validation_bleu 0.03 "
        "at update 20) are empty or repetitive: run the same command with a higher train.steps to train this model "
        "further, or pass a better model as --teacher with another --logdir.")
    assert sorted(path.name for path in job.directory.iterdir()) == ["model", "record.json"]


def test_a_missing_tracker_is_named_before_the_text_is_read(make_job: Callable[..., MonolingualJob],
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    overrides = Overrides("--set", {"log.tracker": "mlflow", "train.steps": 5})
    job = make_job(sources=SettingsSources(defaults="automatic", overrides=(overrides,)), text=Path("missing"))
    with pytest.raises(SettingsError, match="log.tracker=mlflow needs the package mlflow"):
        train_with_monolingual_text(job, print)
    assert not job.logdir.exists()


def test_translations_that_the_filters_drop_are_made_again(make_job: Callable[..., MonolingualJob]) -> None:
    job = make_job(sources=SettingsSources(defaults="automatic", overrides=(Overrides("--set", {"train.steps": 40}),)))
    (job.directory / "model").mkdir(parents=True)
    save_record(job, open_record(job, text_facts(job.text).sha256))
    long_lines = [" ".join(sentences(80, seed)) for seed in range(20)]
    (job.directory / "translations").write_text("".join(f"{line}\n" for line in long_lines))
    with pytest.raises(DataError) as error:
        train_with_monolingual_text(job, lambda line: None)
    assert str(error.value) == (
        f"--monolingual {job.text}: all or nearly all translations by {job.directory / 'model'} are dropped by the "
        f"filters of {job.data.directory} (20 long source (lines 1, 2, 3, 4, 5, ...)): run the same command with a "
        "higher train.steps to train this model further, or pass a better model as --teacher with another --logdir.")
    assert not (job.directory / "translations").exists() and not (job.directory / "data").exists()


class FaultyTranslator:
    """A `Translator` whose translations of lines 1, 3 and 10 are empty, and which ends after `last` lines by Ctrl-C."""

    engine, checkpoint, search, stream = "graph", "", SearchSettings(), SimpleNamespace(window=4)
    faults: FaultCounts | None = None

    def __init__(self, last: int) -> None:
        self._last = last

    def translate_stream(self, lines: Iterable[bytes], name: str, first: int) -> Iterator[Translation]:
        return counted(self._translations(lines, first), name, first, self.faults)

    def _translations(self, lines: Iterable[bytes], first: int) -> Iterator[Translation]:
        for number, _ in enumerate(lines, first):
            if number > self._last:
                raise KeyboardInterrupt
            is_empty = number in (1, 3, 10)
            yield Translation([Hypothesis("" if is_empty else "a", 0.0, fault=EMPTY if is_empty else None)])


def test_the_faults_of_all_translations_are_reported_after_an_interruption(
        make_job: Callable[..., MonolingualJob], monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []

    def translate(last: int) -> None:
        stages = _Stages(make_job(), default_settings("transformer"), text_facts(make_job().text), reports.append)
        monkeypatch.setattr(stages, "_open_translator", lambda: FaultyTranslator(last))
        stages._translate()

    for last in (11, 14):       # resumed after lines 8 and 12: line 10 is translated twice
        with pytest.raises(KeyboardInterrupt):
            translate(last)
    translate(20)
    assert reports[-1] == "3 of 20 translations look wrong (empty, repetitive or cut)."


@pytest.mark.parametrize(("limits", "trained", "expected"), [
    ({"train.minutes": 60.0}, 900.0, 2580.0), ({"train.minutes": 60.0}, None, 3480.0),     # 120 s of translation so far
    ({"train.minutes": 1.0}, 900.0, 30.0),      # the translation of this window must still end
    ({"train.steps": 100.0}, 300.0, 630.0), ({"train.steps": 100.0}, None, None), ({}, 300.0, None)])
def test_the_time_until_the_end_of_all_stages_follows_from_the_limit_and_the_first_model(
        limits: dict[str, float], trained: float | None, expected: float | None) -> None:
    stages: Any = SimpleNamespace(_limits=limits, _record=SimpleNamespace(seconds=120.0),
                                  _model_seconds=lambda: trained)
    assert _Stages._seconds_left(stages, 30.0) == expected


@pytest.mark.parametrize(("limits", "model", "spent", "final"), [
    ({"train.steps": 101.0}, {"train.steps": 51}, 0.4, {"train.steps": 101}),
    ({"train.epochs": 1.0, "train.minutes": 0.0}, {"train.epochs": 1}, 0.4, {"train.epochs": 1}),
    ({"train.minutes": 60.0}, {"train.minutes": 15.0}, 21.5, {"train.minutes": 38.5}),
    ({"train.minutes": 1.0}, {"train.minutes": 0.25}, 2.0, {"train.minutes": 0.01}), ({}, {}, 0.4, {})])
def test_the_limits_of_both_models_are_shares_of_those_of_the_user(
        limits: dict[str, float], model: dict[str, float], spent: float, final: dict[str, float]) -> None:
    assert model_limits(limits) == model
    assert final_limits(limits, spent) == final


def test_translated_pairs_are_at_most_half_and_otherwise_as_frequent_as_true_ones() -> None:
    assert [translated_share(1000, count) for count in (1, 250, 1000, 9000)] == [0.001, 0.2, 0.5, 0.5]
    assert translated_share(1_000_000, 10) == 0.0001        # 0 would leave out all translations


@pytest.mark.parametrize(("changed", "message"), [
    ({"data.subword_sampling": True}, "text: data.subword_sampling does not support mixed data: leave it out"),
    ({"data.modifiers": ["upper=0.1"]}, "text: data.modifiers does not support mixed data"),
    ({"model.guided_alignment_weight": 0.1}, "text: model.guided_alignment_weight does not support mixed data")])
def test_settings_that_mixed_data_do_not_support_are_refused(
        make_job: Callable[..., MonolingualJob], changed: dict[str, Any], message: str) -> None:
    settings = default_settings("transformer")
    check_job(make_job(), apply_overrides(settings, {"train.steps": 5}, "--set"))
    with pytest.raises(SettingsError, match=message):
        check_job(make_job(), apply_overrides(settings, {"train.steps": 5, **changed}, "--set"))


def test_a_first_model_that_would_train_for_ever_and_a_run_without_the_text_are_refused(
        make_job: Callable[..., MonolingualJob]) -> None:
    settings = default_settings("transformer")
    check_job(make_job(), settings)      # automatic settings stop at the best validation
    patient = apply_overrides(settings, {"train.stop_patience": 5}, "--set")
    check_job(make_job(sources=SettingsSources()), patient)
    unvalidated = apply_overrides(patient, {"validation.steps": 0}, "--set")
    for job, endless in ((make_job(sources=SettingsSources()), settings), (make_job(), unvalidated)):
        with pytest.raises(SettingsError, match="without a limit, the training of the first model would never end"):
            check_job(job, endless)
    models: Any = [SimpleNamespace(name="m")]
    check_job(make_job(sources=SettingsSources(), models=models), settings)     # no first model is trained
    job = make_job()
    run: Any = SimpleNamespace(saved_settings=lambda: {"made_from.data": job.data.fingerprint})
    with pytest.raises(SettingsError, match="holds a run that began without monolingual text: pass another --logdir"):
        check_job(make_job(sources=SettingsSources(run=run)), settings)


def test_a_run_whose_record_was_removed_is_not_called_a_run_without_text(make_job: Callable[..., MonolingualJob]
                                                                         ) -> None:
    run: Any = SimpleNamespace(saved_settings=lambda: {"made_from.data": "fingerprint of mixed data"})
    job = make_job(sources=SettingsSources(run=run))
    with pytest.raises(SettingsError) as error:
        check_job(job, default_settings("transformer"))
    assert str(error.value) == (
        f"{job.option}: {job.directory / 'record.json'} is missing, so the run in {job.logdir} cannot be resumed with "
        f"monolingual text: restore {job.directory}, or pass another --logdir, with --start {job.logdir} to begin with "
        "its model.")


def test_translated_pairs_are_no_general_data(make_job: Callable[..., MonolingualJob], data: PreparedData) -> None:
    """General data allow a higher learning rate and less dropout, because they keep a trained model from forgetting."""
    mixed: list[Any] = []

    def train(sources: Any, data: Any, logdir: Path) -> int:
        mixed.append(data)
        return 0

    stages: Any = SimpleNamespace(_prepared=data.directory, _begin_stage=lambda *_: None, _count=4, _train=train,
                                  _seconds_left=lambda _: None, _limits={}, _specified_share=None,
                                  _record=SimpleNamespace(spent_minutes=0.0))
    for side in ("target", "source"):
        stages._job = make_job(side=side)
        assert _Stages._train_final(stages) == 0
    conditions = [training_conditions(data, None, None) for data in (*mixed, with_general_data(data, data.directory))]
    assert [condition.is_mixed for condition in conditions] == [True, True, True]
    assert [condition.has_general_data for condition in conditions] == [False, False, True]


@pytest.mark.parametrize("side", ["target", "source"])
def test_the_first_model_has_no_initial_parameters_no_mixed_pairs_and_no_shortlist_of_another_direction(
        make_job: Callable[..., MonolingualJob], side: str) -> None:
    overrides = (Overrides("mine.yaml", {"search.shortlist": "lex", "init.checkpoint": "runs/a"}),
                 Overrides("--set", {"search.beam_size": 3, "search.shortlist": "lex", "data.general_share": 0.3}))
    passed: list[Any] = []
    job = make_job(side=side, sources=SettingsSources(overrides=overrides))
    stages: Any = SimpleNamespace(
        _job=job, _model=SimpleNamespace(exists=lambda: False, path=job.directory), _begin_stage=lambda *_: None,
        _limits={}, _languages="", _train=lambda sources, data, logdir: passed.append(sources) or 0)
    assert _Stages._train_model(stages) == 0
    expected = {} if side == "target" else {"search.shortlist": "lex"}
    assert [values for _, values in passed[0].overrides] == [expected, {"search.beam_size": 3, **expected}, {}]


def test_settings_of_a_started_model_and_of_frozen_variables_are_not_for_the_first_model(
        make_job: Callable[..., MonolingualJob]) -> None:
    rates = {"optimizer.learning_rate": 0.0001, "schedule.name": "constant", "model.lhuc": True}
    overrides = (Overrides("mine.yaml", {"architecture": "rnnsearch", "train.freeze": ["embedding"], **rates}),
                 Overrides("--set", {"train.only": ["/lhuc$"], "data.batch_tokens": 512}))
    start: Any = SimpleNamespace(name="m")
    passed: list[Any] = []
    for job in (make_job(sources=SettingsSources(overrides=overrides, start=each)) for each in (None, start)):
        stages: Any = SimpleNamespace(
            _job=job, _model=SimpleNamespace(exists=lambda: False, path=job.directory), _begin_stage=lambda *_: None,
            _limits={}, _languages="", _train=lambda sources, data, logdir: passed.append(sources) or 0)
        assert _Stages._train_model(stages) == 0
    assert [sources.start for sources in passed] == [None, None]
    assert [[values for _, values in sources.overrides] for sources in passed] == [
        [{"architecture": "rnnsearch", **rates}, {"data.batch_tokens": 512}, {}],
        [{}, {"data.batch_tokens": 512}, {}]]


def test_a_setting_of_the_final_model_without_effect_is_refused_before_the_translation(
        make_job: Callable[..., MonolingualJob], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Stages, "run", lambda stages: 0)
    models: Any = [SimpleNamespace(name="m", weights_checksum=lambda: "abc")]

    def train(**assigned: Any) -> int:
        values = {"train.steps": 5, **{key.replace("__", "."): value for key, value in assigned.items()}}
        sources = SettingsSources(overrides=(Overrides("--set", values),))
        return train_with_monolingual_text(make_job(sources=sources, models=models), print)

    assert train(data__general_share=0.3) == 0
    with pytest.raises(SettingsError, match="--set: schedule.decay_steps=9 has no effect with schedule.name=inverse"):
        train(schedule__decay_steps=9)


@pytest.mark.parametrize(("side", "languages"), [("target", "en-tr"), ("source", "tr-en")])
def test_the_letter_case_of_the_first_model_is_that_of_its_direction(
        make_job: Callable[..., MonolingualJob], monkeypatch: pytest.MonkeyPatch, side: str, languages: str) -> None:
    assigned, passed = {"data.modifier_languages": "tr-en"}, list[Any]()
    job = make_job(side=side, sources=SettingsSources(overrides=(Overrides("--set", assigned),)))
    settings = apply_overrides(default_settings("transformer"), assigned, "--set")
    stages = _Stages(job, settings, text_facts(job.text), print)
    monkeypatch.setattr(stages, "_train", lambda sources, data, logdir: passed.append(sources) or 0)
    assert stages._train_model() == 0
    values = {key: value for _, values in passed[0].overrides for key, value in values.items()}
    assert values == {"data.modifier_languages": languages}


@pytest.mark.parametrize(("assigned", "share"), [({}, 50), ({"data.general_share": 0.3}, 30)])
def test_the_report_has_the_share_of_the_translated_pairs_in_training(
        make_job: Callable[..., MonolingualJob], data: PreparedData, monkeypatch: pytest.MonkeyPatch,
        assigned: dict[str, float], share: int) -> None:
    job, reports = make_job(sources=SettingsSources(overrides=(Overrides("--set", assigned),))), list[str]()
    stages = _Stages(job, apply_overrides(default_settings("transformer"), assigned, "--set"), text_facts(job.text),
                     reports.append)
    monkeypatch.setattr(stages, "_prepared", data.directory)
    monkeypatch.setattr(stages, "_train", lambda *_: 0)
    assert stages._train_final() == 0
    assert reports == ["Stage 4 of 4: train on 200 true pairs and 200 translated pairs, which are "
                       f"{share}% of each epoch."]


def test_too_little_disk_space_is_one_clear_sentence(make_job: Callable[..., MonolingualJob],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=4_900_000_000))
    check_space(make_job(), 900_000_000)
    with pytest.raises(SettingsError, match=r"has 4.9 GB of free space, but the translations .* need about 5.0 GB"):
        check_space(make_job(), 1_000_000_000)


def test_a_changed_text_and_other_options_are_refused(make_job: Callable[..., MonolingualJob]) -> None:
    first = open_record(make_job(), "abc")
    make_job().directory.mkdir(parents=True)
    save_record(make_job(), first)
    assert open_record(make_job(), "abd") != first     # nothing depends on it yet
    (make_job().directory / "model").mkdir()
    assert open_record(make_job(), "abc") == first
    with pytest.raises(DataError, match=r"--monolingual .*text is not what .*run was begun with .* restore it"):
        open_record(make_job(), "abd")
    with pytest.raises(DataError, match="--source-monolingual .*text is not what .*run was begun with"):
        open_record(make_job(side="source"), "abc")
    save_record(make_job(), dataclasses.replace(first, inputs={**first.inputs, "--later": "def"}))
    with pytest.raises(DataError, match=r"record.json has 4 inputs where 3 are expected: resume with the version"):
        open_record(make_job(), "abc")


@pytest.mark.parametrize(("options", "message"), [
    (["--monolingual", "a", "--source-monolingual", "b"], "--monolingual and --source-monolingual exclude each other"),
    (["--monolingual", "a", "--general", "g"], "--monolingual and --general exclude each other: leave out one"),
    (["--source-monolingual", "a", "--dry-run"], "--source-monolingual and --dry-run exclude each other"),
    (["--monolingual", "a", "--workers", "2"], "--monolingual and --workers exclude each other"),
    (["--monolingual", "a", "--vocabulary", "v"], "--monolingual and --vocabulary exclude each other"),
    (["--teacher", "m"], "--teacher is an option of --monolingual and --source-monolingual"),
    (["--no-text-check"], "--no-text-check is an option of --monolingual and --source-monolingual")])
def test_options_that_exclude_each_other_are_one_clear_sentence(
        data: PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
        ) -> None:
    assert main(["train", "--data", str(data.directory), "--logdir", str(tmp_path / "run"), *options]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_unprepared_text_is_one_clear_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "a.{de,en}", "--logdir", str(tmp_path / "run"), "--monolingual", "b"]) == 1
    assert "--monolingual needs prepared data, but a.{de,en} is unprepared text: prepare" in capsys.readouterr().err


def test_a_training_with_text_is_not_resumed_without_it(data: PreparedData, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "monolingual").mkdir()
    (tmp_path / "monolingual" / "record.json").write_text("{}")
    assert main(["train", "--data", str(data.directory), "--logdir", str(tmp_path)]) == 1
    assert "holds a training with monolingual text: pass the same --monolingual" in capsys.readouterr().err
