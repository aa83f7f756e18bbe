#!/usr/bin/env python
"""Feed one queue from a file, a database and S3 in plain TensorFlow, without tensorpack or a trainer.

`tf.train.QueueRunner` can only enqueue what the graph itself reads. `GeneralQueueRunner` adds:

* Each enqueue operation has a feed function (any Python code) and one or more tensors to feed. Values with the wrong
  dtype, shape or number are an error; they are never cut to fit. Lists of different lengths are refused at
  construction.
* With `in_order=True`, the feeders take turns, so the order of the queue does not depend on the timing of threads.
* A feed function ends by raising StopIteration. After all have ended, the queue is closed: the consumer receives the
  remaining elements, then an OutOfRangeError.
* The consumer receives the original error of a feeder, with the name of its source, after all earlier elements. (With a
  QueueRunner, the Coordinator stops at once and the elements in the queue are lost.) An empty source is an error too.
* Without a Coordinator, `raise_error()` distinguishes the end from an error.
* Stopping does not wait for a source that hangs.

The file holds records of a fixed shape, four numbers each. The database and S3 hold sentences of any length, of which
the lengths of the words are fed. Each element has two tensors: the record and the name of its source.

    python examples/general_queue_runner.py [--s3 's3://bucket/pairs.tsv?endpoint_url=http://127.0.0.1:8333']

The object may have any format on the manual's page on sources; the example reads its source sentences. boto3 finds the
credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...).
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from towernmt import FeederError, tf, tf1
from towernmt.dataflow import open_source
from towernmt.input_source import GeneralQueueRunner

SENTENCES = ["good morning", "how are you today", "thank you", "where is the station please"]


def write_sources(folder: Path) -> tuple[Path, Path]:
    """Write a file of five records of four int32 each and a database of the sentences, and return their paths."""
    numbers, database = folder / "numbers.bin", folder / "sentences.db"
    np.arange(20, dtype=np.int32).tofile(numbers)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE sentence (id INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO sentence (text) VALUES (?)", [(text,) for text in SENTENCES])
    connection.close()
    return numbers, database


def read_file(path: Path) -> Iterator[list[Any]]:
    """Yield each record (int32 [4]) with the name of the file."""
    with open(path, "rb") as file:
        while record := file.read(16):
            yield [np.frombuffer(record, np.int32), path.name]


def read_database(path: Path, table: str) -> Iterator[list[Any]]:
    """Yield int32 [words] for each sentence with the name of the table, over a connection of the reading thread."""
    connection = sqlite3.connect(path)
    try:
        last = 0
        while row := connection.execute(f"SELECT id, text FROM {table} WHERE id > ? ORDER BY id LIMIT 1", (last,)
                                        ).fetchone():
            last, text = row
            yield [lengths(text), table]
    finally:
        connection.close()


def read_s3(uri: str) -> Iterator[list[Any]]:
    """Yield int32 [words] for each sentence with "s3"; a network failure is retried from the same byte."""
    source = open_source(uri)
    for _, pair in source.read(source.begin()):
        yield [lengths(pair.source), "s3"]


def lengths(sentence: str) -> np.ndarray:
    """Return the length of each word, int32 [words]."""
    return np.array([len(word) for word in sentence.split()], np.int32)


def build(numbers: Path, database: Path, table: str, s3: str | None) -> list[Any]:
    """Build the queue, register its runner with TensorFlow, and return a dequeued (int32 record, string) element."""
    queue = tf1.FIFOQueue(8, [tf.int32, tf.string])
    fixed = tf1.placeholder(tf.int32, [4], name="fixed")
    ragged = tf1.placeholder(tf.int32, [None], name="ragged")
    origin = tf1.placeholder(tf.string, [], name="origin")
    feeders: list[tuple[str, Any, Callable[[], Any]]] = [
        (numbers.name, fixed, read_file(numbers).__next__),
        (database.name, ragged, read_database(database, table).__next__)]
    if s3 is not None:
        feeders.append((s3.partition("?")[0], ragged, read_s3(s3).__next__))
    tf1.train.add_queue_runner(GeneralQueueRunner(
        queue, enqueue_ops=[queue.enqueue([record, origin]) for _, record, _ in feeders],
        feed_fns=[read for _, _, read in feeders], feed_tensors=[[record, origin] for _, record, _ in feeders],
        in_order=True, names=[name for name, _, _ in feeders]))
    element: list[Any] = queue.dequeue()
    return element


def show(record: np.ndarray, origin: bytes) -> None:
    """Print one element on one line."""
    # A single write per line: another thread writes its log to the same output.
    sys.stdout.write(f"   {origin.decode()} {record}\n")


def with_coordinator(numbers: Path, database: Path, s3: str | None) -> None:
    """Read with a `tf.Session` and a `tf.train.Coordinator`; the end is an OutOfRangeError."""
    with tf.Graph().as_default(), tf1.Session() as sess:
        element = build(numbers, database, "sentence", s3)
        coord = tf1.train.Coordinator()
        threads = tf1.train.start_queue_runners(sess, coord)
        count = 0
        try:
            while not coord.should_stop():
                show(*sess.run(element))
                count += 1
        except tf.errors.OutOfRangeError:
            print(f"   the end, after {count} records")
        coord.request_stop()
        coord.join(threads)  # raises a feeder's error


def with_monitored_session(numbers: Path, database: Path, table: str) -> None:
    """Read with a `MonitoredSession`, which starts and stops the runner and raises its error."""
    with tf.Graph().as_default():
        element = build(numbers, database, table, None)
        with tf1.train.MonitoredSession() as sess:
            while not sess.should_stop():
                show(*sess.run(element))


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed one queue from a file, a database and S3.")
    parser.add_argument("--s3", metavar="URI", help="sentences in S3, for example "
                                                    "'s3://bucket/pairs.tsv?endpoint_url=http://127.0.0.1:8333'")
    s3 = parser.parse_args().s3
    with tempfile.TemporaryDirectory() as folder:
        numbers, database = write_sources(Path(folder))
        if s3 is None:
            print("S3 is not read: pass --s3 s3://bucket/pairs.tsv?endpoint_url=... to include it.")
        print("With a Coordinator:")
        with_coordinator(numbers, database, s3)
        print("With a MonitoredSession:")
        with_monitored_session(numbers, database, "sentence")
        print("With a missing table:")
        try:
            with_monitored_session(numbers, database, "sentences")
        except FeederError as error:
            print("  ", error)


if __name__ == "__main__":
    main()
