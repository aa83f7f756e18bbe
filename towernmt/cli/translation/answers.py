"""What `towernmt translate` writes for each line, as text or as JSON, and what makes its output what it is."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt import __version__
from towernmt.cli.translation.alignment_output import BEHIND, AlignmentOutput
from towernmt.cli.translation.line_options import files_of_lines
from towernmt.predict.hypotheses import Hypothesis
from towernmt.predict.lines.journal import fingerprint
from towernmt.predict.lines.json_lines import read_requests, written
from towernmt.predict.lines.options import LineOptions

if TYPE_CHECKING:
    from towernmt.predict.line_translator import LineTranslator


class InputLines(NamedTuple):
    """Lines that are translated.

    Attributes:
        lines: of text, or JSON.
        name: where they come from.
        first: the number of the first one there.
        options: what each asks for, by files beside; None: nothing but what all ask for.
        before: lines of other inputs that are counted before them, where numbers are written.
    """

    lines: Iterable[bytes]
    name: str
    first: int
    options: Iterator[LineOptions] | None
    before: int = 0


def text_answers(args: argparse.Namespace, translator: LineTranslator, given: InputLines,
                 alignments: AlignmentOutput) -> Iterator[list[str]]:
    """For each line of text, the lines to write.

    Args:
        alignments: what writes them.
    """
    stream = alignments.watch(translator.translate_stream(
        given.lines, given.name, options=given.options, first=given.first), translator)
    behind = alignments.behind
    for number, hypotheses in enumerate(stream, start=given.before + given.first - 1):
        yield as_text(number, hypotheses, args.n_best, args.scores, behind)


def json_answers(args: argparse.Namespace, translator: LineTranslator, given: InputLines,
                 alignments: AlignmentOutput) -> Iterator[list[str]]:
    """For each JSON object, the one to write; arguments as for `text_answers`."""
    texts, asked, requests = tee(read_requests(given.lines, given.name, given.first), 3)
    options: Iterator[LineOptions] = (request.options for request in asked)
    if given.options is not None:
        options = (own.over(other) for own, other in zip(options, given.options, strict=False))
    stream = alignments.watch(translator.translate_stream(
        (request.text for request in texts), given.name, options=options, first=given.first), translator)
    for number, (translation, request) in enumerate(zip(stream, requests, strict=False),
                                                    start=given.before + given.first):
        links = translation[0].links(args.alignment_threshold) if args.alignments == BEHIND else None
        count = request.options.n_best or args.n_best or 1
        yield [written(number, request, translation, translator.target_vocabulary, count, links,
                       alignments.as_json(translation[0], translator))]


_ELSEWHERE = ("input", "output", "resume", "command", "workers", "ray", "work_directory")
"""Arguments that make no difference to what is written for a line."""


def task_of(args: argparse.Namespace, translator: LineTranslator) -> dict[str, Any]:
    """What makes the output what it is, but for the input: what must be the same to go on with it."""
    given = {name: value for name, value in vars(args).items()
             if name not in _ELSEWHERE and _is_plain(value)}
    indices = [Path(f"{prefix}.index") for prefix in translator.checkpoint.split(" + ")]     # of an ensemble, several
    weights = [fingerprint(index) for index in indices if index.is_file()]
    files = {f"the content of {name}": fingerprint(Path(file)) for name, file in files_of_lines(args).items() if file}
    return {"towernmt": __version__, "checkpoint": translator.checkpoint, "the weights of checkpoint": weights,
            **{f"--{name.replace('_', '-')}": value for name, value in given.items()}, **files,
            **{f"search.{name}": value for name, value in dataclasses.asdict(translator.search).items()}}


def as_text(number: int, hypotheses: Sequence[Hypothesis], n_best: int | None, scores: bool,
            behind: Callable[[Hypothesis], str] | None = None) -> list[str]:
    """The lines to write for a line.

    Args:
        number: of the line, from 0.
        n_best: write so many, as Moses does; None: the best one.
        scores: write the score before the best one.
        behind: what stands behind each translation on its line.
    """
    lines = []
    for hypothesis in hypotheses[:n_best or 1]:
        line = f"{hypothesis.score:.4f}\t{hypothesis.text}" if scores else hypothesis.text
        if n_best:
            line = f"{number} ||| {hypothesis.text} ||| {hypothesis.score:.4f}"
        lines.append(line + (behind(hypothesis) if behind else ""))
    return lines


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float)) or (
        isinstance(value, list) and all(map(_is_plain, value)))
