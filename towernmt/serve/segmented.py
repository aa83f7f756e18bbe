"""Sentences of segments, translated by a model's thread: with stand-ins, which must be in the translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from towernmt.documents.sentences import SourceSentence
from towernmt.documents.translation import lost
from towernmt.predict.hypotheses import Translation
from towernmt.predict.lines.options import LineOptions
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.engine.work import Ticket, Work
from towernmt.serve.refusal import Refusal

CHUNK = 512
"""So many sentences of a request wait in the queue at a time."""
Tell = Callable[[int, Translation], None]
"""Is told of each sentence as soon as it is translated: its place, and its translations."""


def translate_segmented(model: ServedModel, sentences: Sequence[SourceSentence], options: LineOptions, ticket: Ticket,
                        tell: Tell = lambda *_: None, patient: bool = True) -> list[Translation]:
    """Translate sentences; waits for them.

    Where a stand-in is lost, the sentence is translated once more and has to hold it, if the model takes phrases that
    must come.

    Args:
        options: what all ask for.
        tell: is told of each when it is as it stays.
        patient: as of `translate_sentences`.
    Raises:
        Refusal: there is too much to do, or the time is over.
    """
    def tell_if_whole(place: int, translation: Translation) -> None:
        if not lost(sentences[place], translation[0].text):
            tell(place, translation)

    given = [_with_stand_ins(options, sentence) for sentence in sentences]
    found = translate_sentences(model, [sentence.text for sentence in sentences], given, ticket, tell_if_whole, patient)
    again = [place for place, sentence in enumerate(sentences) if lost(sentence, found[place][0].text)]
    if again and model.model.constrains:
        wanted = [replace(given[place], constraints=(*given[place].constraints, *sentences[place].names))
                  for place in again]
        for place, translation in zip(again, _forced(model, [sentences[place].text for place in again], wanted, ticket),
                                      strict=False):
            if len(lost(sentences[place], translation[0].text)) < len(lost(sentences[place], found[place][0].text)):
                found[place] = translation
    for place in again:
        tell(place, found[place])
    return found


def translate_sentences(model: ServedModel, sentences: Sequence[str], options: Sequence[LineOptions], ticket: Ticket,
                        tell: Tell = lambda *_: None, patient: bool = True) -> list[Translation]:
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


def _forced(model: ServedModel, sentences: Sequence[str], options: Sequence[LineOptions],
            ticket: Ticket) -> list[Translation]:
    """The same; none where the model's vocabulary cannot write a stand-in."""
    try:
        return translate_sentences(model, sentences, options, ticket)
    except Refusal as refusal:
        if refusal.status != 400:
            raise
        return []


def _with_stand_ins(options: LineOptions, sentence: SourceSentence) -> LineOptions:
    """What a sentence asks for, in the words that the model sees."""
    if not sentence.names or not (options.prefix or options.constraints or options.avoid):
        return options
    return replace(options, prefix=_seen(options.prefix, sentence),
                   constraints=[_seen(phrase, sentence) for phrase in options.constraints],
                   avoid=[_seen(phrase, sentence) for phrase in options.avoid])


def _seen(phrase: str, sentence: SourceSentence) -> str:
    for name, place in sentence.names.items():
        phrase = phrase.replace(sentence.atoms[place].text, name, 1)
    return phrase
