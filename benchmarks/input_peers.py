"""Measure PyTorch's DataLoader and `tf.data` on the files and the work of `input.py`, which starts this program.

It needs NumPy, torch or TensorFlow, and SentencePiece for text, but not towernmt.

Each library reads the prepared shards (`shard-*.pairs`) or tokenises the text with the same SentencePiece model,
shuffles, groups pairs of similar length into batches of --batch-tokens target tokens, and pads them to int32 with EOS
after each sentence. `style` is one of:

    elements: as in the manual of the library: one sentence pair is one element. DataLoader: a Dataset of pairs, a batch
              sampler over sorted lengths (the batches are those of towernmt), a collate function. tf.data:
              `bucket_by_sequence_length` with bounds 8 apart and tokens // bound pairs per batch; it cannot limit the
              sum of tokens, so its batches hold fewer tokens and more padding.
    batches:  one batch is one element, made from lists of pairs with array operations, as in towernmt. Text is read in
              windows of 100,000 pairs over all workers.

DataLoader's workers are processes (0: the loop itself); those of tf.data are `num_parallel_calls`. Neither library
gives a position to resume from, and the order of text depends on the number of workers.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

EOS, WINDOW, CHUNK = 2, 100_000, 1024
BatchSizes = Iterator[tuple[int, int]]   # (pairs, target tokens) of each batch


class Shards:
    """All shards of a folder, each with ids and offsets of both sides."""

    def __init__(self, folder: Path) -> None:
        self.shards = [_map(path) for path in sorted(folder.glob("shard-*.pairs"))]

    def plan(self, limit: int, seed: int) -> Iterator[tuple[int, Any]]:
        """Yield (shard, int64 `[batch]` indices of pairs) of batches with similar lengths, in random order."""
        random = np.random.default_rng(seed)
        for number in random.permutation(len(self.shards)).tolist():
            (_, source), (_, target) = self.shards[number]
            for rows in plan(source, target, limit, random):
                yield number, rows

    def batch(self, number: int, rows: Any) -> list[Any]:
        """Return padded ids and lengths of both sides."""
        return [array for ids, offsets in self.shards[number] for array in pad(ids, offsets, rows)]


def _map(path: Path) -> list[tuple[Any, Any]]:
    _, _, width, pairs, source, target, _ = struct.unpack("<8sIIQQQI20x", path.read_bytes()[:64])
    body = np.memmap(path, np.uint8, "r")
    lengths = body[64:64 + 8 * pairs].view("<i4")
    ids = np.asarray(body[64 + 8 * pairs:].view(f"<u{width}"))
    offsets = [np.concatenate([[0], np.cumsum(side, dtype=np.int64)]) for side in (lengths[:pairs], lengths[pairs:])]
    return [(ids[:source], offsets[0]), (ids[source:], offsets[1])]


def plan(source_offsets: Any, target_offsets: Any, limit: int, random: Any) -> list[Any]:
    """Return index arrays of at most `limit` target tokens, sorted by length inside, in random order."""
    source, target = np.diff(source_offsets) + 1, np.diff(target_offsets) + 1
    order = random.permutation(len(source))
    longest = np.maximum(source, target)[order]
    order = order[np.lexsort([(source - target)[order], longest])]
    total, cuts = np.concatenate([[0], np.cumsum(target[order])]), [0]
    while cuts[-1] < len(order):
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(total, total[cuts[-1]] + limit, "right")) - 1))
    return [order[cuts[i]:cuts[i + 1]] for i in random.permutation(len(cuts) - 1)]


def pad(ids: Any, offsets: Any, rows: Any) -> tuple[Any, Any]:
    """Return ids int32 `[batch, longest]` with EOS, and lengths int32 `[batch]`."""
    begin = offsets[rows]
    lengths = offsets[rows + 1] - begin
    columns = np.arange(lengths.max() + 1)
    padded = np.zeros((len(rows), len(columns)), np.int32)
    inside = columns < lengths[:, None]
    padded[inside] = ids[(begin[:, None] + columns)[inside]]
    padded[np.arange(len(rows)), lengths] = EOS
    return padded, (lengths + 1).astype(np.int32)


def text_batches(folder: Path, limit: int, worker: int = 0, workers: int = 1) -> Iterator[list[Any]]:
    """Yield the batches of one worker; the workers read chunks of lines in turn."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "prepared/vocabulary/source.model"))
    random = np.random.default_rng(worker)
    names = [folder / f"stream.{side}" for side in ("src", "tgt")]
    with open(names[0], encoding="utf-8") as first, open(names[1], encoding="utf-8") as second:
        chunks = islice(iter(lambda: [[line.rstrip("\n") for line in islice(file, CHUNK)]
                                      for file in (first, second)], [[], []]), worker, None, workers)
        while window := list(islice(chunks, -(-WINDOW // CHUNK // workers))):
            sides = []
            for side in range(2):
                encoded = [ids for chunk in window for ids in model.encode(chunk[side])]
                offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded], dtype=np.int64)])
                sides.append((np.fromiter((i for ids in encoded for i in ids), np.uint16, offsets[-1]), offsets))
            for rows in plan(sides[0][1], sides[1][1], limit, random):
                yield [array for ids, offsets in sides for array in pad(ids, offsets, rows)]


