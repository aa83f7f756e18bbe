"""The models of a server by direction, and the choice of the model for a request.

A model is replaced without downtime: the new one is loaded and warmed up before it receives requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple
from weakref import WeakKeyDictionary

from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.dataflow.text.language_codes import Direction, language_name, plain_code, spoken
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.special_lines import copied
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.serve.batcher import Batcher, Cancellation, RoundStatistics
from towernmt.serve.language_detection import DetectedLanguage, detect_languages, detect_source_language
from towernmt.serve.model_loading import (
    COMMON_KINDS,
    RETRY_KIND,
    WARM_UP_SENTENCE,
    LoadedModel,
    search_kind,
    search_kinds,
    warm_up,
    warm_up_kind,
)
from towernmt.serve.request_limits import UnsupportedLanguageError, bad_request

log = logging.getLogger(__name__)


class ServedModel:
    """A model, its batcher, and the threads that prepare it. The model can be reloaded while it answers requests.

    Args:
        direction: translation direction.
        location: path of the model, or FILE.py:NAME of a custom engine.
        load_model: loads the model; called again for each reload.
        round_size, max_queue, on_round: as in `Batcher`.

    Attributes:
        model: the current model. A new value also begins a new cache of the terms that the model cannot write.
        batcher: translates the queued sentences of all requests.
        loaded_at: time of loading, in seconds since 1970.

    Raises:
        TowerNMTError: the model cannot be loaded, or does not translate.
    """

    def __init__(self, direction: Direction, location: str, load_model: Callable[[], LoadedModel], round_size: int,
                 max_queue: int, on_round: Callable[[RoundStatistics], None] = lambda _: None) -> None:
        self.direction, self.location, self._load_model = direction, location, load_model
        self._reload_lock = threading.Lock()
        self.model = self._load()
        self.loaded_at = time.time()
        self.batcher = Batcher(self.model.translate, round_size, max_queue, on_round)
        self._closing = False
        self._kinds_changed, self._unbuilt = threading.Condition(), search_kinds(self.model)
        self._requested_kinds = [kind for kind in (*COMMON_KINDS, RETRY_KIND) if kind in self._unbuilt]
        self._warm_up_thread = threading.Thread(target=self._warm_up_in_background, name="warm up", daemon=True)
        self._warm_up_thread.start()
        self._precision_thread = self._start_choosing_precision()

    @property
    def model(self) -> LoadedModel:
        return self._served.model

    @model.setter
    def model(self, model: LoadedModel) -> None:
        self._served = _ServedVersion(model, WeakKeyDictionary())

    @property
    def is_warm(self) -> bool:
        """Whether all common kinds of search are ready."""
        return self._unbuilt.isdisjoint(COMMON_KINDS)

    def wait_until_warm(self, options: Sequence[LineOptions], cancellation: Cancellation) -> None:
        """Wait until the searches that sentences need are built, so that the model's thread does not build them.

        Raises:
            RequestError: the client no longer waits.
        """
        if not self._unbuilt:
            return
        kinds = {search_kind(line_options) for line_options in options}
        with self._kinds_changed:
            self._requested_kinds += [kind for kind in kinds & self._unbuilt if kind not in self._requested_kinds]
            self._kinds_changed.notify_all()
            while self._unbuilt & kinds:
                cancellation.check()
                self._kinds_changed.wait(0.5)

    def unwritable(self, terminology: Terminology) -> Mapping[Term, str]:
        """Return the terms that the model cannot write, each with an error message."""
        model, cache = self._served
        if terminology not in cache:
            cache[terminology] = _unwritable_terms(model, terminology)
        return cache[terminology]

    def close(self) -> None:
        """Translate the queued sentences, refuse new ones, and end all threads."""
        with self._kinds_changed:
            self._closing = True
            self._unbuilt = set()
            self._kinds_changed.notify_all()
        self.batcher.close()
        self._warm_up_thread.join()
        self._precision_thread.join()

    def reload(self) -> None:
        """Reload the model from its location, and use the new one from the next round on.

        Raises:
            TowerNMTError: the new model cannot be loaded; the old one stays in use.
        """
        with self._reload_lock:
            model = self._load()
            built: set[frozenset[str]] = set()
            while (kind := self._replace_model(model, built)) is not None:
                warm_up_kind(model, kind, _sample_word(model))
                built.add(kind)
            self._precision_thread.join()       # it ends at its next sentence, because its model is replaced
            self._precision_thread = self._start_choosing_precision()

    def _replace_model(self, model: LoadedModel, built: Set[frozenset[str]]) -> frozenset[str] | None:
        """Use a new model from the next round on, or return a kind of search that it lacks and the current one has.

        Args:
            model: the new model.
            built: the kinds of search that were built with the new model.
        """
        with self._kinds_changed:       # meanwhile, no kind becomes built
            kinds = search_kinds(model)
            missing = kinds - self._unbuilt - built
            if missing and not self._closing:
                return next(iter(missing))
            self.model, self.loaded_at = model, time.time()
            self.batcher.translate = model.translate
            self._unbuilt = self._unbuilt & kinds
            self._kinds_changed.notify_all()
            return None

    def _start_choosing_precision(self) -> threading.Thread:
        """Start the thread in which the model chooses its precision, and return the thread."""
        thread = threading.Thread(target=self._choose_precision, args=(self.model,), name="precision", daemon=True)
        thread.start()
        return thread

    def _choose_precision(self, model: LoadedModel) -> None:
        """Let the model choose its precision while it answers requests."""
        if model.choose_precision is None:
            return
        try:
            model.choose_precision(lambda: self._closing or self.model is not model)
        except Exception as error:  # noqa: BLE001 -- the model keeps its precision
            log.error("%s: choosing the precision failed, so it stays %s.", self.direction, model.engine(),
                      exc_info=error)

    def _warm_up_in_background(self) -> None:
        """Build searches while the plain search answers requests: the common ones now, the others on demand."""
        start = time.monotonic()
        while (kind := self._next_kind()) is not None:
            was_warm = self.is_warm
            self._build(kind)
            if self.is_warm and not was_warm:
                log.info("%s: searches with constraints, glossaries and prefixes are ready after %.1f s.",
                         self.direction, time.monotonic() - start)

    def _build(self, kind: frozenset[str]) -> None:
        """Build a kind of search. It stays unbuilt if the model is replaced meanwhile."""
        model = self.model
        try:
            warm_up_kind(model, kind, _sample_word(model))
        except Exception as error:  # noqa: BLE001 -- requests that need this search report why it cannot be built
            log.error("%s: building a search failed: %s", self.direction,
                      error if isinstance(error, TowerNMTError) else type(error).__name__, exc_info=error)
        with self._kinds_changed:
            if self.model is model:
                self._unbuilt = self._unbuilt - {kind}
                self._kinds_changed.notify_all()

    def _next_kind(self) -> frozenset[str] | None:
        """Wait for a kind of search to build and return it, or None after the last one."""
        with self._kinds_changed:
            while not self._closing and self._unbuilt:
                self._requested_kinds = [kind for kind in self._requested_kinds if kind in self._unbuilt]
                if self._requested_kinds:
                    return self._requested_kinds[0]
                self._kinds_changed.wait()
            return None

    def _load(self) -> LoadedModel:
        start = time.monotonic()
        model = self._load_model()
        warm_up(model, self.location)
        log.info("%s: %s is ready after %.1f s%s.", self.direction, self.location, time.monotonic() - start,
                 f" (engine: {model.engine()})" if model.engine() else "")
        return model


class _ServedVersion(NamedTuple):
    """A version of a model, and the terms that it cannot write, each with an error message, by terminology."""

    model: LoadedModel
    unwritable: WeakKeyDictionary[Terminology, dict[Term, str]]


def _unwritable_terms(model: LoadedModel, terminology: Terminology) -> dict[Term, str]:
    """Return an error message for each term that the model's vocabulary cannot write."""
    errors: dict[Term, str] = {}
    try:
        model.check(LineOptions(terminology=terminology))
    except (DataError, SettingsError):
        for term in terminology.terms:
            try:
                model.check(LineOptions(terminology=Terminology([term])))
            except (DataError, SettingsError) as error:
                errors[term] = str(error)
    return errors


