"""DeepL's documents: sent, asked for, fetched once."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.predict.lexical.terminology import Terminology
from towernmt.serve.api.deepl_text import chosen, written
from towernmt.serve.documents import Document
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.engine.work import Ticket
from towernmt.serve.files import format_of, translate_file
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.web.call import Call, endpoint
from towernmt.serve.web.parameters import UploadedFile

SAMPLE = 4_000


async def send(call: Call) -> Response:
    """`POST /v2/document`: `file`, `target_lang`, `source_lang`, `glossary_id`."""
    file = uploaded(call)
    suffix = format_of(file)
    if (wanted := call.parameters.text("output_format")) and f".{wanted.lower().lstrip('.')}" != suffix:
        raise bad("'output_format': a document keeps its format here.")
    model, _, glossary = chosen(call, file.content[:SAMPLE].decode("utf-8", "ignore"))
    document = call.service.documents.add(call.parameters.text("filename") or file.name, lambda: translated(
        call, model, file, glossary))
    return JSONResponse({"document_id": document.number, "document_key": document.key})


async def status(call: Call) -> Response:
    """`/v2/document/{id}`: how far it is."""
    document = _asked(call)
    told = {"document_id": document.number, "status": document.status}
    if document.status == "done":
        return JSONResponse({**told, "billed_characters": document.characters})
    if document.status == "error":
        return JSONResponse({**told, "error_message": document.error})
    return JSONResponse({**told, "seconds_remaining": 1})


async def fetch(call: Call) -> Response:
    """`/v2/document/{id}/result`: the translation, once."""
    document = _asked(call)
    if document.status == "error":
        raise bad(document.error)
    if document.status != "done":
        raise Refusal(503, "The document is not translated yet.", 1.0)
    call.service.documents.remove(document)
    return as_file(document)


def translated(call: Call, model: ServedModel, file: UploadedFile,
               glossary: Terminology | None = None) -> tuple[bytes, int]:
    """A file translated, and its characters, which are counted; waits for it, however long."""
    content, characters = translate_file(model, file, glossary, call.service.limits, Ticket())
    call.service.count(call.caller, model.direction, characters)
    return content, characters


def uploaded(call: Call) -> UploadedFile:
    """The file of a request.

    Raises:
        Refusal: there is none.
    """
    file = call.parameters.files.get("file")
    if file is None:
        raise bad("'file' is missing: send a form of the kind multipart/form-data.")
    return file


def as_file(document: Document) -> Response:
    """A document as an answer."""
    return Response(document.content, media_type="application/octet-stream", headers={
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(document.name)}"})


def routes() -> list[Route]:
    """The routes."""
    return [Route("/v2/document", endpoint(send, written, lambda service: service.limits.max_document),
                  methods=["POST"]),
            Route("/v2/document/{number}", endpoint(status, written), methods=["GET", "POST"]),
            Route("/v2/document/{number}/result", endpoint(fetch, written), methods=["GET", "POST"])]


def _asked(call: Call) -> Document:
    return call.service.documents.get(call.request.path_params["number"], call.parameters.required("document_key"))
