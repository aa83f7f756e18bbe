"""Limits of a server (sizes, times and numbers, each an option of `towernmt serve`), and the errors of requests."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.errors import TowerNMTError
from towernmt.core.settings import check_ranges, setting

MAX_SECONDS = 4_000_000
"""Maximum of a time limit (46 days): threads on Windows cannot wait longer."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server.

    Raises:
        SettingsError: a value is out of range.
    """

    max_characters: int = setting(50_000, "Maximum characters of a request.", at_least=1)
    max_segments: int = setting(2_000, "Maximum sentences of a request.", at_least=1)
    max_texts: int = setting(200, "Maximum texts of a request.", at_least=1)
    max_body: int = setting(1_000_000, "Maximum bytes of a request's body; for documents, see --max-document.",
                            at_least=1)
    max_bodies: int = setting(200_000_000, "Maximum bytes of the bodies that are being received at the same time, but "
                                           "at least --max-document; more are refused with 503.", at_least=1)
    max_document: int = setting(10_000_000, "Maximum bytes of a document.", at_least=1)
    max_document_characters: int = setting(1_000_000, "Maximum characters of a document.", at_least=1)
    max_document_sentences: int = setting(20_000, "Maximum sentences of a document.", at_least=1)
    max_documents: int = setting(100, "Maximum documents that are being translated or kept for download.", at_least=1)
    max_caller_documents: int = setting(20, "Maximum documents of one caller; more are refused with 429.", at_least=1)
    keep_documents: float = setting(3600.0, "Seconds to keep a translated document.", above=0, at_most=MAX_SECONDS)
    max_requests: int = setting(512, "Maximum concurrent requests; more are refused with 503.",
                                at_least=1)
    max_queue: int = setting(5_000, "Maximum sentences in the queue of a model; more are refused with 503.", at_least=1)
    max_connections: int = setting(2_000, "Maximum open connections; more are closed.", at_least=1)
    max_header: int = setting(32_768, "Maximum bytes of a request's first line and headers.", at_least=1024)
    seconds: float = setting(60.0, "Time limit of a translation in seconds; then the request gets 503. "
                             "Documents have no limit.", above=0, at_most=MAX_SECONDS)
    header_seconds: float = setting(10.0, "Seconds within which the headers must arrive.", above=0, at_most=MAX_SECONDS)
    body_seconds: float = setting(20.0, "Seconds within which the body must arrive.", above=0, at_most=MAX_SECONDS)
    idle_seconds: float = setting(15.0, "Seconds to keep an idle connection open.", above=0, at_most=MAX_SECONDS)
    stop_seconds: float = setting(60.0, "Seconds to finish accepted requests when the server stops; the rest then "
                                  "gets an error.",
                                  above=0, at_most=MAX_SECONDS)

    def __post_init__(self) -> None:
        check_ranges(self, format_value=lambda name, value: f"--{name.replace('_', '-')} {value}")


class RequestError(TowerNMTError):
    """A request that the server refuses or cannot complete, with one sentence for the client.

    Create a new error for each request: an exception that is raised again keeps the stack frames of each time, and so
    the texts in their variables.

    Attributes:
        status: HTTP status.
        retry_after: seconds after which to repeat the request; None means not to repeat it.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class UnsupportedLanguageError(RequestError):
    """Refusal of a language that the server does not support, or not in combination with the other language.

    Attributes:
        parameter: "source" or "target".
        hint: sentence that lists the supported languages.
    """

    def __init__(self, parameter: str, problem: str, hint: str) -> None:
        super().__init__(400, f"{problem}: {hint}")
        self.parameter, self.hint = parameter, hint


def bad_request(message: str) -> RequestError:
    """Return the error for an invalid request (400)."""
    return RequestError(400, message)


def unavailable(message: str, retry_after: float = 1.0) -> RequestError:
    """Return the error of an overloaded or stopping server (503).

    Args:
        message: sentence for the client.
        retry_after: seconds after which the client may repeat the request.
    """
    return RequestError(503, message, retry_after)


DISCONNECTED = 499
"""Status of a request whose client disconnected before the answer, as in nginx."""


def client_disconnected() -> RequestError:
    """Return the error of a request whose client has closed the connection; nobody receives it."""
    return RequestError(DISCONNECTED, "The client closed the connection.")


def server_stopping() -> RequestError:
    """Return the error of a request that a stopping server does not finish (503)."""
    return unavailable("The server is stopping, and did not finish this translation: send it again in a moment.", 5.0)
