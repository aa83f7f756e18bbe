"""`towernmt translate --document`: translate files and write them in the same format."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from towernmt.checkpoint.package_reader import is_package
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.cli.request_options import files_of_each_line, files_of_lines
from towernmt.cli.translation_options import protection_of
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.language_codes import check_code
from towernmt.documents.formats.document_formats import (
    SUFFIXES,
    file_content,
    have_same_format,
    naming_document,
    opener_of,
)
from towernmt.documents.segments import Document
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.lines.line_options import LineOptions, translated_if_writable
from towernmt.predict.lines.output_file import check_apart, output_file
from towernmt.predict.ranges.outputs import NAME_PLACEHOLDER, check_writable_output

if TYPE_CHECKING:
    from towernmt.predict.line_translator import LineTranslator

_OF_LINES = ("input", "n_best", "scores", "json", "token_scores", "resume", "window", "alignments",
             "alignment_threshold", "attention", "plot", "plot_tokens", "workers", "ray", "work_directory")
"""Options that are about lines, by their names."""


def add_document_options(parser: argparse.ArgumentParser) -> None:
    """Add `--document` and its further option."""
    group = parser.add_argument_group("documents")
    group.add_argument("--document", metavar="FILE", nargs="+",
                       help=f"files that keep their format: {', '.join(SUFFIXES)}; --output is a file, or for several "
                            "documents a folder (`out/`) or names derived from theirs (`out/en-{name}`)")
    group.add_argument("--language", metavar="CODE",
                       help="the documents' language, for its rules of sentence segmentation (default: the language of "
                            "a package, or else rules that many languages share)")


def translate_documents(args: argparse.Namespace, make: Callable[[bool], LineTranslator]) -> int:
    """Translate documents, and return the exit status.

    Args:
        args: parsed options.
        make: makes the translator, with or without word alignments, if the model has them.

    Raises:
        SettingsError: options that exclude each other.
        DataError: a document cannot be read or written.
    """
    from towernmt.documents.translation import SplitSegments  # compiles many patterns, which takes time

    _check(args)
    outputs = _outputs(args)
    protection = protection_of(args)
    documents = [_opened(name) for name in args.document]
    language = args.language or _language(args.model) or "en"
    splits = [SplitSegments(document.segments, language, protection) for document in documents]
    translator = make(not all(split.is_plain for split in splits))
    for name, document, split, output in zip(args.document, documents, splits, outputs, strict=True):
        sentences = _DocumentSentences(translator, name)
        translated = split.translated(sentences.plain, sentences.forced)
        with naming_document(name):
            content = document.written(translated)
        with output_file(output) as file:
            file.write(content)
        sentences.progress.end(output)
    return 0


class _DocumentSentences:
    """Translations of the sentences of a document."""

    def __init__(self, translator: LineTranslator, name: str) -> None:
        self._translator, self._name, self.progress = translator, name, _Progress(name)

    def plain(self, sentences: Sequence[str]) -> list[Hypothesis]:
        """Return the best translation of each sentence."""
        self.progress.total = self.progress.sentences = len(sentences)
        return self._translate(sentences, None)

    def forced(self, sentences: Sequence[str], words: Sequence[Sequence[str]]) -> list[Hypothesis | None]:
        """Return the best translation of each sentence with lexical constraints; None if they cannot be written."""
        options = [LineOptions(constraints=phrases) for phrases in words]

        def translate(indices: list[int]) -> list[Hypothesis]:
            self.progress.total += len(indices)
            return self._translate([sentences[index] for index in indices], [options[index] for index in indices])

        return translated_if_writable(self._translator.check, options, translate)

    def _translate(self, sentences: Sequence[str], options: Sequence[LineOptions] | None) -> list[Hypothesis]:
        hypotheses = []
        for translation in self._translator.translate_stream(sentences, self._name, options=options):
            hypotheses.append(translation[0])
            self.progress.one_more()
        return hypotheses


class _Progress:
    """Progress of a document on stderr: continuously on a terminal, and in one line at the end."""

    def __init__(self, name: str) -> None:
        self._name, self._start_time, self._reported, self._count = name, time.monotonic(), 0.0, 0
        self.total = self.sentences = 0

    def one_more(self) -> None:
        """Count a translated sentence."""
        self._count += 1
        if sys.stderr.isatty() and time.monotonic() > self._reported + 0.2:
            self._reported = time.monotonic()
            print(f"\r{self._name}: {self._count} of {self.total} sentences", end="", file=sys.stderr, flush=True)

    def end(self, output: str) -> None:
        """Report that the document is written."""
        begin = "\r" if sys.stderr.isatty() else ""
        seconds = time.monotonic() - self._start_time
        print(f"{begin}{self._name}: {self.sentences} sentences to {output} in {seconds:.1f} s",
              file=sys.stderr)


def _check(args: argparse.Namespace) -> None:
    for option in _OF_LINES:
        if getattr(args, option) not in (None, False):
            raise SettingsError(f"--{option.replace('_', '-')} cannot be used with --document: leave one of them out.")
    for option, file in files_of_each_line(args).items():
        raise SettingsError(f"{option} {file} has one line per input line, and cannot be used with --document: leave "
                            "it out.")
    if args.language is not None:
        check_code(args.language, "--language")


def _outputs(args: argparse.Namespace) -> list[str]:
    """Return the output of each document.

    Raises:
        SettingsError: an output is undefined, belongs to two documents, or has another format.
        DataError: an output is also an input, or cannot be written.
    """
    if not args.output:
        raise SettingsError("--document needs --output: pass a file or a directory.")
    pattern = args.output
    if NAME_PLACEHOLDER not in pattern and (pattern.endswith("/") or Path(pattern).is_dir()):
        pattern = f"{pattern.rstrip('/')}/{NAME_PLACEHOLDER}"
    if len(args.document) > 1 and NAME_PLACEHOLDER not in pattern:
        raise SettingsError(f"--output {args.output}: for {len(args.document)} documents, pass a directory such as "
                            f"out/, or derived names such as out/en-{NAME_PLACEHOLDER}.")
    outputs = [pattern.replace(NAME_PLACEHOLDER, Path(name).name) for name in args.document]
    for name, output in zip(args.document, outputs, strict=True):
        if outputs.count(output) > 1:
            raise SettingsError(f"{name} and another document would both be written to {output}: translate them one "
                                "after the other, with different outputs.")
        if not have_same_format(output, name):
            raise SettingsError(f"--output {output}: {name} keeps its format: pass an output with the same suffix.")
        check_apart(("--output", output), {"--document": args.document, **files_of_lines(args)})
        check_writable_output(output)
    return outputs


def _opened(name: str) -> Document:
    """Return the segments and marks of a document.

    Raises:
        DataError: the file cannot be read.
    """
    with naming_document(name):
        return opener_of(name)(file_content(name))


def _language(models: Sequence[str]) -> str | None:
    """Return the source language of the first package."""
    languages = next((PackagedRun(model).languages for model in models if is_package(model)), None)
    return None if languages is None else languages[0]
