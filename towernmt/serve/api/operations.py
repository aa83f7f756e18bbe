"""Routes for operators: health, metrics, and reloading of the models."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from towernmt import __version__
from towernmt.serve.request_limits import RequestError
from towernmt.serve.web.http_requests import Call, endpoint, error_json
from towernmt.serve.web.observability import CONTENT_TYPE


async def health(call: Call) -> Response:
    """Answer `/health`: the process is running."""
    return JSONResponse({"status": "ok", "version": __version__})


async def ready(call: Call) -> Response:
    """Answer `/ready`: the models are loaded and respond, and the server is not shutting down."""
    if (error := call.service.readiness_error()) is not None:
        raise error
    return JSONResponse({"status": "ready", "models": [
        {"source": model.direction.source, "target": model.direction.target} for model in call.service.models]})


async def metrics(call: Call) -> Response:
    """Answer `/metrics` with figures for Prometheus."""
    return PlainTextResponse(call.service.metrics.text(), media_type=CONTENT_TYPE)


async def reload(call: Call) -> Response:
    """Answer `/admin/reload`: reload the models. The caller needs a key that was made with --admin."""
    if not call.admin:
        raise RequestError(403, "Only a key that was created with --admin may reload models: use such a key, or send "
                                "SIGHUP to the process.")
    errors = await asyncio.to_thread(call.service.reload)
    failed = {direction: error for direction, error in errors.items() if error}
    return JSONResponse({"reloaded": sorted(set(errors) - set(failed)), "failed": failed}, 500 if failed else 200)


def routes() -> list[Route]:
    """Return the routes for operators."""
    return [Route("/health", endpoint(health, error_json, public=True), methods=["GET"]),
            Route("/ready", endpoint(ready, error_json, public=True), methods=["GET"]),
            Route("/metrics", endpoint(metrics, error_json, public=True), methods=["GET"]),
            Route("/admin/reload", endpoint(reload, error_json), methods=["POST"])]
