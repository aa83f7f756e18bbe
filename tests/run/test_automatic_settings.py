"""The automatic settings under specified conditions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from towernmt.checkpoint import restore
from towernmt.core import session
from towernmt.core.settings import apply_overrides, flatten
from towernmt.run import training_conditions
from towernmt.run.automatic_options import automatic_towers
from towernmt.run.automatic_settings import RULES, apply_automatic_settings
from towernmt.run.directory import RunDirectory
from towernmt.run.product_rates import ProductRates
from towernmt.run.rules import model_rules
from towernmt.run.rules.automatic_value import round_down
from towernmt.run.run_settings import Settings, default_settings
from towernmt.run.training_conditions import TrainingConditions, needs_product_rates, parameters_in_products

SLOW, FAST = ProductRates(2.8e11, 2.9e11), ProductRates(2.8e11, 8e11)
TATOEBA = TrainingConditions(target_tokens=1_650_000, pairs=165_000, vocabulary=8000, unigram=True,
                        validation_pairs=1000, gpus=0, processors=2, bfloat16=True, rates=FAST)


def chosen(at: TrainingConditions, model: str = "transformer", preset: str | None = None, **given: Any
           ) -> dict[str, Any]:
    """Return all settings, with automatic values for those not specified; a key's dots are two underscores."""
    keys = {key.replace("__", "."): value for key, value in given.items()}
    settings, _ = apply_automatic_settings(apply_overrides(default_settings(model, preset), keys), at, set(keys))
    return flatten(settings)


def test_half_an_hour_on_a_corpus_of_some_megabytes():
    found = chosen(TATOEBA, train__minutes=30)
    assert found["train.precision"] == "bfloat16"
    assert found["data.batch_tokens"] == 1024
    assert (found["optimizer.name"], found["optimizer.learning_rate"]) == ("muon", 0.003)
    assert found["schedule.name"] == "budget"
    assert 100 <= found["schedule.warmup_steps"] <= 1000
    assert found["validation.steps"] == found["checkpoint.steps"] == 0
    assert found["validation.minutes"] == found["checkpoint.minutes"] == 3
    assert found["validation.sentences"] == 500
    assert found["train.stop_patience"] == 0


def test_what_is_set_stays_and_what_depends_on_it_follows():
    found = chosen(TATOEBA, train__minutes=30, train__precision="float32", data__batch_tokens=4096, train__clip_norm=0)
    assert (found["train.precision"], found["data.batch_tokens"], found["train.clip_norm"]) == ("float32", 4096, 0)
    assert found["schedule.warmup_steps"] < chosen(TATOEBA, train__minutes=30)["schedule.warmup_steps"]


CUSTOM_MODELS = """
import dataclasses

from towernmt.core.tf_compat import tf1
from towernmt.models import Transformer, TransformerSettings

@dataclasses.dataclass(frozen=True)
class WiderSettings(TransformerSettings):
    gate: float = 1.0

class Gated(Transformer):
    settings: WiderSettings

class Focal(Transformer):
    def loss(self, logits, batch):
        return 2.0 * super().loss(logits, batch)

class Steepest(Transformer):
    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(0.1)

def make(settings: TransformerSettings):
    return Transformer(settings)
"""


@pytest.mark.parametrize(("name", "different"), [
    ("Gated", {"architecture": "mine.py:Gated", "model.gate": 1.0}),
    ("Focal", {"architecture": "mine.py:Focal", "model.softmax_sample": 0.0})])
def test_a_class_derived_from_the_transformer_is_trained_like_it_as_far_as_its_loss_allows(
        tmp_path, monkeypatch, name, different):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CUSTOM_MODELS)
    for preset in ("mini", "base"):
        expected = chosen(TATOEBA, preset=preset, train__minutes=30)
        assert chosen(TATOEBA, f"mine.py:{name}", preset, train__minutes=30) == {**expected, **different}


@pytest.mark.parametrize("name", ["Steepest", "make"])
def test_a_model_with_its_own_optimizer_or_of_a_function_keeps_the_defaults_of_other_architectures(
        tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CUSTOM_MODELS)
    found = chosen(TATOEBA, f"mine.py:{name}", train__minutes=30)
    assert (found["optimizer.name"], found["optimizer.learning_rate"], found["init.embeddings"]) == (
        "adam", default_settings().optimizer.learning_rate, "random")


@pytest.mark.parametrize(("at", "precision"), [
    (TATOEBA, "bfloat16"),
    (dataclasses.replace(TATOEBA, rates=SLOW), "float32"),
    (dataclasses.replace(TATOEBA, rates=None), "float32"),
    (dataclasses.replace(TATOEBA, bfloat16=False), "float32"),      # emulated: the measurement alone is not sufficient
])
def test_bfloat16_is_taken_where_it_is_faster(at, precision):
    assert chosen(at)["train.precision"] == precision


