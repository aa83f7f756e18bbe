"""Which files make up a Marian model: a `.npz` alone with its vocabularies, or a folder as OPUS-MT packs it.

    opus.bpe32k-spm32k.transformer.model1.npz.best-perplexity.npz
    decoder.yml     models, vocabs, how to search
    *.vocab.yml     pieces and their ids, for both sides
    source.spm, target.spm     (older models: source.bpe, target.bpe)
    README.md, LICENSE, preprocess.sh, postprocess.sh
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.strict_yaml import load_strict
from towernmt.importing.foreign_model import ImportRequest

DECODER = "decoder.yml"
_KEPT = ("readme*", "license*", "licence*", "copying*", DECODER, "preprocess.sh", "postprocess.sh")
_LARGEST_KEPT = 1_000_000


@dataclass(frozen=True)
class MarianFiles:
    """The files of a model.

    Attributes:
        model: the `.npz`.
        vocabularies: of source and target.
        pieces: what divides source and target, by name `.spm` or `.bpe`; None where words stand between spaces.
        decoder: the options of `decoder.yml`; empty without it.
        kept: the other files that a user wants to have.
    """

    model: Path
    vocabularies: tuple[Path, Path]
    pieces: tuple[Path, Path] | None
    decoder: dict[str, Any]
    kept: tuple[Path, ...]


def find_files(request: ImportRequest) -> MarianFiles:
    """Find a model's files.

    Raises:
        SettingsError: the path is not a Marian model, or its files cannot be told apart.
        DataError: `decoder.yml` cannot be read.
    """
    path = request.path
    if not path.exists():
        raise SettingsError(f"{path}: there is no such file or folder.")
    folder = path if path.is_dir() else path.parent
    decoder = _decoder_options(folder / DECODER)
    model = _named(folder, decoder.get("models"))[:1] or sorted(folder.glob("*.npz"))
    if path.is_file():
        model = [path]
    if len(model) != 1:
        what = f"{len(model)} of them" if model else "none"
        raise SettingsError(f"{path}: a Marian model is one .npz, and there are {what}, and no {DECODER} that names "
                            "one: name the file itself.")
    vocabularies = request.vocabularies or _vocabularies(folder, decoder)
    kept = {file for pattern in _KEPT for file in folder.iterdir()
            if file.is_file() and not file.is_symlink() and file.stat().st_size <= _LARGEST_KEPT
            and Path(file.name.lower()).match(pattern)} if path.is_dir() else set()
    return MarianFiles(model[0], vocabularies, request.pieces or _pieces(folder), decoder, tuple(sorted(kept)))


def _vocabularies(folder: Path, decoder: dict[str, Any]) -> tuple[Path, Path]:
    named = _named(folder, decoder.get("vocabs"))
    if not named:
        lists = [*folder.glob("*vocab*.yml"), *folder.glob("*vocab*.yaml")]
        named = sorted(lists or folder.glob("*vocab*.spm"))
    if not 1 <= len(named) <= 2:
        raise SettingsError(f"{folder}: it is not clear which vocabularies are the model's ({len(named)} found): name "
                            "them with --vocabularies SOURCE TARGET.")
    if len(named) == 2 and not decoder.get("vocabs"):
        raise SettingsError(f"{folder}: {named[0].name} and {named[1].name} are there, and nothing says which is the "
                            "source's: name them with --vocabularies SOURCE TARGET.")
    return named[0], named[-1]


def _pieces(folder: Path) -> tuple[Path, Path] | None:
    for suffix in (".spm", ".bpe"):
        source, target = folder / f"source{suffix}", folder / f"target{suffix}"
        if source.is_file() and target.is_file():
            return source, target
    return None


def _named(folder: Path, names: Any) -> list[Path]:
    """The files in the folder that a list of options names, which may have been written on another machine."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    return [file for name in names if (file := folder / Path(name).name).is_file()]


def _decoder_options(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = load_strict(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.MarkedYAMLError) as error:
        raise DataError(f"{file}: it cannot be read ({str(error).splitlines()[0]}); name the .npz itself, with "
                        "--vocabularies.") from error
    return content if isinstance(content, dict) else {}
