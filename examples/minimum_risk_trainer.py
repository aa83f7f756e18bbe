#!/usr/bin/env python
"""Continue training a finished run by minimum risk (Shen et al. 2016), measured by sentence BLEU or chrF.

    towernmt train --data data/de-en --logdir runs/de-en ...
    python examples/minimum_risk_trainer.py --model runs/de-en --data data/de-en --logdir runs/de-en-risk \
        --samples 8 --metric bleu --set train.steps=500
    towernmt evaluate --model runs/de-en-risk ...

Each step samples translations of a batch from the current model, scores them against the reference, and lowers their
expected risk: the sum over the samples Y of Q(Y) * (1 - score(Y)), where Q is p(Y | source) ** alpha, normalised over
the samples. The trainer overrides `train_batch` with three runs: one fetches data, one samples, one updates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from from_run import add_arguments, data_from_run, settings_from_run
from sacrebleu.metrics import BLEU, CHRF

from towernmt import Settings, tf, train
from towernmt.cli import gpu_numbers, run_command
from towernmt.dataflow import PAD, Vocabulary
from towernmt.input_source import FedInput
from towernmt.models import NMTModel, architecture, batch_signature, sentence_log_probabilities, start_clock
from towernmt.predict import SamplingSettings, build_sampler
from towernmt.train import Run, SyncMultiGPUTrainer, towers_of_batch

DEFAULTS = ["train.steps=500", "data.batch_tokens=512", "validation.steps=100", "checkpoint.steps=100",
            "schedule.name=constant", "schedule.warmup_steps=0", "optimizer.learning_rate=0.0001",
            "model.guided_alignment_weight=0", "data.memory_gb=0", "train.update_cycle=1"]
"""A small learning rate, since the model is already good and the risk of a few samples is noisy."""


class ExpectedRisk(NMTModel):
    """Mixin for an architecture: the cost is the expected risk of the candidates in the batch."""

    alpha: float

    def inputs(self) -> list[Any]:
        return [*batch_signature(self.source_factor_count)[:2],                 # source, source_length
                tf.TensorSpec([None, None, None], tf.int32, "candidates"),      # [batch, candidates, length]
                tf.TensorSpec([None, None], tf.int32, "candidates_length"),     # 0: no candidate
                tf.TensorSpec([None, None], tf.float32, "risks"),               # 1 - score
                tf.TensorSpec([], tf.float32, "sentences")]                     # in the global batch

    def build_graph(self, *inputs: Any) -> Any:
        source, source_length, candidates, candidates_length, risks, sentences = inputs
        start_clock(sentences)
        batch, count, length = tf.unstack(tf.shape(candidates))
        memory = tf.nest.map_structure(lambda x: tf.repeat(x, count, axis=0), self.encode(source, source_length))
        log_prob = sentence_log_probabilities(
            self, memory, tf.reshape(candidates, [-1, length]), tf.reshape(candidates_length, [-1]))
        exists = tf.cast(candidates_length > 0, tf.float32)
        sharp = self.alpha * tf.reshape(log_prob, [batch, count]) - 1e9 * (1.0 - exists)
        expected = tf.reduce_sum(tf.nn.softmax(sharp) * risks, axis=1)          # [batch]
        return tf.multiply(tf.reduce_sum(expected), towers_of_batch() / sentences, name="loss")


class MinimumRiskTrainer(SyncMultiGPUTrainer):
    """Trainer that samples candidates, scores them and updates the model.

    Args:
        sampling: sampling settings of the candidates.
        score: function of hypothesis and reference, from 0 (useless) to 1 (equal).
        vocabulary: target vocabulary.
        reference: whether the reference is one of the candidates, as in Shen et al.
        options: arguments of `SyncMultiGPUTrainer`.
    """

    def __init__(self, sampling: SamplingSettings, score: Any, vocabulary: Vocabulary, reference: bool,
                 **options: Any) -> None:
        super().__init__(**options)
        self.sampling, self.score, self.vocabulary, self.reference = sampling, score, vocabulary, reference

    def _setup_graph(self, *arguments: Any) -> list[Any]:
        callbacks = super()._setup_graph(*arguments)
        self.sampler = build_sampler(self.model, self.sampling)
        return callbacks

    def initialize_hooks(self) -> None:
        super().initialize_hooks()
        self.sampler.set_session(self.session(Run.SAMPLING))

    def train_batch(self, run: Callable[..., None]) -> None:
        source, source_length, target, _, _ = self._input.take(self.hooked_sess)
        samples, _ = self.sampler(source, source_length, draw=self.batch_number)
        candidates, risks = zip(*map(self.judge, samples, target), strict=True)
        run(self._input.feed(
            source, source_length, *pad_candidates(candidates), pad_risks(risks), np.float32(len(source))))

    def batch_weight(self) -> Any:
        return self.weight_by("sentences")      # the cost is a mean over sentences

    def judge(self, samples: np.ndarray, target: np.ndarray) -> tuple[list[tuple[int, ...]], list[float]]:
        """Return the distinct candidates among the samples `[samples, length]` of a sentence, and the risk of each."""
        reference = self.vocabulary.decode(target.tolist())
        unique = dict.fromkeys(tuple(row[row != PAD].tolist()) for row in ([target] if self.reference else []))
        unique.update(dict.fromkeys(tuple(row[row != PAD].tolist()) for row in samples))
        return list(unique), [1.0 - self.score(self.vocabulary.decode(ids), reference) for ids in unique]


def pad_candidates(candidates: Sequence[list[tuple[int, ...]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids int32 `[batch, candidates, length]` and lengths int32 `[batch, candidates]` (0: no candidate)."""
    count, length = max(map(len, candidates)), max(len(ids) for row in candidates for ids in row)
    padded = np.full([len(candidates), count, length], PAD, np.int32)
    lengths = np.zeros([len(candidates), count], np.int32)
    for i, row in enumerate(candidates):
        for j, ids in enumerate(row):
            padded[i, j, :len(ids)], lengths[i, j] = ids, len(ids)
    return padded, lengths


