"""Our own interface: n-best lists, scores, alignments, prefixes, and sentences as soon as they are translated.

Errors are `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from towernmt.predict.lines.options import LineOptions
from towernmt.serve.api.description import description
from towernmt.serve.api.fields import read_fields
from towernmt.serve.api.libretranslate import written
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.glossaries import terminology_of
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.sentences import as_json
from towernmt.serve.text import Sentence, TextAsked, check_model, sample_of, translate_texts
from towernmt.serve.web.amounts import check_texts
from towernmt.serve.web.call import KEY_NAMES, Call, endpoint

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
NO_ENGINE = "This server gives no {what}: its engine has none, or it was started without --alignments."


async def translate(call: Call) -> Response:
    """`/api/v1/translate`: see `fields`."""
    asked = read_fields(call.parameters, KEY_NAMES)
    texts = asked["text"]
    if not texts:
        raise bad("'text' is missing.")
    source = None if asked["source"] in (None, "auto") else asked["source"]
    model, detected = call.service.models.find(source, asked["target"], sample_of(texts, asked["format"]))
    wanted = _wanted(asked, model)
    check_texts(call, model.direction, texts)
    head: dict[str, Any] = {**model.direction._asdict(), "model": model.model.name}
    if detected is not None:
        head["detected"] = {"language": detected.language, "confidence": detected.confidence}
    if asked["stream"]:
        events = EVENTS in call.request.headers.get("accept", "")
        return StreamingResponse(_streamed(call, model, asked, wanted, head, events),
                                 media_type=EVENTS if events else LINES, headers={"Cache-Control": "no-store"})
    answers = await call.in_thread(lambda: translate_texts(model, texts, wanted, call.service.limits, call.ticket))
    return JSONResponse({**head, "translations": [
        {"text": answer.text, "sentences": [as_json(one, asked["alignments"], asked["confidence"])
                                            for one in answer.sentences]} for answer in answers]})


async def describe(call: Call) -> Response:
    """`/api/v1/openapi.json`."""
    return JSONResponse(description(call.service.limits))


async def models(call: Call) -> Response:
    """`/api/v1/models`: what is served, and what it can do."""
    return JSONResponse({"models": [
        {"source": one.direction.source, "target": one.direction.target, "model": one.model.name,
         "alternatives": one.model.alternatives, "alignments": one.model.aligns, "constraints": one.model.constrains}
        for one in call.service.models]})


def routes() -> list[Route]:
    """The routes."""
    return [Route("/api/v1/translate", endpoint(translate, written), methods=["GET", "POST"]),
            Route("/api/v1/models", endpoint(models, written, open_to_all=True), methods=["GET"]),
            Route("/api/v1/openapi.json", endpoint(describe, written, open_to_all=True), methods=["GET"])]


def _wanted(asked: dict[str, Any], model: ServedModel) -> TextAsked:
    """What is asked of the texts.

    Raises:
        Refusal: the model cannot do it.
    """
    options = LineOptions(prefix=asked["prefix"] or "", partial_word=asked["partial_word"], avoid=asked["avoid"],
                          constraints=asked["constraints"])
    of_one = next((name for name in ("prefix", "constraints") if getattr(options, name)), None)
    if of_one and (len(asked["text"]) > 1 or len(asked["text"][0].strip().splitlines()) > 1):
        raise bad(f"'{of_one}' is for a text of one sentence: send one.")
    for what in ("alignments", "confidence"):
        if asked[what] and not model.model.aligns:
            raise bad(NO_ENGINE.format(what=what))
    glossary = terminology_of(asked["glossary"]) if asked["glossary"] else None
    wanted = TextAsked(glossary, asked["format"], options, asked["n_best"] - 1, split=of_one is None)
    check_model(model, wanted)
    return wanted


async def _streamed(call: Call, model: ServedModel, asked: dict[str, Any], wanted: TextAsked,
                    head: dict[str, Any], events: bool) -> AsyncIterator[bytes]:
    """Sentences as they finish, then the whole texts; an error in their place."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def put(value: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, value)

    def work() -> None:
        def done(text: int, place: int, sentence: Sentence) -> None:
            put({"text": text, "sentence": place, **as_json(sentence, asked["alignments"], asked["confidence"])})

        answers = translate_texts(model, asked["text"], wanted, call.service.limits, call.ticket, done)
        put({"done": True, **head, "translations": [answer.text for answer in answers]})

    async def watched() -> None:
        try:
            await call.in_thread(work)
        except Refusal as refusal:
            put({**written(refusal), "status": refusal.status})
        finally:
            put(None)

    task = asyncio.create_task(watched())
    try:
        while (value := await queue.get()) is not None:
            line = json.dumps(value, ensure_ascii=False)
            yield (f"data: {line}\n\n" if events else f"{line}\n").encode()
    finally:
        call.ticket.leave()
        await asyncio.gather(task, return_exceptions=True)
