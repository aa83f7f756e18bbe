"""Ancestral sampling: its settings, as a part of a graph, and as a tower in a training session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.models.interface import NMTModel
from towernmt.predict.decoding.length_limit import LengthLimit
from towernmt.predict.decoding.loop import Decoding, decode
from towernmt.predict.decoding.processors.forbidden_tokens import ForbiddenTokens
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.processors.temperature import Temperature
from towernmt.predict.decoding.search import SearchPredictor, build_predictor
from towernmt.predict.decoding.strategies.ancestral import AncestralSampling
from towernmt.predict.decoding.strategies.drawing import Truncation


@dataclass(frozen=True)
class SamplingSettings:
    """How translations are drawn.

    Attributes:
        samples: how many for each sentence.
        temperature: divides the logits; 1 draws from the model itself, less keeps nearer to its best.
        top_k, top_p, epsilon: which tokens are never drawn; see `Truncation`.
        max_length_factor, max_length_constant: a sample has at most source tokens * factor + constant tokens (EOS
            counts on both sides); what is longer is cut there and has no EOS.
    Raises:
        SettingsError: a value that cannot work.
    """

    samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0
    max_length_factor: float = 2.0
    max_length_constant: int = 10

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SettingsError(f"samples={self.samples}: draw 1 or more.")
        if not 0.0 < self.temperature < float("inf"):
            raise SettingsError(f"temperature={self.temperature}: choose a number above 0; 1 is the model's own.")
        if self.top_k < 0:
            raise SettingsError(f"top_k={self.top_k}: choose 0 (all tokens) or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise SettingsError(f"top_p={self.top_p}: choose a number above 0 and at most 1 (all tokens).")
        if not 0.0 <= self.epsilon < 1.0:
            raise SettingsError(f"epsilon={self.epsilon}: choose a number from 0 (all tokens) to below 1.")
        if self.max_length_factor < 0 or self.max_length_constant < 0:
            raise SettingsError("max_length_factor and max_length_constant are 0 or more.")


class SampleResult(NamedTuple):
    """What was drawn.

    Attributes:
        tokens: int32 `[batch, samples, length]`: no BOS; EOS where the sample ended by itself; PAD behind.
        log_prob: float32 `[batch, samples]`: log p(sample | source) by the model, as teacher forcing gives it,
            whatever the temperature.
    """

    tokens: Tensor
    log_prob: Tensor


def sample(model: NMTModel, source: Tensor, source_length: Tensor, draw: Tensor,
           settings: SamplingSettings) -> SampleResult:
    """Draw translations token by token. PAD and BOS are never drawn.

    Args:
        model: its variables are created here or, under reuse, found.
        source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
        source_length: int32 `[batch]`, EOS counted.
        draw: int64 `[]`: another number, another draw; the seed is the graph's (`set_seed`).
    """
    inputs = {"source": source, "source_length": source_length, "draw": draw}
    drawn = decode(model, inputs, sampling_for(settings))
    return SampleResult(drawn.tokens, drawn.scores)


def sampling_for(settings: SamplingSettings) -> Decoding:
    """The sampling that settings ask for."""
    chain: list[LogitsProcessor] = [ForbiddenTokens([PAD, BOS])]
    if settings.temperature != 1.0:
        chain.insert(0, Temperature(settings.temperature))
    truncation = Truncation(settings.top_k, settings.top_p, settings.epsilon)
    return Decoding(AncestralSampling(settings.samples, truncation), chain,
                    LengthLimit(settings.max_length_factor, settings.max_length_constant))


def build_sampler(model: NMTModel, settings: SamplingSettings) -> SearchPredictor:
    """Build a sampling tower in the current graph and variable scope, on the variables of a training tower.

    What it gives is called with (source, source_length, draw), in a trainer's session, and returns the tokens, int32
    `[batch, samples, length]`, and the log-probabilities, float32 `[batch, samples]`. Another `draw` is another draw; a
    trainer takes its global step.

    Raises:
        ValueError: the graph has no training tower yet (TensorFlow's error for reuse of a missing variable).
    """
    return build_predictor(model, sampling_for(settings))
