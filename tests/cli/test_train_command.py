"""`towernmt train`: settings from the command line, files and the run; refusals in one sentence."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.cli.main import main, make_parser
from towernmt.cli.run_options import defaults_mode, settings_sources, workers_of_cluster
from towernmt.core.errors import CheckpointError
from towernmt.core.settings import apply_overrides, save_yaml
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.run import forecast
from towernmt.run.automatic_settings import apply_automatic_settings
from towernmt.run.directory import RunDirectory
from towernmt.run.product_rates import ProductRates
from towernmt.run.resolve import Overrides, ResolvedSettings, SettingsSources, resolve_settings
from towernmt.run.rules import batch_rules
from towernmt.run.run_settings import default_settings
from towernmt.run.training_conditions import training_conditions

COMMON_SETTINGS = """
train.steps train.epochs train.minutes data.batch_tokens data.batch_type train.update_cycle data.seed
checkpoint.steps validation.steps checkpoint.keep checkpoint.keep_best train.precision
train.clip_norm optimizer.name optimizer.learning_rate schedule.name schedule.warmup_steps model.hidden_size
model.filter_size model.heads model.encoder_layers model.decoder_layers model.label_smoothing
model.residual_dropout model.attention_dropout model.activation_dropout model.embedding_dropout
""".split()

SMALL = ["model.hidden_size=16", "model.filter_size=16", "model.heads=2", "model.encoder_layers=1",
         "model.decoder_layers=1", "data.batch_tokens=100", "validation.steps=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_pairs) -> Path:
    """Prepare 50 pairs of random words, about 8 batches."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder)
    assert main(["prepare", "--source", str(folder / "source"), "--target", str(folder / "target"), "--vocab-kind",
                 "word", "--shared-vocab", "--output", str(folder / "data")]) == 0
    return folder / "data"


@pytest.fixture
def train(data, tmp_path, capsys):
    """Return `train(*settings, ...)`, which runs the command in `run` and returns the status and the standard error."""

    def run(*settings: str, arguments: tuple[str, ...] = (), logdir: Path = tmp_path / "run") -> tuple[int, str]:
        assignments = ["--set", *settings] if settings else []
        status = main(["train", "--defaults=fixed", "--data", str(data), "--logdir", str(logdir), *arguments,
                       *assignments])
        return status, capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def six_steps(data, tmp_path_factory) -> Path:
    """Return the directory of a run of six steps."""
    logdir = tmp_path_factory.mktemp("six") / "run"
    assert main(["train", "--defaults=fixed", "--data", str(data), "--logdir", str(logdir), "--set", *SMALL,
                 "train.steps=6", "checkpoint.steps=3"]) == 0
    return logdir


def test_the_help_lists_the_common_settings(capsys):
    assert main(["train", "--help-settings"]) == 0
    assert set(COMMON_SETTINGS) <= set(re.findall(r"^([a-z_.]+)=", capsys.readouterr().out, re.M))


