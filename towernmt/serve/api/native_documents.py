"""Documents of the native interface: upload, progress, download and cancellation.

The document's key comes as the header `X-Document-Key` or as the value `key`. Errors are `{"error": "..."}`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.document_jobs import DocumentJob, OpenedFile
from towernmt.serve.request_limits import Refusal, bad
from towernmt.serve.served_models import ServedModel
from towernmt.serve.web.http_requests import Call, endpoint
from towernmt.serve.web.request_parameters import UploadedFile

KEY_HEADER = "x-document-key"


async def send(call: Call) -> Response:
    """Answer `POST /api/v1/documents` (`file`, `source`, `target`)."""
    if "file" not in call.parameters.files:
        raise bad("'file' is missing: send a form of the kind multipart/form-data.")
    name, file = await opened(call, "The file is not translated")
    source, target = call.parameters.text("source"), call.parameters.text("target")
    model, _ = call.service.models.find(None if source == "auto" else source, target, file.sample)
    document = await taken_in(call, name, file, model)
    return JSONResponse({**_state(document), "key": document.key}, 202)


async def state(call: Call) -> Response:
    """Answer `GET /api/v1/documents/{id}` with the progress of the translation."""
    document = _requested(call)
    document.fetched |= document.status == "error"
    return JSONResponse(_state(document))


async def result(call: Call) -> Response:
    """Answer `GET /api/v1/documents/{id}/result` with the translation; it may be fetched several times."""
    document = _requested(call)
    if document.refusal is not None:
        raise document.refusal
    if document.status != "done":
        raise Refusal(409, "The document has not been translated yet.", 1.0)
    return as_file(document)


async def delete(call: Call) -> Response:
    """Answer `DELETE /api/v1/documents/{id}`: cancel the translation and delete the document."""
    call.service.documents.remove(_requested(call))
    return Response(status_code=204)


async def opened(call: Call, invalid: str) -> tuple[str, OpenedFile]:
    """Return the name and the content of the parameter `file`.

    Args:
        call: the request.
        invalid: beginning of the message for a file that cannot be read, in the wording of the interface.

    Raises:
        Refusal: the file cannot be read.
    """
    file = call.parameters.files["file"]
    name = call.parameters.text("filename") or file.name
    limits = call.service.limits
    try:
        return name, await call.in_thread(lambda: OpenedFile(UploadedFile(name, file.content), limits))
    except Refusal as refusal:
        if refusal.status != 400:
            raise
        raise bad(f"{invalid}: {refusal}") from None


async def taken_in(call: Call, name: str, file: OpenedFile, model: ServedModel,
                   glossary: Terminology | None = None) -> DocumentJob:
    """Start to translate a file in the background, and return its document.

    Raises:
        Refusal: the file has too many sentences, or the caller or the server has too many documents or characters.
    """
    service = call.service
    service.documents.make_place(call.caller)       # before it is split, which takes seconds for a large file
    split = await call.in_thread(lambda: file.split(model, glossary))
    service.documents.make_place(call.caller)
    service.rates.take(call.caller, "characters", file.characters, call.rate_of_characters)
    call.noted |= {"direction": str(model.direction), "characters": file.characters}

    def translate(document: DocumentJob) -> bytes:
        def told() -> None:
            document.translated += 1

        content = split.translate(document.ticket, lambda: service.documents.turn(document), told)
        service.count(document.caller, str(document.direction), document.characters)
        return content

    return service.documents.add(
        DocumentJob(name, call.caller, model.direction, split.sentences, file.characters), translate)


def taken_in_vain(call: Call, name: str, model: ServedModel, why: Refusal) -> DocumentJob:
    """Return a document with the status error and a reason, for a file that cannot be translated.

    Raises:
        Refusal: the caller or the server has too many documents.
    """
    def refuse(document: DocumentJob) -> bytes:
        raise why

    call.service.documents.make_place(call.caller)
    return call.service.documents.add(DocumentJob(name, call.caller, model.direction, 0, 0), refuse)


def as_file(document: DocumentJob) -> Response:
    """Return a translated document as an answer, and note that it was fetched."""
    document.fetched = True
    return Response(document.content, media_type="application/octet-stream", headers={
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(document.name)}", "Cache-Control": "no-store"})


def document_error(refusal: Refusal) -> dict[str, Any]:
    """Return a refusal as JSON."""
    return {"error": str(refusal)}


def routes() -> list[Route]:
    """Return the routes of documents."""
    one = "/api/v1/documents/{number}"
    return [Route("/api/v1/documents", endpoint(send, document_error, lambda service: service.limits.max_document),
                  methods=["POST"]),
            Route(one, endpoint(state, document_error, follows=True), methods=["GET"]),
            Route(one, endpoint(delete, document_error, follows=True), methods=["DELETE"]),
            Route(f"{one}/result", endpoint(result, document_error, follows=True), methods=["GET"])]


def _requested(call: Call) -> DocumentJob:
    key = call.request.headers.get(KEY_HEADER) or call.parameters.required("key")
    return call.service.documents.get(call.request.path_params["number"], key)


def _state(document: DocumentJob) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": document.number, "name": document.name, **document.direction._asdict(), "status": document.status,
        "sentences": document.sentences, "translated": document.translated, "characters": document.characters,
        "seconds_remaining": document.seconds_remaining()}
    return told if document.refusal is None else {**told, "error": str(document.refusal)}
