"""Load what `--model` names: a run, a package or an export by an engine, or a custom engine."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.checkpoint.package_reader import is_package
from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import is_export
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.machine import processors
from towernmt.dataflow.text.language_codes import Direction, parse_direction, plain_code, written_language
from towernmt.documents.shields import EVERYTHING, Protection
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.engine_support import ENGINES as TRANSLATOR_ENGINES
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.faults import RETRY_ADVICE
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.search.search_settings import SWITCH, SearchSettings, SpecialLineSettings, StreamSettings
from towernmt.serve.batcher import EngineError, Translate, check_translations

if TYPE_CHECKING:
    from towernmt.interop.int8_measurement import MeasuredCheckpoint

ENGINES = (*TRANSLATOR_ENGINES, "ctranslate2")
"""Supported engines; the first is the default."""
_CUSTOM_ENGINE = re.compile(r".+\.py:\w+")


class ModelSpec(NamedTuple):
    """A parsed value of `--model`.

    Attributes:
        direction: translation direction; None means the direction that the model records.
        location: path of the model, or FILE.py:NAME of a custom engine.
    """

    direction: Direction | None
    location: str


@dataclass(frozen=True)
class EngineSettings:
    """Options for loading models.

    Attributes:
        engine: one of `ENGINES`.
        precision: precision of the engine; None means that of `Translator`, and int8 on processors for a run whose
            BLEU in int8 was measured.
        device: "cpu", "gpu" or "gpu:N"; None means a GPU if available.
        alternatives: maximum number of translations per sentence.
        alignments: whether translations have word alignments and probabilities, if the model gives attention.
        stream: how sentences are batched.
        search: fields of `SearchSettings` that override those of the model.
        trust_code: whether the code of a model in a package may be executed.
        retry: whether the search is repeated for translations that are empty, repetitive or cut.
        special_lines: as in `Translator`.
        protect: regular expressions of words that translations must not change.
        source_prefix: as in `LineOptions`.
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
    source_prefix: str = ""

    @property
    def protection(self) -> Protection:
        """The words and symbols that the translation of a text must not change."""
        return Protection(self.special_lines.protection == SWITCH[0], self.protect)

    @property
    def round_size(self) -> int:
        """Maximum number of sentences in a round: one batch per thread."""
        return self.stream.batch_sentences * (self.stream.threads or processors())


class LoadedModel(NamedTuple):
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


def parse_model_spec(text: str) -> ModelSpec:
    """Parse `DIRECTION=LOCATION`, or a location without a direction.

    Raises:
        SettingsError: the text before `=` is not a direction.
    """
    direction, equals, location = text.partition("=")
    if not equals or "/" in direction or Path(text).exists():     # a path may have an `=` in it
        return ModelSpec(None, text)
    return ModelSpec(parse_direction(direction), location)


def recorded_direction(location: str) -> Direction:
    """Return the direction that a model records.

    Raises:
        SettingsError: the model records no direction; only packages do.
        CheckpointError: the package is damaged.
    """
    languages = PackagedRun(location).languages if is_package(location) else None
    if languages is None:
        raise SettingsError(f"--model {location} does not name its languages: write, for example, --model "
                            f"de-en={location}.")
    return Direction(*map(plain_code, languages))


