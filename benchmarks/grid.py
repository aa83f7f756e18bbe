"""Compare settings by BLEU on a test set: train one trial per processor at a time, or several on a GPU.

    python benchmarks/grid.py trials.yaml --work grid --cpus 0,1
    python benchmarks/grid.py trials.yaml --work grid --gpu 0 --at-once 14

trials.yaml, for example:

    common: [train.steps=2900, validation.steps=580, checkpoint.steps=290]
    trials:
      - {name: pieces-4000, data: data/de-en-4000, source: test.de, reference: test.en}
      - {name: dropout-0.3, data: data/de-en-4000, source: test.de, reference: test.en,
         settings: [model.residual_dropout=0.3, model.embedding_dropout=0.3]}
      - {name: japanese, data: data/en-ja, source: test.en, reference: test.ja, tokenize: char, preset: mini}

Settings that neither `common` nor `settings` specifies are automatic, as in `towernmt train`. With a limit in updates,
the result does not depend on the load of the machine. Each trial is a run in WORK/runs and adds one line to
WORK/results.jsonl: BLEU and chrF of the last checkpoint, of the best checkpoint by validation, and of the average of
the last five, or of all if a run has fewer. Finished trials are skipped, an interrupted trial resumes from its last
checkpoint, and a changed trial needs a new name. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from json_lines import append_record, read_records

from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.core.errors import DataError, SettingsError, TowerNMTError

AVERAGED = 5
"""Number of last checkpoints that are averaged, if a run has as many."""


@dataclass(frozen=True)
class Trial:
    """One training run and its test set.

    Attributes:
        name: name of the run.
        data: directory of prepared data.
        source, reference: files of the test set.
        settings: key=value, applied after the common settings.
        tokenize: tokeniser of sacreBLEU; "" means 13a.
        preset: preset of the model; "" means automatic, which on a GPU is a larger one than on a processor.
    """

    name: str
    data: str
    source: str
    reference: str
    settings: list[str] = field(default_factory=list)
    tokenize: str = ""
    preset: str = ""


def main(arguments: list[str] | None = None) -> None:
    """Run the unfinished trials and print the table."""
    options = parser().parse_args(arguments)
    try:
        trials, common = read_trials(options.trials)
        file = options.work / "results.jsonl"
        done = read_results(file)
        check_same(trials, common, done)
        cpus = options.cpus.split(",") if options.gpu is None else [""] * options.at_once
        run_trials([trial for trial in trials if trial.name not in done], common, options.work, cpus, options.gpu)
        print(table(trials, read_results(file)))
    except TowerNMTError as error:
        raise SystemExit(str(error)) from error


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path, metavar="FILE", help="YAML")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of runs and results")
    parser.add_argument("--cpus", default="0", metavar="N,N", help="processors; each trains one trial at a time")
    parser.add_argument("--gpu", type=int, metavar="N", help="train on this GPU instead")
    parser.add_argument("--at-once", type=int, default=4, metavar="K", help="trials that train on the GPU at a time")
    return parser


def read_trials(path: Path) -> tuple[list[Trial], list[str]]:
    """Read a file of trials.

    Returns:
        The trials, and the settings that all of them share.

    Raises:
        SettingsError: the file is not a valid list of trials.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        trials = [Trial(**trial) for trial in content["trials"]]
        common = [str(setting) for setting in content.get("common", [])]
    except (OSError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} is not a list of trials ({error}): see the example in grid.py.") from error
    names = [trial.name for trial in trials]
    if len(set(names)) < len(names):
        raise SettingsError(f"{path}: two trials have the same name; give each trial its own name.")
    return trials, common


def made_from(trial: Trial, common: Sequence[str]) -> dict[str, Any]:
    """Return the inputs that the scores of a trial depend on, in the form of its result."""
    return {"data": trial.data, "source": trial.source, "reference": trial.reference, "tokenize": trial.tokenize,
            "preset": trial.preset,
            "settings": [*common, *trial.settings]}


