"""The output of `towernmt translate` for each line: text or JSON, word alignments, and pictures of attention.

The fingerprint of a task contains all options that determine the output.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from towernmt import __version__
from towernmt.checkpoint.package_reader import is_package
from towernmt.cli.request_options import files_of_lines
from towernmt.core.errors import SettingsError
from towernmt.predict.attention_plot import Picture, Pictures, token_picture
from towernmt.predict.lines.hypotheses import Hypothesis, WordAlignment, token_alignment
from towernmt.predict.lines.line_options import LineOptions, json_answer, read_requests
from towernmt.predict.lines.output_file import output_file
from towernmt.predict.lines.resumable import ENGINE, file_fingerprint, weight_fingerprints

if TYPE_CHECKING:
    from towernmt.predict.line_translator import LineTranslator

T = TypeVar("T", bound=list[Hypothesis])
APPENDED = "-"
"""Instead of the name of a file: append the word alignment to each translation."""
WORDS, TOKENS = "words", "tokens"
"""Units of the attention that `--attention` writes."""


def add_alignment_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of word alignments and attention."""
    group = parser.add_argument_group("what the model saw")
    group.add_argument("--alignments", metavar="FILE",
                       help="write the word alignment of each translation, `source word-target word` from 0, one a "
                            "line; `-` writes ` ||| alignment` after each translation")
    group.add_argument("--alignment-threshold", type=float, metavar="WEIGHT",
                       help="align all words with at least this attention, 0 to 1 (default: each target word with the "
                            "source word of the most attention)")
    group.add_argument("--attention", nargs="?", const=WORDS, choices=(WORDS, TOKENS), metavar="WORDS|TOKENS",
                       help="with --json: the attention of each word (default) or token of the best translation on "
                            "those of the source")
    group.add_argument("--plot", metavar="FILE",
                       help="draw the attention of each line's best translation, as FILE.png or FILE.svg; for several "
                            "lines, as FILE-1.png and so on (needs towernmt[plot])")
    group.add_argument("--plot-tokens", action="store_true", help="draw the tokens of the vocabulary, not words")


class AlignmentOutput:
    """Writes the word alignments of a stream of translations.

    Attributes:
        needs_attention: whether the options request word alignments, for which the search must return its attention.
        paths: files of word alignments that the writer of the translations opens, because translations have a file.
    """

    def __init__(self, args: argparse.Namespace, files: Sequence[BinaryIO], pictures: Pictures | None) -> None:
        """Derive from the options what is written, and where.

        Args:
            args: parsed options.
            files: opened files of word alignments.
            pictures: draws attention; None without --plot.
        """
        self._threshold, self._n_best = args.alignment_threshold, args.n_best or 1
        self._appended, self._files = args.alignments == APPENDED, list(files)
        self._pictures, self._tokens, self._attention_unit = pictures, args.plot_tokens, args.attention
        self.needs_attention = bool(args.alignments or pictures or args.attention)
        self.paths = [] if self._appended or self._files or not args.alignments else [args.alignments]

    def write_to(self, files: Sequence[BinaryIO]) -> None:
        """Write word alignments to files that were opened for `paths`."""
        self._files += files

    @property
    def appended(self) -> Callable[[Hypothesis], str] | None:
        """Function that returns the text to append to a translation; None if nothing is appended."""
        return (lambda hypothesis: " ||| " + self._links(hypothesis)) if self._appended else None

    def watch(self, translations: Iterable[T], translator: LineTranslator) -> Iterator[T]:
        """Yield the translations of lines unchanged, and write their word alignments."""
        for hypotheses in translations:
            for file in self._files:
                file.writelines(self._links(hypothesis).encode() + b"\n" for hypothesis in hypotheses[:self._n_best])
                file.flush()
            if self._pictures:
                self._pictures.add(self._picture(hypotheses[0], translator))
            yield hypotheses

    def as_json(self, hypothesis: Hypothesis, translator: LineTranslator) -> dict[str, Any] | None:
        """Return the attention of a translation; None if it is not requested."""
        if self._attention_unit is None:
            return None
        alignment = hypothesis.alignment
        if self._attention_unit == TOKENS and hypothesis.details:
            alignment = token_alignment(hypothesis.details, translator.source_vocabulary, translator.target_vocabulary)
        return (alignment or WordAlignment([], [], np.zeros([0, 0], np.float32))).as_json()

    def _links(self, hypothesis: Hypothesis) -> str:
        return hypothesis.alignment.pharaoh(self._threshold) if hypothesis.alignment else ""

    def _picture(self, hypothesis: Hypothesis, translator: LineTranslator) -> Picture | None:
        details, alignment = hypothesis.details, hypothesis.alignment
        if details is None or alignment is None or (attention := details.attention) is None:
            return None
        if self._tokens:
            return token_picture(attention, translator.source_vocabulary, details.source_ids,
                                 translator.target_vocabulary, details.ids)
        return Picture(alignment.weights, alignment.target, alignment.source)


def check_alignment_options(args: argparse.Namespace) -> None:
    """Refuse options that exclude or require each other.

    Raises:
        SettingsError: names the options.
    """
    threshold = args.alignment_threshold
    if threshold is not None and not 0 < threshold <= 1:
        raise SettingsError(f"--alignment-threshold {threshold}: pass a number above 0 and at most 1.")
    if threshold is not None and not args.alignments:
        raise SettingsError("--alignment-threshold needs --alignments: pass --alignments FILE, too.")
    if args.attention and not args.json:
        raise SettingsError("--attention needs --json: pass it, too.")
    if args.plot_tokens and not args.plot:
        raise SettingsError("--plot-tokens needs --plot: pass --plot FILE, too.")


