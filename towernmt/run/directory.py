"""Writing a run: its directory is begun, kept from other writers, and given its settings."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.files import checkpoint_steps, latest_checkpoint
from towernmt.checkpoint.provenance import fingerprints, provenance, validation_fingerprint, without_provenance
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.state import read_state
from towernmt.core.errors import SettingsError
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.core.settings import apply_overrides, save_yaml
from towernmt.core.world import present_world
from towernmt.dataflow.prepared.manifest import MANIFEST
from towernmt.models import ARCHITECTURES
from towernmt.models.registry.model_class import default_values
from towernmt.run.run_model import recorded_name, refuse_other_model
from towernmt.run.settings import Settings, default_settings, settings_of_model

if TYPE_CHECKING:
    from towernmt.dataflow.order.training_data import TrainingData


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
        """Keep other writers out of the directory, which is made; what holds nothing at the end is removed again.

        A process that is not the chief of its world does not write, and keeps nobody out.

        Args:
            activity: what is done, for whoever comes second.
        Raises:
            DirectoryInUseError: another process writes there, or another thread of this one.
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

    def check_place(self) -> None:
        """Refuse a directory that holds something else than a run.

        Raises:
            SettingsError: prepared data, whose vocabulary a run would replace.
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
        """Write `settings.yaml`, and a copy of the code of a model of one's own.

        Args:
            settings: of the run.
            made: what stands beside them in the file (`checkpoint.provenance`).

        Raises:
            SettingsError: the run has checkpoints of another model, or of that before its code changed.
        """
        if self.exists() and checkpoint_steps(self.checkpoints):
            self.check_model(settings.architecture)
        self.path.mkdir(parents=True, exist_ok=True)
        name = recorded_name(settings.architecture, self.code)
        save_yaml(dataclasses.replace(settings, architecture=name), self.settings_file, made)

    def settings(self, model: Any = None) -> Settings:
        """The settings of the run.

        Args:
            model: the model that the run is of, its class, or its name; None to find it by what the run holds.
        Raises:
            SettingsError: there is no run here, or its settings are not understood, or its model is not found.
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
        """The settings of the run, where those of its model are of the same class as these; its model is not needed."""
        return self._with_saved(Settings(settings.architecture, _at_defaults(settings.model)))

    def check_model(self, name: str) -> None:
        """Refuse to go on with the run by another model, or by one whose code has changed.

        Raises:
            SettingsError: the model of that name is not as the run has it.
        """
        recorded = self.architecture()
        last = latest_checkpoint(self.checkpoints)
        if last is not None and name not in ARCHITECTURES and recorded in ARCHITECTURES:
            if read_state(last).weights is None:
                return      # begun when runs did not record models of one's own; restoring tells if it is another
        refuse_other_model(self.path, self.code, recorded, name)

    def _with_saved(self, defaults: Settings) -> Settings:
        """`defaults` with what is saved, but the model's name, and its settings where it is not made from any."""
        saved = {key: value for key, value in without_provenance(self.saved_settings()).items()
                 if key not in ("architecture", "model")
                 and not (defaults.model is None and key.startswith("model."))}
        return apply_overrides(defaults, saved, origin=str(self.settings_file))


def _at_defaults(model: Any) -> Any:
    """The settings of a model with the defaults of all that have one."""
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
