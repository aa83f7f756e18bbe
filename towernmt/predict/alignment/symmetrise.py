"""One alignment from those of both directions, by the heuristics of Koehn, Och & Marcu (2003).

Both are links (source word, target word) of one sentence pair. In the grow methods, links of the union are added to the
intersection as neighbours of links that are there already (diagonal neighbours too), if a word of theirs has no link
yet; `final` adds links for words that still have none, `final-and` only where both words have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.alignment import Link

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrised(forward: Iterable[Link], backward: Iterable[Link], method: str) -> list[Link]:
    """One alignment from two.

    Args:
        forward: links by the model from source to target: sure of each target word.
        backward: links by the model from target to source, as (source word, target word), too.
        method: one of `METHODS`.
    Returns:
        sorted.
    Raises:
        SettingsError: an unknown method.
    """
    if method not in METHODS:
        raise SettingsError(f"symmetrise={method}: choose one of {', '.join(METHODS)}.")
    return sorted(METHODS[method](set(forward), set(backward)))


def _grow_diag(forward: set[Link], backward: set[Link]) -> set[Link]:
    union, links = sorted(forward | backward, key=_by_target), forward & backward
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    before = -1
    while before < len(links):
        before = len(links)
        for link in union:
            if link not in links:
                continue
            for down, right in _NEIGHBOURS:
                new = link[0] + down, link[1] + right
                if new not in links and (new in forward or new in backward) and (
                        new[0] not in sources or new[1] not in targets):
                    links.add(new)
                    sources.add(new[0])
                    targets.add(new[1])
    return links


def _final(links: set[Link], directions: Sequence[set[Link]], rule: Callable[[Iterable[bool]], bool]) -> set[Link]:
    """Links, and those of which `rule` (any, all) of the two words has no link yet."""
    links = set(links)
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    for direction in directions:
        for source, target in sorted(direction, key=_by_target):
            if rule((source not in sources, target not in targets)):
                links.add((source, target))
                sources.add(source)
                targets.add(target)
    return links


def _by_target(link: Link) -> Link:
    """In the order of the target words, as Moses goes through them."""
    return link[1], link[0]


METHODS: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": _grow_diag,
    "grow-diag-final": lambda forward, backward: _final(_grow_diag(forward, backward), (forward, backward), any),
    "grow-diag-final-and": lambda forward, backward: _final(_grow_diag(forward, backward), (forward, backward), all),
}
"""From links of both directions to links."""
