"""Commands on sentence pairs: `towernmt score` and `align`.

- score: the log-probability that a model gives to translations.
- align: the word alignments of sentence pairs by a trained model, and their error rate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from towernmt.cli.specified_options import specified_options
from towernmt.cli.translation_options import (
    add_device_options,
    add_engine_options,
    add_model_options,
    add_trust_option,
    device_of,
    engine_of,
    model_arguments,
)
from towernmt.cli.translator_options import log_without_tensorpack
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.standard_streams import log_to_stderr
from towernmt.dataflow.text.pharaoh_alignments import Link
from towernmt.dataflow.text.text_lines import check_rereadable, clean_lines
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.lines.output_file import output_file
from towernmt.predict.lines.text_io import check_readable, open_input
from towernmt.predict.lines.words_of_lines import pharaoh, reversed_links
from towernmt.predict.pair_scorer import PairScore, PairScorer, bits_per_character, token_perplexity
from towernmt.predict.scorer_choice import open_scorer
from towernmt.predict.search.search_settings import StreamSettings
from towernmt.predict.symmetrise import METHODS, ErrorRate, parse_gold, symmetrised

if TYPE_CHECKING:
    from towernmt.predict.aligner import Aligner


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt score`."""
    add_model_options(parser, required=True)
    parser.add_argument("--source", metavar="FILE", required=True, help="text, one sentence per line")
    parser.add_argument("--target", metavar="FILE", required=True, help="its translation, line by line")
    parser.add_argument("--output", metavar="FILE", help="file of the scores, one per line (default: stdout)")
    parser.add_argument("--mean", action="store_true",
                        help="write the mean log-probability of a token, not the sum over the sentence")
    parser.add_argument("--tokens", action="store_true",
                        help="write each target token, `line number from 0<TAB>token<TAB>log-probability`; with "
                             "--json, in the objects")
    parser.add_argument("--json", action="store_true",
                        help="write one JSON object per line: log_prob, tokens, mean, perplexity, bits_per_character")
    parser.add_argument("--last-weights", action="store_true",
                        help="score with the weights of the last update, not with their moving average")
    parser.add_argument("--batch-tokens", type=int, default=4096, metavar="N",
                        help="maximum number of tokens of the longer side in a batch, padding included (default: "
                             "%(default)s)")
    add_engine_options(parser)
    add_device_options(parser)


def run_score(args: argparse.Namespace) -> int:
    """Score sentence pairs, and return the exit status."""
    if args.mean and (args.tokens or args.json):
        raise SettingsError("--mean writes one number per line: leave out --tokens and --json.")
    for file in (args.source, args.target):
        check_readable(file)
    scorer = make_scorer(args)
    pairs = tokens = characters = 0
    total = 0.0
    with output_file(args.output) if args.output else nullcontext(sys.stdout.buffer) as output:
        for score in scorer.score_stream(read_pairs(args.source, args.target), args.source, args.tokens):
            output.writelines(line.encode() + b"\n" for line in _score_lines(pairs, score, args))
            pairs, tokens, characters = pairs + 1, tokens + score.tokens, characters + score.characters
            total += score.log_prob
        output.flush()
    if pairs:
        print(f"{pairs:,} pairs, {tokens:,} target tokens, {bits_per_character(total, characters):.3f} bits per "
              f"character, perplexity {token_perplexity(total, tokens):.3f}", file=sys.stderr)
    return 0


def make_scorer(args: argparse.Namespace) -> PairScorer:
    """Return the scorer for the parsed options."""
    device, models = device_of(args), model_arguments(args)
    common_arguments: dict[str, Any] = {"device": device, "averaged": not args.last_weights,
                                        "batch_tokens": args.batch_tokens}
    engine = engine_of(args)
    if engine == "ctranslate2":
        from towernmt.interop.ctranslate2_engine import CTranslate2Scorer

        log_without_tensorpack()
        return CTranslate2Scorer(args.model[0], args.checkpoint[0] if args.checkpoint else None,
                                 precision=args.precision, trust_code=args.trust_code, **common_arguments)
    log_to_stderr()
    log_without_tensorpack()
    return open_scorer(**models, engine=engine, precision=args.precision or PRECISIONS[0], **common_arguments)


