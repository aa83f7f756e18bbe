"""LibreTranslate's interface, as its clients speak it (version 1.9).

Errors are `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.documents.formats.registry import SUFFIXES
from towernmt.serve.api.deepl_documents import as_file, opened, translated
from towernmt.serve.detection import detect
from towernmt.serve.languages import language_name
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.text import TextAsked, sample_of, translate_texts
from towernmt.serve.web.amounts import check_texts
from towernmt.serve.web.call import Call, endpoint

FORMATS = ("text", "html")


def written(refusal: Refusal) -> dict[str, Any]:
    """A refusal."""
    return {"error": str(refusal)}


async def translate(call: Call) -> Response:
    """`/translate`: `q` (a text or several), `source` (a code, or `auto`), `target`, `format`, `alternatives`."""
    texts = call.parameters.texts("q")
    if not call.parameters.given("q"):
        raise bad("Invalid request: missing q parameter")
    source, target = call.parameters.required("source"), call.parameters.required("target")
    format = call.parameters.choice("format", FORMATS, "text")
    alternatives = call.parameters.number("alternatives", 0, 0, 100)
    model, detected = call.service.models.find(None if source == "auto" else source, target, sample_of(texts, format))
    check_texts(call, model.direction, texts)
    asked = TextAsked(format=format, alternatives=alternatives)
    answers = await call.in_thread(lambda: translate_texts(model, texts, asked, call.service.limits, call.ticket))
    answer: dict[str, Any] = {"translatedText": [one.text for one in answers]}
    if detected is not None:
        language = {"confidence": round(100 * detected.confidence), "language": detected.language}
        answer["detectedLanguage"] = [language] * len(texts)
    if alternatives:
        answer["alternatives"] = [one.alternatives for one in answers]
    return JSONResponse(answer if call.parameters.is_list("q") else {name: value[0] for name, value in answer.items()})


async def languages(call: Call) -> Response:
    """`/languages`: those that are served, from which and into which."""
    models = call.service.models
    codes = sorted({*models.sources, *models.targets})
    return JSONResponse([{"code": code, "name": language_name(code), "targets": models.targets_of(code)}
                         for code in codes])


async def detect_language(call: Call) -> Response:
    """`/detect`: the languages that are served, the most probable first."""
    texts = call.parameters.texts("q")
    if not texts:
        raise bad("Invalid request: missing q parameter")
    check_texts(call, None, texts)
    return JSONResponse([{"confidence": round(100 * one.confidence), "language": one.language}
                         for one in detect(" ".join(texts), call.service.models.sources)])


async def translate_file(call: Call) -> Response:
    """`/translate_file`: `file`, `source`, `target`; answers with the address of the translation."""
    name, file = await opened(call)
    source, target = call.parameters.required("source"), call.parameters.required("target")
    model, _ = call.service.models.find(None if source == "auto" else source, target, file.sample)
    document = call.service.documents.add(name, lambda: translated(call, model, file))
    while not document.is_over:
        await asyncio.sleep(0.05)
        call.check()
    if document.status == "error":
        call.service.documents.remove(document)
        raise bad(document.error)
    address = call.request.url_for("download_file", number=document.number, key=document.key)
    return JSONResponse({"translatedFileUrl": str(address)})


async def download_file(call: Call) -> Response:
    """`/download_file/...`: a translated file."""
    path = call.request.path_params
    return as_file(call.service.documents.get(path["number"], path["key"]))


async def settings(call: Call) -> Response:
    """`/frontend/settings`: what LibreTranslate's own page asks first."""
    models, limits = call.service.models, call.service.limits
    source = models.sources[0]
    target = models.targets_of(source)[0]
    return JSONResponse({
        "apiKeys": call.service.access.keys is not None, "charLimit": limits.max_characters, "frontendTimeout": 500,
        "keyRequired": call.service.access.keys is not None, "suggestions": False, "filesTranslation": True,
        "supportedFilesFormat": list(SUFFIXES),
        "language": {"source": {"code": source, "name": language_name(source)},
                     "target": {"code": target, "name": language_name(target)}}})


def routes() -> list[Route]:
    """The routes."""
    return [
        Route("/translate", endpoint(translate, written), methods=["GET", "POST"]),
        Route("/languages", endpoint(languages, written, open_to_all=True), methods=["GET", "POST"]),
        Route("/detect", endpoint(detect_language, written), methods=["GET", "POST"]),
        Route("/translate_file", endpoint(translate_file, written, lambda service: service.limits.max_document),
              methods=["POST"]),
        Route("/download_file/{number}/{key}", endpoint(download_file, written, open_to_all=True), methods=["GET"],
              name="download_file"),
        Route("/frontend/settings", endpoint(settings, written, open_to_all=True), methods=["GET"])]
