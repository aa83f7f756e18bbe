"""`towernmt export`: the formats, the request to a writer, and the directory that it writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.records import versions
from towernmt.core.directories import EXPORT_DESCRIPTION
from towernmt.core.errors import SettingsError
from towernmt.core.files import flush_to_disk, write_text
from towernmt.core.temporary_directories import is_empty, temporary_directory
from towernmt.dataflow.text.language_codes import bcp47_code, is_code
from towernmt.interop.export_search import ARGOS_SEARCH, BROWSER_SEARCH, MARIAN_SEARCH, SearchSupport
from towernmt.predict.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from towernmt.models.model_settings import TransformerSettings
    from towernmt.predict.trained_model import TrainedModel


@dataclass(frozen=True)
class ExportJob:
    """A request to write one model in one format.

    Attributes:
        trained: run and checkpoint; `trained.weights()` returns the averaged weights if the checkpoint has them.
        search: search settings. A format that contains the search uses them; `towernmt.json` lists them in any case.
        precision: one of the format's `precisions`.
        directory: empty directory for the files, which are moved to the output path after all are written.
        calibration: file of source sentences, one a line, on which int8 formats measure activations; None if not set.
        languages: source and target language, each as a code or as code:name (de:German); None if not set.
        bergamot: folder of the npm package with the browser engine; None to look for it.
    """

    trained: TrainedModel
    search: SearchSettings
    precision: str
    directory: Path
    calibration: str | Path | None = None
    languages: tuple[str, str] | None = None
    bergamot: str | Path | None = None


def code_and_name(text: str) -> tuple[str, str]:
    """Return the language code in the spelling of BCP 47, and the language name.

    If the text has no name, the code is returned as the name.

    Raises:
        SettingsError: the text does not begin with a language code.
    """
    code, _, name = text.partition(":")
    if not is_code(code):
        raise SettingsError(f"language '{text}': expected a language code, or code:name such as de:German.")
    return bcp47_code(code), name or code


def export_model(trained: TrainedModel, format_name: str, output: str | Path, *, precision: str | None = None,
                 search: SearchSettings | None = None, calibration: str | Path | None = None,
                 languages: tuple[str, str] | None = None, bergamot: str | Path | None = None) -> Path:
    """Write a model for another program.

    A new directory is either complete or missing: it is written under a temporary name and renamed at the end. An
    existing directory stays, because it may be a link or a volume: the files are moved into it, `towernmt.json` last.

    ```
    towernmt.json     format, precision, checkpoint, versions, search settings, the source prefix of a package, and
                      details of the format's files
    vocabulary/       the run's vocabularies
    ...               the files of the format
    ```

    Args:
        trained: run and checkpoint.
        format_name: one of `FORMATS`.
        output: path of a missing or empty directory.
        precision: precision of the weights; None for the format's first one.
        search: search settings; None for the run's own.
        calibration: see `ExportJob`.
        languages: see `ExportJob`.
        bergamot: see `ExportJob`; only the format web needs it.

    Returns:
        Path of the directory.

    Raises:
        SettingsError: the format or precision is unknown, the output exists already, or the format cannot express the
            search.
        UnsupportedModelError: the format cannot express the model.
        OSError: the directory cannot be written.
    """
    kind, precision = export_format(format_name), export_precision(format_name, precision)
    path = Path(output)
    _check_new_or_empty(path)
    search = search or trained.run.group("search", SearchSettings())
    is_existing = path.is_dir()
    parent = path if is_existing else path.parent
    parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory("towernmt export", parent) as unfinished:
        details = kind.writer()(ExportJob(trained, search, precision, unfinished, calibration, languages, bergamot))
        (unfinished / "vocabulary").mkdir()
        for file in trained.run.vocabulary.iterdir():
            shutil.copyfile(file, unfinished / "vocabulary" / file.name)
        # An export goes to other machines, so it does not contain the path of a shortlist on this one.
        search_without_path = replace(search, shortlist=Path(search.shortlist).name)
        description = {
            "format": format_name, "precision": precision, "architecture": trained.run.architecture(),
            "checkpoint": Path(trained.checkpoint).parent.name, "averaged": trained.uses_averages,
            "made_with": versions(), "search": asdict(search_without_path),
            **({"source_prefix": trained.run.source_prefix} if trained.run.source_prefix else {}), **details}
        write_text(unfinished / EXPORT_DESCRIPTION, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
        if is_existing:
            _check_new_or_empty(path)       # again, because another process may have written meanwhile
            for file in sorted(unfinished.iterdir(), key=lambda file: file.name == EXPORT_DESCRIPTION):
                file.replace(path / file.name)
        else:
            unfinished.replace(path)
    flush_to_disk(parent)
    return path


def _check_new_or_empty(path: Path) -> None:
    if path.exists() and not (path.is_dir() and is_empty(path)):
        raise SettingsError(f"{path} exists already: choose another --output, or remove it.")


class UnsupportedModelError(SettingsError):
    """A format cannot express a model. The command adds the advice, because a format is chosen by different options."""


def transformer_settings(trained: TrainedModel, program: str) -> TransformerSettings:
    """Return the settings of a Transformer, for a format that supports only this architecture.

    Args:
        trained: run and checkpoint.
        program: the program that reads the format, for the message.

    Raises:
        UnsupportedModelError: the model has another architecture.
    """
    from towernmt.models.transformer import Transformer

    if type(trained.model) is not Transformer:
        raise UnsupportedModelError(f"architecture={trained.run.architecture()}: {program} supports only the "
                                    "architecture `transformer`.")
    return trained.model.settings


CONSIDERED_SETTINGS = frozenset((
    "activation_dropout", "attention_biases", "attention_dropout", "decoder_cell", "decoder_layers",
    "embedding_dropout", "encoder_layers", "feed_forward", "filter_size", "first_position", "guided_alignment_heads",
    "guided_alignment_layer", "guided_alignment_weight", "heads", "hidden_size", "initialization", "label_smoothing",
    "lhuc", "max_distance", "max_positions", "norm", "norm_epsilon", "positions", "postprocess", "preprocess",
    "r_drop_alpha", "residual_dropout", "softmax_sample", "source_end", "source_factor_size",
    "source_factor_vocab_sizes", "source_factors", "source_vocab_size", "start", "target_vocab_size",
    "tie_embeddings", "word_dropout"))
"""Settings of a Transformer that every format considers: it expresses a setting, refuses some of its values, or knows
that the setting affects only training."""


def unconsidered_setting(settings: TransformerSettings, program: str, also: Collection[str] = ()) -> str:
    """Return a clause with the first setting that a format would ignore; "" if it would ignore none.

    A setting that a format does not consider must have its default, so that no export silently lacks a new setting.

    Args:
        settings: settings of the model.
        program: the program that reads the format, for the message.
        also: names of further settings that the format considers.
    """
    defaults = type(settings)()
    return next((f"model.{name}={value}: {program} does not have this setting"
                 for name, value in vars(settings).items()
                 if name not in CONSIDERED_SETTINGS and name not in also and value != getattr(defaults, name)), "")


@dataclass(frozen=True)
class ExportFormat:
    """A format of `towernmt export`.

    Attributes:
        help: one line that names the programs that read the format.
        function: "module:function" of the writer, which takes an `ExportJob` and returns the entries of
            `towernmt.json` about its files. If the format cannot express a model or a search, the writer raises
            SettingsError with the name of the setting.
        precisions: supported precisions of the weights; the first is the default.
        search: by precision, the search settings that the format can express; if a precision is missing, the format
            can express all, or the writer or the command checks them.
        calibrated: precisions for which the format reads calibration sentences.
        has_languages: whether the files contain the languages.
        has_bergamot: whether the files contain the Bergamot engine.
    """

    help: str
    function: str
    precisions: tuple[str, ...] = ("float32",)
    search: Mapping[str, SearchSupport] = field(default_factory=dict)
    calibrated: tuple[str, ...] = ()
    has_languages: bool = False
    has_bergamot: bool = False

    def writer(self) -> Callable[[ExportJob], dict[str, Any]]:
        """Import the writer's module and return the writer."""
        writer: Callable[[ExportJob], dict[str, Any]] = resolve_name(self.function)
        return writer


