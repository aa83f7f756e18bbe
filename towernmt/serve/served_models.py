"""The models of a server by direction, the choice of the model for a request, and language detection.

A model is replaced without downtime: the new one is loaded and warmed up before it receives requests. Languages are
detected among those that the server supports.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.dataflow.text.language_codes import Direction, language_name, plain_code, spoken
from towernmt.dataflow.text.pair_filters import identified_code, language_probabilities
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.special_lines import copied
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.serve.batcher import Batcher, Round, Ticket
from towernmt.serve.model_loading import (
    COMMON,
    RETRY,
    SENTENCE,
    OpenedModel,
    kinds_of,
    search_kind,
    warm_up,
    warm_up_kind,
)
from towernmt.serve.request_limits import UnsupportedLanguage, bad

log = logging.getLogger(__name__)


class ServedModel:
    """A model and its thread.

    Args:
        direction: translation direction.
        place: path of the model, or name of a custom engine.
        open_model: loads the model; called again for each exchange.
        round_size, longest_queue, watch: as in `Batcher`.

    Attributes:
        model: the current model.
        batcher: its thread.
        loaded: time of loading, in seconds since 1970.

    Raises:
        TowerNMTError: the model cannot be loaded, or does not translate.
    """

    def __init__(self, direction: Direction, place: str, open_model: Callable[[], OpenedModel], round_size: int,
                 longest_queue: int, watch: Callable[[Round], None] = lambda _: None) -> None:
        self.direction, self.place, self._open = direction, place, open_model
        self._exchanging = threading.Lock()
        self.model = self._loaded()
        self.loaded = time.time()
        self._unwritable: tuple[OpenedModel, WeakKeyDictionary[Terminology, dict[Term, str]]] = (
            self.model, WeakKeyDictionary())
        self.batcher = Batcher(self.model.translate, round_size, longest_queue, watch)
        self._closing = False
        self._warm, self._cold = threading.Condition(), kinds_of(self.model)
        self._wanted = [kind for kind in (*COMMON, RETRY) if kind in self._cold]
        self._warming = threading.Thread(target=self._warm_up_in_background, name="warm up", daemon=True)
        self._warming.start()
        self._choosing = self._choose_in_background()

    @property
    def is_warm(self) -> bool:
        """Whether all common kinds of search are ready."""
        return self._cold.isdisjoint(COMMON)

    def wait_until_warm(self, options: Sequence[LineOptions], ticket: Ticket) -> None:
        """Wait until the searches that sentences need are built, so that the model's thread does not build them.

        Raises:
            Refusal: the client no longer waits.
        """
        if not self._cold:
            return
        kinds = {search_kind(one) for one in options}
        with self._warm:
            self._wanted += [kind for kind in kinds & self._cold if kind not in self._wanted]
            self._warm.notify_all()
            while self._cold & kinds:
                ticket.check()
                self._warm.wait(0.5)

    def unwritable(self, terminology: Terminology) -> Mapping[Term, str]:
        """Return the terms that the model cannot write, each with an error message."""
        model, known = self._unwritable
        if model is not self.model:
            model, known = self._unwritable = self.model, WeakKeyDictionary()
        if terminology not in known:
            known[terminology] = _unwritable(model, terminology)
        return known[terminology]

    def close(self) -> None:
        """Translate the submitted work, refuse new work, and end all threads."""
        with self._warm:
            self._closing = True
            self._cold = set()
            self._warm.notify_all()
        self.batcher.close()
        self._warming.join()
        self._choosing.join()

    def exchange(self) -> None:
        """Reload the model from its place, and use the new one from the next round on.

        Raises:
            TowerNMTError: the new model cannot be loaded; the old one stays in use.
        """
        with self._exchanging:
            model = self._loaded()
            for kind in kinds_of(model) - self._cold:
                warm_up_kind(model, kind, _word_of(model))
            self.model = model
            self.batcher.translate = self.model.translate
            self.loaded = time.time()
            self._choosing.join()       # it ends at its next sentence, because its model is replaced
            self._choosing = self._choose_in_background()

    def _choose_in_background(self) -> threading.Thread:
        """Start the thread in which the model chooses its precision, and return the thread."""
        thread = threading.Thread(target=self._choose_precision, args=(self.model,), name="precision", daemon=True)
        thread.start()
        return thread

    def _choose_precision(self, model: OpenedModel) -> None:
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
        begun = time.monotonic()
        while (kind := self._next_kind()) is not None:
            try:
                warm_up_kind(self.model, kind, _word_of(self.model))
            except Exception as error:  # noqa: BLE001 -- requests that need this search report why it cannot be built
                log.error("%s: building a search failed: %s", self.direction,
                          error if isinstance(error, TowerNMTError) else type(error).__name__, exc_info=error)
            was_warm = self.is_warm
            with self._warm:
                self._cold = self._cold - {kind}
                self._warm.notify_all()
            if self.is_warm and not was_warm:
                log.info("%s: searches with constraints, glossaries and prefixes are ready after %.1f s.",
                         self.direction, time.monotonic() - begun)

    def _next_kind(self) -> frozenset[str] | None:
        """Wait for a kind of search to build and return it, or None after the last one."""
        with self._warm:
            while not self._closing and self._cold:
                self._wanted = [kind for kind in self._wanted if kind in self._cold]
                if self._wanted:
                    return self._wanted[0]
                self._warm.wait()
            return None

    def _loaded(self) -> OpenedModel:
        begun = time.monotonic()
        model = self._open()
        warm_up(model, self.place)
        log.info("%s: %s is ready after %.1f s%s.", self.direction, self.place, time.monotonic() - begun,
                 f" (engine: {model.engine()})" if model.engine() else "")
        return model


def _unwritable(model: OpenedModel, terminology: Terminology) -> dict[Term, str]:
    """Check the terms one by one, if they cannot all be written."""
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


def _word_of(model: OpenedModel) -> str:
    """Return a word that the model writes."""
    return next(iter(model.translate([SENTENCE], None)[0][0].text.split()), SENTENCE)


SAMPLE = 2_000
"""Characters of a text that the detector reads."""
TIMES_TARGET, TIMES_OTHER = 3.0, 9.0
"""A text counts as a language that it cannot be translated from only if that language is this many times as probable as
each language that it can be translated from. The first number is for the language of the translation: then the text
stays unchanged. The second number is for other languages: then the request is refused."""


class Detected(NamedTuple):
    """A language, and its probability among all languages that the detector knows, 0 to 1."""

    language: str
    confidence: float


def detect(text: str, languages: Sequence[str]) -> list[Detected]:
    """Return the languages that can be detected, the most probable first. A single language is returned in any case.

    Args:
        text: text to identify.
        languages: codes, at least one.

    Raises:
        Refusal: there are several languages, and none of them can be detected.
    """
    found = _ranked(text, languages)
    if found:
        return found
    if len(languages) == 1:
        return [Detected(languages[0], 0.0)]
    raise bad(f"Name the source language: none of {', '.join(languages)} can be detected here. (Detection needs the "
              "package py3langid: pip install 'towernmt[serve]'.)")


def detect_source(text: str, sources: Sequence[str], target: str, others: Sequence[str] = ()) -> Detected:
    """Return the language of a text that is to be translated.

    Args:
        text: text to identify.
        sources: codes of the languages that are translated into the target, at least one.
        target: the language of the translation, which the text may be in already.
        others: further languages that the text may be in, though they are not translated into the target.

    Raises:
        Refusal: there are several sources, and none of them can be detected.
    """
    best = detect(text, sources)[0]
    if not best.confidence:         # the only source, which cannot be detected
        return best
    labels = {identified_code(code) for code in sources}
    for candidates, times in (([target], TIMES_TARGET), (others, TIMES_OTHER)):
        found = _ranked(text, [code for code in candidates if identified_code(code) not in labels])
        if found and found[0].confidence >= times * best.confidence:
            return found[0]
    return best


def _ranked(text: str, languages: Sequence[str]) -> list[Detected]:
    """Return the languages that can be detected, the most probable first."""
    try:
        probabilities = language_probabilities(text[:SAMPLE])
    except SettingsError:       # py3langid is not installed: the caller decides whether detection is needed
        return []
    found = [Detected(code, probabilities[label]) for code in languages
             if (label := identified_code(code)) in probabilities]
    return sorted(found, key=lambda one: -one.confidence)


class Models:
    """All models of a server, at least one.

    Raises:
        SettingsError: two models have the same direction.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.direction: model for model in models}
        if len(self._models) < len(models):
            raise SettingsError("--model: two models have the same direction: serve one of them at another port.")
        self._copying: dict[str, ServedModel] = {}
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

    def targets_of(self, source: str) -> list[str]:
        """Return the target languages of a source language."""
        return sorted(direction.target for direction in self._models if direction.source == source)

    def sources_of(self, target: str) -> list[str]:
        """Return the source languages of a target language."""
        return sorted(direction.source for direction in self._models if direction.target == target)

    def find(self, source: str | None, target: str | None, sample: str,
             only_sources: bool = False) -> tuple[ServedModel, Detected | None]:
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
            Refusal: the server has no such model, or cannot detect the language.
        """
        if target is None:
            if len(self.targets) > 1:
                raise bad(f"Into which language? There are {_listed(self.targets)}.")
            target = self.targets[0]
        known = spoken(target, self.targets)
        if known is None:
            raise UnsupportedLanguage("target", f"{plain_code(target)[:40]} is not supported",
                                      f"this server translates into {_listed(self.targets)}.")
        sources = self.sources_of(known)
        if source is None or source.lower() == "auto":
            if len(self._models) == 1:
                detected = detect(sample, sources)[0]
            else:
                others = [] if only_sources else sorted({*self.languages} - {*sources, known})
                detected = detect_source(sample, sources, known, others)
            return self._of(detected.language, known), detected
        found = spoken(source, sources) or spoken(source, self.languages)
        if found is None:
            raise UnsupportedLanguage("source", f"{plain_code(source)[:40]} is not supported",
                                      f"this server translates into {language_name(known)} from {_listed(sources)}.")
        return self._of(found, known), None

    def _of(self, source: str, target: str) -> ServedModel:
        """Return the model of a direction.

        Raises:
            Refusal: both languages are served, but not this direction.
        """
        if source == target:
            return self._copier(target)
        model = self._models.get(Direction(source, target))
        if model is None:
            raise UnsupportedLanguage(
                "source", f"{language_name(target)} ({target}) is not available as a target language from "
                          f"{language_name(source)} ({source})",
                f"this server translates into {language_name(target)} from {_listed(self.sources_of(target))}.")
        return model

    def _copier(self, language: str) -> ServedModel:
        """Return the model that copies texts of a language."""
        with self._lock:
            if language not in self._copying:
                self._copying[language] = ServedModel(
                    Direction(language, language), "a copy of each text",
                    lambda: OpenedModel(_copied, "", alternatives=100, aligns=True, constrains=True),
                    round_size=1_000, longest_queue=100_000)
            return self._copying[language]

    def exchange(self) -> dict[str, str]:
        """Reload all models from their places.

        Returns:
            An error message for each direction; "" means success.
        """
        errors = {}
        for direction, model in self._models.items():
            try:
                model.exchange()
                errors[str(direction)] = ""
            except TowerNMTError as error:
                errors[str(direction)] = str(error)
            except Exception as error:  # noqa: BLE001 -- the old model stays, and the log says why
                log.error("%s: the new model cannot be loaded.", direction, exc_info=error)
                errors[str(direction)] = "The model cannot be loaded; see the server's log for the reason."
        return errors

    def why_unwell(self, longest: float) -> str | None:
        """Return why a model is not responding, or None if all are.

        Args:
            longest: maximum seconds of a round of sentences.
        """
        found = ((direction, model.batcher.why_unwell(longest)) for direction, model in self._models.items())
        return next((f"The model {direction} does not answer: {why}." for direction, why in found if why), None)

    def close(self) -> None:
        """Translate the submitted work, refuse new work, and end all threads."""
        for model in (*self._models.values(), *self._copying.values()):
            model.close()


def _copied(sentences: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
    """Return sentences as their own translations."""
    return list(map(copied, sentences))


def _listed(codes: Sequence[str]) -> str:
    return ", ".join(codes)
