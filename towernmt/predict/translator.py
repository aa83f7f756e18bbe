"""`Translator`: translate with a trained run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.packaged_run import open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.core.machine import processors
from towernmt.core.standard_streams import without_noise
from towernmt.predict.engine_choice import EngineChoice, open_engines
from towernmt.predict.engine_support import ENGINES, default_precision
from towernmt.predict.line_translator import (
    LineTranslator,
    Search,
    SearchArguments,
    languages_of,
    search_settings,
    with_default_prefix,
)
from towernmt.predict.lines.batch_inputs import LineInputs
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.unknown_words import UnknownWords
from towernmt.predict.reranking import Reranker
from towernmt.predict.search.device_batches import batching_for, uses_gpu
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.search_settings import (
    GRAPH,
    EnsembleSettings,
    SearchSettings,
    SpecialLineSettings,
    StreamSettings,
    as_list,
    limit_hypotheses,
)

if TYPE_CHECKING:
    from tensorpack.predict import OfflinePredictor, PredictConfig

    from towernmt.predict.search.decoding_interfaces import LogitsProcessor


class Translator(LineTranslator):
    """Translates text with a checkpoint of a training run.

    Args:
        run_dir: directory of a training run (its --logdir), a package, or an open run; several form an ensemble
            with the search settings of the first one.
        beam_size: hypotheses per sentence; 1 means greedy search. By default the beam size of the run's settings,
            but at least n_best.
        n_best: number of translations from `translate_nbest` and `translate_stream`, at most beam_size; 1 by default.
        checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the average that the run kept
            at its end, else the best by validation, else the last. One for each run, one for all, or several of one
            run as an ensemble.
        device: "cpu", "gpu" or "gpu:N"; by default a GPU if available.
        batch_tokens: maximum source tokens in a batch, with padding; by default 4,096, or 16,384 on a GPU.
        batch_sentences: maximum sentences in a batch; by default 64, or 512 on a GPU.
        stream: all batching settings, instead of `batch_tokens` and `batch_sentences`.
        model: the `NMTModel` of the run, or its class, if the run does not contain its code.
        processors: custom logits processors for the search.
        log_probs, attention: return these as `details` of each hypothesis.
        options: options of all lines; see `LineOptions.over` for options of single lines. The default of
            `source_prefix` is that of a package.
        retry: repeat the search with different settings for translations that are empty, repetitive or cut at the
            length limit, and keep the better one.
        ensemble: how to combine the members; by default the mean of their probabilities.
        reranker: reorders the n_best translations of each line; all of them are returned.
        replace_unknown: replace an unknown token by the source word with the most attention, or by its translation
            from a table (source word to target word); see `UnknownWords`.
        engine: "auto": CTranslate2 for each line that it translates as the graph does (near-ties can differ), and the
            graph for the others; the first use exports the run into its directory `exports/` in the background.
            "graph": TensorFlow's graph.
        export_first: export the run before its first lines are translated, not in the background.
        precision: dtype of matrix products: float32, bfloat16 (processors with support, and GPUs) or float16
            (GPUs). Or int8 or int16, the precision of the weights in CTranslate2; the graph then uses float32. None:
            int8 for a package in which its BLEU was measured, on a processor; otherwise float32.
        trust_code: whether the code of a model in a package may be executed.
        special_lines: translation of lines that the model may not be trained for, such as lines in capitals.
        languages: ISO 639-1 codes of source and target, for the letter case of lines in capitals; by default those of
            a package, or of the run's setting data.modifier_languages.
        search: other fields of `SearchSettings`, such as `length_penalty`; by default those of the run's settings.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix); of an ensemble its members', joined by " + ".
        source_vocabulary, target_vocabulary: the run's vocabularies.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """

    def __init__(self, run_dir: str | Path | SavedRun | Sequence[str | Path | SavedRun],
                 beam_size: int | None = None, *,
                 n_best: int | None = None, checkpoint: str | Sequence[str] | None = None, device: str | None = None,
                 batch_tokens: int | None = None, batch_sentences: int | None = None,
                 stream: StreamSettings | None = None, model: Any = None,
                 processors: Sequence[LogitsProcessor] = (), log_probs: bool = False, attention: bool = False,
                 options: LineOptions = PLAIN, retry: bool = False, ensemble: EnsembleSettings | None = None,
                 reranker: Reranker | None = None, replace_unknown: bool | Mapping[str, str] = False,
                 engine: str = ENGINES[0], export_first: bool = False, precision: str | None = None,
                 trust_code: bool = False,
                 special_lines: SpecialLineSettings = SpecialLineSettings(),  # noqa: B008 -- immutable
                 languages: tuple[str, str] | None = None, **search: Any) -> None:
        runs = [open_run(path, trust_code) for path in as_list(run_dir)]
        settings = search_settings(runs[0].group("search", SearchSettings()), beam_size, n_best, search)
        stream = stream or batching_for(device, batch_tokens, batch_sentences)
        stream = limit_hypotheses(_with_threads(stream, device), settings)
        options = with_default_prefix(options, runs[0].source_prefix)
        _check_texts(runs[0], settings, options)
        self._trained_search = trained_search = open_engines(SearchArguments(
            runs, as_list(checkpoint), as_list(model), ensemble, device, settings, processors, log_probs,
            attention or replace_unknown is not False, stream.threads,
            precision or default_precision(runs, engine)), stream, engine, export_first)
        vocabularies = trained_search.source_vocabulary, trained_search.target_vocabulary
        super().__init__(
            trained_search, *vocabularies, checkpoint=trained_search.checkpoint, search=settings, stream=stream,
            options=options, retry=retry, reranker=reranker,
            unknown=None if replace_unknown is False else UnknownWords(
                *vocabularies, None if replace_unknown is True else replace_unknown),
            special_lines=special_lines, languages=languages or languages_of(runs[0]),
            source_text=runs[0].source_text())

    @property
    def engine(self) -> str:  # type: ignore[override]
        """The engine of lines without options: `graph`, or name, version and precision of another engine."""
        return self._trained_search.engine if isinstance(self._trained_search, EngineChoice) else GRAPH

    @property
    def has_engine_choice(self) -> bool:
        """Whether CTranslate2 can translate lines, as soon as the run is exported."""
        return isinstance(self._trained_search, EngineChoice)

    def change_precision(self, precision: str) -> None:
        """Let CTranslate2 translate later streams in another precision; threads may translate meanwhile.

        The graph keeps its precision.

        Args:
            precision: precision of the weights: float32, int16 or int8.

        Raises:
            TowerNMTError: the translator has only the graph, or CTranslate2 cannot load the model.
            OSError: the export cannot be written.
        """
        if not isinstance(self._trained_search, EngineChoice):
            raise SettingsError(f"precision={precision}: this translator uses only TensorFlow's graph, which keeps its "
                                "precision. Open a Translator with engine='auto' on a processor; if it uses only the "
                                "graph, too, a log line names what to change.")
        self._trained_search.change_precision(precision)

    def current_search(self) -> Search:
        """Return the search for a stream that begins now."""
        search = self._trained_search
        return search.current() if isinstance(search, EngineChoice) else search

    def translate_stream(self, lines: Iterable[str | bytes | LineRequest], name: str = "input",
                         inputs: Iterable[LineInputs] | None = None, options: Iterable[LineOptions] | None = None,
                         first: int = 1) -> Iterator[Translation]:
        """Yield the translations of each line; see `LineTranslator`."""
        translations = super().translate_stream(lines, name, inputs, options, first)
        search = self._trained_search
        return search.export_during(translations) if isinstance(search, EngineChoice) else translations

    @property
    def predictor(self) -> OfflinePredictor:
        """The search as tensorpack's predictor.

        It maps source, int32 `[batch, source length]`, and source_length, int32 `[batch]`, to tokens, int32 `[batch,
        n_best, length]`, and scores, float32 `[batch, n_best]`. Additional inputs of the model or the processors follow
        these inputs; log-probabilities and attention follow these outputs.
        """
        return self._trained_search.predictor


