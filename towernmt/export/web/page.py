"""The files of the page: those of `assets/` with what they must know of an export, and the lists of all files.

`index.html` holds what its worker loads; `service-worker.js` begins with what it keeps. Both name each file with its
checksum, so that a page of one export never works with files of another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from towernmt import __version__
from towernmt.export.web import bergamot

INDEX, SERVICE_WORKER, WORKER = "index.html", "service-worker.js", "engine-worker.js"
AS_THEY_ARE = ("style.css", "page.js", "files.js", WORKER, "icon.svg")
"""Of `assets/`."""
LICENCE = "bergamot/LICENSE.txt"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
         ".wasm": "application/wasm", ".txt": "text/plain; charset=utf-8", ".webmanifest": "application/manifest+json"}
"""Of content, by the end of a file's name; of others `application/octet-stream`."""


@dataclass(frozen=True)
class Language:
    """A language of the page: its code for the browser, "" where it is not told, and its name."""

    code: str
    name: str


@dataclass(frozen=True)
class Model:
    """The model's files, by their names in the export.

    Attributes:
        model: the 8-bit model.
        vocabularies: that of both languages, or those of source and target.
        shortlist: "" for none.
        options: what the engine is told of the search, in YAML.
    """

    model: str
    vocabularies: Sequence[str]
    shortlist: str
    options: str


class Site(NamedTuple):
    """A name for the files, the same for the same and only for them, and the files by name."""

    version: str
    files: dict[str, bytes]


def site(content: Mapping[str, bytes], model: Model, source: Language, target: Language) -> Site:
    """The page's files: the given ones and its own.

    Args:
        content: the engine's and the model's files by name.
        model: which of them are what.
        source, target: the languages.
    """
    assets = files("towernmt.export.web").joinpath("assets")
    names = f"{source.name} → {target.name}"
    manifest = {"name": f"Translate {names}", "short_name": names, "start_url": ".", "display": "standalone",
                "background_color": "#f6f5f2", "theme_color": "#1f5fbf",
                "icons": [{"src": "icon.svg", "sizes": "any", "type": "image/svg+xml"}]}
    found = {**content, **{name: assets.joinpath(name).read_bytes() for name in AS_THEY_ARE},
             LICENCE: assets.joinpath("MPL-2.0.txt").read_bytes(),
             "manifest.webmanifest": _json(manifest).encode()}
    template = assets.joinpath(INDEX).read_text(encoding="utf-8")
    marks = _marks(found, names, source, target)
    version = _version({**found, INDEX: _index(template, marks, found, model, "").encode()})
    found[INDEX] = _index(template, marks, found, model, version).encode()
    kept = {"version": version, "files": [listed(found, name) for name in sorted(found)]}
    program = assets.joinpath(SERVICE_WORKER).read_text(encoding="utf-8")
    found[SERVICE_WORKER] = f'"use strict"; const EXPORT = {_json(kept)};\n{program}'.encode()
    return Site(version, found)


def _marks(content: Mapping[str, bytes], names: str, source: Language, target: Language) -> dict[str, str]:
    """What stands in the page for `{{name}}`, but for the data of its programs."""
    text = {"title": f"Translate {names}", "heading": names, "source": source.name, "target": target.name,
            "version": __version__, "bergamot": bergamot.VERSION}
    languages = {f"{side}-lang": f' lang="{escape(language.code)}"' if language.code else ""
                 for side, language in (("source", source), ("target", target))}
    # As `addressOf` of files.js makes them.
    addresses = {name: f"{name}?v={hashlib.sha256(content[name]).hexdigest()[:16]}"
                 for name in ("style.css", "page.js")}
    return {name: escape(value) for name, value in text.items()} | languages | addresses


def _index(template: str, marks: Mapping[str, str], content: Mapping[str, bytes], model: Model, version: str) -> str:
    """The page, with what its worker loads."""
    loaded = {"version": version, "worker": f"{WORKER}?v={version}", "options": model.options,
              "files": {"glue": listed(content, f"bergamot/{bergamot.GLUE}"),
                        "wasm": listed(content, f"bergamot/{bergamot.WASM}"), "model": listed(content, model.model),
                        "vocabularies": [listed(content, name) for name in dict.fromkeys(model.vocabularies)],
                        "shortlist": listed(content, model.shortlist) if model.shortlist else None}}
    return _filled(template, {**marks, "export": _json(loaded).replace("<", "\\u003c")})


def listed(content: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """What the page's programs know of a file."""
    suffix = name[name.rindex("."):] if "." in name else ""
    return {"path": name, "bytes": len(content[name]), "sha256": hashlib.sha256(content[name]).hexdigest(),
            "type": TYPES.get(suffix, "application/octet-stream")}


def _version(content: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(content):
        whole.update(f"{name} {hashlib.sha256(content[name]).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _filled(template: str, marks: Mapping[str, str]) -> str:
    parts = template.split("{{")
    ends = [part.split("}}", 1) for part in parts[1:]]
    return parts[0] + "".join(marks[name] + rest for name, rest in ends)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
