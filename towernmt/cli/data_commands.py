"""Commands on data: `towernmt prepare`, `load`, `inspect` and `lexicon`.

- prepare: prepared data from text files or other sources of sentence pairs.
- load: put the pairs of a source into a database table.
- inspect: report on sources or on prepared data before training.
- lexicon: learn a table of likely word translations, for the shortlists of `towernmt translate`.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from towernmt.checkpoint.packaged_run import open_run
from towernmt.cli.specified_options import specified_options
from towernmt.core.errors import SettingsError, mask_uri
from towernmt.core.gpus import visible_gpus
from towernmt.dataflow.batches.training_data import is_prepared
from towernmt.dataflow.preparation.alignment_model import Entries, learn_model_1
from towernmt.dataflow.preparation.inspect_sources import SourceInspector, SourceReport, inspect_prepared, report_table
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData, open_prepared
from towernmt.dataflow.sources.corpora import Corpora, read_corpora
from towernmt.dataflow.sources.database_load import BATCH_PAIRS, load_table
from towernmt.dataflow.sources.mixture import Mixture
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.search.lexical_table import (
    Lexicon,
    blocks_of_prepared,
    blocks_of_text,
    entries_of_alignments,
    entries_of_table,
)
from towernmt.run.automatic_options import proposed_preset

UNKNOWN_TO_REPORT = 0.005
"""Minimum share of unknown tokens for which `prepare --vocabulary-of` proposes to add subwords to the model."""
PREPARE_TEXT = ("Make vocabularies, shards of integer ids and statistics from two text files, one sentence a "
               "line, or from any sources of sentence pairs, in flat memory.")


def add_prepare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `PrepareSettings`, with its help and its default."""
    parser.description = PREPARE_TEXT
    kinds = typing.get_type_hints(PrepareSettings)
    for field in _options():
        option = "--" + field.name.replace("_", "-")
        text = field.metadata["help"].replace("%", "%%")
        kind = _kind(kinds[field.name])
        if kind is bool:
            action = "store_true" if field.default is False else argparse.BooleanOptionalAction
            parser.add_argument(option, action=action, help=text)
            continue
        if kind is list:
            default: list[str] | None = None if field.default is None else []
            parser.add_argument(option, nargs="+", action="extend", default=default, metavar=_metavar(field.name, str),
                                help=text)
            continue
        if field.name == "ray":
            parser.add_argument(option, nargs="?", const="", metavar="ADDRESS", help=text)
            continue
        required = field.name in ("source", "output")
        if not required and field.default not in (None, ""):
            text += f" Default: {field.default}."
        choices = field.metadata["choices"] or None
        parser.add_argument(option, type=kind, default=field.default, required=required, choices=choices,
                            metavar=None if choices else _metavar(field.name, kind), help=text)
    parser.add_argument("--vocabulary-of", metavar="MODEL",
                        help="Use the vocabularies of a trained model, from which `towernmt train --start` then "
                             "trains: a run, a package, or a model of Marian (OPUS-MT, Mozilla), OpenNMT-tf or THUMT.")


def run_prepare(args: argparse.Namespace) -> int:
    """Prepare data, print the table of statistics, and return the exit status.

    Raises:
        TowerNMTError: invalid options or data; see `prepare`.
    """
    settings = PrepareSettings(**{field.name: getattr(args, field.name) for field in _options()})
    if args.vocabulary_of is None:
        return _prepare_and_report(settings, None)
    from towernmt.interop.starting_models import vocabulary_of_model, with_vocabulary_of  # imports TensorFlow

    with vocabulary_of_model(args.vocabulary_of) as directory:
        return _prepare_and_report(with_vocabulary_of(settings, args.vocabulary_of, directory), args.vocabulary_of)


def _prepare_and_report(settings: PrepareSettings, model: str | None) -> int:
    if settings.output.startswith("s3://"):
        from towernmt.dataflow.preparation.s3_upload import prepare_to_s3

        data = prepare_to_s3(settings, stream=sys.stderr)
    else:
        data = prepare(settings, stream=sys.stderr)
    print(data.statistics_table, end="")
    run_name = Path(str(data.directory).rstrip("/")).name or "run"
    gpus = len(visible_gpus())
    start = "" if model is None else f"--start {shlex.quote(model)} "
    if model is None:
        preset = proposed_preset(data.pairs, gpus)
        note = "" if gpus else "; towernmt train takes a smaller one for a short training"
        print(f"Proposed: --preset {preset.value}, because {preset.reason}{note}.", file=sys.stderr)
    elif (note := _note_of_unknown_tokens(settings, data.statistics, model)):
        print(note, file=sys.stderr)
    print(f"Prepared. Train on it: towernmt train {start}--data {shlex.quote(mask_uri(settings.output))} "
          f"{'--gpu 0 ' if gpus else ''}--logdir {shlex.quote(f'runs/{run_name}')}", file=sys.stderr)
    return 0


