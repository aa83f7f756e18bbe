"""LibreTranslate's interface, as its clients use it (version 1.9).

Errors are `{"error": "..."}`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.dataflow.text.language_codes import language_name
from towernmt.documents.formats.text_files import SUFFIXES
from towernmt.serve.api.native_documents import as_file, opened, taken_in
from towernmt.serve.request_limits import Refusal, bad
from towernmt.serve.served_models import detect
from towernmt.serve.text_translation import TextRequest, sample_of, translate_texts
from towernmt.serve.web.http_requests import Call, check_texts, endpoint

FORMATS = ("text", "html")


def libretranslate_error(refusal: Refusal) -> dict[str, Any]:
    """Return a refusal as JSON."""
    return {"error": str(refusal)}


async def translate(call: Call) -> Response:
    """Answer `/translate`: `q` (one or more texts), `source` (a code or `auto`), `target`, `format`, `alternatives`.

    The refusals have the wording of LibreTranslate, which clients compare.
    """
    texts = _texts(call)
    source, target = _required(call, "source"), _required(call, "target")
    format = call.parameters.text("format") or "text"
    if format not in FORMATS:
        raise bad(f"{format[:40]} format is not supported: there are {', '.join(FORMATS)}.")
    model, detected = call.service.models.find(source, target, sample_of(texts, format))
    alternatives = _alternatives(call, model.model.alternatives - 1)
    check_texts(call, model.direction, texts)
    asked = TextRequest(format=format, alternatives=alternatives)
    answers = await call.in_thread(partial(translate_texts, model, texts, asked, call.service.limits, call.ticket))
    answer: dict[str, Any] = {"translatedText": [one.text for one in answers]}
    if detected is not None:
        language = {"confidence": round(100 * detected.confidence), "language": detected.language}
        answer["detectedLanguage"] = [language] * len(texts)
    if alternatives:
        answer["alternatives"] = [one.alternatives for one in answers]
    return JSONResponse(answer if call.parameters.is_list("q") else {name: value[0] for name, value in answer.items()})


async def languages(call: Call) -> Response:
    """Answer `/languages` with the source languages and their target languages."""
    models = call.service.models
    codes = sorted({*models.sources, *models.targets})
    return JSONResponse([{"code": code, "name": language_name(code), "targets": models.targets_of(code)}
                         for code in codes])


async def detect_language(call: Call) -> Response:
    """Answer `/detect` with the source languages, most probable first."""
    texts = _texts(call)
    check_texts(call, None, texts)
    return JSONResponse([{"confidence": round(100 * one.confidence), "language": one.language}
                         for one in detect(" ".join(texts), call.service.models.languages)])


async def translate_file(call: Call) -> Response:
    """Answer `/translate_file` (`file`, `source`, `target`) with the URL of the translation once it is finished."""
    if "file" not in call.parameters.files:
        raise bad("Invalid request: missing file parameter")
    source, target = _required(call, "source"), _required(call, "target")
    if not call.parameters.files["file"].name:
        raise bad("Invalid request: empty file")
    name, file = await opened(call, "Invalid request: file format not supported")
    model, _ = call.service.models.find(source, target, file.sample)
    document = await taken_in(call, name, file, model)
    try:
        await call.until(lambda: document.is_over)
    finally:
        if document.status != "done":       # it has failed, or its client has gone
            call.service.documents.remove(document)
    if document.refusal is not None:
        raise document.refusal
    address = call.request.url_for("download_file", number=document.number, key=document.key)
    return JSONResponse({"translatedFileUrl": str(address)})


async def download_file(call: Call) -> Response:
    """Answer `/download_file/...` with a translated file."""
    path = call.request.path_params
    return as_file(call.service.documents.get(path["number"], path["key"]))


async def suggest(call: Call) -> Response:
    """Answer `/suggest`: `q` (source text), `s` (a better translation), `source`, `target`.

    `translation`, which LibreTranslate does not have, is the translation that the suggestion improves.
    """
    if not call.service.suggestions.accepted:
        raise Refusal(403, "Suggestions are disabled on this server.")
    q, suggestion, source, target = (_required(call, name) for name in ("q", "s", "source", "target"))
    translation = call.parameters.text("translation") or ""
    check_texts(call, None, [q, suggestion, translation])
    model, _ = call.service.models.find(source, target, q)
    store = partial(call.service.suggestions.add, f"{model.direction}={model.place}", q, translation, suggestion)
    await call.in_thread(store)
    return JSONResponse({"success": True})


async def settings(call: Call) -> Response:
    """Answer `/frontend/settings`, which LibreTranslate's own page requests first."""
    models, limits = call.service.models, call.service.limits
    source = models.sources[0]
    target = models.targets_of(source)[0]
    return JSONResponse({
        "apiKeys": call.service.access.keys is not None, "charLimit": limits.max_characters, "frontendTimeout": 500,
        "keyRequired": call.service.access.keys is not None, "suggestions": call.service.suggestions.accepted,
        "filesTranslation": True,
        "supportedFilesFormat": list(SUFFIXES),
        "language": {"source": {"code": source, "name": language_name(source)},
                     "target": {"code": target, "name": language_name(target)}}})


def routes() -> list[Route]:
    """Return the routes of LibreTranslate's interface."""
    return [
        Route("/translate", endpoint(translate, libretranslate_error), methods=["GET", "POST"]),
        Route("/languages", endpoint(languages, libretranslate_error, open_to_all=True), methods=["GET"]),
        Route("/detect", endpoint(detect_language, libretranslate_error), methods=["POST"]),
        Route("/translate_file",
              endpoint(translate_file, libretranslate_error, lambda service: service.limits.max_document),
              methods=["POST"]),
        Route("/download_file/{number}/{key}", endpoint(download_file, libretranslate_error, open_to_all=True),
              methods=["GET"], name="download_file"),
        Route("/suggest", endpoint(suggest, libretranslate_error), methods=["POST"]),
        Route("/frontend/settings", endpoint(settings, libretranslate_error, open_to_all=True), methods=["GET"])]


def _required(call: Call, name: str) -> str:
    """Return the text of a parameter.

    Raises:
        Refusal: it is missing; the message has LibreTranslate's wording, which clients compare.
    """
    found = call.parameters.text(name)
    if found is None:
        raise bad(f"Invalid request: missing {name} parameter")
    return found


def _texts(call: Call) -> list[str]:
    """Return the texts of the parameter `q`.

    Raises:
        Refusal: it is missing, or not a text.
    """
    if texts := call.parameters.texts("q"):
        return texts
    raise bad("Invalid request: missing q parameter")


def _alternatives(call: Call, most: int) -> int:
    """Return the requested number of alternatives.

    Raises:
        Refusal: it is not a number, or larger than `most`.
    """
    value = (call.parameters.given("alternatives") or [0])[0]
    try:
        number = int(value) if type(value) in (str, int) and len(str(value)) < 20 else None
    except ValueError:
        number = None
    if number is None:
        raise bad("Invalid request: alternatives parameter is not a number")
    if number > most:
        raise bad(f"Invalid request: alternatives parameter must be <= {most}: this server gives at most {most + 1} "
                  "translations of a sentence (its option --alternatives).")
    return max(0, number)
