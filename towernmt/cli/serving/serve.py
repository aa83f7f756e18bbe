"""`towernmt serve`: trained models behind HTTP."""

from __future__ import annotations

import argparse
import dataclasses
import os
import typing
from pathlib import Path
from typing import TYPE_CHECKING

from towernmt.cli.translation.ensemble_options import add_trust_option
from towernmt.cli.translation.search_options import add_search_options, check_alone, search_options
from towernmt.core.errors import SettingsError
from towernmt.core.terminal.log_stream import log_to_stderr
from towernmt.models.choices import PRECISIONS
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.serve.engine.opening import ENGINES, EngineSettings, ModelPlace, direction_of, open_place, parse_model
from towernmt.serve.glossaries import Glossaries
from towernmt.serve.limits import Limits
from towernmt.serve.web.keys import KeysFile
from towernmt.serve.web.logs import log_as_json

if TYPE_CHECKING:
    from towernmt.serve.service import Access, Service

MISSING = "towernmt serve needs Starlette, uvicorn, python-multipart and sentencex: install them with `pip install " \
          "'towernmt[serve]'`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt serve`."""
    parser.add_argument("--model", metavar="[DIRECTION=]MODEL", required=True, action="append",
                        help="a training run, a package or an export, as de-en=runs/de-en; without a direction the "
                             "one that a package tells; or FILE.py:NAME, an engine of your own; several serve several "
                             "directions")
    parser.add_argument("--host", default="127.0.0.1",
                        help="address to listen at; 0.0.0.0 for all of this machine's (default: %(default)s)")
    parser.add_argument("--port", type=int, default=5000, help="port to listen at; 0 for a free one "
                                                               "(default: %(default)s)")
    parser.add_argument("--keys", metavar="FILE",
                        help="answer only callers with a key of this file (see `towernmt serve-keys`)")
    parser.add_argument("--rate", type=float, default=0.0, metavar="N",
                        help="requests a minute of a caller whose key says nothing of it, or of an address; 0 for as "
                             "many as there come (default: 0)")
    parser.add_argument("--rate-characters", type=float, default=0.0, metavar="N",
                        help="the same of characters (default: 0)")
    parser.add_argument("--glossaries", metavar="FILE",
                        help="keep the glossaries of callers in this file (default: they go with the process)")
    parser.add_argument("--cors", metavar="ORIGIN", action="append", default=[],
                        help="let the pages of this web site ask, as https://example.org; * for all")
    parser.add_argument("--page", action=argparse.BooleanOptionalAction, default=True,
                        help="answer browsers with a page on which people translate (default: --page)")
    add_trust_option(parser)
    _add_engine(parser)
    group = parser.add_argument_group("limits")
    types = typing.get_type_hints(Limits)
    for field in dataclasses.fields(Limits):
        help = field.metadata["help"].removesuffix(".")
        group.add_argument(f"--{field.name.replace('_', '-')}", type=types[field.name], default=field.default,
                           metavar="N", help=f"{help[0].lower()}{help[1:]} (default: %(default)s)")
    add_search_options(parser, without=["n_best"])


def run(args: argparse.Namespace) -> int:
    """Serve until the process is told to stop; returns the exit status."""
    places = [parse_model(model) for model in args.model]
    check_alone(search_options(args))
    limits = Limits(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Limits)})
    settings = _engine_settings(args)
    keys = None if args.keys is None else KeysFile(args.keys)
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # before TensorFlow starts and takes the GPUs' memory
    try:
        from towernmt.serve.server import bind, serve
        from towernmt.serve.service import Access
    except ImportError:
        raise SettingsError(MISSING) from None
    opened = bind(args.host, args.port)
    log_to_stderr()
    log_as_json()
    access = Access(keys, args.rate, args.rate_characters, args.cors)
    glossaries = Glossaries(None if args.glossaries is None else Path(args.glossaries))
    serve(open_service(places, settings, limits, access, glossaries, args.page), opened)
    return 0


def open_service(places: list[ModelPlace], settings: EngineSettings, limits: Limits, access: Access,
                 glossaries: Glossaries, page: bool = True) -> Service:
    """The models, loaded and warm.

    Raises:
        TowerNMTError: one of them cannot be loaded.
    """
    from towernmt.serve.engine.models import Models
    from towernmt.serve.engine.served_model import ServedModel
    from towernmt.serve.service import Service, server_metrics, watch_rounds

    metrics = server_metrics()
    models = []
    for given, place in places:
        direction = given or direction_of(place)
        models.append(ServedModel(direction, place, lambda place=place: open_place(place, settings),  # type: ignore[misc]
                                  settings.round_size, limits.max_queue, watch_rounds(metrics, direction)))
    return Service(Models(models), limits, access, metrics, glossaries=glossaries, page=page)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                       help="what computes; ctranslate2 is faster, and has no alignments, prefixes or glossaries "
                            "(needs towernmt[ctranslate2])")
    group.add_argument("--precision", metavar="P",
                       help="of matrix products: float32, bfloat16 or float16; with --engine ctranslate2 of the "
                            "weights, also int16 or int8 (default: float32, or the export's)")
    group.add_argument("--alternatives", type=int, default=EngineSettings.alternatives, metavar="N",
                       help="so many translations of a sentence can be asked for (default: %(default)s)")
    group.add_argument("--alignments", action=argparse.BooleanOptionalAction, default=True,
                       help="give the alignments of words, where the engine has them (default: --alignments)")
    group.add_argument("--threads", type=int, default=StreamSettings.threads, metavar="N",
                       help="batches translated side by side (default: one for each processor; one with a GPU)")
    group.add_argument("--batch-sentences", type=int, default=32, metavar="N",
                       help="sentences in a batch, at most; a smaller one answers sooner, a larger one answers more "
                            "(default: %(default)s)")
    group.add_argument("--batch-tokens", type=int, default=StreamSettings.batch_tokens, metavar="N",
                       help="source tokens in a batch, padding included, at most (default: %(default)s)")
    group.add_argument("--max-source-length", type=int, default=StreamSettings.max_source_length, metavar="TOKENS",
                       help="longer sentences are cut, translated in pieces and joined (default: %(default)s)")
    group.add_argument("--no-cache", action="store_true",
                       help="keep no graph in the run's directory graphs/ (TOWERNMT_KEEP_GRAPHS=0 does the same)")
    device = group.add_mutually_exclusive_group()
    device.add_argument("--gpu", type=int, metavar="N", help="translate on GPU N (default: the first one, or the CPU "
                                                             "where there is none)")
    device.add_argument("--cpu", action="store_true", help="translate on the CPU")


def _engine_settings(args: argparse.Namespace) -> EngineSettings:
    if args.alternatives < 1:
        raise SettingsError(f"--alternatives {args.alternatives}: choose 1 or more.")
    if args.engine == ENGINES[0] and args.precision not in (None, *PRECISIONS):
        raise SettingsError(f"--precision {args.precision} needs --engine ctranslate2: without it there is "
                            f"{', '.join(PRECISIONS)}.")
    stream = StreamSettings(batch_tokens=args.batch_tokens, batch_sentences=args.batch_sentences,
                            max_source_length=args.max_source_length, threads=args.threads)
    device = "cpu" if args.cpu else None if args.gpu is None else f"gpu:{args.gpu}"
    return EngineSettings(args.engine, args.precision, device, args.alternatives, args.alignments,
                          not args.no_cache and os.environ.get("TOWERNMT_KEEP_GRAPHS", "1") != "0", stream,
                          tuple(search_options(args).items()), args.trust_code)
