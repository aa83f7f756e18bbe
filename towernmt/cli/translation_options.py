"""Options that commands which translate share: engine, device, ensemble, search, options of lines, and reranking.

- The engine that computes: TensorFlow's graph, or CTranslate2; and the device.
- The trained models: one, or several as an ensemble.
- The search: an option for each field of `SearchSettings`.
- The requests that apply to all lines, and those of each line of a file.
- Reranking: minimum Bayes risk, or further runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.core.directories import is_export
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.gpus import missing_without_tensorflow
from towernmt.dataflow.text.text_lines import clean_lines, read_lines
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.engine_choice import ENGINES as TRANSLATOR_ENGINES
from towernmt.predict.engine_choice import GRAPH, open_scorer
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.predict.lines.text_io import open_input, read_text
from towernmt.predict.search.search_settings import (
    MEANS,
    SAMPLING_ALONE,
    SWITCH,
    EnsembleSettings,
    SearchSettings,
    SpecialLineSettings,
)

if TYPE_CHECKING:
    from towernmt.documents.shields import Protection
    from towernmt.predict.reranking import Reranker

ENGINES = (*TRANSLATOR_ENGINES, "ctranslate2")
"""Values of `--engine`; the first is the default."""
WEIGHT_PRECISIONS = ("int16", "int8")
"""Precisions of weights that only CTranslate2 has."""


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


def check_precision(precision: str | None, engine: str) -> None:
    """Check that auto or graph supports a precision; CTranslate2 itself checks its precision.

    Args:
        precision: value of `--precision`; None by default.
        engine: one of `ENGINES`.

    Raises:
        SettingsError: the engine does not support the precision.
    """
    precisions = PRECISIONS if engine == GRAPH else (*PRECISIONS, *WEIGHT_PRECISIONS)
    if engine in TRANSLATOR_ENGINES and precision not in (None, *precisions):
        raise SettingsError(f"--precision {precision}: --engine {engine} supports {', '.join(precisions)}.")


def add_model_options(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add `--model`, `--checkpoint` and the options of ensembles."""
    parser.add_argument("--model", metavar="MODEL", required=required, nargs="+", action="extend",
                        help="the --logdir of a training run, or a package; several are an ensemble")
    parser.add_argument("--checkpoint", metavar="NAME", nargs="+", action="extend",
                        help="best, last, step-N or a checkpoint's prefix (default: best, or else last); one for "
                             "each --model, one for all, or several of one run as an ensemble")
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
    given: dict[str, Any] = {} if args.ensemble_mean is None else {"mean": args.ensemble_mean}
    if args.ensemble_weights is not None:
        try:
            given["weights"] = tuple(float(weight) for weight in args.ensemble_weights.split(","))
        except ValueError:
            raise SettingsError(f"--ensemble-weights {args.ensemble_weights}: expected a number for each member, for "
                                "example 2,1.") from None
    return {"run_dir": args.model, "checkpoint": args.checkpoint, "ensemble": EnsembleSettings(**given),
            "trust_code": args.trust_code}


AS_THE_RUN = "default: the run's setting"
SPELLINGS = {"beam_size": "--beam"}
"""Options whose names differ from their fields."""
_OF_THEIR_OWN = ("averaged", "max_length_factor", "max_length_constant")


