#!/usr/bin/env python
"""Train a small model from a large one (Kim & Rush 2016) by word-level or sequence-level distillation.

    python examples/knowledge_distillation.py word --teacher runs/big --data data/de-en --preset tiny \
        --logdir runs/small
    python examples/knowledge_distillation.py sequence --teacher runs/big --source train.de --preset student \
        --logdir runs/small

word: in addition to the reference, the student learns the teacher's distribution at each position. The teacher is a
    second model in the same tower function, in a separate variable scope, frozen and without dropout. The student's
    checkpoints do not contain it.
sequence: the teacher translates the training text by beam search (as `towernmt translate` does) to
    LOGDIR/distilled.source and .target, and the student is trained on the result.

The student has the teacher's vocabulary. The preset `student` fits Marian and browsers: `towernmt export --format
marian`.
"""

from __future__ import annotations

import argparse
import dataclasses
import filecmp
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from towernmt import Settings, SettingsError, Translator, tf, tf1, train
from towernmt.checkpoint import OpenCheckpoint
from towernmt.cli import add_run_arguments, gpu_numbers, run_command, settings_sources
from towernmt.dataflow import TrainingData, open_training_data
from towernmt.models import NMTModel, architecture, shift_right
from towernmt.optim import AVERAGE_SUFFIX
from towernmt.run import RunDirectory, differing_vocabulary, model_from_settings, resolve_settings

from tensorpack.callbacks import Callback  # isort: skip (after towernmt, which prepares TensorFlow)

SCOPE = "teacher"


class Distilled(NMTModel):
    """Mixin for an architecture: the loss is divided between the reference and the teacher."""

    teacher: NMTModel
    weight: float
    """Weight of the teacher; the reference has weight 1 - `weight`."""

    def loss(self, logits: Any, batch: Any) -> Any:
        if not batch.is_training:
            return super().loss(logits, batch)
        with tf1.variable_scope(SCOPE, custom_getter=frozen):
            memory = self.teacher.encode(batch.source, batch.source_length)
            hidden = self.teacher.decode_hidden(memory, shift_right(batch.target))
            hidden = tf.gather_nd(hidden, batch.positions)      # [tokens, depth]
            teacher_logits = self.teacher.output_projection().logits(hidden)        # [tokens, vocabulary]
        agreement = -tf.reduce_sum(tf.stop_gradient(tf.nn.softmax(teacher_logits)) * tf.nn.log_softmax(logits))
        return (1.0 - self.weight) * batch.negative_log_likelihood() + self.weight * agreement


def frozen(getter: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
    """Variable getter that makes variables that are neither trained nor saved."""
    return getter(name, *arguments, **{**options, "trainable": False, "collections": ["local_variables"]})


class LoadTeacher(Callback):
    """Callback that loads the teacher's parameters (moving averages, if present), also when a run resumes."""

    _chief_only = False     # each process has its own teacher

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint, self._held = checkpoint, OpenCheckpoint(checkpoint)

    def _setup_graph(self) -> None:
        saved = self._held.shapes()
        names = {v.op.name.removeprefix(f"{SCOPE}/"): v for v in tf1.local_variables()
                 if v.op.name.startswith(f"{SCOPE}/")}
        self._saver = tf1.train.Saver({name + AVERAGE_SUFFIX if name + AVERAGE_SUFFIX in saved else name: v
                                       for name, v in names.items()})

    def _before_train(self) -> None:
        self._held.restore(self._saver, self.trainer.sess)


def make_student(settings: Settings, teacher: RunDirectory, weight: float) -> Any:
    """Return the student model with the teacher attached."""
    teacher_settings = teacher.settings()
    rates = [field.name for field in dataclasses.fields(teacher_settings.model) if field.name.endswith("dropout")]
    without_dropout = dataclasses.replace(teacher_settings.model, **dict.fromkeys(rates, 0.0))
    teacher_model = model_from_settings(dataclasses.replace(teacher_settings, model=without_dropout))
    architecture_class = architecture(settings.architecture).model
    student_class = type("Distilled", (Distilled, architecture_class), {
        "teacher": teacher_model, "weight": weight, "architecture": settings.architecture})     # recorded in the run
    return student_class(settings.model)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    levels = parser.add_subparsers(dest="level", required=True, metavar="LEVEL")
    word = levels.add_parser("word", help="learn the teacher's distribution at each word of the reference")
    word.add_argument("--data", required=True, help="prepared data or a corpora.yaml, in the teacher's vocabulary")
    word.add_argument("--weight", type=float, default=0.5, help="weight of the teacher, 0 to 1 (default: 0.5)")
    sequence = levels.add_parser("sequence", help="learn the teacher's translations")
    sequence.add_argument("--source", required=True, metavar="FILE", help="training text, one sentence per line")
    sequence.add_argument("--beam", type=int, default=5, metavar="N", help="beam size of the teacher (default: 5)")
    for level in (word, sequence):
        level.add_argument("--teacher", required=True, metavar="RUN", help="the --logdir of a finished run")
        add_run_arguments(level)
    options = parser.parse_args(arguments)
    return run_command(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Train and return the exit status."""
    if not options.logdir:
        raise SettingsError("--logdir is missing: pass the directory of the student's run.")
    teacher, settings = RunDirectory(options.teacher), resolve_settings(settings_sources(options)).settings
    options_of_level: dict[str, Any] = {}
    if options.level == "word":
        data = open_training_data(options.data, None, teacher.vocabulary)
        options_of_level = {"model": partial(make_student, teacher=teacher, weight=options.weight),
                            "callbacks_before": lambda: [LoadTeacher(teacher.checkpoint())]}
    else:
        data = distilled_data(options, teacher)
    if differing_vocabulary(teacher.vocabulary, data):
        raise SettingsError(f"{data.directory} and the teacher {teacher.path} have different vocabularies: prepare "
                            f"with the files in {teacher.vocabulary}.")
    return train(settings, data, options.logdir, gpu_numbers(options.gpu), options.towers, **options_of_level)


def distilled_data(options: argparse.Namespace, teacher: RunDirectory) -> TrainingData:
    """Return the training text with the teacher's translations, which are made once.

    Raises:
        SettingsError: the directory of the run contains the translations of another text.
    """
    source, target = (Path(options.logdir) / f"distilled.{side}" for side in ("source", "target"))
    if not source.is_file():
        source.parent.mkdir(parents=True, exist_ok=True)
        with open(options.source, "rb") as text, open(target, "wb") as output:
            stream = Translator(teacher.path, options.beam).translate_stream(text, options.source)
            output.writelines(f"{translation.text}\n".encode() for translation, *_ in stream)
        source.write_bytes(Path(options.source).read_bytes())   # last: it marks a complete translation
    elif Path(options.source).is_file() and not filecmp.cmp(source, options.source, shallow=False):
        raise SettingsError(f"{target} has the translations of another text than --source {options.source}: pass "
                            "another --logdir.")
    return open_training_data(f"{options.logdir}/distilled.{{source,target}}", teacher.vocabulary)


if __name__ == "__main__":
    sys.exit(main())
