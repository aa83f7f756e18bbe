"""A request that is not answered as it wished: its status, and one sentence."""

from __future__ import annotations

from towernmt.core.errors import TowerNMTError


class Refusal(TowerNMTError):
    """What a client is told.

    Attributes:
        status: of HTTP.
        retry_after: seconds after which the same request may be answered; None: it will not be.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


def bad(message: str) -> Refusal:
    """The request itself is wrong."""
    return Refusal(400, message)


def busy(message: str, retry_after: float = 1.0) -> Refusal:
    """There is too much to do just now."""
    return Refusal(503, message, retry_after)
