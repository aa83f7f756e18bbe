"""The space of a search for settings: possible values of settings, and points that are drawn from it."""

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
from towernmt.dataflow.text.text_lines import check_rereadable
from towernmt.run.run_settings import VOCABULARY_SIZES, Settings

KINDS = ("choice", "uniform", "loguniform", "integer")
FIXED_SETTINGS = (*VOCABULARY_SIZES, "architecture", "train.steps", "train.epochs", "train.minutes", "validation.")
"""Settings that must be equal in all trials, because their scores are compared; a prefix ends with a dot."""
_MAX_REDRAWS = 1000     # maximum number of draws of known points


@dataclass(frozen=True)
class Dimension:
    """Possible values of one setting.

    Attributes:
        key: dotted key of the setting.
        kind: one of `KINDS`.
        values: the choices, or the lowest and the highest value.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    def draw(self, generator: random.Random) -> Any:
        """Draw a value; floats have four significant digits."""
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
    """Read the space of a search from a YAML file of dotted keys or of groups.

    The values of a setting are a list of choices, or `choice: [...]`, `uniform: [LOW, HIGH]`, `loguniform: [LOW, HIGH]`
    or `integer: [LOW, HIGH]`, both bounds included.

    Args:
        path: path of the file.
        settings: the base settings; each choice and each bound must be valid in them.

    Raises:
        SettingsError: the file is not valid; the message names the line.
        DataError: the file is a pipe, which could not be read again for the numbers of its lines.
    """
    path = Path(path)
    check_rereadable(path)
    load_yaml(path)     # refuses invalid YAML, content that is not a mapping, and duplicate keys
    root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    entries = _entries(root, "") if isinstance(root, yaml.MappingNode) else ()
    dimensions = [_dimension(path, *entry, settings) for entry in entries]
    if not dimensions:
        raise SettingsError(f"{path}: the space is empty; a line such as "
                            "`optimizer.learning_rate: {loguniform: [0.0003, 0.003]}` gives a setting its values.")
    return dimensions


def draw_points(space: Sequence[Dimension], number: int, seed: int) -> list[dict[str, Any]]:
    """Draw different points of a space; fewer than `number` if the space has fewer.

    The first points do not depend on `number`, and the values of a key do not depend on the other keys.

    Returns:
        Points, each a value by dotted key.
    """
    points: list[dict[str, Any]] = []
    for attempt in itertools.count():
        if len(points) == number or attempt >= number + _MAX_REDRAWS:
            return points
        point = {d.key: d.draw(random.Random(f"{seed}/{attempt}/{d.key}")) for d in space}
        if point not in points:
            points.append(point)
    return points


def _entries(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node, int]]:
    """Yield the dotted key, the node of the values, and the line number of each setting."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and not _is_kind(value):
            yield from _entries(value, f"{name}.")
        else:
            yield name, value, key.start_mark.line + 1


def _is_kind(node: yaml.MappingNode) -> bool:
    """Return whether a mapping contains the values of a setting, not a group of settings."""
    return any(key.value in KINDS for key, _ in node.value)


def _dimension(path: Path, key: str, node: yaml.Node, line: int, settings: Settings) -> Dimension:
    origin = f"{path}:{line}"
    for name in FIXED_SETTINGS:
        if key == name or name.endswith(".") and key.startswith(name):
            raise SettingsError(f"{origin}: {key} must be the same for all trials: remove it from the space.")
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
    """Return the lowest and the highest value."""
    try:
        low, high = (float(value) for value in values)      # YAML reads 1e-4 as text
    except (TypeError, ValueError):
        raise SettingsError(f"{origin}: {key}: {kind} takes two numbers, [LOW, HIGH], but has {values}.") from None
    if not low < high or not math.isfinite(high - low):
        raise SettingsError(f"{origin}: {key}: {kind} needs a lowest value below the highest, but has {values}.")
    if kind == "loguniform" and low <= 0:
        raise SettingsError(f"{origin}: {key}: loguniform needs numbers above 0, but has {values}.")
    if kind == "integer":
        if not (low.is_integer() and high.is_integer()):
            raise SettingsError(f"{origin}: {key}: integer takes whole numbers, but has {values}.")
        return [int(low), int(high)]
    return [low, high]
