"""Options about the models, the search and the device, and the translator that they describe.

`towernmt translate`, `evaluate`, `compare` and `pairs` share them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from towernmt.checkpoint.packaged_run import open_run
from towernmt.cli.reranking_options import add_reranking_options, make_reranker, reranking_search_options
from towernmt.cli.translation_options import (
    add_device_options,
    add_engine_options,
    add_model_options,
    add_search_options,
    add_special_line_options,
    check_search_options,
    device_of,
    engine_of,
    model_arguments,
    search_options,
    special_line_settings,
)
from towernmt.core.directories import is_export
from towernmt.core.standard_streams import log_to_stderr
from towernmt.predict.engine_support import ENGINES as TRANSLATOR_ENGINES
from towernmt.predict.engine_support import graph_precision
from towernmt.predict.lines.faults import RETRY_ADVICE
from towernmt.predict.lines.line_options import PLAIN, LineOptions
from towernmt.predict.search.device_batches import batching_for
from towernmt.predict.search.search_settings import BATCH_ON_GPU, GRAPH, SearchSettings, StreamSettings

if TYPE_CHECKING:
    from towernmt.predict.line_translator import LineTranslator


def add_model_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the arguments that `towernmt translate` and `towernmt evaluate` share."""
    add_model_options(parser, required)
    add_translator_options(parser)


def add_translator_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `add_model_arguments` about the search and the device, without those about the models."""
    parser.add_argument("--max-source-length", type=int, default=StreamSettings.max_source_length,
                        metavar="TOKENS", help="longer lines are split at punctuation or spaces, and their "
                                               "translations joined (default: %(default)s)")
    parser.add_argument("--batch-tokens", type=int, metavar="N",
                        help="maximum number of source tokens in a batch, padding included (default: "
                             f"{StreamSettings.batch_tokens}, or {BATCH_ON_GPU['batch_tokens']} on a GPU)")
    parser.add_argument("--batch-sentences", type=int, metavar="N",
                        help=f"maximum number of sentences in a batch (default: {StreamSettings.batch_sentences}, or "
                             f"{BATCH_ON_GPU['batch_sentences']} on a GPU)")
    parser.add_argument("--threads", type=int, default=StreamSettings.threads, metavar="N",
                        help="number of threads, each of which translates a batch (default: one for each processor; "
                             "one with a GPU, or with a window of one line)")
    add_engine_options(parser)
    add_search_options(parser, excluded=["n_best"])
    add_reranking_options(parser)
    parser.add_argument("--replace-unknown", nargs="?", const=True, default=False, metavar="TABLE",
                        help="replace an unknown word by the source word with the most attention, or by its "
                             "translation in a table, `source target probability` per line")
    add_special_line_options(parser)
    add_device_options(parser)


def models_give_attention(args: argparse.Namespace) -> bool:
    """Return whether all models of the options can return attention; `make_translator` refuses missing models."""
    if engine_of(args) == "ctranslate2":
        return True
    device_of(args)     # before TensorFlow is imported
    runs = [open_run(model, args.trust_code) for model in args.model]
    return all(run.gives_attention() for run in runs if run.exists())


def make_translator(args: argparse.Namespace, *, log_probs: bool = False, attention: bool = False,
                    options: LineOptions = PLAIN, retry: bool | None = None, export_first: bool = False,
                    begun_engine: str | None = None) -> LineTranslator:
    """Return the translator for the parsed options.

    Args:
        args: parsed options.
        log_probs: whether each hypothesis has the log probabilities of its tokens.
        attention: whether each hypothesis has its attention.
        options: requests for all lines.
        retry: whether suspicious translations are searched again; None if the command has no option for this.
        export_first: see `Translator`.
        begun_engine: `LineTranslator.engine` of the unfinished output to resume; None for a new output. If the options
            leave the choice of the engine to the translator, it uses this one.

    Raises:
        SettingsError: an invalid option value.
        CheckpointError: the checkpoint is missing, or it does not fit its run.
    """
    device = device_of(args)
    search = search_options(args)
    models = model_arguments(args)
    search |= reranking_search_options(args, search, lambda: _saved_search(args))
    check_search_options(search)
    window = getattr(args, "window", None)
    engine, precision = engine_of(args), args.precision
    if begun_engine is not None and engine == TRANSLATOR_ENGINES[0]:
        if begun_engine == GRAPH:       # an export may exist now
            engine, precision = GRAPH, graph_precision(precision)
        else:                           # its export may have been removed
            export_first = True
    stream = batching_for(
        "cpu" if engine == "ctranslate2" else device, args.batch_tokens, args.batch_sentences,
        window=StreamSettings.window if window is None else window, max_source_length=args.max_source_length,
        threads=args.threads, shares=getattr(args, "shares", 0))

    unknown = args.replace_unknown
    if isinstance(unknown, str):
        from towernmt.predict.lines.unknown_words import read_translations

        unknown = read_translations(unknown)
    if engine == "ctranslate2":
        from towernmt.interop.ctranslate2_engine import CTranslate2Translator

        log_without_tensorpack()
        translator: LineTranslator = CTranslate2Translator(
            args.model[0], checkpoint=args.checkpoint[0] if args.checkpoint else None, precision=precision,
            device=device, stream=stream, options=options, retry=bool(retry), reranker=make_reranker(args, device),
            replace_unknown=unknown, log_probs=log_probs, attention=attention, trust_code=args.trust_code,
            special_lines=special_line_settings(args), **search)
    else:
        from towernmt.predict.translator import Translator

        log_to_stderr()
        log_without_tensorpack()
        translator = Translator(
            **models, device=device, stream=stream, reranker=make_reranker(args, device), log_probs=log_probs,
            attention=attention, options=options, retry=bool(retry), replace_unknown=unknown, engine=engine,
            export_first=export_first, precision=precision, special_lines=special_line_settings(args), **search)
    if retry is not None:
        translator.fault_advice = RETRY_ADVICE
    return translator


def _saved_search(args: argparse.Namespace) -> SearchSettings:
    """Return the search settings of the first model; the defaults for a missing one, which is refused later."""
    model = args.model[0]
    if is_export(model):
        from towernmt.interop.ctranslate2_loader import Description

        return Description.read(Path(model)).search
    run = open_run(model, args.trust_code)
    return run.group("search", SearchSettings()) if run.exists() else SearchSettings()


def log_without_tensorpack() -> None:
    """Log the messages of towernmt to stderr, without tensorpack, whose import takes seconds."""
    log = logging.getLogger("towernmt")
    if not log.handlers and not logging.getLogger().handlers:
        log.addHandler(logging.StreamHandler(sys.stderr))
        log.setLevel(logging.INFO)
        log.propagate = False
