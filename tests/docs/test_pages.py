"""The manual's pages: links and names exist, and no page loads content from other hosts."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.manual_pages import code_blocks
from towernmt.cli.commands import COMMANDS
from towernmt.core.settings import all_keys
from towernmt.documents.formats.document_formats import SUFFIXES
from towernmt.models import ARCHITECTURES
from towernmt.predict.lines.line_options import ANSWER_FIELDS, NAMES
from towernmt.run import default_settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GROUPS = sorted({key.partition(".")[0] for key in all_keys(default_settings())})


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_link_and_anchor_leads_somewhere() -> None:
    lost = []
    for page in [*ROOT.glob("*.md"), *PAGES]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", prose_of(page)):
            if "://" in target:
                continue
            place = (page.parent / target).resolve() if target else page
            if not place.exists() or anchor and place.suffix == ".md" and anchor not in anchors(place):
                lost.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not lost, lost


def test_every_section_that_the_code_names_exists() -> None:
    """Docstrings and comments name a page and a heading: (docs/notes/defaults.md, "Muon")."""
    wrong = []
    for folder in ("towernmt", "benchmarks", "examples", "recipes"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = re.sub(r"\s+(?:# )?", " ", text_of(path))
            for name, heading in re.findall(r"(docs/[\w/-]+\.md)(?:,? \(?\"([^\"]+)\")?", text):
                headings = re.findall(r"^#+ (.+)$", prose_of(ROOT / name), re.M) if (ROOT / name).exists() else []
                if not headings or heading and heading.rstrip(",") not in headings:
                    wrong.append(f"{path.relative_to(ROOT)}: {name}, {heading}")
    assert not wrong, wrong


def test_every_page_has_its_place_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        entries = entry.values() if isinstance(entry, dict) else entry
        return [page for item in entries for page in pages(item)]       # type: ignore[attr-defined]

    site = yaml.load(text_of(ROOT / "mkdocs.yml"), yaml.BaseLoader)
    assert sorted(pages(site["nav"])) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_every_page_begins_with_a_title_and_a_sentence() -> None:
    for page in PAGES:
        title, empty, first = text_of(page).splitlines()[:3]
        assert re.match("# [A-Z`t]", title) and not empty, page
        assert re.match(r"[\w`*\[]", first), f"{page.relative_to(DOCS)}: says what it is for below its title"


def test_every_command_that_a_page_names_exists() -> None:
    for page in PAGES:
        for command in re.findall(r"`towernmt ([a-z-]+)[^`]*`", text_of(page)):
            assert command in COMMANDS, f"{page.relative_to(DOCS)}: towernmt {command}"


def test_every_setting_that_a_page_names_exists() -> None:
    known = {key for name in ARCHITECTURES for key in all_keys(default_settings(name))}
    known |= {"model.gate", "model.groups"}         # of the tutorials' models
    known |= {"model.index", "model.data", "model.bin", "model.npz", "model.tflite", "model.yml", "log.log", "train.py",
              "train.de", "train.en", "train.pos", "train.lemma",                     # files
              "data.fingerprint", "data.last_position", "model.make_optimizer"}       # attributes in Python
    wrong = []
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", prose_of(page)):
            for key in re.findall(rf"(?<![\w./])((?:{'|'.join(GROUPS)})\.(?!yml\b|yaml\b)[a-z_]+)(?![\w.(/])", code):
                if key not in known:
                    wrong.append(f"{page.relative_to(DOCS)}: {key}")
    assert not wrong, wrong


def test_each_option_of_a_json_line_has_its_row() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", text_of(DOCS / "guide" / "line-options.md"), re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*NAMES, *ANSWER_FIELDS, "text", "factors"} <= named


def test_each_suffix_of_a_document_has_its_row() -> None:
    rows = re.findall(r"^\| (`\..+?) \|", text_of(DOCS / "guide" / "documents.md"), re.M)
    assert {*SUFFIXES} <= {suffix for row in rows for suffix in re.findall(r"`(\.\w+)`", row)}


def test_the_site_fetches_nothing_from_outside() -> None:
    site = yaml.load(text_of(ROOT / "mkdocs.yml"), yaml.BaseLoader)
    assert site["theme"]["font"] == "false"
    assert "http" not in text_of(ROOT / "mkdocs.yml") + text_of(DOCS / "assets" / "extra.css")
    for page in PAGES:
        assert not re.search(r"(?:src|href)=\"https?:", text_of(page)), page


def test_programs_import_towernmt_before_tensorpack() -> None:
    """Importing towernmt sets environment variables that TensorFlow, which tensorpack imports, reads only then."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    programs = [(page.name, block) for page in [*ROOT.glob("*.md"), *PAGES]
                for block in code_blocks(text_of(page), "python")]
    programs += [(path.name, text_of(path)) for path in examples]
    late = []
    for name, program in programs:
        first = re.search(r"^(?:from|import) (tensorpack|towernmt|from_run)\b(.*)", program, re.M)
        if first and first[1] == "tensorpack" and "# after towernmt" not in first[2]:
            late.append(name)
    assert not late, late
