"""Write the directory of a run: start it, lock it, save its settings and the code of its model."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.checkpoint_files import checkpoint_steps, checksum_of_weights
from towernmt.checkpoint.records import (
    INITIAL_WEIGHTS,
    fingerprints,
    provenance,
    recorded_initial_weights,
    validation_fingerprint,
    without_provenance,
)
from towernmt.checkpoint.saved_run import DEFINE_IN_FILE, IMPORTED, UNFINISHED_RUN, SavedRun, check_run_output
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.core.settings import apply_overrides, save_yaml
from towernmt.core.temporary_directories import temporary_directory
from towernmt.core.world import current_world
from towernmt.dataflow.preparation.manifest import MANIFEST
from towernmt.dataflow.vocabulary.source_text import SOURCE_TEXT
from towernmt.models import architectures
from towernmt.models.architectures import architecture, default_values, make_model, name_of_model
from towernmt.models.model_location import changed_files, copy_code, find_location, is_findable
from towernmt.run.run_settings import Settings, default_settings, settings_of_model

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.models.interface import NMTModel


def record_model(name: str, code: Path) -> str:
    """Copy the code of a custom model into `code`, and return the name of the architecture for `settings.yaml`."""
    if not is_findable(name):
        return name
    location = find_location(name)
    copy_code(location, code)
    return location.name


def refuse_other_model(run: Path, code: Path, recorded: str, name: str) -> None:
    """Refuse to resume a run with another model, or with a custom model whose code has changed.

    Args:
        run: directory of the run.
        code: the run's copy of the code of a custom model.
        recorded: name of the model in the settings of the run.
        name: name of the model that is to resume.

    Raises:
        SettingsError: the name or the code differs.
    """
    location = find_location(name) if is_findable(name) else None
    requested = location.name if location else name
    if requested != recorded:
        raise SettingsError(f"{run} holds a run of the model {recorded}, not of {requested}: leave out --model to "
                            "resume it, or pass another --logdir for a new run.")
    if location is None or not code.is_dir():
        return
    changed = changed_files(location, code)
    if changed:
        raise SettingsError(f"{location.root / changed[0]} has changed since {run} began: leave out --model to resume "
                            "with the run's copy of it, or remove the copy "
                            f"(rm -r {shlex.quote(str(code))}) to resume with the changed model, "
                            "or pass another --logdir for a new run.")


def model_from_settings(settings: Settings, kind: Any = None) -> NMTModel:
    """Return the untrained model that the settings of a run describe.

    Args:
        settings: settings of the run.
        kind: class of the model, or a function that makes it; None to find it by its name.

    Raises:
        SettingsError: the model is unknown, or it cannot be made from settings.
    """
    if kind is None:
        return make_model(settings.architecture, settings.model)
    return architectures.make(kind, settings.architecture, settings.model)


def settings_as_made(settings: Settings, model: Any) -> Settings:
    """Return the settings to record for a run of a custom model that was made from `settings`."""
    model_settings = getattr(model, "settings", None)
    return dataclasses.replace(settings, architecture=name_of_model(model),
                               model=model_settings if dataclasses.is_dataclass(model_settings) else settings.model)


def why_model_not_found(settings: Settings) -> str:
    """Return why the model of a run with these settings cannot be found for translation, or ""."""
    name = settings.architecture
    reason = ""
    if is_findable(name):
        try:
            kind = architecture(name)
        except SettingsError as error:
            reason = str(error)
        else:
            if kind.settings is None or not _field_names(settings.model) <= _field_names(kind.settings):
                reason = f"{name} cannot be made from the run's settings: annotate its `settings` with its dataclass."
    elif " of " in name:
        reason = f"The model {name} cannot be found again: {DEFINE_IN_FILE}."
    return f"{reason} Or translate in Python, with Translator(..., model=MODEL)." if reason else ""


def _field_names(settings: Any) -> set[str]:
    """Return the names of the fields of model settings; for a model without settings, a name that no field has."""
    return {field.name for field in dataclasses.fields(settings)} if settings is not None else {""}


class RunDirectory(SavedRun):
    """Directory of a new or resumed run: a `SavedRun` that can be written."""

    def begin(self, settings: Settings, data: TrainingData) -> None:
        """Log to `log/`, and write the settings and vocabularies; see `start_log` and `record`."""
        self.start_log(data)
        self.record(settings, data)

    def start_log(self, data: TrainingData) -> None:
        """Log to `log/`, after checking that the run may be written here. Only the chief process writes.

        Args:
            data: training data, whose vocabularies `record` will copy.

        Raises:
            SettingsError: the directory contains prepared data or another vocabulary, or the log cannot be written.
        """
        from towernmt.run.run_log import begin_log  # imports TensorFlow

        self.refuse_prepared_data()
        if current_world().is_chief:
            self._refuse_other_vocabulary(data)
            begin_log(self.log)

    def record(self, settings: Settings, data: TrainingData) -> None:
        """Write the settings and vocabularies. Only the chief process writes.

        The files are all that a `Translator` needs in addition to a checkpoint.

        Args:
            settings: settings of the run; `settings_of_model(model)` for a model without settings.
            data: training data, whose vocabularies are copied.
        """
        if not current_world().is_chief:
            return
        data.copy_vocabularies(self.vocabulary)
        data_path = data.directory.absolute() if isinstance(data.directory, Path) else data.directory
        further = {"validation": validation_fingerprint(data.validation_sets),
                   INITIAL_WEIGHTS: self._initial_weights(settings)}
        self.save_settings(settings, provenance({**fingerprints(data), "data_path": str(data_path),
                                                 **{name: value for name, value in further.items() if value}}))

    def _initial_weights(self, settings: Settings) -> str:
        """Return the checksum of the model with whose parameters the run begins or began; "" for random parameters."""
        if self.exists() and checkpoint_steps(self.checkpoints):
            return recorded_initial_weights(self.saved_settings())
        if not settings.init.checkpoint:
            return ""
        from towernmt.checkpoint.restore import initial_checkpoint  # imports TensorFlow

        _initial_run, prefix = initial_checkpoint(settings.init.checkpoint)  # a package may remove its files with it
        return checksum_of_weights(prefix)

    @contextmanager
    def writing(self, activity: str) -> Iterator[None]:
        """Create and lock the directory; remove it again if it is empty at the end.

        Only the chief process locks and writes.

        Args:
            activity: description of this process for the error message of a second writer.

        Raises:
            DirectoryInUseError: another process or thread writes there.
        """
        if not current_world().is_chief:
            yield
            return
        new = not self.path.exists()
        try:
            with DirectoryLock(self.path, activity):
                yield
        finally:
            if new and self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()

    @contextmanager
    def making(self, activity: str) -> Iterator[None]:
        """Make a complete run in the `with` block, which writes the settings last.

        A file marks the directory while the block runs. If the process is killed, the next one removes the incomplete
        run.

        Args:
            activity: description of this process for the error message of a second writer.

        Raises:
            SettingsError: the directory already contains a run, or files that it would replace.
            DirectoryInUseError: another process or thread writes there.
        """
        check_run_output(self.path)
        with self.writing(activity):
            check_run_output(self.path)     # again, because another process may have written before the lock
            marker = self.path / UNFINISHED_RUN
            if marker.exists():
                self._remove_incomplete()
            write_text(marker, activity)
            try:
                yield
            except BaseException:
                self._remove_incomplete()
                raise
            finally:
                marker.unlink(missing_ok=True)

    def _remove_incomplete(self) -> None:
        self.settings_file.unlink(missing_ok=True)
        for path in (self.checkpoints, self.vocabulary, self.code, self.path / IMPORTED):
            shutil.rmtree(path, ignore_errors=True)

    def refuse_prepared_data(self) -> None:
        """Refuse a directory of prepared data, whose vocabulary a run would replace.

        Raises:
            SettingsError: the directory contains prepared data.
        """
        if (self.path / MANIFEST).exists():
            raise SettingsError(f"{self.path} contains prepared data, whose vocabulary a run would replace: pass "
                                "another directory (--logdir, --output).")

    def _refuse_other_vocabulary(self, data: TrainingData) -> None:
        if not self.exists() and self.vocabulary.is_dir() and any(self.vocabulary.iterdir()):
            differing_file = differing_vocabulary(self.vocabulary, data)
            if differing_file:
                raise SettingsError(f"{self.vocabulary} contains another vocabulary ({differing_file} differs), which "
                                    "this run would replace: pass another --logdir.")

    def save_settings(self, settings: Settings, provenance_fields: dict[str, dict[str, str]] | None = None) -> None:
        """Write `settings.yaml`, and a copy of the code of a custom model.

        Args:
            settings: settings of the run.
            provenance_fields: provenance (`checkpoint.records.provenance`) to add to the file.

        Raises:
            SettingsError: the run has checkpoints of another model, or of the model with other code.
        """
        if self.exists() and checkpoint_steps(self.checkpoints):
            self.check_model(settings.architecture)
        self.path.mkdir(parents=True, exist_ok=True)
        name = record_model(settings.architecture, self.code)
        save_yaml(dataclasses.replace(settings, architecture=name), self.settings_file, provenance_fields)

    def settings(self, model: Any = None) -> Settings:
        """Return the settings of the run.

        Args:
            model: model of the run, its class, or its name; None to find it with the run's files.

        Raises:
            SettingsError: the run is missing, its settings are invalid, or its model is not found.
        """
        name = self.architecture()
        if isinstance(model, str):
            self.check_model(model)
            defaults = default_settings(model)
        elif model is None:
            defaults = default_settings(self.architecture_to_load())
        elif isinstance(model, type):
            defaults = Settings(name, default_values(model, model.__name__))
        else:
            defaults = dataclasses.replace(settings_of_model(model), architecture=name)
        return self._with_saved(defaults)

    def settings_like(self, settings: Settings) -> Settings:
        """Return the settings of the run; its model settings are of the same class as those of `settings`."""
        return self._with_saved(Settings(settings.architecture, _at_defaults(settings.model)))

    def check_model(self, name: str) -> None:
        """Refuse to resume the run with another model, or with a model whose code has changed.

        Raises:
            SettingsError: the name or the code of the model differs.
        """
        refuse_other_model(self.path, self.code, self.architecture(), name)

    def _with_saved(self, defaults: Settings) -> Settings:
        """Return `defaults` with the saved values, except the model's name, and its settings if it has none."""
        saved = {key: value for key, value in without_provenance(self.saved_settings()).items()
                 if key not in ("architecture", "model")
                 and not (defaults.model is None and key.startswith("model."))}
        return apply_overrides(defaults, saved, origin=str(self.settings_file))


def _at_defaults(model: Any) -> Any:
    """Return the settings of a model at their defaults; those without a default keep their values."""
    if model is None:
        return None
    fields = dataclasses.fields(model)
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    factory_defaults = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    return dataclasses.replace(model, **defaults, **factory_defaults)


def differing_vocabulary(vocabulary: Path, data: TrainingData) -> str:
    """Return the name of the first vocabulary file that differs between `data` and a directory, or "".

    Vocabularies do not depend on the facts about the source text next to them, so these may differ.
    """
    with temporary_directory("reading vocabularies") as directory:
        data.copy_vocabularies(directory)
        for file in sorted(directory.iterdir()):
            saved_file = vocabulary / file.name
            if file.name == SOURCE_TEXT:
                continue
            if not saved_file.is_file() or saved_file.read_bytes() != file.read_bytes():
                return file.name
        factors = sorted(vocabulary.glob("source_factor_*.words"))
        return next((file.name for file in factors if not (directory / file.name).is_file()), "")
