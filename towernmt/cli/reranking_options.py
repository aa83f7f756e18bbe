"""Options of reranking: minimum Bayes risk, or a reverse model."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import SettingsError
from towernmt.predict.engine_support import ENGINES as TRANSLATOR_ENGINES
from towernmt.predict.scorer_choice import open_scorer
from towernmt.predict.search.search_settings import GRAPH, SearchSettings

if TYPE_CHECKING:
    from towernmt.predict.reranking import Reranker

SAMPLES = 100
"""Default number of samples for each line."""


def add_mbr_options(parser: Any) -> None:
    """Add `--mbr` and its further option."""
    parser.add_argument("--mbr", metavar="UTILITY",
                        help="minimum Bayes risk: output the translation that is most similar to all others of its "
                             "line by this utility: chrf, bleu, or a custom function, FILE.py:FUNCTION")
    parser.add_argument("--mbr-aggregate", action="store_true",
                        help="compare each translation with the mean of all translations of its line, which is faster "
                             "for many translations; only for --mbr chrf")


def mbr_reranker(args: argparse.Namespace) -> Reranker | None:
    """Return the reranker of `--mbr`; None without the option.

    Raises:
        SettingsError: the utility is unknown.
    """
    if args.mbr_aggregate and not args.mbr:
        raise SettingsError("--mbr-aggregate needs --mbr chrf: pass it, too.")
    if not args.mbr:
        return None
    from towernmt.predict.minimum_bayes_risk import MinimumBayesRisk  # imports sacreBLEU

    return MinimumBayesRisk(args.mbr, args.mbr_aggregate)


def add_reranking_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for reranking the results of the search."""
    group = parser.add_argument_group("reranking")
    add_mbr_options(group)
    group.add_argument("--samples", type=int, metavar="N",
                       help=f"number of sampled translations of each line to rerank (default: rerank the beam; with "
                            f"--sample {SAMPLES})")
    group.add_argument("--rerank-by", metavar="RUN[:WEIGHT]",
                       help="rerank the beam by a reverse model, a run from the target language to the source "
                            "language; `towernmt rerank --tune` finds the weight (default: 1)")


def reranking_search_options(args: argparse.Namespace, search: Mapping[str, Any],
                             saved_search: Callable[[], SearchSettings] = SearchSettings) -> dict[str, Any]:
    """Return further search options that give a reranker several translations: samples, or the complete beam.

    Args:
        args: the parsed options.
        search: the specified fields of `SearchSettings`.
        saved_search: returns the settings of the model, which apply to other fields; called only if they matter.

    Raises:
        SettingsError: the reranker would get one translation, samples have no reranker, or --n-best is not valid.
    """
    if not (args.mbr or args.rerank_by):
        if args.samples is not None:
            advice = " To write samples, pass --sample --n-best N." if hasattr(args, "n_best") else ""
            raise SettingsError(f"--samples needs --mbr or --rerank-by: pass one of them, too.{advice}")
        return {}
    n_best = search.get("n_best", 1)    # of the output
    saved = SearchSettings() if args.samples is not None or {"selection", "beam_size"} <= search.keys() else (
        saved_search())
    if args.samples is not None or search.get("selection", saved.selection) == "sampling":
        SearchSettings(selection="sampling", n_best=n_best)     # raises an error if it is not valid
        return {"selection": "sampling", "n_best": SAMPLES if args.samples is None else args.samples}
    saved_beam = saved.beam_size if saved.beam_size > 1 else SearchSettings.beam_size
    beam = search.get("beam_size", max(saved_beam, n_best))
    if beam < 2:
        raise SettingsError("Reranking needs at least two translations of a line: pass a --beam of 2 or more.")
    SearchSettings(beam_size=beam, n_best=n_best)
    return {"beam_size": beam, "n_best": beam}


def make_reranker(args: argparse.Namespace, device: str | None) -> Reranker | None:
    """Return the reranker of a command with `add_reranking_options`; None without reranking options.

    Args:
        args: parsed options.
        device: "cpu", "gpu", "gpu:N" or None, for the reverse model.
    """
    if args.mbr and args.rerank_by:
        raise SettingsError("--mbr and --rerank-by exclude each other: leave one of them out.")
    reranker = mbr_reranker(args)       # refuses --mbr-aggregate without --mbr
    if not args.rerank_by:
        return reranker
    from towernmt.predict.model_reranker import Judge, ModelReranker

    run, weight = run_and_weight(args.rerank_by, "--rerank-by")
    engine = GRAPH if args.engine == GRAPH else TRANSLATOR_ENGINES[0]
    scorer = open_scorer(run, engine=engine, device=device, trust_code=args.trust_code)
    return ModelReranker([Judge(scorer, "reverse", weight)])


def run_and_weight(text: str, option: str) -> tuple[str, float]:
    """Return the run and the weight of `RUN[:WEIGHT]`; the default weight is 1.

    Raises:
        SettingsError: the weight is not a number.
    """
    run, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, 1.0
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not run or not math.isfinite(value):
        raise SettingsError(f"{option} {text}: expected RUN or RUN:WEIGHT, for example {option} runs/en-de:0.5.")
    return run, value
