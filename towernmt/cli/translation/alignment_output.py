"""The options by which `towernmt translate` writes what the model saw: links of words, and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from towernmt.core.errors import SettingsError
from towernmt.predict.alignment.plot import Picture, Pictures, token_picture
from towernmt.predict.hypotheses import Hypothesis
from towernmt.predict.output_file import check_apart, output_file

if TYPE_CHECKING:
    from towernmt.predict.translator import Translator

T = TypeVar("T", bound=list[Hypothesis])
BEHIND = "-"
"""In place of a file: write the links behind each translation."""


def add_alignment_options(parser: argparse.ArgumentParser) -> None:
    """The options of alignments."""
    group = parser.add_argument_group("what the model saw")
    group.add_argument("--alignments", metavar="FILE",
                       help="write the links of the words of each translation, `source word-target word` from 0, one "
                            "line each; `-` writes ` ||| links` behind each translation")
    group.add_argument("--alignment-threshold", type=float, metavar="WEIGHT",
                       help="link all words with so much attention, 0 to 1 (default: each target word to the source "
                            "word with the most)")
    group.add_argument("--plot", metavar="FILE",
                       help="draw the attention of each line's best translation, as FILE.png or FILE.svg; of several "
                            "lines, as FILE-1.png and so on (needs towernmt[plot])")
    group.add_argument("--plot-tokens", action="store_true", help="draw the tokens of the vocabulary, not words")


class AlignmentOutput:
    """Writes alignments of translations that pass by.

    Attributes:
        wanted: whether anything is to be written, for which the search must give its attention.
    """

    def __init__(self, threshold: float | None, n_best: int | None, behind: bool, file: BinaryIO | None,
                 pictures: Pictures | None, tokens: bool) -> None:
        self._threshold, self._n_best, self._behind, self._file = threshold, n_best or 1, behind, file
        self._pictures, self._tokens = pictures, tokens
        self.wanted = behind or file is not None or pictures is not None

    @property
    def behind(self) -> Callable[[Hypothesis], str] | None:
        """What stands behind a translation on its line; None for nothing."""
        return (lambda hypothesis: " ||| " + self._links(hypothesis)) if self._behind else None

    def watch(self, translations: Iterable[T], translator: Translator) -> Iterator[T]:
        """The translations of lines, as they are, while their alignments are written."""
        for hypotheses in translations:
            if self._file:
                self._file.writelines(self._links(one).encode() + b"\n" for one in hypotheses[:self._n_best])
                self._file.flush()
            if self._pictures:
                self._pictures.add(self._picture(hypotheses[0], translator))
            yield hypotheses

    def _links(self, hypothesis: Hypothesis) -> str:
        return hypothesis.alignment.pharaoh(self._threshold) if hypothesis.alignment else ""

    def _picture(self, hypothesis: Hypothesis, translator: Translator) -> Picture | None:
        details, alignment = hypothesis.details, hypothesis.alignment
        if details is None or alignment is None or details.attention is None:
            return None
        if self._tokens:
            return token_picture(details.attention, translator.source_vocabulary, details.source_ids,
                                 translator.target_vocabulary, details.ids)
        return Picture(alignment.weights, alignment.target, alignment.source)


@contextmanager
def alignment_output(args: argparse.Namespace) -> Iterator[AlignmentOutput]:
    """What the options ask for; the file takes its name when all is written.

    Raises:
        SettingsError: options that do not fit each other, or Matplotlib is missing.
    """
    threshold = args.alignment_threshold
    if threshold is not None and not 0 < threshold <= 1:
        raise SettingsError(f"--alignment-threshold {threshold}: choose a number above 0, and at most 1.")
    if threshold is not None and not args.alignments:
        raise SettingsError("--alignment-threshold says which links are written: pass --alignments FILE, too.")
    if args.plot_tokens and not args.plot:
        raise SettingsError("--plot-tokens says what is drawn: pass --plot FILE, too.")
    behind = args.alignments == BEHIND
    with ExitStack() as files:
        file = None
        if args.alignments and not behind:
            check_apart(("--alignments", args.alignments), {"--input": args.input}, args.model)
            if args.output and args.alignments == args.output:
                raise SettingsError(f"--alignments {args.alignments} is --output, too: choose another file.")
            file = files.enter_context(output_file(args.alignments))
        pictures = files.enter_context(Pictures(args.plot)) if args.plot else None
        yield AlignmentOutput(threshold, args.n_best, behind, file, pictures, args.plot_tokens)
