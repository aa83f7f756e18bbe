"""`towernmt check`: its output for a correct model, an incorrect one, and a missing one."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.cli.diagnosis_commands import load_model
from towernmt.cli.main import main

MODEL = '''
from dataclasses import dataclass
from towernmt.core.tf_compat import tf, tf1
from tensorpack.train.model_desc import ModelDesc
from beside_check import NAME

@dataclass
class Sizes:
    source_vocab_size: int = 0
    depth: int = 3

class Good(ModelDesc):
    def __init__(self, settings: Sizes):
        self.settings = settings
    def inputs(self):
        return [tf.TensorSpec([None, 3], tf.float32, "x")]
    def build_graph(self, x):
        return tf.reduce_sum(x * tf1.get_variable("scale", [self.settings.depth]))

class Bad(Good):
    def __init__(self):
        pass
    def build_graph(self, x):
        scale = tf1.get_variable(NAME, [3])
        return tf.reduce_sum(x * scale * tf.Variable(1.0, name="factor"))

def make():
    return Bad()

def make_from_settings(*, settings: Sizes):
    return Good(settings)

number = 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "beside_check.py").write_text("NAME = 'my_tower_scale'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["Good", "make_from_settings"])
def test_the_command_reports_that_a_model_obeys_all_rules(folder, capsys, name):
    assert main(["check", f"my_model.py:{name}"]) == 0
    assert f"my_model.py:{name} obeys the 14 rules" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Bad", "make"])
def test_each_breach_is_a_line_with_its_place_and_rule(folder, capsys, name):
    assert main(["check", f"my_model.py:{name}"]) == 1
    *breaches, last = capsys.readouterr().out.strip().splitlines()
    assert [line.split("]")[0] for line in breaches] == [
        "my_model.py:25: [enclosing-scope", "my_model.py:25: [name-scope", "my_model.py:25: [second-tower",
        "my_model.py:24: [tower-word"]
    assert last.startswith(f"my_model.py:{name}: 4 breaches of the rules enclosing-scope, name-scope, ")
    page = Path(__file__).parents[2] / "docs" / "extend" / "tower-rules.md"
    assert last.partition("; ")[2] in page.read_text(encoding="utf-8")


def test_the_settings_of_the_checked_model_can_be_chosen(folder, capsys):
    assert main(["check", "my_model.py:Good", "--set", "model.depth=4"]) == 1
    assert "fails" in capsys.readouterr().out               # [None, 3] times [4]
    assert main(["check", "my_model.py:Good", "--set", "train.xla=true"]) == 1
    assert "--set train.xla=true has no effect, because the check does not train" in capsys.readouterr().err
    assert main(["check", "my_model.py:Good", "--preset", "big"]) == 1
    assert "my_model.py:Good has no presets" in capsys.readouterr().err
    assert main(["check", "my_model.py:make", "--set", "model.depth=4"]) == 1
    assert "--preset and --set need a class with a settings dataclass" in capsys.readouterr().err


VARIANT = '''
from dataclasses import dataclass
from towernmt.models import Transformer

class Variant(Transformer):
    pass

@dataclass
class Decorated(Transformer):
    note: str = ""
'''


@pytest.mark.parametrize("name", ["Variant", "Decorated"])
def test_a_class_derived_from_a_built_in_model_has_its_settings(folder, name):
    (folder / "variant.py").write_text(VARIANT)
    model = load_model(f"variant.py:{name}", "tiny", ["model.encoder_layers=1"])
    assert type(model).__name__ == name and model.settings.encoder_layers == 1


@pytest.mark.parametrize("name, sentence", [
    ("my_model.py:Missing", "my_model.py has no 'Missing'"),
    ("my_model.py:number", "check my_model.py:number: number does not give a model: pass a class that derives from"),
    ("other.py:Good", "the file other.py does not exist"),
    ("no_such_module:Good", "does not exist: name a file"),
    ("my_model.py", "check my_model.py: add the name of a class or function of the file, such as my_model.py:MyModel."),
    ("my_model", "pass a file or module and a name in it"),
    ("transfomer", "convs2s). Did you mean 'transformer'?"),
])
def test_a_model_that_cannot_be_loaded_is_reported_in_one_sentence(folder, capsys, name, sentence):
    assert main(["check", name]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("towernmt: ") and sentence in errors
