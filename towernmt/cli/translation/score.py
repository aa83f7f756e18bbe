"""`towernmt score`: the log-probability that a model gives to translations."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any

from towernmt.cli.translation.engine_options import add_engine_options, engine_of
from towernmt.cli.translation.ensemble_options import add_model_options, chosen_models
from towernmt.cli.translation.translate import log_without_tensorpack
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.terminal.log_stream import log_to_stderr
from towernmt.models.choices import PRECISIONS
from towernmt.predict.output_file import check_apart, output_file
from towernmt.predict.pair_scorer import PairScore, PairScorer, bits_per_character, perplexity
from towernmt.predict.text_io import check_readable, clean_lines, open_input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt score`."""
    add_model_options(parser, required=True)
    parser.add_argument("--source", metavar="FILE", required=True, help="text, one sentence a line")
    parser.add_argument("--target", metavar="FILE", required=True, help="its translation, line by line")
    parser.add_argument("--output", metavar="FILE", help="where the scores go, one a line (default: stdout)")
    parser.add_argument("--mean", action="store_true",
                        help="write the mean log-probability of a token, not the sum over the sentence")
    parser.add_argument("--tokens", action="store_true",
                        help="write each target token, `line number from 0<TAB>token<TAB>log-probability`; with "
                             "--json, in the objects")
    parser.add_argument("--json", action="store_true",
                        help="write one JSON object a line: log_prob, tokens, mean, perplexity, bits_per_character")
    parser.add_argument("--last-weights", action="store_true",
                        help="score with the weights of the last update, not with their moving average")
    parser.add_argument("--batch-tokens", type=int, default=4096, metavar="N",
                        help="tokens of the longer side in a batch, padding included, at most (default: %(default)s)")
    add_engine_options(parser)
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", type=int, metavar="N", help="use GPU N (default: the first one, if there is one)")
    device.add_argument("--cpu", action="store_true", help="use the CPU")


def run(args: argparse.Namespace) -> int:
    """Score; returns the exit status."""
    if args.mean and (args.tokens or args.json):
        raise SettingsError("--mean writes one number a line: leave out --tokens and --json, whose lines hold more.")
    check_apart(("--output", args.output), {"--source": args.source, "--target": args.target}, args.model)
    for file in (args.source, args.target):
        check_readable(file)
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # before TensorFlow starts and takes the GPUs' memory
    scorer = make_scorer(args)
    pairs = tokens = characters = 0
    total = 0.0
    with output_file(args.output) if args.output else nullcontext(sys.stdout.buffer) as output:
        for score in scorer.score_stream(read_pairs(args.source, args.target), args.source, args.tokens):
            output.writelines(line.encode() + b"\n" for line in _lines(pairs, score, args))
            pairs, tokens, characters = pairs + 1, tokens + score.tokens, characters + score.characters
            total += score.log_prob
        output.flush()
    if pairs:
        print(f"{pairs:,} pairs, {tokens:,} target tokens, {bits_per_character(total, characters):.3f} bits a "
              f"character, perplexity {perplexity(total, tokens):.3f}", file=sys.stderr)
    return 0


def make_scorer(args: argparse.Namespace) -> PairScorer:
    """The scorer that the arguments ask for."""
    models = chosen_models(args)
    device = "cpu" if args.cpu else None if args.gpu is None else f"gpu:{args.gpu}"
    common: dict[str, Any] = {"device": device, "averaged": not args.last_weights, "batch_tokens": args.batch_tokens}
    if engine_of(args) is not None:
        from towernmt.engines.scorer import CTranslate2Scorer

        log_without_tensorpack()
        return CTranslate2Scorer(args.model[0], args.checkpoint[0] if args.checkpoint else None,
                                 precision=args.precision, trust_code=args.trust_code, **common)
    from towernmt.predict.scorer import Scorer  # imports TensorFlow

    log_to_stderr()
    return Scorer(**models, precision=args.precision or PRECISIONS[0], **common)


def _lines(number: int, score: PairScore, args: argparse.Namespace) -> Iterator[str]:
    """What is written of a pair."""
    pieces, log_probs = score.pieces or (), score.log_probs or ()
    if args.json:
        more = {"pieces": pieces, "log_probs": [round(value, 6) for value in log_probs]} if args.tokens else {}
        yield json.dumps({"log_prob": round(score.log_prob, 6), "tokens": score.tokens, "mean": round(score.mean, 6),
                          "perplexity": round(score.perplexity, 6),
                          "bits_per_character": round(score.bits_per_character, 6), **more}, ensure_ascii=False)
    elif args.tokens:
        for piece, value in zip(pieces, log_probs, strict=True):
            yield f"{number}\t{piece}\t{value:.6f}"
    else:
        yield f"{score.mean if args.mean else score.log_prob:.6f}"


def read_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """The lines of two files, side by side.

    Raises:
        DataError: a file cannot be read, or one has more lines.
    """
    with open_input(source) as sources, open_input(target) as targets:
        lines = zip_longest(clean_lines(sources, source), clean_lines(targets, target))
        for number, (one, other) in enumerate(lines, start=1):
            if one is None or other is None:
                short, long = (source, target) if one is None else (target, source)
                raise DataError(f"{short} ends after {number - 1} lines, but {long} goes on: they must be translations "
                                "of each other, line by line.")
            yield one, other
