"""The options by which `towernmt translate` writes what the model saw: links of words, and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.predict.alignment.of_lines import token_alignment
from towernmt.predict.alignment.plot import Picture, Pictures, token_picture
from towernmt.predict.alignment.word_alignment import WordAlignment
from towernmt.predict.hypotheses import Hypothesis
from towernmt.predict.output_file import check_apart, output_file

if TYPE_CHECKING:
    from towernmt.predict.line_translator import LineTranslator

T = TypeVar("T", bound=list[Hypothesis])
BEHIND = "-"
"""In place of a file: write the links behind each translation."""
WORDS, TOKENS = "words", "tokens"
"""What the attention that is written is of."""


def add_alignment_options(parser: argparse.ArgumentParser) -> None:
    """The options of alignments."""
    group = parser.add_argument_group("what the model saw")
    group.add_argument("--alignments", metavar="FILE",
                       help="write the links of the words of each translation, `source word-target word` from 0, one "
                            "line each; `-` writes ` ||| links` behind each translation")
    group.add_argument("--alignment-threshold", type=float, metavar="WEIGHT",
                       help="link all words with so much attention, 0 to 1 (default: each target word to the source "
                            "word with the most)")
    group.add_argument("--attention", nargs="?", const=WORDS, choices=(WORDS, TOKENS), metavar="WORDS|TOKENS",
                       help="with --json: how much each word (default) or token of the best translation looks at each "
                            "of the source")
    group.add_argument("--plot", metavar="FILE",
                       help="draw the attention of each line's best translation, as FILE.png or FILE.svg; of several "
                            "lines, as FILE-1.png and so on (needs towernmt[plot])")
    group.add_argument("--plot-tokens", action="store_true", help="draw the tokens of the vocabulary, not words")


class AlignmentOutput:
    """Writes alignments of translations that pass by.

    Attributes:
        wanted: whether anything is to be written, for which the search must give its attention.
        paths: the files of links that are still to be opened, by who writes the translations to a file of their own.
    """

    def __init__(self, args: argparse.Namespace, files: Sequence[BinaryIO], pictures: Pictures | None) -> None:
        """
        Args:
            args: of the command line.
            files: where links go.
            pictures: what draws; None: nothing is drawn.
        """
        self._threshold, self._n_best = args.alignment_threshold, args.n_best or 1
        self._behind, self._files = args.alignments == BEHIND, list(files)
        self._pictures, self._tokens, self._written = pictures, args.plot_tokens, args.attention
        self.wanted = bool(args.alignments or pictures or args.attention)
        self.paths = [] if self._behind or self._files or not args.alignments else [args.alignments]

    def write_to(self, files: Sequence[BinaryIO]) -> None:
        """Write links to files that were opened for `paths`."""
        self._files += files

    @property
    def behind(self) -> Callable[[Hypothesis], str] | None:
        """What stands behind a translation on its line; None for nothing."""
        return (lambda hypothesis: " ||| " + self._links(hypothesis)) if self._behind else None

    def watch(self, translations: Iterable[T], translator: LineTranslator) -> Iterator[T]:
        """The translations of lines, as they are, while their alignments are written."""
        for hypotheses in translations:
            for file in self._files:
                file.writelines(self._links(one).encode() + b"\n" for one in hypotheses[:self._n_best])
                file.flush()
            if self._pictures:
                self._pictures.add(self._picture(hypotheses[0], translator))
            yield hypotheses

    def as_json(self, hypothesis: Hypothesis, translator: LineTranslator) -> dict[str, Any] | None:
        """The attention of a translation; None where it is not asked for."""
        if self._written is None:
            return None
        alignment = hypothesis.alignment
        if self._written == TOKENS and hypothesis.details:
            alignment = token_alignment(hypothesis.details, translator.source_vocabulary, translator.target_vocabulary)
        return (alignment or WordAlignment([], [], np.zeros([0, 0], np.float32))).as_json()

    def _links(self, hypothesis: Hypothesis) -> str:
        return hypothesis.alignment.pharaoh(self._threshold) if hypothesis.alignment else ""

    def _picture(self, hypothesis: Hypothesis, translator: LineTranslator) -> Picture | None:
        details, alignment = hypothesis.details, hypothesis.alignment
        if details is None or alignment is None or details.attention is None:
            return None
        if self._tokens:
            return token_picture(details.attention, translator.source_vocabulary, details.source_ids,
                                 translator.target_vocabulary, details.ids)
        return Picture(alignment.weights, alignment.target, alignment.source)


def check_alignment_options(args: argparse.Namespace) -> None:
    """Refuse options that do not fit each other.

    Raises:
        SettingsError: says which.
    """
    threshold = args.alignment_threshold
    if threshold is not None and not 0 < threshold <= 1:
        raise SettingsError(f"--alignment-threshold {threshold}: choose a number above 0, and at most 1.")
    if threshold is not None and not args.alignments:
        raise SettingsError("--alignment-threshold says which links are written: pass --alignments FILE, too.")
    if args.attention and not args.json:
        raise SettingsError("--attention needs --json, which has a place for it.")
    if args.plot_tokens and not args.plot:
        raise SettingsError("--plot-tokens says what is drawn: pass --plot FILE, too.")


@contextmanager
def alignment_output(args: argparse.Namespace) -> Iterator[AlignmentOutput]:
    """What the options ask for. Beside a file of translations, its writer opens that of the links (`paths`).

    Raises:
        SettingsError: options that do not fit each other, or Matplotlib is missing.
    """
    check_alignment_options(args)
    with ExitStack() as opened:
        files = []
        if args.alignments not in (None, BEHIND):
            check_apart(("--alignments", args.alignments), {"--input": args.input}, args.model)
            if args.output and args.alignments == args.output:
                raise SettingsError(f"--alignments {args.alignments} is --output, too: choose another file.")
            if not args.output:
                files.append(opened.enter_context(output_file(args.alignments)))
        pictures = opened.enter_context(Pictures(args.plot)) if args.plot else None
        yield AlignmentOutput(args, files, pictures)
