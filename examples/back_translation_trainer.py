#!/usr/bin/env python
"""Train two models, one per direction, that generate training pairs for each other from monolingual text.

    python examples/back_translation_trainer.py --data data/de-en --mono-source news.de --mono-target news.en \
        --logdir runs/both --start 2000 --set train.steps=10000
    towernmt translate --model runs/both/forward < text.de
    towernmt translate --model runs/both/backward < text.en

Both models are one tower function, with the variable scopes `forward` and `backward` and the sum of their losses as its
cost. The first --start steps use only the parallel text. After that, in each step, the backward model samples
translations of text in the target language, and the forward model learns to translate them back into the original text;
and vice versa (Sennrich et al. 2016; with sampling instead of search, Edunov et al. 2018). At the end, each direction
is written as a separate run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from towernmt import DataError, Settings, SettingsError, tf, tf1, train
from towernmt.checkpoint import keep_last, write_checkpoint
from towernmt.cli import add_run_arguments, gpu_numbers, run_command, settings_sources
from towernmt.dataflow import EOS, PAD, TrainingData, Vocabulary, open_training_data, pad_sentences, save_vocabularies
from towernmt.input_source import FedInput
from towernmt.models import NMTModel, batch_signature
from towernmt.optim import AVERAGE_SUFFIX
from towernmt.predict import SamplingSettings, build_sampler, read_text
from towernmt.run import RunDirectory, model_from_settings, resolve_settings, with_vocabulary_sizes
from towernmt.train import Run, SyncMultiGPUTrainer

from tensorpack.callbacks import Callback  # isort: skip (after towernmt, which prepares TensorFlow)

DIRECTIONS = ("forward", "backward")
Ids = list[list[int]]
"""Sentences, without EOS."""


class Direction(NMTModel):
    """A model inside a separate variable scope."""

    recomputes = True       # as the Transformer does

    def __init__(self, model: NMTModel, scope: str) -> None:
        self.model, self.scope = model, scope
        self.source_vocab_size, self.target_vocab_size = model.source_vocab_size, model.target_vocab_size

    @property
    def overrides_loss(self) -> bool:
        return self.model.overrides_loss

    @property
    def softmax_sample(self) -> float:
        return self.model.softmax_sample

    @property
    def word_dropout(self) -> float:
        return self.model.word_dropout

    @property
    def dropout_divergence(self) -> float:
        return self.model.dropout_divergence

    def loss(self, *arguments: Any) -> Any:
        return self._within("loss", *arguments)

    def encode(self, *arguments: Any) -> Any:
        return self._within("encode", *arguments)

    def decode_hidden(self, *arguments: Any) -> Any:
        return self._within("decode_hidden", *arguments)

    def output_projection(self) -> Any:
        return self._within("output_projection")

    def start_state(self, *arguments: Any) -> Any:
        return self._within("start_state", *arguments)

    def decode_step(self, *arguments: Any) -> Any:
        return self._within("decode_step", *arguments)

    def _within(self, method: str, *arguments: Any) -> Any:
        with tf1.variable_scope(self.scope):
            return getattr(self.model, method)(*arguments)


class BothDirections(Direction):
    """The tower function of both models; search, for validation, uses the forward model."""

    def __init__(self, settings: Settings) -> None:
        self.directions = {name: Direction(model_from_settings(direction_settings), name)
                           for name, direction_settings in each_direction(settings).items()}
        super().__init__(self.directions["forward"].model, "forward")
        self.architecture = settings.architecture       # recorded in each direction's run, which is translated with it

    def inputs(self) -> list[Any]:
        specs = super().inputs()
        return [tf.TensorSpec(spec.shape, spec.dtype, f"{name}_{spec.name}") for name in DIRECTIONS for spec in specs]

    def build_graph(self, *inputs: Any) -> Any:
        costs = []
        for name, direction_inputs in zip(DIRECTIONS, (inputs[:5], inputs[5:]), strict=True):
            with tf1.name_scope(name):
                costs.append(self.directions[name].build_graph(*direction_inputs))
        return tf.add_n(costs, name="loss")


def each_direction(settings: Settings) -> dict[str, Settings]:
    """Return the settings of both models; the backward model has source and target vocabulary swapped."""
    model = settings.model
    swapped = dataclasses.replace(model, source_vocab_size=model.target_vocab_size,
                                  target_vocab_size=model.source_vocab_size)
    return {"forward": settings, "backward": dataclasses.replace(settings, model=swapped)}


class BackTranslationTrainer(SyncMultiGPUTrainer):
    """Trainer that samples the missing side of monolingual text and updates both models.

    Args:
        text: sentences in the target language of each direction.
        start: number of steps on the parallel text only.
        options: arguments of `SyncMultiGPUTrainer`.
    """

    def __init__(self, text: dict[str, Ids], start: int, **options: Any) -> None:
        super().__init__(**options)
        self.text, self.start = text, start

    def _setup_graph(self, *arguments: Any) -> list[Any]:
        callbacks = super()._setup_graph(*arguments)
        sampling = SamplingSettings(max_length_factor=1.5)
        self.samplers = {name: build_sampler(model, sampling) for name, model in self.model.directions.items()}
        return callbacks

    def initialize_hooks(self) -> None:
        super().initialize_hooks()
        for sampler in self.samplers.values():
            sampler.set_session(self.session(Run.SAMPLING))

    def train_batch(self, run: Callable[..., None]) -> None:
        source, source_length, target, target_length, _ = self._input.take(self.hooked_sess)
        sources, targets = unpadded(source, source_length), unpadded(target, target_length)
        pairs = {"forward": (sources, targets), "backward": (targets, sources)}
        if self.loop.global_step >= self.start:
            for name, teacher in zip(DIRECTIONS, reversed(DIRECTIONS), strict=True):
                texts = self.choose(self.text[name], len(sources), name)
                translations, _ = self.samplers[teacher](*pad_sentences(texts), draw=self.batch_number)
                sampled = [row[(row != PAD) & (row != EOS)].tolist() for row in translations[:, 0]]
                pairs[name] = pairs[name][0] + sampled, pairs[name][1] + texts
        arrays = [array for name in DIRECTIONS for array in batch_of(*pairs[name])]
        run(self._input.feed(*arrays))

    def choose(self, text: Ids, count: int, name: str) -> Ids:
        """Return `count` random sentences for this batch; a resumed run gets the same ones."""
        random = np.random.default_rng([self.batch_number, DIRECTIONS.index(name)])
        return [text[i] for i in random.integers(0, len(text), count)]


def unpadded(sentences: np.ndarray, lengths: np.ndarray) -> Ids:
    """Return the rows without EOS and padding."""
    return [row[:length - 1].tolist() for row, length in zip(sentences, lengths, strict=True)]


def batch_of(sources: Ids, targets: Ids) -> list[Any]:
    """Return the five inputs of a model's tower."""
    target, target_length = pad_sentences(targets)
    return [*pad_sentences(sources), target, target_length, np.float32(target_length.sum())]


