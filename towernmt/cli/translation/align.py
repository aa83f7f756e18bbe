"""`towernmt align`: the links of the words of sentence pairs by a trained model, and how many of them are right."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING

from towernmt.cli.translation.ensemble_options import add_trust_option
from towernmt.cli.translation.score import read_pairs
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.terminal.log_stream import log_to_stderr
from towernmt.dataflow.text.alignment import Link
from towernmt.predict.alignment.error_rate import ErrorRate, parse_gold
from towernmt.predict.alignment.links import pharaoh, swapped
from towernmt.predict.alignment.symmetrise import METHODS, symmetrised
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.output_file import check_apart, output_file
from towernmt.predict.text_io import check_readable, clean_lines, open_input

if TYPE_CHECKING:
    from towernmt.predict.alignment.aligner import Aligner

_METHOD = "grow-diag-final-and"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt align`."""
    parser.add_argument("--model", metavar="MODEL",
                        help="the --logdir of a training run, or a package, whose attention aligns")
    parser.add_argument("--source", metavar="FILE", help="text, one sentence a line")
    parser.add_argument("--target", metavar="FILE", help="its translation, line by line")
    parser.add_argument("--output", metavar="FILE",
                        help="where the links go, `0-0 1-2`: source word-target word from 0, a line for each pair "
                             "(default: stdout)")
    parser.add_argument("--reverse-model", metavar="MODEL",
                        help="a run or package from target to source; links of both directions become one alignment")
    parser.add_argument("--symmetrise", metavar="METHOD", choices=list(METHODS),
                        help=f"how: {', '.join(METHODS)} (default: {_METHOD})")
    parser.add_argument("--links", metavar="FILE", help="in place of --model: links that are there already")
    parser.add_argument("--reverse-links", metavar="FILE",
                        help="in place of --reverse-model: those of the other direction, also source word-target word")
    parser.add_argument("--threshold", type=float, metavar="WEIGHT",
                        help="link all words with so much attention, 0 to 1 (default: each target word to the source "
                             "word with the most)")
    parser.add_argument("--json", action="store_true",
                        help="write one JSON object a line: the words, their links, and the attention as weights")
    parser.add_argument("--gold", metavar="FILE",
                        help="links by people, `1-2` sure and `1?2` or `1p2` possible: print precision, recall and the "
                             "alignment error rate to standard error")
    parser.add_argument("--gold-from", type=int, choices=[0, 1], default=0,
                        help="the number of the first word in --gold (default: %(default)s)")
    parser.add_argument("--checkpoint", metavar="NAME",
                        help="of --model: best, last, step-N or a checkpoint's prefix (default: best if there is one)")
    add_trust_option(parser)
    parser.add_argument("--last-weights", action="store_true",
                        help="align with the weights of the last update, not with their moving average")
    parser.add_argument("--batch-tokens", type=int, default=StreamSettings.batch_tokens, metavar="N",
                        help="tokens of the longer side in a batch, padding included, at most (default: %(default)s)")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", type=int, metavar="N", help="use GPU N (default: the first one, if there is one)")
    device.add_argument("--cpu", action="store_true", help="use the CPU")