@contextmanager
def alignment_output(args: argparse.Namespace) -> Iterator[AlignmentOutput]:
    """Return the output that the options request.

    If translations have a file, its writer opens the file of word alignments (`paths`).

    Raises:
        SettingsError: options exclude or require each other, or Matplotlib is missing.
    """
    check_alignment_options(args)
    with ExitStack() as stack:
        files = []
        if args.alignments not in (None, APPENDED):
            if not args.output:
                files.append(stack.enter_context(output_file(args.alignments)))
        pictures = stack.enter_context(Pictures(args.plot)) if args.plot else None
        yield AlignmentOutput(args, files, pictures)


class LinesToTranslate(NamedTuple):
    """The lines of the input, and the options of each.

    Attributes:
        lines: lines of text or JSON.
        name: name of the input.
        first: number of the first line in the input.
        options: requests of each line, from the files of options; None without such files.
        before: number of lines in previous inputs, which the written line numbers include.
    """

    lines: Iterable[bytes]
    name: str
    first: int
    options: Iterator[LineOptions] | None
    before: int = 0


def text_answers(args: argparse.Namespace, translator: LineTranslator, inputs: LinesToTranslate,
                 alignments: AlignmentOutput) -> Iterator[list[str]]:
    """Yield the output lines for each line of text.

    Args:
        args: parsed options.
        translator: translator of the lines.
        inputs: lines to translate.
        alignments: writes the word alignments.
    """
    stream = alignments.watch(translator.translate_stream(
        inputs.lines, inputs.name, options=inputs.options, first=inputs.first), translator)
    appended = alignments.appended
    for number, hypotheses in enumerate(stream, start=inputs.before + inputs.first - 1):
        yield as_text(number, hypotheses, args.n_best, args.scores, appended)


def json_answers(args: argparse.Namespace, translator: LineTranslator, inputs: LinesToTranslate,
                 alignments: AlignmentOutput) -> Iterator[list[str]]:
    """Yield the output line for each JSON object; the arguments are those of `text_answers`."""
    lines, requests = tee(read_requests(inputs.lines, inputs.name, inputs.first))
    stream = alignments.watch(translator.translate_stream(
        lines, inputs.name, options=inputs.options, first=inputs.first), translator)
    for number, (translation, request) in enumerate(zip(stream, requests, strict=False),
                                                    start=inputs.before + inputs.first):
        # A line without alignment, such as a blank one, has the same fields in its answer as all others.
        links = (translation[0].links(args.alignment_threshold) or []) if args.alignments == APPENDED else None
        count = request.options.n_best or request.options.search.get("n_best") or args.n_best or 1
        yield [json_answer(number, request, translation, translator.target_vocabulary, count, links,
                       alignments.as_json(translation[0], translator), args.token_scores)]


_WITHOUT_EFFECT = ("input", "output", "resume", "command", "workers", "ray", "work_directory", "engine")
"""Options that do not change the output for a line; `LineTranslator.engine` names the engine."""


def task_of(args: argparse.Namespace, translator: LineTranslator) -> dict[str, Any]:
    """Return everything except the input that determines the output; a translation resumes only if it is equal."""
    option_values = {name: value for name, value in vars(args).items()
                     if name not in _WITHOUT_EFFECT and _is_plain(value)}
    # The path of the checkpoint of a package contains a checksum of the package.
    weights = [] if any(map(is_package, args.model or ())) else weight_fingerprints(translator.checkpoint)
    files = {f"the content of {option}": file_fingerprint(file)
             for option, file in _files_of_task(args, translator).items()}
    return {"towernmt": __version__, ENGINE: translator.engine, "checkpoint": translator.checkpoint,
            "the weights of checkpoint": weights,
            **{f"--{name.replace('_', '-')}": value for name, value in option_values.items()}, **files,
            **{f"search.{name}": value for name, value in dataclasses.asdict(translator.search).items()}}


def _files_of_task(args: argparse.Namespace, translator: LineTranslator) -> dict[str, Path]:
    """Return the regular files whose content determines the output, by option."""
    names = {**files_of_lines(args), "--replace-unknown": args.replace_unknown,
             "--shortlist": translator.search.shortlist, "--mbr": (args.mbr or "").rpartition(":")[0]}
    files = {option: Path(name) for option, name in names.items() if isinstance(name, str)}
    return {option: file for option, file in files.items() if file.is_file()}


def as_text(number: int, hypotheses: Sequence[Hypothesis], n_best: int | None, scores: bool,
            appended: Callable[[Hypothesis], str] | None = None) -> list[str]:
    """Return the output lines for an input line.

    Args:
        number: number of the input line, from 0.
        hypotheses: translations of the line, best first.
        n_best: number of translations to write, in the format of Moses; None for the best one only.
        scores: whether to write the score before the best translation.
        appended: returns the text after a translation on its line.
    """
    lines = []
    for hypothesis in hypotheses[:n_best or 1]:
        line = f"{hypothesis.score:.4f}\t{hypothesis.text}" if scores else hypothesis.text
        if n_best:
            line = f"{number} ||| {hypothesis.text} ||| {hypothesis.score:.4f}"
        lines.append(line + (appended(hypothesis) if appended else ""))
    return lines


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float)) or (
        isinstance(value, list) and all(map(_is_plain, value)))
