"""A run's directory: everything needed to go on with it or to translate with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from towernmt.errors import CheckpointError, SettingsError
from towernmt.settings import apply_overrides, load_yaml, save_yaml
from towernmt.train.checkpoint import checkpoint_path, checkpoint_steps, latest_checkpoint
from towernmt.train.settings import Settings, default_settings

if TYPE_CHECKING:
    from towernmt.dataflow.training_data import TrainingData
    from towernmt.dataflow.vocabulary import Vocabulary
    from towernmt.models.interface import NMTModel


class RunDirectory:
    """Paths and contents of a run.

    ```
    settings.yaml            all settings
    vocabulary/              source and target vocabularies
    checkpoints/step-N/      the last checkpoints
    best/step-N/             the best by validation, best/record.json, best/log
    log/                     log.log, stats.jsonl, TensorBoard events
    ```
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "settings.yaml"
        self.vocabulary = self.path / "vocabulary"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.log = self.path / "log"

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.settings_file.is_file()

    def begin(self, settings: Settings, data: TrainingData) -> None:
        """Write settings and vocabularies (with a checkpoint, all that a `Translator` needs), and log to `log/`.

        Args:
            settings: of the run; `settings_of_model(model)` for a model that was put together by hand.
            data: where the vocabularies come from.
        """
        from towernmt.train.run_log import begin_log  # with tensorpack, which imports TensorFlow

        self.save_settings(settings)
        data.copy_vocabularies(self.vocabulary)
        begin_log(self.log)

    def save_settings(self, settings: Settings) -> None:
        """Write `settings.yaml`."""
        self.path.mkdir(parents=True, exist_ok=True)
        save_yaml(settings, self.settings_file)

    def settings(self) -> Settings:
        """The settings of the run.

        Raises:
            SettingsError: there is no run here, or its settings are not understood.
        """
        if not self.exists():
            raise SettingsError(f"{self.path}: no run here (settings.yaml is missing); "
                                "pass the --logdir of a `towernmt train`.")
        saved = load_yaml(self.settings_file)
        settings = default_settings(str(saved.get("architecture", "transformer")))
        return apply_overrides(settings, saved, origin=str(self.settings_file))

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Source and target vocabulary."""
        from towernmt.dataflow.prepared import load_vocabularies

        source, target, _ = load_vocabularies(self.vocabulary)
        return source, target

    def load_model(self) -> NMTModel:
        """The run's model, untrained: a tower function."""
        from towernmt.models import make_model

        return make_model(self.settings())

    def checkpoint(self, which: str | None = None) -> str:
        """The prefix of a checkpoint's TensorFlow files.

        Args:
            which: `last`, `best`, `step-N` (looked for among both), a path, or None: the best if there is
                one, else the last.
        Raises:
            CheckpointError: there is no such checkpoint.
        """
        return str(self._checkpoint_directory(which) / "model")

    def _checkpoint_directory(self, which: str | None) -> Path:
        best = self._best_step()
        if which in (None, "best") and best is not None:
            return checkpoint_path(self.best, best)
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

    def _best_step(self) -> int | None:
        """The first of `best/record.json` (see `BestCheckpoints`)."""
        record = self.best / "record.json"
        entries = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else []
        return int(entries[0]["step"]) if entries else None
