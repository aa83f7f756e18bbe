"""Write a web site that translates on the user's device with the Bergamot engine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from towernmt import __version__
from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.core.temporary_directories import temporary_directory
from towernmt.interop import marian_export as marian
from towernmt.interop.export import ExportJob, code_and_name
from towernmt.interop.marian_export import check_marian_support
from towernmt.interop.marian_files import browser_options

PACKAGE, VERSION, BERGAMOT_LICENCE = "@browsermt/bergamot-translator", "0.4.9", "MPL-2.0"
SOURCE = "https://github.com/browsermt/bergamot-translator"
VARIABLE = "TOWERNMT_BERGAMOT"
"""Environment variable with the path of the npm package."""
GLUE, WASM = "bergamot-translator-worker.js", "bergamot-translator-worker.wasm"
CHECKSUMS = {GLUE: "748b2418418a2ffc6e70721aeb10098d8e6fb589ea156b91f4ae8bc3490d8f7a",
             WASM: "95a2b58dd6773bf1b3f345d71f9149928b9f75f4ec9c9064c0b3e42c298671b2"}
"""SHA-256 of the files in the package's folder `worker`."""
MINUTES = 10
"""Time limit of npm."""
_MANUAL_INSTALLATION = (f"Or run `npm install {PACKAGE}@{VERSION}` on a machine with npm, and pass "
                        f"node_modules/{PACKAGE} with --bergamot or {VARIABLE}.")


def bergamot_files(path: str | Path | None = None) -> dict[str, bytes]:
    """Return the files of the engine by name.

    Args:
        path: folder of the npm package; None for the folder in the environment variable. Without both, npm installs
            the package.

    Raises:
        SettingsError: the package cannot be read or installed, has another version, or is damaged.
    """
    folder = path or os.environ.get(VARIABLE)
    if folder:
        return _read_engine(Path(folder))
    with temporary_directory("npm install") as directory:
        _install(directory)
        return _read_engine(directory / "node_modules" / PACKAGE)


def _install(directory: Path) -> None:
    """Install the package into `directory/node_modules` with npm, without running its scripts."""
    npm = shutil.which("npm")
    if npm is None:
        raise SettingsError(f"The browser engine, {PACKAGE} {VERSION}, is missing, and npm, which could install it, is "
                            f"missing too: install Node.js with npm. {_MANUAL_INSTALLATION}")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefer-offline",
               "--prefix", str(directory), f"{PACKAGE}@{VERSION}"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace",
                              timeout=MINUTES * 60)
    except subprocess.TimeoutExpired as error:
        raise SettingsError(f"npm did not fetch {PACKAGE} {VERSION} within {MINUTES} minutes. "
                            f"{_MANUAL_INSTALLATION}") from error
    if done.returncode:
        messages = [line for line in done.stderr.splitlines() if line.strip()] or ["(no error message)"]
        raise SettingsError(f"npm could not fetch {PACKAGE} {VERSION}: {messages[0]}. {_MANUAL_INSTALLATION}")


def _read_engine(folder: Path) -> dict[str, bytes]:
    """Return the files after a check of their checksums."""
    engine_files = {}
    for name, checksum in CHECKSUMS.items():
        file = folder / "worker" / name
        try:
            engine_files[name] = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{file} cannot be read ({error.strerror}): {folder} should be the folder of the npm "
                                f"package {PACKAGE} {VERSION}.") from error
        if hashlib.sha256(engine_files[name]).hexdigest() != checksum:
            raise SettingsError(f"{file} differs from the file of {PACKAGE} {VERSION}: install this version again.")
    return engine_files


INDEX, SERVICE_WORKER, WORKER = "index.html", "service-worker.js", "engine-worker.js"
COPIED_ASSETS = ("style.css", "page.js", "files.js", WORKER, "icon.svg")
"""Files of `assets/` that are copied without a change."""
LICENCE = "bergamot/LICENSE.txt"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
         ".wasm": "application/wasm", ".txt": "text/plain; charset=utf-8", ".webmanifest": "application/manifest+json"}
"""Content types by suffix; other files have `application/octet-stream`."""


@dataclass(frozen=True)
class Language:
    """A language of the page: its code for the browser ("" if not set), and its name."""

    code: str
    name: str


@dataclass(frozen=True)
class Model:
    """The files of the model, by their paths in the export.

    Attributes:
        model: the 8-bit model.
        vocabularies: the shared vocabulary, or those of source and target.
        shortlist: the shortlist; "" if the model has none.
        options: search options of the engine, in YAML.
    """

    model: str
    vocabularies: Sequence[str]
    shortlist: str
    options: str


class Site(NamedTuple):
    """The files of a site by name, and a version that is a hash of them."""

    version: str
    files: dict[str, bytes]


def build_site(content: Mapping[str, bytes], model: Model, source: Language, target: Language) -> Site:
    """Return the files of a site: the engine, the model and the files of the page.

    Args:
        content: the files of the engine and the model, by name.
        model: the roles of the model's files.
        source: the source language.
        target: the target language.
    """
    assets = files("towernmt.interop").joinpath("assets")
    title = f"{source.name} → {target.name}"
    manifest = {"name": f"Translate {title}", "short_name": title, "start_url": ".", "display": "standalone",
                "background_color": "#f6f5f2", "theme_color": "#1f5fbf",
                "icons": [{"src": "icon.svg", "sizes": "any", "type": "image/svg+xml"}]}
    site_files = {**content, **{name: assets.joinpath(name).read_bytes() for name in COPIED_ASSETS},
                  LICENCE: assets.joinpath("MPL-2.0.txt").read_bytes(),
                  "manifest.webmanifest": _json(manifest).encode()}
    template = assets.joinpath(INDEX).read_text(encoding="utf-8")
    placeholders = _placeholder_values(site_files, title, source, target)
    version = _version({**site_files, INDEX: _index(template, placeholders, site_files, model, "").encode()})
    site_files[INDEX] = _index(template, placeholders, site_files, model, version).encode()
    export_list = {"version": version, "files": [file_entry(site_files, name) for name in sorted(site_files)]}
    program = assets.joinpath(SERVICE_WORKER).read_text(encoding="utf-8")
    site_files[SERVICE_WORKER] = f'"use strict"; const EXPORT = {_json(export_list)};\n{program}'.encode()
    return Site(version, site_files)


