"""Limits of a server (sizes, times and numbers, each an option of `towernmt serve`), and the refusal of a request.

A refusal has a status and one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.errors import TowerNMTError
from towernmt.core.settings import check_ranges, setting


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
    max_document: int = setting(10_000_000, "Maximum bytes of a document.", at_least=1)
    max_document_characters: int = setting(1_000_000, "Maximum characters of a document.", at_least=1)
    max_document_sentences: int = setting(20_000, "Maximum sentences of a document.", at_least=1)
    max_documents: int = setting(100, "Maximum documents that are being translated or kept for download.", at_least=1)
    max_caller_documents: int = setting(20, "Maximum documents of one caller; more are refused with 429.", at_least=1)
    keep_documents: float = setting(3600.0, "Seconds to keep a translated document.", above=0)
    max_requests: int = setting(512, "Maximum concurrent requests; more are refused with 503.",
                                at_least=1)
    max_queue: int = setting(5_000, "Maximum sentences in the queue of a model; more are refused with 503.", at_least=1)
    max_connections: int = setting(2_000, "Maximum open connections; more are closed.", at_least=1)
    max_header: int = setting(32_768, "Maximum bytes of a request's first line and headers.", at_least=1024)
    seconds: float = setting(60.0, "Time limit of a translation in seconds; then the request gets 503. "
                             "Documents have no limit.", above=0)
    header_seconds: float = setting(10.0, "Seconds within which the headers must arrive.", above=0)
    body_seconds: float = setting(20.0, "Seconds within which the body must arrive.", above=0)
    idle_seconds: float = setting(15.0, "Seconds to keep an idle connection open.", above=0)
    stop_seconds: float = setting(60.0, "Seconds to finish accepted requests when the server stops; the rest then "
                                  "gets an error.",
                                  above=0)

    def __post_init__(self) -> None:
        check_ranges(self, format_value=lambda name, value: f"--{name.replace('_', '-')} {value}")


class Refusal(TowerNMTError):
    """A refused request, with one sentence for the client.

    Attributes:
        status: HTTP status.
        retry_after: seconds after which to repeat the request; None means not to repeat it.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class UnsupportedLanguage(Refusal):
    """Refusal of a language that the server does not support, or not in combination with the other language.

    Attributes:
        parameter: "source" or "target".
        hint: sentence that lists the supported languages.
    """

    def __init__(self, parameter: str, what: str, hint: str) -> None:
        super().__init__(400, f"{what}: {hint}")
        self.parameter, self.hint = parameter, hint


def bad(message: str) -> Refusal:
    """Return the refusal of an invalid request (400)."""
    return Refusal(400, message)


def busy(message: str, retry_after: float = 1.0) -> Refusal:
    """Return the refusal of an overloaded server (503)."""
    return Refusal(503, message, retry_after)
