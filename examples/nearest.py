"""A baseline for BLEU: translate by copying the target of the most similar training pair."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_WORD = re.compile(r"\w+|[^\w\s]")


def nearest_translations(train_source: Sequence[str], train_target: Sequence[str],
                         source: Sequence[str]) -> list[str]:
    """Return the target of the training pair with the most similar source (cosine) for each source line.

    Sentences are bags of lower-cased words and punctuation marks, weighted by inverse document frequency. Ties go to
    the first pair. A model that has learnt anything scores well above this baseline.
    """
    documents = [Counter(_WORD.findall(line.lower())) for line in train_source]
    frequency = Counter(word for document in documents for word in document)
    weight = {word: math.log(len(documents) / count) + 0.1 for word, count in frequency.items()}
    postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for index, document in enumerate(documents):
        norm = math.sqrt(sum((count * weight[word]) ** 2 for word, count in document.items())) or 1.0
        for word, count in document.items():
            postings[word].append((index, count * weight[word] / norm))
    return [train_target[_nearest_index(line, weight, postings)] for line in source]


def _nearest_index(line: str, weight: dict[str, float], postings: dict[str, list[tuple[int, float]]]) -> int:
    similarity: dict[int, float] = defaultdict(float)
    for word, count in Counter(_WORD.findall(line.lower())).items():
        for index, weighted_count in postings.get(word, ()):
            similarity[index] += count * weight[word] * weighted_count
    return max(similarity, key=lambda index: (similarity[index], -index), default=0)