def _placeholder_values(content: Mapping[str, bytes], title: str, source: Language, target: Language) -> dict[str, str]:
    """Return the values for the marks `{{name}}` of the page, except the data of its programs."""
    text = {"title": f"Translate {title}", "heading": title, "source": source.name, "target": target.name,
            "version": __version__, "bergamot": VERSION}
    languages = {f"{side}-lang": f' lang="{escape(language.code)}"' if language.code else ""
                 for side, language in (("source", source), ("target", target))}
    # The same addresses as those of `addressOf` in files.js.
    addresses = {name: f"{name}?v={hashlib.sha256(content[name]).hexdigest()[:16]}"
                 for name in ("style.css", "page.js")}
    return {name: escape(value) for name, value in text.items()} | languages | addresses


def _index(template: str, placeholders: Mapping[str, str], content: Mapping[str, bytes], model: Model,
           version: str) -> str:
    """Return the page, with the list of files that its worker loads."""
    loaded = {"version": version, "worker": f"{WORKER}?v={version}", "options": model.options,
              "files": {"glue": file_entry(content, f"bergamot/{GLUE}"),
                        "wasm": file_entry(content, f"bergamot/{WASM}"), "model": file_entry(content, model.model),
                        "vocabularies": [file_entry(content, name) for name in dict.fromkeys(model.vocabularies)],
                        "shortlist": file_entry(content, model.shortlist) if model.shortlist else None}}
    values = {**placeholders, "export": _json(loaded).replace("<", "\\u003c")}
    return re.sub(r"\{\{(.*?)\}\}", lambda mark: values[mark[1]], template)


def file_entry(content: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Return path, size, checksum and content type of a file, for the programs of the page."""
    suffix = name[name.rindex("."):] if "." in name else ""
    return {"path": name, "bytes": len(content[name]), "sha256": hashlib.sha256(content[name]).hexdigest(),
            "type": TYPES.get(suffix, "application/octet-stream")}


def _version(content: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(f"{name} {hashlib.sha256(content[name]).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


MODEL, ENGINE = "model", "bergamot"
"""Folders of the export."""
README = """\
This folder is a web site that translates in the browser. It needs no installation and no server program.
Run `python -m http.server 8000` in it, and open http://localhost:8000/ ; or copy it to any static host.
Over https it works offline after the first visit. `{engine}/` contains Bergamot {version} ({licence}) from {source}.
"""


def write(job: ExportJob) -> dict[str, Any]:
    """Write a web site with the model, the engine and the page.

    Returns:
        Entries for `towernmt.json`: the version, the engine, the languages, and each file with its size and checksum.

    Raises:
        SettingsError: the engine does not support the model or cannot be installed, or calibration sentences are
            missing. These errors occur before anything is written.
        DataError: the calibration sentences or the shortlist cannot be read.
    """
    check_marian_support(job.trained, "int8")
    marian.calibration_file(job)
    source, target = (Language("", "Text"), Language("", "Translation")) if job.languages is None else (
        Language(*code_and_name(job.languages[0])), Language(*code_and_name(job.languages[1])))
    engine = bergamot_files(job.bergamot)
    folder = job.directory / MODEL
    folder.mkdir()
    marian_files = marian.write(replace(job, directory=folder, precision="int8"))
    names = [marian_files["model"], *dict.fromkeys(marian_files["vocabularies"]),
             *filter(None, [marian_files["shortlist"]])]
    content = {f"{MODEL}/{name}": (folder / name).read_bytes() for name in names}
    content |= {f"{ENGINE}/{name}": data for name, data in engine.items()}
    model = Model(f"{MODEL}/{marian_files['model']}", [f"{MODEL}/{name}" for name in marian_files["vocabularies"]],
                  marian_files["shortlist"] and f"{MODEL}/{marian_files['shortlist']}", _engine_options())
    site = build_site(content, model, source, target)
    for name, data in site.files.items():
        path = job.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    write_text(job.directory / "README.md", README.format(
        engine=ENGINE, version=VERSION, licence=BERGAMOT_LICENCE, source=SOURCE))
    return _description(site, model, source, target)


def _description(site: Site, model: Model, source: Language, target: Language) -> dict[str, Any]:
    entries = {name: file_entry(site.files, name) for name in sorted(site.files)}
    return {"version": site.version,
            "engine": {"package": PACKAGE, "version": VERSION, "licence": BERGAMOT_LICENCE,
                       "source": SOURCE},
            "languages": {"source": vars(source), "target": vars(target)}, "model": model.model,
            "vocabularies": list(model.vocabularies), "shortlist": model.shortlist,
            "files": {name: {"bytes": entry["bytes"], "sha256": entry["sha256"]} for name, entry in entries.items()}}


def _engine_options() -> str:
    """Return the engine's settings without file names, because the page passes the files."""
    options = browser_options("", [], "")
    for name in ("relative-paths", "models", "vocabs"):
        del options[name]
    return str(yaml.safe_dump(options, sort_keys=False))
