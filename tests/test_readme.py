"""README and manual: their code can be parsed, their imports and commands exist."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import re
import shlex
from itertools import dropwhile
from pathlib import Path

import pytest
import yaml

from tests.manual_pages import code_blocks
from tests.page_maker import page_maker
from towernmt.cli.commands import COMMANDS, function_of
from towernmt.cli.main import make_parser
from towernmt.cli.run_options import settings_sources
from towernmt.cli.translate import check_output_options
from towernmt.core.settings import all_keys, load_yaml
from towernmt.dataflow import read_corpora
from towernmt.interop.model_card import card_text
from towernmt.jobs.tune_space import read_space
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.run import default_settings
from towernmt.run.resolve import resolve_settings

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def snippets(language: str) -> list[tuple[str, str]]:
    """Return (page, text) of the code blocks in one language."""
    return [(page.name, text) for page in PAGES for text in code_blocks(page.read_text(encoding="utf-8"), language)]


def commands() -> list[tuple[str, list[str]]]:
    """Return (page, words) of the commands in the shell snippets, without redirections, variables and `srun`."""
    found = []
    for page, text in snippets("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&| \| ", line):
                words = shlex.split(re.split(" [<>] ", part)[0], comments=True)
                words = list(dropwhile(lambda word: re.match("[A-Z_]+=", word), words))
                if words:
                    if words[0] == "srun":
                        words = list(dropwhile(lambda word: word.startswith("-"), words[1:]))
                    found.append((page, words))
    return found


def test_every_python_snippet_compiles_and_what_it_imports_is_there() -> None:
    blocks = snippets("python")
    assert len(blocks) >= 8
    for page, text in blocks:
        for node in ast.walk(ast.parse(text, page)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{page}: {node.module}.{alias.name}"


def test_examples_and_pages_import_from_packages_and_not_from_their_modules() -> None:
    examples = [(path.name, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "examples").glob("*.py"))]
    assert len(examples) > 5
    for page, text in [*snippets("python"), *examples]:
        for node in ast.walk(ast.parse(text, page)):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("towernmt.") for alias in node.names), page
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "towernmt":
                module = importlib.import_module(node.module or "")
                assert hasattr(module, "__path__") and len(module.__name__.split(".")) <= 2, f"{page}: {node.module}"
                for alias in node.names:
                    assert alias.name in module.__all__, f"{page}: {node.module}.{alias.name}"


def test_every_shell_command_is_one_that_exists() -> None:
    names = {words[0] for _, words in commands() if not ("/" in words[0] and (ROOT / words[0]).is_file())}
    assert names <= {"python3", ".", "pip", "python", "pytest", "towernmt", "echo", "export", "marian-decoder",
                     "cd", "cut", "nft", "npm", "ray", "sed", "comet/bin/pip", "(umask", "eval", "mkdir", "cmake",
                     "make"}
    asked = [words for _, words in commands() if words[0] == "towernmt"]
    assert {words[1] for words in asked} == set(COMMANDS)


def files_shown() -> list[tuple[str, str]]:
    """Return (name, text) of the Python files that a page contains."""
    named = re.compile(r"In `(\w+\.py)`:\n\n```python\n(.*?)^```", re.M | re.S)
    return [found for page in PAGES for found in named.findall(page.read_text(encoding="utf-8"))]


def test_every_option_of_a_shown_command_is_accepted(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files_shown():
        (tmp_path / name).write_text(text)
    for page, words in commands():
        if words[0] == "towernmt":
            parser = argparse.ArgumentParser()
            function_of(words[1], "add_{}_arguments")(parser)
            try:
                options = parser.parse_args(words[2:])
            except SystemExit:
                pytest.fail(f"{page}: {shlex.join(words)}: {capsys.readouterr().err}")
            if words[1] == "translate":
                check_output_options(options)
            if words[1] == "train":
                options.logdir = options.config = None
                resolve_settings(settings_sources(options))     # an unknown setting would be refused


def test_every_option_of_a_shown_benchmark_is_one_of_its_program() -> None:
    shown = [words for _, words in commands() if words[0] == "python" and words[1:] and "benchmarks/" in words[1]]
    assert len(shown) > 20
    for words in shown:
        program = (ROOT / words[1]).read_text(encoding="utf-8")
        if "parse_known_args" in program:      # passes other options to a command
            continue
        options = [word.partition("=")[0] for word in words[2:words.index("--") if "--" in words else None]]
        for option in options:
            if re.fullmatch("--[a-z-]+", option):
                assert f'"{option}"' in program, f"{words[1]} has no option {option}"


def test_the_shown_yaml_holds_settings_a_corpus_a_space_or_a_card(tmp_path: Path) -> None:
    keys = all_keys(default_settings())
    spaces = [text for page, text in snippets("yaml") if page == "tuning.md"]
    cards = [text for page, text in snippets("yaml") if page == "packages.md"]
    blocks = [text for _, text in snippets("yaml")]
    assert spaces and cards
    corpora = [text for text in blocks if text.startswith("sources:")]
    assert corpora and len(corpora) < len(blocks)
    for text in blocks:
        (tmp_path / "shown.yaml").write_text(text)
        if text.startswith("apiVersion:"):      # of Kubernetes
            assert all(document["kind"] for document in yaml.safe_load_all(text))
        elif text in corpora:
            assert read_corpora(tmp_path / "shown.yaml").sources
        elif text in cards:
            assert card_text(tmp_path / "shown.yaml", {}).licence
        elif text in spaces:
            assert read_space(tmp_path / "shown.yaml", default_settings("transformer", "tiny"))
        else:
            yaml.safe_load(text)
            assert set(load_yaml(tmp_path / "shown.yaml")) <= set(keys)


def test_the_ci_script_runs_the_readmes_test_command() -> None:
    test = "pip install -e '.[test]' && pytest -n 2"
    assert f"{test}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'"{test}"\n' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_file_of_the_project_that_a_page_names_is_there() -> None:
    named = re.compile(r"`(?:python )?((?:benchmarks|examples|docs|recipes|tests|towernmt|\.ci)/[\w./-]*)[^`]*`")
    for page in PAGES:
        for target in named.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", ["settings", "commands", "engines"])
def test_the_pages_that_are_made_are_what_the_code_says(name: str) -> None:
    shown = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert shown == page_maker(name).page(), f"run: python docs/make_{name}.py"


def test_the_page_of_engines_has_every_setting_of_a_search_and_every_option_of_a_line() -> None:
    maker = page_maker("engines")
    assert list(maker.SEARCHES) == [field.name for field in dataclasses.fields(SearchSettings)]
    assert list(maker.LINES) == [field.name for field in dataclasses.fields(LineOptions)]


def test_every_option_of_every_command_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for name, parser in make_parser(COMMANDS)[1].items():
        shown = set(re.findall(r"`(--[\w-]+)`", sections[name]))
        options = {option for option in parser._option_string_actions if option.startswith("--")}
        assert options - {"--help"} == shown, name
