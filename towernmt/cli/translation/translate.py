"""`towernmt translate`: lines from a file or a pipe to lines; of documents see `translate_documents`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from towernmt.cli.documents.translate_documents import add_document_options, translate_documents
from towernmt.cli.parts.options import add_parts_options, wants_parts
from towernmt.cli.translation.alignment_output import add_alignment_options, alignment_output
from towernmt.cli.translation.answers import InputLines, json_answers, task_of, text_answers
from towernmt.cli.translation.engine_options import add_engine_options, engine_of
from towernmt.cli.translation.ensemble_options import add_model_options, chosen_models
from towernmt.cli.translation.line_options import (
    add_line_options,
    files_of_each_line,
    files_of_lines,
    options_of_all_lines,
    options_of_each_line,
)
from towernmt.cli.translation.rerank_options import add_reranking_options, candidates, translation_reranker
from towernmt.cli.translation.search_options import add_search_options, check_alone, search_options
from towernmt.core.errors import SettingsError
from towernmt.core.terminal.log_stream import log_to_stderr
from towernmt.models.choices import PRECISIONS
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.predict.lines.resumable import LineOutput, resumable_output
from towernmt.predict.output_file import check_apart
from towernmt.predict.text_io import check_readable, open_input

if TYPE_CHECKING:
    from towernmt.predict.line_translator import LineTranslator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt translate`."""
    parser.add_argument("--input", metavar="FILE", nargs="+",
                        help="text, one sentence a line (default: stdin); several files, wildcards, s3://bucket/key "
                             "and tables of databases are translated in parts")
    parser.add_argument("--output", metavar="FILE",
                        help="where translations go (default: stdout); of several texts all to one file, or each to a "
                             "file in a folder (`out/`) or with a name like theirs (`out/{name}.en`)")
    parser.add_argument("--n-best", type=int, metavar="N",
                        help="write the N best translations of each line, one a line: "
                             "`line number from 0 ||| text ||| score`")
    parser.add_argument("--scores", action="store_true", help="write `score<TAB>text`")
    parser.add_argument("--json", action="store_true",
                        help='read one JSON object a line, as {"text": "...", "prefix": "..."}, and write one a line')
    parser.add_argument("--token-scores", action="store_true",
                        help="with --json: the tokens of each best translation, and the log-probability of each")
    parser.add_argument("--retry", action="store_true",
                        help="search again, without repetitions, for translations that are empty, in a loop or cut at "
                             "the length limit, and keep the better one")
    parser.add_argument("--resume", action="store_true",
                        help="go on with an output that was begun and not finished, if there is one (in parts, that is "
                             "always so)")
    parser.add_argument("--window", type=int, metavar="LINES",
                        help="lines read before the first translation is written, to sort them by length; 1 "
                             f"answers line by line (default: {StreamSettings.window}; 1 on a terminal)")
    add_parts_options(parser)
    add_document_options(parser)
    add_line_options(parser)
    add_alignment_options(parser)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Translate; returns the exit status."""
    check_output_options(args)
    if args.document:
        return translate_documents(args, lambda links: make_translator(
            args, attention=links, options=options_of_all_lines(args), retry=args.retry))
    if args.language is not None:
        raise SettingsError("--language is for a --document: leave it out, a line is a sentence.")
    if wants_parts(args):
        from towernmt.cli.parts.translate_parts import translate_parts

        return translate_parts(args)
    _check_files(args)
    if args.window is None and args.input is None and sys.stdin.isatty():
        args.window = 1
    window = StreamSettings.window if args.window is None else args.window
    name = args.input[0] if args.input else "stdin"
    with ExitStack() as files:
        source = files.enter_context(open_input(name)) if args.input else sys.stdin.buffer
        alignments = files.enter_context(alignment_output(args))
        translator = make_translator(args, log_probs=args.token_scores, attention=alignments.wanted,
                                     options=options_of_all_lines(args), retry=args.retry)
        output = LineOutput(sys.stdout.buffer, window)
        if args.output:
            output = files.enter_context(resumable_output(
                args.output, window, task_of(args, translator), args.resume, alignments.paths))
            alignments.write_to(output.further)
        lines, first = output.lines_of(source, name), output.start.lines + 1
        if first > 1:
            print(f"{args.output}: going on behind line {first - 1}.", file=sys.stderr)
        answers = json_answers if args.json else text_answers
        given = InputLines(lines, name, first, options_of_each_line(args, first))
        for number, answer in enumerate(answers(args, translator, given, alignments), start=first):
            output.write(number, answer)
    return 0


def check_output_options(args: argparse.Namespace) -> None:
    """Refuse what does not fit together in what is written for a line.

    Raises:
        SettingsError: two options of one output.
    """
    if args.n_best and args.scores:
        raise SettingsError("--n-best writes scores already: leave out --scores.")
    if args.json and args.scores:
        raise SettingsError("--json writes scores already: leave out --scores.")
    if args.token_scores and not args.json:
        raise SettingsError("--token-scores needs --json, which has a place for them.")


def _check_files(args: argparse.Namespace) -> None:
    if args.resume:
        if not (args.input and args.output):
            raise SettingsError("--resume needs --input and --output: what goes through a pipe is not there twice.")
        if args.plot:
            raise SettingsError("--resume goes on with lines, and --plot draws pictures: leave one of them out.")
    for file in files_of_each_line(args).values():
        check_readable(file)
    check_apart(("--output", args.output), {"--input": args.input, **files_of_lines(args)}, args.model)


def add_model_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The arguments that `towernmt translate` and `towernmt evaluate` share."""
    add_model_options(parser, required)
    add_translation_arguments(parser)


