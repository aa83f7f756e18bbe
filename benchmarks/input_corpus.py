"""Generate synthetic corpora for `input.py` quickly: the same pairs as text, tables, objects and shards.

A corpus repeats a pool of distinct pairs. Words are made of syllables, so that SentencePiece finds subwords, and follow
Zipf's law. The target translates the source word by word into another "language" and drops or adds some words.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.dataflow.preparation.corpus_statistics import LENGTHS, PairLengths
from towernmt.dataflow.preparation.manifest import (
    MANIFEST,
    VERSION,
    VOCABULARIES,
    Manifest,
    VocabularyInfo,
    VocabularyInfos,
    describe_files,
    prepared_fingerprint,
    vocabulary_files,
)
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.s3_upload import upload_prepared
from towernmt.dataflow.preparation.shards import ShardInfo, write_shard
from towernmt.dataflow.storage.s3_client import client, split_name
from towernmt.dataflow.storage.s3_storage import parse_s3_folder
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

WORDS = 20_000
Pool = list[tuple[str, str]]


def make_pool(pairs: int, words: float, seed: int = 1) -> Pool:
    """Return distinct pairs of text; `words` is the median number of words in a source sentence."""
    random = np.random.default_rng(seed)
    languages = [_words(random, consonants) for consonants in ("bdfgklmnprst", "cfhjlmnrsvwz")]
    lengths = np.clip(np.exp(random.normal(np.log(words), 0.5, pairs)).round(), 2, 80).astype(int)
    chances = 1 / np.arange(3, WORDS + 3) ** 1.05
    word_ids = random.choice(WORDS, int(lengths.sum() + 2 * pairs), p=chances / chances.sum())
    shift = random.integers(-1, 3, pairs)
    ends = np.cumsum(lengths)
    pool = []
    for number, (end, length, extra) in enumerate(zip(ends.tolist(), lengths.tolist(), shift.tolist(), strict=True)):
        ids = word_ids[end - length:end + max(0, extra)].tolist()
        source = " ".join([languages[0][i] for i in ids[:length]])
        target = " ".join([languages[1][i] for i in ids[:length + extra]])
        pool.append((f"{number} {source}.", f"{number} {target}."))
    return pool


def _words(random: np.random.Generator, consonants: str) -> list[str]:
    syllables = [first + vowel + last for first in consonants for vowel in "aeiou" for last in ("", "n", "r")]
    count = np.minimum(1 + np.arange(WORDS) // 2000, random.integers(1, 5, WORDS))
    return ["".join(random.choice(syllables, n)) for n in count.tolist()]


def write_text(pool: Pool, pairs: int, folder: Path, stem: str, compress: bool = False) -> str:
    """Write two parallel files of `pairs` lines and return the URI of both."""
    for side, language in enumerate(("src", "tgt")):
        cycle = "".join(f"{pair[side]}\n" for pair in pool).encode()
        partial_cycle = "".join(f"{pair[side]}\n" for pair in pool[:pairs % len(pool)]).encode()
        name = folder / f"{stem}.{language}{'.gz' if compress else ''}"
        with gzip.open(name, "wb", compresslevel=1) if compress else open(name, "wb") as file:
            for _ in range(pairs // len(pool)):
                file.write(cycle)
            file.write(partial_cycle)
    return f"{folder / stem}.{{src,tgt}}{'.gz' if compress else ''}"


def prepare_text(folder: Path, stem: str, output: Path, vocabulary_size: int, shard_pairs: int) -> None:
    """Prepare the files of `write_text`, as `towernmt prepare` does."""
    prepare(PrepareSettings(source=str(folder / f"{stem}.src"), target=str(folder / f"{stem}.tgt"), output=str(output),
                            vocab_size=vocabulary_size, shared_vocab=True, shard_pairs=shard_pairs))


def make_shards(output: Path, pairs: int, shard_pairs: int, longest: int, vocabulary_size: int = 8000) -> None:
    """Write prepared data of random ids with lengths 2 to `longest`, at the speed of the disk."""
    output.mkdir()
    random = np.random.default_rng(1)
    words = WordVocabulary([*SPECIAL_PIECES, *(f"w{number}" for number in range(4, vocabulary_size))])
    save_vocabularies(words, words, output / VOCABULARIES)
    infos: list[ShardInfo] = []
    histogram = np.zeros((longest + 1, longest + 1), np.int64)
    for first in range(0, pairs, shard_pairs):
        count, path = min(shard_pairs, pairs - first), output / f"shard-{len(infos):05d}.pairs"
        source = random.integers(2, longest + 1, count, np.int32)
        target = np.clip(source + random.integers(-1, 2, count, np.int32), 2, longest)
        ids = [random.integers(4, vocabulary_size, int(lengths.sum()), np.uint16) for lengths in (source, target)]
        with open(path, "wb") as file:
            infos.append(write_shard(file, ShardInfo(path.name, count, len(ids[0]), len(ids[1]), 2, 0),
                                     [array.tobytes() for array in (source, target, *ids)]))
        np.add.at(histogram, (source, target), 1)
    source, target = np.nonzero(histogram)
    (output / LENGTHS).write_text(PairLengths(source, target, histogram[source, target]).to_text())
    info = VocabularyInfo(words.kind, words.size)
    manifest = Manifest(
        "towernmt-prepared", VERSION, settings={}, inputs={}, vocabularies=VocabularyInfos(info, info, []), pairs=pairs,
        length_ratio=1.0, validation_sets=[], shards=infos,
        files=describe_files(output, [*vocabulary_files(words, words), LENGTHS]),
        fingerprint=prepared_fingerprint(infos, words, words))
    (output / MANIFEST).write_text(manifest.to_text())


class Table:
    """A table of pairs in a database, with keys from 1; `close` drops it.

    Args:
        url: SQLAlchemy URL, without options of towernmt.
        name: name of the table, which must not exist yet.
        pool: distinct pairs, which are repeated.
        pairs: number of rows.
    """

    def __init__(self, url: str, name: str, pool: Pool, pairs: int) -> None:
        import sqlalchemy as sql

        self._engine = sql.create_engine(url)
        self._table = sql.Table(name, sql.MetaData(), sql.Column("id", sql.Integer, primary_key=True),
                                sql.Column("source", sql.Text, nullable=False),
                                sql.Column("target", sql.Text, nullable=False))
        self.uri = f"{url}{'&' if '?' in url else '?'}table={name}"
        if sql.inspect(self._engine).has_table(name):
            raise SystemExit(f"The table {name} already exists, and this benchmark would drop it at the end: drop it "
                             "yourself, or name another database.")
        rows = [{"id": number, "source": source, "target": target}
                for number, (source, target) in enumerate(pool[:pairs], 1)]
        columns = self._table.c
        with self._engine.begin() as connection:
            self._table.create(connection)
            connection.execute(sql.insert(self._table), rows)
            row_count = len(rows)
            while row_count < pairs:    # copy all rows so far with larger keys
                copied = sql.select(columns.id + row_count, columns.source, columns.target).where(
                    columns.id <= pairs - row_count)
                connection.execute(sql.insert(self._table).from_select(["id", "source", "target"], copied))
                row_count = min(2 * row_count, pairs)

    def close(self) -> None:
        """Drop the table."""
        self._table.drop(self._engine)
        self._engine.dispose()


class Objects:
    """Files copied to S3, which `close` removes.

    Args:
        uri: `s3://bucket/prefix?endpoint_url=...`; the bucket must exist.
    """

    def __init__(self, uri: str) -> None:
        folder = parse_s3_folder(uri)
        self._client = client(folder.options)
        self._bucket, self._prefix = split_name(folder.name)
        self._name, self._query = folder.name, uri.partition("?")[2]
        self._keys: list[str] = []

    def uri(self, pattern: str) -> str:
        """Return the URI of the objects that match `pattern` below the prefix."""
        return f"{self._name}/{pattern}" + (f"?{self._query}" if self._query else "")

    def upload(self, files: Sequence[Path]) -> None:
        """Copy files to objects of the same names."""
        for file in files:
            self._client.upload_file(str(file), self._bucket, self._key(file.name))
            self._keys.append(self._key(file.name))

    def upload_prepared(self, directory: Path, below: str) -> None:
        """Copy prepared data, as `towernmt prepare` does."""
        upload_prepared(directory, parse_s3_folder(self.uri(below)))
        self._keys += [self._key(below, path.relative_to(directory).as_posix())
                       for path in directory.rglob("*") if path.is_file()]

    def close(self) -> None:
        """Remove the copied objects."""
        for key in self._keys:
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def _key(self, *names: str) -> str:
        return "/".join(name for name in (self._prefix, *names) if name)


def describe(**fields: Any) -> str:
    """Return one line of JSON with floats rounded to four decimals."""
    return json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()})
