"""Documents of the native interface: upload, progress, download and cancellation.

The document's key comes as the header `X-Document-Key` or as the value `key`. Errors are `{"error": "..."}`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.document_jobs import DocumentJob, ParsedFile
from towernmt.serve.request_limits import RequestError, bad_request
from towernmt.serve.served_models import ServedModel
from towernmt.serve.web.http_requests import Call, endpoint, error_json
from towernmt.serve.web.request_parameters import UploadedFile

KEY_HEADER = "x-document-key"


async def send(call: Call) -> Response:
    """Answer `POST /api/v1/documents` (`file`, `source`, `target`)."""
    if "file" not in call.parameters.files:
        raise bad_request("'file' is missing: send a form of the kind multipart/form-data.")
    name, file = await parse_uploaded_file(call, "The file is not translated")
    source, target = call.parameters.text("source"), call.parameters.text("target")
    model, _ = call.service.models.find(None if source == "auto" else source, target, file.sample)
    document = await accept_document(call, name, file, model)
    return JSONResponse({**_status_json(document), "key": document.key}, 202)


async def state(call: Call) -> Response:
    """Answer `GET /api/v1/documents/{id}` with the progress of the translation."""
    document = _requested_document(call)
    document.fetched |= document.status == "error"
    return JSONResponse(_status_json(document))


async def result(call: Call) -> Response:
    """Answer `GET /api/v1/documents/{id}/result` with the translation; it may be fetched several times."""
    return file_response(call, _requested_document(call))


async def delete(call: Call) -> Response:
    """Answer `DELETE /api/v1/documents/{id}`: cancel the translation and delete the document."""
    call.service.documents.remove(_requested_document(call))
    return Response(status_code=204)


async def parse_uploaded_file(call: Call, problem: str) -> tuple[str, ParsedFile]:
    """Return the name and the content of the parameter `file`.

    Args:
        call: the request.
        problem: beginning of the message for a file that cannot be read, as clients of the interface expect it.

    Raises:
        RequestError: the file cannot be read.
    """
    file = call.parameters.files["file"]
    name = call.parameters.text("filename") or file.name
    limits = call.service.limits
    try:
        return name, await call.run_in_thread(lambda: ParsedFile(UploadedFile(name, file.content), limits))
    except RequestError as error:
        if error.status != 400:
            raise
        raise bad_request(f"{problem}: {error}") from None


async def accept_document(call: Call, name: str, file: ParsedFile, model: ServedModel,
                          glossary: Terminology | None = None) -> DocumentJob:
    """Start to translate a file in the background, and return its document.

    Raises:
        RequestError: the file has too many sentences, or the caller or the server has too many documents or characters.
    """
    service = call.service
    service.documents.ensure_capacity(call.caller)      # before it is split, which takes seconds for a large file
    segmented = await call.run_in_thread(lambda: file.split(model, glossary))
    service.documents.ensure_capacity(call.caller)
    service.rates.take(call.caller, "characters", file.characters, call.characters_per_minute)
    call.log_fields |= {"direction": str(model.direction), "characters": file.characters}

    def translate(document: DocumentJob) -> bytes:
        def count_sentence() -> None:
            document.translated += 1

        content = segmented.translate(document.cancellation, lambda: service.documents.turn(document), count_sentence)
        service.count_characters(document.caller, str(document.direction), document.characters)
        return content

    sentences = len(segmented.split.sentences)
    return service.documents.add(
        DocumentJob(name, call.caller, model.direction, sentences, file.characters), translate)


def add_failed_document(call: Call, name: str, model: ServedModel, error: RequestError) -> DocumentJob:
    """Add a document with the status error, for a file that cannot be translated, and return it.

    Args:
        call: the request.
        name: name of the file.
        model: model of the requested direction.
        error: the reason, which the caller gets with the status of the document.

    Raises:
        RequestError: the caller or the server has too many documents.
    """
    def fail(document: DocumentJob) -> bytes:
        raise error

    call.service.documents.ensure_capacity(call.caller)
    return call.service.documents.add(DocumentJob(name, call.caller, model.direction, 0, 0), fail)


def file_response(call: Call, document: DocumentJob, unfinished_status: int = 409) -> Response:
    """Return a translated document as a response, and mark it as fetched, unless only the headers are requested.

    Args:
        call: the request.
        document: the document.
        unfinished_status: HTTP status of the error if the document is not translated yet.

    Raises:
        RequestError: the document could not be translated, or is not translated yet.
    """
    document.raise_if_failed()
    if document.status != "done":
        raise RequestError(unfinished_status, "The document has not been translated yet.", 1.0)
    document.fetched |= call.request.method != "HEAD"
    return Response(document.content, media_type="application/octet-stream", headers={
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(document.name)}", "Cache-Control": "no-store"})


def routes() -> list[Route]:
    """Return the routes of documents."""
    path = "/api/v1/documents/{id}"
    return [Route("/api/v1/documents", endpoint(send, error_json, lambda service: service.limits.max_document),
                  methods=["POST"]),
            Route(path, endpoint(state, error_json, is_follow_up=True), methods=["GET"]),
            Route(path, endpoint(delete, error_json, is_follow_up=True), methods=["DELETE"]),
            Route(f"{path}/result", endpoint(result, error_json, is_follow_up=True), methods=["GET"])]


def _requested_document(call: Call) -> DocumentJob:
    key = call.request.headers.get(KEY_HEADER) or call.parameters.required("key")
    return call.service.documents.get(call.request.path_params["id"], key)


def _status_json(document: DocumentJob) -> dict[str, Any]:
    status: dict[str, Any] = {
        "id": document.id, "name": document.name, **document.direction._asdict(), "status": document.status,
        "sentences": document.sentences, "translated": document.translated, "characters": document.characters,
        "seconds_remaining": document.seconds_remaining()}
    return status if document.error is None else {**status, "error": str(document.error)}
