"""Options that commands which translate share: engine, device, models, search, and special lines.

- The engine that computes: TensorFlow's graph, or CTranslate2; and the device.
- The trained models: one, or several as an ensemble.
- The search: an option for each field of `SearchSettings`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import typing
from collections.abc import Collection
from shlex import quote
from typing import TYPE_CHECKING, Any

from towernmt.core.directories import is_export
from towernmt.core.errors import SettingsError
from towernmt.core.gpus import missing_without_tensorflow
from towernmt.predict.engine_support import ENGINES as TRANSLATOR_ENGINES
from towernmt.predict.engine_support import check_precision
from towernmt.predict.search.search_settings import (
    MEANS,
    SAMPLING_ONLY,
    SWITCH,
    EnsembleSettings,
    SearchSettings,
    SpecialLineSettings,
)

if TYPE_CHECKING:
    from towernmt.documents.shields import Protection

ENGINES = (*TRANSLATOR_ENGINES, "ctranslate2")
"""Values of `--engine`; the first is the default."""


def add_engine_options(parser: Any) -> None:
    """Add `--engine` and `--precision`."""
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="engine that computes: auto is CTranslate2 for each line with the same result as "
                             "TensorFlow's graph, and the graph for other lines; graph is always the graph; "
                             "ctranslate2 refuses what CTranslate2 cannot translate (default: %(default)s)")
    parser.add_argument("--precision", metavar="P",
                        help="precision of the graph's matrix products: float32, bfloat16 or float16; or of the "
                             "weights in CTranslate2: also int16 or int8 (default: float32, or the export's)")


def add_device_options(parser: Any) -> None:
    """Add `--gpu`, `--cpu` and `--no-tf32`."""
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", type=int, metavar="N", help="use GPU N (default: the first one, or the CPU without a "
                                                             "GPU)")
    device.add_argument("--cpu", action="store_true", help="use the CPU")
    parser.add_argument("--no-tf32", action="store_true",
                        help="multiply float32 matrices on a GPU with the 24 bits of float32, not the 11 bits of TF32")


def device_of(args: argparse.Namespace) -> str | None:
    """Return the device of the options: "cpu", "gpu:N", or None by default. Call it before TensorFlow is imported.

    Raises:
        SettingsError: the machine has no GPU.
    """
    if args.no_tf32:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"        # CUDA's libraries read it
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"       # before TensorFlow starts and takes the GPUs' memory
        return "cpu"
    if args.gpu is None:
        return None
    if missing := missing_without_tensorflow([args.gpu]):
        raise SettingsError(f"--gpu {args.gpu}: {missing}; use --cpu.")
    return f"gpu:{args.gpu}"


def engine_of(args: argparse.Namespace) -> str:
    """Return the engine of the options; auto is ctranslate2 for an export, which no other engine reads.

    Raises:
        SettingsError: an option is not available with the engine.
    """
    engine = str(args.engine)
    models = args.model if isinstance(args.model, list) else [args.model]
    if engine == "auto" and len(models) == 1 and models[0] and is_export(models[0]):
        engine = "ctranslate2"
    if engine == "ctranslate2":
        from towernmt.interop.ctranslate2_requests import check_options

        check_options(vars(args))
        return engine
    check_precision(args.precision, engine)
    return engine


def add_model_options(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add `--model`, `--checkpoint` and the options of ensembles."""
    parser.add_argument("--model", metavar="MODEL", required=required, nargs="+", action="extend",
                        help="the --logdir of a training run, or a package; several are an ensemble")
    parser.add_argument("--checkpoint", metavar="NAME", nargs="+", action="extend",
                        help="best, last, step-N or a checkpoint's prefix (default: the average that the run kept at "
                             "its end, else best, else last); one for each --model, one for all, or several of one run "
                             "as an ensemble")
    add_trust_option(parser)
    parser.add_argument("--ensemble-weights", metavar="W,W,...",
                        help="a weight for each member of the ensemble, in order (default: equal ones)")
    parser.add_argument("--ensemble-mean", choices=MEANS,
                        help=f"quantity whose mean over the members is used (default: {EnsembleSettings.mean})")


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trust-code`, for commands that read packages."""
    parser.add_argument("--trust-code", action="store_true",
                        help="execute the code of a custom model in a package")


def model_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a `Translator` that select its models.

    Raises:
        SettingsError: a weight is not a number.
    """
    ensemble_values: dict[str, Any] = {} if args.ensemble_mean is None else {"mean": args.ensemble_mean}
    if args.ensemble_weights is not None:
        try:
            ensemble_values["weights"] = tuple(float(weight) for weight in args.ensemble_weights.split(","))
        except ValueError:
            raise SettingsError(f"--ensemble-weights {args.ensemble_weights}: expected a number for each member, for "
                                "example 2,1.") from None
    return {"run_dir": args.model, "checkpoint": args.checkpoint, "ensemble": EnsembleSettings(**ensemble_values),
            "trust_code": args.trust_code}


AS_THE_RUN = "default: the run's setting"
SPELLINGS = {"beam_size": "--beam"}
"""Options whose names differ from their fields."""
_OF_THEIR_OWN = ("averaged", "max_length_factor", "max_length_constant")


def add_search_options(parser: argparse.ArgumentParser, excluded: Collection[str] = ()) -> None:
    """Add an option for each field of `SearchSettings`; options that are not specified keep the run's values.

    Args:
        parser: parser of the command.
        excluded: fields for which the command has no option, or its own option.
    """
    group = parser.add_argument_group("search")
    types = typing.get_type_hints(SearchSettings)
    for field in dataclasses.fields(SearchSettings):
        if field.name not in (*_OF_THEIR_OWN, *excluded):
            _add_option(group, field, types[field.name])
    group.add_argument("--max-length", metavar="FACTOR,CONSTANT",
                       help=f"a translation has at most source tokens * FACTOR + CONSTANT tokens ({AS_THE_RUN})")
    group.add_argument("--sample", dest="selection", action="store_const", const="sampling",
                       help="sample translations: the same as --selection sampling")
    group.add_argument("--last-weights", action="store_true",
                       help="translate with the weights of the last update, not with their moving average")


def search_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `SearchSettings` that the options specify.

    Raises:
        SettingsError: --max-length is not two numbers.
    """
    search_values = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(SearchSettings)}
    search_values["averaged"] = False if options.last_weights else None
    if options.max_length is not None:
        factor, _, constant = options.max_length.partition(",")
        try:
            search_values["max_length_factor"], search_values["max_length_constant"] = float(factor), int(constant or 0)
        except ValueError:
            raise SettingsError(
                f"--max-length {options.max_length}: expected FACTOR,CONSTANT, for example 2,10.") from None
    return {name: value for name, value in search_values.items() if value is not None}


def search_option_text(name: str, search: SearchSettings) -> str:
    """Return the option with which a command line sets a field of `SearchSettings` other than `averaged`.

    Args:
        name: name of the field.
        search: settings with the value of the field.
    """
    if name in ("max_length_factor", "max_length_constant"):
        return f"--max-length {search.max_length_factor:g},{search.max_length_constant}"
    return f"{_option_of_field(name)} {quote(str(getattr(search, name)))}"


def check_search_options(search_values: dict[str, Any]) -> None:
    """Refuse search options that no settings of a run can make valid, before anything is loaded.

    Args:
        search_values: specified fields of `SearchSettings`; the run's settings have the others.

    Raises:
        SettingsError: an invalid value, or two values that contradict each other.
    """
    assumed_values: dict[str, Any] = {
        "beam_size": max(5, search_values.get("n_best", 1)) * max(search_values.get("beam_groups", 1), 1),
        "max_length_factor": max(2.0, search_values.get("min_length_factor", 0.0))}
    if SAMPLING_ONLY.keys() & search_values.keys():
        assumed_values["selection"] = "sampling"
    SearchSettings(**{**assumed_values, **search_values})


def _option_of_field(name: str) -> str:
    return SPELLINGS.get(name, "--" + name.replace("_", "-"))


def _add_option(group: Any, field: dataclasses.Field[Any], kind: Any) -> None:
    name = _option_of_field(field.name)
    text = f"{_of_a_sentence(field.metadata['help'])} ({AS_THE_RUN})".replace("%", "%%")
    if kind is bool:
        group.add_argument(name, dest=field.name, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif field.metadata["choices"]:
        group.add_argument(name, dest=field.name, choices=field.metadata["choices"], help=text)
    else:
        group.add_argument(name, dest=field.name, type=kind, help=text,
                           metavar={int: "N", float: "NUMBER"}.get(kind, field.name.upper()))


def _of_a_sentence(text: str) -> str:
    """Return the text without its full stop, in lower case like the help texts of argparse."""
    text = text.removesuffix(".")
    return text if text[:2].isupper() and text[1:2] != " " else text[0].lower() + text[1:]


def add_special_line_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `SpecialLineSettings`."""
    group = parser.add_argument_group("lines that models are not trained for")
    for field in dataclasses.fields(SpecialLineSettings):
        group.add_argument(f"--{field.name.replace('_', '-')}", choices=SWITCH, default=field.default,
                           help=f"{_of_a_sentence(field.metadata['help'])} (default: %(default)s)")


def add_protect_option(parser: Any) -> None:
    """Add `--protect`."""
    parser.add_argument("--protect", metavar="REGEX", action="append", default=[],
                        help="words that translations must not change, as a regular expression; may be repeated")


def special_line_settings(args: argparse.Namespace) -> SpecialLineSettings:
    """Return the settings of the options of `add_special_line_options`."""
    return SpecialLineSettings(**{field.name: getattr(args, field.name)
                                  for field in dataclasses.fields(SpecialLineSettings)})


def protection_of(args: argparse.Namespace) -> Protection:
    """Return the words and symbols that the options protect in documents.

    Raises:
        SettingsError: --protect is not a regular expression.
    """
    from towernmt.documents.shields import Protection  # compiles many patterns, which takes time

    return Protection(args.protection == SWITCH[0], tuple(args.protect))
