"""The model card of a package, as JSON and Markdown: statements of the user, and facts (`model_card_facts`)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from towernmt.checkpoint.checkpoint_files import STATE
from towernmt.core.errors import SettingsError
from towernmt.core.structured_files import JSONError, Natural, load_strict, read_yaml_text, typed_value
from towernmt.dataflow.text.language_codes import bcp47_code, parse_direction


@dataclass(frozen=True)
class DataSource:
    """A corpus that the model was trained on.

    Attributes:
        name: name of the corpus.
        licence: licence of the corpus.
        url: address of the corpus.
        pairs: number of sentence pairs used.
        note: free text.
    """

    name: str
    licence: str = ""
    url: str = ""
    pairs: Natural | None = None
    note: str = ""


@dataclass(frozen=True)
class CardText:
    """Statements of the user for the model card.

    Attributes:
        licence: licence of the model by its SPDX name, such as CC-BY-4.0.
        languages: source and target language, such as de-en.
        source_prefix: text that the package puts before each source line, such as the tag of the target language of a
            multilingual model.
        name: name of the model.
        description: a few sentences about the model.
        authors: names of the authors.
        contact, homepage, citation: how to reach the authors, the home page, and how to cite the model.
        intended_use, limitations: what the model is suited for, and what it is not suited for.
        data: the training corpora.
    """

    licence: str = ""
    languages: str = ""
    source_prefix: str = ""
    name: str = ""
    description: str = ""
    authors: list[str] = field(default_factory=list)
    contact: str = ""
    homepage: str = ""
    citation: str = ""
    intended_use: str = ""
    limitations: str = ""
    data: list[DataSource] = field(default_factory=list)

    def pair(self) -> tuple[str, str] | None:
        """Return the BCP 47 codes of source and target language; None if the languages are not set.

        Raises:
            SettingsError: the languages are not a pair of codes.
        """
        if not self.languages:
            return None
        try:
            source, target = parse_direction(self.languages)
        except SettingsError:
            raise SettingsError(f"languages {self.languages}: expected the codes of source and target, such as de-en, "
                                "zh_hans-en or zh-Hans-en.") from None
        return bcp47_code(source), bcp47_code(target)


def card_text(file: str | Path | None, options: Mapping[str, Any]) -> CardText:
    """Read the user's statements from a file and from options.

    Args:
        file: YAML file with fields of `CardText`; None for no file.
        options: values that override the fields of the file, unless they are None.

    Raises:
        SettingsError: the file cannot be read or parsed, the licence is missing, or the languages are not a pair.
    """
    text = CardText() if file is None else _read_card_file(Path(file))
    text = dataclasses.replace(text, **{name: value for name, value in options.items() if value is not None})
    if not text.licence.strip():
        raise SettingsError("A package needs a licence, because it is passed on to others: pass --licence, such as "
                            "--licence CC-BY-4.0 (consider the licences of the training data). `towernmt package` "
                            "also reads it from its --card file.")
    text.pair()
    return text


def card_text_of_package(card: Mapping[str, Any], options: Mapping[str, Any]) -> CardText:
    """Return the user's statements on the card of a package, for a package of a model that was made from it.

    Args:
        card: content of `model-card.json`.
        options: values that override those of the card, unless they are None.

    Raises:
        SettingsError: the card has other fields than a package of towernmt, or the languages are not a pair.
    """
    names = {field.name for field in dataclasses.fields(CardText)} - {"languages", "data"}
    content = {name: value for name, value in card.items() if name in names}
    try:
        languages, training_data = (typed_value(card.get(name) or {}, dict[str, Any], name)
                                    for name in ("languages", "training_data"))
        if languages:
            content["languages"] = f"{languages.get('source')}-{languages.get('target')}"
        text = typed_value({**content, "data": training_data.get("sources", [])}, CardText)
    except JSONError as error:
        raise SettingsError(f"The model card of the package is damaged: {error}.") from None
    text = dataclasses.replace(text, **{name: value for name, value in options.items() if value is not None})
    text.pair()
    return text


def _read_card_file(file: Path) -> CardText:
    try:
        content = load_strict(read_yaml_text(file))
    except OSError as error:
        raise SettingsError(f"{file}: cannot read the card ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{file}: not valid YAML: {' '.join(str(error).split())}.") from error
    content = _dates_as_text({} if content is None else content)
    if isinstance(content, dict) and "license" in content and "licence" not in content:
        content["licence"] = content.pop("license")
    try:
        return typed_value(content, CardText)
    except JSONError as error:
        known = ", ".join(field.name for field in dataclasses.fields(CardText))
        raise SettingsError(f"{file}: {error}; the fields of a card are {known}.") from None


def _dates_as_text(value: Any) -> Any:
    """Return a value with dates as text, since JSON has no dates."""
    if isinstance(value, dict):
        return {str(key): _dates_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dates_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


EPOCH = "SOURCE_DATE_EPOCH"


def card_date(date: str | None, checkpoint: Path) -> str:
    """Return the date of the card. It is never today's date, so that the same run results in the same package.

    Args:
        date: YYYY-MM-DD; None for `SOURCE_DATE_EPOCH` or, if that is not set, the date of the checkpoint.
        checkpoint: directory of the checkpoint.

    Raises:
        SettingsError: the date is not valid.
    """
    if date is not None:
        try:
            return datetime.date.fromisoformat(date).isoformat()
        except ValueError:
            raise SettingsError(f"--date {date}: expected a date such as 2026-12-24.") from None
    epoch = os.environ.get(EPOCH)
    try:
        seconds = float(int(epoch)) if epoch else (checkpoint / STATE).stat().st_mtime
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        if epoch:
            raise SettingsError(f"{EPOCH}={epoch}: expected a number of seconds since 1970.") from None
        raise


FORMAT = 1
"""Version of the format of `model-card.json`."""
_SECTIONS = (("intended_use", "Intended use"), ("limitations", "Limitations"), ("citation", "Citation"))


def make_card(text: CardText, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `model-card.json`.

    Args:
        text: statements of the user.
        facts: facts from the run: `date`, `model`, `training_data`, `scores`, `settings`, `versions`, `exports`, and
            `int8` if translation in int8 was measured.
    """
    pair = text.pair()
    statements = {name: value for name, value in dataclasses.asdict(text).items() if value and name != "languages"}
    data = statements.pop("data", [])
    sources = [{name: value for name, value in source.items() if value not in ("", None)} for source in data]
    languages = {"languages": {"source": pair[0], "target": pair[1]}} if pair else {}
    return {"format": FORMAT, **languages, **statements, **facts,
            "training_data": {**({"sources": sources} if sources else {}), **facts["training_data"]}}


