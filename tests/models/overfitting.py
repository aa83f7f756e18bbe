"""Overfitting a few pairs, to test that a model, its optimizer and beam search work together."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from towernmt.core.errors import DataError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.sources.default_corpus import default_corpus
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.evaluate.metrics import corpus_scores
from towernmt.models.layers.randomness import set_seed
from towernmt.optim.optimizer import make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.predict.search.decoding_tower import build_search_predictor
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.stream import translate_lines


class Pairs:
    """Sources, their targets, and a vocabulary of both."""

    def __init__(self, sources: list[str], targets: list[str], pieces: int) -> None:
        self.sources, self.targets = sources, targets
        self.vocabulary = learn_sentence_piece(sources + targets, "unigram", pieces)


def made_up_pairs(count: int, shortest: int, longest: int, pieces: int) -> Pairs:
    """Return pairs whose targets are the sources in capitals and in reverse order."""
    random = np.random.default_rng(2)
    words = [a + b for a in "bdfgk" for b in "aeiou"]
    sources = [" ".join(random.choice(words, random.integers(shortest, longest + 1))) for _ in range(count)]
    return Pairs(sources, [" ".join(word.upper() for word in reversed(line.split())) for line in sources], pieces)


def a_hundred_real_pairs() -> Pairs:
    """Return the first pairs of the default corpus; the test is skipped if the corpus has not been downloaded."""
    try:
        corpus = default_corpus("de-en", pip=("false",))
    except DataError:
        pytest.skip("The default corpus is not in the cache; `towernmt prepare` without --source fetches it.")
    sides = [path.read_text(encoding="utf-8").splitlines()[:100] for path in (corpus.train_source, corpus.train_target)]
    return Pairs(*sides, 800)


def bleu_after_overfitting(kind, sizes, pairs: Pairs, steps: int, sentences: int, learning_rate: float,
                           lower_rate: float | None = None) -> float:
    """Train on the pairs alone, translate their sources with a beam, and return BLEU.

    Args:
        kind: makes a model from settings.
        sizes: returns the settings for a size of the vocabulary.
        lower_rate: the learning rate of the second half; None for the same.
    """
    vocabulary = pairs.vocabulary
    with tf.Graph().as_default():
        set_seed(1)
        model = kind(sizes(len(vocabulary)))
        model.make_optimizer = partial(make_optimizer, OptimizerSettings(learning_rate=learning_rate), 1.0)
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with TrainTowerContext(""):
            cost = model.build_graph(*inputs)
        train_op = model.optimizer().minimize(cost)
        predictor = build_search_predictor(model, SearchSettings(beam_size=4))
        rate = next(v for v in tf1.global_variables() if v.op.name == "learning_rate")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            sides = [vocabulary.encode_batch(lines) for lines in (pairs.sources, pairs.targets)]
            random = np.random.default_rng(0)
            for step in range(steps):
                if step == steps // 2 and lower_rate is not None:
                    rate.load(lower_rate, session)
                rows = random.choice(len(pairs.sources), sentences, replace=False)
                arrays = [array for side in sides for array in pad_sentences([side[row] for row in rows])]
                session.run(train_op, dict(zip(inputs, [*arrays, np.float32(arrays[3].sum())], strict=True)))
            predictor.set_session(session)
            translations = translate_lines(predictor, vocabulary, vocabulary, pairs.sources)
    return corpus_scores(translations, pairs.targets).bleu