@pytest.mark.parametrize(("tokens", "batch", "of_adam"), [
    (50_000, 512, 512), (300_000, 1024, 512), (1_500_000, 1024, 1024), (20_000_000, 2048, 2048),
    (200_000_000, 4096, 4096), (None, 4096, 4096)])
def test_little_text_has_small_batches(tokens, batch, of_adam):
    at = dataclasses.replace(TATOEBA, target_tokens=tokens)
    assert chosen(at)["data.batch_tokens"] == batch
    assert chosen(at, optimizer__name="adam")["data.batch_tokens"] == of_adam


@pytest.mark.parametrize(("tokens", "shown"), [(42_310, "42,000"), (1_528_000, "1,500,000")])
def test_the_tokens_of_a_pass_are_shown_with_two_digits(tokens, shown):
    _, choices = apply_automatic_settings(default_settings(), dataclasses.replace(TATOEBA, target_tokens=tokens), set())
    reason = next(choice.reason for choice in choices if choice.key == "data.batch_tokens")
    assert reason == f"a pass has about {shown} target tokens"


@pytest.mark.parametrize(("at", "given", "alpha"), [
    (TATOEBA, {"data__subword_sampling": True}, 1),
    (TATOEBA, {"data__subword_sampling": True, "data__subword_alpha": 0.5}, 0.5),
    (dataclasses.replace(TATOEBA, unigram=False), {"data__subword_sampling": True}, 0.1),
    (TATOEBA, {}, 0.1)])
def test_a_unigram_model_draws_segmentations_by_its_probabilities(at, given, alpha):
    assert chosen(at, **given)["data.subword_alpha"] == alpha


def test_adams_rate_is_lower_for_small_batches():
    adam = {"optimizer__name": "adam"}
    assert chosen(TATOEBA, **adam)["optimizer.learning_rate"] == 0.002
    assert chosen(dataclasses.replace(TATOEBA, target_tokens=300_000), **adam)["optimizer.learning_rate"] == 0.0015
    assert chosen(TATOEBA, data__batch_tokens=256, **adam)["optimizer.learning_rate"] == 0.0015


@pytest.mark.parametrize(("model", "preset", "given", "name"), [
    ("transformer", "mini", {}, "muon"), ("transformer", "student", {}, "muon"), ("rnnsearch", None, {}, "adam"),
    ("transformer", "base", {"model__postprocess": "drn"}, "adam"),
    ("transformer", "mini", {"optimizer__name": "adamw"}, "adamw")])
def test_muon_trains_a_transformer_unless_it_is_large_and_post_norm(model, preset, given, name):
    assert chosen(TATOEBA, model, preset, **given)["optimizer.name"] == name


@pytest.mark.parametrize(("model", "preset", "given", "decay", "initialization"), [
    ("transformer", "mini", {}, 0.1, "zero_outputs"),
    ("transformer", "mini", {"optimizer__name": "adam"}, 0.01, "glorot"),
    ("transformer", "mini", {"optimizer__name": "adamw"}, 0.01, "glorot"),
    ("transformer", "mini", {"optimizer__weight_decay": 0.02}, 0.02, "zero_outputs"),
    ("transformer", "mini", {"model__initialization": "depth_scaled"}, 0.1, "depth_scaled"),
    ("transformer", "deep", {}, 0.01, "deepnorm"), ("transformer", "student", {}, 0.01, "glorot"),
    ("transformer", "student", {"optimizer__name": "muon"}, 0.01, "glorot"), ("rnnsearch", None, {}, 0.01, None)])
def test_only_muon_changes_the_weight_decay_and_the_initial_outputs(model, preset, given, decay, initialization):
    found = chosen(TATOEBA, model, preset, **given)
    assert (found["optimizer.weight_decay"], found.get("model.initialization")) == (decay, initialization)


@pytest.mark.parametrize(("model", "preset", "given", "tables"), [
    ("transformer", "mini", {}, "none"), ("transformer", "tiny", {}, "none"), ("transformer", "base", {}, "all"),
    ("transformer", "mini", {"model__tie_embeddings": "target"}, "target"),
    ("transformer", "mini", {"optimizer__name": "adam"}, "all"),
    ("transformer", "student", {"optimizer__name": "muon"}, "all"), ("rnnsearch", None, {}, "all")])
def test_small_transformers_of_muon_get_separate_tables(model, preset, given, tables):
    assert chosen(TATOEBA, model, preset, **given)["model.tie_embeddings"] == tables


@pytest.mark.parametrize(("at", "model", "given", "share"), [
    (TATOEBA, "transformer", {}, 0.15), (TATOEBA, "transformer", {"model__r_drop_alpha": 1.0}, 0.0),
    (TATOEBA, "transformer", {"train__xla": True}, 0.0), (TATOEBA, "rnnsearch", {}, 0.0),
    (dataclasses.replace(TATOEBA, vocabulary=1000), "transformer", {}, 0.0),
    (dataclasses.replace(TATOEBA, gpus=1), "transformer", {}, 0.0)])
