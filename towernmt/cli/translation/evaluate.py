"""`towernmt evaluate`: BLEU, chrF and TER of a model, of translations that are there already, or of several systems."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towernmt.cli.translation.engine_options import engine_of
from towernmt.cli.translation.line_options import (
    add_line_options,
    constraints_of_each_line,
    files_of_each_line,
    files_of_lines,
    options_of_all_lines,
    options_of_each_line,
)
from towernmt.cli.translation.systems import SystemArgument, parse_systems, read_systems
from towernmt.cli.translation.translate import add_model_arguments, make_translator
from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.evaluation.attention import sentence_attention
from towernmt.predict.evaluation.buckets import FREQUENCIES, LENGTHS, count_words
from towernmt.predict.evaluation.comparison import SignificanceSettings, System, check_sentences
from towernmt.predict.evaluation.metrics import METRICS, TOKENIZERS, MetricSettings, make_metrics, score_corpus
from towernmt.predict.evaluation.page import html_page
from towernmt.predict.evaluation.report import Report, ReportSettings, as_json
from towernmt.predict.evaluation.tables import bucket_tables, example_list, score_table, term_table
from towernmt.predict.evaluation.terms import TermAccuracy, term_accuracy, wanted_phrases
from towernmt.predict.lexical.terminology import Terminology
from towernmt.predict.output_file import check_apart
from towernmt.predict.text_io import check_readable, clean_lines, open_input, read_text, write_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt evaluate`."""
    parser.add_argument("--hypothesis", metavar="FILE", help="write the model's translations here")
    parser.add_argument("--hypothesis-file", metavar="FILE",
                        help="score these translations; no model and no source needed")
    parser.add_argument("--system", metavar="[NAME=]RUN_OR_FILE", action="append", default=[],
                        help="a run, a package, a checkpoint's directory, several of these joined by + as an "
                             "ensemble, or a file of translations, to be compared with others: give several, the "
                             "first is the baseline")
    add_test_arguments(parser)
    add_model_arguments(parser, required=False)


def add_test_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The arguments that `towernmt evaluate` and `towernmt compare` share: a test set, and what is told of it.

    Args:
        required: whether there must be one.
    """
    parser.add_argument("--source", metavar="FILE", help="the test set's source, one sentence a line")
    parser.add_argument("--reference", metavar="FILE", required=required, action="append",
                        help="its translations by people, plain (detokenised) text; may be given several times")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE",
                        help="write a page with all of it: scores, charts, and the sentences side by side")
    _add_metric_arguments(parser)
    _add_report_arguments(parser)
    add_line_options(parser)


def _add_metric_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", nargs="+", choices=METRICS, metavar="NAME",
                        help=f"{', '.join(METRICS)} (default: bleu chrf; of several systems all)")
    parser.add_argument("--tokenize", choices=TOKENIZERS, metavar="NAME",
                        help=f"sacreBLEU's tokeniser for BLEU: {', '.join(TOKENIZERS)} (default: by --target-language, "
                             "else 13a)")
    parser.add_argument("--lowercase", action="store_true", help="let case make no difference (to TER it never does)")
    parser.add_argument("--target-language", default="", metavar="CODE",
                        help="of the translations, as zh, ja or ko, which have tokenisers of their own")
    parser.add_argument("--bootstrap-samples", type=int, default=SignificanceSettings.samples, metavar="N",
                        help="test sets drawn by the paired bootstrap (default: %(default)s)")
    parser.add_argument("--randomization-trials", type=int, default=SignificanceSettings.trials, metavar="N",
                        help="exchanges drawn by the paired approximate randomisation (default: %(default)s)")
    parser.add_argument("--significance-seed", type=int, default=SignificanceSettings.seed, metavar="N",
                        help="of both (default: %(default)s)")


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--buckets", action="store_true",
                        help="scores by the length of the sentences, and F1 of words by their frequency")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="WORDS",
                        help="the longest sentence of each bucket but the last (default: "
                             f"{' '.join(map(str, LENGTHS))})")
    parser.add_argument("--frequencies", type=int, nargs="+", default=FREQUENCIES, metavar="COUNT",
                        help="the largest frequency of each bucket but the last (default: "
                             f"{' '.join(map(str, FREQUENCIES))})")
    parser.add_argument("--frequency-text", metavar="FILE",
                        help="count the words here, as in the target side of the training data (default: the first "
                             "reference)")
    parser.add_argument("--examples", type=int, metavar="N",
                        help="the N worst and best sentences, and the N that set systems most apart")
    parser.add_argument("--examples-by", choices=("chrf", "bleu"), default="chrf",
                        help="the score of a sentence alone (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; returns the exit status."""
    found = evaluated(args, parse_systems(args.system))
    print(found if isinstance(found, str) else json.dumps(found))
    return 0


