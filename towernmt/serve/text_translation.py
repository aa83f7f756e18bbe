"""Translate the texts of requests: split them into sentences, translate those in a model's thread, and join them.

Sentences contain placeholders for protected words, which the translations must keep.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.language_codes import base_code
from towernmt.documents.formats.html import HtmlDocument
from towernmt.documents.formats.markup_tokens import Tokens
from towernmt.documents.formats.plain import Lines
from towernmt.documents.formats.xml import XmlDocument, XmlSettings
from towernmt.documents.source_sentences import SourceSentence
from towernmt.documents.translation import SplitSegments, missing_placeholders, with_placeholders_forced
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import OPTIONS, PLAIN, LineOptions, translated_if_writable
from towernmt.predict.lines.protected_sentences import required_numbers, restored, with_names_forced, with_placeholders
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.batcher import Cancellation, QueuedSentences
from towernmt.serve.request_limits import RequestError, ServerLimits, bad_request
from towernmt.serve.served_models import ServedModel

CHUNK_SIZE, TURN_CHUNK_SIZE = 512, 128
"""Maximum number of sentences that a request, or a document in its turn, has in the queue of a model."""
Turn = Callable[[], AbstractContextManager[None]]
"""Returns a context manager in which a chunk of sentences is translated."""
OnResult = Callable[[int, Translation], None]
"""Called with the index and the translations of each sentence as soon as they are final."""


def translate_segmented(model: ServedModel, sentences: Sequence[SourceSentence], options: LineOptions,
                        cancellation: Cancellation, on_result: OnResult = lambda *_: None, blocking: bool = True,
                        turn: Turn | None = None) -> list[Translation]:
    """Translate sentences with placeholders and wait for them.

    If a placeholder is missing from a translation and the model supports lexical constraints, translate the sentence
    again with the placeholder as a constraint.

    Args:
        model: translates the sentences.
        sentences: sentences with placeholders.
        options: options of all sentences.
        cancellation: cancels the translation.
        on_result: called with (index, translation) as soon as a translation is final.
        blocking: as in `translate_sentences`.
        turn: as in `translate_sentences`.

    Raises:
        RequestError: the queue is full, or the time limit is exceeded.
        SettingsError: the model's vocabulary cannot write a prefix or a constraint.
    """
    def check_without_terms(given: LineOptions) -> None:
        model.model.check(replace(given, terminology=None))

    def report_if_complete(index: int, translation: Translation) -> None:
        if not missing_placeholders(sentences[index], translation[0].text):
            on_result(index, translation)

    def translate_with_constraints(indices: list[int]) -> list[Translation | None]:
        constrained = [with_names_forced(sentence_options[index], sentences[index]) for index in indices]

        def translate(numbers: list[int]) -> list[Translation]:
            return translate_sentences(model, [sentences[indices[number]].text for number in numbers],
                                       [constrained[number] for number in numbers], cancellation, turn=turn)

        try:
            return translated_if_writable(check_without_terms, constrained, translate)
        except RequestError as error:
            if error.status != 400:         # 400: a custom engine without a check cannot write a placeholder
                raise
            return [None] * len(indices)

    aligned = replace(options, details=True)        # marks and protected words move with the words around them
    sentence_options = [with_placeholders(options if sentence.is_plain else aligned, sentence)
                        for sentence in sentences]
    constrained = [given for given in sentence_options if given.prefix or given.constraints]
    for distinct in {id(given): given for given in constrained}.values():
        check_without_terms(distinct)       # before it shares a batch with other requests
    translations = translate_sentences(model, [sentence.text for sentence in sentences], sentence_options, cancellation,
                                       report_if_complete, blocking, turn)
    incomplete = [index for index, sentence in enumerate(sentences)
                  if missing_placeholders(sentence, translations[index][0].text)]
    if model.model.constrains:
        translations = with_placeholders_forced(sentences, translations, lambda translation: translation[0].text,
                                                translate_with_constraints)
    for index in incomplete:
        on_result(index, translations[index])
    return translations


def translate_sentences(model: ServedModel, sentences: Sequence[str], options: Sequence[LineOptions],
                        cancellation: Cancellation, on_result: OnResult = lambda *_: None, blocking: bool = True,
                        turn: Turn | None = None) -> list[Translation]:
    """Translate sentences in chunks, so that the queue has space for other requests, and wait for them.

    Args:
        model: translates the sentences.
        sentences: sentences to translate.
        options: options of each sentence.
        cancellation: cancels the translation.
        on_result: called with (index, translation) for each sentence.
        blocking: wait for queue space also before the first sentences, instead of refusing them.
        turn: returns a context manager in which a chunk is translated; None means no restriction.

    Raises:
        RequestError: the queue is full, or the time limit is exceeded.
    """
    translations: list[Translation] = []
    chunk_size = CHUNK_SIZE if turn is None else TURN_CHUNK_SIZE
    for first in range(0, len(sentences), chunk_size):
        model.wait_until_warm(options[first:first + chunk_size], cancellation)
        queued = QueuedSentences(
            sentences[first:first + chunk_size], options[first:first + chunk_size], cancellation,
            lambda index, translation, first=first: on_result(first + index, translation))  # type: ignore[misc]
        with nullcontext() if turn is None else turn():
            model.batcher.submit(queued, blocking=blocking or first > 0)
            translations += queued.wait()
    return translations


_UNREAD = ("script", "style")
"""Elements of HTML whose text readers do not see."""
Splitting = Literal["1", "nonewlines", "0"]
"""Where sentences end: "1" at punctuation and line breaks, "nonewlines" at punctuation, "0" at XML or HTML structure.
With "0", a plain text is one sentence."""


class Sentence(NamedTuple):
    """A sentence of a text with its translations, best first."""

    source: str
    translation: Translation


@dataclass(frozen=True)
class TextRequest:
    """Options of a request to translate texts.

    Attributes:
        glossary: required terms.
        format: text, html or xml.
        options: options of each sentence.
        alternatives: number of further translations of each text.
        details: whether the request needs the word alignments or the probabilities of plain sentences.
        split: where sentences end; None means "1" for text and "nonewlines" for HTML and XML. With "nonewlines", lines
            inside `<pre>` of HTML stay separate.
        xml: roles of XML elements; for HTML, the elements to leave untranslated.
    """

    glossary: Terminology | None = None
    format: str = "text"
    options: LineOptions = PLAIN
    alternatives: int = 0
    details: bool = False
    split: Splitting | None = None
    xml: XmlSettings = XmlSettings()


@dataclass(frozen=True)
class TextAnswer:
    """The translation of a text.

    Attributes:
        text: translation with the paragraphs of the source.
        alternatives: other translations of the complete text.
        sentences: sentences of the text.
    """

    text: str
    alternatives: list[str] = field(default_factory=list)
    sentences: list[Sentence] = field(default_factory=list)


OnSentence = Callable[[int, int, Sentence], None]
"""Called with (index of the text, index in the text, sentence) as soon as a sentence is translated; from 0."""


def translate_texts(model: ServedModel, texts: Sequence[str], request: TextRequest, limits: ServerLimits,
                    cancellation: Cancellation, on_sentence: OnSentence | None = None) -> list[TextAnswer]:
    """Translate the sentences of all texts together and wait for them.

    Args:
        model: translates the sentences.
        texts: texts to translate.
        request: options of the texts.
        limits: limits of the server.
        cancellation: cancels the translation.
        on_sentence: called with each sentence; None for no call.

    Raises:
        RequestError: the texts are too long, the queue is full, or the time limit is exceeded.
    """
    options = check_model(model, request)
    language = None if request.split == "0" else base_code(model.direction.source)
    documents = [_document(text, request) for text in texts]
    splits = [SplitSegments(document.segments, language, model.model.protection) for document in documents]
    positions = [(text, index) for text, split in enumerate(splits) for index in range(len(split.sentences))]
    if len(positions) > limits.max_segments:
        raise RequestError(413, f"The request has {len(positions)} sentences: send at most {limits.max_segments} at "
                                "once.")
    sentences = [sentence for split in splits for sentence in split.sentences]
    options = with_writable_terms(model, options, sentences)

    def translated_sentence(index: int, translation: Translation) -> Sentence:
        return Sentence(sentences[index].shown, restored(sentences[index], translation, options))

    def report(index: int, translation: Translation) -> None:
        if on_sentence is not None:
            on_sentence(*positions[index], translated_sentence(index, translation))

    translations = translate_segmented(model, sentences, options, cancellation, report, blocking=False)
    answers, first, numbers = [], 0, required_numbers(options)
    for document, split in zip(documents, splits, strict=True):
        end = first + len(split.sentences)
        ranked = translations[first:end]
        variants = [document.text(split.segments(
            [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in ranked], numbers))
                    for rank in range(request.alternatives + 1)]
        alternatives = [variant for variant in dict.fromkeys(variants[1:]) if variant != variants[0]]
        answers.append(TextAnswer(variants[0], alternatives, [
            translated_sentence(index, translations[index]) for index in range(first, end)]))
        first = end
    return answers


def detection_text(texts: Sequence[str], format: str) -> str:
    """Return the words of texts, for language detection."""
    return " ".join(texts if format == "text" else (_without_markup(text, format) for text in texts))


def _without_markup(text: str, format: str) -> str:
    """Return the words of HTML or XML, with single spaces; for HTML without scripts and styles, which look English."""
    words: list[str] = []
    is_unread = False
    with suppress(DataError):       # too many tags: the translation of this text is refused
        for token in Tokens(text, xml=format == "xml"):
            if token.kind == "text" and not is_unread:
                words.append(text[token.start:token.end])
            # The content of such an element is one token.
            is_unread = format == "html" and token.kind == "open" and token.name in _UNREAD
    return " ".join(html.unescape(" ".join(words)).split())


def _document(text: str, request: TextRequest) -> Lines | HtmlDocument | XmlDocument:
    if request.format == "html":
        by_line = None if request.split in (None, "nonewlines") else request.split == "1"
        return HtmlDocument(text, request.xml.ignored, by_line=by_line)
    if request.format == "xml":
        return XmlDocument(text, request.xml, request.split == "1")
    return Lines(text, request.split in (None, "1"))


def with_writable_terms(model: ServedModel, options: LineOptions, sentences: Sequence[SourceSentence]) -> LineOptions:
    """Return options without the terms that the model's vocabulary cannot write.

    A glossary is checked when it is created, but the model may have been replaced since then.

    Raises:
        RequestError: a sentence has such a term.
    """
    if options.terminology is None or (unwritable := model.unwritable(options.terminology)) == {}:
        return options
    search = Terminology(unwritable)
    for sentence in sentences:
        for term in search.terms_in(sentence.text):
            raise bad_request(unwritable[term])
    return replace(options, terminology=Terminology(
        term for term in options.terminology.terms if term not in unwritable))


def check_model(model: ServedModel, request: TextRequest) -> LineOptions:
    """Check that a model supports a request, and return the options of each sentence.

    Raises:
        RequestError: the model does not support the request.
    """
    options = replace(request.options, terminology=request.glossary, n_best=1 + request.alternatives,
                      details=request.details)
    if request.alternatives >= model.model.alternatives:
        raise bad_request(f"This server returns at most {model.model.alternatives} translations per sentence "
                          "(its option --alternatives).")
    if not model.model.constrains:
        for name, option in OPTIONS.items():
            if option.plural and getattr(options, name):
                raise bad_request(f"This server does not accept {option.plural}: its engine does not support them.")
    return options