def test_the_cpu_samples_the_softmax_of_a_transformer_with_a_large_vocabulary(at, model, given, share):
    assert chosen(at, model, **given)["model.softmax_sample"] == share


@pytest.mark.parametrize(("tokens", "gpus", "gib", "batch"), [
    (50_000_000, 1, 0, 12_500), (50_000_000, 4, 0, 50_000), (50_000_000, 8, 80, 100_000), (None, 2, 80, 25_000),
    (1_650_000, 1, 80, 12_500), (1_650_000, 4, 80, 16_500), (300_000, 1, 80, 4096), (50_000_000, 4, 4, 6248)])
def test_each_gpu_has_the_batch_that_fits_it_and_the_corpus(tokens, gpus, gib, batch):
    at = dataclasses.replace(TATOEBA, target_tokens=tokens, gpus=gpus, gpu_memory=gib << 30, vocabulary=32_000)
    assert chosen(at, preset="base")["data.batch_tokens"] == batch
    assert chosen(at, data__batch_tokens=777)["data.batch_tokens"] == 777


def test_a_large_model_has_fewer_tokens_on_a_small_gpu():
    at = dataclasses.replace(TATOEBA, target_tokens=None, gpus=1, gpu_memory=24 << 30, vocabulary=32_000)
    assert chosen(at, preset="base")["data.batch_tokens"] == 12_500
    assert chosen(at, preset="big")["data.batch_tokens"] == 6250
    assert chosen(at, preset="base", model__r_drop_alpha=5.0)["data.batch_tokens"] == 6250


def test_gpus_take_bfloat16_by_their_capability_and_without_a_measurement():
    at = dataclasses.replace(TATOEBA, gpus=1, rates=None)
    assert chosen(at)["train.precision"] == "bfloat16"
    assert chosen(dataclasses.replace(at, bfloat16=False, rates=FAST))["train.precision"] == "float32"
    unknown = dataclasses.replace(at, bfloat16=None)        # not NVIDIA's
    assert chosen(unknown)["train.precision"] == "float32"
    assert chosen(dataclasses.replace(unknown, rates=FAST))["train.precision"] == "bfloat16"


@pytest.mark.parametrize(("capabilities", "bfloat16"), [
    ([(9, 0)], True), ([(8, 0), (7, 5)], False), ([(8, 0), None], None)])
def test_the_capability_of_every_gpu_counts(monkeypatch, capabilities, bfloat16):
    monkeypatch.setattr(session, "gpu_capability", capabilities.__getitem__)
    assert training_conditions._multiplies_bfloat16(range(len(capabilities))) is bfloat16
    needed = needs_product_rates(default_settings(), set(), range(len(capabilities)))
    assert needed is (bfloat16 is None)


@pytest.mark.parametrize(("limit", "schedule"), [
    ({"train__steps": 1000}, "budget"), ({"train__minutes": 5}, "budget"),
    ({"train__epochs": 3}, "budget"), ({}, "inverse_square_root")])
def test_the_rate_falls_to_an_end_that_is_known(limit, schedule):
    assert chosen(TATOEBA, **limit)["schedule.name"] == schedule


def test_the_rate_does_not_fall_to_the_end_of_a_streams_epochs():
    """The size of an epoch is not known."""
    stream = dataclasses.replace(TATOEBA, target_tokens=None, pairs=None)
    assert chosen(stream, train__epochs=3)["schedule.name"] == "inverse_square_root"


def test_warm_up_is_a_twentieth_of_the_steps():
    assert chosen(TATOEBA, train__steps=1000)["schedule.warmup_steps"] == 50
    assert chosen(TATOEBA, train__steps=1_000_000)["schedule.warmup_steps"] == 4000
    assert chosen(TATOEBA, train__epochs=10, data__batch_tokens=1000)["schedule.warmup_steps"] == 16500 // 20 // 10 * 10


@pytest.mark.parametrize(("minutes", "steps"), [(2, 50), (30, 300), (1000, 4000)])
def test_warm_up_follows_the_minutes_where_it_is_not_known_how_many_updates_come(minutes, steps):
    stream = dataclasses.replace(TATOEBA, target_tokens=None, pairs=None)
    for at, given in ((dataclasses.replace(TATOEBA, gpus=1), {}), (TATOEBA, {"data__memory_gb": 8}),
                      (stream, {"data__batch_type": "sentences"})):
        assert chosen(at, train__minutes=minutes, **given)["schedule.warmup_steps"] == steps


def test_steps_alone_tell_the_updates_whatever_a_batch_holds():
    assert chosen(TATOEBA, train__steps=1000, data__memory_gb=8)["schedule.warmup_steps"] == 50


def test_the_batch_that_a_memory_limit_finds_is_not_chosen():
    _, choices = apply_automatic_settings(apply_overrides(default_settings(), {"data.memory_gb": 8}), TATOEBA,
                                          {"data.memory_gb"})
    assert "data.batch_tokens" not in {choice.key for choice in choices}
    assert chosen(TATOEBA, data__memory_gb=8, data__batch_tokens=256)["optimizer.learning_rate"] == 0.003


