"""An ensemble as a model: what decoding asks of an `NMTModel`, answered by several of them together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.projections import Projection
from towernmt.predict.ensemble.settings import EnsembleSettings

T = TypeVar("T")


class EnsembleModel(NMTModel):
    """Models of any architectures with one target vocabulary, decoded in step.

    Each member builds its variables under a scope of its own (see `scope`) and has a memory and a cache of its own, so
    that search, sampling, every processor and scoring take the ensemble for one model. It is not trained.

    Attributes:
        members: the models.
        shares: the weight of each; together 1.
    """

    def __init__(self, members: Sequence[NMTModel], settings: EnsembleSettings | None = None) -> None:
        """
        Args:
            members: at least one.
            settings: which mean, and with which weights; by default the plain mean of the probabilities.
        Raises:
            SettingsError: the members' target vocabularies differ in size, or there are not as many weights as members.
        """
        settings = settings or EnsembleSettings()
        self.members, self.shares = list(members), settings.shares(len(members))
        self._mean = _mean_of_probabilities if settings.mean == "probabilities" else _mean_of_log_probabilities
        sizes = {member.target_vocab_size for member in members}
        if len(sizes) != 1:
            raise SettingsError(f"The members' target vocabularies have {' and '.join(map(str, sorted(sizes)))} "
                                "pieces, but an ensemble has one target vocabulary: take models trained with the same.")
        self.source_vocab_size = members[0].source_vocab_size
        self.target_vocab_size = members[0].target_vocab_size

    @staticmethod
    def scope(member: int) -> str:
        """The variable scope of a member, counted from 0."""
        return f"member_{member + 1}"

    @property
    def source_factor_count(self) -> int:
        return self.members[0].source_factor_count

    @property
    def gives_attention(self) -> bool:
        return False        # not by teacher forcing

    @property
    def gives_step_attention(self) -> bool:
        """Whether every member's `decode_step` can be asked for attention."""
        return all(member.gives_step_attention for member in self.members)

    def encoder_inputs(self) -> list[TensorSpec]:
        """What the members' encoders take; those of one name are one input.

        Raises:
            SettingsError: two members declare an input of one name differently.
        """
        found: dict[str, TensorSpec] = {}
        for spec in (spec for member in self.members for spec in member.encoder_inputs()):
            if found.setdefault(spec.name, spec) != spec:
                raise SettingsError(f"The input '{spec.name}' is {found[spec.name]} to one member of the ensemble and "
                                    f"{spec} to another: take models that read the same source.")
        return list(found.values())

    def encode(self, *inputs: Tensor) -> Any:
        """Each member's memory.

        Args:
            inputs: the tensors of `encoder_inputs()`.
        """
        named = {spec.name: tensor for spec, tensor in zip(self.encoder_inputs(), inputs, strict=True)}
        return self._each(lambda member, _: member.encode(*(named[spec.name] for spec in member.encoder_inputs())))

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        states = self._each(lambda member, place: member.start_state(memory[place], beam))
        return DecoderState(memory, tuple(state.cache for state in states), states[0].step,
                            tuple(state.blocks for state in states))

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        """A step of each member; the logits are the logarithm of the mean, attention the mean of theirs.

        The memory of the state is as the members gave it, its cache and blocks tuples of theirs.
        """
        asked = {"attention": True} if attention else {}
        steps = self._each(lambda member, place: member.decode_step(
            token, DecoderState(state.memory[place], state.cache[place], state.step, state.blocks[place]), **asked))
        logits = self._mean([tf.cast(step[0], tf.float32) for step in steps], self.shares)
        after = DecoderState(state.memory, tuple(step[1].cache for step in steps), steps[0][1].step,
                             tuple(step[1].blocks for step in steps))
        if not attention:
            return logits, after
        return logits, after, _weighted_sum([tf.cast(step[2], tf.float32) for step in steps], self.shares)

    def decode_hidden(self, memory: Any, target_in: Tensor) -> Tensor:
        """The members' last hidden layers side by side, as `output_projection` takes them."""
        return tf.concat(self._each(lambda member, place: tf.cast(
            member.decode_hidden(memory[place], target_in), tf.float32)), axis=-1)

    def output_projection(self) -> Any:
        """The members' maps, and their mean: logits that are the logarithm of the mean, as in `decode_step`."""
        return _MeanProjection(self._each(lambda member, _: member.output_projection()), self._mean, self.shares)

    def _each(self, action: Callable[[NMTModel, int], T]) -> tuple[T, ...]:
        """What `action` returns for each member and its place, called in the member's variable scope."""
        found = []
        for place, member in enumerate(self.members):
            with tf1.variable_scope(self.scope(place)):
                found.append(action(member, place))
        return tuple(found)


class _MeanProjection(NamedTuple):
    """What a `Projection` is to one model.

    Attributes:
        members: the maps of the members.
        mean: of their logits.
        shares: the weight of each.
    """

    members: Sequence[Projection]
    mean: Callable[[Sequence[Tensor], Sequence[float]], Tensor]
    shares: Sequence[float]

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[..., target vocabulary]` of `hidden` `[..., depth of all members]`."""
        return self._of_each(Projection.logits, hidden)

    def flat_logits(self, tokens: Tensor) -> Tensor:
        """float32 `[tokens, target vocabulary]` of `tokens` `[tokens, depth of all members]`."""
        return self._of_each(Projection.flat_logits, tokens)

    def _of_each(self, logits: Callable[[Projection, Tensor], Tensor], hidden: Tensor) -> Tensor:
        parts = tf.split(hidden, [int(member.kernel.shape[1]) for member in self.members], axis=-1)
        return self.mean([tf.cast(logits(member, part), tf.float32)
                          for member, part in zip(self.members, parts, strict=True)], self.shares)


def _mean_of_probabilities(logits: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """log(sum of share * probability), float32 `[..., vocabulary]`: log-probabilities."""
    log_probs = [tf.nn.log_softmax(member) + math.log(share) for member, share in zip(logits, shares, strict=True)]
    return tf.reduce_logsumexp(tf.stack(log_probs), axis=0)


def _mean_of_log_probabilities(logits: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of share * log-probability, but for a number in each row, which normalising takes away again."""
    return _weighted_sum(logits, shares)


def _weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    return tf.add_n([tensor * share for tensor, share in zip(tensors, shares, strict=True)])
