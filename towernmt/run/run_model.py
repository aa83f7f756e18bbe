"""Which model a run was made by: the name in its `settings.yaml`, and the copy of the code of a model of one's own."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.saved_run import DEFINE_IN_FILE
from towernmt.core.errors import SettingsError
from towernmt.models import architecture, make_model, name_of_model
from towernmt.models.registry import model_class
from towernmt.models.registry.kept_code import changed_files, keep_code
from towernmt.models.registry.locate import find_place, is_findable
from towernmt.run.settings import Settings

if TYPE_CHECKING:
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
    """The model that the settings of a run describe, untrained.

    Args:
        kind: its class, or a function that makes it; None to find that by its name.
    Raises:
        SettingsError: there is none of that name, or it cannot be made from settings.
    """
    handed = {"optimizer_settings": settings.optimizer, "clip_norm": settings.train.clip_norm}
    if kind is None:
        return make_model(settings.architecture, settings.model, **handed)
    return model_class.make(kind, settings.architecture, settings.model, **handed)


def settings_as_made(settings: Settings, model: Any) -> Settings:
    """The settings by which a run of a model is recorded that was made from `settings` in a way of one's own."""
    own = getattr(model, "settings", None)
    return dataclasses.replace(settings, architecture=name_of_model(model),
                               model=own if dataclasses.is_dataclass(own) else settings.model)


def why_lost(settings: Settings) -> str:
    """Why a run with these settings will not find its model when it is to translate; "" if it will."""
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
