"""Exports of a tiny student as a web site, with the browser engine or with placeholder files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from towernmt.interop import web_export
from towernmt.interop.export import export_model
from towernmt.predict.trained_model import TrainedModel

Export = Callable[..., Path]


@pytest.fixture(scope="session")
def trained(student_on_disk: Path) -> Iterator[TrainedModel]:
    with TrainedModel(student_on_disk, "step-1") as model:
        yield model


@pytest.fixture(scope="session")
def export_page(trained: TrainedModel, lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A function that exports the student to a path, from German to English."""
    text = tmp_path_factory.mktemp("text") / "lines"
    text.write_text(lines[-1], encoding="utf-8")

    def export(path: Path, **options: Any) -> Path:
        return export_model(trained, "web", path, **{"calibration": text, "languages": ("de:German", "en:English"),
                                                      **options})

    return export


@pytest.fixture(scope="module")
def other_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder like that of the npm package with other files, whose checksums are accepted."""
    folder = tmp_path_factory.mktemp("package") / "worker"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in web_export.CHECKSUMS:
            (folder / name).write_text(f"the content of {name}")
            patch.setitem(web_export.CHECKSUMS, name, hashlib.sha256((folder / name).read_bytes()).hexdigest())
        yield folder.parent


@pytest.fixture(scope="session")
def engine() -> Path:
    """The folder of the npm package."""
    if not os.environ.get(web_export.VARIABLE):
        pytest.skip(f"{web_export.VARIABLE} names no folder of {web_export.PACKAGE} {web_export.VERSION}")
    return Path(os.environ[web_export.VARIABLE])
