"""`towernmt translate`: translate lines of a file or a pipe.

`translate_ranges` translates very many lines, and `translate_documents` documents.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from towernmt.cli.request_options import (
    add_line_options,
    files_of_each_line,
    options_of_all_lines,
    options_of_each_line,
)
from towernmt.cli.translate_documents import add_document_options, translate_documents
from towernmt.cli.translate_ranges import add_range_options, translate_ranges, wants_ranges
from towernmt.cli.translation_output import (
    APPENDED,
    LinesToTranslate,
    add_alignment_options,
    alignment_output,
    json_answers,
    task_of,
    text_answers,
)
from towernmt.cli.translator_options import add_model_arguments, make_translator, models_give_attention
from towernmt.core.errors import SettingsError
from towernmt.predict.lines.output_file import reporting_write_errors
from towernmt.predict.lines.resumable import ENGINE, LineOutput, resumable_output, task_of_unfinished
from towernmt.predict.lines.text_io import check_readable, open_input
from towernmt.predict.ranges.outputs import is_remote
from towernmt.predict.search.search_settings import StreamSettings


def add_translate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt translate`."""
    parser.add_argument("--input", metavar="FILE", nargs="+",
                        help="text, one sentence per line (default: stdin); several files, wildcards, s3://bucket/key "
                             "and tables of databases are translated in ranges of lines")
    parser.add_argument("--output", metavar="FILE",
                        help="file of the translations (default: stdout), a folder (`out/`), or names derived from "
                             "those of the inputs (`out/{name}.en`)")
    parser.add_argument("--n-best", type=int, metavar="N",
                        help="write the N best translations of each line, one per line: "
                             "`line number from 0 ||| text ||| score`")
    parser.add_argument("--scores", action="store_true", help="write `score<TAB>text`")
    parser.add_argument("--json", action="store_true",
                        help='read one JSON object per line, {"text": "...", "prefix": "..."}, and write one per line')
    parser.add_argument("--token-scores", action="store_true",
                        help="with --json: the tokens of each best translation, and the log-probability of each")
    parser.add_argument("--retry", action="store_true",
                        help="if a translation is empty, repetitive or cut at the length limit, search again without "
                             "repetitions, and keep the better one")
    parser.add_argument("--resume", action="store_true",
                        help="resume an unfinished output (translation in ranges always resumes)")
    parser.add_argument("--window", type=int, metavar="LINES",
                        help="number of lines to read and sort by length before the first translation is written; 1 "
                             f"translates line by line (default: {StreamSettings.window}; 1 on a terminal)")
    add_range_options(parser)
    add_document_options(parser)
    add_line_options(parser)
    add_alignment_options(parser)
    add_model_arguments(parser)


def run_translate(args: argparse.Namespace) -> int:
    """Translate, and return the exit status."""
    check_output_options(args)
    if args.document:
        return translate_documents(args, lambda links: make_translator(
            args, attention=links and models_give_attention(args), options=options_of_all_lines(args),
            retry=args.retry))
    if args.language is not None:
        raise SettingsError("--language needs --document: leave it out, because each line is one sentence.")
    if wants_ranges(args):
        return translate_ranges(args)
    _check_files(args)
    if args.window is None and args.input is None and sys.stdin.isatty():
        args.window = 1
    window = StreamSettings.window if args.window is None else args.window
    name = args.input[0] if args.input else "stdin"
    with ExitStack() as files:
        source = files.enter_context(open_input(name)) if args.input else sys.stdin.buffer
        _make_folders(args)
        alignments = files.enter_context(alignment_output(args))
        begun_task = (task_of_unfinished(args.output) if args.resume else None) or {}
        translator = make_translator(args, log_probs=args.token_scores, attention=alignments.needs_attention,
                                     options=options_of_all_lines(args), retry=args.retry,
                                     begun_engine=begun_task.get(ENGINE))
        output = LineOutput(sys.stdout.buffer, window)
        if args.output:
            output = files.enter_context(resumable_output(
                args.output, window, task_of(args, translator), args.resume, alignments.paths))
            alignments.write_to(output.further)
        lines, first = output.lines_of(source, name), output.start.lines + 1
        if first > 1:
            print(f"{args.output}: resuming after line {first - 1}.", file=sys.stderr)
        answer_lines = json_answers if args.json else text_answers
        inputs = LinesToTranslate(lines, name, first, options_of_each_line(args, first))
        for number, output_lines in enumerate(answer_lines(args, translator, inputs, alignments), start=first):
            output.write(number, output_lines)
    return 0


def check_output_options(args: argparse.Namespace) -> None:
    """Refuse output options that exclude each other, and outputs that are not written to their URI.

    Raises:
        SettingsError: names the options.
    """
    for option in ("output", "alignments", "plot"):
        path = getattr(args, option)
        may_be_remote = option != "plot" and not args.document
        if path is not None and "://" in path and not (may_be_remote and is_remote(path)):
            raise SettingsError(f"--{option} {path}: nothing can be written to this URI: pass a path"
                                f"{' or s3://bucket/key' if may_be_remote else ''}.")
    if args.n_best and args.scores:
        raise SettingsError("--n-best already writes scores: leave out --scores.")
    if args.json and args.scores:
        raise SettingsError("--json already writes scores: leave out --scores.")
    if args.token_scores and not args.json:
        raise SettingsError("--token-scores needs --json: pass it, too.")


def _check_files(args: argparse.Namespace) -> None:
    if args.resume:
        if not (args.input and args.output):
            raise SettingsError("--resume needs --input and --output, because pipes cannot be read again.")
        if args.plot:
            raise SettingsError("--resume and --plot exclude each other: leave one of them out.")
    for file in files_of_each_line(args).values():
        check_readable(file)


def _make_folders(args: argparse.Namespace) -> None:
    """Make the folders of the outputs, before a model is loaded.

    Raises:
        DataError: a folder cannot be made.
    """
    for path in (args.output, args.alignments, args.plot):
        if path not in (None, APPENDED):
            with reporting_write_errors(path):
                Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
