"""The files that are translated as documents: read, translated, written again in the same format."""

from __future__ import annotations

from pathlib import PurePath

from towernmt.predict.lexical.terminology import Terminology
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.engine.work import Ticket
from towernmt.serve.limits import Limits
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.text import TextAsked, translate_texts
from towernmt.serve.web.parameters import UploadedFile

FORMATS = (".txt",)


def format_of(file: UploadedFile) -> str:
    """The format of a file by its name.

    Raises:
        Refusal: it is none of those that are translated.
    """
    suffix = PurePath(file.name).suffix.lower()
    if suffix not in FORMATS:
        raise bad(f"Files of the kind '{suffix[:20]}' are not translated here: there are {', '.join(FORMATS)}.")
    return suffix


def translate_file(model: ServedModel, file: UploadedFile, glossary: Terminology | None, limits: Limits,
                   ticket: Ticket) -> tuple[bytes, int]:
    """The translated file, and the number of its characters; waits for it.

    Raises:
        Refusal: it cannot be read, or is too long.
    """
    format_of(file)
    try:
        text = file.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise bad("The file is not encoded as UTF-8.") from None
    if len(text) > limits.max_document_characters:
        raise Refusal(413, f"The file has {len(text)} characters: send at most {limits.max_document_characters}.")
    [answer] = translate_texts(model, [text], TextAsked(glossary, is_document=True), limits, ticket)
    return answer.text.encode("utf-8"), len(text)
