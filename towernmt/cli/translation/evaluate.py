"""`towernmt evaluate`: BLEU and chrF of a model on a test set, or of translations that are there already."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from towernmt.cli.translation.translate import add_model_arguments, make_translator
from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.evaluate import corpus_scores
from towernmt.predict.output_file import check_apart
from towernmt.predict.text_io import read_text, write_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt evaluate`."""
    parser.add_argument("--source", metavar="FILE", help="the test set's source, one sentence a line")
    parser.add_argument("--reference", metavar="FILE", required=True, action="append",
                        help="its translations by people, plain (detokenised) text; may be given several times")
    parser.add_argument("--hypothesis", metavar="FILE", help="write the model's translations here")
    parser.add_argument("--hypothesis-file", metavar="FILE",
                        help="score these translations; no model and no source needed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_arguments(parser, required=False)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; returns the exit status."""
    _check(args)
    if args.hypothesis:
        check_apart(("--hypothesis", args.hypothesis), {"--source": args.source, "--reference": args.reference},
                    args.model)
    references = [read_text(file) for file in args.reference]
    result: dict[str, Any] = {}
    if args.hypothesis_file:
        hypotheses = read_text(args.hypothesis_file)
        _check_lines(args.hypothesis_file, hypotheses, args.reference, references)
    else:
        source = read_text(args.source)
        _check_lines(args.source, source, args.reference, references)
        translator = make_translator(args)
        start = time.perf_counter()
        hypotheses = [best.text for best, *_ in translator.translate_stream(source, args.source)]
        seconds = time.perf_counter() - start
        result = {"checkpoint": translator.checkpoint, "seconds": round(seconds, 3),
                  "sentences_per_second": round(len(source) / max(seconds, 1e-9), 1)}
        if args.hypothesis:
            write_lines(args.hypothesis, hypotheses)
    result = {**asdict(corpus_scores(hypotheses, *references)), "sentences": len(hypotheses), **result}
    print(json.dumps(result) if args.json else _readable(result))
    return 0


def _check_lines(name: str, lines: list[str], files: list[str], references: list[list[str]]) -> None:
    for file, reference in zip(files, references, strict=True):
        if len(lines) != len(reference):
            raise DataError(f"{name} has {len(lines)} lines and {file} has {len(reference)}: they must be translations "
                            "of each other, line by line.")


def _check(args: argparse.Namespace) -> None:
    if args.hypothesis_file and (args.model or args.source or args.hypothesis):
        raise SettingsError("--hypothesis-file scores translations that are there already: "
                            "leave out --model, --source and --hypothesis.")
    if not args.hypothesis_file and not (args.model and args.source):
        raise SettingsError("Pass --model and --source to translate and score, "
                            "or --hypothesis-file to score translations that are there already.")


def _readable(result: dict[str, Any]) -> str:
    lines = [f"BLEU = {result['bleu']:.2f}  {result['signature']}",
             f"chrF = {result['chrf']:.2f}  {result['chrf_signature']}"]
    if "seconds" in result:
        lines.append(f"{result['sentences']} sentences in {result['seconds']:.1f} s, "
                     f"{result['sentences_per_second']:.1f} sentences/s ({result['checkpoint']})")
    return "\n".join(lines)