@pytest.mark.parametrize("settings, arguments, message", [
    (["train.batch_tokns=1"], [], "there is no setting 'train.batch_tokns'. Did you mean 'data.batch_tokens'?"),
    (["learning_rate=1"], [], "Did you mean 'optimizer.learning_rate'?"),
    (["train.steps=many"], [], "train.steps=many is not a whole number (default: 0)."),
    (["train.steps"], [], "expected key=value"),
    (["optimizer.name=adamm"], [], "optimizer.name=adamm is not one of adam, adamw, "),
    (["data.batch_type=words"], [], "data.batch_type=words is not one of target"),
    (["data.batch_tokens=0"], [], "batch_tokens=0"),
    (["train.update_cycle=0"], [], "train.update_cycle=0 must be at least 1."),
    (["log.steps=0"], [], "log.steps=0 must be at least 1."),
    (["checkpoint.keep=0"], [], "checkpoint.keep=0 must be at least 1."),
    (["model.heads=3"], [], "heads"),
    ([], ["--model", "tranformer"], "tranformer"),
    ([], ["--preset", "huge"],
     "--preset huge: transformer has the presets mini, tiny, small, base, big, modern, student, deep_shallow, "
     "tiny-fast, base-fast, deep."),
    ([], ["--gpu", "0"], "--gpu 0: GPU 0 was not found ("),
    ([], ["--gpu", "zero"], "--gpu zero: expected GPU numbers separated by commas"),
    ([], ["--towers", "0"], "towers"),
    ([], ["--config", "none.yaml"], "none.yaml: cannot read the settings file"),
])
def test_options_that_cannot_work_are_refused_in_one_sentence(train, tmp_path, settings, arguments, message):
    status, error = train(*settings, arguments=tuple(arguments))
    assert status == 1
    assert message in error
    assert error.startswith("towernmt: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()      # no file is left that would obstruct the correct command


def test_settings_with_which_a_run_cannot_begin_are_not_recorded(train, tmp_path):
    status, error = train(*SMALL, "train.steps=1", "train.freeze=nowhere", "data.seed=7")
    assert status == 1 and "train.freeze=nowhere matches no trainable variable" in error
    run = RunDirectory(tmp_path / "run")
    assert not run.exists() and not run.vocabulary.exists()
    assert train(*SMALL, "train.steps=1")[0] == 0
    assert (run.settings().train.freeze, run.settings().data.seed) == ([], default_settings().data.seed)


def test_settings_with_which_a_run_cannot_resume_are_not_recorded(train, six_steps, tmp_path, monkeypatch):
    logdir = Path(shutil.copytree(six_steps, tmp_path / "run"))
    before = (logdir / "settings.yaml").read_text()

    def refuse(checkpoint: object) -> None:
        raise CheckpointError("a variable is missing")

    monkeypatch.setattr(RestoreCheckpoint, "_setup_graph", refuse)
    assert train("train.steps=8") == (1, "towernmt: a variable is missing\n")
    assert (logdir / "settings.yaml").read_text() == before


def test_gpu_and_towers_together_are_refused(train, capsys):
    with pytest.raises(SystemExit):
        train(arguments=("--gpu", "0", "--towers", "2"))
    assert "not allowed with" in capsys.readouterr().err


def test_the_error_of_missing_data_is_one_sentence(tmp_path, capsys):
    assert main(["train", "--defaults=fixed", "--data", str(tmp_path / "none"), "--logdir", str(tmp_path / "run")]) == 1
    assert "none" in capsys.readouterr().err
    assert main(["train", "--defaults=fixed", "--logdir", str(tmp_path / "run")]) == 1
    assert "--data is missing" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_one_sentence(data, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", "--defaults=fixed", "--data", str(data), "--logdir", str(tmp_path / "file" / "run"), "--set",
                 *SMALL]) == 1
    error = capsys.readouterr().err
    assert "file" in error and error.startswith("towernmt: ") and error.count("\n") == 1


