"""The native HTTP interface: n-best lists, scores, alignments, prefixes and streaming.

Requests are read by the table of fields in `native_fields.py`. Responses are JSON with texts, scores, words, word
alignments and the model's confidence. Errors are `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from towernmt.predict.lines.line_options import OPTIONS, LineOptions
from towernmt.serve.api.native_answers import public_card, sentence_json
from towernmt.serve.api.native_description import description
from towernmt.serve.api.native_fields import MAX_TRANSLATIONS, option_texts, read_fields
from towernmt.serve.glossary_entries import terminology_of
from towernmt.serve.request_limits import RequestError, bad_request
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import Sentence, TextRequest, check_model, detection_text, translate_texts
from towernmt.serve.web.http_requests import (
    FAILED,
    KEY_NAMES,
    Call,
    check_texts,
    count_characters,
    endpoint,
    error_json,
)
from towernmt.serve.web.request_bodies import ClientDisconnected

log = logging.getLogger(__name__)
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
_UNSUPPORTED = ("This server does not return {what}: its engine does not support it, or the server was started without "
                "--alignments.")


async def translate(call: Call) -> Response:
    """Answer `/api/v1/translate`; `FIELDS` describes the request."""
    fields = read_fields(call.parameters, KEY_NAMES)
    texts = fields["text"]
    if not texts:
        raise bad_request("'text' is missing.")
    options = option_texts(fields)
    check_texts(call, texts, options)
    model, detected = call.service.models.find(fields["source"], fields["target"],
                                               detection_text(texts, fields["format"]))
    request = _text_request(fields, model)
    count_characters(call, {model.direction: sum(map(len, texts))}, sum(map(len, options)))
    if fields["glossary"]:
        request = await call.run_in_thread(partial(_with_glossary, request, fields["glossary"], model))
    header: dict[str, Any] = {**model.direction._asdict(), "model": model.model.name}
    if detected is not None:
        header["detected"] = {"language": detected.language, "confidence": round(detected.confidence, 4)}
    if fields["stream"]:
        events = EVENTS in call.request.headers.get("accept", "")
        return StreamingResponse(_stream_sentences(call, model, fields, request, header, events),
                                 media_type=EVENTS if events else LINES, headers={"Cache-Control": "no-store"})
    answers = await call.run_in_thread(
        partial(translate_texts, model, texts, request, call.service.limits, call.cancellation))
    return JSONResponse({**header, "translations": [
        {"text": answer.text, "sentences": [sentence_json(sentence, fields["alignments"], fields["confidence"])
                                            for sentence in answer.sentences]} for answer in answers]})


async def describe(call: Call) -> Response:
    """Answer `/api/v1/openapi.json`."""
    return JSONResponse(description(
        call.service.limits, min(call.service.models.max_alternatives, MAX_TRANSLATIONS)))


async def models(call: Call) -> Response:
    """Answer `/api/v1/models` with the models, their features and cards, and the limits of a request."""
    limits = call.service.limits
    return JSONResponse({"models": [
        {"source": model.direction.source, "target": model.direction.target, "model": model.model.name,
         "engine": model.model.engine(), "alternatives": min(model.model.alternatives, MAX_TRANSLATIONS),
         "alignments": model.model.aligns, "constraints": model.model.constrains,
         **({} if model.model.card is None else {"card": public_card(model.model.card)})}
        for model in call.service.models], "limits": {"characters": limits.max_characters, "texts": limits.max_texts,
                                                      "sentences": limits.max_segments}})


def routes() -> list[Route]:
    """Return the routes of the native interface."""
    return [Route("/api/v1/translate", endpoint(translate, error_json), methods=["GET", "POST"]),
            Route("/api/v1/models", endpoint(models, error_json, public=True), methods=["GET"]),
            Route("/api/v1/openapi.json", endpoint(describe, error_json, public=True), methods=["GET"])]


def _text_request(fields: dict[str, Any], model: ServedModel) -> TextRequest:
    """Return the translation request of the fields without its glossary.

    Raises:
        RequestError: the model does not support it.
    """
    options = LineOptions(**{name: fields[name] for name, option in OPTIONS.items() if option.help and fields[name]})
    one_sentence_option = next(
        (name for name, option in OPTIONS.items() if option.one_sentence and getattr(options, name)), None)
    if one_sentence_option and (len(fields["text"]) > 1 or len(fields["text"][0].strip().splitlines()) > 1):
        raise bad_request(f"'{one_sentence_option}' is for a text of one sentence: send one.")
    for feature in ("alignments", "confidence"):
        if fields[feature] and not model.model.aligns:
            raise bad_request(_UNSUPPORTED.format(what=feature))
    request = TextRequest(None, fields["format"], options, fields["n_best"] - 1,
                          fields["alignments"] or fields["confidence"], split="0" if one_sentence_option else None)
    check_model(model, request)
    return request


def _with_glossary(request: TextRequest, entries: Mapping[str, str], model: ServedModel) -> TextRequest:
    """Return a translation request with the terms of a glossary. This can take seconds.

    Raises:
        RequestError: a term cannot be used, or the model does not support glossaries.
    """
    request = replace(request, glossary=terminology_of(entries))
    check_model(model, request)
    return request


async def _stream_sentences(call: Call, model: ServedModel, fields: dict[str, Any], request: TextRequest,
                            header: dict[str, Any], events: bool) -> AsyncIterator[bytes]:
    """Yield sentences as they finish and finally the complete texts, or an error."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def send(value: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, value)

    def translate_all() -> None:
        def on_sentence(text: int, index: int, sentence: Sentence) -> None:
            content = sentence_json(sentence, fields["alignments"], fields["confidence"])
            send({"text": text, "sentence": index, **content})

        answers = translate_texts(model, fields["text"], request, call.service.limits, call.cancellation, on_sentence)
        send({"done": True, **header, "translations": [answer.text for answer in answers]})

    async def run() -> None:
        try:
            await call.run_in_thread(translate_all)
        except RequestError as error:
            send({**error_json(error), "status": error.status})
        except ClientDisconnected:
            return
        except Exception as error:  # noqa: BLE001 -- the client gets an error as the last line
            log.error("A stream failed.", exc_info=error)
            send({**error_json(RequestError(500, FAILED)), "status": 500})
        finally:
            send(None)

    task = asyncio.create_task(run())
    try:
        while (value := await queue.get()) is not None:
            line = json.dumps(value, ensure_ascii=False)
            yield (f"data: {line}\n\n" if events else f"{line}\n").encode()
    finally:
        call.cancellation.cancel()
        await asyncio.gather(task, return_exceptions=True)
