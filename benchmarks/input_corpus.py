"""Synthetic corpora for `input.py`: the same pairs as text, tables, objects and shards, made fast.

A corpus is a pool of distinct pairs over and over: pair i is pair i modulo the pool. Words are made of syllables and
drawn by Zipf's law, so that SentencePiece has sub-words to find; the target is the source word by word in another
"language", with words left out and added.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.dataflow.prepare.preparation import prepare
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.upload_to_s3 import upload_prepared
from towernmt.dataflow.prepared.manifest import FORMAT, MANIFEST, VERSION, VOCABULARIES
from towernmt.dataflow.prepared.shards import ShardWriter, id_dtype
from towernmt.dataflow.storage.s3_client import client, split_name
from towernmt.dataflow.storage.s3_folder import parse_s3_folder
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.words import WordVocabulary

WORDS = 20_000
Pool = list[tuple[str, str]]


def make_pool(pairs: int, words: float, seed: int = 1) -> Pool:
    """Distinct pairs of text; `words` is the median number of words of a source sentence."""
    random = np.random.default_rng(seed)
    languages = [_words(random, consonants) for consonants in ("bdfgklmnprst", "cfhjlmnrsvwz")]
    lengths = np.clip(np.exp(random.normal(np.log(words), 0.5, pairs)).round(), 2, 80).astype(int)
    chances = 1 / np.arange(3, WORDS + 3) ** 1.05
    drawn = random.choice(WORDS, int(lengths.sum() + 2 * pairs), p=chances / chances.sum())
    shift = random.integers(-1, 3, pairs)
    ends = np.cumsum(lengths)
    pool = []
    for number, (end, length, more) in enumerate(zip(ends.tolist(), lengths.tolist(), shift.tolist(), strict=True)):
        ids = drawn[end - length:end + max(0, more)].tolist()
        source = " ".join([languages[0][i] for i in ids[:length]])
        target = " ".join([languages[1][i] for i in ids[:length + more]])
        pool.append((f"{number} {source}.", f"{number} {target}."))
    return pool


def _words(random: np.random.Generator, consonants: str) -> list[str]:
    syllables = [first + vowel + last for first in consonants for vowel in "aeiou" for last in ("", "n", "r")]
    count = np.minimum(1 + np.arange(WORDS) // 2000, random.integers(1, 5, WORDS))
    return ["".join(random.choice(syllables, n)) for n in count.tolist()]


def write_text(pool: Pool, pairs: int, folder: Path, stem: str, compress: bool = False) -> str:
    """Two parallel files of `pairs` lines; the URI of both."""
    for side, language in enumerate(("src", "tgt")):
        cycle = "".join(f"{pair[side]}\n" for pair in pool).encode()
        rest = "".join(f"{pair[side]}\n" for pair in pool[:pairs % len(pool)]).encode()
        name = folder / f"{stem}.{language}{'.gz' if compress else ''}"
        with gzip.open(name, "wb", compresslevel=1) if compress else open(name, "wb") as file:
            for _ in range(pairs // len(pool)):
                file.write(cycle)
            file.write(rest)
    return f"{folder / stem}.{{src,tgt}}{'.gz' if compress else ''}"


def prepare_text(folder: Path, stem: str, output: Path, vocabulary_size: int, shard_pairs: int) -> None:
    """What `towernmt prepare` makes of `write_text`'s files."""
    prepare(PrepareSettings(source=str(folder / f"{stem}.src"), target=str(folder / f"{stem}.tgt"), output=str(output),
                            vocab_size=vocabulary_size, shared_vocab=True, shard_pairs=shard_pairs))


