"""`towernmt lexicon`: a table of likely translations of words, for the shortlists of `towernmt translate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from towernmt.checkpoint.packaged.packaged_run import open_run
from towernmt.core.errors import SettingsError
from towernmt.dataflow.prepared.prepared_data import PreparedData, open_prepared
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.lexical.ibm_model_1 import learn_model_1
from towernmt.predict.lexical.lexicon import Entries, Lexicon
from towernmt.predict.lexical.lexicon_sources import (
    blocks_of_prepared,
    blocks_of_text,
    entries_of_alignments,
    entries_of_table,
)

DESCRIPTION = ("Make a lexical table: which target words are likely translations of each source word. It is learned "
               "from prepared data or from two text files (IBM's model 1), counted from alignments, or read from the "
               "table of another program.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt lexicon`."""
    parser.description = DESCRIPTION
    parser.add_argument("--output", metavar="FILE", required=True, help="where the table goes")
    vocabularies = parser.add_mutually_exclusive_group(required=True)
    vocabularies.add_argument("--data", metavar="DIR",
                              help="prepared data: their vocabularies, and their pairs where nothing else is given")
    vocabularies.add_argument("--model", metavar="RUN", help="a run, whose vocabularies the table is for")
    parser.add_argument("--source", metavar="FILE", help="source text, one sentence a line")
    parser.add_argument("--target", metavar="FILE", help="its translations, line by line")
    parser.add_argument("--alignments", metavar="FILE",
                        help="count from these links of words (`0-0 1-2` a line, of fast_align or eflomal) between the "
                             "text files, in place of learning")
    parser.add_argument("--table", metavar="FILE",
                        help="take the table of another program: `source target probability` a line (fast_align -p "
                             "writes logarithms, which are understood)")
    parser.add_argument("--pieces", action="store_true",
                        help="the words of --table are pieces of the vocabularies")
    parser.add_argument("--pairs", type=int, default=500_000, metavar="N",
                        help="learn from so many pairs, the first ones; a pair of 25 words takes about 3 kB of memory "
                             "(default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=5, metavar="N",
                        help="of expectation maximisation (default: %(default)s)")
    parser.add_argument("--keep", type=int, default=200, metavar="N",
                        help="translations of a word, at most (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Make the table, and say what it holds.

    Raises:
        SettingsError: options that do not go together.
        DataError: files that are missing or not understood.
    """
    _check(args)
    data = open_prepared(args.data) if args.data else None
    vocabularies = ((data.source_vocabulary, data.target_vocabulary) if data is not None
                    else open_run(args.model).vocabularies())
    lexicon = Lexicon.of(_entries(args, data, *vocabularies), *vocabularies, keep=args.keep)
    lexicon.save(args.output)
    translated = (lexicon.starts[1:] > lexicon.starts[:-1]).sum()
    print(f"{args.output}: {len(lexicon.targets):,} translations of {translated:,} source pieces, "
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
        raise SettingsError("--model tells the vocabularies only: give the text to learn from, too (--source FILE "
                            "--target FILE), or prepared data (--data DIR), or a --table.")
    return learn_model_1(blocks, target.size, args.iterations, _report)


def _report(iteration: int, perplexity: float) -> None:
    print(f"iteration {iteration}: perplexity {perplexity:.2f} before it", file=sys.stderr)


def _check(args: argparse.Namespace) -> None:
    if bool(args.source) != bool(args.target):
        raise SettingsError("--source and --target belong together: give both text files.")
    if args.alignments and not args.source:
        raise SettingsError("--alignments are links between two text files: give these as --source and --target.")
    if args.table and args.source:
        raise SettingsError("--table is read as it is: leave out --source and --target.")
    if args.pieces and not args.table:
        raise SettingsError("--pieces says what a --table holds: give one, or leave it out.")
    if args.pairs < 1 or args.iterations < 1 or args.keep < 1:
        raise SettingsError(f"--pairs {args.pairs} --iterations {args.iterations} --keep {args.keep}: choose 1 or more "
                            "of each.")