def test_long_runs_validate_and_save_each_half_an_hour():
    found = chosen(TATOEBA, train__minutes=4320)
    assert found["validation.minutes"] == found["checkpoint.minutes"] == 30


@pytest.mark.parametrize("part", ["validation", "checkpoint"])
def test_an_interval_in_updates_that_is_set_is_the_only_one(part):
    given = {f"{part}__steps": 500}
    found = chosen(TATOEBA, train__minutes=30, **given)
    assert (found[f"{part}.steps"], found[f"{part}.minutes"]) == (500, 0)
    other = {"validation": "checkpoint", "checkpoint": "validation"}[part]
    assert (found[f"{other}.steps"], found[f"{other}.minutes"]) == (0, 3)


@pytest.mark.parametrize(("preset", "optimizer", "rate"), [
    ("student", "adam", 0.001), ("tiny", "adam", 0.002), ("student", "muon", 0.003), ("tiny", "muon", 0.003),
    ("deep", "adam", 0.0007)])
def test_adam_trains_a_small_post_norm_model_at_a_lower_rate(preset, optimizer, rate):
    assert chosen(TATOEBA, preset=preset, optimizer__name=optimizer)["optimizer.learning_rate"] == rate


@pytest.mark.parametrize(("preset", "by_steps", "by_minutes"), [("student", 250, 1500), ("tiny", 50, 300)])
def test_what_normalizes_behind_its_layers_has_a_longer_warm_up(preset, by_steps, by_minutes):
    at = dataclasses.replace(TATOEBA, rates=None)
    assert chosen(at, preset=preset, train__steps=1000)["schedule.warmup_steps"] == by_steps
    assert chosen(at, preset=preset, train__minutes=30)["schedule.warmup_steps"] == by_minutes


@pytest.mark.parametrize("checkpoint", ["", "runs/a"])
@pytest.mark.parametrize(("epochs", "dropout"), [
    (1, 0), (5, 0), (6, 0.05), (7, 0.05), (8, 0.1), (19, 0.1), (20, 0.2), (100, 0.3)])
def test_dropout_grows_with_the_passes(epochs, dropout, checkpoint, any_initial_run):
    found = chosen(TATOEBA, train__epochs=epochs, init__checkpoint=checkpoint)
    assert found["model.residual_dropout"] == found["model.embedding_dropout"] == dropout


@pytest.mark.parametrize(("tokens", "given", "dropout"), [
    (55_000, {}, 0.3), (500_000, {}, 0.2), (500_000, {"optimizer__name": "adam"}, 0.1), (1_650_000, {}, 0.1),
    (55_000, {"validation__steps": 100}, 0.1), (None, {}, 0.1),
    (55_000, {"train__stop_patience": 2, "validation__steps": 1100}, 0.2)])
def test_dropout_of_a_run_that_patience_ends_goes_by_the_passes_that_patience_takes(tokens, given, dropout):
    """Dropout is never below 0.1, because the number of passes is not known."""
    found = chosen(dataclasses.replace(TATOEBA, target_tokens=tokens), **given)
    assert found["model.residual_dropout"] == found["model.embedding_dropout"] == dropout


@pytest.mark.parametrize(("epochs", "given", "decay"), [
    (1, {}, 0.1), (9, {}, 0.1), (10, {}, 0.5), (60, {}, 0.5), (60, {"optimizer__weight_decay": 0.2}, 0.2),
    (60, {"optimizer__name": "adamw"}, 0.01), (60, {"init__checkpoint": "runs/a"}, 0.01)])
def test_the_weights_of_a_new_model_of_muon_decay_faster_in_many_passes(epochs, given, decay, any_initial_run):
    assert chosen(TATOEBA, train__epochs=epochs, **given)["optimizer.weight_decay"] == decay


@pytest.mark.parametrize(("epochs", "dropout"), [(1, 0.1), (6, 0.1), (20, 0.2)])
def test_r_drop_keeps_the_dropout_that_its_two_passes_differ_by(epochs, dropout):
    found = chosen(TATOEBA, train__epochs=epochs, model__r_drop_alpha=5.0)
    assert found["model.residual_dropout"] == found["model.embedding_dropout"] == dropout


def test_two_passes_of_r_drop_take_twice_the_time():
    plain, twice = (apply_overrides(default_settings(), {"model.r_drop_alpha": alpha}) for alpha in (0.0, 5.0))
    assert TATOEBA.tokens_per_second(plain) == pytest.approx(2 * TATOEBA.tokens_per_second(twice))


TRAINED = {"init__checkpoint": "runs/a"}


@pytest.fixture
def any_initial_run(monkeypatch):
    """Replace the run of `init.checkpoint` by one with the sizes of the settings."""
    monkeypatch.setattr(model_rules, "settings_of_initial_run", lambda settings: iter(()))


