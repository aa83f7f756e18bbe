"""Commands of the server: `towernmt serve` and `serve-keys`.

- serve: serve trained models over HTTP.
- serve-keys: create, list and remove the keys of a server's callers.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import typing
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from towernmt.cli.specified_options import specified_options
from towernmt.cli.translation_options import (
    add_device_options,
    add_protect_option,
    add_search_options,
    add_special_line_options,
    add_trust_option,
    check_search_options,
    device_of,
    search_options,
    special_line_settings,
)
from towernmt.core.errors import SettingsError
from towernmt.core.standard_streams import log_to_stderr
from towernmt.dataflow.text.language_codes import Direction, parse_direction
from towernmt.predict.engine_support import check_precision
from towernmt.predict.search.device_batches import batching_for, uses_gpu
from towernmt.predict.search.search_settings import BATCH_ON_GPU, StreamSettings
from towernmt.serve.glossaries import Glossaries
from towernmt.serve.model_loading import (
    ENGINES,
    EngineSettings,
    ModelSpec,
    load_served_model,
    parse_model_spec,
    recorded_direction,
)
from towernmt.serve.request_limits import ServerLimits
from towernmt.serve.suggestions import Suggestions
from towernmt.serve.web.callers import KeysFile, Proxies, add_key, read_keys, remove_key
from towernmt.serve.web.observability import log_as_json

if TYPE_CHECKING:
    from towernmt.serve.service import Access, Service

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@\x7f-\U0010ffff]+")
_DEFAULT_PORTS = {"http://": ":80", "https://": ":443"}
MISSING = "towernmt serve needs Starlette, uvicorn, python-multipart, sentencex and py3langid: install them with " \
          "`pip install 'towernmt[serve]'`."


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt serve`."""
    parser.add_argument("--model", metavar="[DIRECTION=]MODEL", required=True, nargs="+", action="extend",
                        help="a run, a package, an export or a custom engine (FILE.py:NAME), as de-en=runs/de-en "
                             "(default direction: that of a package); pass several for several directions")
    parser.add_argument("--source-prefix", metavar="DIRECTION=TEXT", nargs="+", action="extend", default=[],
                        help="text before each sentence of a direction, such as the tag of the target language of a "
                             "multilingual model: 'en-de=<2de>'")
    parser.add_argument("--host", default="127.0.0.1",
                        help="address to listen at; 0.0.0.0 for all addresses of this machine (default: %(default)s)")
    parser.add_argument("--port", type=int, default=5000, help="port to listen at; 0 for a free one "
                                                               "(default: %(default)s)")
    parser.add_argument("--keys", metavar="FILE",
                        help="accept only requests with a key of this file (see `towernmt serve-keys`)")
    parser.add_argument("--rate", type=float, default=0.0, metavar="N",
                        help="maximum requests per minute of an address, or of a key without its own limit; 0 for no "
                             "limit (default: 0)")
    parser.add_argument("--rate-characters", type=float, default=0.0, metavar="N",
                        help="maximum characters per minute, in the same way (default: 0)")
    parser.add_argument("--glossaries", metavar="FILE",
                        help="store the glossaries of callers in this file (default: in memory)")
    parser.add_argument("--suggestions", metavar="FILE",
                        help="accept suggestions of better translations, and append them to this file: a line with "
                             "time, model, source, translation and suggestion, separated by tabs (default: accept "
                             "none)")
    parser.add_argument("--cors", metavar="ORIGIN", nargs="+", action="extend", default=[],
                        help="accept requests from pages of this web site, as https://example.org; * for all")
    parser.add_argument("--trusted-proxy", metavar="ADDRESS", nargs="+", action="extend", default=[],
                        help="trust X-Forwarded-For and X-Forwarded-Proto of this proxy, an address or a network as "
                             "10.0.0.0/8; may be repeated (default: trust no proxy)")
    parser.add_argument("--page", action=argparse.BooleanOptionalAction, default=True,
                        help="serve a web page for translation (default: --page)")
    add_trust_option(parser)
    _add_engine(parser)
    parser.add_argument("--retry", action=argparse.BooleanOptionalAction, default=True,
                        help="if a translation is empty, repetitive or cut at the length limit, search again without "
                             "repetitions, and keep the better one (default: --retry)")
    add_special_line_options(parser)
    add_protect_option(parser)
    group = parser.add_argument_group("limits")
    types = typing.get_type_hints(ServerLimits)
    for field in dataclasses.fields(ServerLimits):
        help = field.metadata["help"].removesuffix(".")
        group.add_argument(f"--{field.name.replace('_', '-')}", type=types[field.name], default=field.default,
                           metavar="N", help=f"{help[0].lower()}{help[1:]} (default: %(default)s)")
    add_search_options(parser, excluded=["n_best"])


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal stops the process, and return the exit status."""
    specs = [parse_model_spec(model) for model in args.model]
    check_search_options(search_options(args))
    limits = ServerLimits(**{field.name: getattr(args, field.name) for field in dataclasses.fields(ServerLimits)})
    settings = _engine_settings(args)
    prefixes = _source_prefixes(args.source_prefix)
    _check_rates(args)
    origins = [_origin(origin) for origin in args.cors]
    keys = None if args.keys is None else KeysFile(args.keys)
    suggestions = Suggestions(None if args.suggestions is None else Path(args.suggestions))
    proxies = Proxies(args.trusted_proxy)
    try:
        from towernmt.serve.server import bind, note_reload_signal, serve
        from towernmt.serve.service import Access
    except ImportError:
        raise SettingsError(MISSING) from None
    note_reload_signal()
    listener = bind(args.host, args.port)
    log_to_stderr()
    log_as_json()
    access = Access(keys, args.rate, args.rate_characters, origins, proxies)
    glossaries = Glossaries(None if args.glossaries is None else Path(args.glossaries))
    serve(open_service(specs, settings, limits, access, glossaries, args.page, suggestions, prefixes), listener)
    return 0


def _source_prefixes(assignments: Sequence[str]) -> dict[Direction, str]:
    """Return the values of `--source-prefix` by direction.

    Raises:
        SettingsError: a value does not begin with a direction, or a direction is repeated.
    """
    prefixes: dict[Direction, str] = {}
    for assignment in assignments:
        text, equals, prefix = assignment.partition("=")
        if not equals or not prefix.strip():
            raise SettingsError(f"--source-prefix {assignment}: write the direction before the text, as in "
                                "'en-de=<2de>'.")
        direction = parse_direction(text)
        if direction in prefixes:
            raise SettingsError(f"--source-prefix {assignment}: this direction already has a prefix: leave one out.")
        prefixes[direction] = prefix
    return prefixes


def _check_rates(args: argparse.Namespace) -> None:
    """Refuse rates that would refuse every request, and rates that a file of keys cannot contain.

    Raises:
        SettingsError: a rate is negative, infinite or not a number.
    """
    for name, rate in (("--rate", args.rate), ("--rate-characters", args.rate_characters)):
        if not 0 <= rate < math.inf:
            raise SettingsError(f"{name} {rate:g} must be a number from 0 (0 for no limit).")


def _origin(text: str) -> str:
    """Return an origin as browsers send it: in lower case, without a slash at the end and without a default port.

    Raises:
        SettingsError: the text is not an origin.
    """
    origin = text.lower().removesuffix("/")
    for scheme, port in _DEFAULT_PORTS.items():
        if origin.startswith(scheme):
            origin = origin.removesuffix(port)
    if not _ORIGIN.fullmatch(origin):
        raise SettingsError(f"--cors {text} must be a scheme and an ASCII host without a path, such as "
                            "https://example.org, or * for all web sites.")
    return origin


def open_service(specs: list[ModelSpec], settings: EngineSettings, limits: ServerLimits, access: Access,
                 glossaries: Glossaries, page: bool = True, suggestions: Suggestions | None = None,
                 source_prefixes: Mapping[Direction, str] = MappingProxyType({})) -> Service:
    """Return the service with its models loaded and warmed up.

    Raises:
        TowerNMTError: a model cannot be loaded, or a source prefix is that of a direction without a model.
    """
    from towernmt.serve.served_models import Models, ServedModel
    from towernmt.serve.service import Service, record_rounds, server_metrics

    metrics = server_metrics()
    locations = [(direction or recorded_direction(location), location) for direction, location in specs]
    directions = [direction for direction, _ in locations]
    for direction, prefix in source_prefixes.items():
        if direction not in directions:
            raise SettingsError(f"--source-prefix {direction}={prefix}: no --model has this direction, only "
                                f"{', '.join(map(str, directions))}.")
    models = []
    for direction, location in locations:
        settings_of_model = dataclasses.replace(settings, source_prefix=source_prefixes.get(direction, ""))
        models.append(ServedModel(
            direction, location, partial(load_served_model, location, settings_of_model, direction),
            settings.round_size, limits.max_queue, record_rounds(metrics, direction)))
    return Service(Models(models), limits, access, metrics, glossaries=glossaries, page=page,
                   suggestions=suggestions or Suggestions())


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                       help="engine that computes: auto is CTranslate2 for each sentence with the same result as "
                            "TensorFlow's graph, and the graph for other sentences; graph is always the graph; "
                            "ctranslate2 refuses what CTranslate2 cannot translate (default: %(default)s)")
    group.add_argument("--precision", metavar="P",
                       help="precision of the graph's matrix products: float32, bfloat16 or float16; or of the weights "
                            "in CTranslate2: also int16 or int8 (default: the export's; on processors int8 for a run "
                            "or package that is measured to lose little in int8; otherwise float32)")
    group.add_argument("--alternatives", type=int, default=EngineSettings.alternatives, metavar="N",
                       help="maximum number of translations per sentence in a request (default: %(default)s)")
    group.add_argument("--alignments", action=argparse.BooleanOptionalAction, default=True,
                       help="return word alignments if the engine has them (default: --alignments)")
    group.add_argument("--threads", type=int, default=StreamSettings.threads, metavar="N",
                       help="number of simultaneously translated batches (default: one for each processor; one with a "
                            "GPU)")
    group.add_argument("--batch-sentences", type=int, metavar="N",
                       help="maximum number of sentences in a batch; small batches reduce latency, large ones increase "
                            f"throughput (default: {_SENTENCES}, or {BATCH_ON_GPU['batch_sentences']} on a GPU)")
    group.add_argument("--batch-tokens", type=int, metavar="N",
                       help="maximum number of source tokens in a batch, padding included (default: "
                            f"{StreamSettings.batch_tokens}, or {BATCH_ON_GPU['batch_tokens']} on a GPU)")
    group.add_argument("--max-source-length", type=int, default=StreamSettings.max_source_length, metavar="TOKENS",
                       help="longer sentences are split, and their translations joined (default: %(default)s)")
    add_device_options(group)


_SENTENCES = 32
"""Default of `--batch-sentences` on the CPU."""


def _engine_settings(args: argparse.Namespace) -> EngineSettings:
    if args.alternatives < 1:
        raise SettingsError(f"--alternatives {args.alternatives} must be at least 1.")
    check_precision(args.precision, args.engine)
    device = device_of(args)
    on_gpu = args.engine != "ctranslate2" and uses_gpu(device)
    sentences = _SENTENCES if args.batch_sentences is None and not on_gpu else args.batch_sentences
    stream = batching_for("gpu" if on_gpu else "cpu", args.batch_tokens, sentences,
                          max_source_length=args.max_source_length, threads=args.threads or int(on_gpu))
    return EngineSettings(args.engine, args.precision, device, args.alternatives, args.alignments,
                          stream, tuple(search_options(args).items()), args.trust_code, args.retry,
                          special_line_settings(args), tuple(args.protect))


def add_serve_keys_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt serve-keys`."""
    parser.add_argument("action", choices=("add", "list", "remove"), help="action on the file of keys")
    parser.add_argument("name", nargs="?", metavar="CALLER", help="name of the caller in logs")
    parser.add_argument("--keys", metavar="FILE", required=True, help="file of keys for `towernmt serve --keys`")
    parser.add_argument("--rate", type=float, default=0.0, metavar="N",
                        help="add: maximum requests per minute (default: that of `towernmt serve --rate`)")
    parser.add_argument("--rate-characters", type=float, default=0.0, metavar="N",
                        help="add: maximum characters per minute (default: that of `towernmt serve "
                             "--rate-characters`)")
    parser.add_argument("--admin", action="store_true", help="add: allow the caller to replace models")


