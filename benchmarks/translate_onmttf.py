"""Measure the translation speed of OpenNMT-tf on the work of `translate.py`. Prints one JSON line.

Run it with the Python of OpenNMT-tf (docs/notes/benchmarks.md), on sentences that `translate.py` has written:

    python benchmarks/translate.py --save sentences.npz
    . venvs/onmttf/bin/activate && python benchmarks/translate_onmttf.py --source sentences.npz --config tiny --beam 4

The model is OpenNMT-tf's Transformer with random weights and the sizes of `translate.py`. Its inference graph has
OpenNMT-tf's own beam search, with the length of `translate.py` as the minimum and the maximum. Each length has one
trace. All of them are traced before the measurement, by a translation of all sentences.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from translate_work import EXTRA_TOKENS, batches_of, every, facts_of, load, record

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
SIZES = {"tiny": (256, 1024, 4, 3), "base": (512, 2048, 8, 6)}
"""Hidden size, filter size, heads, and layers of each side."""
VOCABULARY = {"tiny": 8000, "base": 32000}
FIRST_WORD = 3
"""OpenNMT-tf's vocabularies begin with padding, the beginning and the end of a sentence."""
Infer = Callable[[np.ndarray, np.ndarray], int]


def main() -> None:
    """Measure one run and print its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--beam", type=int, default=4, help="1 is greedy search")
    parser.add_argument("--batch-sentences", type=int, default=32)
    parser.add_argument("--source", metavar="FILE", required=True, help="take the sentences from this .npz file")
    parser.add_argument("--sentences", type=int, default=500, help="number of sentences, of every length")
    parser.add_argument("--threads", type=int, default=1, help="threads of each operation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        infer = inference(options.config, options.beam, options.threads, Path(directory))
        rows = every(load(options.source), options.sentences)
        batches = batches_of(rows, options.batch_sentences)
        translated(infer, batches)
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = translated(infer, batches)
        seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    facts = facts_of(f"OpenNMT-tf {import_module('opennmt').__version__}", options.config, options.config, options.beam,
                     options.batch_sentences, "float32", options.threads)
    print(record(facts, len(rows), tokens, seconds), flush=True)


def inference(config: str, beam: int, threads: int, directory: Path) -> Infer:
    """Return a function from source ids and lengths, EOS included, to the number of output tokens.

    Args:
        config: name of the sizes.
        beam: beam size.
        threads: threads of each operation.
        directory: directory for the vocabulary.
    """
    tf: Any = import_module("tensorflow")
    onmt: Any = import_module("opennmt")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    vocabulary = directory / "vocabulary"
    vocabulary.write_text("".join(f"{word}\n" for word in (
        "<blank>", "<s>", "</s>", *(f"w{i}" for i in range(FIRST_WORD, VOCABULARY[config] - 1)))), encoding="utf-8")
    size, inner, heads, layers = SIZES[config]
    model = onmt.models.Transformer(
        source_inputter=onmt.inputters.WordEmbedder(embedding_size=size),
        target_inputter=onmt.inputters.WordEmbedder(embedding_size=size), num_layers=layers, num_units=size,
        num_heads=heads, ffn_inner_dim=inner, share_embeddings=onmt.models.EmbeddingsSharingLevel.ALL)
    files = {"source_vocabulary": str(vocabulary), "target_vocabulary": str(vocabulary)}
    model.initialize(files, params={"beam_width": beam})
    model.create_variables()
    traced: dict[int, Any] = {}

    def infer(source: np.ndarray, lengths: np.ndarray) -> int:
        tokens = source.shape[1] - 1 + EXTRA_TOKENS
        if tokens not in traced:
            @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int32)])
            def translate(ids: Any, length: Any) -> Any:
                model.params.update(maximum_decoding_length=tokens, minimum_decoding_length=tokens)
                return model.infer({"ids": ids, "length": length, "tokens": tf.as_string(ids)})

            traced[tokens] = translate
        decoded = traced[tokens](tf.constant(source, tf.int64), tf.constant(lengths))
        return int(decoded["length"].numpy()[:, 0].sum())

    return infer


def translated(infer: Infer, batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Translate all batches, and return the number of output tokens."""
    return sum(infer(*batch) for batch in batches)


if __name__ == "__main__":
    main()