class WriteDirections(Callback):
    """Callback that writes each direction as a run for `towernmt translate` at the end of training."""

    def __init__(self, logdir: str, settings: Settings, data: TrainingData) -> None:
        self.runs = {name: RunDirectory(Path(logdir) / name) for name in DIRECTIONS}
        self.settings, self.vocabularies = each_direction(settings), (data.source_vocabulary, data.target_vocabulary)

    def _setup_graph(self) -> None:
        weights = {v.op.name for v in tf1.trainable_variables()}
        saved_variables = [v for v in tf1.global_variables() if v.op.name.removesuffix(AVERAGE_SUFFIX) in weights]
        self._savers = {name: tf1.train.Saver({v.op.name.removeprefix(f"{name}/"): v for v in saved_variables
                                               if v.op.name.startswith(f"{name}/")}) for name in DIRECTIONS}

    def _before_train(self) -> None:        # only in the chief process, which alone writes
        for (name, run), sides in zip(self.runs.items(), (self.vocabularies, self.vocabularies[::-1]), strict=True):
            run.save_settings(self.settings[name])
            save_vocabularies(*sides, run.vocabulary)

    def _after_train(self) -> None:
        if self.trainer.diverged:
            return
        state = {"format": 1, "step": self.global_step, "position": None, "callbacks": {}}
        for name, run in self.runs.items():
            write_checkpoint(self._savers[name], self.trainer.sess, run.checkpoints, self.global_step, state)
            keep_last(run.checkpoints, 1)


def read_ids(file: str, vocabulary: Vocabulary, longest: int) -> Ids:
    """Return the sentences of a file with 1 to `longest` tokens as ids."""
    ids = [sentence for sentence in vocabulary.encode_batch(read_text(file)) if 0 < len(sentence) <= longest]
    if not ids:
        raise DataError(f"{file} has no sentence of 1 to {longest} tokens: pass a different text or a larger "
                        "--max-length.")
    return ids


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="parallel text: prepared data, or a corpora.yaml")
    parser.add_argument("--mono-source", required=True, metavar="FILE", help="text in the source language")
    parser.add_argument("--mono-target", required=True, metavar="FILE", help="text in the target language")
    parser.add_argument("--max-length", type=int, default=100, metavar="TOKENS",
                        help="skip longer monolingual sentences (default: 100)")
    parser.add_argument("--start", type=int, default=1000, metavar="STEPS",
                        help="number of steps on the parallel text only (default: 1000)")
    add_run_arguments(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Train and return the exit status."""
    if not options.logdir:
        raise SettingsError("--logdir is missing: pass the directory of the run.")
    data = open_training_data(options.data)
    if data.source_vocabulary.streams > 1:
        raise SettingsError(f"{data.directory} has source factors, but sampled translations have none: prepare the "
                            "data without --source-factors.")
    settings = with_vocabulary_sizes(resolve_settings(settings_sources(options)).settings, data)
    text = {"forward": read_ids(options.mono_target, data.target_vocabulary, options.max_length),
            "backward": read_ids(options.mono_source, data.source_vocabulary, options.max_length)}
    return train(settings, data, options.logdir, gpu_numbers(options.gpu), options.towers,
                 model=BothDirections, trainer=partial(BackTranslationTrainer, text, options.start),
                 source=partial(FedInput, signature=batch_signature()),
                 callbacks_before=lambda: [WriteDirections(options.logdir, settings, data)])


if __name__ == "__main__":
    sys.exit(main())