def pad_risks(risks: Sequence[list[float]]) -> np.ndarray:
    """Return the risks as float32 `[batch, candidates]`, padded with 0."""
    padded = np.zeros([len(risks), max(map(len, risks))], np.float32)
    for i, row in enumerate(risks):
        padded[i, :len(row)] = row
    return padded


def sentence_score(metric: str) -> Any:
    """Return a function of hypothesis and reference with values from 0 to 1: smoothed sentence BLEU, or chrF2."""
    scorer: Any = BLEU(effective_order=True, force=True) if metric == "bleu" else CHRF()
    return lambda hypothesis, reference: scorer.sentence_score(hypothesis, [reference]).score / 100.0


def make_model(settings: Settings, alpha: float) -> Any:
    """Return a model of the run's architecture with the expected risk as its cost."""
    model_class = type("MinimumRisk", (ExpectedRisk, architecture(settings.architecture).model),
                       {"alpha": alpha, "architecture": settings.architecture})        # recorded in the run
    return model_class(settings.model)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metric", choices=("bleu", "chrf"), default="bleu", help="sentence metric (default: bleu)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="drawn for a sentence (default: 8)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the draws (default: 1)")
    parser.add_argument("--alpha", type=float, default=0.05, help="sharpness of Q; 0 is even (default: 0.05)")
    parser.add_argument("--no-reference", action="store_true", help="take the drawn translations alone")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Train and return the exit status."""
    data = data_from_run(options)
    sampling = SamplingSettings(samples=options.samples, temperature=options.temperature, max_length_factor=1.5)
    trainer = partial(MinimumRiskTrainer, sampling, sentence_score(options.metric), data.target_vocabulary,
                      not options.no_reference)
    signature = batch_signature(data.source_vocabulary.streams - 1)
    return train(settings_from_run(options, DEFAULTS), data, options.logdir, gpu_numbers(options.gpu), options.towers,
                 model=partial(make_model, alpha=options.alpha), source=partial(FedInput, signature=signature),
                 trainer=trainer)


if __name__ == "__main__":
    sys.exit(main())
