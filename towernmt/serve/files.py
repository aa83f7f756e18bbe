"""Files translated: taken apart by their format, translated as segments, and written again in the same format."""

from __future__ import annotations

from itertools import accumulate, takewhile

from towernmt.documents.formats.registry import opener_of
from towernmt.documents.segments import Document, plain_text
from towernmt.predict.lexical.terminology import Terminology
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.engine.work import Ticket
from towernmt.serve.limits import Limits
from towernmt.serve.refusal import Refusal
from towernmt.serve.text import translate_document
from towernmt.serve.web.parameters import UploadedFile

_SAMPLE = 4_000


class OpenedFile:
    """A file, taken apart.

    Attributes:
        characters: that are translated.
        sample: the beginning of the text, by which its language is told.
    """

    def __init__(self, file: UploadedFile, limits: Limits) -> None:
        """
        Raises:
            DataError: it is of no format that is translated, or is broken.
            Refusal: it has too much text.
        """
        self._document: Document = opener_of(file.name)(file.content)
        texts = list(map(plain_text, self._document.segments))
        self.characters = sum(map(len, texts))
        if self.characters > limits.max_document_characters:
            raise Refusal(413, f"The file has {self.characters} characters: send at most "
                               f"{limits.max_document_characters}.")
        first = sum(1 for _ in takewhile(lambda length: length < _SAMPLE, accumulate(map(len, texts))))
        self.sample = "\n".join(texts[:first + 1])[:_SAMPLE]

    def translated(self, model: ServedModel, glossary: Terminology | None, ticket: Ticket) -> bytes:
        """The file in the other language; waits for it.

        Raises:
            Refusal: the model cannot do what is asked for.
        """
        return translate_document(model, self._document, glossary, ticket)
