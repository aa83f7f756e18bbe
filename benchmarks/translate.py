"""Measure translation speed: output tokens per second of wall time and processor time. Prints one JSON line per run.

    python benchmarks/translate.py --config tiny --beam 4 --batch-sentences 32
    python benchmarks/translate.py --config base --beam 1 --precision bfloat16 --source test_batches_32.npz
    python benchmarks/translate.py --batch-sentences 1 --sentences 50 --threads 1
    python benchmarks/translate.py --save sentences.npz        # for translate_onmttf.py and --source

The work is a Transformer with random weights (tiny: hidden 256, filter 1024, 4 heads, 3+3 layers, joint vocabulary of
8,000; base: 512, 2048, 8, 6+6, 32,000; or another --preset with that vocabulary) on 500 sentences in batches sorted by
length. All translations of a batch have the same length, the longest source plus 5 tokens, so that every system takes
the same number of steps. `--source FILE.npz` reads the sentences from a file: int arrays `s0`, `s1`, ... (ids end with
EOS = 2, padded with 0) and their number `n`; the default is random sentences. To compare commits or programs, use
`compare_training.py --metric out_tok_cpu_s`. Results: docs/notes/translation-speed.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from machine import Load
from tensorpack.predict import PredictConfig
from tensorpack.tfutils.sessinit import JustCurrentSession
from train_work import EOS, PAD, VOCABULARY, draw, make_model
from translate_work import EXTRA_TOKENS, Rows, batches_of, every, facts_of, load, record, save, warm_rows

from towernmt.core.session import SessionCreator, use_gpus
from towernmt.core.standard_streams import without_noise
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.kernels import set_precision
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.search.beam_search import BeamSearch, GreedySearch
from towernmt.predict.search.decoding_loop import Decoding, LengthLimit, decode
from towernmt.predict.search.processors import ForbiddenTokens
from towernmt.predict.search.scores import LengthPenalty
from towernmt.predict.trained_model import make_predictor


class ForcedLength(LengthLimit):
    """Length limit of all sentences of a batch: its longest source plus `EXTRA_TOKENS`."""

    def __init__(self) -> None:
        super().__init__(0.0, 0)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return tf.fill(tf.shape(inputs["source_length"]), tf.reduce_max(inputs["source_length"]) - 1 + EXTRA_TOKENS)


def main(arguments: list[str] | None = None) -> None:
    """Measure one run and print its record."""
    options = parser().parse_args(arguments)
    rows = load(options.source) if options.source else random_rows(VOCABULARY[options.config])
    if options.save:
        save(options.save, rows)
        return
    predictor = predictor_of(options)
    rows_to_translate = every(rows, options.sentences)
    translate(predictor, batches_of(warm_rows(rows, options.batch_sentences), options.batch_sentences), options.threads)
    load_before = Load()
    tokens = translate(predictor, batches_of(rows_to_translate, options.batch_sentences), options.threads)
    facts = facts_of("towernmt", options.config, options.preset or options.config, options.beam,
                     options.batch_sentences, options.precision, options.threads)
    print(record(facts, len(rows_to_translate), tokens, load_before.figures()), flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(VOCABULARY), default="tiny")
    parser.add_argument("--preset", help="preset of the Transformer; the vocabulary is that of --config")
    parser.add_argument("--beam", type=int, default=4, help="1 is greedy search")
    parser.add_argument("--batch-sentences", type=int, default=32)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--source", metavar="FILE", help="take the sentences from this .npz file")
    parser.add_argument("--save", metavar="FILE", help="write the sentences to this .npz file, and translate nothing")
    parser.add_argument("--sentences", type=int, default=500, help="number of sentences, of every length")
    parser.add_argument("--threads", type=int, default=1, help="batches translated concurrently")
    parser.add_argument("--gpu", type=int, metavar="N", help="translate on this GPU")
    return parser


def predictor_of(options: argparse.Namespace) -> Any:
    """Return a predictor from ids to ids with the default search and a forced length."""
    scoring = LengthPenalty(0.0)
    strategy = BeamSearch(options.beam, 1, scoring) if options.beam > 1 else GreedySearch(scoring)
    decoding = Decoding(strategy, [ForbiddenTokens([PAD, BOS, EOS])], ForcedLength())
    model = make_model("transformer", options.config, preset=options.preset)
    device = None if options.gpu is None else use_gpus([options.gpu])[0]

    def tower(source: Tensor, source_length: Tensor) -> None:
        set_precision(options.precision)
        with tf1.device(device):
            decoded = decode(model, {"source": source, "source_length": source_length}, decoding)
            tf.identity(decoded.tokens, name="tokens")

    with without_noise():
        return make_predictor(PredictConfig(
            tower_func=tower, output_names=["tokens"],
            session_creator=SessionCreator(options.threads, runs_in_caller=True),
            input_signature=[tf.TensorSpec([None, None], tf.int32, "source"),
                             tf.TensorSpec([None], tf.int32, "source_length")], session_init=JustCurrentSession()))


def translate(predictor: Any, batches: Sequence[tuple[np.ndarray, np.ndarray]], threads: int) -> int:
    """Translate all batches, `threads` at a time, and return the number of output tokens."""
    def translate_batch(batch: tuple[np.ndarray, np.ndarray]) -> int:
        (tokens,) = predictor(*batch)
        return int((tokens[:, 0] != PAD).sum())

    if threads == 1:
        return sum(map(translate_batch, batches))
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(translate_batch, reversed(batches)))     # longest batches first, as in `Translator`


def random_rows(vocabulary: int, sentences: int = 500) -> Rows:
    """Return random sentences with the length distribution of training, shortest first."""
    batches = draw(vocabulary, 1024, pairs=sentences)
    return sorted((row[row != PAD] for batch in batches for row in batch.source), key=len)


if __name__ == "__main__":
    main()
