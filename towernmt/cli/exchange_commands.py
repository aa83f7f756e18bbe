"""Commands that exchange models with others: `towernmt import`, `export` and `package`.

- import: a run from a model that another system trained.
- export: files of a trained model for other programs.
- package: a trained model as one file, with its model card.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from shlex import quote

from towernmt.checkpoint.stored_weights import PRECISIONS
from towernmt.cli.translation_options import (
    add_search_options,
    add_trust_option,
    search_option_text,
    search_options,
)
from towernmt.core.errors import SettingsError
from towernmt.core.standard_streams import log_to_stderr
from towernmt.dataflow.text.text_lines import check_rereadable
from towernmt.interop.export import FORMATS, UnsupportedModelError, export_format, export_model, export_precision
from towernmt.interop.import_formats import FORMATS as IMPORT_FORMATS
from towernmt.interop.import_formats import foreign_format
from towernmt.interop.model_card import CardText, card_text
from towernmt.predict.lines.text_io import check_readable
from towernmt.predict.search.search_settings import SearchSettings


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt import`."""
    systems = "; ".join(f"{name}: {system.help}" for name, system in IMPORT_FORMATS.items())
    parser.add_argument("path", metavar="PATH", help="file or folder of the model, which depends on --from")
    parser.add_argument("--from", dest="system", metavar="SYSTEM", required=True, help=systems)
    parser.add_argument("--output", metavar="DIRECTORY", required=True, help="directory of the run")
    parser.add_argument("--vocabularies", nargs=2, metavar="FILE",
                        help="the vocabularies of source and target (default: those that the model names, or those in "
                             "its folder)")
    parser.add_argument("--pieces", nargs=2, metavar="FILE",
                        help="segmentation of source and target into subwords: SentencePiece models (.spm, .model) or "
                             "subword-nmt codes (.bpe) (default: source.spm and target.spm, or .bpe, in the model's "
                             "folder)")
    parser.add_argument("--heads", type=int, metavar="N",
                        help="number of attention heads, which some systems do not store (default: the usual number "
                             "for the model's width)")


def run_import(args: argparse.Namespace) -> int:
    """Import a model, print how to use it, and return the exit status."""
    system = foreign_format(args.system)

    from towernmt.checkpoint.saved_run import IMPORTED
    from towernmt.interop.foreign_model import ImportRequest
    from towernmt.interop.imported_run import write_imported_run  # imports TensorFlow

    request = ImportRequest(Path(args.path), _pair(args.vocabularies), _pair(args.pieces), args.heads)
    model = system.read(request)
    write_imported_run(model, args.output)
    s = model.settings
    print(f"{args.output}: {model.origin}, {s.encoder_layers} + {s.decoder_layers} layers of {s.hidden_size}, "
          f"{model.source.size} and {model.target.size} tokens.")
    if model.copied_files:
        names = ", ".join(file.name for file in model.copied_files)
        print(f"{Path(args.output) / IMPORTED}: {names}, copied unchanged.")
    for note in model.notes:
        print(note)
    print(f"Translate with\ntowernmt translate --model {quote(args.output)}\nand train it on data with its vocabulary "
          f"with\ntowernmt train --start {quote(args.output)} --data DATA --logdir NEW")
    return 0


