"""The pages on custom models, from the first line to the last; and runs that are opened with another model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manual_pages import on_one_tower
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow import PreparedData
from towernmt.models import Transformer
from towernmt.models.layers.projections import Projection
from towernmt.predict.scorer import Scorer
from towernmt.predict.translator import Translator
from towernmt.run import RunDirectory, default_settings, settings_of_model, train

pytestmark = pytest.mark.processes

EXTEND = Path(__file__).resolve().parents[2] / "docs" / "extend"
LINES = ["ba be bi bo", "da de di"]


def pages() -> str:
    """Return the manual's pages, read on request, because runs contain a copy of this file without them."""
    return "".join((EXTEND / page).read_text(encoding="utf-8") for page in ("architecture.md", "own-model.md"))


class Variant(Transformer):
    """A Transformer with one more variable."""

    def output_projection(self):
        kernel, bias = super().output_projection()
        one_more = tf1.get_variable("one_more", [self.settings.hidden_size], initializer=tf1.constant_initializer(-3.0))
        return Projection(kernel * one_more, bias)


@pytest.fixture(scope="module")
def place(corpus, tmp_path_factory) -> Path:
    """Write the pages' files next to data and a test set in a new directory."""
    place = tmp_path_factory.mktemp("own")
    (place / "data").symlink_to(corpus.prepared)
    for side in ("source", "target"):
        shutil.copy(corpus.file(f"valid.{side}"), place / f"test.{side}")
    for name, code in re.findall(r"In `(\w+\.py)`:\n\n```python\n(.*?)^```", pages(), re.M | re.S):
        (place / name).write_text(code)
    return place