def _note_of_unknown_tokens(settings: PrepareSettings, statistics: Mapping[str, Any], model: str) -> str:
    """Return how to add the subwords of the text to a model; "" if it knows almost all tokens, or cannot get more."""
    side = max(("source", "target"), key=lambda side: statistics[side]["unknown_rate"])
    rate = statistics[side]["unknown_rate"]
    has_codes = any(path and path.endswith(".codes") for path in (settings.source_vocab, settings.target_vocab))
    if rate < UNKNOWN_TO_REPORT or not settings.target or settings.factors or has_codes:
        return ""
    command = shlex.join(["towernmt", "grow", "--model", model, "--source", settings.source, "--target",
                          settings.target, "--output"])
    return (f"Note: {100 * rate:.1f} % of the {side} tokens are unknown to the model. To add the subwords of this "
            f"text, run {command} GROWN, and prepare the text with --vocabulary-of GROWN.")


def _options() -> list[dataclasses.Field[Any]]:
    """Return the settings that have an option."""
    return [field for field in dataclasses.fields(PrepareSettings) if "help" in field.metadata]


def _kind(annotation: Any) -> type:
    """Return the type of an option's value: `float` for `float | None`, `list` for a list of files."""
    if list in (typing.get_origin(annotation), *map(typing.get_origin, typing.get_args(annotation))):
        return list
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    kind: type = kinds[0] if kinds else annotation
    return kind


_METAVARS = {"output": "DIR", "valid_name": "NAME", "vocab_symbols": "TOKEN,...", "source_script": "SCRIPT,...",
             "target_script": "SCRIPT,...", "source_language": "CODE", "target_language": "CODE"}


def _metavar(name: str, kind: type) -> str:
    return _METAVARS.get(name) or {int: "N", float: "X", str: "FILE"}[kind]


LOAD_TEXT = ("Write sentence pairs into a database table, which is created if it does not exist. The same command "
             "resumes after an interruption, and writes no pair twice.")


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt load`."""
    parser.description = LOAD_TEXT
    parser.add_argument("--source", metavar="URI", required=True,
                        help="the pairs: files such as 'corpus.{de,en}.gz', or any other source")
    parser.add_argument("--output", metavar="URI", required=True,
                        help="the table, for example 'sqlite:///corpus.db?table=pairs' or "
                             "'postgresql://me@host/corpus?table=pairs&source=de&target=en'")
    parser.add_argument("--batch", metavar="N", type=int, default=BATCH_PAIRS,
                        help=f"rows per transaction. Default: {BATCH_PAIRS}.")


def run_load(args: argparse.Namespace) -> int:
    """Load pairs, and print their number; returns the exit status.

    Raises:
        TowerNMTError: see `open_source` and `load_table`.
    """
    loaded = load_table(open_source(args.source), args.output, args.batch, stream=sys.stderr)
    print(f"{loaded.pairs:,} pairs, {loaded.new:,} of them new, are in {loaded.table}")
    return 0


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt inspect`."""
    parser.add_argument("data", metavar="DATA", help="a corpora.yaml, the URI of a source, or prepared data (a "
                                                     "directory, or s3://...)")
    parser.add_argument("--pairs", type=int, default=100_000, metavar="N",
                        help="number of first pairs of each source to inspect (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="pairs to show (default: %(default)s)")
    parser.add_argument("--no-count", action="store_true",
                        help="do not count the pairs, which may need to read everything")
    parser.add_argument("--vocabulary", metavar="PATH",
                        help="count tokens of this vocabulary instead of words: a directory of prepared data or of a "
                             "run, or the file of one for both sides (default: those of corpora.yaml)")


def run_inspect(options: argparse.Namespace) -> int:
    """Print one table; the status is 1 if a source has an error.

    Raises:
        SettingsError, DataError: an argument is not a source or prepared data, or does not exist.
    """
    if options.pairs < 1 or options.samples < 0:
        raise SettingsError(f"--pairs {options.pairs} --samples {options.samples}: expected at least 1 pair and at "
                            "least 0 samples.")
    shares: list[float | None] = []
    if is_prepared(options.data):
        if options.vocabulary:
            raise SettingsError(f"--vocabulary {options.vocabulary}: {mask_uri(options.data)} is prepared data, which "
                                "includes its vocabularies. Remove --vocabulary.")
        if unused := specified_options(options, add_inspect_arguments, names=("pairs", "no_count")):
            raise SettingsError(f"{' and '.join(unused)}: {mask_uri(options.data)} is prepared data, of which all "
                                "shards are read, to verify them. Leave this out.")
        reports = [inspect_prepared(open_prepared(options.data), options.samples)]
    else:
        corpora = read_corpora(options.data)
        mixture = corpora.mixture()
        reports = _inspect_sources(corpora, mixture, options)
        shares = _shares(mixture, reports)
    print(report_table(reports, shares), end="")
    return 1 if any(report.errors for report in reports) else 0


def _inspect_sources(corpora: Corpora, mixture: Mixture, options: argparse.Namespace) -> list[SourceReport]:
    vocabularies = corpora.open_vocabularies(options.vocabulary or None)
    inspector = SourceInspector(options.pairs, options.samples, not options.no_count,
                          None if vocabularies is None else vocabularies[:2], corpora.pair_filter,
                          corpora.source_factors or 0)
    reports = []
    for ingredient in mixture.ingredients:
        if sys.stderr.isatty():
            print(f"reading {ingredient.source.name}", file=sys.stderr)
        reports.append(inspector.inspect(ingredient))
    return reports


def _shares(mixture: Mixture, reports: list[SourceReport]) -> list[float | None]:
    """Return the share of each source in the mixture; None if it is unknown, or if the sources are concatenated."""
    counts = [report.pairs for report in reports]
    if mixture.mix == "concatenate" or (mixture.mix == "temperature" and None in counts):
        return [None] * len(reports)
    weights = mixture.weights([count or 0 for count in counts])
    return [weight / sum(weights) for weight in weights]


LEXICON_TEXT = ("Make a lexical table: which target words are likely translations of each source word. It is learned "
               "from prepared data or from two text files (IBM's model 1), counted from alignments, or read from the "
               "table of another program.")


def add_lexicon_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt lexicon`."""
    parser.description = LEXICON_TEXT
    parser.add_argument("--output", metavar="FILE", required=True, help="file of the table")
    vocabularies = parser.add_mutually_exclusive_group(required=True)
    vocabularies.add_argument("--data", metavar="DIR",
                              help="prepared data with the vocabularies, and with the pairs unless text is passed")
    vocabularies.add_argument("--model", metavar="RUN", help="a run with the vocabularies")
    parser.add_argument("--source", metavar="FILE", help="source text, one sentence per line")
    parser.add_argument("--target", metavar="FILE", help="its translations, line by line")
    parser.add_argument("--alignments", metavar="FILE",
                        help="count translations from these word alignments of the text files (`0-0 1-2` per line, as "
                             "fast_align or eflomal write them) instead of learning them")
    parser.add_argument("--table", metavar="FILE",
                        help="convert the table of another program: `source target probability` per line (or "
                             "logarithms, as fast_align -p writes them)")
    parser.add_argument("--pieces", action="store_true",
                        help="the words of --table are subwords of the vocabularies")
    _add_learning_options(parser)
    parser.add_argument("--keep", type=int, default=200, metavar="N",
                        help="maximum number of translations per word (default: %(default)s)")


