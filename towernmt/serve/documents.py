"""Documents: taken in, translated in the background, and kept for their callers to fetch, for a while.

They are in memory, and go with the process. A document is translated in chunks of sentences, so that texts which
somebody waits for get their turn.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath

from towernmt.core.errors import TowerNMTError
from towernmt.serve.limits import Limits
from towernmt.serve.refusal import Refusal, busy

log = logging.getLogger(__name__)
AT_A_TIME = 2


class Document:
    """A document.

    Attributes:
        number: by which requests name it.
        key: without which nobody gets it.
        name: of the file, without folders.
        status: queued, translating, done or error.
        content: the translation, once it is there.
        characters: that were translated.
        error: a sentence.
        changed: when its status changed, by a clock without jumps.
    """

    def __init__(self, name: str) -> None:
        self.number, self.key = secrets.token_hex(16).upper(), secrets.token_hex(32).upper()
        self.name = PurePath(name.replace("\\", "/")).name[:200] or "document.txt"
        self.status, self.content, self.characters, self.error = "queued", b"", 0, ""
        self.changed = time.monotonic()

    def become(self, status: str) -> None:
        """Another status."""
        self.status, self.changed = status, time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in ("done", "error")


Work = Callable[[], tuple[bytes, int]]
"""Translates a document: its content, and the number of characters."""


class Documents:
    """All documents of a server."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._all: dict[str, Document] = {}
        self._threads = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="document")

    def add(self, name: str, work: Work) -> Document:
        """Take a document in; it is translated when it is its turn.

        Raises:
            Refusal: there are too many.
        """
        document = Document(name)
        with self._lock:
            self._forget()
            if len(self._all) >= self._limits.max_documents:
                raise busy("Too many documents are kept here: fetch yours, or try again later.", 30.0)
            self._all[document.number] = document
        self._threads.submit(self._translate, document, work)
        return document

    def get(self, number: str, key: str) -> Document:
        """A document.

        Raises:
            Refusal: there is none of this number and key.
        """
        with self._lock:
            self._forget()
            found = self._all.get(number)
        if found is None or not secrets.compare_digest(found.key.encode(), key.encode("utf-8", "replace")):
            raise Refusal(404, "There is no such document, or no more.")
        return found

    def remove(self, document: Document) -> None:
        """It was fetched."""
        with self._lock:
            self._all.pop(document.number, None)

    def close(self) -> None:
        """Nobody can fetch any: those that wait are left."""
        self._threads.shutdown(cancel_futures=True)

    def _forget(self) -> None:
        limit = time.monotonic() - self._limits.keep_documents
        self._all = {number: one for number, one in self._all.items() if not (one.is_over and one.changed < limit)}

    @staticmethod
    def _translate(document: Document, work: Work) -> None:
        document.become("translating")
        try:
            document.content, document.characters = work()
            document.become("done")
        except TowerNMTError as error:
            document.error = str(error)
            document.become("error")
        except Exception as error:  # noqa: BLE001 -- the caller learns of it, and the log of the places
            log.error("A document could not be translated.", exc_info=error)
            document.error = "The translation failed on the server's side; its log says why."
            document.become("error")
