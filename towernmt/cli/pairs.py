"""`towernmt pairs`: turn translated documents into sentence pairs, or a reviewed table into its kept pairs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote

from towernmt.cli.specified_options import specified_options
from towernmt.cli.translator_options import add_model_arguments, make_translator
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.line_progress import StageProgress
from towernmt.dataflow.batches.training_data import is_prepared
from towernmt.dataflow.preparation.prepared_data import open_prepared
from towernmt.dataflow.sources.corpora import read_corpora
from towernmt.dataflow.text.language_codes import Direction, parse_direction, two_letter_code
from towernmt.dataflow.vocabulary.source_factors import SEPARATOR
from towernmt.documents.alignment.document_aligner import (
    KnownPairs,
    SentenceTexts,
    TranslateTexts,
    align_sentences,
    check_size,
)
from towernmt.documents.alignment.document_pairs import (
    DEFAULT_THRESHOLD,
    MIN_SENTENCES_TO_JUDGE,
    AlignedDocument,
    ScoredPair,
    is_unchanged_review,
    read_review,
    review_lines,
)
from towernmt.documents.alignment.document_sentences import READABLE_SUFFIXES, check_both_sides, document_sentences
from towernmt.documents.alignment.matched_files import (
    MatchedFiles,
    codes_of_names,
    listed_names,
    match_folders,
    unread_sentences,
)
from towernmt.documents.formats.document_formats import file_content, naming_document
from towernmt.documents.formats.text_files import decode_file
from towernmt.predict.lines.text_io import write_lines


def add_pairs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt pairs`."""
    parser.add_argument("source", metavar="PATH", nargs="?",
                        help=f"a document, or a folder of documents: {', '.join(READABLE_SUFFIXES)}")
    parser.add_argument("target", metavar="PATH", nargs="?",
                        help="its translation, or a folder with the same names apart from codes of languages")
    parser.add_argument("--output", metavar="FILE", required=True,
                        help="file of the pairs, `source<TAB>target<TAB>score`, for `towernmt prepare --source FILE`")
    parser.add_argument("--languages", metavar="PAIR",
                        help="languages of the documents, such as de-en, by whose rules text is split into sentences "
                             "(default: the codes in the names of the files, or else rules that many languages share)")
    parser.add_argument("--threshold", type=float, metavar="NUMBER",
                        help=f"lowest score of the pairs to keep, 0 to 1 (default: {DEFAULT_THRESHOLD})")
    parser.add_argument("--review", metavar="FILE",
                        help="also write a table of all pairs, and of sentences without a counterpart, for reviewers")
    parser.add_argument("--reviewed", metavar="FILE",
                        help="in place of documents: write the pairs that a table of --review keeps")
    parser.add_argument("--by-line", action="store_true",
                        help="take each line of a plain text, and each paragraph of other formats, as one sentence")
    parser.add_argument("--known", metavar="DATA", nargs="+", action="extend",
                        help="known sentence pairs (prepared data, a corpora.yaml, or the URI of a source), from which "
                             "word translations are also learned; for short documents")
    parser.add_argument("--no-text-check", action="store_true",
                        help="accept documents that seem to be no translations of each other")
    add_model_arguments(parser, required=False)


def run_pairs(args: argparse.Namespace) -> int:
    """Write the sentence pairs of documents, and return the exit status."""
    _check(args)
    if args.reviewed:
        with naming_document(args.reviewed):
            text, _ = decode_file(file_content(args.reviewed))
        pairs = list(read_review(text, args.reviewed))
        _write_pairs(args.output, pairs)
        print(f"{args.reviewed}: {len(pairs):,} pairs kept", file=sys.stderr)
        return 0
    progress = StageProgress(sys.stderr)
    try:
        return _write_pairs_of_documents(args, progress)
    finally:
        progress.end()


