"""Commands on checkpoints: `towernmt average` and `grow`.

- average: one checkpoint from the mean weights of several.
- grow: a trained run with the vocabulary of other data, or with more subwords.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from towernmt.core.errors import SettingsError
from towernmt.dataflow.preparation.manifest import VOCABULARIES


def add_average_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt average`."""
    parser.add_argument("--model", metavar="DIRECTORY", required=True, help="the --logdir of a training run")
    selection = parser.add_mutually_exclusive_group(required=True)
    selection.add_argument("--last", type=int, metavar="K", help="average the last K checkpoints")
    selection.add_argument("--best", type=int, metavar="K", help="average the best K by validation")
    selection.add_argument("--steps", metavar="FIRST,LAST",
                           help="average the checkpoints between two steps, both included")
    parser.add_argument("--output", metavar="DIRECTORY",
                        help="directory of the new checkpoint `step-N` (default: the run's averages/last-K and so on)")


def run_average(args: argparse.Namespace) -> int:
    """Average checkpoints, print the command that translates with the result, and return the exit status."""
    span = _span(args.steps) if args.steps is not None else None

    from towernmt.checkpoint import averaging  # imports TensorFlow
    from towernmt.checkpoint.checkpoint_reader import repeat_if_removed
    from towernmt.checkpoint.saved_run import SavedRun

    directory = SavedRun(args.model)
    directory.saved_settings()  # refuses a directory that holds no run
    name = (f"steps-{span[0]}-{span[1]}" if span else f"last-{args.last}" if args.last is not None
            else f"best-{args.best}")
    output = Path(args.output) if args.output else directory.path / "averages" / name

    def choose_and_average() -> tuple[list[Path], Path]:
        if span:
            checkpoints = averaging.checkpoints_between(directory, *span)
        elif args.last is not None:
            checkpoints = averaging.last_checkpoints(directory, args.last)
        else:
            checkpoints = averaging.best_checkpoints(directory, args.best)
        return checkpoints, averaging.average_checkpoints(directory, checkpoints, output)

    checkpoints, average = repeat_if_removed(choose_and_average)
    print(f"{average}: average of {', '.join(path.name for path in checkpoints)}; translate with\n"
          f"towernmt translate --model {quote(args.model)} --checkpoint {quote(str(average))}")
    return 0


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition(",")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise SettingsError(f"--steps {text}: expected FIRST,LAST, for example 8000,10000.")
    return int(first), int(last)


def add_grow_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt grow`."""
    parser.add_argument("--model", metavar="MODEL", required=True,
                        help="the trained model: a run, a package, or a model of another system (see `towernmt train "
                             "--start`)")
    words = parser.add_mutually_exclusive_group(required=True)
    words.add_argument("--vocabulary", metavar="DIRECTORY",
                       help="prepared data with the new vocabulary, or the folder of the vocabulary itself")
    words.add_argument("--source", metavar="FILE",
                       help="source text (with --target) whose subwords are added to the vocabularies of the run")
    parser.add_argument("--target", metavar="FILE", help="target text for --source")
    parser.add_argument("--vocab-size", type=int, metavar="N",
                        help="with --source: size of a vocabulary that is learned from each text, of which the new "
                             "subwords are added (default: chosen by the text)")
    parser.add_argument("--output", metavar="DIRECTORY", required=True, help="directory of the grown run")
    parser.add_argument("--checkpoint", metavar="NAME",
                        help="best, last, step-N or a checkpoint's prefix (default: the average that the run kept at "
                             "its end, else best, else last)")
    parser.add_argument("--trust-code", action="store_true", help="execute the code of a custom model in a package")


def run_grow(args: argparse.Namespace) -> int:
    """Write a run with another vocabulary, print the next commands, and return the exit status."""
    if (args.source is None) != (args.target is None):
        raise SettingsError("--source and --target belong together: pass the text of both languages.")
    if args.vocab_size is not None and args.source is None:
        raise SettingsError(f"--vocab-size {args.vocab_size} belongs to --source and --target: leave it out.")
    vocabulary = None if args.vocabulary is None else _vocabulary_directory(Path(args.vocabulary))

    from towernmt.checkpoint.saved_run import open_run_checkpoint
    from towernmt.interop.starting_models import open_starting_model
    from towernmt.run.directory import RunDirectory
    from towernmt.run.grown_run import extend_vocabulary, grow_vocabulary  # imports TensorFlow

    start = open_starting_model(args.model, "--model", args.trust_code)
    checkpoint_name = args.checkpoint or start.checkpoint
    open_run_checkpoint(start.run, checkpoint_name).close()     # unpacks the weights of a package
    run, train = RunDirectory(start.run.path), f"towernmt train --start {quote(args.output)} --data DATA --logdir NEW"
    if vocabulary is None:
        checkpoint = extend_vocabulary(run, args.source, args.target, args.output, args.vocab_size, checkpoint_name)
        print(f"{checkpoint}: prepare data with its vocabulary, and train it with\n"
              f"towernmt prepare --vocabulary-of {quote(args.output)} --source {quote(args.source)} "
              f"--target {quote(args.target)} --output DATA\n{train}")
        return 0
    checkpoint = grow_vocabulary(run, vocabulary, args.output, checkpoint_name)
    print(f"{checkpoint}: train it on data with the new vocabulary with\n{train}")
    return 0


def _vocabulary_directory(path: Path) -> Path:
    directory = path / VOCABULARIES if (path / VOCABULARIES).is_dir() else path
    if not directory.is_dir():
        raise SettingsError(f"--vocabulary {path}: directory not found. Pass prepared data with the new vocabulary.")
    return directory
