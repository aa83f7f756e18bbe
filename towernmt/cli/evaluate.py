"""`towernmt evaluate`: BLEU, chrF and TER of a model, of existing translations, or of several systems.

Systems to compare are runs, which translate the source first, and files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from towernmt.cli.evaluate_options import add_test_arguments, check_evaluate_options, needs_model, report_settings
from towernmt.cli.request_options import options_of_all_lines, options_of_test_set
from towernmt.cli.system_argument import SystemArgument, parse_systems, read_systems
from towernmt.cli.translator_options import add_model_arguments, make_translator, models_give_attention
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.text_table import align_columns
from towernmt.dataflow.text.language_codes import written_language
from towernmt.dataflow.text.text_lines import clean_lines
from towernmt.dataflow.text.validation_set import check_has_text
from towernmt.evaluate.buckets import TermAccuracy, count_words, required_phrases, term_accuracy
from towernmt.evaluate.comparison import System, check_sentences, sentence_attention
from towernmt.evaluate.metrics import MetricSettings, make_metrics, score_corpus
from towernmt.evaluate.report import (
    Report,
    ReportSettings,
    bucket_tables,
    example_list,
    report_as_json,
    score_table,
    term_table,
)
from towernmt.evaluate.report_page import report_html
from towernmt.evaluate.robustness import robustness_rows, robustness_scores, robustness_texts
from towernmt.predict.lines.line_options import PLAIN, LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.predict.lines.text_io import open_input, read_text, write_lines


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt evaluate`."""
    parser.add_argument("--hypothesis", metavar="FILE", help="write the model's translations here")
    parser.add_argument("--hypothesis-file", metavar="FILE",
                        help="score these translations, without a model or a source")
    parser.add_argument("--system", metavar="[NAME=]RUN_OR_FILE", nargs="+", action="extend",
                        default=[],
                        help="several systems to compare, of which the first is the baseline: a run, a package, a "
                             "checkpoint's directory, several of these joined by + as an ensemble, or a file of "
                             "translations")
    parser.add_argument("--robustness", action="store_true",
                        help="translate the test set in capitals, with typos, emoji, addresses and in other forms, and "
                             "score each form")
    parser.add_argument("--robustness-seed", type=int, metavar="N",
                        help="seed of the typos and spans of --robustness (default: 1)")
    parser.add_argument("--source-language", default="", metavar="CODE",
                        help="language of the source, such as tr, by which --robustness changes the letter case")
    add_test_arguments(parser)
    add_model_arguments(parser, required=False)


def run_evaluate(args: argparse.Namespace) -> int:
    """Evaluate systems, print the result, and return the exit status."""
    output = evaluation_output(args, parse_systems(args.system))
    print(output if isinstance(output, str) else json.dumps(output))
    return 0


def evaluation_output(args: argparse.Namespace, arguments: Sequence[SystemArgument]) -> str | dict[str, Any]:
    """Evaluate systems, write the page of `--html`, and return the output: an object for --json, otherwise text.

    Args:
        args: parsed options.
        arguments: systems to compare; empty to score the only system of `args`.
    """
    settings = report_settings(args, several=bool(arguments))
    make_metrics(settings.metrics)      # report missing packages before translating
    check_evaluate_options(args, arguments)
    frequencies = _frequencies(args)
    references = [read_text(file) for file in args.reference]
    source = read_text(args.source) if args.source else None
    _check_has_text(args, source, references)
    if source is not None:
        _check_line_counts(args, references, args.source, source)
    _check_custom_metrics(args, arguments, settings, source, references)
    options, options_of_lines = options_of_all_lines(args), options_of_test_set(args, len(references[0]))
    if getattr(args, "robustness", False):
        return _robustness_output(args, arguments, source or [], references, settings, options, frequencies)
    systems = _systems(args, arguments, source, references, options, options_of_lines)
    if args.hypothesis:
        write_lines(args.hypothesis, list(systems[0].hypotheses))
    check_sentences(systems, references)
    terms = _terms(systems, source, options.terminology, options_of_lines if args.constraints else None)
    report = Report(systems, references, source, settings, *frequencies)
    if args.html:
        write_lines(args.html, [report_html(report, f"Translations of {Path(args.source or args.reference[0]).name}")])
    if arguments:
        return ({**report_as_json(report), **_terms_as_json(systems, terms)} if args.json
                else "\n\n".join([score_table(report), *_further_tables(args, report, terms)]))
    scores = {**_plain(systems[0], references, settings.metrics, source), **_terms_as_json(systems, terms)}
    if args.json:
        return {**scores, **(report_as_json(report) if _asks_for_more(args) else {})}
    names = [metric.name for metric in settings.metrics.custom]
    return "\n\n".join([_readable(scores, names), *_further_tables(args, report, terms)])