@pytest.mark.parametrize(("model", "preset"), [("transformer", "tiny"), ("transformer", "base"),
                                               ("transformer", "student"), ("seq2seq", None)])
def test_a_trained_model_has_a_fifth_of_the_rate_of_a_new_one(any_initial_run, model, preset):
    new, trained = (chosen(TATOEBA, model, preset, **given)["optimizer.learning_rate"]
                    for given in ({"optimizer__name": "adam"}, TRAINED))
    assert trained == pytest.approx(new / 5)


@pytest.mark.parametrize(("trained_by", "given", "expected"), [
    ("muon", {}, ("muon", 0.001)), ("adam", {}, ("adam", 0.0004)),
    ("muon", {"optimizer__name": "adam"}, ("adam", 0.0004))])
def test_a_model_that_muon_trained_is_trained_further_by_muon(monkeypatch, tmp_path, trained_by, given, expected):
    run = RunDirectory(tmp_path / "first")
    run.save_settings(apply_overrides(default_settings("transformer", "mini"), {"optimizer.name": trained_by}))
    monkeypatch.setattr(restore, "initial_checkpoint", lambda location: (run, tmp_path))
    found = chosen(TATOEBA, preset="mini", init__checkpoint=str(run.path), **given)
    assert (found["optimizer.name"], found["optimizer.learning_rate"]) == expected


@pytest.mark.parametrize(("preset", "given", "expected"), [
    ("mini", {}, ("muon", 0.002)), ("student", {}, ("muon", 0.002)), ("base", {}, ("adam", 0.00014)),
    ("mini", {"optimizer__name": "adam"}, ("adam", 0.0004)), ("mini", {"data__general_share": 0.75}, ("adam", 0.0004))])
def test_a_small_model_that_adam_trained_learns_a_new_domain_with_muon_if_general_text_keeps_the_old_one(
        any_initial_run, preset, given, expected):
    mixed = dataclasses.replace(TATOEBA, is_mixed=True)
    found = chosen(mixed, preset=preset, train__epochs=5, **given, **TRAINED)
    assert (found["optimizer.name"], found["optimizer.learning_rate"]) == expected
    alone = chosen(TATOEBA, preset=preset, train__epochs=5, **TRAINED)
    assert alone["optimizer.name"] == "adam"


def test_the_heads_that_have_learned_alignments_are_those_of_the_initial_run(monkeypatch, tmp_path):
    run = RunDirectory(tmp_path / "first")
    run.save_settings(apply_overrides(default_settings("transformer", "mini"), {
        "model.guided_alignment_weight": 0.1, "model.guided_alignment_layer": 2}))
    monkeypatch.setattr(restore, "initial_checkpoint", lambda location: (run, tmp_path))
    found = chosen(TATOEBA, preset="mini", init__checkpoint=str(run.path))
    assert (found["model.guided_alignment_layer"], found["model.guided_alignment_heads"]) == (2, 1)
    assert found["model.guided_alignment_weight"] == 0


@pytest.mark.parametrize(("optimizer", "epochs", "rate"), [
    ("muon", 5, 0.002), ("muon", 29, 0.002), ("muon", 30, 0.001), ("muon", 0, 0.001), ("adam", 5, 0.0004)])
def test_muon_trains_a_trained_model_at_a_higher_rate_in_not_too_many_passes_over_mixed_data(
        any_initial_run, optimizer, epochs, rate):
    mixed = dataclasses.replace(TATOEBA, is_mixed=True)
    found = chosen(mixed, preset="mini", optimizer__name=optimizer, train__epochs=epochs, **TRAINED)
    assert found["optimizer.learning_rate"] == rate


@pytest.mark.parametrize(("share", "rate"), [(0, 0.001), (0.1, 0.001), (0.5, 0.002), (0.75, 0.001)])
def test_a_trained_model_needs_as_many_general_pairs_as_new_ones_for_a_higher_rate(any_initial_run, share, rate):
    mixed = dataclasses.replace(TATOEBA, is_mixed=True)
    found = chosen(mixed, preset="mini", optimizer__name="muon", train__epochs=5, data__general_share=share, **TRAINED)
    assert found["optimizer.learning_rate"] == rate


@pytest.mark.parametrize(("preset", "epochs", "rate"), [
    ("student", 29, 0.000667), ("student", 30, 0.0002), ("base", 5, 0.00014)])
def test_adam_trains_a_small_post_norm_model_at_a_higher_rate_in_not_too_many_passes_over_mixed_data(
        any_initial_run, preset, epochs, rate):
    mixed = dataclasses.replace(TATOEBA, is_mixed=True)
    found = chosen(mixed, preset=preset, optimizer__name="adam", train__epochs=epochs, **TRAINED)
    assert found["optimizer.learning_rate"] == rate