def check_same(trials: Sequence[Trial], common: Sequence[str], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a trial that changed after its result was made. Fields missing from a result are not compared.

    Raises:
        SettingsError: a trial changed.
    """
    for trial in trials:
        recorded, current = results.get(trial.name, {}), made_from(trial, common)
        if changed := [key for key in current if key in recorded and recorded[key] != current[key]]:
            old_text, new_text = (", ".join(f"{key} {_written(fields[key])}" for key in changed)
                                  for fields in (recorded, current))
            raise SettingsError(f"Trial {trial.name} was run with {old_text}, but now has {new_text}: give the trial a "
                                "new name.")


def _written(value: str | Sequence[str]) -> str:
    return (value if isinstance(value, str) else " ".join(value)) or "(none)"


def run_trials(trials: Sequence[Trial], common: Sequence[str], work: Path, cpus: Sequence[str],
               gpu: int | None = None) -> None:
    """Train and test the trials: one at a time on each processor, or as many at a time on a GPU as `cpus` has items."""
    waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
    for trial in trials:
        waiting.put(trial)
    failed: list[TowerNMTError] = []

    def work_off(cpu: str) -> None:
        while not waiting.empty() and not failed:
            try:
                run_trial(waiting.get_nowait(), common, work, cpu, gpu)
            except queue.Empty:
                return
            except TowerNMTError as error:
                failed.append(error)

    threads = [threading.Thread(target=work_off, args=(cpu,)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


_WRITING = threading.Lock()


def run_trial(trial: Trial, common: Sequence[str], work: Path, cpu: str, gpu: int | None) -> None:
    """Train and test one trial and append its result. The test uses the CPU."""
    run = work / "runs" / trial.name
    preset = ["--preset", trial.preset] if trial.preset else []
    device = ["--towers", "1"] if gpu is None else ["--gpu", str(gpu)]
    towernmt("train", "--data", trial.data, "--logdir", str(run), *preset, *device, "--set", *common, *trial.settings,
             cpu=cpu)
    averaged = min(AVERAGED, sum(step > 0 for step in checkpoint_steps(run / "checkpoints")))
    towernmt("average", "--model", str(run), "--last", str(averaged), cpu=cpu)
    checkpoints = {"last": "last", "best": "best",
                   "mean": str(next((run / "averages" / f"last-{averaged}").glob("step-*")))}
    if not checkpoint_steps(run / "best"):      # without validation
        del checkpoints["best"]
    test = ["--source", trial.source, "--reference", trial.reference, "--json"]
    test += ["--tokenize", trial.tokenize] if trial.tokenize else []
    scores = {name: json.loads(towernmt("evaluate", "--model", str(run), "--checkpoint", checkpoint, *test, cpu=cpu))
              for name, checkpoint in checkpoints.items()}
    result = {"name": trial.name, **made_from(trial, common), "averaged": averaged,
              **{f"{name}_{metric}": scores[name][metric] for name in scores for metric in ("bleu", "chrf")}}
    with _WRITING:
        append_record(work / "results.jsonl", result)


def towernmt(*arguments: str, cpu: str) -> str:
    """Run a towernmt command on one processor, or on all if `cpu` is empty, and return its output.

    Raises:
        SettingsError: the command failed.
    """
    done = subprocess.run([sys.executable, "-m", "towernmt", *arguments], text=True, capture_output=True,
                          preexec_fn=(lambda: os.sched_setaffinity(0, {int(cpu)})) if cpu else None)
    if done.returncode:
        raise SettingsError(f"towernmt {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def read_results(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read results by trial name. An unfinished last line (from a killed process) is skipped.

    Raises:
        DataError: another line is not a result.
    """
    try:
        return {result["name"]: result for result in read_records(path)}
    except ValueError as error:
        raise DataError(str(error)) from error


def table(trials: Sequence[Trial], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with one row per trial; BLEU has two decimals.

    A mean of fewer checkpoints has their number, and a trial without validation has no best checkpoint.
    """
    rows = ["| trial | settings | last | best by validation | mean of the last five |", "|---|---|---|---|---|"]
    for trial in trials:
        if trial.name in results:
            result = results[trial.name]
            scores = " | ".join(f"{result[key]:.2f}" if key in result else "-"
                                for key in ("last_bleu", "best_bleu", "mean_bleu"))
            number = result.get("averaged", AVERAGED)
            of = "" if number == AVERAGED else f" (of {number})"
            rows.append(f"| {trial.name} | {' '.join(trial.settings)} | {scores}{of} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
