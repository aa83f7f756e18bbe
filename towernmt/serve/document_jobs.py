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
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import PurePath

from towernmt.dataflow.text.language_codes import Direction, base_code
from towernmt.documents.formats.document_formats import opener_of
from towernmt.documents.segments import Document, plain_text
from towernmt.documents.translation import SplitSegments
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.batcher import Cancellation, request_error_of
from towernmt.serve.request_limits import RequestError, ServerLimits, server_stopping, unavailable
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import TextRequest, Turn, check_model, translate_segmented, with_writable_terms
from towernmt.serve.web.request_parameters import UploadedFile

log = logging.getLogger(__name__)

_SAMPLE_CHARACTERS = 4_000
"""Number of characters in which the language of a file is detected."""


class ParsedFile:
    """A file that was parsed by its format, but is not yet split into sentences.

    Attributes:
        characters: the number of characters that are translated.
        sample: the beginning of the text, in which its language is detected.
    """

    def __init__(self, file: UploadedFile, limits: ServerLimits) -> None:
        """Parse a file.

        Raises:
            DataError: the format is not supported, or the file is damaged.
            RequestError: the file has too much text.
        """
        self._limits = limits
        self._document: Document = opener_of(file.name)(file.content)
        texts = list(map(plain_text, self._document.segments))
        self.characters = sum(map(len, texts))
        if self.characters > limits.max_document_characters:
            raise RequestError(413, f"The file has {self.characters} characters: send at most "
                                    f"{limits.max_document_characters}.")
        self._check_sentences(sum(any(map(str.isalnum, text)) for text in texts))   # each has a sentence or more
        first = sum(1 for _ in takewhile(lambda length: length < _SAMPLE_CHARACTERS, accumulate(map(len, texts))))
        self.sample = "\n".join(texts[:first + 1])[:_SAMPLE_CHARACTERS]

    def split(self, model: ServedModel, glossary: Terminology | None) -> SegmentedFile:
        """Return the file with its text split into the sentences that a model translates.

        Raises:
            RequestError: the file has too many sentences, or the model does not support the request.
        """
        options = check_model(model, TextRequest(glossary))
        split = SplitSegments(self._document.segments, base_code(model.direction.source), model.model.protection)
        self._check_sentences(len(split.sentences))
        return SegmentedFile(model, self._document, split, with_writable_terms(model, options, split.sentences))

    def _check_sentences(self, sentences: int) -> None:
        if sentences > self._limits.max_document_sentences:
            raise RequestError(413, f"The file has {sentences} sentences: send at most "
                                    f"{self._limits.max_document_sentences}.")


@dataclass(frozen=True)
class SegmentedFile:
    """A file that is split into sentences, ready to be translated.

    Attributes:
        model: translates the sentences.
        document: the parsed file.
        split: the sentences of the document.
        options: options of each sentence.
    """

    model: ServedModel
    document: Document
    split: SplitSegments
    options: LineOptions

    def translate(self, cancellation: Cancellation, turn: Turn, on_sentence: Callable[[], None]) -> bytes:
        """Translate the file, wait for it, and return the content of the translated file.

        Args:
            cancellation: cancels the translation.
            turn: returns a context manager in which a chunk of sentences is translated.
            on_sentence: called after each sentence.

        Raises:
            RequestError: the model does not support the request, or the document was cancelled.
        """
        translations = translate_segmented(self.model, self.split.sentences, self.options, cancellation,
                                           lambda *_: on_sentence(), turn=turn)
        cancellation.check()
        return self.document.written(self.split.segments([translation[0] for translation in translations]))


MAX_CONCURRENT_DOCUMENTS = 2
"""Maximum number of documents of which one model translates a chunk concurrently."""


