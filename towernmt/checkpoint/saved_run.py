"""A saved run to those who read it: its paths, its model, its vocabularies, and which checkpoint is meant.

`towernmt.run.RunDirectory` adds what writes a run.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.checkpoint.best_record import read_average_record, read_record
from towernmt.checkpoint.files import checkpoint_path, checkpoint_steps, latest_checkpoint
from towernmt.checkpoint.former_settings import FORMER
from towernmt.checkpoint.held import HeldCheckpoint, again_if_gone
from towernmt.checkpoint.provenance import recorded_fingerprints, vocabulary_fingerprint
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.settings import apply_overrides, load_yaml
from towernmt.models import architecture, settings_and_presets
from towernmt.models.registry import model_class
from towernmt.models.registry.kept_code import kept_place
from towernmt.models.registry.locate import is_findable
from towernmt.optim.settings import OptimizerSettings

if TYPE_CHECKING:
    from towernmt.dataflow.vocabulary.base import Vocabulary
    from towernmt.models.interface import NMTModel

T = TypeVar("T")

DEFINE_IN_FILE = "define it in a file, outside of functions and of what runs when the file is loaded"


class SavedRun:
    """Paths and contents of a run.

    ```
    settings.yaml            all settings, and what the run was made from and with
    rollbacks.json           after a divergence: what the learning rates of the settings are multiplied by
    vocabulary/              source and target vocabularies
    code/                    of a model of one's own: its file and the files near it that it imports, with their SHA-256
    checkpoints/step-N/      the last checkpoints
    best/step-N/             the best by validation, best/record.json, best/log
    averaged/step-N/         the mean of the last checkpoints, if it is better; averaged/record.json
    log/                     log.log, stats.jsonl, TensorBoard events
    graphs/                  graphs of searches that were kept to start faster; may be deleted at any time
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
        """What the user calls it, for messages."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.settings_file.is_file()

    def saved_settings(self) -> dict[str, Any]:
        """What `settings.yaml` holds, dotted key to value.

        Raises:
            SettingsError: there is no run here, or the file is damaged.
        """
        if self.path.is_file():
            raise SettingsError(f"{self.path} is a file, and here a directory is expected: pass the --logdir of a "
                                "`towernmt train`.")
        if not self.exists():
            raise SettingsError(f"{self.path}: no run here (settings.yaml is missing); "
                                "pass the --logdir of a `towernmt train`.")
        return load_yaml(self.settings_file)

    def group(self, name: str, defaults: T) -> T:
        """One group of the run's settings.

        Args:
            name: of the group, such as "search".
            defaults: a dataclass; what the file does not tell is as it has it.
        Raises:
            SettingsError: there is no run here, or the group holds what `defaults` do not know.
        """
        return self._group(name, defaults, self.saved_settings())

    def _group(self, name: str, defaults: T, saved: dict[str, Any]) -> T:
        groups = dataclasses.make_dataclass("Groups", [(name, Any)], namespace={"former": FORMER})(defaults)
        values = {key: value for key, value in saved.items() if FORMER.renamed.get(key, key).startswith(f"{name}.")}
        found: T = getattr(apply_overrides(groups, values, origin=str(self.settings_file)), name)
        return found

    def architecture(self) -> str:
        """The name of the run's model, as `settings.yaml` has it."""
        return str(self.saved_settings().get("architecture", "transformer"))

    def architecture_to_load(self) -> str:
        """The name by which `towernmt.models.architecture` finds the run's model.

        Raises:
            SettingsError: there is no copy of the code of a model of one's own, or it is damaged.
        """
        name = self.architecture()
        if not is_findable(name) and " of " not in name:
            return name
        place = kept_place(self.code, name) if is_findable(name) else None
        if place is None:
            raise SettingsError(f"{self.path} was made by the model {name}, and does not hold its code: pass the class "
                                f"in Python, as Translator(..., model=MyModel); to have it kept, {DEFINE_IN_FILE}.")
        return place.spelled

    def load_model(self, model: NMTModel | type | None = None) -> NMTModel:
        """The run's model, untrained: a tower function.

        Args:
            model: the model itself, or its class; None to find it by what the run holds.
        Raises:
            SettingsError: there is no run here, or its model is not found, or does not know a setting of it.
        """
        from towernmt.models.interface import NMTModel

        if isinstance(model, NMTModel):
            return model
        if model is None:
            name = self.architecture_to_load()
            kind, defaults = architecture(name).model, settings_and_presets(name)[0]
        else:
            name = self.architecture()
            kind, defaults = model, model_class.default_values(model, model.__name__)
        saved = self.saved_settings()
        optimizer = self._group("optimizer", OptimizerSettings(), saved)
        return model_class.make(kind, name, self._group("model", defaults, saved), optimizer_settings=optimizer,
                                clip_norm=float(saved.get("train.clip_norm", 0.0)))

    def check_vocabulary(self) -> None:
        """Refuse a vocabulary that was put in the place of the run's own: its ids are other words.

        Raises:
            SettingsError: it is not the one that `settings.yaml` tells of.
        """
        self._check_vocabulary(self.saved_settings())

    def _check_vocabulary(self, saved: dict[str, Any]) -> None:
        recorded = recorded_fingerprints(saved).get("vocabulary")
        if recorded is not None and recorded != vocabulary_fingerprint(self.vocabulary):
            raise SettingsError(f"{self.vocabulary} is not the vocabulary that this run was trained with: put the "
                                "run's own back (the data that it was trained on have it).")

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Source and target vocabulary.

        Raises:
            DataError: they are missing or damaged.
            SettingsError: they are not those that the run was trained with.
        """
        from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies

        source, target, _ = load_vocabularies(self.vocabulary)
        saved = self.saved_settings()
        self._check_vocabulary(saved)
        for side, vocabulary in (("source", source), ("target", target)):
            size = saved.get(f"model.{side}_vocab_size")
            if size and size != vocabulary.size:
                raise SettingsError(f"{self.vocabulary}: the {side} vocabulary has {vocabulary.size} pieces, but the "
                                    f"run was trained with {size} (model.{side}_vocab_size): put the run's own back.")
        return source, target

    def check_weights(self, averaged: bool) -> None:
        """Refuse to take the weights of the last update for their averages, which are all that a package may have.

        Args:
            averaged: whether the moving averages are asked for.
        Raises:
            SettingsError: the weights of the last update are asked for, and they are not there.
        """

    def checkpoint(self, which: str | None = None) -> str:
        """The prefix of a checkpoint's TensorFlow files.

        Args:
            which: `last`, `best`, `step-N` (looked for among both), a path, or None: the mean at the end of training
                if it was kept and nothing better came since, else the best if there is one, else the last.
        Raises:
            CheckpointError: there is no such checkpoint.
        """
        return str(self._checkpoint_directory(which) / "model")

    def _checkpoint_directory(self, which: str | None) -> Path:
        best = next(iter(read_record(self.best)), None)
        if which is None and best is not None:
            record = read_average_record(self.averaged)
            kept = None if record is None else record.kept
            if kept is not None and kept.is_before(best):
                place = checkpoint_path(self.averaged, kept.step)
                if (place / "model.index").is_file():
                    return place
        if which in (None, "best") and best is not None:
            return checkpoint_path(self.best, best.step)
        if which in (None, "last"):
            last = latest_checkpoint(self.checkpoints)
            if last is not None:
                return last
        elif which != "best":
            for candidate in (self.checkpoints / str(which), self.best / str(which), Path(str(which))):
                if (candidate / "model.index").is_file():
                    return candidate
        have = [f"step-{s}" for s in checkpoint_steps(self.checkpoints)]
        raise CheckpointError(f"{self.path}: there is no checkpoint '{which or 'last'}'; it has "
                              f"{', '.join(have) or 'none yet: train first'}.")


def hold_checkpoint(run: SavedRun, which: str | HeldCheckpoint | None = None) -> HeldCheckpoint:
    """Open a checkpoint of a run.

    Args:
        which: as `SavedRun.checkpoint` knows it, the prefix of a checkpoint's files, or one that is open already.
    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if isinstance(which, HeldCheckpoint):
        return which
    prefix = which if which is not None and Path(which + ".index").is_file() else None
    return again_if_gone(lambda: HeldCheckpoint(prefix or run.checkpoint(which)))
