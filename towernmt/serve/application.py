"""The ASGI application of the server: the routes of all interfaces and of the page, and the answers to errors.

The files of the page have a type, an ETag and a strict content security policy.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from towernmt.serve.api import deepl, deepl_glossaries, libretranslate, native, native_documents, operations
from towernmt.serve.request_limits import RequestError
from towernmt.serve.service import Service
from towernmt.serve.web.http_requests import FAILED, ErrorFormat, RequestMiddleware, error_json, error_response

INDEX = "index.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
"""Browsers revalidate each file, and run scripts of this server only."""


@cache
def page_files() -> dict[str, bytes]:
    """Return the files of the page by name."""
    return {file.name: file.read_bytes() for file in (files("towernmt.serve") / "assets").iterdir()}


def _page_route(name: str) -> Route:
    content = page_files()[name]
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def answer(request: Request) -> Response:
        headers = {**HEADERS, "ETag": etag}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=TYPES[name[name.rindex("."):]])

    return Route("/" if name == INDEX else f"/page/{name}", answer, methods=["GET"])


def page_routes() -> list[Route]:
    """Return the routes of the page: `/`, and its other files below `/page/`."""
    return [_page_route(name) for name in page_files()]


MESSAGES = {404: "There is nothing at this address.", 405: "This address takes another method."}
ERROR_FORMATS: dict[str, ErrorFormat] = {"/v2/": deepl.deepl_error, "/v3/": deepl.deepl_error}
"""Functions that return errors as JSON, by path prefix. All other paths use LibreTranslate's format."""


def make_app(service: Service) -> Any:
    """Return the ASGI application of a service."""
    origins = list(service.access.origins)
    cors = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                       allow_headers=["authorization", "content-type", "x-api-key", native_documents.KEY_HEADER],
                       expose_headers=["retry-after"], max_age=3600)] if origins else []
    routes = [*operations.routes(), *native.routes(), *native_documents.routes(), *libretranslate.routes(),
              *deepl.text_routes(), *deepl_glossaries.glossary_routes(), *deepl.document_routes(),
              *(page_routes() if service.page else [])]
    app = Starlette(routes=routes, middleware=cors,
                    exception_handlers={HTTPException: _no_route, Exception: _failure})
    app.state.service = service
    app.router.redirect_slashes = False
    return RequestMiddleware(app, service, error_format_of)


def error_format_of(path: str) -> ErrorFormat:
    """Return the function that returns the errors of a path as JSON."""
    return next((error_format for prefix, error_format in ERROR_FORMATS.items() if path.startswith(prefix)),
                error_json)


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = error_response(RequestError(status, MESSAGES.get(status, FAILED)), error_format_of(request.url.path))
    if status == 405:
        allowed = {method for route in request.app.routes if isinstance(route, Route)
                   and route.path_regex.match(request.url.path) for method in route.methods or ()}
        response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


async def _failure(request: Request, error: Exception) -> Response:
    """Answer a request that failed for an unexpected reason; `RequestMiddleware` logs it."""
    return error_response(RequestError(500, FAILED), error_format_of(request.url.path))
