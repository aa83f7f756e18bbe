"""The sentences and batches of `translate.py` and `translate_onmttf.py`, and the record of their results.

`translate_onmttf.py` runs in the environment of OpenNMT-tf, so this module imports only the standard library and NumPy.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

PAD = 0
EXTRA_TOKENS = 5
"""Output tokens in addition to the longest source of a batch, without EOS."""
Rows = list[np.ndarray]


def load(path: str) -> Rows:
    """Read the sentences of an .npz file, shortest first, without padding."""
    with np.load(path) as arrays:
        rows = [row[row != PAD].astype(np.int32) for i in range(int(arrays["n"])) for row in arrays[f"s{i}"]]
    return sorted(rows, key=len)


def save(path: str, rows: Rows) -> None:
    """Write sentences into an .npz file for `load`."""
    arrays: dict[str, Any] = {"n": np.array(len(rows)), **{f"s{i}": row[None] for i, row in enumerate(rows)}}
    np.savez(path, **arrays)


def every(rows: Rows, count: int) -> Rows:
    """Return `count` sentences, evenly spaced from the shortest to the longest."""
    return rows[::max(1, len(rows) // count)][:count]


def warm_rows(rows: Rows, batch_sentences: int) -> Rows:
    """Return the sentences that are translated before the measurement."""
    return every(rows, 64 if batch_sentences > 1 else 4)


def batches_of(rows: Rows, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return source int32 `[batch, longest]` and lengths int32 `[batch]` of each batch."""
    return list(_batches(rows, size))


def _batches(rows: Rows, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(rows), size):
        batch = rows[start:start + size]
        source = np.full([len(batch), max(map(len, batch))], PAD, np.int32)
        for padded_row, row in zip(source, batch, strict=True):
            padded_row[:len(row)] = row
        yield source, np.array(list(map(len, batch)), np.int32)


def record(facts: Mapping[str, Any], sentences: int, tokens: int, seconds: Mapping[str, float]) -> str:
    """Return the JSON line: `out_tok_s` per second of wall time, `out_tok_cpu_s` of processor time.

    Args:
        facts: names and settings of the program.
        sentences: number of translated sentences.
        tokens: number of output tokens.
        seconds: `wall_s` and `cpu_s`, in seconds, and further figures.
    """
    wall, cpu = seconds["wall_s"], seconds["cpu_s"]
    line = {**facts, "mode": "decode", "sents": sentences, "out_tokens": tokens, "out_tok_s": tokens / wall,
            "out_tok_cpu_s": tokens / cpu, "sents_s": sentences / wall, "ms_per_sent": 1000 * wall / sentences,
            "cpu_ms_per_sent": 1000 * cpu / sentences, **seconds,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "load1": os.getloadavg()[0], "when": time.strftime("%H:%M:%S")}
    return json.dumps({key: float(f"{value:.6g}") if isinstance(value, float) else value
                       for key, value in line.items()})


def facts_of(peer: str, config: str, preset: str, beam: int, batch_sentences: int, dtype: str,
             threads: int) -> dict[str, Any]:
    """Return the names and settings of a program for `record`."""
    return {"peer": peer, "config": config, "preset": preset, "beam": beam, "batch_sents": batch_sentences,
            "dtype": dtype, "threads": threads}
