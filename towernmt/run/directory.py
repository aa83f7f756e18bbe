"""Write the directory of a run: start it, lock it, save its settings and the code of its model."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.checkpoint.records import fingerprints, provenance, validation_fingerprint, without_provenance
from towernmt.checkpoint.saved_run import DEFINE_IN_FILE, IMPORTED, UNFINISHED_RUN, SavedRun, check_run_output
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.core.settings import apply_overrides, save_yaml
from towernmt.core.world import present_world
from towernmt.dataflow.preparation.manifest import MANIFEST
from towernmt.models import architectures
from towernmt.models.architectures import architecture, default_values, make_model, name_of_model
from towernmt.models.model_location import changed_files, find_place, is_findable, keep_code
from towernmt.run.run_settings import Settings, default_settings, settings_of_model

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.models.interface import NMTModel


def recorded_name(name: str, code: Path) -> str:
    """The name that `settings.yaml` gets for an architecture, of which a copy is made in `code` if it is one's own."""
    if not is_findable(name):
        return name
    place = find_place(name)
    keep_code(place, code)
    return place.name


def refuse_other_model(run: Path, code: Path, recorded: str, name: str) -> None:
    """Refuse to go on with a run by another model than its own, or by one whose code has changed.

    Args:
        recorded: what the run's settings say.
        name: of the model to go on with.
    Raises:
        SettingsError: it is another, or another state of it.
    """
    place = find_place(name) if is_findable(name) else None
    now = place.name if place else name
    if now != recorded:
        raise SettingsError(f"{run} holds a run of the model {recorded}, not of {now}: leave out --model to go on with "
                            "it, or pass another --logdir to begin another.")
    if place is None or not code.is_dir():
        return
    changed = changed_files(place, code)
    if changed:
        raise SettingsError(f"{place.root / changed[0]} has changed since {run} began: leave out --model to go on with "
                            f"the run's copy of it, or remove that (rm -r {shlex.quote(str(code))}) to go on with the "
                            "changed model, or pass another --logdir to begin another run.")


def model_from_settings(settings: Settings, kind: Any = None) -> NMTModel:
    """Return the untrained model that the settings of a run describe.

    Args:
        settings: of the run.
        kind: its class, or a function that makes it; None to find it by its name.

    Raises:
        SettingsError: the model is unknown, or it cannot be made from settings.
    """
    if kind is None:
        return make_model(settings.architecture, settings.model)
    return architectures.make(kind, settings.architecture, settings.model)


def settings_as_made(settings: Settings, model: Any) -> Settings:
    """Return the settings to record for a run of a custom model that was made from `settings`."""
    own = getattr(model, "settings", None)
    return dataclasses.replace(settings, architecture=name_of_model(model),
                               model=own if dataclasses.is_dataclass(own) else settings.model)


def why_lost(settings: Settings) -> str:
    """Return why a run with these settings cannot find its model for translation, or ""."""
    name = settings.architecture
    reason = ""
    if is_findable(name):
        try:
            kind = architecture(name)
        except SettingsError as error:
            reason = str(error)
        else:
            if kind.settings is None or not _names(settings.model) <= _names(kind.settings):
                reason = f"{name} cannot be made from the run's settings: annotate its `settings` with its dataclass."
    elif " of " in name:
        reason = f"The model {name} cannot be found again: {DEFINE_IN_FILE}."
    return f"{reason} Or translate in Python, with Translator(..., model=MODEL)." if reason else ""


def _names(settings: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(settings)} if settings is not None else {""}


