"""`towernmt grow`: a trained run with the vocabulary of other data."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from towernmt.core.errors import SettingsError
from towernmt.dataflow.prepared.prepared_data import VOCABULARIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt grow`."""
    parser.add_argument("--model", metavar="DIRECTORY", required=True, help="the --logdir of a training run")
    parser.add_argument("--vocabulary", metavar="DIRECTORY", required=True,
                        help="prepared data with the new vocabulary, or the folder of the vocabulary itself")
    parser.add_argument("--output", metavar="DIRECTORY", required=True, help="where the grown run goes")
    parser.add_argument("--checkpoint", metavar="NAME",
                        help="best, last, step-N or a checkpoint's prefix (default: best, or last without validation)")


def run(args: argparse.Namespace) -> int:
    """Grow, and print how to go on; returns the exit status."""
    vocabulary = Path(args.vocabulary)
    if (vocabulary / VOCABULARIES).is_dir():
        vocabulary /= VOCABULARIES
    if not vocabulary.is_dir():
        raise SettingsError(f"--vocabulary {args.vocabulary}: there is no such directory; name prepared data with the "
                            "new vocabulary.")

    from towernmt.run.directory import RunDirectory
    from towernmt.run.grown_run import grow_vocabulary  # imports TensorFlow

    made = grow_vocabulary(RunDirectory(args.model), vocabulary, args.output, args.checkpoint)
    print(f"{made}: train it on data with the new vocabulary with\n"
          f"towernmt train --data DATA --logdir NEW --set {quote(f'init.checkpoint={args.output}')}")
    return 0
