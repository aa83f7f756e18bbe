"""Load what `--model` names: a run, a package or an export by an engine, or a custom engine."""

from __future__ import annotations

import importlib.util
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.checkpoint.package_reader import is_package
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import is_export
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.machine import processors
from towernmt.dataflow.text.language_codes import Direction, parse_direction, plain_code, written_language
from towernmt.documents.shields import EVERYTHING, Protection
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.engine_choice import ENGINES as TRANSLATOR_ENGINES
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.search.search_settings import SWITCH, SearchSettings, SpecialLineSettings, StreamSettings
from towernmt.serve.batcher import EngineError, Translate, check_translations

if TYPE_CHECKING:
    from towernmt.interop.int8_measurement import MeasuredCheckpoint

ENGINES = (*TRANSLATOR_ENGINES, "ctranslate2")
"""Supported engines; the first is the default."""
_CUSTOM_ENGINE = re.compile(r".+\.py:\w+")


class ModelPlace(NamedTuple):
    """A parsed value of `--model`.

    Attributes:
        direction: translation direction; None means the direction that the model records.
        place: a path, or FILE.py:NAME of a custom engine.
    """

    direction: Direction | None
    place: str


@dataclass(frozen=True)
class EngineSettings:
    """Options for opening models.

    Attributes:
        engine: one of `ENGINES`.
        precision: precision of the engine; None means that of `Translator`, and int8 on processors for a run whose
            BLEU in int8 was measured.
        device: "cpu", "gpu" or "gpu:N"; None means a GPU if available.
        alternatives: maximum number of translations per sentence.
        alignments: whether translations have word alignments and probabilities.
        stream: how sentences are batched.
        search: fields of `SearchSettings` that override those of the model.
        trust_code: whether the code of a model in a package may be executed.
        retry: whether the search is repeated for translations that are empty, repetitive or cut.
        special_lines: as in `Translator`.
        protect: regular expressions of words that translations must not change.
    """

    engine: str = ENGINES[0]
    precision: str | None = None
    device: str | None = None
    alternatives: int = 3
    alignments: bool = True
    stream: StreamSettings = StreamSettings()
    search: tuple[tuple[str, Any], ...] = ()
    trust_code: bool = False
    retry: bool = True
    special_lines: SpecialLineSettings = SpecialLineSettings()
    protect: tuple[str, ...] = ()

    @property
    def protection(self) -> Protection:
        """The words and symbols that the translation of a text must not change."""
        return Protection(self.special_lines.protection == SWITCH[0], self.protect)

    @property
    def round_size(self) -> int:
        """Maximum number of sentences in a round: one batch per thread."""
        return self.stream.batch_sentences * (self.stream.threads or processors())


class OpenedModel(NamedTuple):
    """A loaded model: its function of translation, and the features that it supports.

    Attributes:
        translate: function that translates sentences.
        name: name of the model and its checkpoint, without directories.
        alternatives: maximum number of translations per sentence.
        aligns: whether translations have word alignments.
        constrains: whether it supports prefixes, lexical constraints and terminologies.
        card: content of `model-card.json` of a package; None for other models.
        check: raises `SettingsError` or `DataError` for options that the model cannot satisfy, such as words that its
            vocabulary cannot write. Thread-safe.
        protection: the words and symbols of texts that become placeholders.
        retry: changed search settings of the second search for faulty translations; empty for no second search.
        engine: returns the name of the engine of sentences without options, with its version and precision, or "".
        choose_precision: measures whether the model can use int8, and changes its precision accordingly while it
            translates; None if the precision is chosen already. Called with a function that returns whether to stop.
    """

    translate: Translate
    name: str
    alternatives: int = 1
    aligns: bool = False
    constrains: bool = False
    card: Mapping[str, Any] | None = None
    check: Callable[[LineOptions], None] = lambda _: None
    protection: Protection = EVERYTHING
    retry: Mapping[str, Any] = MappingProxyType({})
    engine: Callable[[], str] = str
    choose_precision: Callable[[Callable[[], bool]], None] | None = None


def parse_model(text: str) -> ModelPlace:
    """Parse `DIRECTION=PLACE` or a place without a direction.

    Raises:
        SettingsError: the text before `=` is not a direction.
    """
    before, equals, after = text.partition("=")
    if not equals or "/" in before:     # a path may have an `=` in it
        return ModelPlace(None, text)
    return ModelPlace(parse_direction(before), after)


