"""`towernmt average`: one checkpoint from the mean weights of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from towernmt.core.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt average`."""
    parser.add_argument("--model", metavar="DIRECTORY", required=True, help="the --logdir of a training run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="K", help="average the last K checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="average the best K by validation")
    which.add_argument("--steps", metavar="FIRST,LAST", help="average the checkpoints between two steps, both included")
    parser.add_argument("--output", metavar="DIRECTORY",
                        help="where the new checkpoint `step-N` goes (default: the run's averages/last-K and so on)")


def run(args: argparse.Namespace) -> int:
    """Average, and print how to translate with the result; returns the exit status."""
    span = _span(args.steps) if args.steps is not None else None

    from towernmt.checkpoint import average  # imports TensorFlow
    from towernmt.checkpoint.held import again_if_gone
    from towernmt.checkpoint.saved_run import SavedRun

    directory = SavedRun(args.model)
    directory.saved_settings()  # refuses a directory that holds no run
    name = (f"steps-{span[0]}-{span[1]}" if span else f"last-{args.last}" if args.last is not None
            else f"best-{args.best}")
    output = Path(args.output) if args.output else directory.path / "averages" / name

    def choose_and_average() -> tuple[list[Path], Path]:
        if span:
            places = average.checkpoints_between(directory, *span)
        elif args.last is not None:
            places = average.last_checkpoints(directory, args.last)
        else:
            places = average.best_checkpoints(directory, args.best)
        return places, average.average_checkpoints(directory, places, output)

    places, made = again_if_gone(choose_and_average)
    print(f"{made}: the mean of {', '.join(place.name for place in places)}; translate with\n"
          f"towernmt translate --model {quote(args.model)} --checkpoint {quote(str(made))}")
    return 0


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition(",")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise SettingsError(f"--steps {text}: expected FIRST,LAST, for example 8000,10000.")
    return int(first), int(last)
