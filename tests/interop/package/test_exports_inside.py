"""Exports in a package: `--engine ctranslate2` uses them, and their bytes are reproducible."""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.cli import exchange_commands as command
from towernmt.core.errors import SettingsError
from towernmt.interop import int8_measurement
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer, CTranslate2Translator
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.translator import Translator


def pack(run: Path, output: Path, *include: str, options: Sequence[str] = ()) -> Path:
    parser = argparse.ArgumentParser()
    command.add_package_arguments(parser)
    assert command.run_package(parser.parse_args([
        "--model", str(run), "--output", str(output), "--licence", "CC0-1.0", "--languages", "de-en",
        *(f"--include={one}" for one in include), *options])) == 0
    return output


@pytest.fixture(scope="module")
def packed(run_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(run_on_disk, tmp_path_factory.mktemp("packed") / "x.zip", "ctranslate2:int8")


def test_ctranslate2_takes_the_export_inside(run_on_disk: Path, packed: Path, lines: list[str]) -> None:
    run = PackagedRun(packed)
    translator = CTranslate2Translator(run, device="cpu")
    assert translator.model.description.precision == "int8" and "included" in translator.checkpoint
    found = translator.translate(lines)
    assert any(found) and not run.checkpoints.exists()
    assert found == CTranslate2Translator(run_on_disk, device="cpu", precision="int8").translate(lines)


@pytest.mark.thorough
def test_of_several_exports_the_wanted_one_is_taken_and_one_that_lacks_is_made(
        run_on_disk: Path, tmp_path: Path, lines: list[str]) -> None:
    packed = pack(run_on_disk, tmp_path / "x.zip", "ctranslate2:int8", "ctranslate2")
    run = PackagedRun(packed)
    assert [(one.format, one.precision) for one in run.manifest.exports] == [
        ("ctranslate2", "int8"), ("ctranslate2", "float32")]
    assert CTranslate2Translator(packed, device="cpu").model.description.precision == "int8"
    found = CTranslate2Translator(packed, device="cpu", precision="float32").translate(lines)
    assert found == CTranslate2Translator(run_on_disk, device="cpu").translate(lines)
    assert CTranslate2Scorer(packed, device="cpu").score([(lines[1], lines[1])])[0].log_prob < 0
    assert not run.checkpoints.exists()
    made = CTranslate2Translator(packed, device="cpu", precision="int16")      # is not inside
    assert made.model.description.precision == "int16" and made.checkpoint == run.checkpoint()
    assert [path.name.split("-")[0] for path in (run.path / "exports").iterdir()] == ["ctranslate2"]


@contextmanager
def languages_of_translators() -> Iterator[dict[str, tuple[str, str]]]:
    """Record the languages of each kind of translator that the block makes."""
    languages: dict[str, tuple[str, str]] = {}
    initialize = LineTranslator.__init__

    def recording(self: LineTranslator, *arguments: Any, **options: Any) -> None:
        languages[type(self).__name__] = options["languages"]
        initialize(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LineTranslator, "__init__", recording)
        yield languages


@pytest.mark.thorough
@pytest.mark.parametrize(("limit", "precision"), [(100.0, "int8"), (-100.0, "float32")])
def test_a_package_translates_in_int8_if_its_bleu_is_nearly_that_of_float32(
        run_on_disk: Path, tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, limit: float,
        precision: str) -> None:
    monkeypatch.setattr(int8_measurement, "MAX_INT8_BLEU_LOSS", limit)
    monkeypatch.setattr(int8_measurement, "MAX_INT8_LOG_PROB_LOSS", limit)
    test = str(tmp_path / "test")
    Path(test).write_text("".join(f"{line}\n" for line in lines if line))
    with languages_of_translators() as languages:
        packed = pack(run_on_disk, tmp_path / "x.zip", options=["--test", test, test])
    assert languages == {"Translator": ("de", "en"), "CTranslate2Translator": ("de", "en")}     # those of the card
    run = PackagedRun(packed)
    assert run.manifest.processor_precision == precision
    assert run.card["int8"]["default_on_processors"] is (precision == "int8")
    assert [export.precision for export in run.manifest.exports] == ["int8"] * (precision == "int8")
    assert f"| On processors | {precision}" in (run.path / "README.md").read_text()
    translator = Translator(packed, device="cpu")
    if precision == "float32":
        assert translator.engine == "graph"
        return
    assert translator.engine.endswith(" int8") and not run.checkpoints.exists()
    assert translator.translate(lines) == CTranslate2Translator(run_on_disk, device="cpu", precision="int8").translate(
        lines)
    assert Translator(packed, device="cpu", precision="float32").engine == "graph"


@pytest.mark.processes
def test_with_an_export_inside_tensorflow_is_not_loaded(packed: Path, lines: list[str]) -> None:
    program = ("import sys\nfrom towernmt.interop.ctranslate2_engine import CTranslate2Translator\n"
               "print(CTranslate2Translator(sys.argv[1], device='cpu').translate(sys.argv[2:]))\n"
               "sys.exit('tensorflow' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", program, str(packed), *lines[:3]], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("[")


@pytest.mark.thorough
def test_exports_are_the_same_bytes_and_none_is_there_twice(packed: Path, run_on_disk: Path, tmp_path: Path) -> None:
    assert pack(run_on_disk, tmp_path / "other.zip", "ctranslate2:int8").read_bytes() == packed.read_bytes()
    with pytest.raises(SettingsError, match="--include ctranslate2:int8 was passed twice"):
        pack(run_on_disk, tmp_path / "x.zip", "ctranslate2:int8", "ctranslate2:int8")
    assert zipfile.ZipFile(packed).testzip() is None
