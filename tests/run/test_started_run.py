"""The settings of a run that starts from a trained model, and settings that contradict the model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.checkpoint.records import INITIAL_WEIGHTS, provenance, recorded_initial_weights
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, flatten
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.run.directory import RunDirectory
from towernmt.run.resolve import Overrides, SettingsSources, read_config, resolve_settings
from towernmt.run.run_settings import InitSettings, Settings, default_settings
from towernmt.run.started_run import StartingModel, check_data_of_start, starting_settings

SAVED = {"model.hidden_size": 32, "model.heads": 2, "model.postprocess": "drn", "model.preprocess": "",
         "model.residual_dropout": 0.4, "model.label_smoothing": 0.3, "model.guided_alignment_layer": 2,
         "search.beam_size": 6, "search.length_penalty": 0.3, "optimizer.learning_rate": 0.7, "train.minutes": 9}


def write_checkpoint(run: SavedRun, weights: str) -> None:
    """Write a checkpoint that only has an index, which stands for these weights."""
    checkpoint = run.checkpoints / "step-1"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "model.index").write_text(weights)
    (checkpoint / "state.json").write_text("{}")


@pytest.fixture
def start(tmp_path: Path) -> StartingModel:
    """Return a model with unusual settings."""
    run = RunDirectory(tmp_path / "first")
    vocabulary = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", "a", "b"])
    save_vocabularies(vocabulary, vocabulary, run.vocabulary)
    run.save_settings(apply_overrides(default_settings(), SAVED))
    write_checkpoint(run, "first")
    return at(run.path)


def at(path: str | Path) -> StartingModel:
    """Return the model in a directory."""
    return StartingModel("first", str(path), SavedRun(path), ("A note.",))


def begun(run: RunDirectory, start: StartingModel) -> RunDirectory:
    """Return a run that began with a model, without its vocabularies."""
    run.save_settings(resolved(start), provenance({INITIAL_WEIGHTS: start.weights_checksum()}))
    return run


def resolved(start: StartingModel, *overrides: tuple[str, Mapping[str, Any]], **more: Any) -> Any:
    """Resolve the settings of a run that starts from the model."""
    return resolve_settings(SettingsSources(start=start, overrides=tuple(Overrides(*one) for one in overrides),
                                            **more)).settings


def test_sizes_and_search_come_from_the_model_and_how_to_train_does_not(start: StartingModel) -> None:
    settings, usual = resolved(start), default_settings()
    model, search = settings.model, settings.search
    assert (model.hidden_size, model.heads, model.postprocess, model.guided_alignment_layer) == (32, 2, "drn", 2)
    assert (search.beam_size, search.length_penalty) == (6, 0.3)
    assert settings.init.checkpoint == start.location
    assert (model.residual_dropout, model.label_smoothing) == (usual.model.residual_dropout, 0.1)
    assert settings.optimizer == usual.optimizer and settings.train == usual.train


def test_the_shortlist_of_a_package_is_named_by_the_package_and_not_by_its_copy_in_the_cache(
        start: StartingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "cache" / "shortlist.lexicon"
    RunDirectory(start.run.path).save_settings(apply_overrides(
        default_settings(), {**SAVED, "search.shortlist": str(cached)}))
    package = tmp_path / "de-en.towernmt.zip"
    package.touch()
    packaged = StartingModel(str(package), str(package), SavedRun(start.run.path))
    monkeypatch.chdir(tmp_path)
    for name in (str(package), package.name):
        assert resolved(packaged._replace(name=name, location=name)).search.shortlist == str(package)
    assert resolved(at(start.run.path)).search.shortlist == str(cached)     # of a run


@pytest.mark.parametrize("saved, heads", [
    ({}, 0), ({"guided_alignment_weight": 0.1}, 1), ({"guided_alignment_weight": 0.1, "guided_alignment_heads": 2}, 2),
    ({"guided_alignment_heads": 2}, 2)])
def test_the_heads_that_have_learned_alignments_still_align_without_guided_alignment(
        start: StartingModel, saved: dict[str, float], heads: int) -> None:
    RunDirectory(start.run.path).save_settings(apply_overrides(
        default_settings(), {**SAVED, **{f"model.{name}": value for name, value in saved.items()}}))
    model = resolved(at(start.run.path)).model
    assert (model.guided_alignment_weight, model.guided_alignment_layer, model.guided_alignment_heads) == (0, 2, heads)


def test_a_custom_model_keeps_its_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from towernmt.models import Transformer\n\n\nclass Mine(Transformer):\n"
                                      "    pass\n")
    run = RunDirectory(tmp_path / "first")
    run.save_settings(apply_overrides(default_settings(f"{tmp_path}/mine.py:Mine"), {"model.hidden_size": 48}))
    settings = starting_settings(StartingModel("first", str(run.path), SavedRun(run.path)))
    assert settings.architecture == run.architecture_to_load() and settings.model.hidden_size == 48
    again = starting_settings(StartingModel("first", str(run.path), SavedRun(run.path)), f"{tmp_path}/mine.py:Mine")
    assert again.architecture == f"{tmp_path}/mine.py:Mine" and again.model.hidden_size == 48


@pytest.mark.parametrize(("values", "more", "message"), [
    ({}, {"preset": "tiny"}, "--preset tiny: the sizes are those of the model of --start first: leave out --preset."),
    ({}, {"model": "rnnsearch"}, "--model rnnsearch: the model of --start first is transformer: leave out --model."),
    ({"model.hidden_size": 64}, {}, "--set: model.hidden_size=64, but the parameters of --start first need "
                                    "model.hidden_size=32: leave it out."),
    ({"model.tie_embeddings": "none"}, {}, "need model.tie_embeddings=all: leave it out."),
    ({"init.checkpoint": "runs/b"}, {}, "--set: init.checkpoint=runs/b, but --start first already names the model"),
    ({"init.source_embeddings": "a.npy"}, {}, "--set: init.source_embeddings=a.npy would replace the embeddings of "
                                              "--start first: leave it out."),
    ({"init.target_embeddings": "a.npy"}, {}, "init.target_embeddings=a.npy would replace the embeddings"),
    ({"model.target_vocab_size": 9}, {}, "--set: model.target_vocab_size cannot be set"),
])
def test_what_contradicts_the_model_is_refused_by_its_name(start: StartingModel, values: dict[str, Any],
                                                            more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolved(start, ("--set", values), **more)
    assert message in str(error.value)


def test_the_message_names_the_option_of_the_model(start: StartingModel) -> None:
    for values in ({"model.hidden_size": 64}, {"init.checkpoint": "runs/b"}, {"init.source_embeddings": "a.npy"}):
        with pytest.raises(SettingsError, match="--model first") as error:
            resolved(start._replace(option="--model"), ("--set", values))
        assert "--start" not in str(error.value)


def test_equal_values_and_settings_of_training_are_accepted(start: StartingModel) -> None:
    settings = resolved(start, ("mine.yaml", {"model.hidden_size": 32, "init.checkpoint": start.location}),
                        ("--set", {"model.lhuc": True, "model.residual_dropout": 0.2, "train.steps": 5}),
                        model="transformer")
    assert settings.model.lhuc and settings.model.residual_dropout == 0.2 and settings.train.steps == 5


@pytest.mark.parametrize("recorded", [
    {"init.embeddings": "cooccurrence"}, {"init.checkpoint": "runs/b"},
    {"init.source_embeddings": "a.npy", "init.target_embeddings": "b.npy"}])
def test_the_settings_of_an_earlier_training_are_used_with_a_starting_model(
        start: StartingModel, tmp_path: Path, recorded: dict[str, Any]) -> None:
    """The file contains all settings, also those of random or other initial values."""
    earlier, run = RunDirectory(tmp_path / "earlier"), RunDirectory(tmp_path / "second")
    earlier.save_settings(apply_overrides(default_settings(), {**SAVED, "schedule.name": "constant", **recorded}))
    config = read_config(earlier.path / "settings.yaml")
    expected = flatten(earlier.settings()) | flatten(InitSettings(start.location), "init.")
    result = resolve_settings(SettingsSources(start=start, overrides=(config,)))
    assert flatten(result.settings) == expected
    replaced = " and ".join(f"{key}={value}" for key, value in recorded.items())
    has = "have" if len(recorded) > 1 else "has"
    assert result.notes == ["A note.", f"{config.origin}: {replaced} {has} no effect, because the run starts from "
                            "--start first."]
    run.save_settings(result.settings, provenance({INITIAL_WEIGHTS: start.weights_checksum()}))
    (run.path / "automatic.yaml").write_text("")
    assert flatten(resolved(start, config, run=run)) == expected        # the same command resumes the run
    own = Overrides(config.origin, {"init.checkpoint": start.location, "init.embeddings": "random"})
    assert resolve_settings(SettingsSources(start=start, overrides=(own,))).notes == ["A note."]


@pytest.mark.parametrize(("architecture", "message"), [
    ("transformer", "model.hidden_size=256, but the parameters of --start first need model.hidden_size=32: remove the "
                    "group `model` from a copy of the file, to use its other settings."),
    ("rnnsearch", "has the settings of the model rnnsearch, but the model of --start first is transformer: remove "
                  "`architecture` and the group `model` from a copy of the file, to use its other settings.")])
def test_the_settings_of_a_training_of_another_model_are_refused_with_the_remedy(
        start: StartingModel, tmp_path: Path, architecture: str, message: str) -> None:
    earlier = RunDirectory(tmp_path / "earlier")
    earlier.save_settings(apply_overrides(default_settings(architecture), {"train.steps": 7}))
    config = read_config(earlier.path / "settings.yaml")
    with pytest.raises(SettingsError) as error:
        resolved(start, config)
    assert str(error.value) == f"{config.origin}{':' * (architecture == 'transformer')} {message}"
    others = {key: value for key, value in config.values.items() if key.partition(".")[0] not in (
        "architecture", "model")}
    assert resolved(start, (config.origin, others)).train.steps == 7


@pytest.mark.parametrize(("optimizer", "specified", "rate"), [
    ("muon", {"model.hidden_size": 32}, 0.001), ("adam", {}, 0.0002),
    ("adam", {"optimizer.learning_rate": 0.5}, 0.5), ("adam", {"schedule.name": "piecewise",
                                                               "schedule.values": [0.1]}, None)])
def test_several_workers_have_the_optimizer_and_the_rate_of_a_trained_model(
        start: StartingModel, optimizer: str, specified: dict[str, Any], rate: float | None) -> None:
    RunDirectory(start.run.path).save_settings(apply_overrides(
        default_settings(), {**SAVED, "optimizer.name": optimizer}))
    vocabulary = start.run.vocabularies()[0]
    data: Any = SimpleNamespace(directory="data", source_vocabulary=vocabulary, target_vocabulary=vocabulary,
                                valid_source=[], validation_sets=[], copy_vocabularies=lambda place: save_vocabularies(
                                    vocabulary, vocabulary, place))
    result = resolve_settings(SettingsSources(
        start=at(start.run.path), overrides=(Overrides("--set", specified),), defaults="shared",
        open_data=lambda: data, workers=2, towers=1))
    usual = default_settings().optimizer.learning_rate
    assert (result.settings.optimizer.name, result.settings.optimizer.learning_rate) == (
        optimizer, usual if rate is None else rate)
    automatic = {setting.key for setting in result.automatic or ()}
    assert ("optimizer.learning_rate" in automatic) == (rate in (0.001, 0.0002)) and result.towers == 1
    assert automatic <= {"optimizer.name", "optimizer.learning_rate", "train.clip_norm"}
    fixed = resolve_settings(SettingsSources(start=at(start.run.path), defaults="fixed", open_data=lambda: data,
                                             workers=2))
    assert fixed.settings.optimizer == default_settings().optimizer and fixed.automatic is None


def test_a_run_resumes_only_with_the_model_that_it_began_with(start: StartingModel, tmp_path: Path) -> None:
    run = begun(RunDirectory(tmp_path / "second"), start)
    assert resolved(start, run=run).init.checkpoint == start.location
    shutil.copytree(start.run.path, tmp_path / "other")
    write_checkpoint(SavedRun(tmp_path / "other"), "other")
    other = at(tmp_path / "other")._replace(name="other")
    with pytest.raises(SettingsError, match="--start other: .*second holds a run that began with other parameters "
                                            r"\(init.checkpoint=.*first\): leave out --start to resume it, or pass"):
        resolved(other, run=run)
    new = RunDirectory(tmp_path / "third")
    new.save_settings(default_settings())
    with pytest.raises(SettingsError, match="holds a run that began with random parameters"):
        resolved(start, run=new)
    with pytest.raises(SettingsError, match="first is the run of --start: pass another --logdir for the new run"):
        resolved(start, run=RunDirectory(start.run.path))


def test_a_model_is_the_same_under_another_path(start: StartingModel, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """A run resumes from another directory, and with a model that was moved, for example to another cache."""
    monkeypatch.chdir(tmp_path)
    run = begun(RunDirectory(tmp_path / "second"), at("first"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resolved(at("../first"), run=run).init.checkpoint == "../first"
    shutil.move(start.run.path, "moved")
    assert resolved(at("moved"), run=run).init.checkpoint == "moved"


def test_initial_values_of_settings_are_those_of_a_starting_model(start: StartingModel, tmp_path: Path) -> None:
    """As with --start, the weights decide for init.checkpoint, and a run that has begun accepts no others."""
    run = begun(RunDirectory(tmp_path / "second"), start)
    (run.path / "automatic.yaml").write_text("")

    def resumed(path: Path) -> Settings:
        sources = SettingsSources(run=run, overrides=(Overrides("--set", {"init.checkpoint": str(path)}),))
        return resolve_settings(sources).settings

    shutil.copytree(start.run.path, tmp_path / "copy")
    assert resumed(tmp_path / "copy").init.checkpoint == str(tmp_path / "copy")
    write_checkpoint(SavedRun(tmp_path / "copy"), "trained further")
    with pytest.raises(SettingsError, match="init.checkpoint=.*copy is for new runs, but .*second holds a run that "
                                            "began with init.checkpoint=.*first: leave it out to resume the run"):
        resumed(tmp_path / "copy")


def test_another_model_under_the_same_path_is_refused(start: StartingModel, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = begun(RunDirectory(tmp_path / "second"), at("first"))
    shutil.copytree("first", "elsewhere/first")
    monkeypatch.chdir("elsewhere")
    write_checkpoint(SavedRun("first"), "trained further")
    with pytest.raises(SettingsError, match="holds a run that began with other parameters"):
        resolved(at("first"), run=run)


def test_a_run_records_the_weights_that_it_begins_with_until_it_has_its_own(
        start: StartingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.run.run_log.begin_log", lambda folder: None)
    vocabulary = start.run.vocabularies()[0]
    data: Any = SimpleNamespace(directory="data", validation_sets=[], copy_vocabularies=lambda place: save_vocabularies(
        vocabulary, vocabulary, place))
    run, recorded = RunDirectory(tmp_path / "second"), []
    for weights in ("first", "trained further", "trained even further"):
        write_checkpoint(start.run, weights)
        if weights == "trained even further":
            write_checkpoint(run, "own")
        run.begin(resolved(start), data)
        recorded.append(recorded_initial_weights(run.saved_settings()))
    assert recorded[0] and recorded[0] != recorded[1] == recorded[2] != start.weights_checksum()
    other = RunDirectory(tmp_path / "third")
    other.begin(default_settings(), data)
    assert recorded_initial_weights(other.saved_settings()) == ""


def test_a_foreign_vocabulary_is_one_clear_sentence(start: StartingModel) -> None:
    def data(*words: str) -> Any:
        vocabulary = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", *words])

        def copy_vocabularies(place: str) -> None:
            save_vocabularies(vocabulary, vocabulary, place)
            SourceText(["other"]).save(place)       # not part of the vocabulary

        return SimpleNamespace(directory="data/new", copy_vocabularies=copy_vocabularies)

    check_data_of_start(start, data("a", "b"))
    with pytest.raises(SettingsError) as error:
        check_data_of_start(start, data("a", "c"))
    assert str(error.value) == (
        "data/new has another vocabulary than the model of --start first (source.words differs): prepare the text with "
        "`towernmt prepare --vocabulary-of first`, or pass it unprepared, without a vocabulary.")


def test_the_notes_of_an_imported_model_are_reported_once(start: StartingModel, monkeypatch: pytest.MonkeyPatch,
                                                          tmp_path: Path) -> None:
    monkeypatch.setattr("towernmt.run.resolve.product_rates", lambda gpus: None)
    monkeypatch.setattr("towernmt.run.rules.model_rules.settings_of_initial_run", lambda settings: iter(()))
    vocabulary = start.run.vocabularies()[0]
    data = SimpleNamespace(directory="data", source_vocabulary=vocabulary, target_vocabulary=vocabulary,
                           valid_source=[], validation_sets=[], copy_vocabularies=lambda place: save_vocabularies(
                               vocabulary, vocabulary, place))
    for defaults in ("automatic", "fixed"):
        sources = SettingsSources(start=start, defaults=defaults, open_data=lambda: data)
        assert resolve_settings(sources).notes == ["A note."]
    run = begun(RunDirectory(tmp_path / "second"), start)
    assert resolve_settings(SettingsSources(start=start, run=run, open_data=lambda: data)).notes == []


def test_a_path_of_a_setting_may_begin_with_the_home_directory(
        start: StartingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell replaces `~` at the beginning of a word only, and a settings file is not read by a shell."""
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = {"init.checkpoint": "~/first", "search.shortlist": "~/a b.lexicon", "init.source_embeddings": "~/v.npy"}
    values = flatten(resolve_settings(SettingsSources(overrides=(Overrides("mine.yaml", paths),))).settings)
    assert {key: values[key] for key in paths} == {key: f"{tmp_path}/{path[2:]}" for key, path in paths.items()}
    run = begun(RunDirectory(tmp_path / "second"), start)
    (run.path / "automatic.yaml").write_text("")
    again = SettingsSources(run=run, overrides=(Overrides("--set", {"init.checkpoint": "~/first"}),))
    assert resolve_settings(again).settings.init.checkpoint == start.location