def add_translation_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of them that say how, and not by which models."""
    parser.add_argument("--max-source-length", type=int, default=StreamSettings.max_source_length,
                        metavar="TOKENS", help="longer lines are cut at punctuation or spaces, translated in "
                                               "pieces and joined (default: %(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=StreamSettings.batch_tokens, metavar="N",
                        help="source tokens in a batch, padding included, at most (default: %(default)s)")
    parser.add_argument("--batch-sentences", type=int, default=StreamSettings.batch_sentences, metavar="N",
                        help="sentences in a batch, at most (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=StreamSettings.threads, metavar="N",
                        help="batches translated side by side, each in a thread of its own (default: one for each "
                             "processor; one with a GPU, or with a window of one line)")
    add_engine_options(parser)
    add_search_options(parser, without=["n_best"])
    add_reranking_options(parser)
    parser.add_argument("--replace-unknown", nargs="?", const=True, default=False, metavar="TABLE",
                        help="in place of an unknown word, write the source word that the model looked at, or its "
                             "translation by a table, `source target probability` a line")
    parser.add_argument("--no-cache", action="store_true",
                        help="build the graph of the search anew, and keep none in the run's directory graphs/ "
                             "(TOWERNMT_KEEP_GRAPHS=0 does the same)")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", type=int, metavar="N",
                        help="translate on GPU N (default: the first one, or the CPU where there is none)")
    device.add_argument("--cpu", action="store_true", help="translate on the CPU")


def make_translator(args: argparse.Namespace, *, log_probs: bool = False, attention: bool = False,
                    options: LineOptions = PLAIN, retry: bool = False) -> LineTranslator:
    """The translator that the arguments ask for.

    Args:
        log_probs, attention: give these with each hypothesis.
        options: what all lines ask for.
        retry: search again for what looks wrong.
    Raises:
        SettingsError: a value that cannot work.
        CheckpointError: there is no such checkpoint, or it does not fit its run.
    """
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # before TensorFlow starts and takes the GPUs' memory
    search = search_options(args)
    models = chosen_models(args)
    search |= candidates(args, search)
    check_alone(search)
    window = getattr(args, "window", None)
    stream = StreamSettings(
        batch_tokens=args.batch_tokens, batch_sentences=args.batch_sentences,
        window=StreamSettings.window if window is None else window, max_source_length=args.max_source_length,
        threads=args.threads, shares=getattr(args, "shares", 0))
    device = "cpu" if args.cpu else None if args.gpu is None else f"gpu:{args.gpu}"

    if engine_of(args) is not None:
        from towernmt.engines.translator import CTranslate2Translator

        log_without_tensorpack()
        return CTranslate2Translator(args.model[0], checkpoint=args.checkpoint[0] if args.checkpoint else None,
                                     precision=args.precision, device=device, stream=stream, options=options,
                                     retry=retry, reranker=translation_reranker(args, device), log_probs=log_probs,
                                     trust_code=args.trust_code, **search)
    from towernmt.predict.translator import Translator

    log_to_stderr()
    unknown = args.replace_unknown
    if isinstance(unknown, str):
        from towernmt.predict.alignment.unknown_words import read_translations

        unknown = read_translations(unknown)
    return Translator(**models, device=device, stream=stream, reranker=translation_reranker(args, device),
                      log_probs=log_probs, attention=attention, options=options, retry=retry,
                      replace_unknown=unknown, keep_graph=_keeps_graphs(args),
                      precision=args.precision or PRECISIONS[0], **search)


def _keeps_graphs(args: argparse.Namespace) -> bool:
    return not args.no_cache and os.environ.get("TOWERNMT_KEEP_GRAPHS", "1") != "0"


def log_without_tensorpack() -> None:
    """For an engine that does not load it: our messages alone, on stderr."""
    log = logging.getLogger("towernmt")
    if not log.handlers:
        log.addHandler(logging.StreamHandler(sys.stderr))
        log.setLevel(logging.INFO)
        log.propagate = False
