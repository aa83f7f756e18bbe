#!/usr/bin/env python
"""Adapt a finished run to a new domain with one of two methods.

    python examples/domain_adaptation.py lhuc --model runs/de-en --data data/medical --logdir runs/medical
    python examples/domain_adaptation.py mixed --model runs/de-en --data 'medical.{de,en}' --general 'news.{de,en}' \
        --share 0.5 --logdir runs/medical-mixed

lhuc: learn only a scale for each unit of each layer's output (Swietojanski & Renals 2014; Vilar 2018). The parameters
    of the general model stay unchanged; the adaptation is some thousand numbers.
mixed: train all parameters on a mixture of the new and the old domain, so that the model does not forget the old one
    (Chu et al. 2017). --data and --general are URIs of text. The mixture is written to LOGDIR/corpora.yaml.

The data must have the vocabulary of the run: prepare it with the files of RUN/vocabulary, or pass text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from from_run import add_arguments, data_from_run, settings_from_run

from towernmt import SettingsError
from towernmt.cli import gpu_numbers, run_command

COMMON = ["train.steps=1000", "validation.steps=200", "checkpoint.steps=200", "schedule.name=constant",
          "schedule.warmup_steps=0"]
LHUC = ["model.lhuc=true", "train.only=/lhuc$", "init.new=/lhuc$", "optimizer.learning_rate=0.01"]
"""A high learning rate, since the few trained parameters start far from their final values."""
MIXED = ["optimizer.learning_rate=0.0001"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods = parser.add_subparsers(dest="method", required=True, metavar="METHOD")
    add_arguments(methods.add_parser("lhuc", help="train only a scale for each unit"))
    mixed = methods.add_parser("mixed", help="train all parameters on a mixture of both domains")
    add_arguments(mixed)
    mixed.add_argument("--general", metavar="URI", required=True, help="text of the domain that the run was trained on")
    mixed.add_argument("--share", type=float, default=0.5, help="share of pairs of the new domain (default: 0.5)")
    mixed.add_argument("--valid-source", metavar="FILE", help="validation text of the new domain")
    mixed.add_argument("--valid-target", metavar="FILE", help="its translation")
    options = parser.parse_args(arguments)
    return run_command(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Train and return the exit status."""
    from towernmt import train

    settings = settings_from_run(options, COMMON + (LHUC if options.method == "lhuc" else MIXED))
    if options.method == "mixed":
        options.data = write_mixture(options)
    return train(settings, data_from_run(options), options.logdir, gpu_numbers(options.gpu), options.towers)


def write_mixture(options: argparse.Namespace) -> Path:
    """Write LOGDIR/corpora.yaml and return its path; an epoch reads both domains, the smaller one repeatedly."""
    if not 0.0 < options.share < 1.0:
        raise SettingsError(f"--share {options.share}: expected a number between 0 and 1.")
    if bool(options.valid_source) != bool(options.valid_target):
        raise SettingsError("Pass both --valid-source and --valid-target, or neither of them.")
    corpora: dict[str, Any] = {"sources": [
        {"uri": options.data, "weight": options.share}, {"uri": options.general, "weight": 1.0 - options.share}]}
    if options.valid_source:
        corpora["validation"] = {"source": options.valid_source, "target": options.valid_target}
    path = Path(options.logdir) / "corpora.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(corpora, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
