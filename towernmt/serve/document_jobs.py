"""Documents of callers: translated in the background, with progress, and stored in memory until they are fetched.

A file is parsed by its format, translated as segments, and written in the same format. Each document has a thread,
which mostly waits for the model. A model translates chunks of a few documents at a time, and the callers take turns
after each chunk: a large document delays neither others nor the texts of requests.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate, takewhile
from pathlib import PurePath
from typing import NamedTuple

from towernmt.dataflow.text.language_codes import Direction, base_code
from towernmt.documents.formats.text_files import opener_of
from towernmt.documents.segments import Document, plain_text
from towernmt.documents.translation import SentencesOf
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.batcher import GONE, STOPPED, Ticket, refusal_of
from towernmt.serve.request_limits import Refusal, ServerLimits, busy
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import TextRequest, check_model, translate_document, with_writable_terms
from towernmt.serve.web.request_parameters import UploadedFile

_SAMPLE = 4_000


class OpenedFile:
    """A file that was parsed by its format, but is not yet split into sentences.

    Attributes:
        characters: the number of characters that are translated.
        sample: the beginning of the text, by which its language is detected.
    """

    def __init__(self, file: UploadedFile, limits: ServerLimits) -> None:
        """Parse a file.

        Raises:
            DataError: the format is not supported, or the file is damaged.
            Refusal: the file has too much text.
        """
        self._limits = limits
        self._document: Document = opener_of(file.name)(file.content)
        texts = list(map(plain_text, self._document.segments))
        self.characters = sum(map(len, texts))
        if self.characters > limits.max_document_characters:
            raise Refusal(413, f"The file has {self.characters} characters: send at most "
                               f"{limits.max_document_characters}.")
        self._check_sentences(sum(any(map(str.isalnum, text)) for text in texts))   # each has a sentence or more
        first = sum(1 for _ in takewhile(lambda length: length < _SAMPLE, accumulate(map(len, texts))))
        self.sample = "\n".join(texts[:first + 1])[:_SAMPLE]

    def split(self, model: ServedModel, glossary: Terminology | None) -> SplitFile:
        """Return the file with its text split into the sentences that a model translates.

        Raises:
            Refusal: it has too many sentences, or the model cannot do what is requested.
        """
        options = check_model(model, TextRequest(glossary))
        sentences = SentencesOf(self._document.segments, base_code(model.direction.source), model.model.protection)
        self._check_sentences(len(sentences.sentences))
        options = with_writable_terms(model, options, sentences.sentences)
        return SplitFile(len(sentences.sentences), lambda ticket, turn, told: translate_document(
            model, self._document, sentences, options, ticket, turn, told))

    def _check_sentences(self, sentences: int) -> None:
        if sentences > self._limits.max_document_sentences:
            raise Refusal(413, f"The file has {sentences} sentences: send at most "
                               f"{self._limits.max_document_sentences}.")


class SplitFile(NamedTuple):
    """A file that is ready to be translated.

    Attributes:
        sentences: the number of its sentences.
        translate: returns the file in the other language. Takes the client that waits, a context manager in which each
            chunk of sentences is translated, and a function that is called after each sentence.
    """

    sentences: int
    translate: Callable[[Ticket, Callable[[], AbstractContextManager[None]], Callable[[], None]], bytes]


log = logging.getLogger(__name__)
AT_A_TIME = 2
"""Maximum number of documents of which one model translates a chunk concurrently."""


class DocumentJob:
    """A document and the progress of its translation.

    Attributes:
        number: identifier of the document in requests.
        key: the secret that a request needs to see it.
        name: the file's name, without folders.
        caller: the caller that sent it.
        direction: translation direction.
        sentences, translated: the number of its sentences, and of those that are translated.
        status: queued, translating, done or error.
        content: the translation, once the status is done.
        characters: the number of translated characters.
        refusal: reason why it was not translated, if the status is error.
        fetched: whether the caller has received the translation or the error.
        changed: time of the last change of the status, by a monotonic clock.
        ticket: cancels the translation.
        turn: the number of its last turn.
    """

    def __init__(self, name: str, caller: str, direction: Direction, sentences: int, characters: int) -> None:
        self.number, self.key = secrets.token_hex(16).upper(), secrets.token_hex(32).upper()
        self.name = PurePath(name.replace("\\", "/")).name[:200] or "document.txt"
        self.caller, self.direction, self.sentences, self.characters = caller, direction, sentences, characters
        self.translated, self.status, self.content, self.fetched = 0, "queued", b"", False
        self.refusal: Refusal | None = None
        self.changed, self.ticket, self.turn = time.monotonic(), Ticket(), 0

    def become(self, status: str) -> None:
        """Change the status, unless the document is finished."""
        if not self.is_over and status != self.status:
            self.status, self.changed = status, time.monotonic()

    def fail(self, why: Refusal) -> None:
        """End the document with an error, unless it is finished."""
        if not self.is_over:
            self.refusal = why
            self.become("error")

    @property
    def is_over(self) -> bool:
        """Whether the document is translated or has failed."""
        return self.status in ("done", "error")

    def seconds_remaining(self) -> int | None:
        """Return the estimated remaining seconds, or None if they are not known yet."""
        if self.is_over:
            return 0
        if not self.translated:
            return None
        rest = max(self.sentences - self.translated, 0)
        return 1 + int((time.monotonic() - self.changed) / self.translated * rest)


Work = Callable[[DocumentJob], bytes]
"""Function that translates a document, counts `translated` up meanwhile, and returns the translated bytes."""


class Documents:
    """All documents of a server."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits, self._changed = limits, threading.Condition()
        self._all: dict[str, DocumentJob] = {}
        self._waiting: list[DocumentJob] = []
        self._translating: list[DocumentJob] = []
        self._turns = 0
        self._last_turns: dict[str, int] = {}
        self._stopping_since = math.inf
        self._threads = ThreadPoolExecutor(limits.max_documents, thread_name_prefix="document")

    def make_place(self, caller: str) -> None:
        """Check that a caller may send a document now, and delete fetched documents if space is needed.

        Raises:
            Refusal: the caller has its share of documents (429), the server has its limit, or it is stopping (503).
        """
        with self._changed:
            self._forget()
            own = [one for one in self._all.values() if one.caller == caller]
            self._free(own, self._limits.max_caller_documents)
            self._free(list(self._all.values()), self._limits.max_documents)
            if self._stopping_since < math.inf:
                raise busy("The server is shutting down: try again in a moment.")
            if sum(one.number in self._all for one in own) >= self._limits.max_caller_documents:
                raise Refusal(429, f"You have {self._limits.max_caller_documents} documents here already: fetch or "
                                   "delete one of them, or wait until one is translated.", 10.0)
            if len(self._all) >= self._limits.max_documents:
                raise busy("Too many documents are kept here: fetch yours, or try again later.", 30.0)

    def add(self, document: DocumentJob, work: Work) -> DocumentJob:
        """Add a document and translate it in the background. Call `make_place` first."""
        with self._changed:
            self._all[document.number] = document
        self._threads.submit(self._translate, document, work)
        return document

    def get(self, number: str, key: str) -> DocumentJob:
        """Return the document of a number and a key.

        Raises:
            Refusal: there is no document of this number and key.
        """
        with self._changed:
            self._forget()
            found = self._all.get(number)
        if found is None or not secrets.compare_digest(found.key.encode(), key.encode("utf-8", "replace")):
            raise Refusal(404, "This document does not exist, or has been deleted.")
        return found

    def remove(self, document: DocumentJob, why: Refusal = GONE) -> None:
        """Delete a document, and cancel its translation if it is unfinished."""
        document.ticket.end(why)
        document.fetched = True
        with self._changed:
            self._all.pop(document.number, None)
            self._changed.notify_all()

    @contextmanager
    def turn(self, document: DocumentJob) -> Iterator[None]:
        """Wait for this document's turn to translate a chunk of its sentences.

        The next turn goes to the caller with the fewest documents in translation, of several to the one whose last turn
        was longest ago, and then to its document whose last turn was longest ago.

        Raises:
            Refusal: the document was cancelled.
        """
        with self._changed:
            self._waiting.append(document)
            try:
                while not self._is_next(document):
                    document.ticket.check()
                    self._changed.wait(0.5)
            finally:
                self._waiting.remove(document)
            self._translating.append(document)
            self._turns += 1
            document.turn = self._last_turns[document.caller] = self._turns
            document.become("translating")
            self._changed.notify_all()
        try:
            document.ticket.check()
            yield
        finally:
            with self._changed:
                self._translating.remove(document)
                self._changed.notify_all()

    def running(self) -> int:
        """Return the number of documents that are not over."""
        with self._changed:
            return sum(not one.is_over for one in self._all.values())

    def unseen(self) -> int:
        """Return the number of documents that are not over, or that ended after `stop_accepting` without being seen."""
        with self._changed:
            return sum(not one.is_over or (not one.fetched and self._stopping_since <= one.changed)
                       for one in self._all.values())

    def stop_accepting(self) -> None:
        """Refuse new documents from now on."""
        with self._changed:
            self._stopping_since = min(self._stopping_since, time.monotonic())

    def end(self, why: Refusal) -> None:
        """End all unfinished documents with an error."""
        self.stop_accepting()
        with self._changed:
            left = [one for one in self._all.values() if not one.is_over]
        for document in left:
            document.fail(why)
            document.ticket.end(why)
        if left:
            log.warning("%d documents were not translated because the server is shutting down.", len(left))

    def close(self) -> None:
        """End all unfinished documents and wait for their threads."""
        self.end(STOPPED)
        self._threads.shutdown()

    def _is_next(self, document: DocumentJob) -> bool:
        """Return whether the model has capacity and no other document comes before this one."""
        direction = document.direction
        if sum(other.direction == direction for other in self._translating) >= AT_A_TIME:
            return False
        waiting = [other for other in self._waiting if other.direction == direction]
        return min(waiting, key=self._order) is document

    def _order(self, document: DocumentJob) -> tuple[int, int, int]:
        running = sum(other.caller == document.caller for other in self._translating)
        return running, self._last_turns.get(document.caller, 0), document.turn

    def _free(self, documents: list[DocumentJob], most: int) -> None:
        """Delete fetched documents, the oldest first, until there is space for one more."""
        documents = [one for one in documents if one.number in self._all]
        fetched = sorted((one for one in documents if one.fetched and one.is_over), key=lambda one: one.changed)
        for document in fetched[:max(len(documents) - most + 1, 0)]:
            del self._all[document.number]

    def _forget(self) -> None:
        """Delete expired documents, and callers without documents."""
        limit = time.monotonic() - self._limits.keep_documents
        self._all = {number: one for number, one in self._all.items() if not (one.is_over and one.changed < limit)}
        callers = {one.caller for one in self._all.values()}
        self._last_turns = {caller: turn for caller, turn in self._last_turns.items() if caller in callers}

    @staticmethod
    def _translate(document: DocumentJob, work: Work) -> None:
        try:
            document.content = work(document)
            document.translated = document.sentences
            document.become("done")
        except BaseException as error:   # noqa: BLE001 -- the caller learns of it, and the log of the places
            document.fail(refusal_of(error))