def evaluated(args: argparse.Namespace, arguments: Sequence[SystemArgument]) -> str | dict[str, Any]:
    """Evaluate, and write the page that is asked for; gives what is to be printed: with --json an object, else text.

    Args:
        arguments: the systems that are compared; none: what `args` name besides is scored alone.
    """
    settings = _settings(args, several=bool(arguments))
    make_metrics(settings.metrics)      # what is missing is told before anything is translated
    _check(args, arguments)
    frequencies = _frequencies(args)
    references = [read_text(file) for file in args.reference]
    source = read_text(args.source) if args.source else None
    systems = _systems(args, arguments, source, references)
    if args.hypothesis:
        write_lines(args.hypothesis, list(systems[0].hypotheses))
    check_sentences(systems, references)
    terms = _terms(args, systems, source)
    report = Report(systems, references, source, settings, *frequencies)
    if args.html:
        write_lines(args.html, [html_page(report, f"Translations of {Path(args.source or args.reference[0]).name}")])
    if arguments:
        return ({**as_json(report), **_terms_as_json(systems, terms)} if args.json
                else "\n\n".join([score_table(report), *_more(args, report, terms)]))
    found = {**_plain(systems[0], references, settings.metrics), **_terms_as_json(systems, terms)}
    if args.json:
        return {**found, **(as_json(report) if _asks_for_more(args) else {})}
    return "\n\n".join([_readable(found), *_more(args, report, terms)])


def _settings(args: argparse.Namespace, several: bool) -> ReportSettings:
    default = METRICS if several else ("bleu", "chrf")
    return ReportSettings(
        metrics=MetricSettings(tuple(args.metrics or default), args.tokenize, args.lowercase, args.target_language),
        significance=SignificanceSettings(args.bootstrap_samples, args.randomization_trials, args.significance_seed),
        length_bounds=tuple(args.lengths), frequency_bounds=tuple(args.frequencies),
        examples_by=args.examples_by, **({} if args.examples is None else {"examples": args.examples}))


def _check(args: argparse.Namespace, systems: Sequence[SystemArgument]) -> None:
    if systems and (args.model or args.hypothesis_file or args.hypothesis):
        raise SettingsError("--system names all that is compared, runs and files: leave out --model, --hypothesis-file "
                            "and --hypothesis.")
    if args.hypothesis_file and (args.model or args.hypothesis):
        raise SettingsError("--hypothesis-file scores translations that are there already: "
                            "leave out --model and --hypothesis.")
    if not systems and not args.hypothesis_file and not (args.model and args.source):
        raise SettingsError("Pass --model and --source to translate and score, --hypothesis-file to score translations "
                            "that are there already, or several --system to compare.")
    if systems and len(args.checkpoint or []) > 1:
        raise SettingsError("--checkpoint holds for all systems: give it once, or name the checkpoints' directories, "
                            "as --system last=runs/de-en/checkpoints/step-4000.")
    for system in systems:
        if system.runs and not args.source:
            raise SettingsError(f"--system {system.name}={system.path} is a run: pass the text that it is to translate "
                                "as --source.")
    for file in files_of_each_line(args).values():
        check_readable(file)
    inputs = {option: file for option, file in (
        ("--source", args.source), ("--hypothesis-file", args.hypothesis_file),
        ("--frequency-text", args.frequency_text), *files_of_lines(args).items()) if file}
    read = {**inputs, "--reference": args.reference, "--system": [system.path for system in systems]}
    runs = [*(args.model or []), *(run for system in systems for run in system.runs)]
    for option, file in (("--hypothesis", args.hypothesis), ("--html", args.html)):
        if file:
            check_apart((option, file), read, runs)


