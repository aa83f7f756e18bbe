"""`towernmt plot`: the curves of runs, as a picture or as a page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from towernmt.core.errors import SettingsError
from towernmt.curves.panels import AXES, DEFAULT_KINDS, KINDS

SUFFIXES = (".png", ".svg", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt plot`."""
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN",
                        help="the --logdir of a training, or a pattern such as 'runs/*'; without a name it is called "
                             "by the end of its path")
    parser.add_argument("--output", required=True, metavar="FILE",
                        help="FILE.png or FILE.svg, drawn by Matplotlib (towernmt[plot]), or FILE.html, a page with "
                             "all scores and tables, which needs nothing else")
    parser.add_argument("--x", choices=AXES, default="updates", help="what the curves are drawn over, and the page "
                        "begins with (default: %(default)s)")
    parser.add_argument("--panels", nargs="+", choices=KINDS, default=list(DEFAULT_KINDS), metavar="NAME",
                        help=f"of a picture: {', '.join(KINDS)} (default: all but validation-perplexity)")
    parser.add_argument("--smooth", type=int, default=0, metavar="N",
                        help="running means of training loss and speed over N logged figures, of an even N one more; "
                             "1 for none (default: a fortieth of those of the longest run)")
    parser.add_argument("--no-table", action="store_true", help="leave out the table below a picture")


def run(args: argparse.Namespace) -> int:
    """Draw; returns the exit status."""
    from towernmt.curves.named_runs import read_named_runs
    from towernmt.predict.output_file import check_apart

    suffix = Path(args.output).suffix.lower()
    if suffix not in SUFFIXES:
        raise SettingsError(f"--output {args.output}: expected a file that ends in {', '.join(SUFFIXES)}.")
    if args.smooth < 0:
        raise SettingsError(f"--smooth {args.smooth}: expected 1 for none, or more.")
    runs, others = read_named_runs(args.runs)
    if others:
        print(f"No run in {', '.join(others)}.", file=sys.stderr)
    check_apart(("--output", args.output), {}, [str(run.path) for run in runs])
    if suffix == ".html":
        from towernmt.curves.page import write_page

        write_page(runs, args.output, args.x, args.smooth)
    else:
        from towernmt.curves.picture import PictureSettings, draw

        draw(runs, args.output, PictureSettings(args.x, args.panels, args.smooth, not args.no_table))
    return 0
