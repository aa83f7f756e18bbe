"""A package of four weights, made without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from towernmt.checkpoint.package_manifest import CARD, CARD_TEXT, CODE, SETTINGS, VOCABULARY, PackageManifest
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.interop.package_archive import files_below, weight_members, write_archive


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {"model/embedding": random.normal(0, 1, [12, 8]).astype(np.float32),
            "model/kernel": random.normal(0, 1, [8, 6]).astype(np.float32), "model/count": np.array([3, 4], np.int64),
            "model/gate": np.array(0.25, np.float32)}


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, np.ndarray]) -> Path:
    return write_package(tmp_path_factory.mktemp("package"), weights)


def write_package(directory: Path, weights: dict[str, np.ndarray]) -> Path:
    """Write a package of weights into a directory."""
    vocabulary = WordVocabulary([*SPECIAL_PIECES, "one", "two"])
    save_vocabularies(vocabulary, vocabulary, directory / "vocabulary")
    infos, files = weight_members(weights, "int8", "here")
    manifest = PackageManifest("towernmt-package", 1, "0.1", 7, "int8", False, infos, {}, "")
    members = {CARD_TEXT: b"# A model\n", CARD: b'{"licence": "CC0-1.0"}\n',
               SETTINGS: b"architecture: mine.py:Mine\nsearch:\n  shortlist: /etc/passwd\n",
               f"{CODE}/mine.py": b"raise SystemExit('executed')\n",
               **files_below(directory / "vocabulary", VOCABULARY), **files}
    with open(directory / "model.towernmt.zip", "wb") as file:
        write_archive(file, manifest, members)
    return directory / "model.towernmt.zip"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packages"