def direction_of(place: str) -> Direction:
    """Return the direction that a model records.

    Raises:
        SettingsError: the model records no direction; only packages do.
        CheckpointError: the package is damaged.
    """
    languages = PackagedRun(place).languages if is_package(place) else None
    if languages is None:
        raise SettingsError(f"--model {place} does not name its languages: write, for example, --model de-en={place}.")
    return Direction(*map(plain_code, languages))


def open_place(place: str, settings: EngineSettings, direction: Direction | None = None) -> OpenedModel:
    """Load the model at a place.

    Args:
        place: path of the model, or name of a custom engine.
        settings: options for opening models.
        direction: translation direction, for the letter case; None if it is unknown.

    Raises:
        TowerNMTError: the model does not exist, or does not support the settings.
    """
    if _CUSTOM_ENGINE.fullmatch(place):
        return _custom_engine(place)._replace(protection=settings.protection)
    languages = None if direction is None else (written_language(direction.source), written_language(direction.target))
    common: dict[str, Any] = {"options": LineOptions(protect=settings.protect), "retry": settings.retry,
                              "special_lines": settings.special_lines, "languages": languages}
    search = dict(settings.search)
    beam = search.pop("beam_size", None)
    n_best = settings.alternatives if beam is None else min(settings.alternatives, beam)
    if settings.engine == "ctranslate2" or (settings.engine == "auto" and is_export(place)):
        from towernmt.interop.ctranslate2_engine import CTranslate2Translator

        return _opened(place, CTranslate2Translator(
            place, beam, n_best=n_best, precision=settings.precision, device=settings.device, stream=settings.stream,
            log_probs=settings.alignments, attention=settings.alignments, trust_code=settings.trust_code,
            **common, **search), settings.protection, n_best, settings.alignments)
    from towernmt.predict.translator import Translator

    measured = _measured_checkpoint(place, settings)
    kept = None if measured is None else measured.kept()
    translator = Translator(place, beam, n_best=n_best, device=settings.device, stream=settings.stream,
                            attention=settings.alignments, log_probs=settings.alignments,
                            engine=settings.engine, precision=settings.precision if kept is None else kept.precision,
                            trust_code=settings.trust_code, **common, **search)
    opened = _opened(place, translator, settings.protection, n_best, settings.alignments, True)
    if measured is None or kept is not None or not translator.has_engine_choice or (
            translator.checkpoint != measured.checkpoint):      # training has written a better checkpoint meanwhile
        return opened

    def choose_precision(stopped: Callable[[], bool]) -> None:
        result = measured.measure("" if direction is None else direction.target, stopped)
        if result is not None and result.precision != PRECISIONS[0] and not stopped():
            translator.change_precision(result.precision)

    return opened._replace(choose_precision=choose_precision)


def _measured_checkpoint(place: str, settings: EngineSettings) -> MeasuredCheckpoint | None:
    """Return the checkpoint of a run for which a measurement chooses the precision, or None."""
    run = SavedRun(place)
    if settings.engine != TRANSLATOR_ENGINES[0] or settings.precision is not None or not run.exists():
        return None
    from towernmt.interop.int8_measurement import MeasuredCheckpoint

    averaged = dict(settings.search).get("averaged", run.group("search", SearchSettings()).averaged)
    return MeasuredCheckpoint(run, averaged)


SENTENCE, OTHER = "a 1 2 3.", "a b c"


def warm_up(model: OpenedModel, place: str) -> None:
    """Translate two sentences, so that graphs are built before the first request, and check the result.

    Raises:
        TowerNMTError: the model does not translate, or returns something that is not a list of translations.
    """
    lines = [SENTENCE, f"{SENTENCE} {SENTENCE}"]
    for options in (None, [LineOptions(n_best=model.alternatives)] * len(lines)):
        with _blaming(place, "fails at its first sentences"):
            try:
                found = check_translations(model.translate(lines, options), len(lines))
                for translation in found:
                    translation[0].links()
            except EngineError as error:
                raise SettingsError(f"--model {place}: {error}") from None


def search_kind(options: LineOptions) -> frozenset[str]:
    """Return which search a sentence with these options needs: the names of the options that change the search.

    A prefix with a partial last word also needs the search with complete words, for words that no token begins with.
    """
    names = {name for name in ("prefix", "constraints", "avoid") if getattr(options, name)}
    if options.terminology is not None:
        names.add("constraints")
    return frozenset(names | ({"partial_word"} if options.prefix and options.partial_word else set()))


