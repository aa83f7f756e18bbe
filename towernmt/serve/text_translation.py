"""Translate the texts of requests: split them into sentences, translate those in a model's thread, and join them.

Sentences contain placeholders for protected words, which the translations must keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from towernmt.dataflow.text.language_codes import base_code
from towernmt.documents.formats.html import HtmlDocument
from towernmt.documents.formats.plain import Lines
from towernmt.documents.formats.xml import XmlDocument, XmlSettings
from towernmt.documents.segments import Document
from towernmt.documents.source_sentences import SourceSentence
from towernmt.documents.translation import SentencesOf, lost, with_placeholders_forced
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import OPTIONS, PLAIN, LineOptions
from towernmt.predict.lines.protected_sentences import restored, with_names_forced, with_placeholders
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.batcher import Ticket
from towernmt.serve.request_limits import Refusal, ServerLimits, bad
from towernmt.serve.served_models import ServedModel

CHUNK, CHUNK_OF_A_TURN = 512, 128
"""Maximum number of sentences in the queue of one request, and of a document, which waits for its turn each time."""
Turn = Callable[[], AbstractContextManager[None]]
"""Return a context manager in which a chunk of sentences is translated."""
OnResult = Callable[[int, Translation], None]
"""Called with the index and the translations of each sentence as soon as they are final."""


def translate_segmented(model: ServedModel, sentences: Sequence[SourceSentence], options: LineOptions, ticket: Ticket,
                        on_result: OnResult = lambda *_: None, blocking: bool = True,
                        turn: Turn | None = None) -> list[Translation]:
    """Translate sentences with placeholders and wait for them.

    If a placeholder is missing from a translation and the model supports lexical constraints, translate the sentence
    again with the placeholder as a constraint.

    Args:
        model: translates the sentences.
        sentences: sentences with placeholders.
        options: options of all sentences.
        ticket: the waiting client.
        on_result: called with (index, translation) as soon as a translation is final.
        blocking: as in `translate_sentences`.
        turn: as in `translate_sentences`.

    Raises:
        Refusal: the queue is full, or the time limit is exceeded.
        SettingsError: the model's vocabulary cannot write a prefix or a constraint.
    """
    def report_if_complete(index: int, translation: Translation) -> None:
        if not lost(sentences[index], translation[0].text):
            on_result(index, translation)

    def forced(again: list[int]) -> list[Translation]:
        texts = [sentences[place].text for place in again]
        try:
            return translate_sentences(model, texts, [with_names_forced(given[place], sentences[place])
                                                      for place in again], ticket, turn=turn)
        except Refusal as refusal:
            if refusal.status != 400:       # 400: the vocabulary cannot write a placeholder
                raise
            return []

    aligned = replace(options, details=True)        # marks and protected words move with the words around them
    given = [with_placeholders(options if sentence.is_plain else aligned, sentence) for sentence in sentences]
    for one in {id(one): one for one in given if one.prefix or one.constraints}.values():
        model.model.check(replace(one, terminology=None))       # before it shares a batch with other requests
    found = translate_sentences(model, [sentence.text for sentence in sentences], given, ticket, report_if_complete,
                                blocking, turn)
    again = [place for place, sentence in enumerate(sentences) if lost(sentence, found[place][0].text)]
    if model.model.constrains:
        found = with_placeholders_forced(sentences, found, lambda translation: translation[0].text, forced)
    for place in again:
        on_result(place, found[place])
    return found


def translate_sentences(model: ServedModel, sentences: Sequence[str], options: Sequence[LineOptions], ticket: Ticket,
                        on_result: OnResult = lambda *_: None, blocking: bool = True,
                        turn: Turn | None = None) -> list[Translation]:
    """Translate sentences in chunks, so that the queue has space for other requests, and wait for them.

    Args:
        model: translates the sentences.
        sentences: sentences to translate.
        options: options of each sentence.
        ticket: the waiting client.
        on_result: called with (index, translation) for each sentence.
        blocking: wait for queue space also before the first sentences, instead of refusing them.
        turn: returns a context manager in which a chunk is translated; None means no restriction.

    Raises:
        Refusal: the queue is full, or the time limit is exceeded.
    """
    found: list[Translation] = []
    size = CHUNK if turn is None else CHUNK_OF_A_TURN
    for first in range(0, len(sentences), size):
        model.wait_until_warm(options[first:first + size], ticket)
        with nullcontext() if turn is None else turn():
            found += model.batcher.translations_of(
                sentences[first:first + size], options[first:first + size], ticket,
                lambda place, translation, first=first: on_result(first + place, translation),  # type: ignore[misc]
                blocking=blocking or first > 0)
    return found


_TAG = re.compile(r"<[^<>]*>")
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


Done = Callable[[int, int, Sentence], None]
"""Called with (index of the text, index in the text, sentence) as soon as a sentence is translated; from 0."""


def translate_texts(model: ServedModel, texts: Sequence[str], asked: TextRequest, limits: ServerLimits, ticket: Ticket,
                    done: Done | None = None) -> list[TextAnswer]:
    """Translate the sentences of all texts together and wait for them.

    Raises:
        Refusal: the texts are too long, the queue is full, or the time limit is exceeded.
    """
    options = check_model(model, asked)
    language = None if asked.split == "0" else base_code(model.direction.source)
    documents = [_document(text, asked) for text in texts]
    split = [SentencesOf(document.segments, language, model.model.protection) for document in documents]
    places = [(number, place) for number, text in enumerate(split) for place in range(len(text.sentences))]
    if len(places) > limits.max_segments:
        raise Refusal(413, f"The request has {len(places)} sentences: send at most {limits.max_segments} at once.")
    sentences = [sentence for text in split for sentence in text.sentences]
    options = with_writable_terms(model, options, sentences)

    def shown(place: int, translation: Translation) -> Sentence:
        return Sentence(sentences[place].shown, restored(sentences[place], translation, options))

    def report(place: int, translation: Translation) -> None:
        if done is not None:
            done(*places[place], shown(place, translation))

    found = translate_segmented(model, sentences, options, ticket, report, blocking=False)
    answers, first = [], 0
    for document, text in zip(documents, split, strict=True):
        end = first + len(text.sentences)
        whole = [document.text(text.segments([one[min(number, len(one) - 1)] for one in found[first:end]]))
                 for number in range(asked.alternatives + 1)]
        others = [other for other in dict.fromkeys(whole[1:]) if other != whole[0]]
        answers.append(TextAnswer(whole[0], others, [shown(place, found[place]) for place in range(first, end)]))
        first = end
    return answers


def translate_document(model: ServedModel, document: Document, split: SentencesOf, options: LineOptions,
                       ticket: Ticket, turn: Turn, on_sentence: Callable[[], None]) -> bytes:
    """Translate a document of any length, wait for it, and return its bytes.

    Args:
        model: translates the sentences.
        document: document to translate.
        split: the sentences of the document.
        options: the options of each sentence.
        ticket: the waiting client.
        turn: returns a context manager in which a chunk of sentences is translated.
        on_sentence: called after each sentence.

    Raises:
        Refusal: the model cannot do what is requested, or the document was cancelled.
    """
    found = translate_segmented(model, split.sentences, options, ticket, lambda *_: on_sentence(), turn=turn)
    ticket.check()
    return document.written(split.segments([translation[0] for translation in found]))


def sample_of(texts: Sequence[str], format: str) -> str:
    """Return the words of texts, for language detection."""
    whole = " ".join(texts)
    return whole if format == "text" else _TAG.sub(" ", whole)


def _document(text: str, asked: TextRequest) -> Lines | HtmlDocument | XmlDocument:
    if asked.format == "html":
        by_line = None if asked.split in (None, "nonewlines") else asked.split == "1"
        return HtmlDocument(text, asked.xml.ignored, by_line=by_line)
    if asked.format == "xml":
        return XmlDocument(text, asked.xml, asked.split == "1")
    return Lines(text, asked.split in (None, "1"))


def with_writable_terms(model: ServedModel, options: LineOptions, sentences: Sequence[SourceSentence]) -> LineOptions:
    """Return options without the terms that the model's vocabulary cannot write.

    A glossary is checked when it is created, but the model may have been replaced since then.

    Raises:
        Refusal: a sentence has such a term.
    """
    if options.terminology is None or (unwritable := model.unwritable(options.terminology)) == {}:
        return options
    search = Terminology(unwritable)
    if found := [term for sentence in sentences for term in search.found(sentence.text)]:
        raise bad(unwritable[found[0]])
    return replace(options, terminology=Terminology(
        term for term in options.terminology.terms if term not in unwritable))


def check_model(model: ServedModel, asked: TextRequest) -> LineOptions:
    """Check that a model supports a request, and return the options of each sentence.

    Raises:
        Refusal: the model does not support the request.
    """
    options = replace(asked.options, terminology=asked.glossary, n_best=1 + asked.alternatives, details=asked.details)
    if asked.alternatives >= model.model.alternatives:
        raise bad(f"This server returns at most {model.model.alternatives} translations per sentence "
                  "(its option --alternatives).")
    if not model.model.constrains:
        for name, option in OPTIONS.items():
            if option.plural and getattr(options, name):
                raise bad(f"This server does not accept {option.plural}: its engine does not support them.")
    return options