def test_a_trained_model_sees_more_general_data_in_many_passes_over_new_data(any_initial_run):
    mixed = dataclasses.replace(TATOEBA, is_mixed=True)
    shares = [chosen(mixed, train__epochs=epochs, **TRAINED)["data.general_share"] for epochs in (0, 6, 29, 30, 50)]
    assert shares == [0.5, 0.5, 0.5, 0.75, 0.75]
    assert chosen(mixed, train__epochs=30)["data.general_share"] == 0.5
    dropout = [chosen(mixed, train__epochs=epochs, **TRAINED)["model.residual_dropout"] for epochs in (11, 12, 20, 30)]
    assert dropout == [0.0, 0.05, 0.1, 0.05]        # half of the pairs is new, and a quarter from 30 passes on
    assert chosen(TATOEBA, train__epochs=20, **TRAINED)["model.residual_dropout"] == 0.2


def test_translated_pairs_do_not_keep_a_trained_model_from_forgetting(any_initial_run):
    translated, general = (dataclasses.replace(TATOEBA, is_mixed=True, is_translated=value) for value in (True, False))
    given = {"preset": "mini", "optimizer__name": "muon", "data__general_share": 0.5, "train__epochs": 5, **TRAINED}
    rates = [chosen(at, **given)["optimizer.learning_rate"] for at in (translated, TATOEBA, general)]
    assert rates == [0.001, 0.001, 0.002]
    given = {"data__general_share": 0.5, "train__epochs": 30, **TRAINED}
    dropout = [chosen(at, **given)["model.residual_dropout"] for at in (translated, TATOEBA, general)]
    assert dropout == [0.2, 0.2, 0.1]       # as for 30 passes, and as for 15
    assert chosen(translated, train__epochs=30, **TRAINED)["data.general_share"] == 0.5
    assert translated.tokens_per_pass(default_settings()) == 2 * TATOEBA.target_tokens      # both kinds of pairs


def test_a_trained_post_norm_model_needs_no_longer_warm_up(any_initial_run):
    found = chosen(TATOEBA, preset="student", train__steps=1000, **TRAINED)
    assert found["schedule.warmup_steps"] == 50


@pytest.mark.parametrize(("tokens", "given", "steps"), [
    (1_650_000, {}, 1000), (100_000, {}, 190), (20_000, {}, 50), (1_650_000, {"train__steps": 2000}, 200),
    (100_000, {"train__steps": 300}, 50), (100_000, {"validation__steps": 500}, 500), (None, {}, 1000)])
def test_a_trained_model_is_validated_first_and_in_each_pass(any_initial_run, tokens, given, steps):
    at = dataclasses.replace(TATOEBA, target_tokens=tokens)
    found = chosen(at, **given, **TRAINED)
    assert found["validation.at_start"] and found["validation.steps"] == steps
    assert not chosen(at, **given)["validation.at_start"]
    blind = chosen(dataclasses.replace(at, validation_pairs=0), **given, **TRAINED)
    assert not blind["validation.at_start"]


def test_the_mean_over_all_sets_decides_for_a_trained_model(any_initial_run):
    at = dataclasses.replace(TATOEBA, validation_sets=2)
    assert chosen(at, **TRAINED)["validation.metric_set"] == "mean"
    assert chosen(at)["validation.metric_set"] == chosen(TATOEBA, **TRAINED)["validation.metric_set"] == ""
    assert chosen(at, validation__metric_set="talks", **TRAINED)["validation.metric_set"] == "talks"


def test_sets_of_general_data_alone_decide_nothing_unless_one_is_named(any_initial_run):
    at = dataclasses.replace(TATOEBA, target_tokens=100_000, validation_sets=2, is_mixed=True)
    for only_general, given, deciding_set, decides in (
            (False, {}, "mean", True), (True, {}, "", False),
            (True, {"validation__metric_set": "general-b"}, "general-b", True)):
        conditions = dataclasses.replace(at, has_only_general_sets=only_general)
        found = chosen(conditions, **given, **TRAINED)
        assert found["validation.metric_set"] == deciding_set and found["validation.at_start"]
        assert bool(found["train.stop_patience"]) == decides
        limited = chosen(conditions, train__steps=5000, checkpoint__steps=500, **given, **TRAINED)
        assert bool(limited["checkpoint.average"]) == decides


def test_a_pass_over_mixed_data_has_the_general_tokens_too():
    at = dataclasses.replace(TATOEBA, target_tokens=100_000, is_mixed=True)
    settings = apply_overrides(default_settings(), {"train.epochs": 3, "data.batch_tokens": 1000,
                                                    "data.general_share": 0.75})
    assert (at.tokens(settings), at.updates(settings), at.passes(settings)) == (1_200_000, 1200, 3)
    _, choices = apply_automatic_settings(default_settings(), at, set())
    assert [choice.value for choice in choices if choice.key == "data.general_share"] == [0.5]
    _, choices = apply_automatic_settings(default_settings(), TATOEBA, set())
    assert "data.general_share" not in {choice.key for choice in choices}


