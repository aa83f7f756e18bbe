"""Exact and near duplicates of pairs, found by hashes in a table on disk, so that memory stays flat.

Exact duplicates have the same text on both sides. Near duplicates share most of their two-word sequences: their
MinHash signatures (Broder, 1997) agree in one of several bands (Leskovec et al., Mining of Massive Datasets, 3.4).
The first of such pairs is kept. The workers compute the keys. One table looks them up, in the order of the corpus.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError

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


class DuplicateTable:
    """The keys of all pairs so far: a hash table with open addressing, in a temporary file of 16 to 32 bytes a key.

    The file is mapped, so the system can take its memory back. It is gone with the process.

    Args:
        keys: the most there will be.
    Raises:
        DataError: there is no room for it in the temporary directory.
    """

    def __init__(self, keys: int) -> None:
        slots = 1 << max(10, (2 * keys - 1).bit_length())
        self._mask = np.uint64(slots - 1)
        try:
            with tempfile.TemporaryFile() as file:
                os.truncate(file.fileno(), slots * 8)
                if hasattr(os, "posix_fallocate"):  # a full disk is then an error here, not a signal later
                    os.posix_fallocate(file.fileno(), 0, slots * 8)
                self._slots: NDArray[np.uint64] = np.memmap(file, np.uint64, "r+", shape=(slots,))
        except OSError as error:
            raise DataError(f"{tempfile.gettempdir()}: no room for the {slots * 8 / 1e6:,.0f} MB that finding "
                            f"duplicates takes ({error.strerror}). Free some, or set TMPDIR to another "
                            "directory.") from error

    def seen(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool, the shape of `keys`: whether each came before, in an earlier call or in this one. All are added."""
        flat = np.where(keys.ravel() == 0, np.uint64(1), keys.ravel())  # 0 is a free slot
        unique, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        known = self._known(unique)
        return (known[inverse] | (np.arange(len(flat)) != first[inverse])).reshape(keys.shape)

    def _known(self, unique: NDArray[np.uint64]) -> NDArray[np.bool_]:
        known = np.zeros(len(unique), bool)
        open_, places = np.arange(len(unique)), unique & self._mask
        while len(open_):
            there = self._slots[places]
            known[open_[there == unique[open_]]] = True
            free = there == 0
            # Several keys may want one free slot: the last one written gets it, the others look further.
            self._slots[places[free]] = unique[open_[free]]
            left = (self._slots[places] != unique[open_])
            open_, places = open_[left], (places[left] + np.uint64(1)) & self._mask
        return known