def _write_pairs_of_documents(args: argparse.Namespace, progress: StageProgress) -> int:
    """Write the sentence pairs of documents, show the progress, and return the exit status."""
    languages = parse_direction(args.languages) if args.languages else None
    threshold = DEFAULT_THRESHOLD if args.threshold is None else args.threshold
    known = KnownPairs(_read_known_pairs(args.known, progress) if args.known else ())
    report = _Report(progress, is_strict=not Path(args.source).is_dir())
    matched = _matched(args, languages, report)
    progress.begin("reading documents", "sentences")
    readable = list(_read_documents(matched, languages, args.by_line, report, progress))
    aligned = align_sentences([texts for _, texts in readable], known, _translate_of(args), progress
                              ) if readable else []
    candidates = [AlignedDocument(files, texts, alignment)
                  for (files, texts), alignment in zip(readable, aligned, strict=True)]
    documents = []
    for document in candidates:
        with report.of_document():
            if not args.no_text_check:
                document.check(_pairs_to_learn_from(document, candidates, known), progress)
            documents.append(document)
    if not documents:
        raise DataError(f"{args.source} and {args.target} have no documents from which pairs can be made; the lines "
                        "above name the reason for each.")
    _write_pairs(args.output, [pair for document in documents for pair in document.pairs(threshold)])
    if args.review:
        _check_review(args.review)      # again, since a reviewer may have changed it in the meantime
        write_lines(args.review, list(review_lines(
            row for document in documents for row in document.rows(threshold))))
    for document in documents:
        print(_summary(document, threshold), file=sys.stderr)
    return report.exit_status()


class _Report:
    """Problems of single documents: an error if only one document was passed, otherwise lines on standard error.

    Args:
        progress: the progress on standard error.
        is_strict: whether a problem ends the command.
    """

    def __init__(self, progress: StageProgress, is_strict: bool) -> None:
        self._progress, self._is_strict, self._left_out = progress, is_strict, 0

    @contextmanager
    def of_document(self) -> Iterator[None]:
        """Report a `DataError` of the block, and continue with the next document."""
        try:
            yield
        except DataError as error:
            if self._is_strict:
                raise
            self.leave_out(str(error))

    def leave_out(self, sentence: str, count: int = 1) -> None:
        """Print why documents are left out, and count them."""
        self._left_out += count
        self.warn(sentence)

    def warn(self, sentence: str) -> None:
        """Print a sentence about a document."""
        self._progress.break_line()
        print(f"towernmt: {sentence}", file=sys.stderr)

    def exit_status(self) -> int:
        """Return 1 if documents were left out, and print how many."""
        if self._left_out:
            self.warn(f"{self._left_out} {'document was' if self._left_out == 1 else 'documents were'} left out; the "
                      "pairs of the others are written.")
        return int(self._left_out > 0)


def _check(args: argparse.Namespace) -> None:
    if bool(args.reviewed) == bool(args.target) or args.reviewed and args.source:
        raise SettingsError("Pass a document and its translation, two folders, or a table as --reviewed.")
    if args.reviewed:
        if options := ", ".join(specified_options(args, add_pairs_arguments, excluded=("output", "reviewed"))):
            raise SettingsError(f"--reviewed only writes the kept pairs of a table: leave out {options}.")
        return
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise SettingsError(f"--threshold {args.threshold}: pass a number from 0 to 1.")
    if not args.model and (options := ", ".join(specified_options(
            args, partial(add_model_arguments, required=False), excluded=("model",)))):
        raise SettingsError(f"{options}: these options are about a model: pass --model, too, or leave them out.")
    if args.review:
        _check_review(args.review)
    source, target = Path(args.source), Path(args.target)
    for path in (source, target):
        if not path.exists():
            raise DataError(f"{path} does not exist: pass a document or a folder.")
    if source.is_dir() != target.is_dir():
        raise SettingsError(f"{source} and {target}: pass two documents or two folders.")
    if source.is_dir() and source.samefile(target) and not args.languages:
        raise DataError(f"{source} and {target} are the same folder: pass --languages, such as --languages de-en, so "
                        "that the names of the files show their language.")


def _check_review(path: str) -> None:
    """Refuse to replace a table that a reviewer has changed, or another file.

    Raises:
        DataError: the file exists, and is not as `towernmt pairs` wrote it.
    """
    if not Path(path).is_file():
        return
    try:
        is_unchanged = is_unchanged_review(decode_file(file_content(path))[0])
    except DataError:       # it cannot be read as text
        is_unchanged = False
    if not is_unchanged:
        raise DataError(f"--review {path}: this file would be replaced, but it is not as `towernmt pairs` wrote it: "
                        "pass another file for the new table, or write the pairs that this one keeps with `towernmt "
                        f"pairs --reviewed {quote(path)} --output FILE`.")


def _matched(args: argparse.Namespace, languages: Direction | None, report: _Report) -> list[MatchedFiles]:
    """Return the files of each document, and report files without a counterpart."""
    if not Path(args.source).is_dir():
        return [MatchedFiles(args.source, args.target)]
    match = match_folders(args.source, args.target, languages)
    if match.unmatched:
        report.leave_out(f"No counterpart was found for {listed_names(match.unmatched)}.", len(match.unmatched))
    for sentence in unread_sentences(match.unread):
        report.warn(sentence)
    return match.matched


