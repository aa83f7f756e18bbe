"""`towernmt load`: the pairs of any source into a table of a database."""

from __future__ import annotations

import argparse
import sys

from towernmt.dataflow.sources.database.bulk_load import BATCH_PAIRS, load
from towernmt.dataflow.sources.open_source import open_source

DESCRIPTION = ("Put sentence pairs into a table, made if it is not there. The same command again goes on where an "
               "interrupted one came to, and no pair is put twice.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt load`."""
    parser.description = DESCRIPTION
    parser.add_argument("--source", metavar="URI", required=True,
                        help="the pairs: files such as 'corpus.{de,en}.gz', or any other source")
    parser.add_argument("--output", metavar="URI", required=True,
                        help="the table, for example 'sqlite:///corpus.db?table=pairs' or "
                             "'postgresql://me@host/corpus?table=pairs&source=de&target=en'")
    parser.add_argument("--batch", metavar="N", type=int, default=BATCH_PAIRS,
                        help=f"rows a transaction. Default: {BATCH_PAIRS}.")


def run(args: argparse.Namespace) -> int:
    """Load, and say how many pairs are there.

    Raises:
        TowerNMTError: what `open_source` and `load` raise.
    """
    loaded = load(open_source(args.source), args.output, args.batch, stream=sys.stderr)
    print(f"{loaded.pairs:,} pairs, {loaded.new:,} of them new, are in {loaded.table}")
    return 0
