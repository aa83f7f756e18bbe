"""Compare the translations of CTranslate2 with those of TensorFlow's graph for each kind of request.

    python benchmarks/engine_options.py --model runs/de-en --text test.de --reference test.en --lines 500

Each request is one that `--engine auto` passes to CTranslate2. Both engines translate the same lines in float32 with
one thread, without the steps for special lines. Prints a Markdown table: for each request, the lines whose best
translation differs; the largest difference between the scores of two such translations; the lines in which any of the
hypotheses differs; and the processor seconds of both engines. The numbers of the lines follow the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from modifiers import ALL_DISABLED

from towernmt.core.standard_streams import log_to_stderr
from towernmt.interop.ctranslate2_engine import CTranslate2Translator
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import PLAIN, LineOptions
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.search.search_settings import StreamSettings
from towernmt.predict.translator import Translator

COMMON_WORDS = ("you", "not", "have", "me", "that", "do", "in", "of", "it", "this")
"""Words that the translations must not contain, in the request with phrases to avoid."""


class Request(NamedTuple):
    """A kind of request.

    Attributes:
        name: name in the table.
        search: search settings.
        options: maps a reference to the options of its line.
        details: whether log-probabilities and attention are returned.
    """

    name: str
    search: dict[str, Any] = {}
    options: Callable[[str, int], LineOptions] = lambda reference, number: PLAIN
    details: bool = False


def first_words(reference: str, number: int) -> LineOptions:
    """Return options with the first one to three words of a reference as the prefix."""
    return LineOptions(prefix=" ".join(reference.split()[:1 + number % 3]))


def common_words(reference: str, number: int) -> LineOptions:
    """Return options with common words as phrases to avoid."""
    return LineOptions(avoid=COMMON_WORDS)


REQUESTS = (
    Request("no option", {"n_best": 3}),
    Request("attention and log-probabilities of tokens", {"n_best": 3}, details=True),
    Request("prefix of 1 to 3 words of the reference", {"n_best": 3}, first_words),
    Request("`beam_size=1`", {"beam_size": 1}),
    Request("`beam_size=8`", {"beam_size": 8, "n_best": 3}),
    Request("`length_normalization=average`", {"length_normalization": "average", "n_best": 3}),
    Request("`length_penalty=0`", {"length_penalty": 0.0, "n_best": 3}),
    Request("`length_penalty=1`", {"length_penalty": 1.0, "n_best": 3}),
    Request("`length_penalty=2`", {"length_penalty": 2.0, "n_best": 3}),
    Request("`word_reward=0.5`", {"word_reward": 0.5, "n_best": 3}),
    Request("`stopping=none`", {"stopping": "none", "n_best": 3}),
    Request("`stopping=first`, `length_penalty=0`", {"stopping": "first", "length_penalty": 0.0, "n_best": 3}),
    Request("`stopping=first`, `length_penalty=0`, `patience=2`",
            {"stopping": "first", "length_penalty": 0.0, "patience": 2.0, "n_best": 3}),
    Request("`max_length_factor=0.5`, `max_length_constant=2`",
            {"max_length_factor": 0.5, "max_length_constant": 2, "n_best": 3}),
    Request("`max_tokens=8`", {"max_tokens": 8, "n_best": 3}),
    Request("`beam_size=1`, `min_length_factor=1`", {"beam_size": 1, "min_length_factor": 1.0}),
    Request("`beam_size=1`, `min_length=12`", {"beam_size": 1, "min_length": 12}),
    Request("`beam_size=1`, `no_repeat_ngram=2`", {"beam_size": 1, "no_repeat_ngram": 2}),
    Request("`beam_size=1`, 10 common words to avoid", {"beam_size": 1}, common_words),
)


def main() -> None:
    """Print a row for each request."""
    options = parser().parse_args()
    log_to_stderr()
    lines, references = (read_text(file)[:options.lines] for file in (options.text, options.reference))
    print("| request | best differs | largest difference of their scores | n-best differs | CPU seconds of CTranslate2 "
          "| of the graph |\n|---|--:|--:|--:|--:|--:|")
    differing: dict[str, list[int]] = {}
    for request in REQUESTS[:options.requests]:
        arguments: dict[str, Any] = {"stream": StreamSettings(threads=1), "special_lines": ALL_DISABLED,
                                     **request.search, "log_probs": request.details, "attention": request.details}
        line_options = [request.options(reference, number) for number, reference in enumerate(references)]
        ours, our_seconds = translations(Translator(options.model, device="cpu", engine="graph", **arguments), lines,
                                         line_options)
        theirs, their_seconds = translations(CTranslate2Translator(
            options.model, device="cpu", precision="float32", **arguments), lines, line_options)
        pairs = list(enumerate(zip(ours, theirs, strict=True), start=1))
        differing[request.name] = best = [number for number, (a, b) in pairs if a[0].text != b[0].text]
        n_best = [number for number, (a, b) in pairs if [h.text for h in a] != [h.text for h in b]]
        gap = max((abs(a[0].score - b[0].score) for number, (a, b) in pairs if number in best), default=0.0)
        print(f"| {request.name} | {len(best)} | {gap:.1g} | {len(n_best)} | {their_seconds:.1f} | {our_seconds:.1f} |",
              flush=True)
    for name, numbers in differing.items():
        if numbers:
            print(f"{name}: lines {', '.join(map(str, numbers))}")


def translations(translator: LineTranslator, lines: Sequence[str], options: Sequence[LineOptions]
                 ) -> tuple[list[Translation], float]:
    """Return the translations of the lines and the processor seconds, without those of a first line."""
    translator.translate_nbest(lines[:1], options=options[:1])
    begin = time.process_time()
    found = translator.translate_nbest(lines, options=options)
    return found, time.process_time() - begin


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a run or a package of a Transformer")
    parser.add_argument("--text", required=True, help="file with one sentence per line")
    parser.add_argument("--reference", required=True, help="its translation, for the prefixes")
    parser.add_argument("--lines", type=int, default=500, help="number of lines (default: %(default)s)")
    parser.add_argument("--requests", type=int, help="number of requests to compare (default: all)")
    return parser


if __name__ == "__main__":
    main()
