"""`towernmt rerank`: reorder n-best lists by further models or by minimum Bayes risk."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from towernmt.cli.reranking_options import add_mbr_options, mbr_reranker, run_and_weight
from towernmt.cli.specified_options import specified_options
from towernmt.cli.translation_options import add_device_options, add_trust_option, device_of
from towernmt.cli.translation_output import as_text
from towernmt.cli.translator_options import log_without_tensorpack
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.standard_streams import log_to_stderr
from towernmt.dataflow.text.text_lines import clean_lines
from towernmt.dataflow.text.validation_set import check_has_text
from towernmt.predict.engine_support import ENGINES
from towernmt.predict.lines.output_file import output_file
from towernmt.predict.lines.resumable import LineOutput
from towernmt.predict.lines.text_io import open_input, read_text
from towernmt.predict.reranking import Reranker, read_nbest, reranked
from towernmt.predict.scorer_choice import open_scorer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from towernmt.predict.lines.hypotheses import Hypothesis
    from towernmt.predict.model_reranker import ModelReranker

_OF_MODELS = ("length_penalty", "trust_code", "batch_tokens", "engine", "gpu", "cpu", "no_tf32")
"""The values that only models read, as argparse stores them."""
_OPTIONS = {"reverse": "--reverse-model", "right-to-left": "--right-to-left-model", "forward": "--forward-model"}


def add_rerank_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt rerank`."""
    parser.add_argument("--input", metavar="FILE", help="n-best lists, as `towernmt translate --n-best N` or Moses "
                                                        "write them (default: stdin)")
    parser.add_argument("--source", metavar="FILE", help="the translated text; not needed for --mbr")
    parser.add_argument("--output", metavar="FILE", help="file of the best translations (default: stdout)")
    parser.add_argument("--n-best", type=int, metavar="N",
                        help="write the N best of each line: `line number from 0 ||| text ||| score`")
    parser.add_argument("--scores", action="store_true", help="write `score<TAB>text`")
    for direction, ability in (("reverse", "scores the source, given the translation"),
                               ("right-to-left", "was trained on targets with their words in reverse order"),
                               ("forward", "scores the translation, given the source")):
        parser.add_argument(_OPTIONS[direction], metavar="RUN[:WEIGHT]", nargs="+", action="extend", default=[],
                            help=f"a run or package that {ability}; may be given several times (WEIGHT: 1; the "
                                 "search's score has 1)")
    parser.add_argument("--length-penalty", type=float, default=0.6, metavar="ALPHA",
                        help="log-probabilities of these models are divided by ((5 + tokens) / 6) ** ALPHA "
                             "(default: %(default)s)")
    parser.add_argument("--tune", metavar="REFERENCE",
                        help="find the models' weights with the best BLEU for these references, print the weights, and "
                             "rerank with them")
    add_mbr_options(parser)
    add_trust_option(parser)
    parser.add_argument("--batch-tokens", type=int, default=4096, metavar="N",
                        help="maximum number of tokens of the longer side in a batch, padding included (default: "
                             "%(default)s)")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="engine of the models: auto is CTranslate2 for each model with the same result as "
                             "TensorFlow's graph, and the graph for others; graph is always the graph (default: "
                             "%(default)s)")
    add_device_options(parser)


def run_rerank(args: argparse.Namespace) -> int:
    """Rerank translations, and return the exit status."""
    _check(args)
    with ExitStack() as files:
        stream = files.enter_context(open_input(args.input)) if args.input else sys.stdin.buffer
        name = args.input or "stdin"
        reranked = _reranked(args, read_nbest(clean_lines(stream, name), name))
        output = files.enter_context(output_file(args.output)) if args.output else sys.stdout.buffer
        lines = LineOutput(output)
        for number, hypotheses in enumerate(reranked, start=1):
            lines.write(number, as_text(number - 1, hypotheses, args.n_best, args.scores))
    return 0


def _reranked(args: argparse.Namespace, lists: Iterator[list[Hypothesis]]) -> Iterator[list[Hypothesis]]:
    reranker: Reranker | None = mbr_reranker(args)
    if reranker is not None:
        yield from reranked(lists, reranker)
        return
    judges = _judges(args)
    if args.tune:
        yield from _tuned(args, judges, list(lists))
        return
    with open_input(args.source) as source:
        yield from reranked(lists, judges, clean_lines(source, args.source), name=args.source)


def _judges(args: argparse.Namespace) -> ModelReranker:
    device = device_of(args)
    from towernmt.predict.model_reranker import Judge, ModelReranker  # imports sacreBLEU

    log_to_stderr()
    log_without_tensorpack()
    return ModelReranker([
        Judge(open_scorer(run, engine=args.engine, device=device, batch_tokens=args.batch_tokens,
                          trust_code=args.trust_code), direction, weight)
        for direction, run, weight in _named_models(args)], args.length_penalty)


def _tuned(args: argparse.Namespace, judges: ModelReranker,
           lists: list[list[Hypothesis]]) -> Iterator[list[Hypothesis]]:
    """Yield the translations reranked with the best weights, which are printed to standard error.

    Raises:
        DataError: the numbers of lines of the source, the references and the n-best lists differ.
    """
    from towernmt.predict.model_reranker import tune

    source, references = read_text(args.source), read_text(args.tune)
    check_has_text([(args.tune, references)], "pass the reference translations of --source as --tune.")
    for file, lines in ((args.source, source), (args.tune, references)):
        if len(lines) != len(lists):
            raise DataError(f"{file} has {len(lines)} lines, but there are n-best lists of {len(lists)} lines: pass "
                            "the text that was translated as --source, and its reference translations as --tune.")
    judged = judges.judged(source, lists)
    tuned = tune(judged, references)
    options = [f"{_OPTIONS[direction]} {run}:{weight:.2f}" for (direction, run, _), weight in zip(
        _named_models(args), tuned.weights[1:], strict=True)]
    print(f"BLEU {tuned.bleu_of_search:.2f} before, {tuned.bleu:.2f} with {' '.join(options)} "
          f"--length-penalty {args.length_penalty:g}", file=sys.stderr)
    for line in judged:
        yield line.ordered(tuned.weights)


def _named_models(args: argparse.Namespace) -> list[tuple[str, str, float]]:
    """Return direction, run and weight of each model."""
    models = {"reverse": args.reverse_model, "right-to-left": args.right_to_left_model, "forward": args.forward_model}
    return [(direction, *run_and_weight(text, _OPTIONS[direction])) for direction, texts in models.items()
            for text in texts]


def _check(args: argparse.Namespace) -> None:
    models = _named_models(args)
    if bool(models) == bool(args.mbr):
        raise SettingsError("The reranker is missing: pass --mbr, or models such as --reverse-model RUN.")
    if args.mbr and args.tune:
        raise SettingsError("--tune searches for the weights of models, and --mbr has no weights: leave one of them "
                            "out.")
    if args.mbr and (unused := specified_options(args, add_rerank_arguments, names=_OF_MODELS)):
        raise SettingsError(f"{' and '.join(unused)}: only models depend on this, and --mbr compares the translations "
                            "with each other: leave it out.")
    if models and not args.source:
        raise SettingsError("Models need the source text: pass it as --source.")
    if args.n_best is not None and args.n_best < 1:
        raise SettingsError(f"--n-best {args.n_best}: pass 1 or more.")
    if args.scores and args.n_best:
        raise SettingsError("--n-best already writes scores: leave out --scores.")
