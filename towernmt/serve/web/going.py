"""Clients that go before they are answered."""

from __future__ import annotations


class ClientGone(Exception):  # noqa: N818 -- no error of the server's
    """Nobody is there to be answered."""
