"""The space of a search: which values each setting may have, read from a YAML file, and points drawn from it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, load_yaml
from towernmt.run.settings import FACTS, Settings

KINDS = ("choice", "uniform", "loguniform", "integer")
NOT_SEARCHED = (*FACTS, "architecture", "train.steps", "train.epochs", "train.minutes", "validation.")
"""What all trials must have in common, else their scores say nothing; a prefix ends with a dot."""
_REDRAWS = 1000     # of a point that was drawn before


@dataclass(frozen=True)
class Dimension:
    """The values that one setting may have.

    Attributes:
        key: the setting.
        kind: one of `KINDS`.
        values: the choices, or the lowest and the highest value.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    def draw(self, generator: random.Random) -> Any:
        """One of the values; numbers that are not whole have four significant digits."""
        if self.kind == "choice":
            return generator.choice(self.values)
        low, high = self.values
        if self.kind == "integer":
            return generator.randint(low, high)
        if self.kind == "uniform":
            value = generator.uniform(low, high)
        else:
            value = math.exp(generator.uniform(math.log(low), math.log(high)))
        return min(max(float(f"{value:.4g}"), low), high)


def read_space(path: str | Path, settings: Settings) -> list[Dimension]:
    """The space that a file describes, by dotted keys or in groups.

    A setting has a list of choices, or `choice: [...]`, `uniform: [LOW, HIGH]`, `loguniform: [LOW, HIGH]` or
    `integer: [LOW, HIGH]`, both ends included.

    Args:
        settings: that the values are for; each choice and each end is checked against them.
    Raises:
        SettingsError: names the file and the line of what is wrong.
    """
    path = Path(path)
    load_yaml(path)     # refuses what is no mapping, keys that are there twice, and what is no YAML
    root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    entries = _entries(root, "") if isinstance(root, yaml.MappingNode) else ()
    dimensions = [_dimension(path, *entry, settings) for entry in entries]
    if not dimensions:
        raise SettingsError(f"{path}: the space is empty; a line such as "
                            "`optimizer.learning_rate: {loguniform: [0.0003, 0.003]}` gives a setting its values.")
    return dimensions


def draw_points(space: Sequence[Dimension], number: int, seed: int) -> list[dict[str, Any]]:
    """Different points of a space, each a value for each key; fewer where the space holds fewer.

    The first points are the same whatever the number, and those of a key whatever the other keys.
    """
    points: list[dict[str, Any]] = []
    for attempt in itertools.count():
        if len(points) == number or attempt >= number + _REDRAWS:
            return points
        point = {d.key: d.draw(random.Random(f"{seed}/{attempt}/{d.key}")) for d in space}
        if point not in points:
            points.append(point)
    return points


def _entries(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node, int]]:
    """(dotted key, what stands for it, line) of each setting."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and not _is_kind(value):
            yield from _entries(value, f"{name}.")
        else:
            yield name, value, key.start_mark.line + 1


def _is_kind(node: yaml.MappingNode) -> bool:
    """Whether a mapping is the values of a setting, and no group of settings."""
    return any(key.value in KINDS for key, _ in node.value)


def _dimension(path: Path, key: str, node: yaml.Node, line: int, settings: Settings) -> Dimension:
    origin = f"{path}:{line}"
    for name in NOT_SEARCHED:
        if key == name or name.endswith(".") and key.startswith(name):
            raise SettingsError(f"{origin}: {key} must be the same for all trials: take it out of the space.")
    content = yaml.safe_load(yaml.serialize(node))
    if isinstance(content, list):
        content = {"choice": content}
    kind, values = next(iter(content.items())) if isinstance(content, dict) and len(content) == 1 else ("", None)
    if kind not in KINDS or not isinstance(values, list) or not values:
        raise SettingsError(f"{origin}: {key}: expected a list of choices, or one of {', '.join(KINDS)} with a list, "
                            f"for example `{key}: {{uniform: [LOW, HIGH]}}`.")
    if kind != "choice":
        values = _bounds(origin, key, kind, values)
    for value in values:
        apply_overrides(settings, {key: value}, origin)
    return Dimension(key, kind, tuple(values))


def _bounds(origin: str, key: str, kind: str, values: list[Any]) -> list[Any]:
    """The lowest and the highest value."""
    try:
        low, high = (float(value) for value in values)      # YAML takes 1e-4 for a text
    except (TypeError, ValueError):
        raise SettingsError(f"{origin}: {key}: {kind} takes two numbers, [LOW, HIGH], and not {values}.") from None
    if not low < high or not math.isfinite(high - low):
        raise SettingsError(f"{origin}: {key}: {kind} needs a lowest value below the highest, and not {values}.")
    if kind == "loguniform" and low <= 0:
        raise SettingsError(f"{origin}: {key}: loguniform needs numbers above 0, and not {values}.")
    if kind == "integer":
        if not (low.is_integer() and high.is_integer()):
            raise SettingsError(f"{origin}: {key}: integer takes whole numbers, and not {values}.")
        return [int(low), int(high)]
    return [low, high]
