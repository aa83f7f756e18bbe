"""The search settings that a format of `towernmt export` can express, if it cannot express all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from towernmt.predict.search.search_settings import SearchSettings

WITHOUT_EFFECT: Mapping[str, Any] = {
    "selection": "beam", "n_best": 1, "beam_groups": 1, "word_reward": 0.0, "coverage_penalty": 0.0, "temperature": 1.0,
    "top_k": 0, "top_p": 1.0, "epsilon": 0.0, "max_tokens": 0, "min_length": 0, "min_length_factor": 0.0,
    "no_repeat_ngram": 0, "repetition_penalty": 1.0, "shortlist": ""}
"""Search settings with the value that does not change a beam search, which every format expresses."""
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
