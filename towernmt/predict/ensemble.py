"""Several trained models that translate as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from tensorpack.predict import OfflinePredictor
from tensorpack.tfutils.sessinit import ChainInit

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.projections import Projection
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.search.search_settings import EnsembleSettings
from towernmt.predict.trained_model import TrainedModel, predictor_on_device

T = TypeVar("T")


class EnsembleModel(NMTModel):
    """Models of any architectures with one target vocabulary that are decoded together.

    Each member has a separate variable scope (see `scope`), memory and cache. Search, sampling, processors and scoring
    treat the ensemble as one model. It cannot be trained.

    Args:
        members: at least one.
        settings: kind of mean, and weights; by default the unweighted mean of the probabilities.

    Attributes:
        members: the models.
        member_weights: weights of the members, with sum 1.

    Raises:
        SettingsError: the members' target vocabularies differ in size, or the number of weights differs from that
            of members.
    """

    def __init__(self, members: Sequence[NMTModel], settings: EnsembleSettings | None = None) -> None:
        settings = settings or EnsembleSettings()
        self.members, self.member_weights = list(members), settings.normalised_weights(len(members))
        self._mean = _mean_of_probabilities if settings.mean == "probabilities" else _mean_of_log_probabilities
        sizes = {member.target_vocab_size for member in members}
        if len(sizes) != 1:
            raise SettingsError(f"The members' target vocabularies have {' and '.join(map(str, sorted(sizes)))} "
                                "pieces, but an ensemble has one target vocabulary: take models trained with the same.")
        self.source_vocab_size = members[0].source_vocab_size
        self.target_vocab_size = members[0].target_vocab_size

    @staticmethod
    def scope(member: int) -> str:
        """Return the variable scope of a member, counted from 0."""
        return f"member_{member + 1}"

    @property
    def source_factor_count(self) -> int:
        return self.members[0].source_factor_count

    @property
    def gives_attention(self) -> bool:
        return False        # by teacher forcing

    @property
    def gives_step_attention(self) -> bool:
        """Whether the `decode_step` of every member can return attention."""
        return all(member.gives_step_attention for member in self.members)

    def encoder_inputs(self) -> list[TensorSpec]:
        """Return the inputs of the members' encoders; inputs of one name are shared.

        Raises:
            SettingsError: two members declare an input of one name differently.
        """
        by_name: dict[str, TensorSpec] = {}
        for spec in (spec for member in self.members for spec in member.encoder_inputs()):
            if by_name.setdefault(spec.name, spec) != spec:
                raise SettingsError(f"The input '{spec.name}' is {by_name[spec.name]} to one member of the ensemble "
                                    f"and {spec} to another: take models that read the same source.")
        return list(by_name.values())

    def encode(self, *inputs: Tensor) -> Any:
        """Return the memories of the members.

        Args:
            inputs: tensors for `encoder_inputs()`.
        """
        named = {spec.name: tensor for spec, tensor in zip(self.encoder_inputs(), inputs, strict=True)}
        return self._each(lambda member, _: member.encode(*(named[spec.name] for spec in member.encoder_inputs())))

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        states = self._each(lambda member, index: member.start_state(memory[index], beam))
        return DecoderState(memory, tuple(state.cache for state in states), states[0].step,
                            tuple(state.blocks for state in states))

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        """Run one step of each member; logits are the logarithm of the mean, attention is the mean.

        The memory of the state is a tuple of the members' memories, and likewise its cache and blocks.
        """
        arguments = {"attention": True} if attention else {}
        steps = self._each(lambda member, index: member.decode_step(
            token, DecoderState(state.memory[index], state.cache[index], state.step, state.blocks[index]), **arguments))
        logits = self._mean([tf.cast(step[0], tf.float32) for step in steps], self.member_weights)
        new_state = DecoderState(state.memory, tuple(step[1].cache for step in steps), steps[0][1].step,
                                 tuple(step[1].blocks for step in steps))
        if not attention:
            return logits, new_state
        return logits, new_state, _weighted_sum([tf.cast(step[2], tf.float32) for step in steps], self.member_weights)

    def decode_hidden(self, memory: Any, target_in: Tensor) -> Tensor:
        """Return the concatenated last hidden layers of the members, the input of `output_projection`."""
        return tf.concat(self._each(lambda member, index: tf.cast(
            member.decode_hidden(memory[index], target_in), tf.float32)), axis=-1)

    def output_projection(self) -> Any:
        """Return a projection whose logits are the logarithm of the mean, as in `decode_step`."""
        projections = self._each(lambda member, _: member.output_projection())
        return _MeanProjection(projections, self._mean, self.member_weights)

    def _each(self, action: Callable[[NMTModel, int], T]) -> tuple[T, ...]:
        """Call `action(member, index)` in the variable scope of each member, and return the results."""
        results = []
        for index, member in enumerate(self.members):
            with tf1.variable_scope(self.scope(index)):
                results.append(action(member, index))
        return tuple(results)


class _MeanProjection(NamedTuple):
    """Output projection of an ensemble.

    Attributes:
        members: projections of the members.
        mean: how to average their logits.
        member_weights: weights of the members.
    """

    members: Sequence[Projection]
    mean: Callable[[Sequence[Tensor], Sequence[float]], Tensor]
    member_weights: Sequence[float]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 `[..., target vocabulary]` of `hidden` `[..., depth of all members]`."""
        return self._mean_of_members(Projection.logits, hidden)

    def flat_logits(self, tokens: Tensor) -> Tensor:
        """Return float32 `[tokens, target vocabulary]` of `tokens` `[tokens, depth of all members]`."""
        return self._mean_of_members(Projection.flat_logits, tokens)

    def _mean_of_members(self, logits: Callable[[Projection, Tensor], Tensor], hidden: Tensor) -> Tensor:
        slices = tf.split(hidden, [int(member.kernel.shape[1]) for member in self.members], axis=-1)
        return self.mean([tf.cast(logits(member, hidden_of_member), tf.float32)
                          for member, hidden_of_member in zip(self.members, slices, strict=True)], self.member_weights)


