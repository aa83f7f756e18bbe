#!/usr/bin/env python
"""One queue, fed from a file and from a database, in plain TensorFlow: no tensorpack, no trainer.

`tf.train.QueueRunner` can only enqueue what the graph itself reads. `GeneralQueueRunner` adds to it:

* each enqueue operation has a feed function, any Python, and the tensor (or tensors) that it feeds;
* with `in_order=True` the queue's order is fixed, whatever the thread timing;
* an error reaches the dequeuing side as itself, with its source's name, after all that came before it;
  an empty source is an error; a stop does not wait for a source that hangs.

Here the file holds records of a fixed shape, four numbers each, and the database ragged ones, sentences
of any length. Run it: python examples/general_queue_runner.py
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.errors import FeederError
from towernmt.input_source import GeneralQueueRunner
from towernmt.tf_compat import tf, tf1

SENTENCES = ["good morning", "how are you today", "thank you", "where is the station please"]


def write_sources(folder: Path) -> tuple[Path, Path]:
    """A file of five records of four int32 each, and a database of the sentences."""
    numbers, database = folder / "numbers.bin", folder / "sentences.db"
    np.arange(20, dtype=np.int32).tofile(numbers)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE sentence (id INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO sentence (text) VALUES (?)", [(text,) for text in SENTENCES])
    connection.close()
    return numbers, database


def read_file(path: Path) -> Iterator[np.ndarray]:
    """int32 [4], record by record."""
    with open(path, "rb") as file:
        while record := file.read(16):
            yield np.frombuffer(record, np.int32)


def read_database(path: Path, table: str = "sentence") -> Iterator[np.ndarray]:
    """int32 [length]: the length of each word of a sentence. The connection is the reading thread's own."""
    connection = sqlite3.connect(path)
    try:
        last = 0
        while row := connection.execute(f"SELECT id, text FROM {table} WHERE id > ? ORDER BY id", (last,)
                                        ).fetchone():
            last, text = row
            yield np.array([len(word) for word in text.split()], np.int32)
    finally:
        connection.close()


def build(numbers: Path, database: Path, table: str = "sentence") -> Any:
    """The queue with its runner, registered where TensorFlow looks for it; int32 [any length] comes out."""
    queue = tf1.FIFOQueue(8, [tf.int32])
    fixed = tf1.placeholder(tf.int32, [4], name="from_file")
    ragged = tf1.placeholder(tf.int32, [None], name="from_database")
    tf1.train.add_queue_runner(GeneralQueueRunner(
        queue, enqueue_ops=[queue.enqueue(fixed), queue.enqueue(ragged)],
        feed_fns=[read_file(numbers).__next__, read_database(database, table).__next__],
        feed_tensors=[fixed, ragged], in_order=True, names=[numbers.name, database.name]))
    return queue.dequeue()


def with_coordinator(numbers: Path, database: Path) -> None:
    """A `tf.Session` and a `tf.train.Coordinator`: the end is an OutOfRangeError."""
    with tf.Graph().as_default(), tf1.Session() as sess:
        record = build(numbers, database)
        coord = tf1.train.Coordinator()
        threads = tf1.train.start_queue_runners(sess, coord)
        count = 0
        try:
            while not coord.should_stop():
                print("  ", sess.run(record))
                count += 1
        except tf.errors.OutOfRangeError:
            print(f"   the end, after {count} records")
        coord.request_stop()
        coord.join(threads)  # raises a feeder's error


def with_monitored_session(numbers: Path, database: Path, table: str) -> None:
    """A `MonitoredSession` starts the runner, stops it, and raises its error, by itself."""
    with tf.Graph().as_default():
        record = build(numbers, database, table)
        with tf1.train.MonitoredSession() as sess:
            while not sess.should_stop():
                print("  ", sess.run(record))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers, database = write_sources(Path(folder))
        print("With a Coordinator:")
        with_coordinator(numbers, database)
        print("With a MonitoredSession:")
        with_monitored_session(numbers, database, table="sentence")
        print("With a table that is not there:")
        try:
            with_monitored_session(numbers, database, table="sentences")
        except FeederError as error:
            print("  ", error)


if __name__ == "__main__":
    main()