def _pair(files: list[str] | None) -> tuple[Path, Path] | None:
    return (Path(files[0]), Path(files[1])) if files else None


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt export`."""
    formats = "; ".join(f"{name}: {kind.help} ({', '.join(kind.precisions)})" for name, kind in FORMATS.items())
    parser.add_argument("--model", metavar="MODEL", required=True,
                        help="the --logdir of a training run, or a package")
    parser.add_argument("--format", metavar="FORMAT", required=True, help=formats)
    parser.add_argument("--output", metavar="DIRECTORY", required=True,
                        help="directory of the files, new or empty")
    parser.add_argument("--precision", metavar="P", help="precision of the weights (default: the format's first)")
    parser.add_argument("--calibration", metavar="FILE",
                        help="source sentences, one per line, for the calibration of marian's int8 and of web; 100 are "
                             "read (default: the validation text of the run's data)")
    for side in ("source", "target"):
        parser.add_argument(f"--{side}-language", metavar="CODE[:NAME]",
                            help=f"the {side} language, as de:German; argos needs both, and web shows them")
    parser.add_argument("--bergamot", metavar="DIRECTORY",
                        help="for the format web: the folder of npm's @browsermt/bergamot-translator 0.4.9 "
                             "(default: the folder in TOWERNMT_BERGAMOT, or else npm downloads it)")
    add_trust_option(parser)
    parser.add_argument("--checkpoint", metavar="WHICH",
                        help="best, last, step-N, or the path of one (default: the average that the run kept at its "
                             "end, else best, else last)")
    add_search_options(parser)


def run_export(args: argparse.Namespace) -> int:
    """Export a model, print the written files, and return the exit status."""
    precision = export_precision(args.format, args.precision)
    _refuse_unread_options(args, precision)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    search_values = search_options(args)
    if bool(args.source_language) != bool(args.target_language):
        raise SettingsError("Pass both --source-language and --target-language, for example de:German, or neither.")
    languages = (args.source_language, args.target_language) if args.source_language else None

    from towernmt.checkpoint.packaged_run import open_run

    run_of_model = open_run(args.model, args.trust_code)
    search = dataclasses.replace(run_of_model.group("search", SearchSettings()), **search_values)
    _check_search_of_export(args.format, precision, search, search_values)

    from towernmt.predict.trained_model import TrainedModel  # imports TensorFlow

    # The graph of a GPU has other operations.
    with TrainedModel(run_of_model, args.checkpoint, device="cpu", averaged=search.averaged) as trained:
        try:
            output = export_model(trained, args.format, args.output, precision=precision, search=search,
                                  calibration=args.calibration, languages=languages, bergamot=args.bergamot)
        except UnsupportedModelError as error:
            raise SettingsError(f"{error} Choose another --format.") from error
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    print(f"{output}: {args.format}, {size / 1e6:.1f} MB, of {args.model} {Path(trained.checkpoint).parent.name}.")
    _report_prefix(run_of_model.source_prefix)
    return 0


def _report_prefix(source_prefix: str) -> None:
    """Print that other programs do not know the source prefix of a package, if it has one."""
    if source_prefix:
        print("Programs other than towernmt do not know the source prefix of the package: write "
              f"'{source_prefix}' and a space before each source sentence.", file=sys.stderr)


def _refuse_unread_options(args: argparse.Namespace, precision: str) -> None:
    """Refuse options about files that the format does not read or write.

    Raises:
        SettingsError: the format does not read an option.
    """
    kind = export_format(args.format)
    if args.calibration is not None and precision not in kind.calibrated:
        if kind.calibrated:
            raise SettingsError(f"--calibration {args.calibration}: the format {args.format} reads it only in "
                                f"{' and '.join(kind.calibrated)}; pass --precision {kind.calibrated[0]}, too, or "
                                "leave it out.")
        raise SettingsError(f"--calibration {args.calibration}: the format {args.format} does not read calibration "
                            "sentences; leave it out.")
    if args.bergamot is not None and not kind.has_bergamot:
        raise SettingsError(f"--bergamot {args.bergamot}: the format {args.format} does not contain the browser "
                            "engine; leave it out, or pass --format web.")
    for option, language in (("--source-language", args.source_language), ("--target-language", args.target_language)):
        if language is not None and not kind.has_languages:
            raise SettingsError(f"{option} {language}: the format {args.format} does not contain the languages; leave "
                                "out --source-language and --target-language.")


def _check_search_of_export(format_name: str, precision: str, search: SearchSettings,
                            specified: Collection[str]) -> None:
    """Refuse search options that the format cannot express, and report such settings of the run.

    Args:
        format_name: one of `FORMATS`.
        precision: precision of the weights.
        search: search settings of the export.
        specified: names of the settings that the command line specifies; the others are settings of the run.

    Raises:
        SettingsError: the format cannot express an option; or it is ctranslate2, whose settings `towernmt translate`
            reads, and cannot express a setting of the run.
    """
    support = export_format(format_name).search.get(precision)
    if support is not None:
        unsupported = support.unsupported(search)
        options = list(dict.fromkeys(search_option_text(name, search) for name in unsupported if name in specified))
        if options:
            raise SettingsError(f"{_enumeration(options)}: the format {format_name} in {precision} cannot express "
                                f"{'these options' if len(options) > 1 else 'this option'}, because {support.reason}; "
                                f"leave out {'them' if len(options) > 1 else 'it'}, or choose another --format.")
        defaults = SearchSettings()
        settings = [f"search.{name}={getattr(search, name)}" for name in unsupported
                    if getattr(search, name) != getattr(defaults, name)]
        if settings:
            print(f"The export does not contain {_enumeration(settings)} of the run, because {support.reason}.",
                  file=sys.stderr)
    elif format_name == "ctranslate2":
        _check_search_of_ctranslate2(search, specified)


def _check_search_of_ctranslate2(search: SearchSettings, specified: Collection[str]) -> None:
    """Refuse settings that CTranslate2 does not support: an export with them could translate nothing.

    Args:
        search: search settings of the export.
        specified: names of the settings that the command line specifies.
    """
    from towernmt.interop.ctranslate2_requests import unsupported_setting

    if problem := unsupported_setting(search):
        setting = (search_option_text(problem.name, search) if problem.name in specified else
                   f"search.{problem.name}={problem.value} of the run")
        fix = search_option_text(problem.name, dataclasses.replace(search, **{problem.name: problem.supported}))
        raise SettingsError(f"{setting}: the format ctranslate2 cannot express this setting, because {problem.reason}; "
                            f"pass {fix}, or choose another --format.")


def _enumeration(names: Sequence[str]) -> str:
    """Return names as `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


_CARD_OPTIONS = ("licence", "languages", "source_prefix", "name", "description")
"""Fields of the card that have an option."""