class DocumentJob:
    """A document and the progress of its translation.

    Attributes:
        id: identifier of the document in requests.
        key: the secret that a request needs to see it.
        name: the file's name, without folders.
        caller: the caller that sent it.
        direction: translation direction.
        sentences, translated: the number of its sentences, and of those that are translated.
        status: queued, translating, done or error.
        content: the translation, once the status is done.
        characters: the number of translated characters.
        error: reason why it was not translated, if the status is error.
        fetched: whether the caller has received the translation or the error.
        status_changed_at: time of the last change of the status, by a monotonic clock.
        cancellation: cancels the translation.
        last_turn: number of its last turn, by which the next turn is assigned.
    """

    def __init__(self, name: str, caller: str, direction: Direction, sentences: int, characters: int) -> None:
        self.id, self.key = secrets.token_hex(16).upper(), secrets.token_hex(32).upper()
        self.name = PurePath(name.replace("\\", "/")).name[:200] or "document.txt"
        self.caller, self.direction, self.sentences, self.characters = caller, direction, sentences, characters
        self.translated, self.status, self.content, self.fetched = 0, "queued", b"", False
        self.error: RequestError | None = None
        self.status_changed_at, self.cancellation, self.last_turn = time.monotonic(), Cancellation(), 0
        self._lock = threading.RLock()

    def set_status(self, status: str) -> None:
        """Change the status, unless the document is finished."""
        with self._lock:
            if not self.is_finished and status != self.status:
                self.status, self.status_changed_at = status, time.monotonic()

    def complete(self, content: bytes) -> None:
        """Store the translation, unless the document is finished."""
        with self._lock:
            if not self.is_finished:
                self.content, self.translated = content, self.sentences
                self.set_status("done")

    def fail(self, error: RequestError) -> None:
        """Finish the document with an error, unless it is finished."""
        with self._lock:
            if not self.is_finished:
                self.error = error
                self.set_status("error")

    def raise_if_failed(self) -> None:
        """Raise the RequestError of a document that was not translated."""
        if self.error is not None:
            raise self.error.with_traceback(None)       # it may be raised many times

    @property
    def is_finished(self) -> bool:
        """Whether the document is translated or has failed."""
        return self.status in ("done", "error")

    def seconds_remaining(self) -> int | None:
        """Return the estimated remaining seconds, or None if they are not known yet."""
        if self.is_finished:
            return 0
        if not self.translated:
            return None
        remaining = max(self.sentences - self.translated, 0)
        return 1 + int((time.monotonic() - self.status_changed_at) / self.translated * remaining)