@pytest.mark.thorough
def test_settings_come_from_the_file_and_then_from_the_command_line(train, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("train: {steps: 2}\ndata: {seed: 7}\noptimizer: {learning_rate: 0.003}\n")
    status, _ = train(*SMALL, "data.seed=8", arguments=("--config", str(config)))
    assert status == 0
    saved = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert (saved["train"]["steps"], saved["data"]["seed"]) == (2, 8)
    assert saved["optimizer"]["learning_rate"] == 0.003
    assert saved["data"]["batch_tokens"] == 100
    assert saved["train"]["clip_norm"] == default_settings().train.clip_norm
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == 2


@pytest.mark.thorough
def test_a_resumed_run_has_its_saved_settings_and_those_of_the_command_line_over_them(train, six_steps, tmp_path):
    logdir = Path(shutil.copytree(six_steps, tmp_path / "run"))
    before = RunDirectory(logdir).settings()
    status, _ = train("train.steps=8")
    assert status == 0
    after = RunDirectory(logdir).settings()
    assert after.train.steps == 8
    before.train.steps = 8
    assert after == before
    assert checkpoint_steps(logdir / "checkpoints")[-1] == 8


def of_preset(logdir: Path, preset: str, **model: object) -> Path:
    """Return the settings of a run of a preset with further model settings."""
    keys = {f"model.{key}": value for key, value in model.items()}
    save_yaml(apply_overrides(default_settings("transformer", preset), keys), logdir / "settings.yaml")
    return logdir


def resumed(logdir: Path, *arguments: str) -> Any:
    """Return the model's settings with which a command resumes the run."""
    options = make_parser(["train"])[0].parse_args(["train", "--logdir", str(logdir), *arguments])
    return resolve_settings(settings_sources(options)).settings.model


def test_the_same_preset_keeps_the_other_settings_of_the_run(tmp_path):
    run = of_preset(tmp_path, "mini", residual_dropout=0.25, label_smoothing=0.2, source_vocab_size=77)
    model = resumed(run, "--preset", "mini")
    assert (model.residual_dropout, model.label_smoothing, model.source_vocab_size) == (0.25, 0.2, 77)
    assert model.hidden_size == default_settings("transformer", "mini").model.hidden_size
    assert resumed(run, "--preset", "mini", "--set", "model.residual_dropout=0.1").residual_dropout == 0.1
    assert resumed(run, "--preset", "big").residual_dropout == 0.3      # the message names it
    assert resumed(run, "--preset", "tiny").hidden_size == 256          # another size: it will be refused


def test_the_same_preset_keeps_the_automatic_settings_of_the_run(tmp_path):
    run = of_preset(tmp_path, "mini", tie_embeddings="none", initialization="zero_outputs")
    (run / "automatic.yaml").write_text(
        "model.tie_embeddings: {value: none, reason: a}\nmodel.initialization: {value: zero_outputs, reason: b}\n")
    model = resumed(run, "--preset", "mini")
    assert (model.tie_embeddings, model.initialization) == ("none", "zero_outputs")
    (run / "automatic.yaml").unlink()
    assert resumed(run, "--preset", "mini").tie_embeddings != "none"        # the user's, so it must be passed again


def test_the_same_preset_keeps_the_sizes_that_come_from_the_initial_run(tmp_path):
    settings = {"init.checkpoint": "runs/other", "model.hidden_size": 16}
    save_yaml(apply_overrides(default_settings(), settings), tmp_path / "settings.yaml")
    assert resumed(tmp_path, "--preset", "tiny").hidden_size == 16


def test_a_run_is_not_gone_on_with_under_another_size_of_model(train, six_steps, tmp_path):
    shutil.copytree(six_steps, tmp_path / "run")
    before = (tmp_path / "run" / "settings.yaml").read_text()
    for change, old in (("model.hidden_size=32", 16), ("model.decoder_layers=2", 1), ("optimizer.name=sgd", "adam")):
        status, error = train(change)
        key, new = change.split("=")
        assert status == 1
        assert f"holds a run with {key}={old}, not {new}" in error
    assert (tmp_path / "run" / "settings.yaml").read_text() == before


def test_a_later_training_by_hand_does_not_write_its_statistics_into_the_run(train):
    from tensorpack.utils import logger

    assert train(*SMALL, "train.steps=1")[0] == 0
    assert logger.get_logger_dir() is None      # where the monitors of TrainConfig write


def test_a_run_is_not_gone_on_with_under_another_vocabulary(six_steps, data, tmp_path, capsys):
    logdir = Path(shutil.copytree(six_steps, tmp_path / "run"))
    before = (logdir / "vocabulary" / "source.words").read_text()
    for name in ("source", "target"):
        text = (data.parent / name).read_text()
        (tmp_path / name).write_text(text.translate(str.maketrans("abcdefghij", "klmnopqrst")))
    main(["prepare", "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target"), "--vocab-kind",
          "word", "--shared-vocab", "--output", str(tmp_path / "other")])
    capsys.readouterr()
    assert main(["train", "--defaults=fixed", "--data", str(tmp_path / "other"), "--logdir", str(logdir)]) == 1
    assert "vocabulary" in capsys.readouterr().err
    assert (logdir / "vocabulary" / "source.words").read_text() == before


def test_a_run_ends_at_its_limit_of_epochs_with_every_batch_trained_on(train, tmp_path, data):
    from towernmt.dataflow.batches.batches import Batches
    from towernmt.dataflow.preparation.prepared_data import PreparedData

    assert train(*SMALL, "train.epochs=2", "log.steps=1")[0] == 0
    run = RunDirectory(tmp_path / "run")
    assert re.search("step 1, .*, ETA ", (run.log / "log.log").read_text())
    batches = Batches(PreparedData(data), run.settings().data).batches_per_epoch()
    assert batches > 2
    assert checkpoint_steps(run.checkpoints)[-1] == 2 * batches
    state = (run.checkpoints / f"step-{2 * batches}" / "state.json").read_text()
    assert r'{\"epoch\": 2, \"block\": 0, \"batch\": 0}' in state
    assert train()[0] == 0      # again: the run is finished
    assert checkpoint_steps(run.checkpoints)[-1] == 2 * batches


