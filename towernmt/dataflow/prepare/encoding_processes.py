"""Encoding in several processes. Chunks come back in their order, so the number of processes changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.annotations import Chunks
from towernmt.dataflow.prepare.chunk_encoder import ChunkEncoder, EncodedChunk
from towernmt.dataflow.text.chunks import Chunk
from towernmt.dataflow.text.filters.pair_filter import PairFilter
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies


def encode_files(chunks: Iterable[Chunks], vocabularies: Path, pair_filter: PairFilter, workers: int
                 ) -> Iterator[EncodedChunk]:
    """Encode parallel text, chunk by chunk, in its order.

    Args:
        chunks: the text, as `annotations.training_chunks` reads it.
        vocabularies: directory that `load_vocabularies` reads.
        pair_filter: what is kept.
        workers: number of processes; 1 works in this process.
    Raises:
        DataError: the text cannot be read (any more), a factor or a link is wrong, or a worker died.
    """
    if workers == 1:
        encoder = ChunkEncoder(*load_vocabularies(vocabularies)[:2], pair_filter)
        for texts in chunks:
            yield encoder(*texts)
        return
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(_start_method()),
                               initializer=_start_worker, initargs=(vocabularies, pair_filter))
    pending: deque[Future[EncodedChunk]] = deque()
    try:
        for texts in chunks:
            pending.append(pool.submit(_encode, *texts))
            if len(pending) > 3 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise DataError("a worker process of the preparation died (out of memory, or a script that calls "
                        "prepare() outside `if __name__ == '__main__':`). Use fewer workers; 1 works without "
                        "processes.") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_method() -> str:
    """A fork is quickest, but not safe once TensorFlow has started its threads."""
    forkable = "fork" in multiprocessing.get_all_start_methods() and "tensorflow" not in sys.modules
    return "fork" if forkable else "spawn"


_encoder: ChunkEncoder  # of a worker process, made at its start


def _start_worker(vocabularies: Path, pair_filter: PairFilter) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C reaches all; the parent ends the workers
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    _encoder = ChunkEncoder(*load_vocabularies(vocabularies)[:2], pair_filter)


def _end_with_parent() -> None:
    """End this worker when its parent is killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(source: Chunk, target: Chunk, alignments: Chunk | None) -> EncodedChunk:
    return _encoder(source, target, alignments)
