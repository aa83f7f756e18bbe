#!/usr/bin/env python
"""Minimum risk training (Shen et al. 2016): on from a finished run, by sentence BLEU or chrF itself.

    towernmt train --data data/de-en --logdir runs/de-en ...
    python examples/minimum_risk_trainer.py --model runs/de-en --data data/de-en --logdir runs/de-en-risk \
        --samples 8 --metric bleu --set train.steps=500
    towernmt evaluate --model runs/de-en-risk ...

Each step draws translations of a batch from the model as it is, scores them against the reference, and lowers their
expected risk: the sum over the drawn Y of Q(Y) * (1 - score(Y)), where Q is p(Y | source) ** alpha, normalised over
what was drawn. The trainer has a `train_batch` of its own: a run that fetches data, one that samples, one that updates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from fed_input import FedInput
from from_run import add_arguments, data_from_run, settings_from_run
from sacrebleu.metrics import BLEU, CHRF

from towernmt.cli.main import run_command
from towernmt.cli.training.train import gpu_numbers
from towernmt.core.runs import Run
from towernmt.core.shared_batch import towers_of_batch
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD, Vocabulary
from towernmt.models import architecture
from towernmt.models.interface import NMTModel, batch_signature
from towernmt.models.layers.randomness import start_clock
from towernmt.models.losses.likelihood import sentence_log_probabilities
from towernmt.predict.decoding.sampling import SamplingSettings, build_sampler
from towernmt.run.launch import train
from towernmt.run.settings import Settings
from towernmt.train.trainer import SyncMultiGPUTrainer

DEFAULTS = ["train.steps=500", "data.batch_tokens=512", "validation.steps=100", "checkpoint.steps=100",
            "schedule.name=constant", "schedule.warmup_steps=0", "optimizer.learning_rate=0.0001",
            "model.guided_alignment_weight=0", "data.memory_gb=0", "train.update_cycle=1"]
"""A small rate: the model is good already, and the risk of a few samples is a noisy thing. It is the whole cost."""


class ExpectedRisk(NMTModel):
    """A model's tower with the expected risk of given candidates as its cost; to be mixed with an architecture."""

    alpha: float

    def inputs(self) -> list[Any]:
        return [*batch_signature(self.source_factor_count)[:2],                 # source, source_length
                tf.TensorSpec([None, None, None], tf.int32, "candidates"),      # [batch, candidates, length]
                tf.TensorSpec([None, None], tf.int32, "candidates_length"),     # 0 where there is none
                tf.TensorSpec([None, None], tf.float32, "risks"),               # 1 - score
                tf.TensorSpec([], tf.float32, "sentences")]                     # of the global batch

    def build_graph(self, *inputs: Any) -> Any:
        source, source_length, candidates, candidates_length, risks, sentences = inputs
        start_clock(sentences)
        batch, count, length = tf.unstack(tf.shape(candidates))
        memory = tf.nest.map_structure(lambda x: tf.repeat(x, count, axis=0), self.encode(source, source_length))
        log_prob = sentence_log_probabilities(
            self, memory, tf.reshape(candidates, [-1, length]), tf.reshape(candidates_length, [-1]))
        there = tf.cast(candidates_length > 0, tf.float32)
        sharp = self.alpha * tf.reshape(log_prob, [batch, count]) - 1e9 * (1.0 - there)
        expected = tf.reduce_sum(tf.nn.softmax(sharp) * risks, axis=1)          # [batch]
        return tf.multiply(tf.reduce_sum(expected), towers_of_batch() / sentences, name="loss")


class MinimumRiskTrainer(SyncMultiGPUTrainer):
    """Draws, scores, updates.

    Args:
        sampling: how candidates are drawn.
        score: from hypothesis and reference to 0 (useless) up to 1 (equal).
        vocabulary: of the target.
        reference: whether the reference is one of the candidates, as with Shen et al.
        others: as those of `SyncMultiGPUTrainer`.
    """

    def __init__(self, sampling: SamplingSettings, score: Any, vocabulary: Vocabulary, reference: bool,
                 **others: Any) -> None:
        super().__init__(**others)
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
        return self.weight_by("sentences")      # the cost is a mean over these

    def judge(self, samples: np.ndarray, target: np.ndarray) -> tuple[list[tuple[int, ...]], list[float]]:
        """The different ones among a sentence's samples `[samples, length]`, and the risk of each."""
        reference = self.vocabulary.decode(target.tolist())
        unique = dict.fromkeys(tuple(row[row != PAD].tolist()) for row in ([target] if self.reference else []))
        unique.update(dict.fromkeys(tuple(row[row != PAD].tolist()) for row in samples))
        return list(unique), [1.0 - self.score(self.vocabulary.decode(ids), reference) for ids in unique]


def pad_candidates(candidates: Sequence[list[tuple[int, ...]]]) -> tuple[np.ndarray, np.ndarray]:
    """int32 `[batch, candidates, length]` and their lengths int32 `[batch, candidates]`, 0 where there is none."""
    count, length = max(map(len, candidates)), max(len(ids) for row in candidates for ids in row)
    padded = np.full([len(candidates), count, length], PAD, np.int32)
    lengths = np.zeros([len(candidates), count], np.int32)
    for i, row in enumerate(candidates):
        for j, ids in enumerate(row):
            padded[i, j, :len(ids)], lengths[i, j] = ids, len(ids)
    return padded, lengths


def pad_risks(risks: Sequence[list[float]]) -> np.ndarray:
    """float32 `[batch, candidates]`."""
    padded = np.zeros([len(risks), max(map(len, risks))], np.float32)
    for i, row in enumerate(risks):
        padded[i, :len(row)] = row
    return padded


def sentence_score(metric: str) -> Any:
    """A function of hypothesis and reference, from 0 to 1: smoothed sentence BLEU, or chrF2."""
    scorer: Any = BLEU(effective_order=True, force=True) if metric == "bleu" else CHRF()
    return lambda hypothesis, reference: scorer.sentence_score(hypothesis, [reference]).score / 100.0


def make_model(settings: Settings, alpha: float) -> Any:
    """The run's architecture, with the expected risk as its cost."""
    kind = type("MinimumRisk", (ExpectedRisk, architecture(settings.architecture).model),
                {"alpha": alpha, "architecture": settings.architecture})        # by whose name the run is translated
    return kind(settings.model, settings.optimizer, settings.train.clip_norm)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metric", choices=("bleu", "chrf"), default="bleu", help="of a sentence (default: bleu)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="drawn for a sentence (default: 8)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the draws (default: 1)")
    parser.add_argument("--alpha", type=float, default=0.05, help="sharpness of Q; 0 is even (default: 0.05)")
    parser.add_argument("--no-reference", action="store_true", help="take the drawn translations alone")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Train; the exit status."""
    data = data_from_run(options)
    sampling = SamplingSettings(samples=options.samples, temperature=options.temperature, max_length_factor=1.5)
    trainer = partial(MinimumRiskTrainer, sampling, sentence_score(options.metric), data.target_vocabulary,
                      not options.no_reference)
    return train(settings_from_run(options, DEFAULTS), data, options.logdir, gpu_numbers(options.gpu), options.towers,
                 model=partial(make_model, alpha=options.alpha), source=FedInput, trainer=trainer)


if __name__ == "__main__":
    sys.exit(main())