def _check_has_text(args: argparse.Namespace, source: list[str] | None, references: list[list[str]]) -> None:
    """Refuse a test set without text, before the translation."""
    named_references = list(zip(args.reference, references, strict=True))
    fix = "pass a test set with text and its translations."
    if source is not None:
        check_has_text([(args.source, source), *named_references], fix)
    for named_reference in named_references:
        check_has_text([named_reference], fix)


def _check_custom_metrics(args: argparse.Namespace, arguments: Sequence[SystemArgument], settings: ReportSettings,
                          source: list[str] | None, references: list[list[str]]) -> None:
    """Call the functions of `--metric` on the first sentence, unless nothing is translated."""
    if needs_model(args, arguments):
        for metric in settings.metrics.custom:
            metric.check(source, references)


def _check_line_counts(args: argparse.Namespace, references: list[list[str]], name: str, lines: list[str]) -> None:
    """Refuse a file with another number of lines than a reference.

    Args:
        args: parsed options.
        references: the lines of each file of `--reference`.
        name: the file, for the message.
        lines: its lines.

    Raises:
        DataError: the numbers differ.
    """
    for file, reference in zip(args.reference, references, strict=True):
        if len(lines) != len(reference):
            raise DataError(f"{name} has {len(lines)} lines and {file} has {len(reference)}: they must be translations "
                            "of each other, line by line.")


def _systems(args: argparse.Namespace, arguments: Sequence[SystemArgument], source: list[str] | None,
             references: list[list[str]], line_options: LineOptions, options_of_lines: list[LineOptions] | None
             ) -> list[System]:
    check_lines = partial(_check_line_counts, args, references)

    def translate(system_args: argparse.Namespace, name: str) -> System:
        attends = bool(args.html) and models_give_attention(system_args)
        translator = make_translator(system_args, attention=attends, options=line_options)
        start, hypotheses, attention = time.perf_counter(), [], []
        for hypothesis, *_ in translator.translate_stream(source or [], args.source, options=options_of_lines):
            hypotheses.append(hypothesis.text)
            if attends:
                attention.append(sentence_attention(hypothesis.details, translator.source_vocabulary,
                                                    translator.target_vocabulary))
        return System(name, hypotheses, translator.checkpoint, time.perf_counter() - start, attention or None)

    if arguments:
        return read_systems(arguments, args, check_lines, translate)
    if args.hypothesis_file:
        return read_systems([SystemArgument(args.hypothesis_file, args.hypothesis_file)], args, check_lines, translate)
    return [translate(args, " + ".join(args.model))]


def _robustness_output(args: argparse.Namespace, arguments: Sequence[SystemArgument], source: list[str],
                       references: list[list[str]], settings: ReportSettings, options: LineOptions,
                       frequencies: tuple[Any, ...]) -> str | dict[str, Any]:
    """Translate all forms of the test set with each system; return their scores, and write the page of `--html`.

    The terms of `--terminology` are counted in the translations of the unchanged test set.
    """
    texts = robustness_texts(source, references, 1 if args.robustness_seed is None else args.robustness_seed,
                             (written_language(args.source_language), settings.metrics.target_language))
    hypotheses: dict[str, list[list[str]]] = {}

    def translate(system_args: argparse.Namespace, name: str) -> System:
        translator = make_translator(system_args, options=options)
        hypotheses[name] = [[hypothesis.text for hypothesis, *_ in translator.translate_stream(
            text.source, f"{args.source} ({text.name})")] for text in texts]
        return System(name, hypotheses[name][0], translator.checkpoint)

    systems = read_systems(arguments, args, lambda name, lines: None, translate) if arguments else [
        translate(args, " + ".join(args.model))]
    if args.hypothesis:
        write_lines(args.hypothesis, list(systems[0].hypotheses))
    scores = {system.name: robustness_scores(texts, hypotheses[system.name], settings.metrics) for system in systems}
    if args.html:
        report = Report(systems, references, source, settings, *frequencies)
        write_lines(args.html, [report_html(report, f"Translations of {Path(args.source).name}", scores)])
    terms = _terms(systems, source, options.terminology)
    if args.json:
        return {"robustness": {name: [form._asdict() for form in forms] for name, forms in scores.items()},
                **_terms_as_json(systems, terms)}
    tables = ["\n".join([name, *align_columns(robustness_rows(forms))]) for name, forms in scores.items()]
    return "\n\n".join([*tables, *_term_tables(systems, terms)])


