"""Checks of the text of an adaptation: its direction, whether its lines are translations, and an unseen test set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.clean_text import with_tag
from towernmt.dataflow.text.language_codes import parse_direction, two_letter_code
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.jobs.corrections import MIN_CORRECTIONS, Correction
from towernmt.predict.scorer import Scorer
from towernmt.run.started_run import StartingModel

MIN_TEST_SENTENCES = 100
"""Minimum number of sentences of the old test set; on fewer, a loss of several BLEU points may not be significant."""
MAX_CHECKED_PAIRS = 100
"""Maximum number of pairs of a text that the model judges."""
MIN_GAIN = 2.0
"""Least gain, in standard errors, of translations over the translations of other lines."""


def check_direction(corrections: str, direction: str, languages: tuple[str, str] | None) -> None:
    """Refuse corrections of other languages than those of the model, or of the opposite direction.

    Args:
        corrections: name of the file of corrections, for messages.
        direction: its direction, or another name of the model that was corrected, which is accepted.
        languages: codes of the source and target language of the model; None if they are unknown.

    Raises:
        DataError: the languages differ, apart from regions and scripts.
    """
    try:
        corrected = parse_direction(direction)
    except SettingsError:
        return
    if languages and [*map(two_letter_code, corrected)] != [*map(two_letter_code, languages)]:
        raise DataError(f"{corrections}: the corrections are of the direction {direction}, but the languages of the "
                        f"model are {'-'.join(languages)}: pass corrections of this direction, or --languages "
                        f"{direction} if the model translates {direction}.")


def check_pairs(model: StartingModel, source_prefix: str, texts: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Refuse texts of the opposite direction, and texts whose lines are no translations of each other.

    The log-probabilities of targets by the model are compared with those of sources by targets, unless sources have
    factors, and with those of the same targets after the sources of the next lines.

    Args:
        model: the model to adapt.
        source_prefix: text before each source, such as the tag of the target language; "" for none.
        texts: by the name for messages, pairs of source and target; the first `MAX_CHECKED_PAIRS` are judged, and of
            fewer than 20 only the direction.

    Raises:
        DataError: a text is empty, less probable than in the opposite direction, or hardly more than after other
            sources.
    """
    scorer = Scorer(model.run, model.checkpoint, device="cpu")

    def score_targets(sources: Sequence[str], targets: Sequence[str]) -> NDArray[np.float64]:
        """Return the log-probability and the number of tokens of each target."""
        scores = scorer.score([*zip(sources, targets, strict=True)])
        return np.array([(score.log_prob, score.tokens) for score in scores])

    def mean_log_prob(scored: NDArray[np.float64]) -> float:
        log_probability, tokens = scored.sum(axis=0)
        return float(log_probability / tokens)

    for name, text in texts.items():
        if not text:
            raise DataError(f"{name} has no pair with text on both sides: pass sources with their translations.")
        sources, targets = ([pair[side] for pair in text[:MAX_CHECKED_PAIRS]] for side in (0, 1))
        prefixed = [with_tag(source_prefix, source) for source in sources]
        scored = score_targets(prefixed, targets)
        forward, backward = mean_log_prob(scored), -math.inf
        if scorer.source_vocabulary.streams == 1:   # targets have no source factors, so they cannot be sources
            backward = mean_log_prob(score_targets(targets, sources))
        if backward > forward:
            raise DataError(f"{name}: {model.name} translates in the opposite direction: by its probabilities, the "
                            f"sources are translations of the targets ({backward:.2f} and {forward:.2f} nats per "
                            "token): pass text of this direction, the model of the other one, or --no-text-check if "
                            "the direction is right.")
        if len(targets) < MIN_CORRECTIONS["train"]:       # too few for a standard error
            continue
        shuffled = score_targets([*prefixed[1:], prefixed[0]], targets)
        gains = (scored[:, 0] - shuffled[:, 0]) / scored[:, 1]
        if gains.mean() <= MIN_GAIN * gains.std() / len(gains) ** 0.5:
            raise DataError(f"{name}: by the probabilities of {model.name}, the targets are no translations of the "
                            f"sources ({forward:.2f} nats per token, and {mean_log_prob(shuffled):.2f} with other "
                            "sources): pass sources with their translations, or --no-text-check if they are.")


def unseen_sentences(test: ValidationSet, splits: Mapping[str, Sequence[Correction]], files: tuple[str, str]
                     ) -> ValidationSet:
    """Return the sentences of the old test set that are not sources of corrections for training or validation.

    An adapted model has learned the translations of these sources, so they would hide what it has forgotten.

    Args:
        test: the old test set.
        splits: the corrections; see `split_corrections`.
        files: the files of the test set, for the message.

    Raises:
        DataError: fewer than `MIN_TEST_SENTENCES` of them have text on both sides.
    """
    seen = {correction.source for name in ("train", "valid") for correction in splits[name]}
    rows = [row for row in zip(test.source, *test.references, strict=True) if row[0] not in seen]
    usable, left_out = sum(map(all, rows)), len(test.source) - len(rows)
    if usable < MIN_TEST_SENTENCES:
        among = f", without the {left_out} that are sources of corrections" if left_out else ""
        raise DataError(f"--test {' '.join(files)} has {usable} sentences with a translation{among}: pass at least "
                        f"{MIN_TEST_SENTENCES} of the old domain, because on fewer, even a loss of several BLEU points "
                        "may not be significant.")
    source, *references = map(list, zip(*rows, strict=True))
    return ValidationSet(test.name, source, references)
