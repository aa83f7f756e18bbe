"""The options that ask for another order of the hypotheses: minimum Bayes risk, and reranking by a further run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import SettingsError
from towernmt.predict.decoding.settings import SearchSettings

if TYPE_CHECKING:
    from towernmt.predict.reranking.reranker import Reranker


SAMPLES = 100
"""Drawn for a line where it is not said how many."""


def add_mbr_options(parser: Any) -> None:
    """`--mbr` and what belongs to it."""
    parser.add_argument("--mbr", metavar="UTILITY",
                        help="take the translation that is most like all others of its line: chrf, bleu, or a function "
                             "of your own, FILE.py:FUNCTION (minimum Bayes risk)")
    parser.add_argument("--mbr-aggregate", action="store_true",
                        help="compare with the mean of the others at once: faster with many; only for --mbr chrf")


def mbr_reranker(args: argparse.Namespace) -> Reranker | None:
    """What `--mbr` asks for; None without it.

    Raises:
        SettingsError: there is no such utility.
    """
    from towernmt.predict.reranking.minimum_bayes_risk import MinimumBayesRisk

    if args.mbr_aggregate and not args.mbr:
        raise SettingsError("--mbr-aggregate is for --mbr chrf: pass that, too.")
    return MinimumBayesRisk(args.mbr, args.mbr_aggregate) if args.mbr else None


def add_reranking_options(parser: argparse.ArgumentParser) -> None:
    """The options by which a command that translates reranks what its search finds."""
    group = parser.add_argument_group("reranking")
    add_mbr_options(group)
    group.add_argument("--samples", type=int, metavar="N",
                       help=f"draw so many translations of each line to choose from (default: what the beam holds; "
                            f"with --sample {SAMPLES})")
    group.add_argument("--rerank-by", metavar="RUN[:WEIGHT]",
                       help="rerank all that the beam finds by a reverse model, a run from the target language to the "
                            "source language; `towernmt rerank` finds the weight (default: 1)")


def candidates(args: argparse.Namespace, search: Mapping[str, Any]) -> dict[str, Any]:
    """What else the search must be told so that there is something to choose from: samples, or all that the beam holds.

    Args:
        search: the fields of `SearchSettings` that were given.
    Raises:
        SettingsError: there would be nothing to choose from, or nothing that chooses.
    """
    if not (args.mbr or args.rerank_by):
        if args.samples is not None:
            raise SettingsError("--samples are drawn to choose from: pass --mbr or --rerank-by, too; to have them "
                                "written, pass --sample --n-best N.")
        return {}
    if args.samples is not None or search.get("selection") == "sampling":
        return {"selection": "sampling", "n_best": SAMPLES if args.samples is None else args.samples}
    beam = search.get("beam_size", max(SearchSettings.beam_size, search.get("n_best", 1)))
    if beam < 2:
        raise SettingsError("One translation of a line cannot be reranked: choose a --beam of 2 or more.")
    return {"beam_size": beam, "n_best": beam}


def translation_reranker(args: argparse.Namespace, device: str | None) -> Reranker | None:
    """What orders the translations of a command with `add_reranking_options`; None: the search alone.

    Args:
        device: "cpu", "gpu", "gpu:N" or None, for a further run.
    """
    if args.mbr and args.rerank_by:
        raise SettingsError("--mbr and --rerank-by each put the translations into an order: choose one.")
    if not args.rerank_by:
        return mbr_reranker(args)
    from towernmt.predict.reranking.by_models import Judge, ModelReranker  # imports TensorFlow
    from towernmt.predict.scorer import Scorer

    place, weight = run_and_weight(args.rerank_by, "--rerank-by")
    return ModelReranker([Judge(Scorer(place, device=device, trust_code=args.trust_code), "reverse", weight)])


def run_and_weight(text: str, option: str) -> tuple[str, float]:
    """The run and the weight of `RUN[:WEIGHT]`; without WEIGHT it is 1.

    Raises:
        SettingsError: the weight is no number.
    """
    place, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, 1.0
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not place or not math.isfinite(value):
        raise SettingsError(f"{option} {text}: expected RUN or RUN:WEIGHT, for example {option} runs/en-de:0.5.")
    return place, value
