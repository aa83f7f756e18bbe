"""Exports of a tiny student to pages, with the engine of browsers or with something in its place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from towernmt.export.exporter import export_model
from towernmt.export.web import bergamot
from towernmt.predict.trained_model import TrainedModel

Export = Callable[..., Path]


@pytest.fixture(scope="session")
def trained(student_on_disk: Path) -> Iterator[TrainedModel]:
    with TrainedModel(student_on_disk, "step-1") as model:
        yield model


@pytest.fixture(scope="session")
def export_page(trained: TrainedModel, lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports the student to a place, from German to English."""
    text = tmp_path_factory.mktemp("text") / "lines"
    text.write_text(lines[-1], encoding="utf-8")

    def export(place: Path, **options: Any) -> Path:
        return export_model(trained, "web", place, **{"calibration": text, "languages": ("de:German", "en:English"),
                                                      **options})

    return export


@pytest.fixture(scope="module")
def other_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder like that of the npm package with other programs in it, which are taken for the right ones."""
    folder = tmp_path_factory.mktemp("package") / "worker"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in bergamot.CHECKSUMS:
            (folder / name).write_text(f"the content of {name}")
            patch.setitem(bergamot.CHECKSUMS, name, hashlib.sha256((folder / name).read_bytes()).hexdigest())
        yield folder.parent


@pytest.fixture(scope="session")
def engine() -> Path:
    """The folder of the npm package."""
    if not os.environ.get(bergamot.VARIABLE):
        pytest.skip(f"{bergamot.VARIABLE} names no folder of {bergamot.PACKAGE} {bergamot.VERSION}")
    return Path(os.environ[bergamot.VARIABLE])
