"""`towernmt inspect`: what is in sources or in prepared data, before training on it."""

from __future__ import annotations

import argparse
import sys

from towernmt.core.errors import SettingsError
from towernmt.dataflow.order.training_data import is_prepared
from towernmt.dataflow.prepare.inspect_sources import SourceInspector, SourceReport, inspect_prepared, table
from towernmt.dataflow.prepared.prepared_data import open_prepared
from towernmt.dataflow.sources.corpora import Corpora, read_corpora
from towernmt.dataflow.sources.mixture import Mixture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt inspect`."""
    parser.add_argument("data", metavar="DATA", help="a corpora.yaml, the URI of a source, or prepared data (a "
                                                     "directory, or s3://...)")
    parser.add_argument("--pairs", type=int, default=100_000, metavar="N",
                        help="pairs of each source to look at, the first ones (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="pairs to show (default: %(default)s)")
    parser.add_argument("--no-count", action="store_true", help="do not count the pairs, which may read everything")
    parser.add_argument("--vocabulary", metavar="PATH",
                        help="count tokens of this vocabulary instead of words: a directory of prepared data or of a "
                             "run, or the file of one for both sides (default: what corpora.yaml says)")


def run(options: argparse.Namespace) -> int:
    """Print one table; the status is 1 if a source has an error.

    Raises:
        SettingsError, DataError: what is to be looked at is not understood or not there.
    """
    if options.pairs < 1 or options.samples < 0:
        raise SettingsError(f"--pairs {options.pairs} --samples {options.samples}: expected at least 1 pair and no "
                            "less than 0 samples.")
    shares: list[float | None] = []
    if is_prepared(options.data):
        found = [inspect_prepared(open_prepared(options.data), options.samples)]
    else:
        corpora = read_corpora(options.data)
        mixture = corpora.mixture()
        found = _look(corpora, mixture, options)
        shares = _shares(mixture, found)
    print(table(found, shares), end="")
    return 1 if any(one.errors for one in found) else 0


def _look(corpora: Corpora, mixture: Mixture, options: argparse.Namespace) -> list[SourceReport]:
    vocabularies = corpora.open_vocabularies(options.vocabulary or None)
    inspector = SourceInspector(options.pairs, options.samples, not options.no_count,
                          None if vocabularies is None else vocabularies[:2], corpora.pair_filter)
    found = []
    for ingredient in mixture.ingredients:
        if sys.stderr.isatty():
            print(f"reading {ingredient.source.name}", file=sys.stderr)
        found.append(inspector.inspect(ingredient))
    return found


def _shares(mixture: Mixture, found: list[SourceReport]) -> list[float | None]:
    """Of the draws, for each source; None where it is not known without counting, or nothing is drawn."""
    counts = [one.pairs for one in found]
    if mixture.mix == "concatenate" or (mixture.mix == "temperature" and None in counts):
        return [None] * len(found)
    weights = mixture.weights([count or 0 for count in counts])
    return [weight / sum(weights) for weight in weights]
