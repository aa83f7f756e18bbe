"""The run of the tests of engines, and a package of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[1] / "engines" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("towernmt_engines_conftest", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
_ENGINES = sys.modules.setdefault(_SPEC.name, importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(_ENGINES)
run_on_disk, lines = _ENGINES.run_on_disk, _ENGINES.lines


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packages"


@pytest.fixture(scope="session")
def package(run_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from towernmt.package.build import package_run
    from towernmt.package.card_text import CardText
    from towernmt.predict.trained_model import TrainedModel

    place = tmp_path_factory.mktemp("packed") / "model.towernmt.zip"
    with TrainedModel(run_on_disk) as trained:
        package_run(trained, place, CardText(licence="CC0-1.0", languages="de-en"))
    return place