def _frequencies(args: argparse.Namespace) -> tuple[Any, ...]:
    """Return the arguments of `Report` about the text for word frequencies."""
    if args.frequency_text is None:
        return ()
    with open_input(args.frequency_text) as lines:
        return count_words(clean_lines(lines, args.frequency_text), args.lowercase), Path(args.frequency_text).name


def _asks_for_more(args: argparse.Namespace) -> bool:
    return bool(args.buckets or args.examples)


def _terms(systems: Sequence[System], source: list[str] | None, terminology: Terminology | None,
           constraints: Sequence[LineOptions] | None = None) -> list[TermAccuracy]:
    """Return the term accuracy of each system for the requested terms and phrases; empty if none are requested.

    Args:
        systems: the systems.
        source: the source of the test set.
        terminology: the requested terms.
        constraints: for each line, options with the requested phrases; None if no phrases are requested.
    """
    if terminology is None and constraints is None:
        return []
    if terminology is not None and source is None:
        raise SettingsError("--terminology needs the source text: pass --source, too.")
    lines = len(systems[0].hypotheses)
    phrases_of_lines = [required_phrases(line, terminology, options.constraints) for line, options in zip(
        source or [""] * lines, constraints or [PLAIN] * lines, strict=True)]
    return [term_accuracy(phrases_of_lines, system.hypotheses) for system in systems]


def _terms_as_json(systems: Sequence[System], terms: Sequence[TermAccuracy]) -> dict[str, Any]:
    if not terms:
        return {}
    return {"terms": {system.name: {"required": accuracy.required, "met": accuracy.met}
                      for system, accuracy in zip(systems, terms, strict=True)}}


def _term_tables(systems: Sequence[System], terms: Sequence[TermAccuracy]) -> list[str]:
    return [term_table([system.name for system in systems], terms)] if terms else []


def _further_tables(args: argparse.Namespace, report: Report, terms: Sequence[TermAccuracy]) -> list[str]:
    return [*_term_tables(report.systems, terms),
            *([bucket_tables(report)] if args.buckets else []), *([example_list(report)] if args.examples else [])]


def _plain(system: System, references: list[list[str]], metrics: MetricSettings, source: list[str] | None
           ) -> dict[str, Any]:
    """Return the scores of one system by the names in `towernmt evaluate --json`."""
    keys = {"BLEU": ("bleu", "signature"), "chrF2": ("chrf", "chrf_signature"), "TER": ("ter", "ter_signature"),
            **{metric.name: (metric.name, f"{metric.name}_signature") for metric in metrics.custom}}
    scores = score_corpus(system.hypotheses, references, metrics, source)
    result: dict[str, Any] = {keys[name][0]: score for name, (score, _) in scores.items()}
    result.update({keys[name][1]: signature for name, (_, signature) in scores.items()})
    result["sentences"] = len(system.hypotheses)
    if system.seconds is not None:
        result.update(checkpoint=system.checkpoint, seconds=round(system.seconds, 3),
                      sentences_per_second=round(len(system.hypotheses) / max(system.seconds, 1e-9), 1))
    return result


def _readable(result: dict[str, Any], custom: Sequence[str]) -> str:
    metric_keys = (("BLEU", "bleu", "signature"), ("chrF", "chrf", "chrf_signature"), ("TER", "ter", "ter_signature"),
                   *((name, name, f"{name}_signature") for name in custom))
    lines = [f"{name} = {result[score]:.2f}  {result[signature]}"
             for name, score, signature in metric_keys if score in result]
    if "seconds" in result:
        lines.append(f"{result['sentences']} sentences in {result['seconds']:.1f} s, "
                     f"{result['sentences_per_second']:.1f} sentences/s ({result['checkpoint']})")
    return "\n".join(lines)