def test_passes_are_counted_by_the_nearest_limit():
    at = dataclasses.replace(TATOEBA, target_tokens=100_000)
    settings = apply_overrides(default_settings(), {"train.steps": 100, "data.batch_tokens": 2000, "train.epochs": 5})
    assert at.passes(settings) == 2
    assert at.passes(apply_overrides(settings, {"train.steps": 1000})) == 5
    assert at.passes(default_settings()) is None
    stream = dataclasses.replace(at, target_tokens=None)
    assert stream.passes(apply_overrides(default_settings(), {"train.epochs": 3})) == 3
    assert stream.passes(settings) is None


def test_where_the_speed_is_not_known_other_limits_do_not_stand_for_the_minutes():
    settings = apply_overrides(default_settings(), {"train.minutes": 5, "train.epochs": 100, "train.steps": 9})
    for at in (dataclasses.replace(TATOEBA, rates=None), dataclasses.replace(TATOEBA, gpus=2)):
        assert at.tokens(settings) is at.updates(settings) is at.passes(settings) is None
        assert at.minutes(settings) == 5


def test_a_run_of_minutes_is_shorter_where_another_limit_is_nearer():
    settings = apply_overrides(default_settings(), {"train.minutes": 600, "train.epochs": 1})
    speed = TATOEBA.tokens_per_second(settings)
    assert TATOEBA.minutes(settings) == pytest.approx(1_650_000 / speed / 60)
    assert TATOEBA.minutes(apply_overrides(settings, {"train.minutes": 0})) is None
    assert chosen(TATOEBA, train__minutes=1430, train__epochs=1)["validation.minutes"] < 3


def test_an_update_cycle_makes_fewer_updates_and_a_shorter_warm_up():
    """With a cycle of four, the warm-up of a run of minutes is a quarter as long."""
    once, four = (chosen(TATOEBA, train__minutes=200, train__update_cycle=cycle) for cycle in (1, 4))
    assert once["schedule.warmup_steps"] == pytest.approx(4 * four["schedule.warmup_steps"], rel=0.1)


@pytest.mark.parametrize(("settings", "given", "gpus", "fast", "needed"), [
    ({}, set(), None, True, True), ({}, set(), None, False, False), ({}, set(), [0], False, True),
    ({}, {"train.precision"}, None, True, False), ({"train.minutes": 5}, {"train.precision"}, None, False, True),
    ({"train.minutes": 5}, {"train.precision"}, [0], False, False)])
def test_the_machine_is_measured_only_where_something_depends_on_it(monkeypatch, settings, given, gpus, fast, needed):
    monkeypatch.setattr(training_conditions, "has_fast_bfloat16", lambda: fast)
    assert needs_product_rates(apply_overrides(default_settings(), settings), given, gpus) is needed


def test_a_run_without_an_end_has_patience():
    assert chosen(TATOEBA)["train.stop_patience"] == 10
    assert chosen(TATOEBA, train__epochs=1)["train.stop_patience"] == 0
    assert chosen(dataclasses.replace(TATOEBA, validation_pairs=0))["train.stop_patience"] == 0
    assert chosen(TATOEBA, validation__steps=0)["train.stop_patience"] == 0


def test_without_validation_text_nothing_is_chosen_of_it():
    found = chosen(dataclasses.replace(TATOEBA, validation_pairs=0), train__minutes=30)
    assert found["validation.minutes"] == 0 and found["checkpoint.minutes"] == 3


@pytest.mark.parametrize(("given", "average"), [
    ({"train__minutes": 30}, 5), ({"train__steps": 5000}, 5), ({"train__steps": 4999}, 0),
    ({"train__epochs": 1}, 0), ({"train__epochs": 4}, 5), ({}, 5), ({"validation__steps": 499}, 0),
    ({"train__minutes": 30, "checkpoint__keep": 4}, 0),
    ({"train__minutes": 30, "checkpoint__keep_best": 0}, 0), ({"train__minutes": 30, "checkpoint__average": 3}, 3),
    ({"train__steps": 5000, "validation__steps": 0}, 0), ({"train__minutes": 30, "checkpoint__minutes": 10}, 0)])
def test_the_mean_of_five_is_tried_where_a_limit_leaves_room_for_them(given, average):
    assert chosen(TATOEBA, **given)["checkpoint.average"] == average
    if average == 5:
        assert chosen(dataclasses.replace(TATOEBA, validation_pairs=0), **given)["checkpoint.average"] == 0


def test_updates_are_those_of_the_nearest_limit():
    at = dataclasses.replace(TATOEBA, target_tokens=100_000)
    settings = apply_overrides(default_settings(), {"data.batch_tokens": 2000, "train.epochs": 5})
    assert at.updates(settings) == 250
    assert at.updates(apply_overrides(settings, {"train.steps": 100})) == 100
    assert dataclasses.replace(at, target_tokens=None).updates(apply_overrides(settings, {"train.steps": 100})) == 100
    assert at.updates(default_settings()) is None


