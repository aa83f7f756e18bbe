"""A permanent fault ends `towernmt train` with one sentence, status 1, and a checkpoint from which to resume."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.free_ports import free_ports

pytestmark = pytest.mark.processes

SECRETS = ("wr0ng-s3cret", "s3:cr@t/%", "s3%3Acr%40t", "testsecret")


class Faults:
    """The parts of the cases: a corpus, servers that start on request, and a directory."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.server: Callable[[str], Any] = request.getfixturevalue
        self.corpus = request.getfixturevalue("numbered")
        self.place: Path = request.getfixturevalue("tmp_path")
        self.change: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")

    def put(self, content: bytes, key: str = "pairs.tsv", bucket: str = "") -> str:
        """Put an object into S3, and return the name of its bucket."""
        s3 = self.server("s3")
        bucket = bucket or s3.new_bucket()
        s3.client().put_object(Bucket=bucket, Key=key, Body=content)
        return bucket


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Faults:
    return Faults(request)


# From the beginning: a case returns the value of --data, and a pattern for the sentence.

def wrong_password_of_postgresql(faults: Faults) -> tuple[str, str]:
    server = faults.server("postgresql")
    return server.uri(faults.corpus.fill(server), password="wr0ng-s3cret"), "denies access"


def wrong_password_of_mariadb(faults: Faults) -> tuple[str, str]:
    server = faults.server("mariadb")
    return server.uri(faults.corpus.fill(server), password="wr0ng-s3cret"), "denies access"


def wrong_key_of_s3(faults: Faults) -> tuple[str, str]:
    bucket = faults.put(faults.corpus.tsv())
    faults.change.setenv("AWS_SECRET_ACCESS_KEY", "wr0ng-s3cret")
    return f"s3://{bucket}/pairs.tsv?endpoint_url={faults.server('s3').url}", "does not accept the credentials"


def no_such_table(faults: Faults) -> tuple[str, str]:
    server = faults.server("postgresql")
    faults.corpus.fill(server)
    return server.uri("table=numberd"), "table 'numberd' does not exist. Did you mean"


def no_such_column(faults: Faults) -> tuple[str, str]:
    base = faults.corpus.sqlite(faults.place / "base.db", faults.corpus.pairs)
    return f"{base}&target=targt", "has no column 'targt'. Did you mean"


def no_such_database_file(faults: Faults) -> tuple[str, str]:
    return f"sqlite:///{faults.place}/base.db?table=pairs", "base.db is missing"


def no_such_object(faults: Faults) -> tuple[str, str]:
    bucket = faults.put(faults.corpus.tsv())
    return f"s3://{bucket}/pair.tsv?endpoint_url={faults.server('s3').url}", "the object does not exist"


def no_such_bucket(faults: Faults) -> tuple[str, str]:
    return f"s3://nowhere/pairs.tsv?endpoint_url={faults.server('s3').url}", "bucket nowhere does not exist"


def no_such_file(faults: Faults) -> tuple[str, str]:
    return str(faults.place / "pairs.tsv"), "the file does not exist"


def no_server(faults: Faults) -> tuple[str, str]:
    return faults.server("postgresql").uri("table=numbered&patience=0.3", port=free_ports(1)[0]), "not reachable for"


@pytest.mark.parametrize("case", [
    wrong_password_of_postgresql, wrong_password_of_mariadb, wrong_key_of_s3, no_such_table, no_such_column,
    no_such_database_file, no_such_object, no_such_bucket, no_such_file, no_server])
def test_what_is_wrong_from_the_beginning_is_one_sentence(case: Any, faults: Faults, train: Any) -> None:
    data, sentence = case(faults)
    ended = train(data)
    assert sentence in ended.the_error()
    assert not any(secret in ended.errors for secret in SECRETS)
    assert ended.steps in ([], [0])


# Within an epoch: a case returns a function that breaks the data after step 10, and one that repairs them.

class Break(NamedTuple):
    data: str
    sentence: str
    damage: Callable[[], object]
    mend: Callable[[], object]
    settings: tuple[str, ...] = ()


def a_database_that_stays_away(faults: Faults) -> Break:
    server = faults.server("postgresql")
    return Break(server.uri(faults.corpus.fill(server) + "&patience=0.5"), "not reachable for", server.stop,
                 server.start)


def a_table_that_is_dropped(faults: Faults) -> Break:
    server = faults.server("mariadb")
    return Break(server.uri(faults.corpus.fill(server)), "table 'numbered' does not exist",
                 lambda: server.execute("ALTER TABLE numbered RENAME TO away"),
                 lambda: server.execute("ALTER TABLE away RENAME TO numbered"))


def a_column_that_is_renamed(faults: Faults) -> Break:
    server = faults.server("postgresql")
    return Break(server.uri(faults.corpus.fill(server)), "has no column 'target'",
                 lambda: server.execute("ALTER TABLE numbered RENAME target TO translation"),
                 lambda: server.execute("ALTER TABLE numbered RENAME translation TO target"))


