"""The search settings that a format of `towernmt export` can express, if it cannot express all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from towernmt.predict.search.search_settings import SearchSettings

WITHOUT_EFFECT: Mapping[str, Any] = {name: getattr(SearchSettings, name) for name in (
    "selection", "n_best", "beam_groups", "word_reward", "coverage_penalty", "temperature", "top_k", "top_p", "epsilon",
    "max_tokens", "min_length", "min_length_factor", "no_repeat_ngram", "repetition_penalty", "shortlist")}
"""Search settings whose default does not change a beam search, with this default, which every format expresses."""
_SHORTLIST = frozenset({"shortlist", "shortlist_size", "shortlist_frequent"})


@dataclass(frozen=True)
class SearchSupport:
    """The search settings that a format can express.

    Attributes:
        reason: a clause for messages that describes the search of the format's programs.
        settings: names of the settings that may have any value.
        values: settings that must have one value, and this value; in addition to `WITHOUT_EFFECT`.
    """

    reason: str
    settings: frozenset[str] = frozenset()
    values: Mapping[str, Any] = field(default_factory=dict)

    def unsupported(self, search: SearchSettings) -> list[str]:
        """Return the names of the settings that the format cannot express."""
        values = {**WITHOUT_EFFECT, **self.values}
        return [name for name, value in vars(search).items()
                if name not in self.settings and (name not in values or value != values[name])]


ARGOS_SEARCH = SearchSupport("Argos Translate has its own search settings", frozenset({"averaged"}))
MARIAN_SEARCH = SearchSupport(
    "decoder.yml contains only the beam size, the length penalty of --length-normalization average, the word reward, "
    "--max-length FACTOR,0 and the shortlist",
    frozenset({"averaged", "beam_size", "length_penalty", "word_reward", "max_length_factor"}) | _SHORTLIST,
    {"length_normalization": "average", "max_length_constant": 0})
BROWSER_SEARCH = SearchSupport("its engines use greedy search and read only the shortlist",
                               frozenset({"averaged"}) | _SHORTLIST, {"beam_size": 1})
