"""Options that `towernmt evaluate` and `towernmt compare` share, and the checks of their combinations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from towernmt.cli.request_options import add_line_options, files_of_each_line
from towernmt.cli.run_options import option_name
from towernmt.cli.specified_options import specified_options
from towernmt.cli.system_argument import SystemArgument
from towernmt.cli.translator_options import add_model_arguments
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.text_lines import check_rereadable
from towernmt.evaluate.buckets import FREQUENCIES, LENGTHS
from towernmt.evaluate.comparison import SignificanceSettings
from towernmt.evaluate.custom_metric import CustomMetric
from towernmt.evaluate.metrics import METRICS, TOKENIZERS, MetricSettings
from towernmt.evaluate.report import ReportSettings
from towernmt.predict.lines.text_io import check_readable


def add_test_arguments(parser: argparse.ArgumentParser, beside_runs: bool = False) -> None:
    """Add the arguments that `towernmt evaluate` and `towernmt compare` share: the test set and the report.

    Args:
        parser: parser of the command.
        beside_runs: whether the command has runs as positional arguments. Each --reference then has one file, and is
            optional.
    """
    parser.add_argument("--source", metavar="FILE", help="the test set's source, one sentence per line")
    several: dict[str, Any] = {"action": "append"} if beside_runs else {"action": "extend", "nargs": "+"}
    parser.add_argument("--reference", metavar="FILE", required=not beside_runs, **several,
                        help="reference translations as plain (detokenised) text, one file per translator")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE",
                        help="write a page with scores, charts, and the sentences side by side")
    _add_metric_arguments(parser)
    _add_report_arguments(parser)
    add_line_options(parser)


def _add_metric_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", nargs="+", choices=METRICS, metavar="NAME",
                        help=f"{', '.join(METRICS)} (default: bleu chrf; for several systems all)")
    parser.add_argument("--metric", metavar="FILE.py:FUNCTION", nargs="+", action="extend", default=[],
                        help="also score by functions of sources, translations and references, which return a number "
                             "for each translation")
    parser.add_argument("--tokenize", choices=TOKENIZERS, metavar="NAME",
                        help=f"sacreBLEU's tokeniser for BLEU: {', '.join(TOKENIZERS)} (default: by --target-language, "
                             "else 13a)")
    parser.add_argument("--lowercase", action="store_true", help="ignore case (TER always does)")
    parser.add_argument("--target-language", default="", metavar="CODE",
                        help="language of the translations, such as zh-CN, ja or th, by which BLEU segments languages "
                             "without spaces into words")
    parser.add_argument("--bootstrap-samples", type=int, default=SignificanceSettings.samples, metavar="N",
                        help="number of test sets of the paired bootstrap (default: %(default)s)")
    parser.add_argument("--randomization-trials", type=int, default=SignificanceSettings.trials, metavar="N",
                        help="number of trials of the paired approximate randomisation (default: %(default)s)")
    parser.add_argument("--significance-seed", type=int, default=SignificanceSettings.seed, metavar="N",
                        help="random seed of both tests (default: %(default)s)")


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--buckets", action="store_true",
                        help="print scores by sentence length, and F1 of words by frequency")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="WORDS",
                        help="the longest sentence of each bucket except the last (default: "
                             f"{' '.join(map(str, LENGTHS))})")
    parser.add_argument("--frequencies", type=int, nargs="+", default=FREQUENCIES, metavar="COUNT",
                        help="the largest frequency of each bucket except the last (default: "
                             f"{' '.join(map(str, FREQUENCIES))})")
    parser.add_argument("--frequency-text", metavar="FILE",
                        help="text for the frequencies of words, such as the target side of the training data "
                             "(default: the first reference)")
    parser.add_argument("--examples", type=int, metavar="N",
                        help="print the N worst and best sentences, and the N with the largest differences between "
                             "systems")
    parser.add_argument("--examples-by", metavar="NAME", default="chrf",
                        help="metric that orders the examples: chrf, bleu, or the name of a function of --metric "
                             "(default: %(default)s)")


def report_settings(args: argparse.Namespace, several: bool) -> ReportSettings:
    """Return the settings of the report.

    Args:
        args: parsed options.
        several: whether several systems are compared, for which all metrics are the default.
    """
    default = METRICS if several else ("bleu", "chrf")
    return ReportSettings(
        metrics=MetricSettings(tuple(args.metrics or default), args.tokenize, args.lowercase, args.target_language,
                               tuple(map(CustomMetric.load, args.metric))),
        significance=SignificanceSettings(args.bootstrap_samples, args.randomization_trials, args.significance_seed),
        length_bounds=tuple(args.lengths), frequency_bounds=tuple(args.frequencies),
        examples_by=args.examples_by, **({} if args.examples is None else {"examples": args.examples}))


def check_evaluate_options(args: argparse.Namespace, systems: Sequence[SystemArgument]) -> None:
    """Refuse options that contradict each other or have no effect, before anything is translated.

    Args:
        args: parsed options.
        systems: systems of `--system`, in order.

    Raises:
        SettingsError: the options do not fit together.
        DataError: a file with the options of single lines cannot be read.
    """
    if systems and (args.model or args.hypothesis_file or args.hypothesis):
        raise SettingsError("--system specifies all runs and files to compare: leave out --model, --hypothesis-file "
                            "and --hypothesis.")
    if args.hypothesis_file and (args.model or args.hypothesis):
        raise SettingsError("--hypothesis-file scores existing translations: leave out --model and --hypothesis.")
    if not systems and not args.hypothesis_file and not (args.model and args.source):
        raise SettingsError("Pass --model and --source to translate and score, --hypothesis-file to score existing "
                            "translations, or several --system to compare.")
    if systems and len(args.checkpoint or []) > 1:
        advice = (", or pass directories of checkpoints, as in --system last=runs/de-en/checkpoints/step-4000"
                  if hasattr(args, "system") else "")
        raise SettingsError(f"--checkpoint applies to all systems: pass it once{advice}.")
    if getattr(args, "robustness", False):
        if args.hypothesis_file or not args.source or not all(system.runs for system in systems):
            raise SettingsError("--robustness translates the test set in several forms: pass --source, and --model or "
                                "runs as --system, instead of existing translations.")
        if files := files_of_each_line(args):
            raise SettingsError(f"--robustness changes the lines, so {' and '.join(sorted(files))} no longer belong to "
                                "them: leave out the options of single lines.")
        if not args.html and (unused := specified_options(args, _add_metric_arguments, _add_report_arguments,
                                                          excluded=("tokenize", "target_language"))):
            raise SettingsError(f"--robustness prints only BLEU and chrF of each form, without regard to "
                                f"{' and '.join(unused)}: leave out these options, or pass --html, whose page has the "
                                "report of the unchanged test set.")
    elif unused := [option_name(name) for name in ("robustness_seed", "source_language")
                    if getattr(args, name, None) not in (None, "")]:
        raise SettingsError(f"{' and '.join(unused)}: only the forms of --robustness depend on this. Pass "
                            "--robustness, too, or leave it out.")
    for system in systems:
        if system.runs and not args.source:
            raise SettingsError(f"--system {system.name}={system.path} is a run: pass the text to translate as "
                                "--source.")
    if not needs_model(args, systems):
        _check_options_of_model(args, systems)
    if not getattr(args, "robustness", False):
        _check_options_of_report(args, bool(systems))
    for file in files_of_each_line(args).values():
        check_readable(file)
    if isinstance(args.replace_unknown, str) and sum(bool(system.runs) for system in systems) > 1:
        check_rereadable(args.replace_unknown)      # each translator reads it


def needs_model(args: argparse.Namespace, systems: Sequence[SystemArgument]) -> bool:
    """Return whether a model translates the test set, rather than that only files of translations are scored."""
    return any(system.runs for system in systems) if systems else not args.hypothesis_file


def _check_options_of_model(args: argparse.Namespace, systems: Sequence[SystemArgument]) -> None:
    """Refuse options about translating; the terms and phrases of files of translations are counted."""
    for system in systems:      # the path may be that of a missing run
        check_readable(system.path)
    if unused := specified_options(args, partial(add_model_arguments, required=False), add_line_options,
                                   excluded=("model", "constraints", "terminology")):
        raise SettingsError(f"Only files of translations are scored, without regard to {' and '.join(unused)}: leave "
                            "out these options, or pass --model, or a run as --system.")


def _check_options_of_report(args: argparse.Namespace, has_systems: bool) -> None:
    """Refuse options about tables, examples and tests that are not requested; a page and a JSON report have all."""
    if args.html or args.json and (has_systems or args.buckets or args.examples):
        return
    parts = (("--buckets", args.buckets, ("lengths", "frequencies", "frequency_text")),
             ("--examples", args.examples, ("examples_by",)),
             ("--system", has_systems or args.buckets,
              ("bootstrap_samples", "randomization_trials", "significance_seed")))
    unused, missing = [], []
    for option, is_requested, names in parts:
        if not is_requested and (without_effect := specified_options(args, _add_metric_arguments, _add_report_arguments,
                                                                     names=names)):
            unused += without_effect
            missing.append(option)
    if unused:
        raise SettingsError(f"Without {' and '.join(missing)}, or --html, the output does not depend on "
                            f"{' and '.join(unused)}: pass {' and '.join(missing)}, too, or leave out "
                            f"{' and '.join(unused)}.")