def load_served_model(location: str, settings: EngineSettings, direction: Direction | None = None) -> LoadedModel:
    """Load a model for a server, with the engine and the precision of the settings.

    Args:
        location: path of the model, or FILE.py:NAME of a custom engine.
        settings: options for loading models.
        direction: translation direction, for the letter case; None if it is unknown.

    Raises:
        TowerNMTError: the model does not exist, or does not support the settings.
    """
    if _CUSTOM_ENGINE.fullmatch(location):
        if settings.source_prefix:
            raise SettingsError(f"--source-prefix {direction}={settings.source_prefix}: a custom engine receives the "
                                f"sentences unchanged: leave the option out, and let {location} add the prefix.")
        return _custom_engine(location)._replace(protection=settings.protection)
    languages = None if direction is None else (written_language(direction.source), written_language(direction.target))
    line_options = LineOptions(protect=settings.protect, source_prefix=settings.source_prefix)
    options: dict[str, Any] = {"options": line_options, "retry": settings.retry,
                               "special_lines": settings.special_lines, "languages": languages}
    search = dict(settings.search)
    beam_size = search.pop("beam_size", None)
    n_best = settings.alternatives if beam_size is None else min(settings.alternatives, beam_size)
    # Opened once, so that the card is that of the loaded model even if the file is replaced meanwhile.
    model = PackagedRun(location, settings.trust_code) if is_package(location) else location
    if settings.engine == "ctranslate2" or (settings.engine == "auto" and is_export(location)):
        from towernmt.interop.ctranslate2_engine import CTranslate2Translator

        return _loaded_model(model, CTranslate2Translator(
            model, beam_size, n_best=n_best, precision=settings.precision, device=settings.device,
            stream=settings.stream, log_probs=settings.alignments, attention=settings.alignments,
            trust_code=settings.trust_code, **options, **search), settings.protection, n_best, settings.alignments)
    from towernmt.predict.translator import Translator

    checkpoint = _measured_checkpoint(location, settings)
    stored = None if checkpoint is None else checkpoint.stored()
    precision = settings.precision if stored is None else stored.precision
    run = open_run(model, settings.trust_code)
    alignments = settings.alignments and (not run.exists() or run.gives_attention())
    translator = Translator(run, beam_size, n_best=n_best, device=settings.device, stream=settings.stream,
                            attention=alignments, log_probs=alignments,
                            engine=settings.engine, precision=precision,
                            trust_code=settings.trust_code, **options, **search)
    loaded = _loaded_model(model, translator, settings.protection, n_best, alignments, True)
    if checkpoint is None or stored is not None or not translator.has_engine_choice or (
            translator.checkpoint != checkpoint.checkpoint):      # training has written a better checkpoint meanwhile
        return loaded

    def choose_precision(is_stopped: Callable[[], bool]) -> None:
        result = checkpoint.measure("" if direction is None else direction.target, is_stopped)
        if result is not None and result.precision != PRECISIONS[0] and not is_stopped():
            translator.change_precision(result.precision)

    return loaded._replace(choose_precision=choose_precision)


def _measured_checkpoint(location: str, settings: EngineSettings) -> MeasuredCheckpoint | None:
    """Return the checkpoint of a run for which a measurement chooses the precision, or None."""
    run = SavedRun(location)
    if settings.engine != TRANSLATOR_ENGINES[0] or settings.precision is not None or not run.exists():
        return None
    from towernmt.interop.int8_measurement import MeasuredCheckpoint

    averaged = dict(settings.search).get("averaged", run.group("search", SearchSettings()).averaged)
    return MeasuredCheckpoint(run, averaged)


WARM_UP_SENTENCE, AVOIDED_PHRASE = "a 1 2 3.", "a b c"


def warm_up(model: LoadedModel, location: str) -> None:
    """Translate two sentences, so that graphs are built before the first request, and check the result.

    Raises:
        TowerNMTError: the model does not translate, or returns something that is not a list of translations.
    """
    lines = [WARM_UP_SENTENCE, f"{WARM_UP_SENTENCE} {WARM_UP_SENTENCE}"]
    for options in (None, [LineOptions(n_best=model.alternatives)] * len(lines)):
        with _engine_errors_explained(location, "fails at its first sentences"):
            try:
                translations = check_translations(model.translate(lines, options), len(lines))
                for translation in translations:
                    translation[0].links()
            except EngineError as error:
                raise SettingsError(f"--model {location}: {error}") from None


def search_kind(options: LineOptions) -> frozenset[str]:
    """Return which search a sentence with these options needs: the names of the options that change the search.

    A prefix with a partial last word also needs the search with complete words, for words that no token begins with.
    """
    names = {name for name in ("prefix", "constraints", "avoid") if getattr(options, name)}
    if options.terminology is not None:
        names.add("constraints")
    return frozenset(names | ({"partial_word"} if options.prefix and options.partial_word else set()))


COMMON_KINDS = [frozenset(names) for names in (
    {"constraints"}, {"prefix"}, {"prefix", "partial_word"}, {"avoid"}, {"prefix", "avoid"})]
"""Kinds of search that every server prepares: those of glossaries, of placeholders and of the page."""
RETRY_KIND = frozenset({"retry"})
"""The kind of the second search for faulty translations, which a server prepares after the common ones."""