def _sample_word(model: LoadedModel) -> str:
    """Return a word that the model writes."""
    return next(iter(model.translate([WARM_UP_SENTENCE], None)[0][0].text.split()), WARM_UP_SENTENCE)


class Models:
    """All models of a server, at least one.

    Raises:
        SettingsError: two models have the same direction.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.direction: model for model in models}
        if len(self._models) < len(models):
            raise SettingsError("--model: two models have the same direction: serve one of them at another port.")
        self._copiers: dict[str, ServedModel] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def sources(self) -> list[str]:
        """Source languages of all models."""
        return sorted({direction.source for direction in self._models})

    @property
    def targets(self) -> list[str]:
        """Target languages of all models."""
        return sorted({direction.target for direction in self._models})

    @property
    def languages(self) -> list[str]:
        """Codes of all source and target languages."""
        return sorted({*self.sources, *self.targets})

    @property
    def max_alternatives(self) -> int:
        """The largest number of translations of a sentence that a model returns."""
        return max(model.model.alternatives for model in self)

    def targets_of(self, source: str) -> list[str]:
        """Return the target languages of a source language."""
        return sorted(direction.target for direction in self._models if direction.source == source)

    def sources_of(self, target: str) -> list[str]:
        """Return the source languages of a target language."""
        return sorted(direction.source for direction in self._models if direction.target == target)

    def find(self, source: str | None, target: str | None, sample: str,
             only_sources: bool = False) -> tuple[ServedModel, DetectedLanguage | None]:
        """Return the model that a request means.

        A text that is in the target language already is served by a model that copies it.

        Args:
            source: code; None or "auto" if the request does not name it.
            target: code; None if the request does not name it.
            sample: the beginning of the text, in which the source language is detected.
            only_sources: whether the text counts as one that can be translated, even if it seems to be in a language
                that the server does not translate into the target.

        Returns:
            the model, and the detected language if the request does not name the source language.

        Raises:
            RequestError: the server has no such model, or cannot detect the language.
        """
        if target is None:
            if len(self.targets) > 1:
                raise bad_request(f"'target' is missing: this server translates into {', '.join(self.targets)}.")
            target = self.targets[0]
        target_code = spoken(target, self.targets)
        if target_code is None:
            raise UnsupportedLanguageError("target", f"{plain_code(target)[:40]} is not supported",
                                           f"this server translates into {', '.join(self.targets)}.")
        sources = self.sources_of(target_code)
        if source is None or source.lower() == "auto":
            if len(self._models) == 1:
                detected = detect_languages(sample, sources)[0]
            else:
                others = [] if only_sources else sorted({*self.languages} - {*sources, target_code})
                detected = detect_source_language(sample, sources, target_code, others)
            return self._model_for(detected.language, target_code), detected
        source_code = spoken(source, sources) or spoken(source, self.languages)
        if source_code is None:
            raise UnsupportedLanguageError("source", f"{plain_code(source)[:40]} is not supported",
                                           f"this server translates into {language_name(target_code)} from "
                                           f"{', '.join(sources)}.")
        return self._model_for(source_code, target_code), None

    def _model_for(self, source: str, target: str) -> ServedModel:
        """Return the model of a direction.

        Raises:
            RequestError: both languages are served, but not this direction.
        """
        if source == target:
            return self._copying_model(target)
        model = self._models.get(Direction(source, target))
        if model is None:
            raise UnsupportedLanguageError(
                "source", f"{language_name(target)} ({target}) is not available as a target language from "
                          f"{language_name(source)} ({source})",
                f"this server translates into {language_name(target)} from {', '.join(self.sources_of(target))}.")
        return model

    def _copying_model(self, language: str) -> ServedModel:
        """Return the model that copies texts of a language."""
        with self._lock:
            if language not in self._copiers:
                self._copiers[language] = ServedModel(
                    Direction(language, language), "a copy of each text",
                    lambda: LoadedModel(_copy_translations, "", self.max_alternatives, aligns=True, constrains=True),
                    round_size=1_000, max_queue=100_000)
            return self._copiers[language]

    def reload(self) -> dict[str, str]:
        """Reload all models from their locations.

        Returns:
            An error message for each direction; "" means success.
        """
        errors = {}
        for direction, model in self._models.items():
            try:
                model.reload()
                errors[str(direction)] = ""
            except TowerNMTError as error:
                errors[str(direction)] = str(error)
            except Exception as error:  # noqa: BLE001 -- the old model stays, and the log says why
                log.error("%s: the new model cannot be loaded.", direction, exc_info=error)
                errors[str(direction)] = "The model cannot be loaded; see the server's log for the reason."
        with self._lock:
            for copier in self._copiers.values():
                copier.reload()         # the largest number of translations may have changed
        return errors

    def health_problem(self, max_seconds: float) -> str | None:
        """Return why a model is not responding, or None if all are.

        Args:
            max_seconds: maximum seconds of a round of sentences.
        """
        for direction, model in self._models.items():
            if problem := model.batcher.health_problem(max_seconds):
                return f"The model {direction} does not answer: {problem}."
        return None

    def close(self) -> None:
        """Translate the queued sentences, refuse new ones, and end all threads."""
        for model in (*self._models.values(), *self._copiers.values()):
            model.close()


def _copy_translations(sentences: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
    """Return sentences as their own translations."""
    return list(map(copied, sentences))
