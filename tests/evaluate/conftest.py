"""A small test set: two reference translations, and systems that are copies of them with mistakes."""

from __future__ import annotations

import random

import pytest

from towernmt.evaluate.comparison import System

WORDS = [f"{a}{b}" for a in "bdgkmnr" for b in ("a", "e", "ilo", "ota", "una")]


def disturbed(line: str, rng: random.Random, share: float) -> str:
    """Return the line with a share of its words replaced or removed."""
    return " ".join(word if rng.random() >= share else rng.choice([*WORDS, ""]) for word in line.split())


@pytest.fixture(scope="package")
def references() -> list[list[str]]:
    rng = random.Random(1)
    first = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 14))) for _ in range(60)]
    return [first, [disturbed(line, rng, 0.2) for line in first]]


@pytest.fixture(scope="package")
def systems(references: list[list[str]]) -> list[System]:
    rng = random.Random(2)
    return [System(name, [disturbed(line, rng, share) for line in references[0]])
            for name, share in (("base", 0.4), ("better", 0.15), ("same", 0.38))]
