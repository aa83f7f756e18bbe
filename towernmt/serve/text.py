"""Texts of requests: taken apart into sentences, translated by a model's thread, and put together again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sentencex import segment  # type: ignore[import-untyped]

from towernmt.predict.hypotheses import Translation
from towernmt.predict.lexical.terminology import Terminology
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.engine.work import Ticket, Work
from towernmt.serve.languages import base_code
from towernmt.serve.limits import Limits
from towernmt.serve.refusal import Refusal, bad

_LINES = re.compile(r"(\r?\n)")
CHUNK = 512
"""So many sentences of a request wait in the queue at a time."""


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
    """

    glossary: Terminology | None = None
    format: str = "text"
    options: LineOptions = PLAIN
    alternatives: int = 0
    split: bool = True


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
    if asked.format != "text":
        raise bad(f"Markup is not taken here: send plain text, and not {asked.format}.")
    options = check_model(model, asked)
    language = base_code(model.direction.source) if asked.split else None
    split = [_Text.of(text, language) for text in texts]
    places = [(number, place) for number, text in enumerate(split) for place in range(len(text.sentences))]
    if len(places) > limits.max_segments:
        raise Refusal(413, f"The request has {len(places)} sentences: send at most {limits.max_segments} at once.")
    sentences = [sentence for text in split for sentence in text.sentences]

    def tell(place: int, translation: Translation) -> None:
        if done is not None:
            done(*places[place], Sentence(sentences[place], translation))

    found = translate_sentences(model, sentences, [options] * len(sentences), ticket, tell, patient=False)
    answers = []
    for text in split:
        own, found = found[:len(text.sentences)], found[len(text.sentences):]
        answers.append(text.answer(own, asked.alternatives))
    return answers


class _Text(NamedTuple):
    """A text, taken apart.

    Attributes:
        pieces: which make the text, one behind the other.
        places: of the sentences among them; the others are white space.
    """

    pieces: list[str]
    places: list[int]

    @classmethod
    def of(cls, text: str, language: str | None) -> _Text:
        """Split lines, and sentences where a language is named."""
        made = cls([], [])
        for line in _LINES.split(text):
            for sentence in [line] if language is None or not line.strip() else segment(language, line):
                made.add(sentence)
        return made

    def add(self, sentence: str) -> None:
        """A sentence, with the white space around it."""
        core = sentence.strip()
        if not core:
            self.pieces.append(sentence)
            return
        before, _, after = sentence.partition(core)
        self.places.append(len(self.pieces) + 1)
        self.pieces.extend((before, core, after))

    @property
    def sentences(self) -> list[str]:
        return [self.pieces[place] for place in self.places]

    def answer(self, found: Sequence[Translation], alternatives: int) -> TextAnswer:
        """The text with its sentences translated."""
        texts = []
        for number in range(alternatives + 1):
            pieces = list(self.pieces)
            for place, translation in zip(self.places, found, strict=True):
                pieces[place] = translation[min(number, len(translation) - 1)].text
            texts.append("".join(pieces))
        others = [text for text in dict.fromkeys(texts[1:]) if text != texts[0]]
        return TextAnswer(texts[0], others, list(map(Sentence, self.sentences, found)))


def translate_sentences(model: ServedModel, sentences: Sequence[str], options: Sequence[LineOptions], ticket: Ticket,
                        tell: Callable[[int, Translation], None] = lambda *_: None,
                        patient: bool = True) -> list[Translation]:
    """Translate sentences, a chunk of them at a time, so that the queue has room for others; waits for them.

    Args:
        options: what each asks for.
        tell: is told of each.
        patient: whether the first wait for room in the queue, too.
    Raises:
        Refusal: there is too much to do, or the time is over.
    """
    found: list[Translation] = []
    for first in range(0, len(sentences), CHUNK):
        work = Work(sentences[first:first + CHUNK], options[first:first + CHUNK], ticket,
                    lambda place, translation, first=first: tell(first + place, translation))   # type: ignore[misc]
        model.batcher.submit(work, patient=patient or first > 0)
        found += work.wait()
    return found


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
