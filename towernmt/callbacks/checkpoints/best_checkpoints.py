"""The best checkpoints by a score, kept apart, with a record and a log (as THUMT's EvaluationHook)."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorpack.utils import logger

from towernmt.callbacks.lookup import EndOfTraining, find_saver
from towernmt.callbacks.validation.score_watcher import ScoreWatcher
from towernmt.checkpoint.best_record import RECORD, BestEntry, read_record
from towernmt.checkpoint.files import point_at, set_aside
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files.atomic_files import flush_to_disk, write_text
from towernmt.core.files.json_files import checked

Entry = dict[str, Any]
"""One kept checkpoint: {"step": int, "score": float, "metric": str}."""


class BestCheckpoints(ScoreWatcher):
    """Keeps the best `keep` checkpoints by a score as `directory/step-N`, whatever the saver removes.

    `directory/record.json` lists them, the best first; `directory/log` has one line an evaluation.
    Of equal scores the later step is the better. Put it after the validator and the callbacks that watch its score,
    since the saver writes their state as well. It may be before or after the saver.

    If the process is killed, the next start mends record, log and directories. The record then has the entries of the
    resumed checkpoint and of the file, without steps later than the resumed one (the run makes those again). If the
    record is of another metric, its checkpoints are moved to `directory.1`, and a new record begins.
    """

    state_key = "best_checkpoints"

    def __init__(self, directory: str | Path, keep: int = 1, metric: str = "validation_bleu",
                 mode: str = "max", saver: Any = None) -> None:
        """
        Args:
            directory: where the best go, such as `logdir/best`.
            keep: how many stay.
            metric: name of the score.
            mode: 'max' if higher scores are better, 'min' if lower ones are.
            saver: has `save_now()`, which gives the present step's checkpoint; by default it is found among
                the callbacks.
        Raises:
            SettingsError: a value that cannot work.
        """
        super().__init__(metric)
        if keep < 1:
            raise SettingsError(f"checkpoint.keep_best={keep} must be at least 1, or leave BestCheckpoints out.")
        if mode not in ("max", "min"):
            raise SettingsError(f"mode={mode} is not one of max, min.")
        self.directory, self._keep, self._saver = Path(directory), keep, saver
        self._sign = 1.0 if mode == "max" else -1.0
        self._entries: list[Entry] = []
        self._last: Entry | None = None  # the last evaluation, kept or not
        self._ready = False
        self._end: EndOfTraining | None = None

    @property
    def entries(self) -> list[Entry]:
        """The kept checkpoints, the best first."""
        return [dict(entry) for entry in self._entries]

    def state(self) -> dict[str, Any]:
        return {"entries": self._entries, "last": self._last}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._entries = [asdict(entry) for entry in checked(state["entries"], list[BestEntry], "entries")]
        last = state["last"]        # may be no number
        self._last = None if last is None else {
            "step": int(last["step"]), "score": float(last["score"]), "metric": str(last["metric"])}

    def _setup_graph(self) -> None:
        self._saver = self._saver or find_saver(self.trainer)
        if self._saver is None:
            raise SettingsError("BestCheckpoints needs a CheckpointSaver among the callbacks: add one.")

    def _before_train(self) -> None:
        self._end = EndOfTraining()

    def _before_epoch(self) -> None:
        self._make_ready()  # the step and the state of a resumed run are settled only now
        self.observe()

    def _after_train(self) -> None:
        if self._end is not None and not self._end.by_error():
            # The validation that a resumed run owed may have stopped it before this callback's first epoch.
            self._make_ready()
            self.observe()  # the validation at the end, or one that stopped training at once

    def _make_ready(self) -> None:
        if not self._ready:
            self._reconcile()
            self._ready = True

    def _on_score(self, step: int, score: float) -> None:
        entry = {"step": step, "score": score, "metric": self.metric}
        ranked = self._best_of([*self._entries, entry])
        self._last = entry
        if entry in ranked:
            dropped, self._entries = self._entries, ranked
            # The checkpoint remembers the new record already: a kill at any later moment loses nothing.
            checkpoint = self._saver.save_now()
            if checkpoint is None:
                self._entries = dropped
                return
            _link_tree(Path(checkpoint), self._place(step))
            self._write_record()
            self._remove_unlisted()
            logger.info(f"Kept {self._place(step)}: number {1 + ranked.index(entry)} of the best "
                        f"{self._keep} by {self.metric}.")
        self._write_log([*(line for line in self._read_log() if _step_of(line) != step), _log_line(entry)])

    def _best_of(self, entries: list[Entry]) -> list[Entry]:
        unique = {entry["step"]: entry for entry in entries if entry["score"] == entry["score"]}  # no NaN
        return sorted(unique.values(), key=lambda e: (-self._sign * e["score"], -e["step"]))[:self._keep]

    def _reconcile(self) -> None:
        """Bring record, log and directories into line with the step that training starts from."""
        now = self.global_step
        recorded = [asdict(entry) for entry in read_record(self.directory)]
        known = [entry for entry in [*recorded, *self._entries]
                 if entry["step"] <= now and entry["metric"] == self.metric]
        other = next((entry["metric"] for entry in recorded if entry["metric"] != self.metric), None)
        if other is not None:
            self._set_aside(f"the best by {other}")
        elif now == 0 and not known and (self.directory / RECORD).exists():
            self._set_aside("the best of another run")
        present = []
        for entry in self._best_of(known):
            place, source = self._place(entry["step"]), self._checkpoints() / f"step-{entry['step']}"
            if not place.is_dir() and source.is_dir():
                _link_tree(source, place)
            if place.is_dir():
                present.append(entry)
            else:
                logger.warning(f"{place} is in the record of the best but not there; it is taken off.")
        self._entries = present
        if self.directory.is_dir() or self._last is not None:
            self._write_record()
            self._remove_unlisted()
            log = [line for line in self._read_log() if _step_of(line) <= now]
            if self._last is not None and all(_step_of(line) != self._last["step"] for line in log):
                log.append(_log_line(self._last))
            self._write_log(log)

    def _checkpoints(self) -> Path:
        return Path(getattr(self._saver, "directory", self.directory.parent / "checkpoints"))

    def _place(self, step: int) -> Path:
        return self.directory / f"step-{step}"

    def _set_aside(self, content: str) -> None:
        """A new run in an old directory, or another metric: those best models are not ours to remove."""
        logger.warning(f"{self.directory} held {content}: that is now in {set_aside(self.directory)}.")

    def _remove_unlisted(self) -> None:
        listed = {self._place(entry["step"]) for entry in self._entries}
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
    """Make `target` the same files as `source`, by hard links where possible; complete or not at all.

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
        raise CheckpointError(f"{target}: a best checkpoint could not be kept ({error.strerror}); free "
                              "some space or make it writable, and start the same command again.") from error


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        flush_to_disk(target)
