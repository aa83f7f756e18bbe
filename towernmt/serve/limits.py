"""How much a server takes on: sizes, times and numbers, each an option of `towernmt serve`."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.settings import check_ranges, setting


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Raises:
        SettingsError: a value that cannot work.
    """

    max_characters: int = setting(50_000, "Characters that a request may ask to translate.", at_least=1)
    max_segments: int = setting(2_000, "Sentences that a request may ask to translate.", at_least=1)
    max_texts: int = setting(200, "Texts that a request may list.", at_least=1)
    max_body: int = setting(1_000_000, "Bytes of a request's body, of a document's upload --max-document.",
                            at_least=1)
    max_document: int = setting(10_000_000, "Bytes of a document.", at_least=1)
    max_document_characters: int = setting(1_000_000, "Characters of a document that are translated.", at_least=1)
    max_documents: int = setting(100, "Documents that are kept for their users to fetch, and waited for.", at_least=1)
    keep_documents: float = setting(3600.0, "Seconds that a translated document is kept.", above=0)
    max_requests: int = setting(512, "Requests that are worked on at the same time; more are refused with 503.",
                                at_least=1)
    max_queue: int = setting(5_000, "Sentences that wait for a model; more are refused with 503.", at_least=1)
    max_connections: int = setting(2_000, "Connections that are open at the same time; more are closed.", at_least=1)
    max_header: int = setting(32_768, "Bytes of a request's line and headers.", at_least=1024)
    seconds: float = setting(60.0, "Seconds that a request may wait for its translation; then it gets 503.", above=0)
    header_seconds: float = setting(10.0, "Seconds until a request's headers must have come.", above=0)
    body_seconds: float = setting(20.0, "Seconds until a request's body must have come.", above=0)
    idle_seconds: float = setting(15.0, "Seconds that an idle connection is kept open.", above=0)
    stop_seconds: float = setting(60.0, "Seconds that a server which is stopped takes to answer what it has accepted.",
                                  above=0)

    def __post_init__(self) -> None:
        check_ranges(self, shown=lambda name, value: f"--{name.replace('_', '-')} {value}")
