"""The files of a Marian model: in the folder of an OPUS-MT or browser model, or in a training directory of Marian."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.structured_files import load_strict, read_yaml_text
from towernmt.interop.foreign_model import ImportRequest
from towernmt.interop.marian_files import DECODER, INT8_DECODER, is_binary_file

_COPIED_FILES = ("readme*", "license*", "licence*", "copying*", DECODER, "preprocess.sh", "postprocess.sh")
_MAX_COPIED_BYTES = 1_000_000
_TRAINING_STATES = ("*.optimizer.npz", "*.orig.npz")
"""Files of a training directory with the state of the optimizer, and with the weights that are not averaged."""
_EARLIER = re.compile(r"\.iter\d+(?=\.npz$)")
"""Part of the name of an earlier state of a model, which `.npz` without it contains at the end of the training."""
_HUGGING_FACE = ("pytorch_model*.bin", "*.safetensors", "tf_model.h5")
_COMPRESSED = ("*.npz.gz", "*.bin.gz", "*vocab*.gz")
_ARCHIVES = ("*.zip", "*.tar", "*.tar.gz", "*.tgz")


@dataclass(frozen=True)
class MarianFiles:
    """The files of a Marian model.

    Attributes:
        model: the `.npz` file, or the `.bin` file of a browser's engine.
        vocabularies: vocabulary files of source and target.
        pieces: SentencePiece models (`.spm`) or BPE codes (`.bpe`) of source and target; None if the vocabulary is one
            of words between spaces.
        decoder: the options in `decoder.yml` or `config.bergamot.yml`, or else in the file `MODEL.decoder.yml` of a
            training directory; empty if all are missing.
        copied_files: further files to copy into the run, such as licences.
    """

    model: Path
    vocabularies: tuple[Path, Path]
    pieces: tuple[Path, Path] | None
    decoder: dict[str, Any]
    copied_files: tuple[Path, ...]


def find_marian_files(request: ImportRequest) -> MarianFiles:
    """Find the files of a model.

    Raises:
        SettingsError: the path is not a Marian model, or the roles of its files are ambiguous.
        DataError: `decoder.yml` cannot be read.
    """
    path = request.path
    if not path.exists():
        raise SettingsError(f"{path} does not exist: pass the .npz or .bin file, or the folder of a Marian model.")
    folder = path if path.is_dir() else path.parent
    decoder = _decoder_options(folder / DECODER) or _decoder_options(folder / INT8_DECODER)
    model = _model_file(path, decoder)
    training_decoder = model.with_name(f"{model.name}.{DECODER}")
    is_training_directory = not decoder and training_decoder.is_file()
    if is_training_directory:
        decoder = _decoder_options(training_decoder)
    vocabularies = request.vocabularies or _vocabularies(folder, decoder)
    patterns = (*_COPIED_FILES, training_decoder.name.lower()) if is_training_directory else _COPIED_FILES
    copied_files = {file for pattern in patterns for file in folder.iterdir()
                    if file.is_file() and not file.is_symlink() and file.stat().st_size <= _MAX_COPIED_BYTES
                    and Path(file.name.lower()).match(pattern)} if path.is_dir() else set()
    return MarianFiles(model, vocabularies, request.pieces or _pieces(folder), decoder, tuple(sorted(copied_files)))


def _model_file(path: Path, decoder: dict[str, Any]) -> Path:
    """Return the model at a path, a file or a folder.

    Raises:
        SettingsError: the file is in another format, or the folder does not contain exactly one model.
    """
    if path.is_file():
        _refuse_other_formats([path])
        return path
    named = _existing_files(path, "models", decoder)
    if len(named) > 1:
        names = ", ".join(file.name for file in named)
        raise SettingsError(f"The options of {path} name {len(named)} models ({names}), an ensemble, and a run has one "
                            "model: pass the path of one of these files.")
    models = (named
              or [file for file in sorted(path.glob("*.npz")) if not _is_training_state(file)]
              or [file for file in sorted(path.glob("*.bin")) if is_binary_file(file)])
    if not models:
        _refuse_other_formats(sorted(path.iterdir()))
        raise SettingsError(f"{path} contains no Marian model: pass the .npz file of a model, or the folder of this "
                            "file.")
    if len(models) > 1:
        kind = models[0].suffix
        raise SettingsError(f"{path} contains {len(models)} {kind} files, and no {DECODER} that names one of them: "
                            f"pass the path of the {kind} file.")
    return models[0]


def _refuse_other_formats(files: Iterable[Path]) -> None:
    """Refuse files of models that must be converted, unpacked or decompressed before towernmt can read them."""
    for file in files:
        if _matches(file, _HUGGING_FACE):
            raise SettingsError(f"{file} is a model in the format of Hugging Face, which towernmt does not read: for a "
                                "model of OPUS-MT, download the original Marian archive that its model card names "
                                "(\"original weights\"), unpack it, and pass its folder.")
        if _matches(file, _ARCHIVES):
            raise SettingsError(f"{file} is an archive: unpack it, and pass the folder of its files.")
        if _matches(file, _COMPRESSED):
            raise SettingsError(f"{file} is compressed: decompress all files of the model with `gunzip`, and pass them "
                                "again.")


def _is_training_state(file: Path) -> bool:
    last = _EARLIER.sub("", file.name)
    return _matches(file, _TRAINING_STATES) or last != file.name and file.with_name(last).is_file()


def _matches(file: Path, patterns: Iterable[str]) -> bool:
    return any(file.match(pattern) for pattern in patterns)


def _vocabularies(folder: Path, decoder: dict[str, Any]) -> tuple[Path, Path]:
    """Return the vocabularies that the options name, or else those in the folder.

    Raises:
        SettingsError: a vocabulary is missing or compressed, or the roles of two are ambiguous.
    """
    names = _strings(decoder.get("vocabs"))
    named = _existing_files(folder, "vocabs", decoder)
    has_roles, is_incomplete = bool(named), 0 < len(named) < len(names)
    if not has_roles:
        lists = [*folder.glob("*vocab*.yml"), *folder.glob("*vocab*.yaml")]
        named = sorted(lists or folder.glob("*vocab*.spm"))
    if is_incomplete or not 1 <= len(named) <= 2:
        _refuse_other_formats(sorted(folder.glob("*vocab*.gz")))
        problem = (f"contains {named[0].name}, but not all vocabularies that {DECODER} names ({', '.join(names)})"
                   if is_incomplete else f"contains {len(named)} vocabularies, and a model has one or two")
        raise SettingsError(f"{folder} {problem}: name its vocabularies with --vocabularies SOURCE TARGET.")
    if [file.name[:3] for file in named] == ["src", "trg"]:     # of Mozilla's models
        return named[0], named[1]
    if len(named) == 2 and not has_roles:
        raise SettingsError(f"{folder} contains {named[0].name} and {named[1].name}, and no {DECODER} that says which "
                            "is the source vocabulary: name them with --vocabularies SOURCE TARGET.")
    return named[0], named[-1]


def _pieces(folder: Path) -> tuple[Path, Path] | None:
    for suffix in (".spm", ".bpe"):
        source, target = folder / f"source{suffix}", folder / f"target{suffix}"
        if source.is_file() and target.is_file():
            return source, target
    return None


def _strings(option: Any) -> list[str]:
    """Return a list of strings; empty if the value of the option is something else."""
    return option if isinstance(option, list) and all(isinstance(item, str) for item in option) else []


def _existing_files(folder: Path, option: str, decoder: dict[str, Any]) -> list[Path]:
    """Return the existing files among the names in an option: in the folder, or else at their paths.

    A path may be one of another machine, so a file with this name in the folder comes first. Without `relative-paths`,
    paths begin at the working directory, as in Marian.
    """
    parent = folder if decoder.get("relative-paths") else Path()
    candidates = ([folder / Path(name).name, parent / name] for name in _strings(decoder.get(option)))
    existing = ([file for file in files if file.is_file()] for files in candidates)
    return [files[0] for files in existing if files]


def _decoder_options(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = load_strict(read_yaml_text(file))
    except (OSError, UnicodeDecodeError, yaml.MarkedYAMLError) as error:
        raise DataError(f"{file}: cannot read the file ({' '.join(str(error).split())}): fix it, or remove it and pass "
                        "--vocabularies.") from error
    return content if isinstance(content, dict) else {}