def _add_learning_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=500_000, metavar="N",
                        help="number of pairs to learn from: the first ones of text files, or a sample of prepared "
                             "data; a pair of 25 words needs about 3 kB of memory (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=5, metavar="N",
                        help="iterations of expectation maximisation (default: %(default)s)")


def run_lexicon(args: argparse.Namespace) -> int:
    """Make a lexical table, and print its size; returns the exit status.

    Raises:
        SettingsError: options exclude or require each other.
        DataError: a file is missing or invalid.
    """
    _check(args)
    data = open_prepared(args.data) if args.data else None
    vocabularies = ((data.source_vocabulary, data.target_vocabulary) if data is not None
                    else open_run(args.model).vocabularies())
    lexicon = Lexicon.of(_entries(args, data, *vocabularies), *vocabularies, keep=args.keep)
    lexicon.save(args.output)
    translated = (lexicon.starts[1:] > lexicon.starts[:-1]).sum()
    print(f"{args.output}: {len(lexicon.targets):,} translations of {translated:,} source tokens, "
          f"{Path(args.output).stat().st_size / 1e6:.1f} MB.", file=sys.stderr)
    return 0


def _entries(args: argparse.Namespace, data: PreparedData | None, source: Vocabulary, target: Vocabulary) -> Entries:
    if args.table:
        return entries_of_table(args.table, source, target, args.pieces)
    if args.alignments:
        return entries_of_alignments(args.source, args.target, args.alignments, source, target)
    if args.source:
        blocks = blocks_of_text(args.source, args.target, source, target, args.pairs)
    elif data is not None:
        blocks = blocks_of_prepared(data, args.pairs)
    else:
        raise SettingsError("--model only provides the vocabularies: pass the text to learn from, too (--source FILE "
                            "--target FILE), or prepared data (--data DIR), or a --table.")
    return learn_model_1(blocks, target.size, args.iterations, _report)


def _report(iteration: int, perplexity: float) -> None:
    print(f"iteration {iteration}: perplexity {perplexity:.2f} before it", file=sys.stderr)


def _check(args: argparse.Namespace) -> None:
    if bool(args.source) != bool(args.target):
        raise SettingsError("--source and --target must be specified together: pass both text files.")
    if args.alignments and not args.source:
        raise SettingsError("--alignments needs two text files: pass them as --source and --target.")
    if args.table and args.source:
        raise SettingsError("--table is read unchanged: leave out --source and --target.")
    if args.pieces and not args.table:
        raise SettingsError("--pieces needs --table: pass a table, or leave it out.")
    replacement = "--table" if args.table else "--alignments" if args.alignments else ""
    if replacement and (options := specified_options(args, _add_learning_options)):
        raise SettingsError(f"{', '.join(options)}: these options are about learning, but {replacement} replaces it: "
                            "leave them out.")
    if args.pairs < 1 or args.iterations < 1 or args.keep < 1:
        raise SettingsError(f"--pairs {args.pairs} --iterations {args.iterations} --keep {args.keep}: each must be at "
                            "least 1.")
