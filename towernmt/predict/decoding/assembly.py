"""From settings to the objects that decode: the one place that knows both."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.predict.decoding.length_limit import LengthLimit
from towernmt.predict.decoding.loop import Decoding
from towernmt.predict.decoding.processors.forbidden_tokens import ForbiddenTokens
from towernmt.predict.decoding.processors.minimum_length import MinimumLength
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.scores import LengthPenalty
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.decoding.shortlist import Shortlist
from towernmt.predict.decoding.strategies.beam import BeamSearch
from towernmt.predict.decoding.strategies.greedy import GreedySearch
from towernmt.predict.decoding.strategies.strategy import Strategy


def decoding_for(settings: SearchSettings, processors: Sequence[LogitsProcessor] = (), *,
                 attention: bool = False, log_probs: bool = False) -> Decoding:
    """The search that settings ask for.

    Args:
        processors: those of one's own; they act behind those of the settings.
        attention, log_probs: what else is given of each hypothesis; see `Decoded`.
    Raises:
        DataError: the file of a shortlist is missing or damaged.
    """
    scoring = LengthPenalty(settings.length_penalty)
    strategy: Strategy = GreedySearch(scoring)
    if settings.beam_size > 1:
        strategy = BeamSearch(settings.beam_size, settings.n_best, scoring, settings.stop_early)
    chain: list[LogitsProcessor] = [ForbiddenTokens([PAD, BOS])]
    if settings.min_length:
        chain.append(MinimumLength(settings.min_length))
    shortlist = None
    if settings.shortlist:
        shortlist = Shortlist.from_file(settings.shortlist, settings.shortlist_size, settings.shortlist_frequent)
    return Decoding(strategy, [*chain, *processors],
                    LengthLimit(settings.max_length_factor, settings.max_length_constant), attention, log_probs,
                    shortlist)
