"""Keep the best checkpoints by a score, with a record and a log, as THUMT's EvaluationHook does."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorpack.utils import logger

from towernmt.callbacks.stateful import EndOfTraining, ScoreWatcher, find_saver
from towernmt.checkpoint.checkpoint_files import point_at, set_aside
from towernmt.checkpoint.records import RECORD, BestEntry, read_record
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files import flush_to_disk, write_text
from towernmt.core.structured_files import typed_value

Entry = dict[str, Any]
"""One of the best checkpoints: {"step": int, "score": float, "metric": str}."""


class BestCheckpoints(ScoreWatcher):
    """Keeps the best `keep` checkpoints by a score as `directory/step-N`, independently of the saver's own limit.

    A score that is NaN or infinite is logged, and its checkpoint is not kept.

    `directory/record.json` lists them, best first; `directory/log` has one line per evaluation. If scores are equal,
    the later step ranks higher. Put this callback after the validator and the callbacks that watch its score, because
    the checkpoint includes their state. It may be before or after the saver.

    After a killed process, the next start repairs record, log and directories. The record then has the entries of the
    resumed checkpoint and of the file, without steps later than the resumed one, which the run repeats. If the record
    is of a different metric or of other sentences, its checkpoints are moved to `directory.1`, and a new record begins.

    Args:
        directory: directory of the best checkpoints, such as `logdir/best`.
        keep: number of checkpoints to keep.
        metric: name of the score.
        mode: 'max' if higher scores are better, 'min' if lower ones are.
        saver: has `save_now()`, which returns the step's checkpoint; None: the saver among the callbacks.

    Raises:
        SettingsError: `keep` or `mode` is invalid.
    """

    state_key = "best_checkpoints"

    def __init__(self, directory: str | Path, keep: int = 1, metric: str = "validation_bleu",
                 mode: str = "max", saver: Any = None) -> None:
        super().__init__(metric)
        if keep < 1:
            raise SettingsError(f"checkpoint.keep_best={keep} must be at least 1; otherwise remove BestCheckpoints.")
        if mode not in ("max", "min"):
            raise SettingsError(f"mode={mode} is not one of max, min.")
        self.directory, self._keep, self._saver = Path(directory), keep, saver
        self._sign = 1.0 if mode == "max" else -1.0
        self._entries: list[Entry] = []
        self._last_evaluation: Entry | None = None  # also if its checkpoint was not kept
        self._reconciled = False
        self._end: EndOfTraining | None = None

    @property
    def entries(self) -> list[Entry]:
        """The entries of the kept checkpoints, best first."""
        return [dict(entry) for entry in self._entries]

    def state(self) -> dict[str, Any]:
        return {"entries": self._entries, "last": self._last_evaluation}

    def restore_state(self, state: dict[str, Any]) -> None:
        if self.forgets_scores:
            return
        self._entries = [asdict(entry) for entry in typed_value(state["entries"], list[BestEntry], "entries")]
        evaluation = state["last"]        # its score may be NaN or infinite
        self._last_evaluation = None if evaluation is None else {
            "step": int(evaluation["step"]), "score": float(evaluation["score"]), "metric": str(evaluation["metric"])}

    def _setup_graph(self) -> None:
        self._saver = self._saver or find_saver(self.trainer)
        if self._saver is None:
            raise SettingsError("BestCheckpoints needs a CheckpointSaver: add one to the callbacks.")

    def _before_train(self) -> None:
        self._end = EndOfTraining()

    def _before_epoch(self) -> None:
        self._reconcile_once()  # the step and the state of a resumed run are final only now
        self.observe()

    def _after_train(self) -> None:
        if self._end is not None and not self._end.by_error():
            # The pending validation of a resumed run may have ended training before this callback's first epoch.
            self._reconcile_once()
            self.observe()  # the validation at the end, or one that ended training at once
            self._restore_removed()

    def _reconcile_once(self) -> None:
        if not self._reconciled:
            self._reconcile()
            self._reconciled = True

    def _on_score(self, step: int, score: float) -> None:
        entry = {"step": step, "score": score, "metric": self.metric}
        self._restore_removed()
        ranked = self._best_of([*self._entries, entry])
        self._last_evaluation = entry
        if entry in ranked:
            previous_entries, self._entries = self._entries, ranked
            # The checkpoint already contains the new record, so a kill at any later moment loses nothing.
            checkpoint = self._saver.save_now()
            if checkpoint is None:
                self._entries = previous_entries
                return
            _link_tree(Path(checkpoint), self._path(step))
            self._write_record()
            self._remove_unlisted()
            logger.info(f"Kept {self._path(step)}: rank {1 + ranked.index(entry)} of {self._keep} by {self.metric}.")
        self._write_log([*(line for line in self._read_log() if _step_of(line) != step), _log_line(entry)])

    def _best_of(self, entries: list[Entry]) -> list[Entry]:
        unique = {entry["step"]: entry for entry in entries if math.isfinite(entry["score"])}
        return sorted(unique.values(), key=lambda e: (-self._sign * e["score"], -e["step"]))[:self._keep]

    def _reconcile(self) -> None:
        """Bring record, log and directories into line with the step that training starts from."""
        start_step = self.global_step
        recorded = [asdict(entry) for entry in read_record(self.directory)]
        candidates = [] if self.forgets_scores else [
            entry for entry in [*recorded, *self._entries]
            if entry["step"] <= start_step and entry["metric"] == self.metric]
        recorded_metric = next((entry["metric"] for entry in recorded if entry["metric"] != self.metric), None)
        if recorded_metric is not None:
            self._set_aside(f"the best checkpoints by {recorded_metric}")
        elif recorded and self.forgets_scores:
            self._set_aside("the best checkpoints by scores of other validation sentences")
        elif start_step == 0 and not candidates and (self.directory / RECORD).exists():
            self._set_aside("the best checkpoints of another run")
        self._entries = self._existing_entries(self._best_of(candidates))
        if self.directory.is_dir() or self._last_evaluation is not None:
            self._write_record()
            self._remove_unlisted()
            log = [line for line in self._read_log() if _step_of(line) <= start_step]
            evaluation = self._last_evaluation
            if evaluation is not None and all(_step_of(line) != evaluation["step"] for line in log):
                log.append(_log_line(evaluation))
            self._write_log(log)

    def _existing_entries(self, entries: list[Entry]) -> list[Entry]:
        """Link removed checkpoints again if possible, and return the entries whose checkpoint exists."""
        existing = []
        for entry in entries:
            path, source = self._path(entry["step"]), self._checkpoints() / f"step-{entry['step']}"
            if not path.is_dir() and source.is_dir():
                _link_tree(source, path)
            if path.is_dir():
                existing.append(entry)
            else:
                logger.warning(f"{path} was removed, so it is no longer listed among the best checkpoints.")
        return existing

    def _restore_removed(self) -> None:
        """Write the record again if the record or one of its checkpoints was removed."""
        paths = [self._path(entry["step"]) for entry in self._entries]
        if paths and not all(path.exists() for path in (self.directory / RECORD, *paths)):
            self._entries = self._existing_entries(self._entries)
            self._write_record()

    def _checkpoints(self) -> Path:
        return Path(getattr(self._saver, "directory", self.directory.parent / "checkpoints"))

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step}"

    def _set_aside(self, content: str) -> None:
        """Move the best checkpoints of another run or metric away, which this run must not remove."""
        logger.warning(f"Moved {content} from {self.directory} to {set_aside(self.directory)}.")

    def _remove_unlisted(self) -> None:
        listed = {self._path(entry["step"]) for entry in self._entries}
        for path in self.directory.iterdir():
            if path not in listed and re.fullmatch(r"(\.writing-)?step-\d+", path.name):
                shutil.rmtree(path)

    def _write_record(self) -> None:
        write_text(self.directory / RECORD, json.dumps(self._entries, indent=1) + "\n")
        if self._entries:
            point_at(self.directory, [entry["step"] for entry in reversed(self._entries)])

    def _read_log(self) -> list[str]:
        path = self.directory / "log"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line for line in lines if _step_of(line) >= 0]

    def _write_log(self, lines: list[str]) -> None:
        write_text(self.directory / "log", "".join(f"{line}\n" for line in lines))


def _log_line(entry: Entry) -> str:
    return f"step {entry['step']} {entry['metric']} {entry['score']:.6f}"


def _step_of(line: str) -> int:
    match = re.match(r"step (\d+) ", line)
    return int(match.group(1)) if match else -1


def _link_tree(source: Path, target: Path) -> None:
    """Create `target` with the files of `source`, by hard links if possible; either completely or not at all.

    Raises:
        CheckpointError: the files cannot be linked or copied.
    """
    unfinished = target.with_name(f".writing-{target.name}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for file in source.iterdir():
            _link_or_copy(file, unfinished / file.name)
        if target.exists():
            shutil.rmtree(target)
        flush_to_disk(unfinished)
        unfinished.rename(target)
        flush_to_disk(target.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(f"{target}: the best checkpoint cannot be written ({error.strerror}). Free "
                              "disk space or make the directory writable, and run the same command again.") from error


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        flush_to_disk(target)
