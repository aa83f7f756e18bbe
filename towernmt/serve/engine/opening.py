"""From what `--model` says to what translates: a run, a package or an export by an engine, or one's own engine."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.checkpoint.packaged.packaged_run import PackagedRun, is_package
from towernmt.core.errors import SettingsError
from towernmt.core.machine.processor import processors
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.hypotheses import Translation
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.options import LineOptions
from towernmt.serve.engine.batcher import Translate
from towernmt.serve.languages import Direction, parse_direction, plain_code

ENGINES = ("tensorflow", "ctranslate2")
"""The first is the default."""
_OF_ONES_OWN = re.compile(r".+\.py:\w+")


class ModelPlace(NamedTuple):
    """What `--model` says.

    Attributes:
        direction: from which language to which; None: as the model itself tells.
        place: a path, or FILE.py:NAME of an engine of one's own.
    """

    direction: Direction | None
    place: str


@dataclass(frozen=True)
class EngineSettings:
    """How models are opened.

    Attributes:
        engine: one of `ENGINES`.
        precision: of the engine; None for its default.
        device: "cpu", "gpu" or "gpu:N"; None: a GPU if there is one.
        alternatives: so many translations of a sentence can be asked for.
        alignments: whether our graph gives the alignments and the probabilities of words.
        keep_graph: as of `Translator`.
        stream: how sentences become batches.
        search: fields of `SearchSettings`, in place of the model's.
        trust_code: whether the code of a model in a package may be executed.
    """

    engine: str = ENGINES[0]
    precision: str | None = None
    device: str | None = None
    alternatives: int = 3
    alignments: bool = True
    keep_graph: bool = True
    stream: StreamSettings = StreamSettings()
    search: tuple[tuple[str, Any], ...] = ()
    trust_code: bool = False

    @property
    def round_size(self) -> int:
        """Sentences that are translated at once, at most: a batch for each thread."""
        return self.stream.batch_sentences * (self.stream.threads or processors())


class OpenedModel(NamedTuple):
    """What translates.

    Attributes:
        translate: sentences.
        name: of the model and its checkpoint, without the folders in which it lies.
        alternatives: so many translations of a sentence it gives.
        aligns: whether translations have the alignments of words.
        constrains: whether it takes prefixes, phrases that must come, and terminologies.
    """

    translate: Translate
    name: str
    alternatives: int = 1
    aligns: bool = False
    constrains: bool = False


def parse_model(text: str) -> ModelPlace:
    """`DIRECTION=PLACE`, or a place alone.

    Raises:
        SettingsError: what stands before `=` is no direction.
    """
    before, equals, after = text.partition("=")
    if not equals or "/" in before:     # a path may have an `=` in it
        return ModelPlace(None, text)
    return ModelPlace(parse_direction(before), after)


def direction_of(place: str) -> Direction:
    """From which language to which a model translates, as it tells itself.

    Raises:
        SettingsError: it does not tell; only a package does.
        CheckpointError: it is a damaged package.
    """
    told = PackagedRun(place).languages if is_package(place) else None
    if told is None:
        raise SettingsError(f"--model {place}: from which language to which? Write --model de-en={place}.")
    return Direction(*map(plain_code, told))


def open_place(place: str, settings: EngineSettings) -> OpenedModel:
    """What translates.

    Raises:
        TowerNMTError: there is no such model, or it cannot do what is asked for.
    """
    if _OF_ONES_OWN.fullmatch(place):
        return _of_ones_own(place)
    search = dict(settings.search)
    beam = search.pop("beam_size", None)
    n_best = settings.alternatives if beam is None else min(settings.alternatives, beam)
    if settings.engine == "ctranslate2":
        from towernmt.engines.translator import CTranslate2Translator

        return _opened(place, CTranslate2Translator(place, beam, n_best=n_best, precision=settings.precision,
                                             device=settings.device, stream=settings.stream,
                                             trust_code=settings.trust_code, **search), n_best)
    from towernmt.predict.translator import Translator

    translator = Translator(place, beam, n_best=n_best, device=settings.device, stream=settings.stream,
                            attention=settings.alignments, log_probs=settings.alignments,
                            keep_graph=settings.keep_graph, precision=settings.precision or "float32",
                            trust_code=settings.trust_code, **search)
    return _opened(place, translator, n_best, settings.alignments, True)


SENTENCE = "1 2 3."


def warm_up(model: OpenedModel) -> None:
    """Translate something, so that no request waits for what is built once.

    Raises:
        TowerNMTError: the model does not translate.
    """
    model.translate([SENTENCE, f"{SENTENCE} {SENTENCE}"], None)


def warm_up_constraints(model: OpenedModel) -> None:
    """The same with prefixes and with phrases that must come, which are further searches.

    Raises:
        TowerNMTError: the model does not translate.
    """
    word = next(iter(model.translate([SENTENCE], None)[0][0].text.split()), "")
    if not (model.constrains and word):
        return
    for options in (LineOptions(prefix=word), LineOptions(prefix=word, partial_word=True),
                    LineOptions(constraints=[word])):
        with suppress(SettingsError):       # a word that its vocabulary does not write again: requests name others
            model.translate([SENTENCE], [options])


def _opened(place: str, translator: LineTranslator, n_best: int, aligns: bool = False,
            constrains: bool = False) -> OpenedModel:
    def translate(lines: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
        return list(translator.translate_stream(lines, "sentence", options=options))

    return OpenedModel(translate, f"{Path(place).name} {Path(translator.checkpoint).parent.name}".strip(), n_best,
                       aligns, constrains)


def _of_ones_own(place: str) -> OpenedModel:
    """What FILE.py:NAME makes: NAME is a class, or a function without arguments, that gives a `Translate`.

    Its attributes `alternatives`, `aligns` and `constrains` are those of `OpenedModel`.
    """
    file, _, name = place.rpartition(":")
    if not Path(file).is_file():
        raise SettingsError(f"--model {place}: there is no file {file}.")
    spec = importlib.util.spec_from_file_location(f"{Path(file).stem}@serve", file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"--model {place}: {file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, name, lambda: None)()
    if not callable(made):
        raise SettingsError(f"--model {place}: {name} must be a class, or a function without arguments, that gives a "
                            "function of sentences and their options.")
    return OpenedModel(made, Path(place).name, getattr(made, "alternatives", 1), getattr(made, "aligns", False),
                       getattr(made, "constrains", False))