def an_s3_that_stays_away(faults: Faults) -> Break:
    from tests.servers.fault_proxy import SLOW_DOWN

    proxy, bucket = faults.server("fault_proxy"), faults.put(faults.corpus.tsv())
    return Break(f"s3://{bucket}/pairs.tsv?endpoint_url={proxy.url}&retries=2&chunk_bytes=500", "not reachable in",
                 lambda: proxy.script.extend([SLOW_DOWN] * 10_000), lambda: proxy.script.clear())


def an_object_that_changes(faults: Faults) -> Break:
    content = faults.corpus.tsv()
    bucket = faults.put(content)
    return Break(f"s3://{bucket}/pairs.tsv?endpoint_url={faults.server('s3').url}&chunk_bytes=500",
                 "the object has changed since reading began", lambda: faults.put(content[::-1], bucket=bucket),
                 lambda: faults.put(content, bucket=bucket))


def an_object_that_is_deleted(faults: Faults) -> Break:
    s3 = faults.server("s3")
    bucket = faults.put(faults.corpus.tsv(faults.corpus.pairs[:250]), "part-0.tsv")
    rest = faults.corpus.tsv(faults.corpus.pairs[250:])
    faults.put(rest, "part-1.tsv", bucket)
    return Break(f"s3://{bucket}/part-?.tsv?endpoint_url={s3.url}", "a file was added or removed",
                 lambda: s3.client().delete_object(Bucket=bucket, Key="part-1.tsv"),
                 lambda: faults.put(rest, "part-1.tsv", bucket))


def a_file_that_is_gone(faults: Faults) -> Break:
    files = [faults.place / f"part-{number}.tsv" for number in (0, 1)]
    files[0].write_bytes(faults.corpus.tsv(faults.corpus.pairs[:250]))
    files[1].write_bytes(faults.corpus.tsv(faults.corpus.pairs[250:]))
    away = faults.place / "away"
    return Break(f"{faults.place}/part-?.tsv", "a file was added or removed", lambda: files[1].rename(away),
                 lambda: away.rename(files[1]))


def a_gzip_file_that_rotted(faults: Faults) -> Break:
    """One bit of the checksum of the sixth of ten streams is wrong from the start; the file does not change later."""
    parts = [gzip.compress(faults.corpus.tsv(faults.corpus.pairs[n:n + 30])) for n in range(0, 300, 30)]
    file, place = faults.place / "pairs.tsv.gz", sum(map(len, parts[:6])) - 8
    file.write_bytes(b"".join(parts))
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)

    def flip() -> None:
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=times)

    flip()
    return Break(str(file), "the gzip data are damaged", lambda: None, flip)


def a_full_disk_under_the_cache(faults: Faults) -> Break:
    """Every further allocation is refused, as by a full disk; the tests of the cache use a real one."""
    from towernmt.dataflow.preparation.s3_upload import upload_prepared
    from towernmt.dataflow.storage.s3_storage import parse_s3_folder

    s3, reserve = faults.server("s3"), os.posix_fallocate
    data = f"s3://{s3.new_bucket()}/prepared?endpoint_url={s3.url}"
    local = faults.server("prepared")(faults.place / "prepared")
    upload_prepared(local, parse_s3_folder(data))
    largest = max(shard.stat().st_size for shard in local.glob("shard-*"))
    faults.change.setenv("TOWERNMT_CACHE", str(faults.place / "cache"))
    faults.change.setenv("TOWERNMT_CACHE_GB", str(largest * 1.5e-9))      # one shard, so all are fetched again

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return Break(data, "the disk is full", lambda: faults.change.setattr(os, "posix_fallocate", full),
                 lambda: faults.change.setattr(os, "posix_fallocate", reserve))


def a_shard_that_is_cut_off(faults: Faults) -> Break:
    local = faults.server("prepared")(faults.place / "prepared")
    shards = {shard: shard.read_bytes() for shard in local.glob("shard-*")}

    def write(share: float) -> None:
        for shard, content in shards.items():
            new = shard.with_suffix(".new")
            new.write_bytes(content[:int(len(content) * share)])
            new.replace(shard)

    return Break(str(local), "the shard is truncated", lambda: write(0.5), lambda: write(1))


@pytest.mark.parametrize("case", [
    a_database_that_stays_away, a_table_that_is_dropped, an_s3_that_stays_away, a_file_that_is_gone,
    a_gzip_file_that_rotted, a_full_disk_under_the_cache, *(pytest.param(case, marks=pytest.mark.slow) for case in (
        a_column_that_is_renamed, an_object_that_changes, an_object_that_is_deleted, a_shard_that_is_cut_off))])
def test_what_breaks_in_mid_epoch_ends_training_with_a_checkpoint_from_which_it_goes_on(
        case: Any, faults: Faults, train: Any) -> None:
    data, sentence, damage, mend, settings = case(faults)
    is_prepared = "prepared" in data
    ended = train(data, "train.epochs=2", *settings, at={10: damage}, prepared=is_prepared)
    assert sentence in ended.the_error()
    assert not any(secret in ended.errors for secret in SECRETS)
    assert ended.steps[-1] >= 10 and set(ended.counts[0]) == {0, 1}     # within the first epoch
    mend()
    again = train(data, "train.epochs=2", *settings, prepared=is_prepared)
    assert again.status == 0, again.errors
    faults.corpus.assert_counted_once(again.counts, epochs=2)
