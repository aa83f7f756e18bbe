"""A run's copy of its model's code: the copied files, and the detection of changes in either."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.models.model_location import changed_files, copy_code, find_location, load_attribute, location_of_copy

pytestmark = pytest.mark.usefixtures("imports_as_before")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return the directory of the copy in a run next to the code."""
    return tmp_path / "run" / "code"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def copied(code: Path) -> set[str]:
    return {path.relative_to(code).as_posix() for path in code.rglob("*") if path.is_file()} - {"SHA256SUMS"}


def test_a_file_is_copied_with_the_nearby_files_that_it_imports_and_works_without_the_original(tmp_path, code):
    source = write(tmp_path / "source", {
        "mine.py": "import json\nimport towernmt\nfrom near import SIZE\nclass A: size = SIZE", "json.py": "",
        "near.py": "def late():\n    from parts import one\nSIZE = 3", "parts/__init__.py": "",
        "parts/one.py": "import far.away", "parts/two.py": "", "far/away.py": "", "other.py": ""})
    location = find_location(f"{source}/mine.py:A")
    copy_code(location, code)
    assert copied(code) == {"mine.py", "near.py", "parts/__init__.py", "parts/one.py", "far/__init__.py", "far/away.py"}
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=code, check=True)
    source.rename(tmp_path / "gone")
    copy_location = location_of_copy(code, "mine.py:A")
    assert copy_location is not None and load_attribute(copy_location).size == 3
    assert not list(code.rglob("__pycache__"))


def test_only_the_used_modules_of_a_package_are_copied(tmp_path, code, monkeypatch):
    write(tmp_path / "kept_pack", {
        "__init__.py": "", "models/__init__.py": "", "layers.py": "from . import parts\nSIZE = 5", "parts.py": "",
        "models/mine.py": "from ..layers import SIZE\nimport beside\nclass A: size = SIZE", "unused.py": ""})
    write(tmp_path, {"beside.py": ""})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    location = find_location("kept_pack.models.mine:A")
    copy_code(location, code)
    names = ("__init__", "models/__init__", "models/mine", "layers", "parts")
    assert copied(code) == {f"kept_pack/{name}.py" for name in names}
    assert location_of_copy(code, location.name) == location      # the same files are installed
    (tmp_path / "kept_pack" / "layers.py").write_text("SIZE = 6")
    copy_location = location_of_copy(code, location.name)
    assert copy_location is not None and copy_location.root == code and load_attribute(copy_location).size == 5


def test_a_change_of_any_of_the_files_is_noticed(tmp_path, code):
    source = write(tmp_path / "source", {"mine.py": "import near\nclass A: pass", "near.py": ""})
    location = find_location(f"{source}/mine.py:A")
    copy_code(location, code)
    assert changed_files(location, code) == []
    write(source, {"near.py": "import third", "third.py": ""})
    assert changed_files(location, code) == ["near.py", "third.py"]
    copy_code(location, code)
    assert changed_files(location, code) == [] and copied(code) == {"mine.py", "near.py", "third.py"}


@pytest.mark.parametrize("spoil", [
    lambda code: (code / "mine.py").write_text("class A: size = 2"), lambda code: (code / "near.py").unlink()])
def test_a_copy_that_does_not_match_its_checksum_is_refused(tmp_path, code, spoil):
    copy_code(find_location(f"{write(tmp_path, {'mine.py': 'import near', 'near.py': ''})}/mine.py:A"), code)
    spoil(code)
    with pytest.raises(SettingsError, match=r"is not the file that the run was made with .* or, if you changed it"):
        location_of_copy(code, "mine.py:A")


def test_without_a_copy_there_is_no_location(code):
    assert location_of_copy(code, "mine.py:A") is None


@pytest.mark.parametrize("name", ["../mine.py:A", "/mine.py:A", "a/../../mine.py:A"])
def test_a_name_outside_of_the_copy_is_refused(code, name):
    with pytest.raises(DataError, match="may lie outside"):
        location_of_copy(code, name)
