"""DeepL's interface: texts, languages, usage, as its official clients speak it (versions 2 and 3).

Errors are `{"message": "..."}`.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.documents.formats.xml import XmlSettings
from towernmt.predict.lexical.terminology import Terminology
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.languages import base_code, language_name
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.text import TextAsked, sample_of, translate_texts
from towernmt.serve.web.amounts import check_texts
from towernmt.serve.web.call import Call, endpoint

NO_LIMIT = 10 ** 12
"""Characters that may be used, where nothing limits them: clients want a number."""
VARIANTS = {"en": (("EN-US", "English (American)"), ("EN-GB", "English (British)")),
            "pt": (("PT-PT", "Portuguese (European)"), ("PT-BR", "Portuguese (Brazilian)"))}
"""Targets that clients name by their region alone."""
NOT_HERE = ("style_id", "translation_memory_id", "custom_instructions")
TAGS = {"": "text", "html": "html", "xml": "xml"}


def written(refusal: Refusal) -> dict[str, Any]:
    """A refusal."""
    return {"message": str(refusal)}


def chosen(call: Call, sample: str) -> tuple[ServedModel, str, Terminology | None]:
    """The model that a request means, the source language, and its glossary.

    Raises:
        Refusal: there is none, or the request asks for what no model here has.
    """
    parameters = call.parameters
    model, detected = call.service.models.find(parameters.text("source_lang"), parameters.required("target_lang"),
                                               sample)
    for name in NOT_HERE:
        if parameters.given(name):
            raise bad(f"'{name}' is not known here: leave it out.")
    if (parameters.text("formality") or "default") in ("more", "less"):
        raise bad("'formality': the models here have no formality: leave it out, or use prefer_more or prefer_less.")
    numbers = [number for text in parameters.texts("glossary_id", "glossary_ids") for number in text.split(",")]
    if numbers and detected is not None:
        raise bad("'source_lang' is needed where a glossary is used.")
    source, target = model.direction
    terms = call.service.glossaries.terminology(call.caller, numbers, source, target) if numbers else None
    return model, source, terms


async def translate(call: Call) -> Response:
    """`/v2/translate`: `text` (one or several), `target_lang`, `source_lang`, `glossary_id`, `tag_handling` ...."""
    texts = call.parameters.texts("text")
    if not texts:
        raise bad("'text' is missing.")
    tags = call.parameters.choice("tag_handling", [*TAGS][1:], "") if call.parameters.text("tag_handling") else ""
    format = TAGS[tags]
    model, source, glossary = chosen(call, sample_of(texts, format))
    check_texts(call, model.direction, texts)
    split = call.parameters.choice("split_sentences", ("0", "1", "nonewlines"), "1") != "0"
    asked = TextAsked(glossary, format, split=split, xml=_elements(call))
    answers = await call.in_thread(lambda: translate_texts(model, texts, asked, call.service.limits, call.ticket))
    return JSONResponse({"translations": [
        {"detected_source_language": base_code(source).upper(), "text": answer.text, "billed_characters": len(text)}
        for answer, text in zip(answers, texts, strict=True)]})


def _elements(call: Call) -> XmlSettings:
    """What elements are, by `ignore_tags`, `splitting_tags`, `non_splitting_tags` and `outline_detection`."""
    def names(parameter: str) -> frozenset[str]:
        return frozenset(name.strip() for text in call.parameters.texts(parameter) for name in text.split(","))

    by_structure = not call.parameters.given("outline_detection") or call.parameters.flag("outline_detection")
    return XmlSettings(names("ignore_tags"), names("splitting_tags"), names("non_splitting_tags"), by_structure)


async def languages(call: Call) -> Response:
    """`/v2/languages`: with `type=target` those into which is translated, else those from which."""
    models = call.service.models
    if call.parameters.choice("type", ("source", "target"), "source") == "source":
        return JSONResponse([{"language": code.upper(), "name": language_name(code)} for code in models.sources])
    named = [pair for code in models.targets for pair in VARIANTS.get(code, ((code.upper(), language_name(code)),))]
    return JSONResponse([{"language": code, "name": name, "supports_formality": False} for code, name in named])


async def usage(call: Call) -> Response:
    """`/v2/usage`: the characters of this caller since the server was started."""
    return JSONResponse({"character_count": call.service.characters.get(call.caller, 0), "character_limit": NO_LIMIT})


def routes() -> list[Route]:
    """The routes."""
    return [Route("/v2/translate", endpoint(translate, written), methods=["GET", "POST"]),
            Route("/v2/languages", endpoint(languages, written), methods=["GET", "POST"]),
            Route("/v2/usage", endpoint(usage, written), methods=["GET", "POST"])]
