"""`towernmt compare`: in what runs differ, how they went, and by a test set which is better."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from towernmt.cli.translation.ensemble_options import add_trust_option
from towernmt.cli.translation.evaluate import add_test_arguments, evaluated
from towernmt.cli.translation.systems import SystemArgument
from towernmt.cli.translation.translate import add_translation_arguments
from towernmt.core.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt compare`: those of `towernmt evaluate` say how the test set is translated."""
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN",
                        help="the --logdir of a training, or a pattern such as 'runs/*'; the first is the baseline")
    add_test_arguments(parser, required=False)
    parser.add_argument("--checkpoint", metavar="NAME", action="append",
                        help="of all runs: best, last or step-N (default: best if there is one)")
    add_trust_option(parser)
    add_translation_arguments(parser)
    parser.set_defaults(model=None, hypothesis=None, hypothesis_file=None, ensemble_weights=None, ensemble_mean=None)


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status."""
    from towernmt.curves.comparison import as_json, as_text
    from towernmt.curves.named_runs import read_named_runs
    from towernmt.curves.sizes import parameters

    if bool(args.source) != bool(args.reference):
        raise SettingsError("--source and --reference go together: pass both to have the runs translate a test set, or "
                            "neither to compare what they recorded.")
    if args.html and not args.source:
        raise SettingsError("--html is the page of the test set's translations: pass --source and --reference, too; "
                            "`towernmt plot RUN ... --output FILE.html` makes a page of the curves.")
    runs, others = read_named_runs(args.runs)
    if others:
        print(f"No run in {', '.join(others)}.", file=sys.stderr)
    systems = [SystemArgument(run.name, str(run.path)) for run in runs]
    scores = evaluated(args, systems) if args.source else None
    sizes = [parameters(run.path) for run in runs]
    if args.json:
        found: dict[str, Any] = as_json(runs, sizes)
        print(json.dumps(found if scores is None else {**found, "evaluation": scores}))
    else:
        print("\n\n".join(part for part in (as_text(runs, sizes), scores) if isinstance(part, str)))
    return 0