@pytest.fixture(autouse=True)
def there(place, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(place)
    with tf.Graph().as_default():       # each test has a separate graph
        yield


@pytest.fixture(scope="module")
def done(place) -> dict[str, str]:
    """Run the pages' commands in order, and return the output of each; the runs are moved before the last block."""
    written: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for block in re.findall(r"^```sh\n(.*?)^```", pages(), re.M | re.S):
            if "elsewhere" in block:
                shutil.copytree("runs", "before")
                Path("runs").rename("elsewhere")
                for file in place.glob("*.py"):
                    file.rename(file.with_suffix(".gone"))
            for line in block.splitlines():
                quick = line.replace("--set ", "--set train.precision=float32 ")    # not measured for seconds
                if "gated" not in line:
                    quick = quick.replace("--set ", "--set validation.steps=0 ")
                words = shlex.split(on_one_tower(quick))[1:]
                if words[0] == "translate":
                    words += ["--output", "translations"]
                assert main(words) == 0, line
                written[line] = Path("translations").read_text() if words[0] == "translate" else ""
        for file in place.glob("*.gone"):
            file.rename(file.with_suffix(".py"))
    return written


@pytest.fixture
def run(done, place, tmp_path) -> Path:
    """Return a copy of the run of the variant, which a test may damage."""
    return Path(shutil.copytree(place / "before" / "gated", tmp_path / "run"))


def test_the_pages_hold_a_variant_and_an_architecture_whose_runs_translate_elsewhere_as_they_did_here(done):
    translated = {line: text for line, text in done.items() if " translate " in line}
    _, here, there = (text for text in translated.values())
    assert here == there and here.count("\n") == 12
    assert RunDirectory("elsewhere/gated").load_model().settings.gate == 0.5
    assert type(RunDirectory("elsewhere/averaging").load_model()).__name__ == "Averaging"
    assert type(RunDirectory("elsewhere/grown").load_model()).__name__ == "Gated"
    assert "architecture: gated.py:Gated\n" in Path("elsewhere/gated/settings.yaml").read_text()


def test_a_run_goes_on_with_the_same_file_or_by_its_copy(run):
    for extra in (["--model", "gated.py:Gated"], []):
        steps = 41 if extra else 42
        assert main(["train", "--defaults=fixed", *extra, "--data", "data", "--logdir", str(run), "--set",
                     f"train.steps={steps}", "validation.steps=0"]) == 0
        assert RunDirectory(run).checkpoint("last").endswith(f"step-{steps}/model")
    assert (run / "code" / "gated.py").read_bytes() == Path("gated.py").read_bytes()


def test_a_file_that_has_changed_is_refused_until_the_copy_is_removed(run, tmp_path, capsys):
    changed = tmp_path / "gated.py"
    changed.write_text(Path("gated.py").read_text() + "# another\n")
    command = ["train", "--defaults=fixed", "--model", f"{changed}:Gated", "--data", "data", "--logdir", str(run),
               "--set", "train.steps=41", "validation.steps=0"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert f"{changed} has changed since {run} began: leave out --model" in error and f"rm -r {run}/code" in error
    shutil.rmtree(run / "code")
    assert main(["translate", "--model", str(run), "--input", "test.source"]) == 1
    assert f"{run} does not contain the code of its model gated.py:Gated" in capsys.readouterr().err
    assert main(command) == 0
    assert (run / "code" / "gated.py").read_bytes() == changed.read_bytes()


def test_another_model_is_refused_by_name(run, capsys):
    for other in ("averaging.py:Averaging", "transformer"):
        assert main(["train", "--defaults=fixed", "--model", other, "--data", "data", "--logdir", str(run)]) == 1
        assert f"holds a run of the model gated.py:Gated, not of {other}: leave out --model" in capsys.readouterr().err


def test_the_checkpoint_of_a_variant_is_not_read_as_its_parents(run, capsys):
    """The parent model would ignore the gate and translate wrongly without an error."""
    settings = run / "settings.yaml"
    text = settings.read_text().replace("architecture: gated.py:Gated", "architecture: transformer")
    settings.write_text(re.sub(r"\n  gate: .*", "", text))
    for command in (["translate", "--input", "test.source"], ["average", "--last", "1"],
                    ["grow", "--vocabulary", "data", "--output", "no"]):
        assert main([*command, "--model", str(run)]) == 1
        assert "has the trained variable 'gate', which the model does not have" in capsys.readouterr().err
    assert main(["train", "--defaults=fixed", "--data", "data", "--logdir", "new", "--preset", "tiny", "--set",
                 f"init.checkpoint={run}",
                 "model.hidden_size=32", "model.filter_size=64", "model.heads=2", "model.encoder_layers=1",
                 "model.decoder_layers=1", "model.tie_embeddings=none", "train.steps=1"]) == 1
    assert "has the trained variable 'gate', which the model does not have" in capsys.readouterr().err


def tiny(steps: int = 3):
    settings = default_settings("gated.py:Gated", "toy")
    sizes = {key: value for key, value in vars(settings.model).items() if key.endswith(("size", "heads", "layers"))}
    settings = apply_overrides(default_settings(), {f"model.{key}": value for key, value in sizes.items()})
    return apply_overrides(settings, {"train.steps": steps, "data.batch_tokens": 256, "validation.steps": 0})


def test_a_model_that_a_function_makes_is_recorded_by_its_class_and_found_by_the_run(done, tmp_path):
    def make(s):
        return Variant(s.model)

    train(tiny(), PreparedData("data"), tmp_path / "run", model=make)
    assert "architecture: test_own_model.py:Variant\n" in (tmp_path / "run" / "settings.yaml").read_text()
    assert type(RunDirectory(tmp_path / "run").load_model()).__name__ == "Variant"
    assert len(Translator(tmp_path / "run", engine="graph").translate(LINES)) == 2
    train(tiny(4), PreparedData("data"), tmp_path / "run", model=make)         # resumes
    assert RunDirectory(tmp_path / "run").settings().train.steps == 4


def test_a_model_of_a_function_is_refused_by_name_unless_its_class_is_given(done, tmp_path, caplog):
    class Local(Variant):
        """A model class inside a function, which cannot be found by its name."""

    name = f"{Local.__qualname__} of {Local.__module__}"

    def make(s):
        return Local(s.model)

    train(tiny(), PreparedData("data"), tmp_path / "run", model=make)
    assert f"The model {name} cannot be found again" in caplog.text
    with pytest.raises(SettingsError, match=re.escape(f"does not contain the code of its model {name}")):
        Translator(tmp_path / "run", engine="graph")
    assert len(Translator(tmp_path / "run", model=Local, engine="graph").translate(LINES)) == 2
    model = Local(RunDirectory(tmp_path / "run").settings(Local).model)
    assert len(Scorer(tmp_path / "run", model=model).score([("ba be", "ab")])) == 1
    with pytest.raises(CheckpointError, match="trained variable 'one_more'"):
        Scorer(tmp_path / "run", model=Transformer)


def test_the_summaries_of_a_model_are_recorded_with_each_progress_line(tmp_path):
    class Summarised(Transformer):
        """A model with a summary in addition to the figures that every run records."""

        def build_graph(self, *inputs):
            tf1.summary.scalar("target_rows", tf.shape(inputs[2])[0])
            return super().build_graph(*inputs)

    settings = apply_overrides(tiny(), {"train.steps": 7, "log.steps": 3})

    def make(s):
        return Summarised(s.model)

    train(settings, PreparedData("data"), tmp_path / "run", model=make)
    lines = map(json.loads, (tmp_path / "run/log/stats.jsonl").read_text(encoding="utf-8").splitlines())
    assert [line["global_step"] for line in lines if "target_rows" in line] == [3, 6]


def test_a_run_by_hand_records_its_model(tmp_path):
    data = PreparedData("data")
    model = Variant(apply_overrides(tiny(), {"model.source_vocab_size": 5, "model.target_vocab_size": 5}).model)
    run = RunDirectory(tmp_path / "run")
    run.begin(settings_of_model(model), data)
    assert type(run.load_model()).__name__ == "Variant" and run.load_model() is not model


def test_a_model_without_sizes_of_vocabularies_is_told_what_it_lacks(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom towernmt.models import NMTModel\n"
        "@dataclass\nclass Sizes:\n    depth: int = 3\n"
        "class Mine(NMTModel):\n    def __init__(self, settings: Sizes): pass\n")
    model = ["--model", f"{tmp_path}/mine.py:Mine"]
    assert main(["train", "--defaults=fixed", *model, "--data", "data", "--logdir", str(tmp_path / "run")]) == 1
    assert "lacks 'source_vocab_size': add `source_vocab_size: int = 0`" in capsys.readouterr().err
