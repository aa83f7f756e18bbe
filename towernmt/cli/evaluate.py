"""`towernmt evaluate`: BLEU, chrF and TER of a model, of existing translations, or of several systems.

Systems to compare are runs, which translate the source first, and files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.checkpoint.package_reader import is_package
from towernmt.cli.request_options import (
    add_line_options,
    constraints_of_each_line,
    files_of_each_line,
    options_of_all_lines,
    options_of_each_line,
)
from towernmt.cli.run_options import option_name
from towernmt.cli.translation_options import engine_of
from towernmt.cli.translator_options import add_model_arguments, make_translator
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.text_table import align_columns
from towernmt.dataflow.text.language_codes import written_language
from towernmt.dataflow.text.text_lines import clean_lines
from towernmt.dataflow.text.validation_set import check_has_text
from towernmt.evaluate.buckets import FREQUENCIES, LENGTHS, TermAccuracy, count_words, required_phrases, term_accuracy
from towernmt.evaluate.comparison import SignificanceSettings, System, check_sentences, sentence_attention
from towernmt.evaluate.custom_metric import CustomMetric
from towernmt.evaluate.metrics import METRICS, TOKENIZERS, MetricSettings, make_metrics, score_corpus
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
from towernmt.predict.lines.terminology import Terminology
from towernmt.predict.lines.text_io import check_readable, open_input, read_text, write_lines


class SystemArgument(NamedTuple):
    """A value of `--system [NAME=]RUN_OR_FILE`.

    Attributes:
        name: unique name of the system.
        path: a run, a package, one checkpoint of a run, several of these joined by `+` as an ensemble, or a file of
            translations.
    """

    name: str
    path: str

    @property
    def runs(self) -> list[str]:
        """The runs and packages; empty for a file of translations."""
        return [str(path.parents[1] if _is_checkpoint(path) else path) for path in self._paths()]

    def checkpoints(self, default: str | None) -> list[str | None]:
        """Return the checkpoint of each run; `default` if the path names only the run."""
        return [str(path / "model") if _is_checkpoint(path) else default for path in self._paths()]

    def _paths(self) -> list[Path]:
        paths = [Path(self.path)] if Path(self.path).exists() else [Path(text) for text in self.path.split("+")]
        return paths if all(path.is_dir() or is_package(path) for path in paths) else []


def _is_checkpoint(path: Path) -> bool:
    return (path / "model.index").is_file()


def parse_systems(texts: Sequence[str]) -> list[SystemArgument]:
    """Return the systems of `--system`, in order.

    Raises:
        SettingsError: two systems have one name, or a name or path is missing.
    """
    systems = [_parse(text) for text in texts]
    for i, system in enumerate(systems):
        if any(earlier_system.name == system.name for earlier_system in systems[:i]):
            raise SettingsError(f"--system {texts[i]}: two systems have the name '{system.name}': pass another name, "
                                f"as in --system NAME={system.path}.")
    return systems


def _parse(text: str) -> SystemArgument:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        name = path = text
    if not name or not path:
        raise SettingsError(f"--system {text}: expected NAME=RUN_OR_FILE, for example --system new=runs/de-en.")
    return SystemArgument(name, path)


def read_systems(systems: Iterable[SystemArgument], args: argparse.Namespace,
                 check_lines: Callable[[str, list[str]], None],
                 translate: Callable[[argparse.Namespace, str], System]) -> list[System]:
    """Read the files, translate with each run in turn, and return the systems in order.

    Args:
        systems: arguments of `--system`; the first is the baseline.
        args: parsed options; `model` and `checkpoint` are set for each run.
        check_lines: called with the name and the lines of a file; refuses lines that do not fit the test set.
        translate: called with options and a name; translates the source with the model of the options.
    """
    systems = list(systems)
    texts = {system.name: read_text(system.path) for system in systems if not system.runs}
    for system in systems:
        if not system.runs:
            check_lines(system.path, texts[system.name])
    default = args.checkpoint[0] if args.checkpoint else None
    return [translate(argparse.Namespace(**{**vars(args), "model": system.runs,
                                            "checkpoint": system.checkpoints(default)}), system.name)
            if system.runs else System(system.name, texts[system.name]) for system in systems]


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
    parser.add_argument("--robustness-seed", type=int, default=1, metavar="N",
                        help="seed of the typos and spans of --robustness (default: %(default)s)")
    parser.add_argument("--source-language", default="", metavar="CODE",
                        help="language of the source, such as tr, by which --robustness changes the letter case")
    add_test_arguments(parser)
    add_model_arguments(parser, required=False)


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
    settings = _settings(args, several=bool(arguments))
    make_metrics(settings.metrics)      # report missing packages before translating
    _check(args, arguments)
    frequencies = _frequencies(args)
    references = [read_text(file) for file in args.reference]
    source = read_text(args.source) if args.source else None
    _check_has_text(args, source, references)
    _check_custom_metrics(args, arguments, settings, source, references)
    if getattr(args, "robustness", False):
        return _robustness_output(args, arguments, source or [], references, settings)
    systems = _systems(args, arguments, source, references)
    if args.hypothesis:
        write_lines(args.hypothesis, list(systems[0].hypotheses))
    check_sentences(systems, references)
    terms = _terms(args, systems, source)
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


def _settings(args: argparse.Namespace, several: bool) -> ReportSettings:
    default = METRICS if several else ("bleu", "chrf")
    return ReportSettings(
        metrics=MetricSettings(tuple(args.metrics or default), args.tokenize, args.lowercase, args.target_language,
                               tuple(map(CustomMetric.load, args.metric))),
        significance=SignificanceSettings(args.bootstrap_samples, args.randomization_trials, args.significance_seed),
        length_bounds=tuple(args.lengths), frequency_bounds=tuple(args.frequencies),
        examples_by=args.examples_by, **({} if args.examples is None else {"examples": args.examples}))


def _check(args: argparse.Namespace, systems: Sequence[SystemArgument]) -> None:
    if systems and (args.model or args.hypothesis_file or args.hypothesis):
        raise SettingsError("--system specifies all runs and files to compare: leave out --model, --hypothesis-file "
                            "and --hypothesis.")
    if args.hypothesis_file and (args.model or args.hypothesis):
        raise SettingsError("--hypothesis-file scores existing translations: leave out --model and --hypothesis.")
    if not systems and not args.hypothesis_file and not (args.model and args.source):
        raise SettingsError("Pass --model and --source to translate and score, --hypothesis-file to score existing "
                            "translations, or several --system to compare.")
    if systems and len(args.checkpoint or []) > 1:
        raise SettingsError("--checkpoint applies to all systems: pass it once, or pass directories of checkpoints, "
                            "as in --system last=runs/de-en/checkpoints/step-4000.")
    if getattr(args, "robustness", False):
        if args.hypothesis_file or not args.source or not all(system.runs for system in systems):
            raise SettingsError("--robustness translates the test set in several forms: pass --source, and --model or "
                                "runs as --system, instead of existing translations.")
        if files := files_of_each_line(args):
            raise SettingsError(f"--robustness changes the lines, so {' and '.join(sorted(files))} no longer belong to "
                                "them: leave out the options of single lines.")
        if not args.html and (unused := _options_of_page(args)):
            raise SettingsError(f"--robustness prints only BLEU and chrF of each form, without regard to "
                                f"{' and '.join(unused)}: leave out these options, or pass --html, whose page has the "
                                "report of the unchanged test set.")
    for system in systems:
        if system.runs and not args.source:
            raise SettingsError(f"--system {system.name}={system.path} is a run: pass the text to translate as "
                                "--source.")
    for file in files_of_each_line(args).values():
        check_readable(file)


def _options_of_page(args: argparse.Namespace) -> list[str]:
    """Return the specified options that have an effect on the page of `--robustness`, but not on its table."""
    parser = argparse.ArgumentParser()
    _add_metric_arguments(parser)
    _add_report_arguments(parser)
    return [option_name(name) for name, default in vars(parser.parse_args([])).items()
            if name not in ("tokenize", "target_language") and getattr(args, name) != default]


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
    if any(system.runs for system in arguments) if arguments else not args.hypothesis_file:
        for metric in settings.metrics.custom:
            metric.check(source, references)


def _systems(args: argparse.Namespace, arguments: Sequence[SystemArgument], source: list[str] | None,
             references: list[list[str]]) -> list[System]:
    def check_lines(name: str, lines: list[str]) -> None:
        for file, reference in zip(args.reference, references, strict=True):
            if len(lines) != len(reference):
                raise DataError(f"{name} has {len(lines)} lines and {file} has {len(reference)}: they must be "
                                "translations of each other, line by line.")

    def translate(system_args: argparse.Namespace, name: str) -> System:
        attends = bool(args.html) and (engine_of(system_args) == "ctranslate2"
                                       or _gives_attention(system_args.model, system_args.trust_code))
        translator = make_translator(system_args, attention=attends, options=options_of_all_lines(system_args))
        start, options = time.perf_counter(), options_of_each_line(system_args)
        hypotheses, attention = [], []
        for hypothesis, *_ in translator.translate_stream(source or [], args.source, options=options):
            hypotheses.append(hypothesis.text)
            if attends:
                attention.append(sentence_attention(hypothesis.details, translator.source_vocabulary,
                                                    translator.target_vocabulary))
        return System(name, hypotheses, translator.checkpoint, time.perf_counter() - start, attention or None)

    if source is not None:
        check_lines(args.source, source)
    if arguments:
        return read_systems(arguments, args, check_lines, translate)
    if args.hypothesis_file:
        return read_systems([SystemArgument(args.hypothesis_file, args.hypothesis_file)], args, check_lines, translate)
    return [translate(args, " + ".join(args.model))]


def _robustness_output(args: argparse.Namespace, arguments: Sequence[SystemArgument], source: list[str],
                       references: list[list[str]], settings: ReportSettings) -> str | dict[str, Any]:
    """Translate all forms of the test set with each system; return their scores, and write the page of `--html`.

    The terms of `--terminology` are counted in the translations of the unchanged test set.
    """
    texts = robustness_texts(source, references, args.robustness_seed,
                             (written_language(args.source_language), settings.metrics.target_language))
    hypotheses: dict[str, list[list[str]]] = {}

    def translate(system_args: argparse.Namespace, name: str) -> System:
        translator = make_translator(system_args, options=options_of_all_lines(system_args))
        hypotheses[name] = [[hypothesis.text for hypothesis, *_ in translator.translate_stream(
            text.source, f"{args.source} ({text.name})")] for text in texts]
        return System(name, hypotheses[name][0], translator.checkpoint)

    systems = read_systems(arguments, args, lambda name, lines: None, translate) if arguments else [
        translate(args, " + ".join(args.model))]
    if args.hypothesis:
        write_lines(args.hypothesis, list(systems[0].hypotheses))
    scores = {system.name: robustness_scores(texts, hypotheses[system.name], settings.metrics) for system in systems}
    if args.html:
        report = Report(systems, references, source, settings, *_frequencies(args))
        write_lines(args.html, [report_html(report, f"Translations of {Path(args.source).name}", scores)])
    terms = _terms(args, systems, source)
    if args.json:
        return {"robustness": {name: [form._asdict() for form in forms] for name, forms in scores.items()},
                **_terms_as_json(systems, terms)}
    tables = ["\n".join([name, *align_columns(robustness_rows(forms))]) for name, forms in scores.items()]
    return "\n\n".join([*tables, *_term_tables(systems, terms)])


def _gives_attention(runs: Sequence[str], trust_code: bool) -> bool:
    """Return whether the models of all runs return attention, which custom models need not do."""
    from towernmt.checkpoint.packaged_run import open_run

    return all(open_run(run, trust_code).load_model().gives_step_attention for run in runs)


def _frequencies(args: argparse.Namespace) -> tuple[Any, ...]:
    """Return the arguments of `Report` about the text for word frequencies."""
    if args.frequency_text is None:
        return ()
    with open_input(args.frequency_text) as lines:
        return count_words(clean_lines(lines, args.frequency_text), args.lowercase), Path(args.frequency_text).name


def _asks_for_more(args: argparse.Namespace) -> bool:
    return bool(args.buckets or args.examples)


def _terms(args: argparse.Namespace, systems: Sequence[System], source: list[str] | None) -> list[TermAccuracy]:
    """Return the term accuracy of each system for the requested terms and phrases; empty if none are requested."""
    if not (args.terminology or args.constraints):
        return []
    terminology = Terminology.read(args.terminology) if args.terminology else None
    if terminology is not None and source is None:
        raise SettingsError("--terminology needs the source text: pass --source, too.")
    lines = len(systems[0].hypotheses)
    phrases_of_lines = [required_phrases(line, terminology, phrases) for line, phrases in zip(
        source or [""] * lines, constraints_of_each_line(args, lines), strict=True)]
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
