"""The location of a model's class: files, packages, neighbouring files; and the name of a class for finding it."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

from towernmt.core.errors import SettingsError
from towernmt.models import architecture
from towernmt.models.architectures import presets, settings_class
from towernmt.models.model_location import find_location, is_findable, load_attribute, name_of_class

pytestmark = pytest.mark.usefixtures("imports_as_before")


def write(root: Path, **files: str) -> Path:
    """Write files by name, with `_in_` for `/`, without `.py`."""
    for name, content in files.items():
        path = root / (name.replace("_in_", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def load_named(name: str):
    return load_attribute(find_location(name))


def test_a_class_of_a_file_is_found_once_and_anew_when_the_file_has_changed(tmp_path):
    name = f"{write(tmp_path, mine='class A: size = 1')}/mine.py:A"
    first = load_named(name)
    assert first.size == 1 and load_named(name) is first
    write(tmp_path, mine="class A: size = 2")
    assert load_named(name).size == 2 and first.size == 1


def test_neighbours_of_one_name_do_not_take_each_others_place(tmp_path, monkeypatch):
    for number in (1, 2):
        write(tmp_path / str(number), mine="from beside import SIZE\nclass A: size = SIZE", beside=f"SIZE = {number}")
    monkeypatch.syspath_prepend(str(write(tmp_path / "3", beside="SIZE = 3")))
    assert importlib.import_module("beside").SIZE == 3
    assert [load_named(f"{tmp_path}/{number}/mine.py:A").size for number in (1, 2)] == [1, 2]
    assert importlib.import_module("beside").SIZE == 3          # the program's module stays


def test_a_changed_neighbour_is_read_again(tmp_path):
    name = f"{write(tmp_path, mine='from beside_too import A', beside_too='class A: size = 1')}/mine.py:A"
    assert load_named(name).size == 1
    write(tmp_path, beside_too="class A: size = 22")
    assert load_named(name).size == 22


@pytest.mark.parametrize("by", ["file", "module"])
def test_a_module_in_a_package_has_its_relative_imports(tmp_path, monkeypatch, by):
    write(tmp_path, own_pack_in___init__="", own_pack_in_parts="SIZE = 4",
          own_pack_in_deep_in___init__="", own_pack_in_deep_in_mine="from ..parts import SIZE\nclass A: size = SIZE")
    monkeypatch.chdir(tmp_path)         # where modules are searched, as by `python -m`
    name = "own_pack/deep/mine.py:A" if by == "file" else "own_pack.deep.mine:A"
    assert load_named(name).size == 4
    assert find_location(name).name == "own_pack.deep.mine:A"


VERSION = """from __future__ import annotations
from dataclasses import dataclass

PRESETS = {"larger": {"size": SIZE + 10}}

@dataclass(frozen=True)
class Sizes:
    size: int = SIZE

class Model:
    def __init__(self, settings: Sizes) -> None:
        self.settings = settings
"""


def test_two_versions_of_a_package_have_their_own_settings_and_presets(tmp_path):
    kinds = []
    for size in (1, 2):
        root = write(tmp_path / str(size), twice_in___init__="", twice_in_mine=VERSION.replace("SIZE", str(size)))
        kinds.append(load_named(f"{root}/twice/mine.py:Model"))
    assert [settings_class(kind)().size for kind in kinds] == [1, 2]
    assert [presets(kind)["larger"]["size"] for kind in kinds] == [1 + 10, 2 + 10]


def test_a_file_may_have_the_name_of_a_library(tmp_path):
    import json

    assert load_named(f"{write(tmp_path, json='class A: size = 1')}/json.py:A").size == 1
    assert sys.modules["json"] is json


@pytest.mark.parametrize("content, message", [
    ("class A:\n    size = = 2", r"mine.py: invalid syntax \(line 2\)"),
    ("import nowhere_to_be_found", r"cannot be loaded: ModuleNotFoundError: .*nowhere.* \(line 1 of .*mine.py\)\. "
                                   "Install that module, or correct the import"),
    ("\nx = 1 / 0", r"cannot be loaded: ZeroDivisionError: division by zero \(line 2 of .*mine.py\)"),
    ("", "has no 'A': name a class or function of this file\\.$"),
    ("from os import path\nclass Aa: pass", "file\\. Did you mean 'Aa'"),
    ("from os import getpid\nclass Bcd: pass\ndef make(): pass",
     "file\\. The classes and functions of this file are: Bcd, make\\.$"),
])
def test_the_error_of_a_file_that_cannot_be_loaded_names_its_line(tmp_path, content, message):
    write(tmp_path, mine=content)
    with pytest.raises(SettingsError, match=message):
        load_named(f"{tmp_path}/mine.py:A")


def test_a_file_whose_name_is_no_name_of_a_module_is_refused(tmp_path):
    (tmp_path / "gated-v1.2.py").write_text("class A: size = 1")
    with pytest.raises(SettingsError, match=r"gated-v1\.2\.py cannot be imported.*rename the file, .* gated-v1_2\.py"):
        load_named(f"{tmp_path}/gated-v1.2.py:A")


@pytest.mark.parametrize("name, message", [
    ("transformr", "choose one of transformer, .* or name a file or module"),
    ("none.py:A", "the file none.py does not exist"), ("no_such.module:A", "the module no_such.module does not exist"),
    (":A", "name a file or module and its class")])
def test_a_name_that_means_nothing_is_refused_with_those_that_do(name, message):
    with pytest.raises(SettingsError, match=message):
        architecture(name)


class Here:
    """A class of this file."""

    class Inner:
        """A class inside a class."""


def test_the_name_of_a_class_finds_it_again():
    for kind in (Here, Here.Inner):
        name = name_of_class(kind)
        assert is_findable(name) and name.endswith(f"test_locate.py:{kind.__qualname__}")


def test_a_class_that_a_function_made_is_named_and_not_findable():
    class Local:
        """A class inside a function, which cannot be found."""

    for kind in (Local, type("Here", (Here,), {})):
        name = name_of_class(kind)
        assert not is_findable(name) and name.startswith(kind.__qualname__ + " of ")


@pytest.mark.parametrize("script, findable", [
    ("class A: pass", True), ("class A: pass\nif __name__ == '__main__':\n    print()", True),
    ("class A: pass\nprint()", False), ("class A: pass\nx = print()", False)])
def test_a_class_of_a_program_is_findable_unless_loading_it_runs_the_program(tmp_path, monkeypatch, script, findable):
    path = write(tmp_path, program=script) / "program.py"
    values = runpy.run_path(str(path), run_name="__main__")
    module = type(sys)("__main__")
    module.__dict__.update(values, __file__=str(path))
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert is_findable(name_of_class(values["A"])) == findable
