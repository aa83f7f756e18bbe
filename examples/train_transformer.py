"""Train a Transformer from two text files (or from nothing), score it by BLEU, translate with it, and draw its curves.

    python examples/train_transformer.py                   # a small real corpus, about 10 minutes on 2 cores
    python examples/train_transformer.py --pair en-fr      # other languages of that corpus
    python examples/train_transformer.py --gpu 0,1,2,3 --source train.de --target train.en \
        --valid-source valid.de --valid-target valid.en --logdir runs/de-en

Run the same command again to resume from the last checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from nearest import nearest_translations

from towernmt import PreparedData, SettingsError, prepare
from towernmt.cli import (
    add_run_arguments,
    check_devices,
    defaults_mode,
    print_settings,
    run_command,
    settings_sources,
    train_resolved,
    workers_of_cluster,
)
from towernmt.dataflow import PrepareSettings, default_corpus, read_lines
from towernmt.evaluate import corpus_scores
from towernmt.plots import draw_curves, read_run
from towernmt.run import resolve_settings

MINUTES = 8.5
"""Minutes of training on the default corpus. All other settings are automatic, unless --set specifies them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target", "valid-source", "valid-target", "test-source", "test-target"):
        parser.add_argument(f"--{name}", metavar="FILE", help="text, one sentence per line")
    parser.add_argument("--pair", default="en-de", help="languages of the default corpus (no --source)")
    parser.add_argument("--vocab-size", type=int, default=None, help="size of a shared vocabulary (default: automatic)")
    add_run_arguments(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: print_settings(options) if options.help_settings is not None else run(options))


def run(options: argparse.Namespace) -> int:
    """Prepare, train and evaluate, and return the exit status."""
    if bool(options.source) != bool(options.target):
        raise SettingsError("Pass both --source and --target, or neither of them "
                            "for the default corpus.")
    if bool(options.test_source) != bool(options.test_target):
        raise SettingsError("Pass both --test-source and --test-target, or neither of them.")
    check_devices(options)
    if not options.source:
        use_default_corpus(options)
    options.logdir = options.logdir or "runs/transformer"
    data = prepare(PrepareSettings(
        source=options.source, target=options.target, valid_source=options.valid_source,
        valid_target=options.valid_target, vocab_size=options.vocab_size, shared_vocab=bool(options.vocab_size) or None,
        output=str(Path(options.logdir) / "data")), stream=sys.stderr)
    print(data.statistics_table, flush=True)
    workers = workers_of_cluster()
    mode = defaults_mode(None, workers is not None)
    sources = settings_sources(options, lambda: data, mode, workers)
    status = train_resolved(options, resolve_settings(sources), data)
    if status == 0 and options.test_source and options.test_target:
        evaluate(options, data)
    draw_run(options.logdir)
    return status


def use_default_corpus(options: argparse.Namespace) -> None:
    """Set the options to the default corpus and to a training time that suits it.

    Raises:
        SettingsError: files of another corpus are passed.
    """
    files = [f"{part}_{side}" for part in ("valid", "test") for side in ("source", "target")]
    if passed := [f"--{name.replace('_', '-')}" for name in files if getattr(options, name)]:
        raise SettingsError(f"{' and '.join(passed)}: the default corpus has its own validation and test text. Pass "
                            "--source and --target, too, or leave these options out.")
    print(f"No --source: using the translations of Home Assistant, {options.pair} (67 MB the first time).",
          flush=True)
    corpus = default_corpus(options.pair)
    for name in ("train", "valid", "test"):
        prefix = "" if name == "train" else f"{name}_"
        setattr(options, f"{prefix}source", str(getattr(corpus, f"{name}_source")))
        setattr(options, f"{prefix}target", str(getattr(corpus, f"{name}_target")))
    options.logdir = options.logdir or f"runs/{options.pair}"
    options.assignments = [f"train.minutes={MINUTES}", *options.assignments]


def evaluate(options: argparse.Namespace, data: PreparedData) -> None:
    """Print BLEU and chrF on the test set, the BLEU of a trivial baseline, and some translations."""
    from towernmt import Translator

    source, reference = list(read_lines(options.test_source)), list(read_lines(options.test_target))
    train_source, train_target = list(read_lines(options.source)), list(read_lines(options.target))
    floor = corpus_scores(nearest_translations(train_source, train_target, source), reference)
    translations = Translator(options.logdir).translate(source)
    scores = corpus_scores(translations, reference)
    for i in range(0, len(source), max(1, len(source) // 8)):
        print(f"source       {source[i]}\nreference    {reference[i]}\ntranslation  {translations[i]}\n")
    print(f"Test BLEU {scores.bleu:.2f}, chrF {scores.chrf:.2f} ({scores.signature})")
    print(f"Copying the most similar training pair: BLEU {floor.bleu:.2f}, chrF {floor.chrf:.2f}")
    print(f"Translate with it:  towernmt translate --model {options.logdir} < text")


def draw_run(logdir: str) -> None:
    """Plot loss, BLEU, learning rate and speed in the run's directory, if Matplotlib is installed."""
    picture = Path(logdir) / "curves.png"
    if find_spec("matplotlib") is None:
        print(f"To plot the run: pip install 'towernmt[plot]', then towernmt plot {logdir} --output {picture}")
        return
    run = read_run(logdir, Path(logdir).name)
    if run.rows:
        draw_curves([run], picture)
        print(f"Learning curves:  {picture}")


if __name__ == "__main__":
    sys.exit(main())
