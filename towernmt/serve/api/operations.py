"""What those who run the server ask: whether it lives, whether it is ready, its figures, an exchange of its models."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from towernmt import __version__
from towernmt.serve.api.libretranslate import written
from towernmt.serve.refusal import Refusal
from towernmt.serve.web.call import Call, endpoint
from towernmt.serve.web.metrics import CONTENT_TYPE


async def health(call: Call) -> Response:
    """`/health`: the process answers."""
    return JSONResponse({"status": "ok", "version": __version__})


async def ready(call: Call) -> Response:
    """`/ready`: models are loaded, and the server is not about to stop."""
    if call.service.stopping:
        raise Refusal(503, "The server is about to stop.", 5.0)
    return JSONResponse({"status": "ready", "models": [
        {"source": model.direction.source, "target": model.direction.target} for model in call.service.models]})


async def metrics(call: Call) -> Response:
    """`/metrics`: figures for Prometheus."""
    return PlainTextResponse(call.service.metrics.text(), media_type=CONTENT_TYPE)


async def exchange(call: Call) -> Response:
    """`/admin/exchange`: load the models anew; needs a key that was made with --admin."""
    if not call.admin:
        raise Refusal(403, "To exchange models needs a key that was made with --admin; or send the process SIGHUP.")
    told = await asyncio.to_thread(call.service.exchange)
    failed = {direction: error for direction, error in told.items() if error}
    return JSONResponse({"exchanged": sorted(set(told) - set(failed)), "failed": failed}, 500 if failed else 200)


def routes() -> list[Route]:
    """The routes."""
    return [Route("/health", endpoint(health, written, open_to_all=True), methods=["GET"]),
            Route("/ready", endpoint(ready, written, open_to_all=True), methods=["GET"]),
            Route("/metrics", endpoint(metrics, written, open_to_all=True), methods=["GET"]),
            Route("/admin/exchange", endpoint(exchange, written), methods=["POST"])]