@pytest.mark.parametrize("arguments, many, preset, depth", [
    ([], 50, "base", 512),
    (["--preset", "small"], 50, None, 256),
    (["--model", "rnnsearch"], 50, None, None),
    (["--model", "transformer"], 50, "base", 512),
    (["--model", "mine.py:Mine"], 50, "base", 512),
    (["--model", "mine.py:Sized"], 50, None, 24),
    (["--set", "model.hidden_size=128"], 50, None, 128),            # the user sizes the model
    (["--set", "model.hidden_size=128"], 51, None, 128),            # also if the preset sets nothing
    (["--set", "model.label_smoothing=0.2"], 50, "base", 512),
    (["--set", "model.label_smoothing=0.2"], 51, "tiny", 256),
])
def test_automatic_settings_have_the_preset_for_the_corpus_unless_the_user_sets_a_size(
        arguments, many, preset, depth, train, monkeypatch, tmp_path):
    from towernmt.run import automatic_options as rule
    from towernmt.run import launch

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom towernmt.models import Transformer, TransformerSettings\n\n"
        "class Mine(Transformer):\n    pass\n\n"
        "@dataclass(frozen=True)\nclass SizedSettings(TransformerSettings):\n    hidden_size: int = 24\n\n"
        "class Sized(Transformer):\n    settings: SizedSettings\n    presets = {'mini': {}}\n")
    runs = []
    monkeypatch.setattr("towernmt.run.resolve.product_rates", lambda gpus: None)
    monkeypatch.setattr(rule, "LARGE_CORPUS", many)
    monkeypatch.setattr(launch, "train", lambda settings, *_, callbacks_before, **__:
                        runs.append((settings, callbacks_before()[0])) or 0)
    assert train(arguments=("--defaults", "automatic", *arguments))[0] == 0
    (settings, record), = runs
    assert getattr(settings.model, "hidden_size", None) == depth or preset is None and depth is None
    assert [choice.value for choice in record.automatic if choice.key == "--preset"] == ([preset] if preset else [])


@pytest.mark.thorough
def test_a_run_ends_at_its_limit_of_minutes(train, tmp_path):
    assert train(*SMALL, "train.minutes=0.02", "train.steps=100000")[0] == 0
    first = checkpoint_steps(tmp_path / "run" / "checkpoints")[-1]
    assert first >= 1
    assert train()[0] == 0      # the previous minutes count
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == first