def _mean_of_probabilities(logits: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return log-probabilities, float32 `[..., vocabulary]`: log(sum of weight * probability)."""
    log_probs = [tf.nn.log_softmax(member) + math.log(weight) for member, weight in zip(logits, weights, strict=True)]
    return tf.reduce_logsumexp(tf.stack(log_probs), axis=0)


def _mean_of_log_probabilities(logits: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted sum of log-probabilities up to a constant per row, which normalisation removes."""
    return _weighted_sum(logits, weights)


def _weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return tf.add_n([tensor * weight for tensor, weight in zip(tensors, weights, strict=True)])


class TrainedEnsemble:
    """Trained models that translate together, each with the weights of one checkpoint.

    Args:
        members: closed together with the ensemble, also if it cannot be created.
        settings: kind of mean, and weights.

    Attributes:
        members: the trained models, in the order of their weights.
        run: run of the first member, whose search settings apply.
        model: an `EnsembleModel`.
        checkpoint: the checkpoints in use, joined by " + ".
        device: TensorFlow's name of the device of predictors; None leaves it to TensorFlow.
        source_vocabulary, target_vocabulary: common to all members.

    Raises:
        SettingsError: the members have different vocabularies, or the number of weights differs from that of
            members.
    """

    def __init__(self, members: Sequence[TrainedModel], settings: EnsembleSettings | None = None) -> None:
        self._open_members = ExitStack()
        for member in members:
            self._open_members.enter_context(member)
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
        """Return a predictor like `TrainedModel.predictor`, for a tower over `model`."""
        values = [member.initial_values(self.model.scope(index)) for index, member in enumerate(self.members)]
        return predictor_on_device(tower, signature, outputs, ChainInit(values), self.device, threads,
                                self.members[0].precision)

    def weights(self) -> NoReturn:
        """Raise an error, since an ensemble has no single set of weights.

        Raises:
            SettingsError: always.
        """
        raise SettingsError("An ensemble has no single set of weights: use one member, or average the "
                            "checkpoints of one run (`towernmt average`).")

    def close(self) -> None:
        """Close the files of the checkpoints."""
        self._open_members.close()

    def __enter__(self) -> TrainedEnsemble:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_trained(runs: Sequence[SavedRun | str | Path], checkpoints: Sequence[str | OpenCheckpoint | None] = (None,),
                 models: Sequence[Any] = (None,), *, ensemble: EnsembleSettings | None = None,
                 device: str | None = None, averaged: bool = True,
                 precision: str = PRECISIONS[0]) -> TrainedModel | TrainedEnsemble:
    """Open a trained model, or an ensemble of several runs or of several checkpoints of one run.

    Args:
        runs: one per member or one for all: directories, packages or open runs.
        checkpoints: one per member or one for all; see `TrainedModel`.
        models: one per member or one for all; see `TrainedModel`.
        ensemble: how to combine the members.
        device: see `TrainedModel`.
        averaged: see `TrainedModel`.
        precision: see `TrainedModel`.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: the numbers of runs and checkpoints do not match, or the models cannot be combined.
    """
    ensemble = ensemble or EnsembleSettings()
    members = max(len(runs), len(checkpoints), len(models))
    for name, values in (("runs", runs), ("checkpoints", checkpoints), ("models", models)):
        if len(values) not in (1, members):
            raise SettingsError(f"{len(runs)} runs, {len(checkpoints)} checkpoints and {len(models)} models do not "
                                f"match: pass one of the {name} for each member, or one for all.")
    ensemble.normalised_weights(members)        # raises an error for a wrong number of weights before a model is loaded
    with ExitStack() as stack:
        trained = [stack.enter_context(TrainedModel(run, checkpoint, device=device, averaged=averaged, model=model,
                                                    precision=precision))
                   for run, checkpoint, model in zip(*(_repeated(values, members) for values in (
                     runs, checkpoints, models)), strict=True)]
        result = trained[0] if members == 1 else TrainedEnsemble(trained, ensemble)
        stack.pop_all()
    return result


def _repeated(values: Sequence[Any], times: int) -> list[Any]:
    return list(values) * times if len(values) == 1 else list(values)


def _check_vocabularies(members: Sequence[TrainedModel]) -> None:
    """Check that all members have the same vocabularies."""
    first = members[0]
    for other in members[1:]:
        for side, expected, actual in (("source", first.source_vocabulary, other.source_vocabulary),
                                       ("target", first.target_vocabulary, other.target_vocabulary)):
            if not _same_encoding(expected, actual):
                raise SettingsError(
                    f"The {side} vocabulary of {other.run.name} ({actual.size} pieces, {actual.kind}) is not that of "
                    f"{first.run.name} ({expected.size} pieces, {expected.kind}): the members of an ensemble must have "
                    "the same vocabularies; train them on the same prepared data.")


def _same_encoding(first: Vocabulary, second: Vocabulary) -> bool:
    """Return whether two vocabularies encode each text as the same ids."""
    facts, other_facts = ((each.kind, each.size, each.streams) for each in (first, second))
    return facts == other_facts and first.files() == second.files() and all(
        factor.files() == other_factor.files()
        for factor, other_factor in zip(factors_of(first), factors_of(second), strict=True))