def _score_lines(number: int, score: PairScore, args: argparse.Namespace) -> Iterator[str]:
    """Yield the output lines of a pair."""
    subwords, log_probs = score.pieces or (), score.log_probs or ()
    if args.json:
        token_fields = {"pieces": subwords, "log_probs": [round(value, 6) for value in log_probs]
                        } if args.tokens else {}
        yield json.dumps({"log_prob": round(score.log_prob, 6), "tokens": score.tokens, "mean": round(score.mean, 6),
                          "perplexity": round(score.perplexity, 6),
                          "bits_per_character": round(score.bits_per_character, 6), **token_fields}, ensure_ascii=False)
    elif args.tokens:
        for subword, value in zip(subwords, log_probs, strict=True):
            yield f"{number}\t{subword}\t{value:.6f}"
    else:
        yield f"{score.mean if args.mean else score.log_prob:.6f}"


def read_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of lines of two files.

    Raises:
        DataError: a file cannot be read, or one has more lines.
    """
    with open_input(source) as sources, open_input(target) as targets:
        lines = zip_longest(clean_lines(sources, source), clean_lines(targets, target))
        for number, (source_line, target_line) in enumerate(lines, start=1):
            if source_line is None or target_line is None:
                shorter_file, longer_file = (source, target) if source_line is None else (target, source)
                raise DataError(f"{shorter_file} has {number - 1} lines, and {longer_file} has more: they must be "
                                "translations of each other, line by line.")
            yield source_line, target_line


_METHOD = "grow-diag-final-and"


def add_align_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt align`."""
    parser.add_argument("--model", metavar="MODEL",
                        help="the --logdir of a training run, or a package, whose attention aligns")
    parser.add_argument("--source", metavar="FILE", help="text, one sentence per line")
    parser.add_argument("--target", metavar="FILE", help="its translation, line by line")
    parser.add_argument("--output", metavar="FILE",
                        help="file of the alignments, `0-0 1-2`: source word-target word from 0, a line for each pair "
                             "(default: stdout)")
    parser.add_argument("--reverse-model", metavar="MODEL",
                        help="a run or package from target to source; the alignments of both directions are joined")
    parser.add_argument("--symmetrise", metavar="METHOD", choices=list(METHODS),
                        help=f"how to join two directions: {', '.join(METHODS)} (default: {_METHOD})")
    parser.add_argument("--links", metavar="FILE", help="in place of --model: a file of alignments")
    parser.add_argument("--reverse-links", metavar="FILE",
                        help="in place of --reverse-model: a file of alignments of the other direction, also source "
                             "word-target word")
    parser.add_argument("--json", action="store_true",
                        help="write one JSON object per line: the words, their links, and the attention as weights")
    parser.add_argument("--gold", metavar="FILE",
                        help="reference alignments, `1-2` sure and `1?2` or `1p2` possible: print precision, recall "
                             "and the alignment error rate to standard error")
    parser.add_argument("--gold-from", type=int, choices=[0, 1],
                        help="the number of the first word in --gold (default: 0)")
    _add_alignment_model_options(parser)


def _add_alignment_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threshold", type=float, metavar="WEIGHT",
                        help="align all words with at least this attention, 0 to 1 (default: each target word with the "
                             "source word of the most attention)")
    parser.add_argument("--checkpoint", metavar="NAME",
                        help="checkpoint of --model: best, last, step-N or a prefix (default: the average that the run "
                             "kept at its end, else best, else last)")
    add_trust_option(parser)
    parser.add_argument("--last-weights", action="store_true",
                        help="align with the weights of the last update, not with their moving average")
    parser.add_argument("--batch-tokens", type=int, default=StreamSettings.batch_tokens, metavar="N",
                        help="maximum number of tokens of the longer side in a batch, padding included (default: "
                             "%(default)s)")
    add_device_options(parser)


