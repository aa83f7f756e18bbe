"""The content of an exported web site, and refused exports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.interop import web_export
from towernmt.interop.export import export_model
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer


class Page(HTMLParser):
    """The tags of a page, and the text of its script `export`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == ("script", {"type": "application/json", "id": "export"}):
            self.data += data


@pytest.fixture(scope="module")
def path(export_page: Any, other_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_page(tmp_path_factory.mktemp("place") / "site", bergamot=other_engine)


def test_each_file_is_listed_with_its_checksum_for_people_page_and_service_worker(path: Path) -> None:
    told = json.loads((path / "towernmt.json").read_text())
    for name, known in told["files"].items():
        content = (path / name).read_bytes()
        assert known == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}, name
    first = (path / "service-worker.js").read_text().splitlines()[0]
    kept = json.loads(first.removeprefix('"use strict"; const EXPORT = ').removesuffix(";"))
    assert kept["version"] == told["version"]
    assert {file["path"] for file in kept["files"]} == set(told["files"]) - {"service-worker.js"}
    assert all(told["files"][file["path"]]["sha256"] == file["sha256"] for file in kept["files"])
    loaded = json.loads(Page((path / "index.html").read_text()).data)["files"]
    for file in (loaded["glue"], loaded["wasm"], loaded["model"], *loaded["vocabularies"]):
        assert told["files"][file["path"]]["sha256"] == file["sha256"]
    assert told["engine"]["version"] == "0.4.9" and told["languages"]["source"] == {"code": "de", "name": "German"}
    assert (path / "bergamot/LICENSE.txt").read_text().startswith("Mozilla Public License Version 2.0")
    assert len((path / "README.md").read_text().splitlines()) == 3


def test_the_page_names_no_other_host_and_nothing_of_its_host_but_what_is_beside_it(path: Path) -> None:
    page = Page((path / "index.html").read_text())
    links = [value for _, attributes in page.tags for name in ("href", "src") if (value := attributes.get(name))]
    assert links and all(link.startswith("#") or (path / link.split("?")[0]).is_file() for link in links)
    policy = next(attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes) or ""
    assert "unsafe-inline" not in policy and "default-src 'none'" in policy and "http" not in policy
    for name in ("page.js", "files.js", "engine-worker.js", "service-worker.js", "style.css"):
        assert not re.search(r"https?://", (path / name).read_text()), name


def test_every_control_has_a_name_and_every_id_of_the_programs_is_in_the_page(path: Path) -> None:
    page = Page((path / "index.html").read_text())
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {attributes["for"] for tag, attributes in page.tags if tag == "label" and "for" in attributes} <= ids
    assert set(re.findall(r'element\("([^"]+)"\)', (path / "page.js").read_text())) <= ids
    assert all(attributes.get("lang") == code for tag, attributes in page.tags
               for name, code in (("source", "de"), ("target", "en")) if attributes.get("id") == name)


@pytest.mark.thorough
def test_the_same_run_gives_the_same_bytes_and_another_language_another_version(
        export_page: Any, other_engine: Path, path: Path, tmp_path: Path) -> None:
    again = export_page(tmp_path / "again", bergamot=other_engine)
    for file in path.rglob("*"):
        assert file.is_dir() or file.read_bytes() == (again / file.relative_to(path)).read_bytes(), file
    other = export_page(tmp_path / "other", bergamot=other_engine, languages=("de:<b>Deutsch</b>", "en"))
    versions = [json.loads((one / "towernmt.json").read_text())["version"] for one in (path, other)]
    assert versions[0] != versions[1] and "<b>" not in (other / "index.html").read_text()


@pytest.mark.parametrize(("settings", "named"), [
    ({"start": "bos"}, "model.start=bos"), ({"preprocess": "n", "postprocess": "dr"}, "model.preprocess"),
    ({"decoder_cell": "attention"}, "model.decoder_cell"), ({"hidden_size": 80}, "model.hidden_size=80")])
def test_a_run_that_is_no_student_is_refused_by_name_before_anything_is_written(
        other_engine: Path, tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    fitting = {"decoder_cell": "ssru", "preprocess": "", "postprocess": "drn", "start": "zero", "hidden_size": 64,
               "source_vocab_size": 8, "target_vocab_size": 8}
    model = Transformer(TransformerSettings(**{**fitting, **settings}))
    trained: Any = SimpleNamespace(model=model, run=SimpleNamespace(group=lambda name, default: default))
    with pytest.raises(SettingsError, match=f"{named}.*student"):
        export_model(trained, "web", tmp_path / "deep" / "site", bergamot=other_engine)
    assert list((tmp_path / "deep").iterdir()) == []


def test_without_calibration_the_validation_text_of_the_runs_data_is_taken(
        export_page: Any, other_engine: Path, trained: Any, path: Path, lines: list[str], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="--calibration"):
        export_page(tmp_path / "none", bergamot=other_engine, calibration=None)
    with pytest.raises(DataError, match="nowhere"):     # before the engine is installed
        export_page(tmp_path / "none", bergamot=tmp_path / "no engine", calibration=tmp_path / "nowhere")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/valid.source").write_text(lines[-1], encoding="utf-8")
    saved = trained.run.saved_settings()
    monkeypatch.setattr(trained.run, "saved_settings",
                        lambda: {**saved, "made_from.data_path": str(tmp_path / "data")})
    found = export_page(tmp_path / "found", bergamot=other_engine, calibration=None)
    assert (found / "index.html").read_bytes() == (path / "index.html").read_bytes()


def test_the_engine_comes_from_the_folder_that_is_named_and_is_checked(
        other_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = web_export.bergamot_files(other_engine)
    monkeypatch.setenv(web_export.VARIABLE, str(other_engine))
    assert web_export.bergamot_files() == found and set(found) == set(web_export.CHECKSUMS)
    with pytest.raises(SettingsError, match=f"cannot be read .* {re.escape(web_export.PACKAGE)} 0.4.9"):
        web_export.bergamot_files(tmp_path)
    shutil.copytree(other_engine / "worker", tmp_path / "worker")
    (tmp_path / "worker" / web_export.WASM).write_text("another")
    with pytest.raises(SettingsError, match="differs from the file of"):
        web_export.bergamot_files(tmp_path)


def test_the_engine_is_fetched_by_npm_or_a_sentence_says_what_to_do(
        other_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(web_export.VARIABLE, raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(SettingsError, match="npm, which could install it, is missing.*--bergamot or TOWERNMT_BERGAMOT"):
        web_export.bergamot_files()
    npm = programs / "npm"
    copy, mkdir = (shutil.which(name, path=os.defpath) for name in ("cp", "mkdir"))
    npm.write_text(f"""#!/bin/sh
for last; do :; done
while [ "$1" != --prefix ]; do shift; done
[ "$last" = {web_export.PACKAGE}@0.4.9 ] || exit 3
{mkdir} -p "$2/node_modules/@browsermt"
{copy} -r {other_engine} "$2/node_modules/{web_export.PACKAGE}"
""")
    npm.chmod(0o755)
    assert set(web_export.bergamot_files()) == set(web_export.CHECKSUMS)
    npm.write_text("#!/bin/sh\necho 'npm error network' >&2\nexit 1\n")
    with pytest.raises(SettingsError, match="npm could not fetch .*: npm error network"):
        web_export.bergamot_files()
