"""Exact and near duplicates of pairs, found by hashes.

Exact duplicates have the same text on both sides. Near duplicates share most of their two-word sequences: their
MinHash signatures (Broder, 1997) agree in one of several bands (Leskovec et al., Mining of Massive Datasets, 3.4).
The first of such pairs, in the order of the corpus, is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import SettingsError

DUPLICATES = ("keep", "exact", "near")
"""What happens to duplicates: all stay; exact ones are left out; near ones are left out, too."""
DUPLICATE_REASONS = {
    "duplicate": "the same pair came before",
    "near duplicate": "nearly the same pair came before",
}
_BANDS, _ROWS = 6, 10  # half of the pairs of Jaccard similarity 0.8 are found, 92 % of 0.9, 0.6 % of 0.5
KEYS = {"keep": 0, "exact": 1, "near": 1 + _BANDS}
"""Keys of a pair for each of DUPLICATES."""
_SEED = 1
_WORD = re.compile(r"\w+")


def duplicate_keys(pairs: Sequence[tuple[str, str]], kind: str) -> NDArray[np.uint64]:
    """uint64 `[pairs, keys]`: first the key of the whole pair, then those of its bands.

    Args:
        pairs: cleaned text.
        kind: "exact" (one key a pair) or "near".
    Raises:
        SettingsError: the package for near duplicates is missing.
    """
    rows = [[_hash(f"{source}\n{target}".encode()), *(_band_keys(source, target) if kind == "near" else ())]
            for source, target in pairs]
    return np.array(rows, np.uint64).reshape(len(rows), KEYS[kind])


def check_near() -> None:
    """Raises:
        SettingsError: the package for near duplicates is missing.
    """
    _permutations()


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def _band_keys(source: str, target: str) -> list[int]:
    shingles = [shingle for side, text in ((b"s", source), (b"t", target)) for shingle in _shingles(side, text)]
    signature = _permutations().copy()
    signature.update_batch(shingles)
    values = signature.hashvalues
    return [_hash(b"%d" % band + values[band * _ROWS:(band + 1) * _ROWS].tobytes()) for band in range(_BANDS)]


def _shingles(side: bytes, text: str) -> list[bytes]:
    words = ["", *_WORD.findall(text.casefold()), ""]
    return [side + f"{first} {second}".encode() for first, second in zip(words, words[1:], strict=False)]


@cache
def _permutations() -> Any:
    try:
        minhash = import_module("datasketch").MinHash
    except ImportError:
        raise SettingsError("Finding near duplicates needs the package datasketch: "
                            "pip install 'towernmt[filters]'.") from None
    return minhash(num_perm=_BANDS * _ROWS, seed=_SEED, scheme="affine32")


def came_before(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """bool `[keys]`: whether each key came before in the same array."""
    _, first = np.unique(keys, return_index=True)   # the first place of each, as it sorts in a stable way
    seen = np.ones(len(keys), bool)
    seen[first] = False
    return seen
