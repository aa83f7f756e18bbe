"""Writes a folder that is a site: a page that translates on its user's device, with an 8-bit model and its engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from towernmt.core.files.atomic_files import write_text
from towernmt.export.job import ExportJob
from towernmt.export.languages import code_and_name
from towernmt.export.marian import writer as marian
from towernmt.export.marian.expressible import check_expressible
from towernmt.export.marian.options import browser_options
from towernmt.export.web import bergamot
from towernmt.export.web.page import Language, Model, Site, listed, site

MODEL, ENGINE = "model", "bergamot"
"""Folders of the export."""
README = """\
This folder is a site that translates in the browser, with nothing to install and no server program behind it.
Run `python -m http.server 8000` in it, and open http://localhost:8000/ ; or copy it to any static host.
Over https it works offline after the first visit. `{engine}/` holds Bergamot {version} ({licence}), of {source}.
"""


def write(job: ExportJob) -> dict[str, Any]:
    """Write the site.

    Returns:
        For `towernmt.json`: the version, the engine, the languages, and each file with its size and checksum.
    Raises:
        SettingsError: the engine cannot express the model, is not there, or there are no sentences to calibrate on;
            nothing is written then.
        DataError: the sentences or the shortlist cannot be read.
    """
    check_expressible(job.trained, "int8")
    marian.calibration_text(job)
    source, target = _languages(job.languages)
    engine = bergamot.bergamot_files(job.bergamot)
    folder = job.directory / MODEL
    folder.mkdir()
    written = marian.write(replace(job, directory=folder, precision="int8"))
    names = [written["model"], *dict.fromkeys(written["vocabularies"]), *filter(None, [written["shortlist"]])]
    content = {f"{MODEL}/{name}": (folder / name).read_bytes() for name in names}
    content |= {f"{ENGINE}/{name}": data for name, data in engine.items()}
    model = Model(f"{MODEL}/{written['model']}", [f"{MODEL}/{name}" for name in written["vocabularies"]],
                  written["shortlist"] and f"{MODEL}/{written['shortlist']}", _engine_options())
    found = site(content, model, source, target)
    for name, data in found.files.items():
        place = job.directory / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    write_text(job.directory / "README.md", README.format(
        engine=ENGINE, version=bergamot.VERSION, licence=bergamot.LICENCE, source=bergamot.SOURCE))
    return _description(found, model, source, target)


def _description(found: Site, model: Model, source: Language, target: Language) -> dict[str, Any]:
    known = {name: listed(found.files, name) for name in sorted(found.files)}
    return {"version": found.version,
            "engine": {"package": bergamot.PACKAGE, "version": bergamot.VERSION, "licence": bergamot.LICENCE,
                       "source": bergamot.SOURCE},
            "languages": {"source": vars(source), "target": vars(target)}, "model": model.model,
            "vocabularies": list(model.vocabularies), "shortlist": model.shortlist,
            "files": {name: {"bytes": one["bytes"], "sha256": one["sha256"]} for name, one in known.items()}}


def _engine_options() -> str:
    """What the engine reads of Bergamot's settings: the files come from the page."""
    options = browser_options("", [], "")
    for name in ("relative-paths", "models", "vocabs"):
        del options[name]
    return str(yaml.safe_dump(options, sort_keys=False))


def _languages(told: tuple[str, str] | None) -> tuple[Language, Language]:
    if told is None:
        return Language("", "Text"), Language("", "Translation")
    return _language(told[0]), _language(told[1])


def _language(text: str) -> Language:
    code, name = code_and_name(text)
    return Language(code.replace("_", "-"), name)
