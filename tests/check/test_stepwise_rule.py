"""`towernmt check` runs both forms of a decoder and compares them."""

from __future__ import annotations

import inspect

import pytest
from tensorpack.tfutils.tower import get_current_tower_context

from tests.check import decoder_zoo
from towernmt.check import DECODER_RULES, check_tower
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer


def broken_line(model) -> int:
    lines, first = inspect.getsourcelines(model)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith("# broken"))


@pytest.mark.parametrize("beast", [
    pytest.param(beast, id=beast.model.__name__, marks=[pytest.mark.thorough] * (number > 1))
    for number, beast in enumerate(decoder_zoo.ZOO)])
def test_the_breach_of_an_inconsistent_decoder_names_rule_and_line(beast):
    (breach,) = check_tower(beast.model())
    assert (breach.rule, breach.message) == (beast.rule, beast.message)
    assert breach.location.endswith(f"decoder_zoo.py:{broken_line(beast.model)}")


def test_every_rule_of_decoders_has_a_beast():
    assert {beast.rule for beast in decoder_zoo.ZOO} == set(DECODER_RULES)


def test_a_decoder_with_two_equal_forms_has_no_breach():
    assert check_tower(decoder_zoo.TameDecoder()) == []


def test_a_cache_without_a_row_for_each_hypothesis_fails():
    (breach,) = check_tower(decoder_zoo.TakesARowASentence())
    assert breach.rule == "fails" and "5 steps of decode_step with 3 hypotheses a sentence" in breach.message


def test_a_weight_that_only_translating_uses_is_reported():
    class Sharpened(decoder_zoo.TameDecoder):
        def decode_step(self, token, state):
            logits, state = super().decode_step(token, state)
            return logits * tf1.get_variable("sharpness", [], initializer=tf1.ones_initializer()), state

    (breach,) = check_tower(Sharpened())
    assert (breach.rule, breach.variable) == ("mode", "sharpness")
    assert "is created only for translating (a tower of decode_step): no training tower has it" in breach.message


def test_a_decoding_step_that_fails_with_attention_is_reported():
    class Attentive(decoder_zoo.TameDecoder):
        def decode_with_attention(self, memory, target_in):
            return self.decode_hidden(memory, target_in), tf.ones_like(target_in, tf.float32)[..., None]

        def decode_step(self, token, state, attention=False):
            logits, state = super().decode_step(token, state)
            return (logits, state, self.weights) if attention else (logits, state)

    (breach,) = check_tower(Attentive())
    assert breach.rule == "fails" and breach.message.startswith(
        "a tower of decode_step with attention cannot be built: AttributeError")


def test_an_overridden_decode_does_not_hide_that_training_computes_something_else():
    class Sharpened(decoder_zoo.TameDecoder):
        def decode(self, memory, target_in):
            return 2.0 * super().decode(memory, target_in)

        def decode_step(self, token, state):
            logits, state = super().decode_step(token, state)
            return 2.0 * logits, state

    (breach,) = check_tower(Sharpened())
    assert breach.rule == "stepwise" and breach.message.startswith(
        "decode_step and decode_hidden with output_projection (training calls these, and not decode) return different")


def test_a_local_variable_has_its_initial_value_as_in_training():
    class Scaled(decoder_zoo.TameDecoder):
        def encode(self, source, source_length):
            scale = tf1.get_variable("scale", [], initializer=tf1.ones_initializer(), trainable=False,
                                     collections=[tf1.GraphKeys.LOCAL_VARIABLES])
            return scale * super().encode(source, source_length)

    assert check_tower(Scaled()) == []


def test_weights_that_only_training_uses_are_accepted():
    class SecondTask(decoder_zoo.TameDecoder):
        def build_graph(self, *inputs, **named):
            loss = super().build_graph(*inputs, **named)
            if get_current_tower_context().is_training:
                loss += tf.reduce_sum(tf1.get_variable("head", [3]))
            return loss

    assert check_tower(SecondTask()) == []


def test_a_model_whose_cost_has_other_inputs_is_translated_and_scored_as_any_other():
    class Regression(decoder_zoo.TameDecoder):
        def inputs(self):
            return [*super().inputs()[:2], tf.TensorSpec([None, None, 12], tf.float32, "wanted")]

        def build_graph(self, source, source_length, wanted):
            target_in = tf.zeros(tf.shape(wanted)[:2], tf.int32)
            hidden = self.decode_hidden(self.encode(source, source_length), target_in)
            return tf.reduce_mean((self.output_projection().logits(hidden) - wanted) ** 2)

    assert check_tower(Regression()) == []


@pytest.mark.thorough
def test_a_variant_of_the_transformer_that_changes_only_one_form_has_a_breach():
    class Louder(Transformer):
        def decode_step(self, token, state):
            logits, state = super().decode_step(token, state)
            return 1.01 * logits, state

    settings = TransformerSettings(hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1,
                                   source_vocab_size=9, target_vocab_size=9, source_factor_vocab_sizes=[6])
    (breach,) = check_tower(Louder(settings))
    assert breach.rule == "stepwise" and "test_stepwise_rule.py:" in breach.location


@pytest.mark.thorough
def test_the_check_leaves_the_callers_graph_alone(graph):
    check_tower(decoder_zoo.TameDecoder())
    assert tf.compat.v1.get_default_graph() is graph and graph.get_operations() == []