def card_json(card: Mapping[str, Any]) -> bytes:
    """Return a card as the bytes of `model-card.json`."""
    return (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode()


def card_markdown(card: Mapping[str, Any]) -> bytes:
    """Return a card as the bytes of `README.md`."""
    return ("\n\n".join(_markdown_sections(card)) + "\n").encode()


def _markdown_sections(card: Mapping[str, Any]) -> Iterator[str]:
    languages, model = card.get("languages"), card["model"]
    pair = f"{languages['source']} to {languages['target']}" if languages else "languages not specified"
    yield f"# {card.get('name') or f'Translation model, {pair}'}"
    if card.get("description"):
        yield card["description"].strip()
    yield _table(("", ""), [
        ("Languages", pair),
        *((("Before each source line", f"`{card['source_prefix']}`"),) if card.get("source_prefix") else ()),
        ("Licence", card["licence"]), ("Date", card["date"]),
        *((label, _format_list(card[key])) for key, label in (
            ("authors", "Authors"), ("contact", "Contact"), ("homepage", "Homepage")) if card.get(key)),
        ("Model", f"{model['architecture']}, {model['parameters']:,} parameters in {model['precision']}"),
        ("Checkpoint", f"{model['checkpoint']}{', averaged weights' if model['averaged'] else ''}"),
        ("Vocabularies", f"source {_vocabulary(model['source_vocabulary'])}, "
                         f"target {_vocabulary(model['target_vocabulary'])}"),
        *((("On processors", _precision_text(card["int8"])),) if card.get("int8") else ()),
        *((("Exports inside", ", ".join(f"{one['format']} ({one['precision']})" for one in card["exports"])),)
          if card["exports"] else ())])
    for key, title in _SECTIONS:
        if card.get(key):
            yield f"## {title}\n\n{card[key].strip()}"
    yield f"## Scores\n\n{_scores_table(card['scores'])}"
    yield f"## Training data\n\n{_training_data_text(card['training_data'])}"
    yield f"## Settings of the training\n\n{_yaml_block(card['settings'])}"
    yield "## Versions\n\n" + _table(("", "trained with", "packaged with"), [
        (name, card["versions"]["trained_with"].get(name, ""), card["versions"]["packaged_with"].get(name, ""))
        for name in dict.fromkeys([*card["versions"]["packaged_with"], *card["versions"]["trained_with"]])])
    yield ("## Use\n\n```sh\ntowernmt translate --model THIS_FILE --input FILE\n```\n\n"
           "`towernmt-package.json` has the SHA-256 of every file of the package.")


def _precision_text(int8: Mapping[str, Any]) -> str:
    precision = "int8 by CTranslate2" if int8["default_on_processors"] else "float32"
    losses = [f"on {one['test']}, {one['bleu']:.2f} BLEU (95 % interval {one['bleu_low']:.2f} to "
              f"{one['bleu_high']:.2f}) and {one['log_prob']:.4f} nats per reference token" for one in int8["losses"]]
    return f"{precision} by default; int8 loses {'; '.join(losses)}"


def _vocabulary(vocabulary: Mapping[str, Any]) -> str:
    return f"{vocabulary['size']:,} ({vocabulary['kind']})"


def _scores_table(scores: Sequence[Mapping[str, Any]]) -> str:
    if not scores:
        return "None: the training had no validation, and the package was made without a test set."
    header = ("test set", "metric", "score", "sentences", "sacreBLEU's signature", "of")
    return _table(header, [
        (score["test"], score["metric"], f"{score['score']:.2f}",
         f"{score['sentences']:,}" if "sentences" in score else "",
         f"`{score['signature']}`" if "signature" in score else "not recorded", score["of"]) for score in scores])


def _training_data_text(data: Mapping[str, Any]) -> str:
    parts = []
    if data.get("sources"):
        parts.append(_table(("text", "licence", "pairs", "from", ""), [
            (source["name"], source.get("licence", "not specified"),
             f"{source['pairs']:,}" if "pairs" in source else "", source.get("url", ""), source.get("note", ""))
            for source in data["sources"]]))
    else:
        parts.append("Names and licences of the texts are not specified.")
    if data.get("pairs") is not None:
        parts.append(f"{data['pairs']:,} pairs, {data['source_tokens']:,} source and {data['target_tokens']:,} target "
                     "tokens.")
    if data.get("fingerprint"):
        parts.append(f"Fingerprint of the prepared data: `{data['fingerprint']}`.")
    files = {name: file for name, file in data.get("texts", {}).items()
             if isinstance(file, dict) and "sha256" in file}
    if files:
        parts.append(_table(("file", "lines", "bytes", "SHA-256"), [
            (name, *(f"{file[key]:,}" if key in file else "" for key in ("lines", "bytes")), f"`{file['sha256']}`")
            for name, file in files.items()]))
    if data.get("preparation"):
        parts.append(f"Preparation:\n\n{_yaml_block(data['preparation'])}")
    return "\n\n".join([*parts, *data.get("notes", [])])


def _yaml_block(settings: Mapping[str, Any]) -> str:
    return f"```yaml\n{yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)}```"


def _format_list(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in line) + " |"
                     for line in lines)
