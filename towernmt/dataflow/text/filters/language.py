"""The language of a text, by the model that comes with py3langid (Lui and Baldwin, 2012)."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from towernmt.core.errors import SettingsError


def is_other_language(text: str, language: str, confidence: float) -> bool:
    """Whether the text is of another language than `language`, with a probability of at least `confidence`.

    Args:
        language: an ISO 639 code, as `de`.
        confidence: 0 to 1.
    Raises:
        SettingsError: py3langid is not installed, or knows no such language.
    """
    found, probability = _identifier().classify(text)
    return found != language and probability >= confidence


def language_probabilities(text: str) -> dict[str, float]:
    """How probable each language is that can be identified, by ISO 639 codes.

    Raises:
        SettingsError: py3langid is not installed.
    """
    return {str(code): float(probability) for code, probability in _identifier().rank(text)}


def check_language(language: str) -> None:
    """Raises:
        SettingsError: py3langid is not installed, or knows no such language.
    """
    known = _identifier().labels
    if language not in known:
        raise SettingsError(f"language '{language}' is not one that can be identified; these can: "
                            f"{', '.join(sorted(known))}.")


@cache
def _identifier() -> Any:
    try:
        langid = import_module("py3langid.langid")
    except ImportError:
        raise SettingsError("Identifying languages needs the package py3langid: "
                            "pip install 'towernmt[filters]'.") from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
