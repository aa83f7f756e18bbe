"""YAML that can only mean one thing: what PyYAML's safe loader ignores, or cannot bound, is an error here.

A key that is there twice is refused (PyYAML takes the last one), and so is nesting without bound: too deep, a node that
contains itself by an alias, or aliases of aliases that make the document huge.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MOST_NODES = 100_000


def load_strict(text: str) -> Any:
    """The content of a YAML document, of plain types; None if it is empty.

    Raises:
        yaml.MarkedYAMLError: malformed, or ambiguous; `problem` and `problem_mark` say what is wrong and where. Of
            the content it holds keys only.
    """
    try:
        loader = _StrictLoader(text)
    except yaml.reader.ReaderError as error:
        raise yaml.MarkedYAMLError(problem=f"the character #x{error.character:04x} may not stand in YAML") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > _MOST_NODES:
            raise yaml.MarkedYAMLError(problem=f"it has more than {_MOST_NODES:,} values, aliases written out")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply") from None
    except ValueError:      # a date of no calendar, a number of too many digits
        raise yaml.MarkedYAMLError(problem="a date or a number in it cannot be") from None
    finally:
        loader.dispose()


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):       # the safe loader refuses the others itself
                if key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is there twice",
                                                            key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes there are when each alias is written out; a node in itself has no end."""
    if id(node) not in known:
        inner = node.value if isinstance(node.value, list) else []
        children = [child for item in inner for child in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]
