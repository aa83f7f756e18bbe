"""Commands that compare runs: `towernmt compare` and `plot`.

- compare: how settings of runs differ, how the runs went, and with a test set, which is better.
- plot: the curves of runs, as a picture or as a page.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from towernmt.cli.evaluate import evaluation_output
from towernmt.cli.evaluate_options import add_test_arguments
from towernmt.cli.specified_options import specified_options
from towernmt.cli.system_argument import SystemArgument
from towernmt.cli.translation_options import add_trust_option
from towernmt.cli.translator_options import add_translator_options
from towernmt.core.errors import SettingsError
from towernmt.plots.panels import AXES, DEFAULT_KINDS, KINDS


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt compare`, which include those of `towernmt evaluate` for the test set."""
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN",
                        help="the --logdir of a run, or a pattern such as 'runs/*'; the first is the baseline")
    add_test_arguments(parser, beside_runs=True)
    parser.add_argument("--checkpoint", metavar="NAME", action="append",
                        help="checkpoint of all runs: best, last or step-N (default: the average that a run kept at "
                             "its end, else best, else last)")
    add_trust_option(parser)
    add_translator_options(parser)
    parser.set_defaults(model=None, hypothesis=None, hypothesis_file=None, ensemble_weights=None, ensemble_mean=None)


def run_compare(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status."""
    from towernmt.plots.recorded_runs import parameters, read_named_runs
    from towernmt.plots.run_comparison import comparison_as_json, comparison_as_text

    if bool(args.source) != bool(args.reference):
        raise SettingsError("--source and --reference must be specified together: pass both to translate a test set "
                            "with the runs, or neither to compare their recorded curves.")
    if args.html and not args.source:
        raise SettingsError("--html writes a page of the test set's translations: pass --source and --reference, too; "
                            "`towernmt plot RUN ... --output FILE.html` makes a page of the curves.")
    if not args.source and (unused := specified_options(args, add_compare_arguments, excluded=("json",))):
        raise SettingsError(f"Only the recorded curves are compared, without regard to {' and '.join(unused)}: pass a "
                            "test set as --source and --reference, too, or leave out these options.")
    runs, names_without_run = read_named_runs(args.runs)
    if names_without_run:
        print(f"No run in {', '.join(names_without_run)}.", file=sys.stderr)
    systems = [SystemArgument(run.name, str(run.path)) for run in runs]
    scores = evaluation_output(args, systems) if args.source else None
    sizes = [parameters(run.path) for run in runs]
    if args.json:
        comparison: dict[str, Any] = comparison_as_json(runs, sizes)
        print(json.dumps(comparison if scores is None else {**comparison, "evaluation": scores}))
    else:
        print("\n\n".join(text for text in (comparison_as_text(runs, sizes), scores) if isinstance(text, str)))
    return 0


SUFFIXES = (".png", ".svg", ".html")


def add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt plot`."""
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN",
                        help="the --logdir of a run, or a pattern such as 'runs/*' (default name: the last component "
                             "of the path)")
    parser.add_argument("--output", required=True, metavar="FILE",
                        help="FILE.png or FILE.svg, drawn by Matplotlib (towernmt[plot]), or FILE.html, a page with "
                             "all scores and tables, which does not need Matplotlib")
    parser.add_argument("--x", choices=AXES, default="updates",
                        help="horizontal axis of the curves; a page begins with it (default: %(default)s)")
    parser.add_argument("--panels", nargs="+", choices=KINDS, default=list(DEFAULT_KINDS), metavar="NAME",
                        help=f"panels of a picture: {', '.join(KINDS)} (default: all except validation-perplexity)")
    parser.add_argument("--smooth", type=int, default=0, metavar="N",
                        help="window of the running means of training loss and speed, in logged values; an even N "
                             "becomes N + 1, and 1 turns smoothing off (default: 1/40 of the longest run)")
    parser.add_argument("--no-table", action="store_true", help="leave out the table below a picture")


def run_plot(args: argparse.Namespace) -> int:
    """Draw the curves of runs; returns the exit status."""
    from towernmt.plots.recorded_runs import read_named_runs

    suffix = Path(args.output).suffix.lower()
    if suffix not in SUFFIXES:
        raise SettingsError(f"--output {args.output}: expected a file that ends in {', '.join(SUFFIXES)}.")
    if suffix == ".html" and (unused := specified_options(args, add_plot_arguments, names=("panels", "no_table"))):
        raise SettingsError(f"{' and '.join(unused)}: an .html page has all panels and tables: leave this out, or pass "
                            "a .png or .svg file as --output.")
    if args.smooth < 0:
        raise SettingsError(f"--smooth {args.smooth}: expected at least 1 (no smoothing).")
    runs, names_without_run = read_named_runs(args.runs)
    if names_without_run:
        print(f"No run in {', '.join(names_without_run)}.", file=sys.stderr)
    if suffix == ".html":
        from towernmt.plots.curve_page import write_page

        write_page(runs, args.output, args.x, args.smooth)
    else:
        from towernmt.plots.picture import PictureSettings, draw_curves

        draw_curves(runs, args.output, PictureSettings(args.x, args.panels, args.smooth, not args.no_table))
    return 0
