"""The files of the page, as routes: each with its type, a mark by which browsers know it again, and a strict policy."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

INDEX = "index.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
"""Browsers ask each time whether a file is as it was; programs come from this server alone."""


@cache
def page_files() -> dict[str, bytes]:
    """The files by their names."""
    return {file.name: file.read_bytes() for file in (files("towernmt.serve.page") / "assets").iterdir()}


def _answer(name: str) -> Route:
    content = page_files()[name]
    mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def answer(request: Request) -> Response:
        headers = {**HEADERS, "ETag": mark}
        if mark in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=TYPES[name[name.rindex("."):]])

    return Route("/" if name == INDEX else f"/page/{name}", answer, methods=["GET"])


def routes() -> list[Route]:
    """The routes: the page at `/`, its other files below `/page/`."""
    return [_answer(name) for name in page_files()]
