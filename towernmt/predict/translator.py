"""A trained run as a translator: `Translator("runs/de-en").translate(["Guten Morgen!"])`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any, overload

from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.predict.alignment.unknown_words import UnknownWords
from towernmt.predict.batch_inputs import LineInputs
from towernmt.predict.decoding.assembly import decoding_for
from towernmt.predict.decoding.inputs import decoding_signature
from towernmt.predict.decoding.loop import Decoding
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.search import decoding_tower, output_names
from towernmt.predict.decoding.settings import SearchSettings, StreamSettings
from towernmt.predict.ensemble.settings import EnsembleSettings
from towernmt.predict.ensemble.trained_ensemble import open_trained
from towernmt.predict.hypotheses import Translation
from towernmt.predict.lexical.lexicon import Lexicon
from towernmt.predict.lines.faults import FaultCounts, retry_settings
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.predict.lines.requests import Requests
from towernmt.predict.reranking.reranker import WINDOW, Reranker, reranked
from towernmt.predict.stream import Searches, translate_stream
from towernmt.predict.text_io import clean_lines
from towernmt.predict.towers import Towers


class Translator:
    """Translates text with a checkpoint of a training run.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix); of an ensemble its members', joined by " + ".
        predictor: tensorpack's `OfflinePredictor`: (source int32 `[batch, source length]`, source_length
            int32 `[batch]`) to tokens int32 `[batch, n_best, length]` and scores float32
            `[batch, n_best]`. What the model or the processors declare beyond these two comes behind them, and so do
            log-probabilities and attention in what it gives.
        source_vocabulary, target_vocabulary: the run's vocabularies.
    """

    def __init__(self, run_dir: str | Path | Sequence[str | Path], beam_size: int | None = None, *,
                 n_best: int | None = None, checkpoint: str | Sequence[str] | None = None, device: str | None = None,
                 batch_tokens: int = StreamSettings.batch_tokens,
                 batch_sentences: int = StreamSettings.batch_sentences,
                 stream: StreamSettings | None = None, model: Any = None,
                 processors: Sequence[LogitsProcessor] = (), log_probs: bool = False, attention: bool = False,
                 options: LineOptions = PLAIN, retry: bool = False, ensemble: EnsembleSettings | None = None,
                 reranker: Reranker | None = None, replace_unknown: bool | Mapping[str, str] = False,
                 **search: Any) -> None:
        """
        Args:
            run_dir: the training run's directory (its --logdir); several are an ensemble, which searches as the
                first run's settings say.
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
            search: other fields of `SearchSettings`, such as `length_penalty`; those that are not given
                are as the run's settings have them.
        Raises:
            CheckpointError: there is no such checkpoint, or it does not fit the run's settings.
            SettingsError: a value that cannot work, no run, or a GPU that is not there.
        """
        runs = [SavedRun(place) for place in _several(run_dir)]
        self.search = _search_settings(runs[0].group("search", SearchSettings()), beam_size, n_best, search)
        self._reranker = reranker
        self._retry = retry_settings(self.search) if retry else None
        self.stream = stream or StreamSettings(batch_tokens=batch_tokens, batch_sentences=batch_sentences)
        with open_trained(runs, _several(checkpoint), _several(model), ensemble=ensemble, device=device,
                          averaged=self.search.averaged) as trained:
            self.checkpoint = trained.checkpoint
            self.source_vocabulary, self.target_vocabulary = trained.source_vocabulary, trained.target_vocabulary

            def decoding(settings: SearchSettings) -> Decoding:
                if settings.shortlist:
                    Lexicon.load(settings.shortlist).check_vocabularies(
                        self.source_vocabulary, self.target_vocabulary, settings.shortlist)
                return decoding_for(settings, processors, log_probs=log_probs,
                                    attention=attention or replace_unknown is not False)

            plain = decoding(self.search)
            self.predictor = trained.predictor(decoding_tower(trained.model, plain),
                                               decoding_signature(trained.model, plain), output_names(plain))
            self._towers = Towers(self.predictor, trained.model, decoding, self.search, self.target_vocabulary,
                                  trained.device)
        self._requests = Requests(self.search, self.target_vocabulary, options)
        self._unknown = None if replace_unknown is False else UnknownWords(
            self.source_vocabulary, self.target_vocabulary, None if replace_unknown is True else replace_unknown)

    @overload
    def translate(self, lines: str, inputs: LineInputs | None = None,  # type: ignore[overload-overlap]
                  options: LineOptions | None = None) -> str: ...

    @overload
    def translate(self, lines: Iterable[str], inputs: Iterable[LineInputs] | None = None,
                  options: Iterable[LineOptions] | None = None) -> list[str]: ...

    def translate(self, lines: str | Iterable[str], inputs: Any = None, options: Any = None) -> str | list[str]:
        """The best translation of each line, or of one sentence; a blank line gives an empty one.

        Args:
            inputs: for each line (of one sentence: for that one), by name what the model or the processors declare
                beyond `source` and `source_length`.
            options: for each line (of one sentence: for that one), what it asks for.
        """
        if isinstance(lines, str):
            return self.translate_nbest(lines, inputs, options)[0].text
        return [hypotheses[0].text for hypotheses in self.translate_nbest(lines, inputs, options)]

    @overload
    def translate_nbest(self, lines: str, inputs: LineInputs | None = None,  # type: ignore[overload-overlap]
                        options: LineOptions | None = None) -> Translation: ...

    @overload
    def translate_nbest(self, lines: Iterable[str], inputs: Iterable[LineInputs] | None = None,
                        options: Iterable[LineOptions] | None = None) -> list[Translation]: ...

    def translate_nbest(self, lines: str | Iterable[str], inputs: Any = None,
                        options: Any = None) -> Translation | list[Translation]:
        """Up to n_best translations of each line, or of one sentence, with their scores, best first.

        Args:
            inputs, options: as for `translate`.
        """
        if isinstance(lines, str):
            return next(self.translate_stream([lines], inputs=None if inputs is None else [inputs],
                                              options=None if options is None else [options]))
        return list(self.translate_stream(lines, inputs=inputs, options=options))

    def translate_stream(self, lines: Iterable[str | bytes], name: str = "input",
                         inputs: Iterable[LineInputs] | None = None, options: Iterable[LineOptions] | None = None,
                         first: int = 1) -> Iterator[Translation]:
        """As `translate_nbest`, for any number of lines: at most `stream.window` of them are read ahead.

        Args:
            lines: text, or bytes to be read as UTF-8 (what is broken becomes U+FFFD, with a warning).
            name: where the lines come from, for the warnings.
            inputs: for each line, by name what the model or the processors declare beyond `source` and
                `source_length`: arrays without the batch's dimension. Those of a batch are padded with 0.
            options: for each line, what it asks for. Lines may ask for different things: what shares a batch asks for
                the same ones.
            first: the number of the first line, for the warnings.
        Raises:
            DataError: there are not as many inputs or options as lines, or a line asks for what cannot be.
            SettingsError: an input is missing or not known; inputs and options both; a text in place of lines; or the
                process was forked from that of the translator.
        """
        if isinstance(lines, (str, bytes)):
            raise SettingsError("translate_stream takes lines, not one text: pass [text], or use translate(text).")
        if inputs is not None:
            if options is not None:
                raise SettingsError("Give inputs or options, not both: LineOptions(inputs=...) has both.")
            options = (LineOptions(inputs=given) for given in inputs)
        if self._reranker is None:
            return self._found(lines, name, options, first)
        if options is not None:     # all that the search finds is judged, however many a line asks for
            options = (dataclasses.replace(given, n_best=None) for given in options)
        sources, again = tee(clean_lines(lines, name, first))
        return reranked(self._found(again, name, options, first), self._reranker, sources,
                        min(WINDOW, self.stream.window), name)

    def _found(self, lines: Iterable[str | bytes], name: str, options: Iterable[LineOptions] | None,
               first: int) -> Iterator[Translation]:
        """What the search finds for each line."""
        lines, asked = self._requests.of_lines(lines, options, name, first)
        faults = FaultCounts(name)
        found = translate_stream(self._towers, self.source_vocabulary, self.target_vocabulary, lines, self.stream,
                                 name, asked, Searches(self._towers.with_settings, faults, self._retry), first)
        yield from found if self._unknown is None else map(self._unknown.replace, found)
        faults.warn()


def _search_settings(saved: SearchSettings, beam_size: int | None, n_best: int | None,
                     others: dict[str, Any]) -> SearchSettings:
    if beam_size is None:
        beam_size = max(saved.beam_size, n_best or 1)
    return dataclasses.replace(saved, beam_size=beam_size, n_best=1 if n_best is None else n_best, **others)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