def _systems(args: argparse.Namespace, arguments: Sequence[SystemArgument], source: list[str] | None,
             references: list[list[str]]) -> list[System]:
    def check_lines(name: str, lines: list[str]) -> None:
        for file, reference in zip(args.reference, references, strict=True):
            if len(lines) != len(reference):
                raise DataError(f"{name} has {len(lines)} lines and {file} has {len(reference)}: they must be "
                                "translations of each other, line by line.")

    def translate(one: argparse.Namespace, name: str) -> System:
        attends = bool(args.html) and engine_of(one) is None and _gives_attention(one.model, one.trust_code)
        translator = make_translator(one, attention=attends, options=options_of_all_lines(one))
        start, options = time.perf_counter(), options_of_each_line(one)
        hypotheses, attention = [], []
        for best, *_ in translator.translate_stream(source or [], args.source, options=options):
            hypotheses.append(best.text)
            if attends:
                attention.append(sentence_attention(best.details, translator.source_vocabulary,
                                                    translator.target_vocabulary))
        return System(name, hypotheses, translator.checkpoint, time.perf_counter() - start, attention or None)

    if source is not None:
        check_lines(args.source, source)
    if arguments:
        return read_systems(arguments, args, check_lines, translate)
    if args.hypothesis_file:
        return read_systems([SystemArgument(args.hypothesis_file, args.hypothesis_file)], args, check_lines, translate)
    return [translate(args, " + ".join(args.model))]


def _gives_attention(runs: Sequence[str], trust_code: bool) -> bool:
    """Whether the models of all runs say what they look at; one of one's own need not."""
    from towernmt.checkpoint.packaged.packaged_run import open_run

    return all(open_run(run, trust_code).load_model().gives_step_attention for run in runs)


def _frequencies(args: argparse.Namespace) -> tuple[Any, ...]:
    """What `Report` takes of the text that words are counted in."""
    if args.frequency_text is None:
        return ()
    with open_input(args.frequency_text) as lines:
        return count_words(clean_lines(lines, args.frequency_text), args.lowercase), Path(args.frequency_text).name


def _asks_for_more(args: argparse.Namespace) -> bool:
    return bool(args.buckets or args.examples)


def _terms(args: argparse.Namespace, systems: Sequence[System], source: list[str] | None) -> list[TermAccuracy]:
    """How many of the terms and phrases that are asked for each system has; none where nothing is asked for."""
    if not (args.terminology or args.constraints):
        return []
    terminology = Terminology.read(args.terminology) if args.terminology else None
    if terminology is not None and source is None:
        raise SettingsError("--terminology is looked for in the source: pass --source, too.")
    lines = len(systems[0].hypotheses)
    wanted = [wanted_phrases(line, terminology, phrases) for line, phrases in zip(
        source or [""] * lines, constraints_of_each_line(args, lines), strict=True)]
    return [term_accuracy(wanted, system.hypotheses) for system in systems]


def _terms_as_json(systems: Sequence[System], terms: Sequence[TermAccuracy]) -> dict[str, Any]:
    if not terms:
        return {}
    return {"terms": {system.name: {"wanted": one.wanted, "met": one.met}
                      for system, one in zip(systems, terms, strict=True)}}


def _more(args: argparse.Namespace, report: Report, terms: Sequence[TermAccuracy]) -> list[str]:
    return [*([term_table([system.name for system in report.systems], terms)] if terms else []),
            *([bucket_tables(report)] if args.buckets else []), *([example_list(report)] if args.examples else [])]


def _plain(system: System, references: list[list[str]], metrics: MetricSettings) -> dict[str, Any]:
    """The scores of one system, by the names that `towernmt evaluate --json` has for them."""
    keys = {"BLEU": ("bleu", "signature"), "chrF2": ("chrf", "chrf_signature"), "TER": ("ter", "ter_signature")}
    scores = score_corpus(system.hypotheses, references, metrics)
    result: dict[str, Any] = {keys[name][0]: score for name, (score, _) in scores.items()}
    result.update({keys[name][1]: signature for name, (_, signature) in scores.items()})
    result["sentences"] = len(system.hypotheses)
    if system.seconds is not None:
        result.update(checkpoint=system.checkpoint, seconds=round(system.seconds, 3),
                      sentences_per_second=round(len(system.hypotheses) / max(system.seconds, 1e-9), 1))
    return result


def _readable(result: dict[str, Any]) -> str:
    shown = (("BLEU", "bleu", "signature"), ("chrF", "chrf", "chrf_signature"), ("TER", "ter", "ter_signature"))
    lines = [f"{name} = {result[score]:.2f}  {result[signature]}"
             for name, score, signature in shown if score in result]
    if "seconds" in result:
        lines.append(f"{result['sentences']} sentences in {result['seconds']:.1f} s, "
                     f"{result['sentences_per_second']:.1f} sentences/s ({result['checkpoint']})")
    return "\n".join(lines)
