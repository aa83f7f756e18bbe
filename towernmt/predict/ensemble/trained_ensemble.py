"""Several trained models as one: what `TrainedModel` is to one checkpoint, for the members of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from tensorpack.predict import OfflinePredictor
from tensorpack.tfutils.sessinit import ChainInit

from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.core.tensors import TensorSpec
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.choices import PRECISIONS
from towernmt.predict.ensemble.ensemble_model import EnsembleModel
from towernmt.predict.ensemble.settings import EnsembleSettings
from towernmt.predict.trained_model import TrainedModel, placed_predictor


class TrainedEnsemble:
    """Trained models that translate together, each with the weights of its own checkpoint.

    Attributes:
        members: the trained models, in the order of their weights.
        run: that of the first, whose settings of the search hold.
        model: an `EnsembleModel`.
        checkpoint: the checkpoints in use, joined by " + ".
        device: TensorFlow's name of the device of predictors; None leaves it to TensorFlow.
        source_vocabulary, target_vocabulary: those of all members.
    """

    def __init__(self, members: Sequence[TrainedModel], settings: EnsembleSettings | None = None) -> None:
        """
        Args:
            members: they are closed with the ensemble; also where it cannot be made.
            settings: which mean, and with which weights.
        Raises:
            SettingsError: the members have different vocabularies, or there are not as many weights as members.
        """
        self._open = ExitStack()
        for member in members:
            self._open.enter_context(member)
        try:
            _check_vocabularies(members)
            self.model = EnsembleModel([member.model for member in members], settings)
        except SettingsError:
            self.close()
            raise
        self.members, self.run = list(members), members[0].run
        self.source_vocabulary, self.target_vocabulary = members[0].source_vocabulary, members[0].target_vocabulary
        self.device = members[0].device
        self.checkpoint = " + ".join(member.checkpoint for member in members)

    def predictor(self, tower: Callable[..., Any], signature: Sequence[TensorSpec],
                  outputs: Sequence[str], threads: int = 1) -> OfflinePredictor:
        """As that of `TrainedModel`, for a tower over `model`."""
        values = [member.initial_values(self.model.scope(place)) for place, member in enumerate(self.members)]
        return placed_predictor(tower, signature, outputs, ChainInit(values), self.device, threads,
                                self.members[0].precision)

    def weights(self) -> NoReturn:
        """Refused: an ensemble has no weights that are one model's.

        Raises:
            SettingsError: always.
        """
        raise SettingsError("An ensemble has no weights of its own: take those of one member, or average the "
                            "checkpoints of one run (`towernmt average`).")

    def close(self) -> None:
        """Let the checkpoints' files go."""
        self._open.close()

    def __enter__(self) -> TrainedEnsemble:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_trained(runs: Sequence[SavedRun | str | Path], checkpoints: Sequence[str | HeldCheckpoint | None] = (None,),
                 models: Sequence[Any] = (None,), *, ensemble: EnsembleSettings | None = None,
                 device: str | None = None, averaged: bool = True,
                 precision: str = PRECISIONS[0]) -> TrainedModel | TrainedEnsemble:
    """One trained model, or an ensemble: of several runs, or of several checkpoints of one run.

    Args:
        runs: one for each member, or one for all; directories, packages, or runs that are open.
        checkpoints: one for each member, or one for all; see `TrainedModel`.
        models: one for each member, or one for all; see `TrainedModel`.
        ensemble: how members are joined.
        device: see `TrainedModel`.
        averaged: see `TrainedModel`.
        precision: see `TrainedModel`.
    Raises:
        CheckpointError: there is no such checkpoint.
        SettingsError: the numbers of runs and checkpoints do not fit, or the models cannot be joined.
    """
    ensemble = ensemble or EnsembleSettings()
    members = max(len(runs), len(checkpoints), len(models))
    for name, values in (("runs", runs), ("checkpoints", checkpoints), ("models", models)):
        if len(values) not in (1, members):
            raise SettingsError(f"{len(runs)} runs, {len(checkpoints)} checkpoints and {len(models)} models do not "
                                f"pair up: give one of the {name} to each member, or one to all.")
    ensemble.shares(members)        # a wrong number of weights is refused before anything is loaded
    with ExitStack() as stack:
        found = [stack.enter_context(TrainedModel(run, checkpoint, device=device, averaged=averaged, model=model,
                                                  precision=precision))
                 for run, checkpoint, model in zip(*(_repeated(values, members) for values in (
                     runs, checkpoints, models)), strict=True)]
        trained = found[0] if members == 1 else TrainedEnsemble(found, ensemble)
        stack.pop_all()
    return trained


def _repeated(values: Sequence[Any], times: int) -> list[Any]:
    return list(values) * times if len(values) == 1 else list(values)


def _check_vocabularies(members: Sequence[TrainedModel]) -> None:
    """Refuse members whose ids are not the same words."""
    first = members[0]
    for other in members[1:]:
        for side, one, two in (("source", first.source_vocabulary, other.source_vocabulary),
                               ("target", first.target_vocabulary, other.target_vocabulary)):
            if not _same(one, two):
                raise SettingsError(
                    f"The {side} vocabulary of {other.run.name} ({two.size} pieces, {two.kind}) is not that of "
                    f"{first.run.name} ({one.size} pieces, {one.kind}): the members of an ensemble must have the same "
                    "vocabularies; train them on the same prepared data.")


def _same(one: Vocabulary, two: Vocabulary) -> bool:
    """Whether two vocabularies give each text the same ids."""
    return (one.kind, one.size, one.streams) == (two.kind, two.size, two.streams) and one.files() == two.files()
