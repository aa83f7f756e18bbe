#!/usr/bin/env python
"""Adapt a finished run to a new domain, in one of two ways.

    python examples/domain_adaptation.py lhuc --model runs/de-en --data data/medical --logdir runs/medical
    python examples/domain_adaptation.py mixed --model runs/de-en --data 'medical.{de,en}' --general 'news.{de,en}' \
        --share 0.5 --logdir runs/medical-mixed

lhuc: a scale for each unit of each layer's output is learned, and nothing else (Swietojanski & Renals 2014; Vilar
2018). The general model stays as it is inside: some thousand numbers are the whole adaptation.
mixed: all parameters are trained on, with a mixture of the new and the old domain, lest the model forget the old one
(Chu et al. 2017). What is passed as --data and --general are URIs of text; the mixture is written to
LOGDIR/corpora.yaml.

The data must be in the vocabulary of the run: prepare it with the files of RUN/vocabulary, or pass text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from from_run import add_arguments, data_from_run, settings_from_run

from towernmt.cli.main import run_command
from towernmt.cli.training.train import gpu_numbers
from towernmt.core.errors import SettingsError

COMMON = ["train.steps=1000", "validation.steps=200", "checkpoint.steps=200", "schedule.name=constant",
          "schedule.warmup_steps=0"]
LHUC = ["model.lhuc=true", "train.only=/lhuc$", "init.new=/lhuc$", "optimizer.learning_rate=0.01"]
"""Few parameters that are far from where they will be: a high rate."""
MIXED = ["optimizer.learning_rate=0.0001"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods = parser.add_subparsers(dest="method", required=True, metavar="METHOD")
    add_arguments(methods.add_parser("lhuc", help="train only a scale for each unit"))
    mixed = methods.add_parser("mixed", help="train everything, on a mixture of both domains")
    add_arguments(mixed)
    mixed.add_argument("--general", metavar="URI", required=True, help="text that is like what the run was trained on")
    mixed.add_argument("--share", type=float, default=0.5, help="of the new domain's pairs (default: 0.5)")
    mixed.add_argument("--valid-source", metavar="FILE", help="text of the new domain, for validation")
    mixed.add_argument("--valid-target", metavar="FILE", help="its translation")
    options = parser.parse_args(arguments)
    return run_command(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Train; the exit status."""
    from towernmt.run.launch import train

    settings = settings_from_run(options, COMMON + (LHUC if options.method == "lhuc" else MIXED))
    if options.method == "mixed":
        options.data = write_mixture(options)
    return train(settings, data_from_run(options), options.logdir, gpu_numbers(options.gpu), options.towers)


def write_mixture(options: argparse.Namespace) -> Path:
    """Write LOGDIR/corpora.yaml; an epoch ends when both domains were read, the smaller one several times."""
    if not 0.0 < options.share < 1.0:
        raise SettingsError(f"--share {options.share}: expected a number between 0 and 1.")
    if bool(options.valid_source) != bool(options.valid_target):
        raise SettingsError("--valid-source and --valid-target go together: pass both text files, or neither.")
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
