"""A trained run as a translator: `Translator("runs/de-en").translate(["Guten Morgen!"])`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.packaged.packaged_run import open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.machine.processor import processors
from towernmt.models.choices import PRECISIONS
from towernmt.predict.alignment.unknown_words import UnknownWords
from towernmt.predict.asked_search import AskedSearch
from towernmt.predict.decoding.settings import SearchSettings, StreamSettings
from towernmt.predict.ensemble.settings import EnsembleSettings, several
from towernmt.predict.kept.towers import has_gpu_driver, open_towers
from towernmt.predict.lexical.lexicon import Lexicon
from towernmt.predict.line_translator import LineTranslator, search_settings
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.predict.lines.requests import Requests
from towernmt.predict.reranking.reranker import Reranker

if TYPE_CHECKING:
    from tensorpack.predict import OfflinePredictor

    from towernmt.predict.decoding.processors.processor import LogitsProcessor


class Translator(LineTranslator):
    """Translates text with a checkpoint of a training run.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix); of an ensemble its members', joined by " + ".
        source_vocabulary, target_vocabulary: the run's vocabularies.
    """

    def __init__(self, run_dir: str | Path | SavedRun | Sequence[str | Path | SavedRun],
                 beam_size: int | None = None, *,
                 n_best: int | None = None, checkpoint: str | Sequence[str] | None = None, device: str | None = None,
                 batch_tokens: int = StreamSettings.batch_tokens,
                 batch_sentences: int = StreamSettings.batch_sentences,
                 stream: StreamSettings | None = None, model: Any = None,
                 processors: Sequence[LogitsProcessor] = (), log_probs: bool = False, attention: bool = False,
                 options: LineOptions = PLAIN, retry: bool = False, ensemble: EnsembleSettings | None = None,
                 reranker: Reranker | None = None, replace_unknown: bool | Mapping[str, str] = False,
                 keep_graph: bool = False, precision: str = PRECISIONS[0], trust_code: bool = False,
                 **search: Any) -> None:
        """
        Args:
            run_dir: the training run's directory (its --logdir), or a package, or either opened already; several are an
                ensemble, which searches as the first run's settings say.
            beam_size: hypotheses kept for each sentence; 1 is greedy search. By default as the run's
                settings have it, but at least n_best.
            n_best: translations that `translate_nbest` and `translate_stream` give, at most beam_size.
            checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the best by
                validation BLEU, or the last of a run without validation. One for each run, one for all, or several of
                one run as an ensemble.
            device: "cpu", "gpu" or "gpu:N"; by default a GPU if there is one.
            batch_tokens: source tokens in a batch, padding included, at most.
            batch_sentences: sentences in a batch, at most.
            stream: all settings of the batching, in place of `batch_tokens` and `batch_sentences`.
            model: the `NMTModel` of the run, or its class, where the run does not hold its code.
            processors: what else the search asks of a translation, by logits processors of one's own.
            log_probs, attention: give these with each hypothesis, as its `details`.
            options: what all lines ask for; see `LineOptions.over` for lines that ask for more.
            retry: search again, by other settings, for translations that are empty, in a loop or cut at the length
                limit, and keep the better one.
            ensemble: how the members of an ensemble are joined; by default the plain mean of their probabilities.
            reranker: puts the n_best translations of each line into another order; all of them are given.
            replace_unknown: put the source word that the model looked at in place of an unknown token, or its
                translation by a table, source word to target word; see `UnknownWords`.
            keep_graph: keep the optimised graph of the search in the run's directory `graphs/`, and start with it the
                next time, which is much faster; not for ensembles, models and processors that are given here,
                shortlists and GPUs.
            precision: of matrix products: float32, bfloat16 (for processors that have it, and GPUs) or float16 (GPUs).
            trust_code: whether the code of a model in a package may be executed.
            search: other fields of `SearchSettings`, such as `length_penalty`; those that are not given
                are as the run's settings have them.
        Raises:
            CheckpointError: there is no such checkpoint, or it does not fit the run's settings.
            SettingsError: a value that cannot work, no run, or a GPU that is not there.
        """
        runs = [open_run(place, trust_code) for place in several(run_dir)]
        settings = search_settings(runs[0].group("search", SearchSettings()), beam_size, n_best, search)
        stream = stream or StreamSettings(batch_tokens=batch_tokens, batch_sentences=batch_sentences)
        stream = _with_threads(stream, device)
        _check_texts(runs[0], settings, options)
        self._searches = open_towers(AskedSearch(
            runs, several(checkpoint), several(model), ensemble, device, settings, processors, log_probs,
            attention or replace_unknown is not False, stream.threads, precision), keep_graph)
        vocabularies = self._searches.source_vocabulary, self._searches.target_vocabulary
        super().__init__(
            self._searches, *vocabularies, checkpoint=self._searches.checkpoint, search=settings, stream=stream,
            options=options, retry=retry, reranker=reranker,
            unknown=None if replace_unknown is False else UnknownWords(
                *vocabularies, None if replace_unknown is True else replace_unknown))

    @property
    def predictor(self) -> OfflinePredictor:
        """tensorpack's: (source int32 `[batch, source length]`, source_length int32 `[batch]`) to tokens int32
        `[batch, n_best, length]` and scores float32 `[batch, n_best]`.

        What the model or the processors declare beyond these two comes behind them, and so do log-probabilities and
        attention in what it gives.
        """
        return self._searches.predictor


def _check_texts(run: SavedRun, search: SearchSettings, options: LineOptions) -> None:
    """Refuse a shortlist that does not fit, and what the vocabulary cannot write, before a graph is built."""
    if search.shortlist:
        Lexicon.load(search.shortlist).check_vocabularies(*run.vocabularies(), search.shortlist)
    if options != PLAIN:
        Requests(search, run.vocabularies()[1], options).asked(PLAIN)


def _with_threads(stream: StreamSettings, device: str | None) -> StreamSettings:
    """The settings with the number of batches that are translated side by side."""
    if stream.threads:
        return stream
    on_gpu = "gpu" in device.lower() if device else _uses_gpu()
    if on_gpu:
        return dataclasses.replace(stream, threads=1, shares=1)
    # A lone sentence, too, is faster where no operation waits for a second thread.
    return dataclasses.replace(stream, threads=processors(), shares=1 if stream.window == 1 else stream.shares)


def _uses_gpu() -> bool:
    if not has_gpu_driver():
        return False
    from towernmt.core.tf_compat import tf  # takes seconds

    return bool(tf.config.list_physical_devices("GPU"))