def _read_documents(files: Iterable[MatchedFiles], languages: Direction | None, by_line: bool, report: _Report,
                    progress: StageProgress) -> Iterator[tuple[MatchedFiles, SentenceTexts]]:
    """Yield the sentences of each document that can be read."""
    for document_files in files:
        codes = languages or [code and two_letter_code(code) for code in codes_of_names(document_files)]
        with report.of_document():
            if Path(document_files.source).samefile(document_files.target):
                check_both_sides(document_files.source, languages)
            _check_order_of_languages(document_files, languages)
            texts = SentenceTexts(*(document_sentences(path, code, by_line, progress.add)
                                    for path, code in zip(document_files, codes, strict=True)))
            with naming_document(document_files.name):
                check_size(texts)
            yield document_files, texts


def _check_order_of_languages(files: MatchedFiles, languages: Direction | None) -> None:
    """Refuse files whose names have the languages of --languages in the opposite order."""
    if languages is None or languages.source == languages.target:
        return
    named_direction = Direction(languages.target, languages.source)
    are_variants = two_letter_code(languages.source) == two_letter_code(languages.target)
    codes = [code if code is None or are_variants else two_letter_code(code)
             for code in codes_of_names(files, languages)]
    if codes == [code if are_variants else two_letter_code(code) for code in named_direction]:
        raise DataError(f"{files.name} are {named_direction} by their names, but --languages {languages} is "
                        f"specified: exchange the paths, or pass --languages {named_direction}.")


def _read_known_pairs(locations: Sequence[str], progress: StageProgress) -> list[tuple[str, str]]:
    """Return the pairs of prepared data and sources, and show the progress of reading them."""
    progress.begin("reading known pairs", "lines")
    return [pair for location in locations for pair in progress.counted(_known_pairs(location))]


def _known_pairs(location: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of prepared data, or of each source of a `corpora.yaml`, once and without factors and tags."""
    if is_prepared(location):
        data = open_prepared(location)
        for index in range(data.num_blocks):
            block = data.read_block(index)
            for source, target in map(block.ids_of_pair, range(len(block))):
                yield data.source_vocabulary.decode(source), data.target_vocabulary.decode(target)
        return
    corpora = read_corpora(location)
    factors = corpora.source_factors or 0
    for ingredient in corpora.mixture().ingredients:
        for _, pair in ingredient.source.read(ingredient.source.begin()):
            words = pair.source.split() if factors else ()
            yield " ".join(word.rsplit(SEPARATOR, factors)[0] for word in words) or pair.source, pair.target


def _pairs_to_learn_from(document: AlignedDocument, documents: Iterable[AlignedDocument],
                         known: KnownPairs) -> KnownPairs:
    """Return the known pairs and, for an excerpt of a book, the pairs of all other documents.

    Without these, random orders would lack the word translations that the alignment of the excerpt has learned.
    """
    if not document.texts.has_excerpt:
        return known
    return KnownPairs([*known.pairs, *((pair.source, pair.target) for other in documents if other is not document
                                       for pair in other.pairs(DEFAULT_THRESHOLD))])


def _translate_of(args: argparse.Namespace) -> TranslateTexts | None:
    """Return the function that translates sentences by --model, or None."""
    if not args.model:
        return None
    translator = make_translator(args)

    def translate(sentences: Sequence[str]) -> Iterator[str]:
        return (hypothesis.text for hypothesis, *_ in translator.translate_stream(sentences, "documents"))

    return translate


def _write_pairs(path: str, pairs: Sequence[ScoredPair]) -> None:
    write_lines(path, [f"{pair.source}\t{pair.target}\t{pair.score:.3f}" for pair in pairs])


def _summary(document: AlignedDocument, threshold: float) -> str:
    """Return a line about a document."""
    sentences = " and ".join(f"{len(side):,}" for side in document.texts)
    pair_count = sum(1 for _ in document.pairs(threshold))
    advice = (", which are few to judge by: check them, or pass --known or --model"
              if min(map(len, document.texts)) < MIN_SENTENCES_TO_JUDGE else "")
    return (f"{document.files.name}: {sentences} sentences, {pair_count:,} pairs with a score of at least {threshold:g}"
            f"{advice}")
