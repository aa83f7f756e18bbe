"""The options that say which engine computes: the graph here, or CTranslate2."""

from __future__ import annotations

import argparse
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.models.choices import PRECISIONS

ENGINES = ("tensorflow", "ctranslate2")
"""The first is the default."""


def add_engine_options(parser: Any) -> None:
    """`--engine` and `--precision`."""
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="what computes; ctranslate2 exports the run when it is first needed, and starts without "
                             "TensorFlow (needs towernmt[ctranslate2]; --model may be an export, too)")
    parser.add_argument("--precision", metavar="P",
                        help="of matrix products: float32, bfloat16 or float16; with --engine ctranslate2 of the "
                             "weights, also int16 or int8 (default: float32, or the export's)")


def engine_of(args: argparse.Namespace) -> str | None:
    """The engine that is not our own; None for our own.

    Raises:
        SettingsError: an option that does not go with it.
    """
    if args.engine == ENGINES[0]:
        if args.precision not in (None, *PRECISIONS):
            raise SettingsError(f"--precision {args.precision} needs --engine ctranslate2: without it there is "
                                f"{', '.join(PRECISIONS)}.")
        return None
    from towernmt.engines.refusals import check_options

    check_options(vars(args))
    return str(args.engine)