COMMON = [frozenset(names) for names in (
    {"constraints"}, {"prefix"}, {"prefix", "partial_word"}, {"avoid"}, {"prefix", "avoid"})]
"""Kinds of search that every server prepares: those of glossaries, of placeholders and of the page."""
RETRY = frozenset({"retry"})
"""The kind of the second search for faulty translations, which a server prepares after the common ones."""


def kinds_of(model: OpenedModel) -> set[frozenset[str]]:
    """Return all kinds of search that requests can need, except the plain one."""
    if not model.constrains:
        return set()
    prefixes: list[set[str]] = [set(), {"prefix"}, {"prefix", "partial_word"}]
    others: list[set[str]] = [set(), {"constraints"}, {"avoid"}, {"constraints", "avoid"}]
    kinds = {frozenset(prefix | other) for prefix in prefixes for other in others if prefix or other}
    return kinds | ({RETRY} if model.retry else set())


def warm_up_kind(model: OpenedModel, kind: frozenset[str], word: str) -> None:
    """Translate by a kind of search, so that no request waits until it is built.

    Args:
        model: the model to warm up.
        kind: names of the options that the search supports.
        word: a word that the model writes.

    Raises:
        TowerNMTError: the model does not translate.
    """
    options = LineOptions(prefix=word if "prefix" in kind else "", partial_word="partial_word" in kind, n_best=1,
                          constraints=[word] if "constraints" in kind else [], avoid=[OTHER] if "avoid" in kind else [],
                          search=model.retry if kind == RETRY else {})
    with suppress(SettingsError, DataError):    # a word that its vocabulary does not write again: requests name others
        model.translate([SENTENCE], [options])


def _opened(place: str, translator: LineTranslator, protection: Protection, n_best: int, aligns: bool = False,
            constrains: bool = False) -> OpenedModel:
    def translate(lines: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
        return list(translator.translate_stream(lines, "sentence", options=options))

    return OpenedModel(translate, f"{Path(place).name} {Path(translator.checkpoint).parent.name}".strip(), n_best,
                       aligns, constrains, PackagedRun(place).card if is_package(place) else None, translator.check,
                       protection, translator.retry, lambda: translator.engine)


def _custom_engine(place: str) -> OpenedModel:
    """Open the custom engine of FILE.py:NAME.

    NAME is a class, or a function without arguments, that returns a `Translate`. Its attributes `alternatives`,
    `aligns`, `constrains` and `card` are those of `OpenedModel`.

    Raises:
        SettingsError: the file or the name does not exist, its code fails, or it does not return a function.
    """
    file, _, name = place.rpartition(":")
    if not Path(file).is_file():
        raise SettingsError(f"--model {place}: the file {file} does not exist.")
    spec = importlib.util.spec_from_file_location(f"{Path(file).stem}@serve", file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"--model {place}: {file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    with _blaming(place, "cannot be loaded"):
        spec.loader.exec_module(module)
        made = getattr(module, name, lambda: None)()
    if not callable(made):
        raise SettingsError(f"--model {place}: {name} must be a class, or a function without arguments, that returns "
                            "a function of sentences and their options.")
    given = {field: getattr(made, field, default) for field, default in _ATTRIBUTES.items()}
    for field, value in given.items():
        if type(value) is not type(_ATTRIBUTES[field]) or value < _ATTRIBUTES[field]:
            raise SettingsError(f"--model {place}: the engine's attribute {field} is {value!r}: it must be "
                                f"{'a whole number from 1' if field == 'alternatives' else 'True or False'}.")
    card = getattr(made, "card", None)
    if not isinstance(card, Mapping | None):
        raise SettingsError(f"--model {place}: the engine's attribute card is {card!r}: it must be a dictionary.")
    return OpenedModel(made, Path(place).name, **given, card=card)


_ATTRIBUTES: dict[str, Any] = {"alternatives": 1, "aligns": False, "constrains": False}
"""Attributes of a custom engine, and their defaults, which are the least values."""


@contextmanager
def _blaming(place: str, what: str) -> Iterator[None]:
    """Convert an exception of a custom engine into one sentence with the file and line that raised it.

    Raises:
        SettingsError: the block raised anything but a `TowerNMTError`.
    """
    try:
        yield
    except TowerNMTError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise SettingsError(f"--model {place}: the engine {what}: {message} ({frame.filename} line {frame.lineno}). "
                            "Correct its code.") from error
