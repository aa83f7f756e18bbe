"""The options by which `towernmt translate` works in parts, and when it does."""

from __future__ import annotations

import argparse
import os
from typing import Any

from towernmt.dataflow.storage.compression import split_compression

_MAGIC = "*?["


def add_parts_options(parser: argparse.ArgumentParser) -> None:
    """`--workers` and what belongs to it."""
    group: Any = parser.add_argument_group("very many lines")
    group.add_argument("--workers", type=int, metavar="N",
                       help="translate in parts, by so many processes, which share the processors (or the GPUs); a "
                            "lost one is started again, and the same command goes on after a stop")
    group.add_argument("--ray", nargs="?", const="", metavar="ADDRESS",
                       help="translate in parts, by --workers workers on a Ray cluster (default: one for each of its "
                            "processors or GPUs): the one at ADDRESS, or the one that there is, or a new one on this "
                            "machine (needs towernmt[ray])")
    group.add_argument("--work-directory", metavar="DIRECTORY",
                       help="where parts lie until all are done (default: the output's name with .parts behind it); "
                            "processes on several machines that share it do one translation together")


def wants_parts(args: argparse.Namespace) -> bool:
    """Whether the inputs are translated in parts: that was asked for, or they are more than one plain file."""
    inputs = args.input or []
    return (args.workers is not None or args.ray is not None or args.work_directory is not None
            or len(inputs) > 1
            or not all(map(_is_plain_file, inputs)))


def _is_plain_file(name: str) -> bool:
    if split_compression(name)[1] is not None or "://" in name:
        return False
    return set(name).isdisjoint(_MAGIC) or os.path.lexists(name)
