"""A package of the run on disk."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packages"


@pytest.fixture(scope="session")
def package(original_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from towernmt.interop.model_card import CardText
    from towernmt.interop.package_build import package_run
    from towernmt.predict.trained_model import TrainedModel

    path = tmp_path_factory.mktemp("packed") / "model.towernmt.zip"
    with TrainedModel(original_run) as trained:
        package_run(trained, path, CardText(licence="CC0-1.0", languages="de-en"))
    return path
