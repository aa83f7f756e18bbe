"""Open a trained model of any kind as a run: a run, a package, or a model of another system.

A model of another system is imported into `imported/KEY` in the user's cache, completely or not at all. The key depends
on the whole content of the imported model, so no two models share a directory. Each process that opens the model
compares the files with their SHA-256, and imports a damaged model again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from towernmt import __version__
from towernmt.checkpoint.checkpoint_files import UnwrittenCheckpointError, checkpoint_path, checkpoint_steps
from towernmt.checkpoint.packaged_run import is_package, open_run
from towernmt.checkpoint.restore import initial_checkpoint
from towernmt.checkpoint.saved_run import SavedRun, run_of_checkpoint
from towernmt.core.directories import CHECKPOINT, PACKAGE_MANIFEST, RUN, RUN_SETTINGS, directory_kind
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import CACHE_VARIABLE, DAMAGED_ZIP, is_undamaged, user_cache, write_checksums
from towernmt.core.foreign_models import detect_system
from towernmt.core.temporary_directories import ScratchDirectory, complete_directory
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.vocabulary.base import SUFFIXES
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.interop.foreign_model import ForeignModel, ImportRequest
from towernmt.interop.foreign_vocabularies import WORDS_NOTE
from towernmt.interop.import_formats import foreign_format
from towernmt.interop.imported_run import write_imported_run
from towernmt.run.started_run import StartingModel

log = logging.getLogger(__name__)

FOLDER = "imported"


def open_starting_model(location: str, option: str, trust_code: bool = False) -> StartingModel:
    """Open a trained model as a run.

    Args:
        location: the --logdir of a run, one of its checkpoints, a package, or a model of another system.
        option: the option that names the model, for messages.
        trust_code: whether the code of a custom model in a package may be executed.

    Raises:
        SettingsError: `location` is not a model, or towernmt does not support the model.
        CheckpointError: the model is damaged.
        DataError: the vocabulary of the model is damaged.
    """
    if _is_run_or_package(Path(location)):
        run = open_run(location, trust_code) if Path(location).is_file() else initial_checkpoint(location)[0]
        run.architecture_to_load()      # refuses the code of a package that is not trusted
        run.check_vocabulary()
        is_checkpoint = run_of_checkpoint(Path(location)) is not None
        return StartingModel(location, location, run, (), location if is_checkpoint else None, option)
    model = read_foreign_model(location, option)
    run = imported_once(model)
    return StartingModel(location, str(run.path), run, model.notes, option=option)


@contextmanager
def vocabulary_of_model(location: str) -> Iterator[Path]:
    """Yield a directory with the vocabularies of a trained model; that of another system's model is temporary.

    Log a warning if the model needs text that is already divided, because the text is prepared before the training.

    Args:
        location: the value of --vocabulary-of; see `open_starting_model`.

    Raises:
        TowerNMTError: see `open_starting_model`.
    """
    if _is_run_or_package(Path(location)):
        run, _ = initial_checkpoint(location)
        run.check_vocabulary()
        yield run.vocabulary
        return
    model = read_foreign_model(location, "--vocabulary-of")
    if WORDS_NOTE in model.notes:
        log.warning("%s: %s", location, WORDS_NOTE)
    # Not `temporary_directory`: the work of the caller may have one, and a signal removes only the outermost.
    scratch = ScratchDirectory("reading vocabularies")
    try:
        save_vocabularies(model.source, model.target, scratch.path)
        yield scratch.path
    finally:
        scratch.remove()


_VOCABULARY_SETTINGS = (
    "vocab_kind", "vocab_size", "shared_vocab", "source_vocab", "target_vocab", "character_coverage", "byte_fallback",
    "split_digits", "vocab_symbols", "vocab_sentences")
"""Settings of `prepare` that the vocabularies of a trained model exclude."""


def with_vocabulary_of(settings: PrepareSettings, model: str, directory: Path) -> PrepareSettings:
    """Return the settings with the vocabularies and the number of source factors of a trained model.

    Args:
        settings: settings of the preparation.
        model: the value of `--vocabulary-of`, for messages.
        directory: directory of its vocabularies.

    Raises:
        SettingsError: a setting contradicts the vocabularies.
        DataError: a vocabulary is missing.
    """
    for name in _VOCABULARY_SETTINGS:
        value = getattr(settings, name)
        if value != getattr(PrepareSettings, name):
            option = f"--{name.replace('_', '-')}"
            passed = option if isinstance(value, bool) else f"{option} {value}"
            raise SettingsError(f"{passed}: the vocabularies are those of --vocabulary-of {model}: leave out {option}.")
    files = {side: _vocabulary_file(directory, side) for side in ("source", "target")}
    factors = len([*directory.glob("source_factor_*.words")])
    if settings.factors not in (0, factors):
        raise SettingsError(f"The text has {settings.factors} source factors, but --vocabulary-of {model} has "
                            f"{factors}: pass text with {factors} source factors.")
    return dataclasses.replace(settings, source_vocab=str(files["source"]), target_vocab=str(files["target"]),
                               source_factors=0 if settings.source_factor_files else factors)


def _vocabulary_file(directory: Path, side: str) -> Path:
    file = next((file for suffix in SUFFIXES if (file := directory / f"{side}{suffix}").is_file()), None)
    if file is None:
        raise DataError(f"{directory} contains no {side} vocabulary: restore the vocabularies of the model.")
    return file


def read_foreign_model(location: str, option: str) -> ForeignModel:
    """Read a model of another system, which is recognised by its files.

    Raises:
        TowerNMTError: see `open_starting_model`.
    """
    path = Path(location)
    if problem := _problem_of_part(path):
        raise SettingsError(f"{option} {location} {problem}")
    detected = detect_system(path)
    if detected is None:
        kind = directory_kind(path) if path.is_dir() else ""
        problem = f"is {kind}, not a model" if kind else "is not a trained model" if path.exists() else "does not exist"
        raise SettingsError(f"{option} {location} {problem}: pass the --logdir of a run, one of its checkpoints, a "
                            "package, or a model of Marian (OPUS-MT), OpenNMT-tf or THUMT.")
    system, path = detected
    try:
        return foreign_format(system).read(ImportRequest(path))
    except SettingsError as error:
        if not any(name in str(error) for name in ("--vocabularies", "--pieces", "--heads")):
            raise
        raise SettingsError(f"{str(error).removesuffix('.')}: `towernmt import --from {system}` has these options; "
                            f"import the model with it, and pass the imported run as {option}.") from error


def imported_once(model: ForeignModel) -> SavedRun:
    """Return the imported run of a model in the user's cache, which is written if it is missing or damaged.

    If the cache cannot be written, the run is temporary and is removed together with the returned object.

    Raises:
        TowerNMTError: the model cannot be written as a run.
    """
    key = content_key(model)
    try:
        parent = user_cache() / FOLDER
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SavedRun(_import_into(model, parent / key))
    except UnwrittenCheckpointError as error:
        reason = error.reason
    except (OSError, RuntimeError) as error:
        reason = error.strerror or "" if isinstance(error, OSError) else str(error)
    log.warning("%s: the cache for imported models cannot be written (%s), so the model is imported into a temporary "
                "directory. Set %s to a writable folder.", model.origin, reason, CACHE_VARIABLE)
    scratch = ScratchDirectory(f"importing {model.origin}")
    run = SavedRun(scratch.path / key)
    weakref.finalize(run, scratch.remove)
    write_imported_run(model, run.path)
    return run


def content_key(model: ForeignModel) -> str:
    """Return 32 hexadecimal digits for the content of a model and the version of towernmt that imported it."""
    digest = hashlib.sha256(json.dumps([
        __version__, model.origin, dataclasses.asdict(model.settings), dataclasses.asdict(model.search)]).encode())
    for side, vocabulary in (("source", model.source), ("target", model.target)):
        for suffix, content in vocabulary.files().items():
            digest.update(f"{side}{suffix}\0".encode() + hashlib.sha256(content).digest())
    for name in sorted(model.weights):
        value = model.weights[name]
        digest.update(f"{name}\0{value.shape}\0".encode() + hashlib.sha256(value.tobytes()).digest())
    for file in model.copied_files:
        digest.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _import_into(model: ForeignModel, folder: Path) -> Path:
    if folder.exists():     # checked once: another process may complete it at any moment
        if is_undamaged(folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
    with complete_directory(folder, f"importing {model.origin}") as unfinished:
        write_imported_run(model, unfinished)
        write_checksums(unfinished)
    return folder


def _is_run_or_package(path: Path) -> bool:
    """Return whether a path is a run, a checkpoint of a run, or a package."""
    if path.is_file():      # NumPy's .npz is a zip file, too
        return path.suffix != ".npz" and is_package(path) and not _is_archive_of_marian(path)
    return SavedRun(path).exists() or run_of_checkpoint(path) is not None


def _is_archive_of_marian(file: Path) -> bool:
    """Return whether a file is a zip archive with a Marian model, such as those of OPUS-MT, and no package."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, *DAMAGED_ZIP):
        return False
    return PACKAGE_MANIFEST not in names and any(name.endswith(".npz") for name in names)


def _problem_of_part(path: Path) -> str:
    """Return the end of a message on a path that is only a part of a model, or an archive of one; "" for other paths.

    Without it, the files of a run would be taken for those of OpenNMT-tf, which have similar names.
    """
    if path.is_file() and path.suffix != ".npz" and _is_archive_of_marian(path):
        return "is an archive of a Marian model: unpack it, and pass the folder of its files."
    if path.name == RUN_SETTINGS and directory_kind(path.parent) == RUN:
        return f"is a file of the run {path.parent}: pass this directory."
    if directory_kind(path) == RUN:
        return f"is a run whose {RUN_SETTINGS} is missing: restore this file."
    if directory_kind(path) == CHECKPOINT:
        return "is a checkpoint outside of its run: pass a checkpoint in the directory of its run."
    if directory_kind(path.parent) == CHECKPOINT:
        return f"is a part of the checkpoint {path.parent}: pass this directory."
    if steps := checkpoint_steps(path):
        return (f"contains checkpoints of a run: pass one of them, such as {checkpoint_path(path, steps[-1])}, or the "
                "directory of the run.")
    return ""