@pytest.mark.parametrize("unit", ["target", "longest", "source+target", "sentences"])
def test_a_batch_has_no_more_tokens_than_a_pass(unit):
    at = dataclasses.replace(TATOEBA, target_tokens=200, pairs=30)
    given = {"data.batch_tokens": 512, "data.batch_type": unit}
    by_steps, by_epochs, in_cycles = (apply_overrides(default_settings(), {**given, **limits}) for limits in (
        {"train.steps": 40}, {"train.epochs": 100}, {"train.epochs": 100, "train.update_cycle": 4}))
    assert at.passes(by_steps) == 40
    assert (at.updates(by_epochs), at.updates(in_cycles)) == (100, 25)
    assert chosen(at, train__epochs=100, data__batch_type=unit)["schedule.warmup_steps"] == 5


@pytest.mark.parametrize(("unit", "updates"), [("target", 250), ("longest", 250), ("source+target", 500),
                                               ("sentences", 25)])
def test_updates_are_counted_in_the_unit_of_the_batches(unit, updates):
    at = dataclasses.replace(TATOEBA, target_tokens=100_000, pairs=10_000)
    given = {"data.batch_tokens": 2000, "data.batch_type": unit, "train.epochs": 5}
    assert at.updates(apply_overrides(default_settings(), given)) == updates


@pytest.mark.parametrize("model", ["convs2s", "rnnsearch", "seq2seq"])
def test_the_other_architectures_keep_their_rate_and_clip_gradients(model):
    found = chosen(TATOEBA, model, train__minutes=15)
    assert (found["optimizer.learning_rate"], found["train.clip_norm"]) == (0.001, 1)


@pytest.mark.parametrize(("model", "preset", "given"), [
    ("transformer", "mini", {"train__minutes": 30}), ("transformer", "base", {"train__steps": 1000}),
    ("transformer", "student", {}), ("rnnsearch", None, {"train__minutes": 15}), ("convs2s", None, {}),
    ("transformer", None, {"schedule__warmup_steps": 0})])
def test_the_factor_of_noam_gives_it_the_peak_of_other_schedules(model, preset, given):
    """The formula of Vaswani et al. 2017: factor * hidden_size ** -0.5 * warmup_steps ** -0.5."""
    usual = chosen(TATOEBA, model, preset, **given)
    found = chosen(TATOEBA, model, preset, schedule__name="noam", **given)
    width = found.get("model.hidden_size") or default_settings(model).model.hidden_size
    assert found["schedule.warmup_steps"] == usual["schedule.warmup_steps"]
    peak = found["optimizer.learning_rate"] * (width * max(1, found["schedule.warmup_steps"])) ** -0.5
    assert peak == pytest.approx(usual["optimizer.learning_rate"], rel=0.005)


def test_the_reason_for_the_factor_of_noam_names_the_peak():
    given = {"schedule.name": "noam"}
    _, choices = apply_automatic_settings(apply_overrides(default_settings("transformer", "base"), given), TATOEBA,
                                          set(given))
    (setting,) = (choice for choice in choices if choice.key == "optimizer.learning_rate")
    assert (setting.value, setting.reason) == (
        1.0, "noam multiplies it, and its peak is then 0.0007: the Transformer has 512 hidden units")


def test_a_wide_transformer_has_a_lower_rate():
    assert chosen(TATOEBA, preset="base")["optimizer.learning_rate"] == 0.0007


@pytest.mark.parametrize(("at", "preset", "towers"), [
    (TATOEBA, "tiny", 2), (TATOEBA, "base", 1), (dataclasses.replace(TATOEBA, processors=1), "tiny", 1)])
def test_two_towers_for_small_models_where_there_are_processors(at, preset, towers):
    assert automatic_towers(default_settings("transformer", preset), at).value == towers


def test_the_size_of_a_model_is_that_of_its_parameters():
    """7.6 million: the preset `tiny` with a joint vocabulary of 8,000, as docs/notes/measurements.md counts them."""
    assert parameters_in_products(default_settings().model, 8000) == pytest.approx(7.6e6, rel=0.05)


def test_every_choice_has_a_reason_and_every_rule_its_evidence():
    settings, choices = apply_automatic_settings(apply_overrides(default_settings(), {"train.minutes": 30}), TATOEBA,
                                                 {"train.minutes"})
    assert isinstance(settings, Settings) and len({choice.key for choice in choices}) == len(choices) >= 12
    assert all(len(choice.reason) > 10 for choice in choices)
    assert all(rule.__doc__ for rule in RULES)


@pytest.mark.parametrize(("number", "rounded"), [(7, 7), (7.9, 7), (99, 99), (123, 120), (8149, 8100)])
def test_a_number_is_rounded_down_to_two_digits(number, rounded):
    assert round_down(number) == rounded
