"""Read a saved run: paths, settings, model, vocabularies and checkpoints.

`towernmt.run.RunDirectory` adds the methods that write a run. `RunFiles` keeps the files that later commands need in
memory during training, and writes them again if they are removed. The last functions refuse to write a new checkpoint
or run over the steps of a run or into prepared data.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.checkpoint.checkpoint_files import checkpoint_path, checkpoint_steps, latest_checkpoint, read_state
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint, repeat_if_removed
from towernmt.checkpoint.records import read_average_record, read_record, recorded_fingerprints, vocabulary_fingerprint
from towernmt.core.directories import PREPARATION, directory_kind
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files import replacing
from towernmt.core.foreign_models import import_advice
from towernmt.core.settings import apply_overrides, load_yaml
from towernmt.models import architectures
from towernmt.models.architectures import architecture, settings_and_presets
from towernmt.models.model_location import is_findable, location_of_copy

if TYPE_CHECKING:
    from towernmt.dataflow.vocabulary.base import Vocabulary
    from towernmt.dataflow.vocabulary.source_text import SourceText
    from towernmt.models.interface import NMTModel

T = TypeVar("T")

log = logging.getLogger(__name__)

DEFINE_IN_FILE = "define it in a file, outside of functions and of what runs when the file is loaded"


class SavedRun:
    """Paths and contents of a run directory.

    ```
    settings.yaml            all settings, fingerprints of the inputs, and versions
    automatic.yaml           automatic settings, with their reasons
    rollbacks.json           after a divergence: factor of the learning rate
    vocabulary/              source and target vocabularies
    code/                    for a custom model: its file and the nearby files that it imports, with their SHA-256
    checkpoints/step-N/      the last checkpoints
    best/step-N/             the best by validation, best/record.json, best/log
    averaged/step-N/         the mean of the last checkpoints, if it is better; averaged/record.json
    averages/                means of checkpoints by `towernmt average`
    monolingual/             with monolingual text: the first model, its translations, and their preparation
    log/                     log.log, stats.jsonl, TensorBoard events
    exports/                 cached exports for CTranslate2, with the BLEU of int8; may be deleted at any time
    ```
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "settings.yaml"
        self.vocabulary = self.path / "vocabulary"
        self.code = self.path / "code"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.averaged = self.path / "averaged"
        self.log = self.path / "log"

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return str(self.path)

    @property
    def source_prefix(self) -> str:
        """Default text before each source line of a translation; "" except for packages."""
        return ""

    def exists(self) -> bool:
        """Return whether the directory contains a run."""
        return self.settings_file.is_file()

    def saved_settings(self) -> dict[str, Any]:
        """Return the content of `settings.yaml`, by dotted key.

        Raises:
            SettingsError: the directory is not a run, or the file is damaged.
        """
        if not self.exists() and (run := run_around(self.path)) is not None:
            raise SettingsError(f"{self.path} is {_named_inside(run, self.path)}")
        if not self.exists() and (advice := import_advice(self.path)) is not None:
            raise SettingsError(f"{self.path} {advice}")
        if self.path.is_file():
            raise SettingsError(f"{self.path} is a file, not a directory: pass the --logdir of `towernmt train`.")
        if not self.exists():
            problem = "no run here (settings.yaml is missing)" if self.path.exists() else "the path does not exist"
            raise SettingsError(f"{self.path}: {problem}; pass the --logdir of `towernmt train`, or a package.")
        return load_yaml(self.settings_file)

    def group(self, name: str, defaults: T) -> T:
        """Return one group of the run's settings.

        Args:
            name: the name of the group, such as "search".
            defaults: a dataclass with the values of settings that the file does not contain.

        Raises:
            SettingsError: the directory is not a run, or a setting of the group is unknown.
        """
        groups = dataclasses.make_dataclass("Groups", [(name, Any)])(defaults)
        values = {key: value for key, value in self.saved_settings().items() if key.startswith(f"{name}.")}
        group: T = getattr(apply_overrides(groups, values, origin=str(self.settings_file)), name)
        return group

    def architecture(self) -> str:
        """Return the name of the run's model in `settings.yaml`."""
        return str(self.saved_settings().get("architecture", "transformer"))

    def architecture_to_load(self) -> str:
        """Return the name by which `towernmt.models.architecture` loads the run's model.

        Raises:
            SettingsError: the copied code of a custom model is missing or damaged.
        """
        name = self.architecture()
        if not is_findable(name) and " of " not in name:
            return name
        copy = location_of_copy(self.code, name) if is_findable(name) else None
        if copy is None:
            raise SettingsError(f"{self.path} does not contain the code of its model {name}: pass the class in Python, "
                                f"as in Translator(..., model=MyModel). To save the code, {DEFINE_IN_FILE}.")
        return copy.spelled

    def load_model(self, model: NMTModel | type | None = None) -> NMTModel:
        """Return the run's model, untrained: a tower function.

        Args:
            model: the model itself, or its class; None: the model in the run's settings.

        Raises:
            SettingsError: the directory is not a run, its model is missing, or a setting of the model is unknown.
        """
        from towernmt.models.interface import NMTModel

        if isinstance(model, NMTModel):
            return model
        if model is None:
            name = self.architecture_to_load()
            kind, defaults = architecture(name).model, settings_and_presets(name)[0]
        else:
            name = self.architecture()
            kind, defaults = model, architectures.default_values(model, model.__name__)
        return architectures.make(kind, name, self.group("model", defaults))

    def gives_attention(self) -> bool:
        """Return whether the run's model can return its attention in a search, from which words are aligned.

        Raises:
            SettingsError: see `load_model`.
        """
        if self.architecture() == "transformer":        # without an import of TensorFlow
            return True
        return self.load_model().gives_step_attention

    def check_vocabulary(self) -> None:
        """Refuse a vocabulary that differs from that of training, because its ids stand for different words.

        Raises:
            SettingsError: the fingerprint in `settings.yaml` differs.
        """
        self._check_vocabulary(self.saved_settings())

    def _check_vocabulary(self, saved_settings: dict[str, Any]) -> None:
        recorded = recorded_fingerprints(saved_settings).get("vocabulary")
        if recorded is not None and recorded != vocabulary_fingerprint(self.vocabulary):
            raise SettingsError(f"{self.vocabulary} is not the vocabulary that this run was trained with: restore it "
                                "from the data that the run was trained on.")

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Return source and target vocabulary.

        Raises:
            DataError: a vocabulary is missing or damaged.
            SettingsError: a vocabulary differs from that of training.
        """
        from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies

        settings = self.saved_settings()
        source, target, _ = load_vocabularies(self.vocabulary)
        self._check_vocabulary(settings)
        for side, vocabulary in (("source", source), ("target", target)):
            size = settings.get(f"model.{side}_vocab_size")
            if size and size != vocabulary.size:
                raise SettingsError(f"{self.vocabulary}: the {side} vocabulary has {vocabulary.size} subwords, but "
                                    f"the run was trained with {size} (model.{side}_vocab_size): restore the "
                                    "vocabulary of the run.")
        return source, target

    def source_text(self) -> SourceText:
        """Return facts about the source text that the model was trained on; may be empty."""
        from towernmt.dataflow.vocabulary.source_text import SourceText

        return SourceText.load(self.vocabulary)

    def check_weights(self, averaged: bool) -> None:
        """Check that the run has the requested weights; a package may have only the averaged ones.

        Args:
            averaged: whether the moving averages are requested.

        Raises:
            SettingsError: the weights of the last update are requested, but missing.
        """

    def checkpoint(self, which: str | None = None) -> str:
        """Return the prefix of a checkpoint's TensorFlow files.

        Args:
            which: `last`, `best`, `step-N` (of either kind), a path, or None. None: the mean at the end of training if
                it was kept and no later checkpoint is better, else the best if there is one, else the last.

        Raises:
            CheckpointError: the checkpoint does not exist.
        """
        return str(self._checkpoint_directory(which) / "model")

    def _checkpoint_directory(self, which: str | None) -> Path:
        best_entry = next(iter(read_record(self.best)), None)
        if which is None and best_entry is not None:
            record = read_average_record(self.averaged)
            average = None if record is None else record.kept
            if average is not None and average.is_before(best_entry):
                path = checkpoint_path(self.averaged, average.step)
                if (path / "model.index").is_file():
                    return path
        if which in (None, "best") and best_entry is not None:
            return checkpoint_path(self.best, best_entry.step)
        if which in (None, "last"):
            latest = latest_checkpoint(self.checkpoints)
            if latest is not None:
                return latest
        elif which != "best":
            for candidate in (self.checkpoints / str(which), self.best / str(which), Path(str(which))):
                if (candidate / "model.index").is_file():
                    return candidate
        steps = {*checkpoint_steps(self.checkpoints), *checkpoint_steps(self.best)}
        available = [f"step-{step}" for step in sorted(steps)]
        raise CheckpointError(f"{self.path}: the checkpoint '{which or 'last'}' does not exist; available: "
                              f"{', '.join(available) or 'none yet, train first'}.")


_LEVELS_INSIDE = 3
"""A checkpoint file, `checkpoints/step-N/model.index`, is three levels below the directory of its run."""


def run_around(path: Path) -> SavedRun | None:
    """Return the run that contains a path, or None."""
    return next((run for run in map(SavedRun, _absolute(path).parents[:_LEVELS_INSIDE]) if run.exists()), None)


def _absolute(path: Path) -> Path:
    """Return an absolute path without `..`, so that `../other` does not lie in the working directory."""
    return Path(os.path.abspath(path))


def run_of_checkpoint(directory: Path) -> SavedRun | None:
    """Return the run that contains the directory of a checkpoint; None if it has no checkpoint, or is outside a run."""
    return run_around(directory) if (directory / "model.index").is_file() else None


def _named_inside(run: SavedRun, path: Path) -> str:
    """Return the end of a message that names the run, and the checkpoint if any, for a path inside the run."""
    depth = len(_absolute(path).relative_to(run.path).parts)
    is_shown = len(path.parents) >= depth and ".." not in path.parts
    run_path = path.parents[depth - 1] if is_shown else run.path
    name = next((name for name in (path.name, path.parent.name) if re.fullmatch(r"step-\d+", name)), None)
    if name is None:
        return f"inside the run {run_path}: pass the run's directory, {run_path}."
    return (f"a checkpoint of the run {run_path}: pass the run's directory, {run_path}, with --checkpoint {name} if "
            "the command has this option.")


def open_run_checkpoint(run: SavedRun, which: str | OpenCheckpoint | None = None) -> OpenCheckpoint:
    """Open a checkpoint of a run.

    Args:
        run: the run.
        which: an argument of `SavedRun.checkpoint`, the prefix of a checkpoint's files, or an open checkpoint.

    Raises:
        CheckpointError: the checkpoint does not exist.
    """
    if isinstance(which, OpenCheckpoint):
        return which
    prefix = which if which is not None and Path(which + ".index").is_file() else None
    return repeat_if_removed(lambda: OpenCheckpoint(prefix or run.checkpoint(which)))


class RunFiles:
    """A copy of the settings, records, vocabularies and code of a run in memory.

    Args:
        run: the directory of the run. Without a `settings.yaml`, nothing is copied.
    """

    def __init__(self, run: Path) -> None:
        self._run = SavedRun(run)
        self._contents: dict[Path, bytes] = {}
        if self._run.exists():
            records = (file for pattern in ("*.yaml", "*.json") for file in run.glob(pattern))
            copied_files = (file for folder in (self._run.vocabulary, self._run.code) for file in folder.rglob("*")
                            if "__pycache__" not in file.parts)
            self._contents = {file: file.read_bytes() for file in (*records, *copied_files) if file.is_file()}

    def restore(self) -> None:
        """Write missing files, and vocabularies and code that differ, again; edited settings are kept.

        Raises:
            CheckpointError: a file cannot be written.
        """
        for file, content in self._contents.items():
            if self._is_usable(file, content):
                continue
            log.warning("Writing %s again, because it was removed or changed during training.", file)
            try:
                with replacing(file) as copy:
                    copy.write(content)
            except OSError as error:
                raise CheckpointError(f"{file} was removed or changed during training, and cannot be written again "
                                      f"({error.strerror}): make its directory writable, and run the same command to "
                                      "resume.") from error

    def _is_usable(self, file: Path, content: bytes) -> bool:
        try:
            current = file.read_bytes()
        except OSError:
            return False
        if file.parent == self._run.path:
            return current == content or file != self._run.settings_file or _is_settings(file)
        return current == content


def _is_settings(file: Path) -> bool:
    """Return whether a changed `settings.yaml`, which may be edited on purpose, can still be read."""
    try:
        return "architecture" in load_yaml(file)
    except SettingsError:
        return False


IMPORTED = "imported"
"""The folder of an imported run with the original files of the model."""
UNFINISHED_RUN = ".unfinished-run"
"""A file that marks a directory while a grown or imported run is written into it."""


def check_average_output(output: Path, step: int) -> None:
    """Refuse to write an averaged checkpoint among the steps of a run, or over a checkpoint of training.

    Args:
        output: the directory of the new `step-N`.
        step: the number N.

    Raises:
        SettingsError: the checkpoint would be there. An older average of that name may be overwritten.
        CheckpointError: the existing checkpoint is damaged.
    """
    _refuse_prepared_data(output)
    directory = output.resolve()
    run = SavedRun(directory.parent)
    if run.exists() and directory.name in (run.checkpoints.name, run.best.name, run.averaged.name):
        raise SettingsError(f"{output} contains the steps from which a run resumes: omit --output, or choose another "
                            "directory.")
    existing = checkpoint_path(output, step)
    if step in checkpoint_steps(output) and not read_state(existing).mean_of:
        raise SettingsError(f"{existing} is a checkpoint of training, which the average would overwrite: omit "
                            "--output, or choose another directory.")


def check_run_output(output: Path) -> None:
    """Refuse to write a run into a directory with a run, prepared data, a vocabulary or checkpoints.

    Raises:
        SettingsError: the directory contains one of these.
    """
    _refuse_prepared_data(output)
    run = SavedRun(output)
    if run.exists():
        raise SettingsError(f"{output} already contains a run: choose another directory for the new run.")
    if (output / UNFINISHED_RUN).exists():
        return      # files of a killed command
    for directory in (run.checkpoints, run.vocabulary, run.best, run.averaged, run.code, output / IMPORTED):
        if directory.is_dir() and any(directory.iterdir()):
            raise SettingsError(f"{directory} already exists, and would be overwritten: choose another directory for "
                                "the new run.")


def _refuse_prepared_data(output: Path) -> None:
    path = output.resolve()
    for directory in (path, *path.parents):
        if directory_kind(directory) == PREPARATION:
            raise SettingsError(f"{output} is inside {PREPARATION} ({directory}), which would be damaged: choose "
                                "another directory for the output.")