def run_align(args: argparse.Namespace) -> int:
    """Align sentence pairs, and return the exit status."""
    _check(args)
    log_to_stderr()
    rate = ErrorRate()
    gold = _read_lines(args.gold) if args.gold else iter(())
    with output_file(args.output) if args.output else nullcontext(sys.stdout.buffer) as output:
        for number, (links, line) in enumerate(_aligned(args), start=1):
            output.write(line.encode() + b"\n")
            if args.gold:
                gold_line = next(gold, None)
                if gold_line is None:
                    raise DataError(f"{args.gold} has {number - 1} lines, but there are more pairs: it must have one "
                                    "line per pair, which is empty for a pair without word alignments.")
                rate.add(links, parse_gold(gold_line, f"{args.gold} line {number}", args.gold_from or 0))
        if next(gold, None) is not None:
            raise DataError(f"{args.gold} has more than {rate.sentences} lines, but there are {rate.sentences} pairs: "
                            "it must have one line per pair.")
        output.flush()
    if args.gold:
        print(rate, file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    if bool(args.model) == bool(args.links):
        raise SettingsError("Pass --model to align sentence pairs, or --links to use existing word alignments.")
    if args.reverse_model and args.reverse_links:
        raise SettingsError("Pass --reverse-model or --reverse-links, not both.")
    reverse = args.reverse_model or args.reverse_links
    if (args.model or args.reverse_model) and not (args.source and args.target):
        raise SettingsError("A model needs sentence pairs: pass --source and --target.")
    if args.symmetrise and not reverse:
        raise SettingsError(f"--symmetrise {args.symmetrise} needs word alignments in two directions: pass "
                            "--reverse-model or --reverse-links, too.")
    if args.json and (reverse or not args.model):
        raise SettingsError("--json needs a single model: leave out --reverse-model, --reverse-links and --links.")
    if args.threshold is not None and not 0 < args.threshold <= 1:
        raise SettingsError(f"--threshold {args.threshold}: pass a number above 0 and at most 1.")
    if not (args.model or args.reverse_model) and (options := specified_options(args, _add_alignment_model_options)):
        raise SettingsError(f"{', '.join(options)}: these options are about a model, but --links are existing word "
                            "alignments: leave them out, or pass --model instead of --links.")
    if not (args.model or args.reverse_model) and (args.source or args.target):
        raise SettingsError("--source and --target are text for a model, but --links are existing word alignments: "
                            "leave the text out, or pass --model instead of --links.")
    if args.checkpoint and not args.model:
        raise SettingsError(f"--checkpoint {args.checkpoint} is a checkpoint of --model: leave it out, or pass --model "
                            "instead of --links.")
    if args.gold_from is not None and not args.gold:
        raise SettingsError(f"--gold-from {args.gold_from} needs reference alignments: pass --gold, or leave it out.")
    for file in filter(None, (args.source, args.target, args.links, args.reverse_links, args.gold)):
        check_readable(file)
    if args.model and args.reverse_model:       # each of them reads the text
        for file in (args.source, args.target):
            check_rereadable(file)


def _aligned(args: argparse.Namespace) -> Iterator[tuple[list[Link], str]]:
    """Yield the alignment of each pair, and the line to write."""
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
    """Yield the alignments of a run, or of a `reverse` run from target to source, as (source, target)."""
    pairs: Iterable[tuple[str, str]] = read_pairs(args.source, args.target)
    if reverse:
        pairs = ((target, source) for source, target in pairs)
    aligner = _aligner(args, model, None if reverse else args.checkpoint)
    for alignment in aligner.align_stream(pairs, args.target if reverse else args.source):
        links = alignment.links(args.threshold)
        yield reversed_links(links) if reverse else links


def _aligner(args: argparse.Namespace, model: str, checkpoint: str | None) -> Aligner:
    device = device_of(args)
    from towernmt.predict.aligner import Aligner  # imports TensorFlow

    return Aligner(model, checkpoint, device=device, averaged=not args.last_weights, batch_tokens=args.batch_tokens,
                   trust_code=args.trust_code)


def _joined(forward: Iterator[list[Link]], backward: Iterator[list[Link]], method: str) -> Iterator[list[Link]]:
    for number, (forward_links, backward_links) in enumerate(zip_longest(forward, backward), start=1):
        if forward_links is None or backward_links is None:
            raise DataError(f"The word alignments of one direction have {number - 1} lines, and those of the other "
                            "have more: they must be for the same pairs.")
        yield symmetrised(forward_links, backward_links, method)


def _from_file(path: str) -> Iterator[list[Link]]:
    for number, line in enumerate(_read_lines(path), start=1):
        yield sorted(parse_gold(line, f"{path} line {number}").sure)


def _read_lines(path: str) -> Iterator[str]:
    with open_input(path) as stream:
        yield from clean_lines(stream, path)