def translation_config(run_dir: str | Path | SavedRun, beam_size: int | None = None, *, n_best: int | None = None,
                       checkpoint: str | None = None, device: str | None = None, **search: Any) -> PredictConfig:
    """Return the configuration of tensorpack's `OfflinePredictor` that translates token ids with a run.

    The predictor has the inputs and outputs of `Translator.predictor`.

    Args:
        run_dir: directory of a training run, a package, or an open run.
        beam_size: hypotheses per sentence; by default as in `Translator`.
        n_best: number of translations of each sentence; by default 1.
        checkpoint: "best", "last", "step-N" or the prefix of a checkpoint.
        device: "cpu", "gpu" or "gpu:N"; by default a GPU if available.
        search: other fields of `SearchSettings`.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """
    with without_noise():   # of TensorFlow, which these modules import
        from towernmt.predict.search.decoding_tower import (
            decoding_for,
            decoding_signature,
            decoding_tower,
            output_names,
        )
        from towernmt.predict.trained_model import TrainedModel

    run = open_run(run_dir, False)
    settings = search_settings(run.group("search", SearchSettings()), beam_size, n_best, search)
    trained, decoding = TrainedModel(run, checkpoint, device=device, averaged=settings.averaged), decoding_for(settings)
    return trained.predict_config(decoding_tower(trained.model, decoding),
                                  decoding_signature(trained.model, decoding), output_names(decoding))


def _check_texts(run: SavedRun, search: SearchSettings, options: LineOptions) -> None:
    """Check the shortlist and the options against the vocabularies before a graph is built."""
    if search.shortlist:
        Lexicon.load(search.shortlist).check_vocabularies(*run.vocabularies(), search.shortlist)
    if options != PLAIN:
        RequestEncoder(search, *run.vocabularies()).check(options)


def _with_threads(stream: StreamSettings, device: str | None) -> StreamSettings:
    """Return the settings with the number of batches that are translated concurrently."""
    if stream.threads:
        return stream
    if uses_gpu(device):
        return dataclasses.replace(stream, threads=1, shares=1)
    # A single sentence is also faster if no operation waits for a second thread.
    return dataclasses.replace(stream, threads=processors(), shares=1 if stream.window == 1 else stream.shares)