def torch_batches(source: str, style: str, folder: Path, limit: int, workers: int) -> BatchSizes:
    """Yield (pairs, target tokens) of each batch of a DataLoader."""
    torch: Any = import_module("torch")
    data: Any = import_module("torch.utils.data")
    pad_sequence = import_module("torch.nn.utils.rnn").pad_sequence
    torch.set_num_threads(1)
    shards = Shards(folder / "prepared")

    class Pairs(data.Dataset):
        def __getitem__(self, index: tuple[int, int]) -> list[Any]:
            sides = [ids[offsets[index[1]]:offsets[index[1] + 1]] for ids, offsets in shards.shards[index[0]]]
            return [torch.from_numpy(np.append(ids, EOS).astype(np.int32)) for ids in sides]

    class PlannedBatches(data.Dataset):
        def __getitem__(self, batch: tuple[int, Any]) -> list[Any]:
            return [torch.from_numpy(array) for array in shards.batch(*batch)]

    class Text(data.IterableDataset):
        def __iter__(self) -> Iterator[list[Any]]:
            info = data.get_worker_info()
            for batch in text_batches(folder, limit, info.id if info else 0, info.num_workers if info else 1):
                yield [torch.from_numpy(array) for array in batch]

    def collate(pairs: list[Any]) -> list[Any]:
        return [array for side in zip(*pairs, strict=True)
                for array in (pad_sequence(side, batch_first=True), torch.tensor([len(ids) for ids in side]))]

    def indices(seed: int) -> Iterator[Any]:
        for number, rows in shards.plan(limit, seed):
            yield [(number, row) for row in rows.tolist()] if style == "elements" else (number, rows)

    for seed in range(1_000_000 if source == "prepared" else 1):
        if source == "text":
            loader = data.DataLoader(Text(), batch_size=None, num_workers=workers)
        elif style == "elements":
            loader = data.DataLoader(Pairs(), batch_sampler=list(indices(seed)), collate_fn=collate,
                                     num_workers=workers)
        else:
            loader = data.DataLoader(PlannedBatches(), sampler=list(indices(seed)), batch_size=None,
                                     num_workers=workers)
        for batch in loader:
            yield len(batch[0]), int(batch[3].sum())


