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
from towernmt.serve.files import OpenedFile
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.web.call import Call, endpoint
from towernmt.serve.web.parameters import UploadedFile


async def send(call: Call) -> Response:
    """`POST /v2/document`: `file`, `target_lang`, `source_lang`, `glossary_id`."""
    name, file = await opened(call)
    wanted = call.parameters.text("output_format")
    if wanted and not name.lower().endswith(f".{wanted.lower().lstrip('.')}"):
        raise bad("'output_format': a document keeps its format here.")
    model, _, glossary = chosen(call, file.sample)
    document = call.service.documents.add(name, lambda: translated(call, model, file, glossary))
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


def translated(call: Call, model: ServedModel, file: OpenedFile,
               glossary: Terminology | None = None) -> tuple[bytes, int]:
    """A file translated, and its characters, which are counted; waits for it, however long."""
    content = file.translated(model, glossary, Ticket())
    call.service.count(call.caller, model.direction, file.characters)
    return content, file.characters


async def opened(call: Call) -> tuple[str, OpenedFile]:
    """The name of the file of a request, and what is in it.

    Raises:
        Refusal: there is none, or it cannot be read.
    """
    file = call.parameters.files.get("file")
    if file is None:
        raise bad("'file' is missing: send a form of the kind multipart/form-data.")
    name = call.parameters.text("filename") or file.name
    limits = call.service.limits
    return name, await call.in_thread(lambda: OpenedFile(UploadedFile(name, file.content), limits))


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
