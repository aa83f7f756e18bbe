"""The options that say which trained models translate: one, or several as an ensemble."""

from __future__ import annotations

import argparse
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.predict.ensemble.settings import MEANS, EnsembleSettings


def add_model_options(parser: argparse.ArgumentParser, required: bool) -> None:
    """`--model`, `--checkpoint` and what joins several of them."""
    parser.add_argument("--model", metavar="MODEL", required=required, action="append",
                        help="the --logdir of a training run, or a package; several are an ensemble")
    parser.add_argument("--checkpoint", metavar="NAME", action="append",
                        help="best, last, step-N or a checkpoint's prefix (default: best if there is one); one for "
                             "each --model, one for all, or several of one run as an ensemble")
    add_trust_option(parser)
    parser.add_argument("--ensemble-weights", metavar="W,W,...",
                        help="a weight for each member of the ensemble, in order (default: equal ones)")
    parser.add_argument("--ensemble-mean", choices=MEANS,
                        help=f"what the members' mean is taken of (default: {EnsembleSettings.mean})")


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """`--trust-code`, for commands that read packages."""
    parser.add_argument("--trust-code", action="store_true",
                        help="execute the code of the model that a package holds, if it is one of its maker's own")


def chosen_models(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a `Translator` that say which models it takes.

    Raises:
        SettingsError: weights that are no numbers.
    """
    given: dict[str, Any] = {} if args.ensemble_mean is None else {"mean": args.ensemble_mean}
    if args.ensemble_weights is not None:
        try:
            given["weights"] = tuple(float(weight) for weight in args.ensemble_weights.split(","))
        except ValueError:
            raise SettingsError(f"--ensemble-weights {args.ensemble_weights}: expected a number for each member, for "
                                "example 2,1.") from None
    return {"run_dir": args.model, "checkpoint": args.checkpoint, "ensemble": EnsembleSettings(**given),
            "trust_code": args.trust_code}