class Documents:
    """All documents of a server."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits, self._changed = limits, threading.Condition()
        self._documents: dict[str, DocumentJob] = {}
        self._waiting: list[DocumentJob] = []
        self._translating: list[DocumentJob] = []
        self._turns = 0
        self._last_turns: dict[str, int] = {}
        self._stopping_since = math.inf
        self._threads = ThreadPoolExecutor(limits.max_documents, thread_name_prefix="document")

    def ensure_capacity(self, caller: str) -> None:
        """Check that a caller may send a document now, and delete fetched documents if space is needed.

        Raises:
            RequestError: the caller has its share of documents (429), the server has its limit, or it is stopping
                (503).
        """
        with self._changed:
            self._delete_expired()
            own = [document for document in self._documents.values() if document.caller == caller]
            self._delete_fetched(own, self._limits.max_caller_documents)
            self._delete_fetched(list(self._documents.values()), self._limits.max_documents)
            if self._stopping_since < math.inf:
                raise unavailable("The server is shutting down: try again in a moment.")
            if sum(document.id in self._documents for document in own) >= self._limits.max_caller_documents:
                raise RequestError(429, f"You have {self._limits.max_caller_documents} documents here already: fetch "
                                        "or delete one of them, or wait until one is translated.", 10.0)
            if len(self._documents) >= self._limits.max_documents:
                raise unavailable("Too many documents are kept here: fetch yours, or try again later.", 30.0)

    def add(self, document: DocumentJob, translate: Callable[[DocumentJob], bytes]) -> DocumentJob:
        """Add a document and translate it in the background. Call `ensure_capacity` first.

        Args:
            document: the document.
            translate: translates the document, increments `translated` meanwhile, and returns the translated content.
        """
        with self._changed:
            self._documents[document.id] = document
        self._threads.submit(self._translate, document, translate)
        return document

    def get(self, id: str, key: str) -> DocumentJob:
        """Return the document with an id and a key.

        Raises:
            RequestError: no document has this id and key.
        """
        with self._changed:
            self._delete_expired()
            document = self._documents.get(id)
        if document is None or not secrets.compare_digest(document.key.encode(), key.encode("utf-8", "replace")):
            raise RequestError(404, "This document does not exist, or has been deleted.")
        return document

    def remove(self, document: DocumentJob) -> None:
        """Delete a document, and cancel its translation if it is unfinished."""
        document.cancellation.cancel()
        document.fetched = True
        with self._changed:
            self._documents.pop(document.id, None)
            self._changed.notify_all()

    @contextmanager
    def turn(self, document: DocumentJob) -> Iterator[None]:
        """Wait for this document's turn to translate a chunk of its sentences.

        The next turn goes to the caller with the fewest documents in translation, of several to the one whose last turn
        was longest ago, and then to its document whose last turn was longest ago.

        Raises:
            RequestError: the document was cancelled.
        """
        with self._changed:
            self._waiting.append(document)
            try:
                while not self._is_next(document):
                    document.cancellation.check()
                    self._changed.wait(0.5)
            finally:
                self._waiting.remove(document)
            self._translating.append(document)
            self._turns += 1
            document.last_turn = self._last_turns[document.caller] = self._turns
            document.set_status("translating")
            self._changed.notify_all()
        try:
            document.cancellation.check()
            yield
        finally:
            with self._changed:
                self._translating.remove(document)
                self._changed.notify_all()

    def unfinished(self) -> int:
        """Return the number of documents that are not finished."""
        with self._changed:
            return sum(not document.is_finished for document in self._documents.values())

    def unfetched(self) -> int:
        """Return the number of documents that are unfinished, or finished after `stop_accepting` and not fetched."""
        with self._changed:
            return sum(not document.is_finished or (
                not document.fetched and self._stopping_since <= document.status_changed_at)
                for document in self._documents.values())

    def stop_accepting(self) -> None:
        """Refuse new documents from now on."""
        with self._changed:
            self._stopping_since = min(self._stopping_since, time.monotonic())

    def fail_unfinished(self) -> None:
        """Finish all unfinished documents with the error that the server is stopping."""
        self.stop_accepting()
        with self._changed:
            unfinished = [document for document in self._documents.values() if not document.is_finished]
        for document in unfinished:
            error = server_stopping()
            document.fail(error)
            document.cancellation.cancel(error)
        if unfinished:
            log.warning("%d documents were not translated because the server is shutting down.", len(unfinished))

    def close(self) -> None:
        """Fail all unfinished documents and wait for their threads."""
        self.fail_unfinished()
        self._threads.shutdown()

    def _is_next(self, document: DocumentJob) -> bool:
        """Return whether the model has capacity and no other document comes before this one."""
        direction = document.direction
        if sum(other.direction == direction for other in self._translating) >= MAX_CONCURRENT_DOCUMENTS:
            return False
        waiting = [other for other in self._waiting if other.direction == direction]
        return min(waiting, key=self._turn_priority) is document

    def _turn_priority(self, document: DocumentJob) -> tuple[int, int, int]:
        """Return the sort key of a waiting document: the smallest one has the next turn."""
        running = sum(other.caller == document.caller for other in self._translating)
        return running, self._last_turns.get(document.caller, 0), document.last_turn

    def _delete_fetched(self, documents: list[DocumentJob], limit: int) -> None:
        """Delete fetched documents, the oldest first, until there is space for one more within the limit."""
        documents = [document for document in documents if document.id in self._documents]
        fetched = sorted((document for document in documents if document.fetched and document.is_finished),
                         key=lambda document: document.status_changed_at)
        for document in fetched[:max(len(documents) - limit + 1, 0)]:
            del self._documents[document.id]

    def _delete_expired(self) -> None:
        """Delete expired documents, and callers without documents."""
        oldest = time.monotonic() - self._limits.keep_documents
        self._documents = {id: document for id, document in self._documents.items()
                           if not document.is_finished or document.status_changed_at >= oldest}
        callers = {document.caller for document in self._documents.values()}
        self._last_turns = {caller: turn for caller, turn in self._last_turns.items() if caller in callers}

    @staticmethod
    def _translate(document: DocumentJob, translate: Callable[[DocumentJob], bytes]) -> None:
        try:
            document.complete(translate(document))
        except BaseException as error:   # noqa: BLE001 -- the caller gets the error, and the log the stack trace
            document.fail(request_error_of(error))
