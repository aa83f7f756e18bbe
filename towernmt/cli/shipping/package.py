"""`towernmt package`: a trained model in one file, with its model card."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from towernmt.checkpoint.packaged.manifest import PRECISIONS
from towernmt.core.errors import SettingsError
from towernmt.core.terminal.log_stream import log_to_stderr
from towernmt.export.formats import FORMATS, export_format
from towernmt.package.card_text import CardText, card_text
from towernmt.predict.text_io import check_readable

_GIVEN = ("licence", "languages", "name", "description")
"""Fields of the card that have an option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt package`."""
    parser.add_argument("--model", metavar="DIRECTORY", required=True, help="the --logdir of a training run")
    parser.add_argument("--output", metavar="FILE", required=True,
                        help="the package, as de-en.towernmt.zip; a file that is not there")
    parser.add_argument("--licence", "--license", metavar="NAME",
                        help="of the model, by its SPDX name, as CC-BY-4.0; here or in --card it must be told")
    parser.add_argument("--languages", metavar="PAIR", help="source and target, as de-en or zh-Hans-en")
    parser.add_argument("--name", help="of the model, for its card")
    parser.add_argument("--description", metavar="TEXT", help="of the model, for its card")
    parser.add_argument("--card", metavar="FILE",
                        help="YAML with what the program cannot know: "
                             f"{', '.join(field.name for field in dataclasses.fields(CardText))}")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0],
                        help="of the weights in the package (default: %(default)s)")
    parser.add_argument("--test", metavar=("SOURCE", "REFERENCE"), nargs=2, action="append", default=[],
                        help="translate this test set with what is packed, and put BLEU and chrF on the card; may be "
                             "given several times")
    parser.add_argument("--include", metavar="FORMAT[:PRECISION]", action="append", default=[],
                        help="put an export for another engine into the package, as ctranslate2:int8; may be given "
                             f"several times: {', '.join(FORMATS)}")
    parser.add_argument("--calibration", metavar="FILE",
                        help="source sentences, one a line, for exports that measure the model at work (marian:int8)")
    parser.add_argument("--date", metavar="YYYY-MM-DD",
                        help="of the card (default: that of SOURCE_DATE_EPOCH, or of the checkpoint's file)")
    parser.add_argument("--checkpoint", metavar="WHICH",
                        help="best, last, step-N, or the path of one (default: the best, or the last without a best)")
    parser.add_argument("--last-weights", action="store_true",
                        help="the weights of the last update, not their moving average")


def run(args: argparse.Namespace) -> int:
    """Pack, and print what was written; returns the exit status."""
    text = card_text(args.card, {name: getattr(args, name) for name in _GIVEN})
    exports = [_export(given, text) for given in args.include]
    for file in (*(file for pair in args.test for file in pair), *([args.calibration] if args.calibration else [])):
        check_readable(file)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    from towernmt.checkpoint.packaged.packaged_run import open_run
    from towernmt.package.build import PackageOrder, check_output, check_run, package_run  # imports TensorFlow
    from towernmt.predict.decoding.settings import SearchSettings
    from towernmt.predict.trained_model import TrainedModel

    check_output(Path(args.output))
    run_of_model = open_run(args.model)
    check_run(run_of_model)
    log_to_stderr()
    averaged = not args.last_weights and run_of_model.group("search", SearchSettings()).averaged
    order = PackageOrder(args.precision, [(source, reference) for source, reference in args.test], exports,
                         args.calibration, args.date)
    with TrainedModel(run_of_model, args.checkpoint, averaged=averaged) as trained:
        card = package_run(trained, args.output, text, order)
    size = Path(args.output).stat().st_size
    print(f"{args.output}: {card['model']['checkpoint']} of {args.model} in {args.precision}, {size / 1e6:.1f} MB, "
          f"licence {text.licence}.")
    for score in card["scores"]:
        print(f"{score['metric']} = {score['score']:.2f} on {score['test']}, of {score['of']}")
    _tell_what_is_missing(text)
    return 0


def _export(given: str, text: CardText) -> tuple[str, str | None]:
    """Format and precision of `FORMAT[:PRECISION]`."""
    name, _, precision = given.partition(":")
    kind = export_format(name)
    if precision and precision not in kind.precisions:
        raise SettingsError(f"--include {given}: {name} has {', '.join(kind.precisions)}.")
    if name == "argos" and text.pair() is None:
        raise SettingsError("--include argos: its packages name their languages: give --languages, as de-en.")
    return name, precision or None


def _tell_what_is_missing(text: CardText) -> None:
    missing: Sequence[tuple[str, bool]] = (
        ("the languages (--languages de-en)", not text.languages),
        ("names and licences of the training data (`data` in the file of --card)", not text.data))
    for what in (what for what, is_missing in missing if is_missing):
        print(f"The card does not tell {what}.", file=sys.stderr)
