"""`towernmt export`: a trained model to files for other programs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from towernmt.cli.translation.ensemble_options import add_trust_option
from towernmt.cli.translation.search_options import add_search_options, search_options
from towernmt.core.errors import SettingsError
from towernmt.export.formats import FORMATS, export_format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt export`."""
    formats = "; ".join(f"{name}: {kind.help} ({', '.join(kind.precisions)})" for name, kind in FORMATS.items())
    parser.add_argument("--model", metavar="MODEL", required=True,
                        help="the --logdir of a training run, or a package")
    parser.add_argument("--format", metavar="FORMAT", required=True, help=formats)
    parser.add_argument("--output", metavar="DIRECTORY", required=True,
                        help="where the files go: a directory that is not there, or empty")
    parser.add_argument("--precision", metavar="P", help="of the weights (default: the format's first)")
    parser.add_argument("--calibration", metavar="FILE",
                        help="source sentences, one a line, on which marian's int8 and web measure the model; "
                             "100 are read (default: the validation text of the run's data)")
    for side in ("source", "target"):
        parser.add_argument(f"--{side}-language", metavar="CODE[:NAME]",
                            help=f"the {side} language, as de:German; argos needs both, and web shows them")
    parser.add_argument("--bergamot", metavar="DIRECTORY",
                        help="for the format web: the folder of npm's @browsermt/bergamot-translator 0.4.9 "
                             "(default: the one that TOWERNMT_BERGAMOT names, or else npm is asked for it)")
    add_trust_option(parser)
    parser.add_argument("--checkpoint", metavar="WHICH",
                        help="best, last, step-N, or the path of one (default: the best, or the last without a best)")
    add_search_options(parser)


def run(args: argparse.Namespace) -> int:
    """Export, and print what was written; returns the exit status."""
    export_format(args.format)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    given = search_options(args)
    if bool(args.source_language) != bool(args.target_language):
        raise SettingsError("Give both --source-language and --target-language, as de:German, or neither.")
    languages = (args.source_language, args.target_language) if args.source_language else None

    from dataclasses import replace

    from towernmt.checkpoint.packaged.packaged_run import open_run
    from towernmt.export.exporter import export_model
    from towernmt.predict.decoding.settings import SearchSettings
    from towernmt.predict.trained_model import TrainedModel

    run_of_model = open_run(args.model, args.trust_code)
    search = replace(run_of_model.group("search", SearchSettings()), **given)
    with TrainedModel(run_of_model, args.checkpoint, averaged=search.averaged) as trained:
        place = export_model(trained, args.format, args.output, precision=args.precision, search=search,
                             calibration=args.calibration, languages=languages, bergamot=args.bergamot)
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    print(f"{place}: {args.format}, {size / 1e6:.1f} MB, of {args.model} {Path(trained.checkpoint).parent.name}.")
    return 0
