"""From settings to the objects that decode: the one place that knows both."""

from __future__ import annotations

import math
from collections.abc import Sequence

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.predict.decoding.length_limit import LengthLimit
from towernmt.predict.decoding.loop import Decoding
from towernmt.predict.decoding.processors.forbidden_tokens import ForbiddenTokens
from towernmt.predict.decoding.processors.minimum_length import MinimumLength
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.processors.repeated_ngrams import NoRepeatedNgrams
from towernmt.predict.decoding.processors.repetition_penalty import RepetitionPenalty
from towernmt.predict.decoding.processors.temperature import Temperature
from towernmt.predict.decoding.scores import Average, CoveragePenalty, LengthPenalty, Scoring, WordReward
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.decoding.shortlist import Shortlist
from towernmt.predict.decoding.strategies.ancestral import AncestralSampling
from towernmt.predict.decoding.strategies.beam import BeamSearch
from towernmt.predict.decoding.strategies.constrained_beam import ConstrainedBeamSearch
from towernmt.predict.decoding.strategies.diverse_beam import DiverseBeamSearch
from towernmt.predict.decoding.strategies.drawing import Truncation
from towernmt.predict.decoding.strategies.greedy import GreedySearch
from towernmt.predict.decoding.strategies.stopping import Stopping
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
    shortlist = None
    if settings.shortlist:
        shortlist = Shortlist.from_file(settings.shortlist, settings.shortlist_size, settings.shortlist_frequent)
    return Decoding(_strategy(settings), [*_processors(settings), *processors], _limit(settings), attention, log_probs,
                    shortlist)


def _strategy(settings: SearchSettings) -> Strategy:
    if settings.selection == "sampling":
        truncation = Truncation(settings.top_k, settings.top_p, settings.epsilon)
        return AncestralSampling(settings.n_best, truncation, settings.seed)
    scoring = _scoring(settings)
    if settings.beam_size == 1:
        return GreedySearch(scoring)
    stopping = _stopping(settings, settings.beam_size // settings.beam_groups)
    if settings.beam_groups == 1:
        return BeamSearch(settings.beam_size, settings.n_best, scoring, stopping)
    return DiverseBeamSearch(settings.beam_size, settings.beam_groups, settings.diversity, settings.n_best, scoring,
                             stopping)


def constrained_for(settings: SearchSettings) -> ConstrainedBeamSearch:
    """What keeps the candidates of a search for translations that hold given phrases.

    Raises:
        SettingsError: the settings ask for a search that cannot hold phrases.
    """
    if settings.selection != "beam" or settings.beam_groups > 1:
        raise SettingsError("Phrases that a translation must hold need a plain beam search: leave out "
                            "selection=sampling and beam_groups, or the phrases and the terminology.")
    return ConstrainedBeamSearch(settings.beam_size, settings.n_best, _scoring(settings),
                                 _stopping(settings, settings.beam_size))


def _stopping(settings: SearchSettings, beam_size: int) -> Stopping:
    enough = math.ceil(settings.patience * beam_size) if settings.stopping == "first" else 0
    return Stopping(exact=settings.stopping != "none", enough=enough)


def _scoring(settings: SearchSettings) -> Scoring:
    normalised = {"gnmt": LengthPenalty, "average": Average}[settings.length_normalization](settings.length_penalty)
    scoring: Scoring = WordReward(settings.word_reward, normalised) if settings.word_reward else normalised
    return CoveragePenalty(settings.coverage_penalty, scoring) if settings.coverage_penalty else scoring


def _processors(settings: SearchSettings) -> list[LogitsProcessor]:
    """Those that change logits come first, in the order in which they act; then those that forbid a few tokens."""
    chain: list[LogitsProcessor] = []
    if settings.temperature != 1.0:
        chain.append(Temperature(settings.temperature))
    if settings.repetition_penalty != 1.0:
        chain.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram:
        chain.append(NoRepeatedNgrams(settings.no_repeat_ngram))
    chain.append(ForbiddenTokens([PAD, BOS]))
    if settings.min_length or settings.min_length_factor:
        chain.append(MinimumLength(settings.min_length, settings.min_length_factor))
    return chain


def _limit(settings: SearchSettings) -> LengthLimit:
    return LengthLimit(settings.max_length_factor, settings.max_length_constant, settings.max_tokens)