_ARGOS_PRECISIONS = ("int8", "float32", "bfloat16", "float16", "int16")
FORMATS: dict[str, ExportFormat] = {
    "ctranslate2": ExportFormat("the CTranslate2 engine", "towernmt.interop.ctranslate2_export:write_ctranslate2",
                                ("float32", "bfloat16", "float16", "int16", "int8")),
    "argos": ExportFormat("Argos Translate and LibreTranslate", "towernmt.interop.ctranslate2_export:write_argos",
                          _ARGOS_PRECISIONS, dict.fromkeys(_ARGOS_PRECISIONS, ARGOS_SEARCH), has_languages=True),
    "savedmodel": ExportFormat("plain TensorFlow, with the search inside", "towernmt.interop.savedmodel:write"),
    "marian": ExportFormat("Marian's .npz, or the 8-bit model of Bergamot and Firefox",
                           "towernmt.interop.marian_export:write", ("float32", "int8"),
                           {"float32": MARIAN_SEARCH, "int8": BROWSER_SEARCH}, calibrated=("int8",)),
    "web": ExportFormat("a page that translates in the browser, with its engine and the 8-bit model",
                        "towernmt.interop.web_export:write", ("int8",), {"int8": BROWSER_SEARCH},
                        calibrated=("int8",), has_languages=True, has_bergamot=True),
    "litert": ExportFormat("LiteRT (TensorFlow Lite), with the search", "towernmt.interop.litert:write",
                           ("float32", "float16", "int8")),
}


def export_format(name: str) -> ExportFormat:
    """Return the format with a name.

    Raises:
        SettingsError: the name is unknown.
    """
    if name not in FORMATS:
        raise SettingsError(f"format '{name}': choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def export_precision(name: str, precision: str | None) -> str:
    """Return the precision of an export in a format: the specified one, or the format's first.

    Args:
        name: one of `FORMATS`.
        precision: the specified precision; None if it is not specified.

    Raises:
        SettingsError: the format does not support the precision.
    """
    precisions = export_format(name).precisions
    precision = precision or precisions[0]
    if precision not in precisions:
        raise SettingsError(f"precision '{precision}': the format {name} supports {', '.join(precisions)}.")
    return precision