def search_kinds(model: LoadedModel) -> set[frozenset[str]]:
    """Return all kinds of search that requests can need, except the plain one."""
    if not model.constrains:
        return set()
    prefixes: list[set[str]] = [set(), {"prefix"}, {"prefix", "partial_word"}]
    restrictions: list[set[str]] = [set(), {"constraints"}, {"avoid"}, {"constraints", "avoid"}]
    kinds = {frozenset(prefix | restriction) for prefix in prefixes for restriction in restrictions}
    kinds.remove(frozenset())
    return kinds | ({RETRY_KIND} if model.retry else set())


def warm_up_kind(model: LoadedModel, kind: frozenset[str], word: str) -> None:
    """Translate by a kind of search, so that no request waits until it is built.

    Args:
        model: the model to warm up.
        kind: names of the options that the search supports.
        word: a word that the model writes.

    Raises:
        TowerNMTError: the model does not translate.
    """
    options = LineOptions(prefix=word if "prefix" in kind else "", partial_word="partial_word" in kind, n_best=1,
                          constraints=[word] if "constraints" in kind else [],
                          avoid=[AVOIDED_PHRASE] if "avoid" in kind else [],
                          search=model.retry if kind == RETRY_KIND else {})
    with suppress(SettingsError, DataError):    # the vocabulary cannot write this word; requests name other words
        model.translate([WARM_UP_SENTENCE], [options])


def _loaded_model(model: str | PackagedRun, translator: LineTranslator, protection: Protection, n_best: int,
                  aligns: bool = False, constrains: bool = False) -> LoadedModel:
    translator.fault_advice = RETRY_ADVICE

    def translate(lines: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
        return list(translator.translate_stream(lines, "sentence", options=options))

    location, card = (model.file, model.card) if isinstance(model, PackagedRun) else (Path(model), None)
    return LoadedModel(translate, f"{location.name} {Path(translator.checkpoint).parent.name}".strip(), n_best,
                       aligns, constrains, card,
                       translator.check, protection, translator.retry, lambda: translator.engine)


def _custom_engine(location: str) -> LoadedModel:
    """Load the custom engine of FILE.py:NAME.

    NAME is a class, or a function without arguments, that returns a `Translate`. Its attributes `alternatives`,
    `aligns`, `constrains` and `card` are those of `LoadedModel`.

    Raises:
        SettingsError: the file or the name does not exist, its code fails, or it does not return a function.
    """
    file, _, name = location.rpartition(":")
    if not Path(file).is_file():
        raise SettingsError(f"--model {location}: the file {file} does not exist.")
    spec = importlib.util.spec_from_file_location(f"{Path(file).stem}@{location}", file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"--model {location}: {file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    with _engine_errors_explained(location, "cannot be loaded"), _registered(module):
        spec.loader.exec_module(module)
        engine = getattr(module, name, lambda: None)()
    if not callable(engine):
        raise SettingsError(f"--model {location}: {name} must be a class, or a function without arguments, that "
                            "returns a function of sentences and their options.")
    attributes = {field: getattr(engine, field, default) for field, default in _ENGINE_DEFAULTS.items()}
    for field, value in attributes.items():
        if type(value) is not type(_ENGINE_DEFAULTS[field]) or value < _ENGINE_DEFAULTS[field]:
            raise SettingsError(f"--model {location}: the engine's attribute {field} is {value!r}: it must be "
                                f"{'a whole number from 1' if field == 'alternatives' else 'True or False'}.")
    card = getattr(engine, "card", None)
    if not isinstance(card, Mapping | None):
        raise SettingsError(f"--model {location}: the engine's attribute card is {card!r}: it must be a dictionary.")
    return LoadedModel(engine, Path(location).name, **attributes, card=card)


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """Register a module while the block imports it, since dataclasses and type hints search for it in `sys.modules`.

    If the block fails, the previous module of this name is registered again.
    """
    previous = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    except BaseException:
        del sys.modules[module.__name__]
        if previous is not None:
            sys.modules[module.__name__] = previous
        raise


_ENGINE_DEFAULTS: dict[str, Any] = {"alternatives": 1, "aligns": False, "constrains": False}
"""Attributes of a custom engine, and their defaults, which are also the minimum values."""


@contextmanager
def _engine_errors_explained(location: str, failure: str) -> Iterator[None]:
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
        raise SettingsError(f"--model {location}: the engine {failure}: {message} ({frame.filename} line "
                            f"{frame.lineno}). Correct its code.") from error