def add_package_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt package`."""
    parser.add_argument("--model", metavar="DIRECTORY", required=True, help="the --logdir of a training run")
    parser.add_argument("--output", metavar="FILE", required=True,
                        help="new file of the package, as de-en.towernmt.zip")
    parser.add_argument("--licence", "--license", metavar="NAME",
                        help="licence of the model, an SPDX identifier such as CC-BY-4.0; required here or in --card")
    parser.add_argument("--languages", metavar="PAIR", help="source and target, as de-en or zh-Hans-en")
    parser.add_argument("--source-prefix", metavar="TEXT",
                        help="text that the package puts before each source line, such as the tag of the target "
                             "language of a multilingual model: '<2de>'")
    parser.add_argument("--name", help="name of the model, for its card")
    parser.add_argument("--description", metavar="TEXT", help="description of the model, for its card")
    parser.add_argument("--card", metavar="FILE",
                        help="YAML with further text for the card: "
                             f"{', '.join(field.name for field in dataclasses.fields(CardText))}")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0],
                        help="precision of the weights in the package (default: %(default)s)")
    parser.add_argument("--test", metavar=("SOURCE", "REFERENCE"), nargs=2, action="append", default=[],
                        help="translate this test set with the package, and put BLEU and chrF on the card; may be "
                             "repeated")
    parser.add_argument("--int8", action=argparse.BooleanOptionalAction, default=True,
                        help="with --test: translate and score the test sets in int8, too; if they lose little, the "
                             "package translates in int8 on processors (default: --int8)")
    parser.add_argument("--include", metavar="FORMAT[:PRECISION]", nargs="+", action="extend", default=[],
                        help="put an export for another engine into the package, as ctranslate2:int8; may be repeated: "
                             f"{', '.join(FORMATS)}")
    parser.add_argument("--calibration", metavar="FILE",
                        help="source sentences, one per line, for the calibration of --include marian:int8 and web "
                             "(default: the validation text of the run's data)")
    parser.add_argument("--date", metavar="YYYY-MM-DD",
                        help="date of the card (default: that of SOURCE_DATE_EPOCH, or of the checkpoint's file)")
    parser.add_argument("--checkpoint", metavar="WHICH",
                        help="best, last, step-N, or the path of one (default: the average that the run kept at its "
                             "end, else best, else last)")
    parser.add_argument("--last-weights", action="store_true",
                        help="use the weights of the last update, not their moving average")


def run_package(args: argparse.Namespace) -> int:
    """Write a package, print its files, and return the exit status."""
    text = card_text(args.card, {name: getattr(args, name) for name in _CARD_OPTIONS})
    exports = [_export(include, text) for include in args.include]
    calibrated = sum(precision in export_format(name).calibrated for name, precision in exports)
    if args.calibration is not None and not calibrated:
        raise SettingsError(f"--calibration {args.calibration}: no export in the package reads calibration sentences; "
                            "pass --include marian:int8 or --include web, too, or leave it out.")
    calibration = [] if args.calibration is None else [args.calibration]
    for file in (*(file for pair in args.test for file in pair), *calibration):
        check_readable(file)
    if args.calibration is not None and calibrated > 1:     # each of the exports reads it
        check_rereadable(args.calibration)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    from towernmt.checkpoint.packaged_run import open_run
    from towernmt.interop.package_build import (  # imports TensorFlow
        PackageOptions,
        check_output,
        check_run,
        package_run,
    )
    from towernmt.predict.trained_model import TrainedModel

    check_output(Path(args.output))
    run_of_model = open_run(args.model)
    check_run(run_of_model)
    log_to_stderr()
    averaged = not args.last_weights and run_of_model.group("search", SearchSettings()).averaged
    options = PackageOptions(args.precision, [(source, reference) for source, reference in args.test], exports,
                             args.calibration, args.date, args.int8)
    with TrainedModel(run_of_model, args.checkpoint, device="cpu", averaged=averaged) as trained:
        card = package_run(trained, args.output, text, options)
    size = Path(args.output).stat().st_size
    print(f"{args.output}: {card['model']['checkpoint']} of {args.model} in {args.precision}, {size / 1e6:.1f} MB, "
          f"licence {text.licence}.")
    for score in card["scores"]:
        print(f"{score['metric']} = {score['score']:.2f} on {score['test']}, of {score['of']}")
    _report_prefix(text.source_prefix if exports else "")
    _report_missing_fields(text)
    return 0


def _export(include: str, text: CardText) -> tuple[str, str]:
    """Return format and precision of `FORMAT[:PRECISION]`."""
    name, _, precision = include.partition(":")
    kind = export_format(name)
    if precision and precision not in kind.precisions:
        raise SettingsError(f"--include {include}: {name} has {', '.join(kind.precisions)}.")
    if name == "argos" and text.pair() is None:
        raise SettingsError("--include argos needs the languages of the package: pass --languages, for example de-en.")
    return name, precision or kind.precisions[0]


def _report_missing_fields(text: CardText) -> None:
    checks: Sequence[tuple[str, bool]] = (
        ("the languages (--languages de-en)", not text.languages),
        ("names and licences of the training data (`data` in the file of --card)", not text.data))
    for field in (field for field, is_missing in checks if is_missing):
        print(f"The card lacks {field}.", file=sys.stderr)
