"""The model's settings of a run that begins with the parameters of another: those of that other run."""

from __future__ import annotations

from collections.abc import Iterator

from towernmt.checkpoint.start_from import initial_checkpoint
from towernmt.chosen.choice import Choice
from towernmt.core.settings import flatten
from towernmt.models.registry.locate import find_place, is_findable
from towernmt.run.directory import RunDirectory
from towernmt.run.resume import is_free
from towernmt.run.settings import FACTS, Settings


def model_of_initial_run(settings: Settings) -> Iterator[Choice]:
    """What the model must have to take the parameters of `init.checkpoint`; nothing where that is of another class.

    How a model is trained is not taken over (dropout, for instance): it belongs to the other run's text and limit.

    Raises:
        SettingsError: `init.checkpoint` names no run.
        CheckpointError: the run has no checkpoint.
    """
    run = RunDirectory(initial_checkpoint(settings.init.checkpoint)[0].path)
    name = settings.architecture
    if run.architecture() == (find_place(name).name if is_findable(name) else name):
        present = flatten(settings)
        for key, value in flatten(run.settings_like(settings)).items():
            if key.startswith("model.") and key not in FACTS and not is_free(key) and value != present[key]:
                yield Choice(key, value, f"{settings.init.checkpoint} has it, whose parameters the model begins with")