def run_serve_keys(args: argparse.Namespace) -> int:
    """Change or show the file of API keys, and return the exit status."""
    path = Path(args.keys)
    if args.action != "add" and (unused := specified_options(args, add_serve_keys_arguments, excluded=("keys",))):
        raise SettingsError(f"serve-keys {args.action}: {' and '.join(unused)}: only a new key has limits and rights: "
                            "leave this out; to change a key, remove it and add it again.")
    if args.action == "list":
        if args.name:
            raise SettingsError(f"serve-keys list {args.name}: the list has all callers: leave out the name.")
        if not path.is_file():
            raise SettingsError(f"{path}: file of keys not found.")
        for entry in read_keys(path):
            rates = [f"{value:g} {unit} a minute" for value, unit in (
                (entry.rate, "requests"), (entry.characters, "characters")) if value]
            print("  ".join([entry.name, *rates, *(["admin"] if entry.admin else [])]))
        return 0
    if not args.name:
        raise SettingsError(f"serve-keys {args.action}: pass the name of the caller, as in `towernmt serve-keys "
                            f"{args.action} anna --keys {path}`.")
    if args.action == "remove":
        remove_key(path, args.name)
        return 0
    _check_rates(args)
    print(add_key(path, args.name, args.rate, args.rate_characters, args.admin))
    return 0
