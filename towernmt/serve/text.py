"""Texts of requests: taken apart into sentences, translated by a model's thread, and put together again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from towernmt.documents.formats.html import HtmlDocument
from towernmt.documents.formats.lines import Lines
from towernmt.documents.formats.xml import XmlDocument, XmlSettings
from towernmt.documents.restored import restored
from towernmt.documents.segments import Document
from towernmt.documents.translation import SentencesOf
from towernmt.predict.hypotheses import Translation
from towernmt.predict.lexical.terminology import Terminology
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.engine.work import Ticket
from towernmt.serve.languages import base_code
from towernmt.serve.limits import Limits
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.segmented import translate_segmented

_TAG = re.compile(r"<[^<>]*>")


class Sentence(NamedTuple):
    """A sentence of a text, and its translations, best first."""

    source: str
    translation: Translation


@dataclass(frozen=True)
class TextAsked:
    """What is asked of texts.

    Attributes:
        glossary: terms that must come.
        format: text, html or xml.
        options: what each sentence asks for.
        alternatives: so many further translations of each text.
        split: whether lines are split into sentences; else each is taken for one.
        xml: what the elements of XML are; of HTML, which are not translated.
    """

    glossary: Terminology | None = None
    format: str = "text"
    options: LineOptions = PLAIN
    alternatives: int = 0
    split: bool = True
    xml: XmlSettings = XmlSettings()


@dataclass(frozen=True)
class TextAnswer:
    """The translation of a text.

    Attributes:
        text: with the paragraphs of the source.
        alternatives: other translations of the whole.
        sentences: of which it is made.
    """

    text: str
    alternatives: list[str] = field(default_factory=list)
    sentences: list[Sentence] = field(default_factory=list)


Done = Callable[[int, int, Sentence], None]
"""Is told of each sentence as soon as it is translated: the number of its text, and its own in the text, from 0."""


def translate_texts(model: ServedModel, texts: Sequence[str], asked: TextAsked, limits: Limits, ticket: Ticket,
                    done: Done | None = None) -> list[TextAnswer]:
    """Translate texts, the sentences of all of them together; waits for them.

    Raises:
        Refusal: they are too long, there is too much to do, or the time is over.
    """
    options = check_model(model, asked)
    language = base_code(model.direction.source) if asked.split else None
    documents = [_document(text, asked) for text in texts]
    split = [SentencesOf(document.segments, language) for document in documents]
    places = [(number, place) for number, text in enumerate(split) for place in range(len(text.sentences))]
    if len(places) > limits.max_segments:
        raise Refusal(413, f"The request has {len(places)} sentences: send at most {limits.max_segments} at once.")
    sentences = [sentence for text in split for sentence in text.sentences]

    def shown(place: int, translation: Translation) -> Sentence:
        return Sentence(" ".join(sentences[place].words), restored(sentences[place], translation))

    def tell(place: int, translation: Translation) -> None:
        if done is not None:
            done(*places[place], shown(place, translation))

    found = translate_segmented(model, sentences, options, ticket, tell, patient=False)
    answers, first = [], 0
    for document, text in zip(documents, split, strict=True):
        behind = first + len(text.sentences)
        whole = [document.text(text.segments([one[min(number, len(one) - 1)] for one in found[first:behind]]))
                 for number in range(asked.alternatives + 1)]
        others = [other for other in dict.fromkeys(whole[1:]) if other != whole[0]]
        answers.append(TextAnswer(whole[0], others, [shown(place, found[place]) for place in range(first, behind)]))
        first = behind
    return answers


def translate_document(model: ServedModel, document: Document, glossary: Terminology | None, ticket: Ticket) -> bytes:
    """A document translated, however many sentences it has; waits for it.

    Raises:
        Refusal: the model cannot do what is asked for, or the time is over.
    """
    split = SentencesOf(document.segments, base_code(model.direction.source))
    found = translate_segmented(model, split.sentences, check_model(model, TextAsked(glossary)), ticket)
    return document.written(split.segments([translation[0] for translation in found]))


def sample_of(texts: Sequence[str], format: str) -> str:
    """The words of texts, by which their language is told."""
    whole = " ".join(texts)
    return whole if format == "text" else _TAG.sub(" ", whole)


def _document(text: str, asked: TextAsked) -> Lines | HtmlDocument | XmlDocument:
    if asked.format == "html":
        return HtmlDocument(text, asked.xml.ignored)
    return XmlDocument(text, asked.xml) if asked.format == "xml" else Lines(text)


def check_model(model: ServedModel, asked: TextAsked) -> LineOptions:
    """What is asked of each sentence.

    Raises:
        Refusal: this model cannot do it.
    """
    options = replace(asked.options, terminology=asked.glossary, n_best=1 + asked.alternatives)
    if asked.alternatives >= model.model.alternatives:
        raise bad(f"This server gives at most {model.model.alternatives} translations of a sentence "
                  "(its option --alternatives).")
    if not model.model.constrains:
        for name, what in (("prefix", "prefixes"), ("constraints", "constraints"), ("avoid", "phrases to avoid"),
                           ("terminology", "glossaries")):
            if getattr(options, name):
                raise bad(f"This server takes no {what}: its engine has none.")
    return options
