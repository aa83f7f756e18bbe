"""The server as an ASGI application: the routes of all interfaces, behind what they share."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from towernmt.serve.api import deepl_documents, deepl_glossaries, deepl_text, libretranslate, operations, own
from towernmt.serve.page import files
from towernmt.serve.refusal import Refusal
from towernmt.serve.service import Service
from towernmt.serve.web.call import Form, refused
from towernmt.serve.web.front import Front

MESSAGES = {404: "There is nothing at this address.", 405: "This address takes another method."}
FORMS: dict[str, Form] = {"/v2/": deepl_text.written, "/v3/": deepl_text.written}
"""How refusals are written below a path, where it is not as LibreTranslate does."""


def make_app(service: Service) -> Any:
    """The application."""
    origins = list(service.access.origins)
    cors = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"],
                       allow_headers=["authorization", "content-type", "x-api-key"], max_age=3600)] if origins else []
    routes = [*operations.routes(), *own.routes(), *libretranslate.routes(), *deepl_text.routes(),
              *deepl_glossaries.routes(), *deepl_documents.routes(), *(files.routes() if service.page else [])]
    app = Starlette(routes=routes, middleware=cors,
                    exception_handlers={HTTPException: _no_route})
    app.state.service = service
    app.router.redirect_slashes = False
    return Front(app, service)


async def _no_route(request: Request, error: Exception) -> Response:
    """An address or a method that there is not."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    form = next((form for prefix, form in FORMS.items() if path.startswith(prefix)), libretranslate.written)
    response = refused(Refusal(status, MESSAGES.get(status, "The request cannot be answered.")), form)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