def add_search_options(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add an option for each field of `SearchSettings`; options that are not specified keep the run's values.

    Args:
        parser: parser of the command.
        without: fields for which the command has no option, or its own option.
    """
    group = parser.add_argument_group("search")
    types = typing.get_type_hints(SearchSettings)
    for field in dataclasses.fields(SearchSettings):
        if field.name not in (*_OF_THEIR_OWN, *without):
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
    given = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(SearchSettings)}
    given["averaged"] = False if options.last_weights else None
    if options.max_length is not None:
        factor, _, constant = options.max_length.partition(",")
        try:
            given["max_length_factor"], given["max_length_constant"] = float(factor), int(constant or 0)
        except ValueError:
            raise SettingsError(
                f"--max-length {options.max_length}: expected FACTOR,CONSTANT, for example 2,10.") from None
    return {name: value for name, value in given.items() if value is not None}


def check_search_options(given: dict[str, Any]) -> None:
    """Refuse search options that no settings of a run can make valid, before anything is loaded.

    Args:
        given: specified fields of `SearchSettings`; the run's settings have the others.

    Raises:
        SettingsError: an invalid value, or two values that contradict each other.
    """
    rest: dict[str, Any] = {
        "beam_size": max(5, given.get("n_best", 1)) * max(given.get("beam_groups", 1), 1),
        "max_length_factor": max(2.0, given.get("min_length_factor", 0.0))}
    if SAMPLING_ALONE.keys() & given.keys():
        rest["selection"] = "sampling"
    SearchSettings(**{**rest, **given})


def _add_option(group: Any, field: dataclasses.Field[Any], kind: Any) -> None:
    name = SPELLINGS.get(field.name, "--" + field.name.replace("_", "-"))
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


def add_line_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `LineOptions`."""
    group = parser.add_argument_group("requests for translations")
    group.add_argument("--prefix", metavar="TEXT|FILE",
                       help="begin all translations with this text, or each with a line of this file")
    group.add_argument("--partial-word", action="store_true",
                       help="the last word of --prefix may be the beginning of a longer one")
    group.add_argument("--avoid", metavar="FILE",
                       help="words and phrases that translations must not contain, one per line")
    group.add_argument("--constraints", metavar="FILE",
                       help="phrases that translations must contain: a line for each input line, with tabs between "
                            "phrases")
    group.add_argument("--terminology", metavar="FILE",
                       help="terms that translations must contain if the line contains the source term: `source "
                            "term<TAB>target term` per line, optionally with `<TAB>any` to ignore case")
    add_protect_option(group)


def options_of_all_lines(args: argparse.Namespace) -> LineOptions:
    """Return the requests for all lines.

    Raises:
        DataError: a file cannot be read.
    """
    prefix = "" if args.prefix is None or _file(args.prefix) else args.prefix
    avoid = [phrase for phrase in read_text(args.avoid) if phrase.strip()] if args.avoid else []
    terminology = Terminology.read(args.terminology) if args.terminology else None
    return LineOptions(prefix=prefix, partial_word=args.partial_word, avoid=avoid, terminology=terminology,
                       protect=args.protect)


def options_of_each_line(args: argparse.Namespace, first: int = 1) -> Iterator[LineOptions] | None:
    """Return the requests of each line, or None if lines have no separate requests.

    Args:
        args: parsed options.
        first: number of the first line.

    Raises:
        DataError: a file cannot be read.
    """
    files = files_of_each_line(args)
    prefixes, phrases = files.get("--prefix"), files.get("--constraints")
    return options_by_lines(
        islice(clean_lines(open_input(prefixes), prefixes), first - 1, None) if prefixes else None,
        islice(read_lines(phrases), first - 1, None) if phrases else None)


def options_by_lines(prefixes: Iterable[str] | None, phrases: Iterable[str] | None) -> Iterator[LineOptions] | None:
    """Return the requests of each line from the lines of the files; None without files.

    Args:
        prefixes: lines of `--prefix`; None without this file.
        phrases: lines of `--constraints`; None without this file.
    """
    if prefixes is None and phrases is None:
        return None
    beginnings: Iterable[str] = repeat("") if prefixes is None else prefixes
    wanted: Iterable[list[str]] = repeat([]) if phrases is None else map(_phrases, phrases)
    return (LineOptions(prefix=prefix, constraints=constraints)
            for prefix, constraints in zip(beginnings, wanted, strict=False))


def files_of_each_line(args: argparse.Namespace) -> dict[str, str]:
    """Return the files with a line for each input line, by their options."""
    return {name: file for name, file in (("--prefix", args.prefix), ("--constraints", args.constraints))
            if file is not None and (name != "--prefix" or _file(file))}


def constraints_of_each_line(args: argparse.Namespace, lines: int) -> list[list[str]]:
    """Return the phrases of `--constraints` for each line of a test set.

    Args:
        args: the parsed options.
        lines: number of lines in the test set.

    Raises:
        DataError: the file cannot be read, or has another number of lines.
    """
    if not args.constraints:
        return [[] for _ in range(lines)]
    phrases = [_phrases(line) for line in read_lines(args.constraints)]
    if len(phrases) != lines:
        raise DataError(f"{args.constraints} has {len(phrases)} lines, and the test set has {lines}: write one line "
                        "per sentence, empty without phrases.")
    return phrases


def files_of_lines(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the files of the options about lines, by option."""
    return {name: file for name, file in (
        ("--prefix", args.prefix), ("--avoid", args.avoid), ("--constraints", args.constraints),
        ("--terminology", args.terminology)) if file is not None and _file(file)}


def _phrases(line: str) -> list[str]:
    return [phrase.strip() for phrase in line.split("\t") if phrase.strip()]


def _file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:     # the text is no valid file name
        return False


SAMPLES = 100
"""Default number of samples for each line."""


def add_mbr_options(parser: Any) -> None:
    """Add `--mbr` and its further option."""
    parser.add_argument("--mbr", metavar="UTILITY",
                        help="minimum Bayes risk: output the translation that is most similar to all others of its "
                             "line by this utility: chrf, bleu, or a custom function, FILE.py:FUNCTION")
    parser.add_argument("--mbr-aggregate", action="store_true",
                        help="compare each translation with the mean of the others: faster if they are many; only for "
                             "--mbr chrf")


def mbr_reranker(args: argparse.Namespace) -> Reranker | None:
    """Return the reranker of `--mbr`; None without the option.

    Raises:
        SettingsError: the utility is unknown.
    """
    if args.mbr_aggregate and not args.mbr:
        raise SettingsError("--mbr-aggregate needs --mbr chrf: pass it, too.")
    if not args.mbr:
        return None
    from towernmt.predict.minimum_bayes_risk import MinimumBayesRisk  # imports sacreBLEU

    return MinimumBayesRisk(args.mbr, args.mbr_aggregate)


def add_reranking_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for reranking the results of the search."""
    group = parser.add_argument_group("reranking")
    add_mbr_options(group)
    group.add_argument("--samples", type=int, metavar="N",
                       help=f"number of sampled translations of each line to rerank (default: rerank the beam; with "
                            f"--sample {SAMPLES})")
    group.add_argument("--rerank-by", metavar="RUN[:WEIGHT]",
                       help="rerank the beam by a reverse model, a run from the target language to the source "
                            "language; `towernmt rerank --tune` finds the weight (default: 1)")


def reranking_search_options(args: argparse.Namespace, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return further search options that give a reranker several translations: samples, or the complete beam.

    Args:
        args: the parsed options.
        search: the specified fields of `SearchSettings`.

    Raises:
        SettingsError: the reranker would get one translation, or samples have no reranker.
    """
    if not (args.mbr or args.rerank_by):
        if args.samples is not None:
            raise SettingsError("--samples needs --mbr or --rerank-by. To write samples, pass --sample --n-best N.")
        return {}
    if args.samples is not None or search.get("selection") == "sampling":
        return {"selection": "sampling", "n_best": SAMPLES if args.samples is None else args.samples}
    beam = search.get("beam_size", max(SearchSettings.beam_size, search.get("n_best", 1)))
    if beam < 2:
        raise SettingsError("Reranking needs at least two translations of a line: pass a --beam of 2 or more.")
    return {"beam_size": beam, "n_best": beam}


def make_reranker(args: argparse.Namespace, device: str | None) -> Reranker | None:
    """Return the reranker of a command with `add_reranking_options`; None without reranking options.

    Args:
        args: parsed options.
        device: "cpu", "gpu", "gpu:N" or None, for the reverse model.
    """
    if args.mbr and args.rerank_by:
        raise SettingsError("--mbr and --rerank-by exclude each other: leave one of them out.")
    if not args.rerank_by:
        return mbr_reranker(args)
    from towernmt.predict.model_reranker import Judge, ModelReranker

    place, weight = run_and_weight(args.rerank_by, "--rerank-by")
    engine = GRAPH if args.engine == GRAPH else TRANSLATOR_ENGINES[0]
    scorer = open_scorer(place, engine=engine, device=device, trust_code=args.trust_code)
    return ModelReranker([Judge(scorer, "reverse", weight)])


def run_and_weight(text: str, option: str) -> tuple[str, float]:
    """Return the run and the weight of `RUN[:WEIGHT]`; the default weight is 1.

    Raises:
        SettingsError: the weight is not a number.
    """
    place, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, 1.0
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not place or not math.isfinite(value):
        raise SettingsError(f"{option} {text}: expected RUN or RUN:WEIGHT, for example {option} runs/en-de:0.5.")
    return place, value
