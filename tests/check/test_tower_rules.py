"""Each rule of tower functions is checked, and a breach is reported with its variable and its line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.check import tower_zoo
from towernmt.check import RULES, check_tower, check_tower_function
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models import ARCHITECTURES, architecture
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer


def broken_line(model) -> str:
    """Return the marked line of a class of the zoo as `file:line`, the form in which breaches name it."""
    path = Path(tower_zoo.__file__)
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {model.__name__}("))
    number = next(i for i in range(start, len(lines)) if lines[i].endswith("# broken")) + 1
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{number}"


@pytest.mark.parametrize("beast", tower_zoo.ZOO, ids=lambda beast: beast.model.__name__)
def test_the_breach_of_a_broken_tower_function_names_rule_variable_and_line(beast):
    breaches = check_tower(beast.model())
    assert [(breach.rule, breach.variable) for breach in breaches] == list(beast.breaches)
    assert breaches[0].message == beast.message
    if beast.model is not tower_zoo.OutsideTheScope:
        assert breaches[0].location == broken_line(beast.model)
    assert breaches[-1].location == broken_line(beast.model)


def test_every_rule_has_a_beast():
    assert {rule for beast in tower_zoo.ZOO for rule, _ in beast.breaches} == set(RULES)


@pytest.mark.parametrize("model", [tower_zoo.Tame, tower_zoo.TameStatistics, tower_zoo.TrainsMore])
def test_a_correct_tower_function_has_no_breach(model):
    assert check_tower(model()) == []


SMALL = {"hidden_size": 8, "filter_size": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "layers": 1,
         "embedding_size": 8, "encoder": "1x8/3", "decoder": "1x8/3", "output_size": 8, "encoder_size": 4,
         "decoder_size": 8, "attention_size": 8, "read_out_size": 8, "max_positions": 16, "source_vocab_size": 9,
         "target_vocab_size": 9}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    # RNNSearch has the recurrent layers of seq2seq, and commands of the manual check classes derived from Transformer.
    pytest.param(name, marks=[pytest.mark.slow] * (name in ("seq2seq", "transformer"))) for name in ARCHITECTURES])
def test_the_built_in_models_have_no_breach(name):
    kind = architecture(name)
    fields = {field.name for field in dataclasses.fields(kind.settings)}
    settings = kind.settings(**{key: value for key, value in SMALL.items() if key in fields})
    assert check_tower(kind.model(settings)) == []


@pytest.mark.thorough
def test_post_norm_and_learned_positions_obey():
    model = Transformer(TransformerSettings(
        hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1, source_vocab_size=9,
        target_vocab_size=9, tie_embeddings="none", positions="learned", postprocess="drn", preprocess=""))
    assert check_tower(model) == []


def test_all_breaches_of_a_function_are_returned_together():
    class Chimera(tower_zoo.SaysTower, tower_zoo.KeepsAList, tower_zoo.FillsACollection):
        pass

    breaches = {(breach.rule, breach.variable) for breach in check_tower(Chimera())}
    assert breaches == {("tower-word", "ivory_tower/kernel"), ("grows", "costs"), ("grows", "self.costs")}


def test_the_check_changes_neither_the_model_nor_the_graph_of_the_caller(graph):
    model = tower_zoo.KeepsAList()
    check_tower(model)
    assert model.costs == [] and graph.get_operations() == []


def test_a_plain_function_is_checked_with_the_variables_of_its_closure():
    kept = []

    def tower(x):
        kept.append(x)
        return tf.reduce_sum(x * tf1.get_variable("scale", [3]))

    breaches = check_tower_function(tower, [tf.TensorSpec([None, 3], tf.float32, "x")])
    assert [(breach.rule, breach.variable) for breach in breaches] == [("grows", "kept")]


def test_the_breach_of_a_function_that_cannot_be_built_names_its_line():
    class Fails(tower_zoo.Tame):
        def layer(self, x):
            return tf.matmul(x, tf.zeros([7, 7]))

    (breach,) = check_tower(Fails())
    assert breach.rule == "fails" and "a training tower alone cannot be built: ValueError: " in breach.message
    assert "test_tower_rules.py:" in breach.location


def test_an_object_that_is_not_a_model_is_refused():
    with pytest.raises(SettingsError, match="check_tower_function"):
        check_tower(print)
