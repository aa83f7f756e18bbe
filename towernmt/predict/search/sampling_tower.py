"""Sampled translations as tensors and as a function of arrays, assembled from settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.models.interface import NMTModel
from towernmt.predict.search.decoding_interfaces import LogitsProcessor
from towernmt.predict.search.decoding_loop import Decoding, LengthLimit, decode
from towernmt.predict.search.decoding_tower import SearchPredictor, build_predictor
from towernmt.predict.search.processors import ForbiddenTokens, Temperature
from towernmt.predict.search.sampling_search import AncestralSampling, Truncation


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of sampled translations.

    Attributes:
        samples: number of samples of each sentence.
        temperature: divisor of the logits; 1 samples from the model's distribution, lower values prefer probable
            tokens.
        top_k, top_p, epsilon: tokens that are never sampled; see `Truncation`.
        max_length_factor, max_length_constant: a sample has at most source tokens * factor + constant tokens (EOS
            included on both sides); a longer sample is cut and has no EOS.

    Raises:
        SettingsError: a value is not valid.
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
            raise SettingsError(f"samples={self.samples}: choose 1 or more.")
        if not 0.0 < self.temperature < float("inf"):
            raise SettingsError(f"temperature={self.temperature}: choose a number above 0; 1 has no effect.")
        if self.top_k < 0:
            raise SettingsError(f"top_k={self.top_k}: choose 0 (all tokens) or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise SettingsError(f"top_p={self.top_p}: choose a number above 0 and at most 1 (all tokens).")
        if not 0.0 <= self.epsilon < 1.0:
            raise SettingsError(f"epsilon={self.epsilon}: choose a number from 0 (all tokens) to below 1.")
        if self.max_length_factor < 0 or self.max_length_constant < 0:
            raise SettingsError(f"max_length_factor={self.max_length_factor} and "
                                f"max_length_constant={self.max_length_constant}: choose 0 or more for both.")


class SampleResult(NamedTuple):
    """Sampled translations of a batch.

    Attributes:
        tokens: int32 `[batch, samples, length]`: no BOS; EOS at the end, except in a sample that was cut at the length
            limit; then PAD.
        log_prob: float32 `[batch, samples]`: log p(sample | source) of the model, as in teacher forcing, independent of
            the temperature.
    """

    tokens: Tensor
    log_prob: Tensor


def sample(model: NMTModel, source: Tensor, source_length: Tensor, draw: Tensor,
           settings: SamplingSettings) -> SampleResult:
    """Sample translations token by token. PAD and BOS are never sampled.

    Args:
        model: the model; its variables are created, or reused under `reuse`.
        source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
        source_length: int32 `[batch]`, in tokens, EOS included.
        draw: int64 `[]`: a different number gives different samples; the seed is that of the graph (`set_seed`).
        settings: sampling settings.
    """
    inputs = {"source": source, "source_length": source_length, "draw": draw}
    samples = decode(model, inputs, sampling_for(settings))
    return SampleResult(samples.tokens, samples.scores)


def sampling_for(settings: SamplingSettings) -> Decoding:
    """Return the sampling that settings describe."""
    chain: list[LogitsProcessor] = [ForbiddenTokens([PAD, BOS])]
    if settings.temperature != 1.0:
        chain.insert(0, Temperature(settings.temperature))
    truncation = Truncation(settings.top_k, settings.top_p, settings.epsilon)
    return Decoding(AncestralSampling(settings.samples, truncation), chain,
                    LengthLimit(settings.max_length_factor, settings.max_length_constant))


def build_sampler(model: NMTModel, settings: SamplingSettings) -> SearchPredictor:
    """Build a sampling tower in the current graph and variable scope, on the variables of a training tower.

    The result is a function of (source, source_length, draw) that returns the tokens, int32 `[batch, samples, length]`,
    and the log-probabilities, float32 `[batch, samples]`. A different `draw` gives different samples; a trainer passes
    its global step.

    Raises:
        TowerRuleError: the graph has no training tower yet.
    """
    return build_predictor(model, sampling_for(settings))
