"""Mixtures: several sources as one, by weight, by temperature over their sizes, or one after another.

A draw decides which source the next pair comes from. A draw is a function of (seed, epoch, number of the draw) alone:
raw output of a counter-based generator, so resuming is a seek.

An epoch of a mixture ends when every source was read to its end at least once, or when a source with `on_end='end'`
ends. Until then a source that ends begins again ('restart') or is left out ('drop'). A source without pairs is always
left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np

from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.structured_files import Between, JSONError, Natural, typed_value
from towernmt.core.world import current_world
from towernmt.dataflow.sources.mixture_weights import WeightChange, WeightLog, check_weight, damaged_weights
from towernmt.dataflow.sources.source import Cursor, Pair, Source
from towernmt.dataflow.text.clean_text import with_tag

T = TypeVar("T")

MIXES = ("weight", "temperature", "concatenate")
ON_END = ("restart", "drop", "end")
_DRAWS = 4096  # drawn at a time
_STREAM = 0x6D6978  # keeps these random numbers apart from those of the order of batches


@dataclass(frozen=True)
class Ingredient:
    """One source of a mixture.

    Attributes:
        source: the source of the pairs.
        weight: share of the pairs, in proportion to all weights; with temperature a factor of the share.
        tag: text that is put before each source text, with a space between; empty for none.
        on_end: 'restart', 'drop' or 'end'; None for 'restart', or for 'drop' if sources are concatenated.
    """

    source: Source
    weight: float = 1.0
    tag: str = ""
    on_end: str | None = None


@dataclass(frozen=True)
class SourceStatistics:
    """Counts of one source since the beginning of an epoch.

    Attributes:
        name: name of the source.
        pairs: number of pairs that were read from it, in all rounds.
        rounds: number of times that it was read to its end.
    """

    name: str
    pairs: int
    rounds: int


@dataclass
class _SourceState:
    """The state of a source in a cursor."""

    name: str
    cursor: Cursor
    weight: Annotated[float, Between(0)]
    pairs: Natural
    round: Natural
    rounds: Natural
    active: bool


@dataclass
class _SavedPosition:
    """A cursor of a mixture."""

    epoch: Natural
    draw: Natural
    over: bool
    sources: list[_SourceState]


class Mixture(Source):
    """Several sources as one `Source`, in an order that is a function of (seed, epoch, sources).

    The cursor is a JSON object: the epoch, the number of the draw, and for each source its name, cursor, weight in
    effect, pairs and rounds. Weights in the cursor are valid until the epoch ends, or until `set_weights`.

    Args:
        ingredients: one or more.
        mix: 'weight', 'temperature' or 'concatenate'.
        temperature: T of `weight * pairs ** (1 / T)`, at least 1 (by size); infinity is by weight alone.
        seed: seed of the draws, from 0.
        report: called with a sentence when a source ends; None to write it to the log.

    Attributes:
        weight_log: the weights that `set_weights` has set.

    Raises:
        SettingsError: an argument has an impossible value.
    """

    def __init__(self, ingredients: Sequence[Ingredient], mix: str = "weight", temperature: float = 1.0, seed: int = 1,
                 report: Callable[[str], None] | None = None) -> None:
        self.ingredients = list(ingredients)
        self.mix, self.temperature, self.seed = mix, temperature, seed
        self.report = report or logging.getLogger(__name__).info
        names = [ingredient.source.name for ingredient in self.ingredients]
        self.name = names[0] if len(names) == 1 else f"the mixture of {', '.join(names)}"
        self.weight_log = WeightLog()
        self._check()

    def set_weights(self, weights: Sequence[float] | Mapping[str, float]) -> None:
        """Change the shares of the sources while the mixture is trained on.

        The weights take effect at the next window that no feeder has begun to read, and hold in all later epochs until
        they are set again. They are the shares of the draws, so `mix: temperature` no longer applies. A checkpoint
        saves them with the position, so a resumed run reads the same pairs as an uninterrupted run.

        Args:
            weights: numbers above 0, one for each source in order, or a dict by the names of the sources.

        Raises:
            SettingsError: a weight is missing or not positive, a name is unknown, the sources are concatenated, or
                several workers train (each reads ahead by itself, so they would read different pairs).
        """
        names = [ingredient.source.name for ingredient in self.ingredients]
        if self.mix == "concatenate":
            raise SettingsError(f"set_weights: the sources of {self.name} are read one after another (mix: "
                                "concatenate), so they have no weights. Use mix: by weight.")
        if current_world().processes > 1:
            raise SettingsError("set_weights: with several workers the weights of a mixture cannot change during "
                                "training. Train with one worker, or set the weights in corpora.yaml.")
        if isinstance(weights, Mapping):
            if set(weights) != set(names):
                raise SettingsError(f"set_weights: expected a weight for each of {', '.join(names)}; got "
                                    f"{', '.join(map(str, weights)) or 'none'}.")
            weights = [weights[name] for name in names]
        if len(weights) != len(names):
            raise SettingsError(f"set_weights: expected {len(names)} weights ({', '.join(names)}); got {len(weights)}.")
        for name, weight in zip(names, weights, strict=True):
            check_weight(name, weight)
        self.weight_log.set([float(weight) for weight in weights])

    def restore_weights(self, changes: Any) -> None:
        """Restore the weights that were set before a run was stopped.

        Args:
            changes: the result of `weight_log.since`, as read from JSON.

        Raises:
            DataError: the changes are malformed, or belong to other sources.
        """
        try:
            restored = typed_value(changes, list[WeightChange])
        except JSONError as error:
            raise damaged_weights(str(error)) from error
        if any(len(change.after) != 2 or len(change.weights) != len(self.ingredients) for change in restored):
            raise damaged_weights(f"expected {len(self.ingredients)} weights after an epoch and a window")
        self.weight_log.load(restored)

    @property
    def position_settings(self) -> dict[str, Any]:
        """The settings that a cursor depends on, by name, apart from the seed.

        Weights are not included: a cursor contains those in effect until its epoch ends.
        """
        settings: dict[str, Any] = {"sources": [ingredient.source.name for ingredient in self.ingredients],
                                    "mix": self.mix}
        for number, ingredient in enumerate(self.ingredients, 1):
            settings |= {f"tag of source {number}": ingredient.tag,
                         f"on_end of source {number}": self.on_end(number - 1)}
        return settings

    def on_end(self, index: int) -> str:
        """Return the action at the end of source `index`: 'restart', 'drop' or 'end'."""
        return self.ingredients[index].on_end or ("drop" if self.mix == "concatenate" else "restart")

    def begin(self, epoch: int = 0) -> Cursor:
        """Return the cursor before the first pair of an epoch. With temperature, count the pairs of the sources.

        Raises:
            DataError: a source cannot be reached.
        """
        counted = self.mix == "temperature" and len(self.ingredients) > 1
        weights = self.weights([_call(ingredient.source, ingredient.source.count) if counted else 1
                                for ingredient in self.ingredients])
        return {"epoch": epoch, "draw": 0, "over": False, "sources": [
            {"name": ingredient.source.name, "cursor": _call(ingredient.source, ingredient.source.begin),
             "weight": weight, "pairs": 0, "round": 0, "rounds": 0, "active": True}
            for ingredient, weight in zip(self.ingredients, weights, strict=True)]}

    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """Yield the pairs after a cursor; see `Source.read`. `reader` is faster if not every cursor is needed."""
        reader = self.reader(cursor)
        while pairs := reader.take(1):
            yield reader.cursor(), pairs[0]

    def reader(self, cursor: Cursor, weights: Sequence[float] | None = None) -> MixtureReader:
        """Return a reader that continues after `cursor`.

        Args:
            cursor: a cursor of this mixture.
            weights: weights of the sources, which replace those in the cursor; None to keep those in the cursor.

        Raises:
            DataError: the cursor belongs to another mixture.
        """
        if weights is not None:
            cursor = {**cursor, "sources": [{**state, "weight": weight} for state, weight
                                            in zip(cursor["sources"], weights, strict=True)]}
        return MixtureReader(self, cursor)

    def count(self) -> int:
        """Return the number of pairs of the first epoch. Reads them, unless each source is read exactly once."""
        if all(self.on_end(index) == "drop" for index in range(len(self.ingredients))):
            return sum(ingredient.source.count() for ingredient in self.ingredients)
        reader, count = self.reader(self.begin()), 0
        while pairs := reader.take(_DRAWS):
            count += len(pairs)
        return count

    def weights(self, counts: Sequence[int]) -> list[float]:
        """Return the weights of the draws if the sources have `counts` pairs, which matter only for temperature."""
        weights = [float(ingredient.weight) for ingredient in self.ingredients]
        if self.mix != "temperature":
            return weights
        shares = [weight * count ** (1 / self.temperature) for weight, count in zip(weights, counts, strict=True)]
        # An empty source has the share 0, which is never drawn: it is dropped when the epoch begins.
        return [share / sum(shares) for share in shares] if any(shares) else weights

    def _check(self) -> None:
        if not self.ingredients:
            raise SettingsError("The mixture has no source. Add at least one.")
        if self.mix not in MIXES:
            raise SettingsError(f"mix '{self.mix}' is not one of {', '.join(MIXES)}.")
        if not self.temperature >= 1:
            raise SettingsError(f"mix: temperature {self.temperature}: expected 1 (by size) or more; 5 is usual.")
        for index, ingredient in enumerate(self.ingredients):
            name = ingredient.source.name
            check_weight(name, ingredient.weight)
            if self.on_end(index) not in ON_END:
                raise SettingsError(f"{name}: on_end '{ingredient.on_end}' is not one of {', '.join(ON_END)}.")
            if self.mix == "concatenate" and self.on_end(index) == "restart":
                raise SettingsError(f"{name}: with on_end 'restart', the sources after it would never be read (mix: "
                                    "concatenate). Use on_end drop or end, or mix: by weight.")


class MixtureReader:
    """A reader of a mixture from a cursor on, which returns lists of pairs. For one thread.

    Raises:
        DataError: the cursor belongs to another mixture.
    """

    def __init__(self, mixture: Mixture, cursor: Cursor) -> None:
        self._mixture = mixture
        self._epoch, self._draw, self._over, self._states = _open_cursor(cursor, mixture)
        self._iterators: list[Iterator[tuple[Cursor, Pair]] | None] = [None] * len(self._states)
        self._uniform: np.ndarray | None = None
        self._block = -1
        self._choices: list[int] = []
        self._ahead: tuple[Cursor, Pair] | None = None  # a pair that was read and not taken, and the cursor before it
        for index, state in enumerate(self._states):
            if state["active"] and state["weight"] <= 0 and not self._over:
                self._end_source(index)

    def at_end(self) -> bool:
        """Return whether the epoch is over. Reads one pair ahead.

        Raises:
            DataError: a source cannot be read; this reader is then no longer usable.
        """
        if self._ahead is None and not self._over:
            before = self.cursor()
            pairs = self.take(1)
            if pairs:
                self._ahead = before, pairs[0]
        return self._ahead is None

    def cursor(self) -> Cursor:
        """Return the cursor after the pairs that were taken."""
        if self._ahead is not None:
            return self._ahead[0]
        # A custom source may change its cursor in place while it reads on.
        return {"epoch": self._epoch, "draw": self._draw, "over": self._over, "sources": deepcopy(self._states)}

    def statistics(self) -> list[SourceStatistics]:
        """Return the counts of each source since the beginning of the epoch."""
        return [SourceStatistics(state["name"], state["pairs"], state["rounds"]) for state in self.cursor()["sources"]]

    def take(self, count: int) -> list[Pair]:
        """Return the next `count` pairs, or fewer at the end of the epoch.

        Raises:
            DataError: a source cannot be read; the message names it.
        """
        pairs: list[Pair] = []
        if self._ahead is not None and count > 0:
            pairs, self._ahead = [self._ahead[1]], None
        states, ingredients = self._states, self._mixture.ingredients
        while len(pairs) < count and not self._over:
            index = self._choose()
            self._draw += 1
            state = states[index]
            cursor_and_pair = self._next(index)
            if cursor_and_pair is None:
                self._end_source(index)
                continue
            state["cursor"], pair = cursor_and_pair
            state["pairs"] += 1
            state["round"] += 1
            tag = ingredients[index].tag
            pairs.append(Pair(with_tag(tag, pair.source), pair.target) if tag else pair)
        return pairs

    def _next(self, index: int) -> tuple[Cursor, Pair] | None:
        source = self._mixture.ingredients[index].source
        try:
            iterator = self._iterators[index]
            if iterator is None:
                iterator = self._iterators[index] = source.read(deepcopy(self._states[index]["cursor"]))
            return next(iterator, None)
        except (TowerNMTError, MemoryError):
            raise
        except Exception as error:
            raise _unreadable(source, error) from error

    def _end_source(self, index: int) -> None:
        state, mixture = self._states[index], self._mixture
        empty, state["rounds"] = state["round"] == 0, state["rounds"] + 1
        self._iterators[index] = None
        action = mixture.on_end(index)
        self._over = action == "end" and not empty
        if empty or action != "restart":
            state["active"] = False
            self._choices = []
        self._over = self._over or all(source["rounds"] for source in self._states)
        if not self._over and state["active"]:
            source = mixture.ingredients[index].source
            state["cursor"], state["round"] = _call(source, source.begin), 0
        # A small source may restart thousands of times in an epoch: its rounds 1, 2, 4, 8, ... are reported.
        restarts_again = not self._over and state["active"] and state["rounds"].bit_count() > 1
        if (len(self._states) > 1 or empty) and not restarts_again:
            mixture.report(f"Epoch {self._epoch + 1}: {state['name']} {self._describe_end(state, empty)}.")

    def _describe_end(self, state: dict[str, Any], empty: bool) -> str:
        end = "contains no pair" if empty else f"ended after {state['pairs']:,} pairs in {state['rounds']} round(s)"
        if self._over:
            return f"{end}, and the epoch ends"
        return f"{end} and restarts" if state["active"] else f"{end} and is dropped for the rest of the epoch"

    def _choose(self) -> int:
        block, index = divmod(self._draw, _DRAWS)
        if not self._choices or block != self._block:
            if len(self._states) == 1:
                self._choices = [0] * _DRAWS
            elif self._mixture.mix == "concatenate":
                self._choices = [next(i for i, state in enumerate(self._states) if state["active"])] * _DRAWS
            else:
                self._choices = self._draw_block(block)
            self._block = block
        return self._choices[index]

    def _draw_block(self, block: int) -> list[int]:
        if self._uniform is None or block != self._block:
            key = [self._mixture.seed, self._epoch, _STREAM, block]
            raw = np.random.Philox(np.random.SeedSequence(key)).random_raw(_DRAWS)
            self._uniform = (raw >> np.uint64(11)).astype(np.float64) * 2.0 ** -53
        bounds = np.cumsum([state["weight"] if state["active"] else 0.0 for state in self._states])
        drawn_sources = np.searchsorted(bounds, self._uniform * bounds[-1], side="right")
        last = max(index for index, state in enumerate(self._states) if state["active"])
        indices: list[int] = np.minimum(drawn_sources, last).tolist()
        return indices


def _call(source: Source, method: Callable[[], T]) -> T:
    """Return the result of a method of a source.

    Raises:
        DataError: an unexpected exception was raised; the message names the source.
    """
    try:
        return method()
    except (TowerNMTError, MemoryError):
        raise
    except Exception as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Source, error: Exception) -> DataError:
    reason = " ".join(str(error).split()) or "no message"
    return DataError(f"{source.name}: cannot be read ({type(error).__name__}: {reason}). Check the source, and start "
                     "the same command again.")


def _open_cursor(cursor: Cursor, mixture: Mixture) -> tuple[int, int, bool, list[dict[str, Any]]]:
    """Return the epoch, the number of the draw, whether the epoch is over, and a copy of the states of the sources.

    Raises:
        DataError: the cursor is not one of these sources.
    """
    names = [ingredient.source.name for ingredient in mixture.ingredients]
    try:
        position = typed_value(cursor, _SavedPosition)
    except JSONError as error:
        raise DataError(f"{mixture.name}: the saved position is damaged, or was not written by towernmt ({error}). "
                        "Start a new run with another --logdir.") from error
    saved_names = [state.name for state in position.sources]
    if saved_names != names:
        raise DataError(f"The saved position belongs to {', '.join(saved_names) or 'no source'}, but the sources are "
                        f"now {', '.join(names)}. Name the same sources in the same order, or start a new run with "
                        "another --logdir.")
    return position.epoch, position.draw, position.over, [dict(vars(state)) for state in position.sources]