def run(args: argparse.Namespace) -> int:
    """Align; returns the exit status."""
    _check(args)
    log_to_stderr()
    rate = ErrorRate()
    gold = _lines(args.gold) if args.gold else iter(())
    with output_file(args.output) if args.output else nullcontext(sys.stdout.buffer) as output:
        for number, (links, line) in enumerate(_aligned(args), start=1):
            output.write(line.encode() + b"\n")
            if args.gold:
                people = next(gold, None)
                if people is None:
                    raise DataError(f"{args.gold} ends after {number - 1} lines, but there are more pairs: it must "
                                    "have a line for each pair, blank for one without links.")
                rate.add(links, parse_gold(people, f"{args.gold} line {number}", args.gold_from))
        if next(gold, None) is not None:
            raise DataError(f"{args.gold} goes on after {rate.sentences} lines, but there are no more pairs: it must "
                            "have a line for each pair.")
        output.flush()
    if args.gold:
        print(rate, file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    if bool(args.model) == bool(args.links):
        raise SettingsError("Pass --model to align sentence pairs, or --links to take links that are there already.")
    if args.reverse_model and args.reverse_links:
        raise SettingsError("Pass --reverse-model or --reverse-links, not both.")
    reverse = args.reverse_model or args.reverse_links
    if (args.model or args.reverse_model) and not (args.source and args.target):
        raise SettingsError("A model aligns sentence pairs: pass --source and --target.")
    if args.symmetrise and not reverse:
        raise SettingsError(f"--symmetrise {args.symmetrise} joins the links of two directions: pass --reverse-model "
                            "or --reverse-links, too.")
    if args.json and (reverse or not args.model):
        raise SettingsError("--json writes the weights of one model: leave out --reverse-model, --reverse-links and "
                            "--links.")
    if args.threshold is not None and not 0 < args.threshold <= 1:
        raise SettingsError(f"--threshold {args.threshold}: choose a number above 0, and at most 1.")
    read = {"--source": args.source, "--target": args.target, "--links": args.links,
            "--reverse-links": args.reverse_links, "--gold": args.gold}
    given = {name: file for name, file in read.items() if file}
    for file in given.values():
        check_readable(file)
    check_apart(("--output", args.output), given, args.model)


def _aligned(args: argparse.Namespace) -> Iterator[tuple[list[Link], str]]:
    """Of each pair the links, and the line to write."""
    if args.json:
        aligner = _aligner(args, args.model, args.checkpoint)
        for alignment in aligner.align_stream(read_pairs(args.source, args.target), args.source):
            links = alignment.links(args.threshold)
            yield links, json.dumps({**alignment.as_json(), "links": links}, ensure_ascii=False)
        return
    links_of_pairs = _from_file(args.links) if args.links else _by_model(args, args.model)
    if args.reverse_links or args.reverse_model:
        reverse = _from_file(args.reverse_links) if args.reverse_links else _by_model(args, args.reverse_model, True)
        links_of_pairs = _joined(links_of_pairs, reverse, args.symmetrise or _METHOD)
    for links in links_of_pairs:
        yield links, pharaoh(links)


def _by_model(args: argparse.Namespace, model: str, reverse: bool = False) -> Iterator[list[Link]]:
    """By a run, from source to target or the `reverse`; always source word - target word."""
    pairs: Iterable[tuple[str, str]] = read_pairs(args.source, args.target)
    if reverse:
        pairs = ((target, source) for source, target in pairs)
    aligner = _aligner(args, model, None if reverse else args.checkpoint)
    for alignment in aligner.align_stream(pairs, args.target if reverse else args.source):
        links = alignment.links(args.threshold)
        yield swapped(links) if reverse else links


def _aligner(args: argparse.Namespace, model: str, checkpoint: str | None) -> Aligner:
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # before TensorFlow starts and takes the GPUs' memory
    from towernmt.predict.alignment.aligner import Aligner  # imports TensorFlow

    device = "cpu" if args.cpu else None if args.gpu is None else f"gpu:{args.gpu}"
    return Aligner(model, checkpoint, device=device, averaged=not args.last_weights, batch_tokens=args.batch_tokens,
                   trust_code=args.trust_code)


def _joined(forward: Iterator[list[Link]], backward: Iterator[list[Link]], method: str) -> Iterator[list[Link]]:
    for number, (one, other) in enumerate(zip_longest(forward, backward), start=1):
        if one is None or other is None:
            raise DataError(f"The links of one direction end after {number - 1} lines, but those of the other go on: "
                            "they must be of the same pairs.")
        yield symmetrised(one, other, method)


def _from_file(path: str) -> Iterator[list[Link]]:
    for number, line in enumerate(_lines(path), start=1):
        yield sorted(parse_gold(line, f"{path} line {number}").sure)


def _lines(path: str) -> Iterator[str]:
    with open_input(path) as stream:
        yield from clean_lines(stream, path)