def tf_data_batches(source: str, style: str, folder: Path, limit: int, workers: int) -> BatchSizes:
    """Yield (pairs, target tokens) of each batch of a `tf.data.Dataset`, iterated eagerly."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if source == "text":
        return _tf_batch_sizes(_tf_buckets(tf, _tf_text(tf, folder, workers), limit))
    shards = Shards(folder / "prepared")
    sides = [[(tf.constant(ids.astype(np.int32)), tf.constant(offsets)) for ids, offsets in shard]
             for shard in shards.shards]

    def element(shard: Any, row: Any) -> tuple[Any, Any]:
        return tuple(tf.concat([ids[offsets[row]:offsets[row + 1]], [EOS]], 0) for ids, offsets in shard)

    def padded_batch(shard: Any, rows: Any) -> tuple[Any, ...]:
        arrays = []
        for ids, offsets in shard:
            begin, end = tf.gather(offsets, rows), tf.gather(offsets, rows + 1)
            lengths = end - begin
            column = tf.range(tf.reduce_max(lengths) + 1)[None]
            positions = tf.minimum(begin[:, None] + column, tf.size(ids, tf.int64) - 1)
            padded = tf.where(column < lengths[:, None], tf.gather(ids, positions), 0)
            arrays += [tf.where(column == lengths[:, None], EOS, padded), tf.cast(lengths + 1, tf.int32)]
        return tuple(arrays)

    def of_shard(number: int, seed: int) -> Any:
        offsets = [side[1] for side in shards.shards[number]]
        if style == "elements":
            pairs = len(offsets[0]) - 1
            rows = tf.data.Dataset.range(pairs).shuffle(pairs, seed)
            return rows.map(lambda row: element(sides[number], row), num_parallel_calls=workers)
        batches = tf.ragged.stack(plan(offsets[0], offsets[1], limit, np.random.default_rng(seed)))
        dataset = tf.data.Dataset.from_tensor_slices(batches)
        return dataset.map(lambda rows: padded_batch(sides[number], rows), num_parallel_calls=workers).prefetch(8)

    def batch_sizes() -> BatchSizes:
        for seed in range(1_000_000):
            for number in range(len(sides)):
                dataset = of_shard(number, seed)
                yield from _tf_batch_sizes(_tf_buckets(tf, dataset, limit) if style == "elements" else dataset)

    return batch_sizes()


def _tf_text(tf: Any, folder: Path, workers: int) -> Any:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "prepared/vocabulary/source.model"))

    def encode(lines: Any) -> tuple[Any, Any]:
        encoded = model.encode([line.decode() for line in lines.tolist()], add_eos=True)
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        return np.fromiter((i for ids in encoded for i in ids), np.int32, lengths.sum()), lengths

    def tokenise(*sides: Any) -> tuple[Any, ...]:
        return tuple(tf.RaggedTensor.from_row_lengths(*tf.numpy_function(encode, [lines], (tf.int32, tf.int64)))
                     for lines in sides)

    lines = [tf.data.TextLineDataset(str(folder / f"stream.{side}")) for side in ("src", "tgt")]
    dataset = tf.data.Dataset.zip(tuple(lines)).batch(CHUNK).map(tokenise, num_parallel_calls=workers)
    return dataset.unbatch().map(lambda source, target: (source, target)).shuffle(WINDOW)


def _tf_buckets(tf: Any, dataset: Any, limit: int) -> Any:
    bounds = list(range(8, 201, 8))
    sizes = [max(1, limit // bound) for bound in [*bounds, 200]]
    return dataset.bucket_by_sequence_length(
        lambda source, target: tf.size(target), [bound + 1 for bound in bounds], sizes,
        padded_shapes=([None], [None])).map(
            lambda source, target: (source, tf.math.count_nonzero(source, 1), target,
                                    tf.math.count_nonzero(target, 1))).prefetch(8)


def _tf_batch_sizes(dataset: Any) -> BatchSizes:
    for batch in dataset:
        yield int(batch[0].shape[0]), int(batch[3].numpy().sum())


def main() -> None:
    """Measure each style with each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=("torch", "tf.data"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--sources", nargs="+", default=["prepared", "text"])
    options = parser.parse_args()
    make = torch_batches if options.reader == "torch" else tf_data_batches
    for source in options.sources:
        styles = ("elements", "batches") if source == "prepared" else (
            ("batches",) if options.reader == "torch" else ("elements",))
        for style in styles:
            for workers in options.workers:
                figures = measure(make(source, style, options.folder, options.batch_tokens, workers),
                                  1.0 if source == "prepared" else 0.0,
                                  options.seconds if source == "prepared" else float("inf"))
                print(json.dumps({"reader": options.reader, "kind": source, "style": style,
                                  "batch_tokens": options.batch_tokens, "workers": workers, **figures}), flush=True)


def measure(batches: BatchSizes, warm: float, seconds: float) -> dict[str, Any]:
    """Count and time the batches of `seconds` after `warm` seconds; text is read to its end."""
    begin = time.perf_counter()
    if warm:
        next(batches)
    while warm and time.perf_counter() - begin < warm:
        next(batches)
    count, pairs, tokens = 0, 0, 0
    begin = time.perf_counter()
    for sizes in batches:
        count, pairs, tokens = count + 1, pairs + sizes[0], tokens + sizes[1]
        if time.perf_counter() - begin >= seconds:
            break
    passed = time.perf_counter() - begin
    return {"pairs_s": int(pairs / passed), "target_tokens_s": int(tokens / passed), "batches": count, "pairs": pairs,
            "seconds": round(passed, 3), "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


if __name__ == "__main__":
    main()
