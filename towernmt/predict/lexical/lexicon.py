"""A lexical table: which words of the target are likely translations of a word of the source, as a file.

The file is NumPy's `.npz`: rows of probabilities (compressed sparse rows) over the pieces of two vocabularies, how
frequent each target piece is, and which vocabularies these are.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import replacing
from towernmt.dataflow.vocabulary.base import PAD, SPECIAL_PIECES, Vocabulary

_FIELDS = ("starts", "targets", "probabilities", "frequency", "vocabularies")


class Entries(NamedTuple):
    """Probabilities of word pairs, in any order; no pair comes twice.

    Attributes:
        source, target: ids `[entries]`.
        probability: `[entries]`, p(target | source).
        frequency: `[target vocabulary]`, how often each target piece occurs, in any unit.
    """

    source: NDArray[np.integer]
    target: NDArray[np.integer]
    probability: NDArray[np.floating]
    frequency: NDArray[Any]


@dataclass(frozen=True)
class Lexicon:
    """p(target piece | source piece), sparse.

    Attributes:
        starts: int64 `[source vocabulary + 1]`: the translations of piece s are entries `starts[s]` to `starts[s + 1]`.
        targets: int32 `[entries]`, ids; of each piece the likeliest first.
        probabilities: float32 `[entries]`.
        frequency: float64 `[target vocabulary]`, how often each target piece occurs, in any unit.
        vocabularies: the fingerprint of both vocabularies.
    """

    starts: NDArray[np.int64]
    targets: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    frequency: NDArray[np.float64]
    vocabularies: str

    @classmethod
    def of(cls, entries: Entries, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, keep: int = 200,
           threshold: float = 1e-4) -> Lexicon:
        """The table of some entries; special pieces have no translations and are none.

        A piece that is written the same in both languages, as names and numbers are, may always become itself.

        Args:
            keep: translations of a piece, at most.
            threshold: what is less probable is left out.
        """
        source, target, probability, frequency = _with_copies(entries, source_vocabulary, target_vocabulary, threshold)
        likely = (probability >= threshold) & (source >= len(SPECIAL_PIECES)) & (target >= len(SPECIAL_PIECES))
        source, target, probability = source[likely], target[likely], probability[likely]
        order = np.lexsort((target, -probability, source))
        source, target, probability = source[order], target[order], probability[order]
        size = source_vocabulary.size
        first = np.searchsorted(source, np.arange(size))
        kept = np.arange(len(source)) - first[source] < keep
        starts = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(source[kept], minlength=size), out=starts[1:])
        return cls(starts, target[kept].astype(np.int32), probability[kept].astype(np.float32),
                   np.asarray(frequency, np.float64), fingerprint_of(source_vocabulary, target_vocabulary))

    @property
    def source_size(self) -> int:
        """Pieces of the source vocabulary."""
        return len(self.starts) - 1

    @property
    def target_size(self) -> int:
        """Pieces of the target vocabulary."""
        return len(self.frequency)

    def best(self, count: int) -> NDArray[np.int32]:
        """The likeliest translations of every source piece: int32 `[source vocabulary, count or less]`, PAD behind."""
        number = np.diff(self.starts)
        width = int(min(count, number.max(initial=0)))
        place = np.arange(width)
        there = place < number[:, None]
        table = np.full([self.source_size, width], PAD, np.int32)
        table[there] = self.targets[(self.starts[:-1, None] + place)[there]]
        return table

    def frequent(self, count: int) -> NDArray[np.int32]:
        """The most frequent target pieces, int32 `[count or less]`, without the special ones."""
        order = np.argsort(-self.frequency[len(SPECIAL_PIECES):], kind="stable") + len(SPECIAL_PIECES)
        return order[:count][self.frequency[order[:count]] > 0].astype(np.int32)

    def translations(self, source: int) -> list[tuple[int, float]]:
        """The translations of a source piece with their probabilities, the likeliest first."""
        row = slice(self.starts[source], self.starts[source + 1])
        return list(zip(self.targets[row].tolist(), self.probabilities[row].tolist(), strict=True))

    def save(self, path: str | Path) -> None:
        """Write the file, which replaces what is there."""
        with replacing(Path(path)) as file:
            np.savez_compressed(file, allow_pickle=False, **{name: np.asarray(getattr(self, name)) for name in _FIELDS})

    @classmethod
    def load(cls, path: str | Path) -> Lexicon:
        """Read a file.

        Raises:
            DataError: there is no such file, or it is none of `towernmt lexicon`.
        """
        try:
            stat = Path(path).stat()
            return _load(str(path), stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file: make one with `towernmt lexicon`.") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error

    def check_vocabularies(self, source: Vocabulary, target: Vocabulary, name: str) -> None:
        """Refuse a table of other vocabularies.

        Raises:
            SettingsError: it is one; `name` is what the message calls the file.
        """
        if self.vocabularies != fingerprint_of(source, target):
            raise SettingsError(f"{name} was made with other vocabularies than the model has: make it again, with "
                                "`towernmt lexicon --model RUN`.")


def _with_copies(entries: Entries, source: Vocabulary, target: Vocabulary, probability: float) -> Entries:
    """With each piece that both vocabularies have as a translation of itself, where it is none yet."""
    ids = np.arange(len(SPECIAL_PIECES), source.size)
    same = np.array([target.piece_to_id(source.id_to_piece(id)) for id in ids.tolist()], np.int64)
    ids, same = ids[same != target.unk_id], same[same != target.unk_id]
    known = entries.source.astype(np.int64) * target.size + entries.target
    new = ~np.isin(ids * target.size + same, known)
    return entries._replace(source=np.concatenate([entries.source, ids[new]]),
                            target=np.concatenate([entries.target, same[new]]),
                            probability=np.concatenate([entries.probability, np.full(new.sum(), probability)]))


@lru_cache(maxsize=4)
def _load(path: str, modified: int, size: int) -> Lexicon:
    """The file as it was at that time."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            starts, targets, probabilities, frequency, vocabularies = (arrays[name] for name in _FIELDS)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        raise DataError(f"{path}: this is no lexical table, or it is damaged: make one with `towernmt lexicon`."
                        ) from error
    return Lexicon(starts, targets, probabilities, frequency, str(vocabularies))


def fingerprint_of(source: Vocabulary, target: Vocabulary) -> str:
    """32 hexadecimal digits that say which vocabularies these are."""
    digest = hashlib.sha256()
    for vocabulary in (source, target):
        for suffix, content in sorted(vocabulary.files().items()):
            digest.update(suffix.encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()[:32]
