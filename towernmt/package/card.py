"""The model card: what is known and what is told of a model, as JSON and as Markdown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from towernmt.package.card_text import CardText

FORMAT = 1
"""Of `model-card.json`."""
_SECTIONS = (("intended_use", "Intended use"), ("limitations", "Limitations"), ("citation", "Citation"))


def card_of(text: CardText, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The card as JSON has it.

    Args:
        text: what the user tells.
        facts: what the program knows: `date`, `model`, `training_data`, `scores`, `settings`, `versions`, `exports`.
    """
    pair = text.pair()
    told = {name: value for name, value in dataclasses.asdict(text).items() if value and name != "languages"}
    data = told.pop("data", [])
    sources = [{name: value for name, value in source.items() if value not in ("", None)} for source in data]
    languages = {"languages": {"source": pair[0], "target": pair[1]}} if pair else {}
    return {"format": FORMAT, **languages, **told, **facts,
            "training_data": {**({"sources": sources} if sources else {}), **facts["training_data"]}}


def as_json(card: Mapping[str, Any]) -> bytes:
    """The content of `model-card.json`."""
    return (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode()


def as_markdown(card: Mapping[str, Any]) -> bytes:
    """The content of `README.md`."""
    return ("\n\n".join(_parts(card)) + "\n").encode()


def _parts(card: Mapping[str, Any]) -> Iterator[str]:
    languages, model = card.get("languages"), card["model"]
    pair = f"{languages['source']} to {languages['target']}" if languages else "languages not told"
    yield f"# {card.get('name') or f'Translation model, {pair}'}"
    if card.get("description"):
        yield card["description"].strip()
    yield _table(("", ""), [
        ("Languages", pair), ("Licence", card["licence"]), ("Date", card["date"]),
        *((label, _listed(card[key])) for key, label in (
            ("authors", "Authors"), ("contact", "Contact"), ("homepage", "Homepage")) if card.get(key)),
        ("Model", f"{model['architecture']}, {model['parameters']:,} parameters in {model['precision']}"),
        ("Checkpoint", f"{model['checkpoint']}{', averaged weights' if model['averaged'] else ''}"),
        ("Vocabularies", f"source {_vocabulary(model['source_vocabulary'])}, "
                         f"target {_vocabulary(model['target_vocabulary'])}"),
        *((("Exports inside", ", ".join(f"{one['format']} ({one['precision']})" for one in card["exports"])),)
          if card["exports"] else ())])
    for key, title in _SECTIONS:
        if card.get(key):
            yield f"## {title}\n\n{card[key].strip()}"
    yield f"## Scores\n\n{_scores(card['scores'])}"
    yield f"## Training data\n\n{_data(card['training_data'])}"
    yield f"## Settings of the training\n\n{_block(card['settings'])}"
    yield "## Versions\n\n" + _table(("", "trained with", "packaged with"), [
        (name, card["versions"]["trained_with"].get(name, ""), card["versions"]["packaged_with"].get(name, ""))
        for name in dict.fromkeys([*card["versions"]["packaged_with"], *card["versions"]["trained_with"]])])
    yield ("## Use\n\n```sh\ntowernmt translate --model THIS_FILE --input FILE\n```\n\n"
           "`towernmt-package.json` has the SHA-256 of every file of the package.")


def _vocabulary(told: Mapping[str, Any]) -> str:
    return f"{told['size']:,} ({told['kind']})"


def _scores(scores: Sequence[Mapping[str, Any]]) -> str:
    if not scores:
        return "None: there was no validation, and no test set was given."
    return _table(("test set", "metric", "score", "sentences", "sacreBLEU's signature", "of"), [
        (one["test"], one["metric"], f"{one['score']:.2f}", f"{one['sentences']:,}" if "sentences" in one else "",
         f"`{one['signature']}`" if "signature" in one else "not recorded", one["of"]) for one in scores])


def _data(data: Mapping[str, Any]) -> str:
    parts = []
    if data.get("sources"):
        parts.append(_table(("text", "licence", "pairs", "from", ""), [
            (source["name"], source.get("licence", "not told"), f"{source['pairs']:,}" if "pairs" in source else "",
             source.get("url", ""), source.get("note", "")) for source in data["sources"]]))
    else:
        parts.append("Names and licences of the texts are not told.")
    if data.get("pairs") is not None:
        parts.append(f"{data['pairs']:,} pairs, {data['source_tokens']:,} source and {data['target_tokens']:,} target "
                     "tokens.")
    if data.get("fingerprint"):
        parts.append(f"Fingerprint of the prepared data: `{data['fingerprint']}`.")
    texts = {name: told for name, told in data.get("texts", {}).items()
             if isinstance(told, dict) and "sha256" in told}
    if texts:
        parts.append(_table(("file", "lines", "bytes", "SHA-256"), [
            (name, f"{told['lines']:,}" if "lines" in told else "", f"{told['bytes']:,}" if "bytes" in told else "",
             f"`{told['sha256']}`") for name, told in texts.items()]))
    if data.get("preparation"):
        parts.append(f"Preparation:\n\n{_block(data['preparation'])}")
    return "\n\n".join([*parts, *data.get("notes", [])])


def _block(settings: Mapping[str, Any]) -> str:
    return f"```yaml\n{yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)}```"


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in line) + " |"
                     for line in lines)