def make_shards(output: Path, pairs: int, shard_pairs: int, longest: int, vocabulary_size: int = 8000) -> None:
    """Prepared data of random ids, lengths 2 to `longest`: as fast as the disk takes them."""
    output.mkdir()
    random = np.random.default_rng(1)
    words = WordVocabulary([*SPECIAL_PIECES, *(f"w{number}" for number in range(4, vocabulary_size))])
    save_vocabularies(words, words, output / VOCABULARIES)
    dtype = id_dtype(vocabulary_size)
    infos: list[dict[str, Any]] = []
    for first in range(0, pairs, shard_pairs):
        writer = ShardWriter(output / f"shard-{len(infos):05d}.pairs", dtype)
        for begin in range(first, min(first + shard_pairs, pairs), 250_000):
            count = min(250_000, first + shard_pairs - begin, pairs - begin)
            source = random.integers(2, longest + 1, count, np.int32)
            target = np.clip(source + random.integers(-1, 2, count, np.int32), 2, longest)
            ids = [random.integers(4, vocabulary_size, int(lengths.sum()), np.uint16) for lengths in (source, target)]
            writer.append(source, target, *ids)
        infos.append(writer.finish().to_json())
    manifest = {"format": FORMAT, "version": VERSION, "length_ratio": 1.0, "validation_pairs": 0,
                "pairs": pairs, "shards": infos}
    (output / MANIFEST).write_text(json.dumps(manifest))


class Table:
    """A table of pairs in a database, with keys from 1; `close` drops it.

    Args:
        url: SQLAlchemy's, without options of towernmt.
        name: of the table, which must not exist.
    """

    def __init__(self, url: str, name: str, pool: Pool, pairs: int) -> None:
        import sqlalchemy as sql

        self._engine = sql.create_engine(url)
        self._table = sql.Table(name, sql.MetaData(), sql.Column("id", sql.Integer, primary_key=True),
                                sql.Column("source", sql.Text, nullable=False),
                                sql.Column("target", sql.Text, nullable=False))
        self.uri = f"{url}{'&' if '?' in url else '?'}table={name}"
        if sql.inspect(self._engine).has_table(name):
            raise SystemExit(f"The table {name} is there already, and would be dropped at the end: drop it, or "
                             "name another database.")
        rows = [{"id": number, "source": source, "target": target}
                for number, (source, target) in enumerate(pool[:pairs], 1)]
        columns = self._table.c
        with self._engine.begin() as connection:
            self._table.create(connection)
            connection.execute(sql.insert(self._table), rows)
            there = len(rows)
            while there < pairs:    # what is there once more, with larger keys
                copied = sql.select(columns.id + there, columns.source, columns.target).where(
                    columns.id <= pairs - there)
                connection.execute(sql.insert(self._table).from_select(["id", "source", "target"], copied))
                there = min(2 * there, pairs)

    def close(self) -> None:
        """Drop it."""
        self._table.drop(self._engine)
        self._engine.dispose()


class Objects:
    """Files copied to S3; `close` removes them.

    Args:
        uri: `s3://bucket/prefix?endpoint_url=...` of a bucket that exists.
    """

    def __init__(self, uri: str) -> None:
        folder = parse_s3_folder(uri)
        self._client = client(folder.options)
        self._bucket, self._prefix = split_name(folder.name)
        self._name, self._query = folder.name, uri.partition("?")[2]
        self._keys: list[str] = []

    def uri(self, pattern: str) -> str:
        """The URI of objects below the prefix."""
        return f"{self._name}/{pattern}" + (f"?{self._query}" if self._query else "")

    def upload(self, files: Sequence[Path]) -> None:
        """Copy files, under their names."""
        for file in files:
            self._client.upload_file(str(file), self._bucket, self._key(file.name))
            self._keys.append(self._key(file.name))

    def upload_prepared(self, directory: Path, below: str) -> None:
        """Copy prepared data, as `towernmt prepare` does."""
        upload_prepared(directory, parse_s3_folder(self.uri(below)))
        self._keys += [self._key(below, path.relative_to(directory).as_posix())
                       for path in directory.rglob("*") if path.is_file()]

    def close(self) -> None:
        """Remove what was copied."""
        for key in self._keys:
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def _key(self, *names: str) -> str:
        return "/".join(name for name in (self._prefix, *names) if name)


def describe(**fields: Any) -> str:
    """One line of JSON, floats rounded to four places."""
    return json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()})