class RunDirectory(SavedRun):
    """A run that is begun, or goes on: all that a saved run is, and what writes it."""

    def begin(self, settings: Settings, data: TrainingData) -> None:
        """Write settings and vocabularies (with a checkpoint, all that a `Translator` needs), and log to `log/`.

        In a process that is not the chief of its world nothing is written.

        Args:
            settings: of the run; `settings_of_model(model)` for a model that was put together by hand.
            data: where the vocabularies come from.
        """
        from towernmt.run.run_log import begin_log  # with tensorpack, which imports TensorFlow

        self.check_place()
        if not present_world().is_chief:
            return      # without a look at what the chief is writing meanwhile
        self._refuse_other_vocabulary(data)
        data.copy_vocabularies(self.vocabulary)
        place = data.directory.absolute() if isinstance(data.directory, Path) else data.directory
        validated = validation_fingerprint(data.validation_sets)
        self.save_settings(settings, provenance({**fingerprints(data), "data_path": str(place),
                                                 **({"validation": validated} if validated else {})}))
        begin_log(self.log)

    @contextmanager
    def writing(self, activity: str) -> Iterator[None]:
        """Create and lock the directory; remove it again if it is empty at the end.

        A process that is not the chief of its world does not write, and does not lock.

        Args:
            activity: what this process does, for the error message of a second writer.

        Raises:
            DirectoryInUseError: another process or another thread writes there.
        """
        if not present_world().is_chief:
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
        """Make a whole run in the block, which writes the settings last.

        A file marks the directory while the block runs. If a process was killed there, the next one removes its parts.

        Args:
            activity: what is done, for whoever comes second.
        Raises:
            SettingsError: there is a run already, or files that its parts would replace.
            DirectoryInUseError: another process writes there, or another thread of this one.
        """
        check_run_output(self.path)
        with self.writing(activity):
            check_run_output(self.path)     # nobody came first meanwhile
            marker = self.path / UNFINISHED_RUN
            if marker.exists():
                self._remove_parts()
            write_text(marker, activity)
            try:
                yield
            except BaseException:
                self._remove_parts()
                raise
            finally:
                marker.unlink(missing_ok=True)

    def _remove_parts(self) -> None:
        self.settings_file.unlink(missing_ok=True)
        for place in (self.checkpoints, self.vocabulary, self.path / IMPORTED):
            shutil.rmtree(place, ignore_errors=True)

    def check_place(self) -> None:
        """Refuse a directory of prepared data, whose vocabulary a run would replace.

        Raises:
            SettingsError: the directory contains prepared data.
        """
        if (self.path / MANIFEST).exists():
            raise SettingsError(f"{self.path} holds prepared data, which a run would spoil: pass another directory "
                                "(--logdir, --output).")

    def _refuse_other_vocabulary(self, data: TrainingData) -> None:
        if not self.exists() and self.vocabulary.is_dir() and any(self.vocabulary.iterdir()):
            other = differing_vocabulary(self.vocabulary, data)
            if other:
                raise SettingsError(f"{self.vocabulary} holds a vocabulary of something else than this run ({other} "
                                    "differs), which a run would replace: pass another --logdir.")

    def save_settings(self, settings: Settings, made: dict[str, dict[str, str]] | None = None) -> None:
        """Write `settings.yaml`, and a copy of the code of a custom model.

        Args:
            settings: of the run.
            made: the provenance (`checkpoint.records.provenance`), which the file contains, too.

        Raises:
            SettingsError: the run has checkpoints of another model, or of the model with other code.
        """
        if self.exists() and checkpoint_steps(self.checkpoints):
            self.check_model(settings.architecture)
        self.path.mkdir(parents=True, exist_ok=True)
        name = recorded_name(settings.architecture, self.code)
        save_yaml(dataclasses.replace(settings, architecture=name), self.settings_file, made)

    def settings(self, model: Any = None) -> Settings:
        """Return the settings of the run.

        Args:
            model: the model of the run, its class, or its name; None to find it by the run's files.

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
        """Return the settings of the run without its model, whose settings are of the same class as these."""
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
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    return dataclasses.replace(model, **defaults, **made)


def differing_vocabulary(vocabulary: Path, data: TrainingData) -> str:
    """The first vocabulary file that either lacks, or that differs, of `data` and a directory; "" for none."""
    with tempfile.TemporaryDirectory() as place:
        data.copy_vocabularies(place)
        for file in sorted(Path(place).iterdir()):
            old = vocabulary / file.name
            if not old.is_file() or old.read_bytes() != file.read_bytes():
                return file.name
        factors = sorted(vocabulary.glob("source_factor_*.words"))
        return next((file.name for file in factors if not (Path(place) / file.name).is_file()), "")