@pytest.mark.parametrize(("arguments", "said"), [((), True), (("--towers", "1"), False)])
def test_gpus_that_are_not_used_are_mentioned_unless_the_cpu_is_requested(train, monkeypatch, arguments, said):
    lines: list[str] = []
    monkeypatch.setattr("towernmt.cli.train.visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr("towernmt.run.launch.train", lambda *_, **__: 0)
    monkeypatch.setattr("tensorpack.utils.logger.info", lambda text, *_, **__: lines.append(text))
    assert train(*SMALL, "train.steps=1", arguments=arguments)[0] == 0
    assert ("Training on the CPU. This machine has 2 GPUs: pass --gpu 0,1 to use them." in lines) is said


@pytest.mark.thorough
def test_a_run_warns_that_the_processor_is_slow_in_its_precision_and_trains(train, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("towernmt.models.kernels.has_fast_bfloat16", lambda: False)
    assert train(*SMALL, "train.precision=bfloat16", "train.steps=1")[0] == 0
    assert "train.precision=bfloat16: float32 is faster on this processor." in caplog.text
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == 1


WORKERS = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(("arguments", "tf_config", "mode"), [
    ([], "", "automatic"), (["--defaults", "automatic"], "", "automatic"), (["--defaults", "fixed"], "", "fixed"),
    (["--workers", "2"], "", "shared"), ([], WORKERS, "shared"),
    (["--workers", "2", "--defaults", "fixed"], "", "fixed")])
def test_a_new_run_has_automatic_defaults_except_with_several_workers(monkeypatch, arguments, tf_config, mode):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    options = make_parser(["train"])[0].parse_args(["train", *arguments])
    assert defaults_mode(options.defaults, options.workers is not None or workers_of_cluster() is not None) == mode


@pytest.mark.parametrize(("specified", "batch_tokens"), [({}, 800), ({"data.batch_tokens": 777}, 777)])
def test_several_workers_have_the_same_tokens_for_each_gpu_and_fixed_settings(
        data, monkeypatch, specified, batch_tokens):
    monkeypatch.setattr(batch_rules, "TOKENS_PER_GPU", 100)
    resolution = resolve_settings(SettingsSources(
        overrides=(Overrides("--set", specified),), defaults="shared", open_data=lambda: PreparedData(data),
        gpus=[0, 1], workers=4))
    assert resolution.settings == apply_overrides(default_settings(), {"data.batch_tokens": batch_tokens})
    assert [setting.key for setting in resolution.automatic] == ["data.batch_tokens"] * (not specified)


def test_several_workers_on_the_cpu_have_fixed_settings_and_the_specified_towers(data):
    resolution = resolve_settings(SettingsSources(
        defaults="shared", open_data=lambda: PreparedData(data), workers=2, towers=3))
    assert (resolution.settings, resolution.automatic, resolution.towers) == (default_settings(), None, 3)


def resolved(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedSettings:
    """Return the settings of a run with automatic defaults."""
    monkeypatch.setattr("towernmt.run.resolve.product_rates", lambda gpus: None)
    return resolve_settings(SettingsSources(
        run=RunDirectory(run), defaults="automatic", open_data=lambda: PreparedData(data)))


def test_a_resumed_run_keeps_its_settings(six_steps, data, monkeypatch):
    resolution = resolved(six_steps, data, monkeypatch)
    assert resolution.automatic is None and resolution.settings == RunDirectory(six_steps).settings()


def test_a_run_that_was_killed_before_it_recorded_its_automatic_settings_is_a_new_one(tmp_path, data, monkeypatch):
    run = of_preset(tmp_path, "mini")
    assert resolved(run, data, monkeypatch).automatic
    (tmp_path / "automatic.yaml").write_text("")
    assert resolved(run, data, monkeypatch).automatic is None


def test_chosen_defaults_are_refused_for_several_workers(train):
    status, error = train(arguments=("--defaults", "automatic", "--workers", "2"))
    assert status == 1 and "leave it out" in error


def test_a_run_that_starts_from_another_run_gets_the_size_of_its_model(six_steps, data):
    settings = apply_overrides(default_settings(), {"init.checkpoint": str(six_steps), "train.steps": 3})
    chosen, choices = apply_automatic_settings(settings, training_conditions(PreparedData(data), None, None),
                                               {"model.heads"})
    assert (chosen.model.hidden_size, chosen.model.filter_size, chosen.model.heads) == (16, 16, 4)
    assert {choice.key for choice in choices} >= {"model.hidden_size", "model.encoder_layers"}
    assert chosen.optimizer.learning_rate == pytest.approx(0.0015 / 5)      # a fifth of the rate of a new model


def test_a_run_that_starts_from_another_run_does_not_get_its_regularization(six_steps, data, tmp_path):
    other_run = Path(shutil.copytree(six_steps, tmp_path / "other"))
    free = {"model.residual_dropout": 0.0, "model.label_smoothing": 0.3, "model.r_drop_alpha": 5.0}
    save_yaml(apply_overrides(RunDirectory(other_run).settings(), free), other_run / "settings.yaml")
    settings = apply_overrides(default_settings(), {"init.checkpoint": str(other_run)})
    chosen, choices = apply_automatic_settings(settings, training_conditions(PreparedData(data), None, None), set())
    assert chosen.model.hidden_size == 16 and chosen.model.residual_dropout == 0.1
    assert not free.keys() & {choice.key for choice in choices if choice.reason.startswith(str(other_run))}


def test_a_custom_model_is_recognised_as_that_of_the_initial_run_under_another_path(
        six_steps, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text(
        "from towernmt.models import Transformer\n\n\nclass Mine(Transformer):\n    pass\n")
    other_run = Path(shutil.copytree(six_steps, tmp_path / "other"))
    text = (other_run / "settings.yaml").read_text().replace("architecture: transformer", "architecture: mine.py:Mine")
    (other_run / "settings.yaml").write_text(text)
    settings = apply_overrides(default_settings("models/mine.py:Mine"), {"init.checkpoint": str(other_run)})
    chosen, _ = apply_automatic_settings(settings, training_conditions(PreparedData(data), None, None), set())
    assert chosen.model.hidden_size == 16


def test_a_dry_run_prints_settings_and_a_forecast_and_writes_nothing(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(forecast, "peak_of_step", lambda *_: 3 << 29)
    monkeypatch.setattr(forecast, "product_rates", lambda gpus: ProductRates(1e11, 1e11))
    status = main(["train", "--data", str(data), "--logdir", str(tmp_path / "run"), "--dry-run", "--set", *SMALL,
                   "train.epochs=3", "train.precision=float32"])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0 and not (tmp_path / "run").exists()
    assert any(line.startswith("Automatic setting: schedule.name=budget, because ") for line in lines)
    updates = re.fullmatch(r"Training: about (\d+) updates, 3\.0 passes over the corpus; it.* end .*", lines[-3])
    pass_tokens = PreparedData(str(data)).target_tokens + PreparedData(str(data)).pairs
    assert updates is not None and int(updates[1]) == pytest.approx(3 * pass_tokens / 100, rel=0.1)
    assert lines[-2].startswith("Memory: 1.50 GiB (measured on the largest batches of data.batch_tokens=100")
    assert lines[-1] == "Nothing was trained or written."


def test_a_dry_run_reports_a_finished_run_and_refuses_what_it_cannot_resume_with(six_steps, data, capsys):
    command = ["train", "--data", str(data), "--logdir", str(six_steps), "--dry-run"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{six_steps} is finished: train.steps=6 is reached at step 6. To resume it, pass a higher limit (--set ...).",
        "Nothing was trained or written."]
    for change, message in (("model.hidden_size=32", "holds a run with model.hidden_size=16, not 32"),
                            ("data.batch_tokens=50", "data.batch_tokens changed from 100 to 50, but the data"),
                            ("data.memory_gb=3", "data.memory_gb changed from 0 to 3, which changes")):
        assert main([*command, "--set", "train.steps=9", change]) == 1
        assert message in capsys.readouterr().err


def test_a_dry_run_of_a_resumed_run_counts_what_it_has_made(six_steps, data, monkeypatch):
    monkeypatch.setattr(forecast, "peak_of_step", lambda *arguments: None)
    monkeypatch.delattr(forecast, "product_rates")      # the speed of the run is known, so none is measured
    run = RunDirectory(six_steps)
    settings = apply_overrides(run.settings(), {"train.minutes": 600, "train.steps": 0})
    result = forecast.forecast_training(settings, PreparedData(data), None, 1, run=run)
    assert result.updates_before == 6 and 0 < result.minutes_before < 60 and result.memory is None


def test_a_dry_run_refuses_initial_values_that_a_run_would_refuse(data, six_steps, write_pairs, tmp_path, capsys):
    write_pairs(tmp_path)
    text = ["--data", f"{tmp_path}/{{source,target}}", "--vocabulary", str(data)]
    arguments = ["--defaults=fixed", "--set", *SMALL, "train.steps=1", "init.embeddings=cooccurrence"]
    for name, where, more, message in (
            ("text", text, [], "counts the pairs of prepared data, but .* is unprepared text"),
            ("both", ["--data", str(data)], [f"init.checkpoint={six_steps}"],
             "would replace the embeddings of init.checkpoint")):
        logdir = ["--logdir", str(tmp_path / name)]
        for run in (["--dry-run"], ["--dry-run", *logdir], logdir):
            assert main(["train", *where, *run, *arguments, *more]) == 1
            assert re.search(message, capsys.readouterr().err)


def test_a_dry_run_refuses_what_a_run_would_refuse(data, capsys):
    for settings, message in ((["train.steps=-1"], "train.steps=-1"),
                              (["checkpoint.average=3", "checkpoint.keep=2"], "checkpoint.average=3 needs")):
        assert main(["train", "--data", str(data), "--dry-run", "--set", "train.precision=float32", *settings]) == 1
        assert message in capsys.readouterr().err
