"""Send the scalars of a run to an experiment tracker: MLflow, Weights & Biases, or Trackio.

A tracker is a separate service. If it fails, one warning is logged, and training continues. The scalars are kept and
sent when the tracker works again. Scalars that the tracker refuses as invalid are dropped. A resumed run continues the
run of the tracker: `tracker.json` in the log directory has the identifier of the run for each library.
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.core.structured_files import read_json
from towernmt.train.monitors import StepRecorder, first_line

TRACKER_FILE = "tracker.json"
RETRY_SECONDS = 60.0
"""Minimum time between two attempts to reach a tracker that has failed."""
RETRY_FACTOR = 10
"""Minimum time between two attempts, as a multiple of the time that the last one took, during which training waits."""
MAX_UNSENT_STEPS = 1000
"""Maximum number of steps whose scalars are kept while a tracker fails; the oldest are dropped."""
_LONGEST_VALUE = 500


class Tracker(Protocol):
    """A run of an experiment tracker.

    Attributes:
        library: name of the library, `mlflow`, `wandb` or `trackio`.
    """

    library: str

    def begin(self, identifier: str | None, settings: Mapping[str, Any]) -> str:
        """Begin a run, or continue the run `identifier`; return the identifier of the run.

        Args:
            identifier: identifier of the run to continue; None for a new run.
            settings: settings of the run by dotted name.
        """
        ...

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Record the scalars of a step."""
        ...

    def is_refusal(self, error: Exception) -> bool:
        """Return whether an exception of `log` means that the scalars are invalid, so that another attempt is useless.

        Args:
            error: the exception.
        """
        ...

    def end(self) -> None:
        """End the run, and send everything that was recorded."""
        ...


def mlflow_name(name: str) -> str:
    """Return the name of a scalar in MLflow; different scalars have different names.

    MLflow accepts few characters. Its file store writes a metric into the file of this name, so `validation_loss` and
    `validation_loss/news` would be a file and a directory of the same name. Therefore a slash becomes a full stop. Each
    other character, except letters, digits, `_` and `-`, becomes its hexadecimal code between spaces.

    Args:
        name: name of the scalar, such as `validation_loss/news+talks`.
    """
    return re.sub(r"[^\w-]", lambda match: "." if match[0] == "/" else f" {ord(match[0]):x} ", name)


_MLFLOW_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


class MlflowTracker:
    """A run of MLflow, at the URI in MLFLOW_TRACKING_URI. The scalars have the names that `mlflow_name` returns.

    Args:
        project: name of the experiment.
        name: name of the run.
    """

    library = "mlflow"

    def __init__(self, project: str, name: str) -> None:
        self._project, self._name = project, name
        self._new_identifier: str | None = None

    def begin(self, identifier: str | None, settings: Mapping[str, Any]) -> str:
        """Begin a run, or continue the run `identifier`; return the identifier of the run."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._make_metric = MlflowClient(), Metric
        if identifier is None:
            if self._new_identifier is None:        # otherwise an earlier attempt has failed after this
                experiment = self._client.get_experiment_by_name(self._project)
                number = (experiment.experiment_id if experiment is not None
                          else self._client.create_experiment(self._project))
                self._new_identifier = str(self._client.create_run(number, run_name=self._name).info.run_id)
            identifier = self._new_identifier
            self._client.log_batch(identifier, params=[
                Param(key, str(value)[:_LONGEST_VALUE]) for key, value in settings.items()])
        else:
            self._client.update_run(identifier, status="RUNNING")
        self._identifier = identifier
        return identifier

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Record the scalars of a step."""
        milliseconds = int(1000 * time.time())
        self._client.log_batch(self._identifier, metrics=[
            self._make_metric(mlflow_name(name), value, milliseconds, step) for name, value in scalars.items()])

    def is_refusal(self, error: Exception) -> bool:
        """Return whether MLflow has refused the scalars as invalid."""
        return getattr(error, "error_code", None) in _MLFLOW_REFUSALS

    def end(self) -> None:
        """Set the status of the run to finished."""
        self._client.set_terminated(self._identifier)


class WandbTracker:
    """A run of Weights & Biases, or of a library with the same functions `init`, `log` and `finish`, such as Trackio.

    Args:
        library: name of the library, `wandb` or `trackio`.
        project: name of the project.
        name: name of the run.
    """

    def __init__(self, library: str, project: str, name: str) -> None:
        self.library, self._project, self._name = library, project, name
        self._new_identifier = f"{name}-{uuid.uuid4().hex[:8]}"

    def begin(self, identifier: str | None, settings: Mapping[str, Any]) -> str:
        """Begin a run, or continue the run `identifier`; return the identifier of the run."""
        self._module: Any = import_module(self.library)
        run_identifier = identifier or self._new_identifier
        if self.library == "wandb":
            named = {"id": run_identifier, "name": self._name}
        else:
            named = {"name": run_identifier}
        self._module.init(project=self._project, config=dict(settings), resume="allow", **named)
        return run_identifier

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Record the scalars of a step."""
        self._module.log(dict(scalars), step=step)

    def is_refusal(self, error: Exception) -> bool:
        """Return whether the library has refused the scalars as invalid.

        Subclasses of ValueError may be failures of the network, such as an answer that is not JSON.
        """
        return type(error) in (TypeError, ValueError)

    def end(self) -> None:
        """End the run, and wait until the library has sent everything."""
        self._module.finish()


_FUNCTIONS = {"mlflow": ("MlflowClient",), "wandb": ("init", "log", "finish"), "trackio": ("init", "log", "finish")}
"""The functions and classes that a tracker uses, by its library."""


def check_library(library: str) -> None:
    """Check that the library of a tracker is installed, because a later failure counts as an outage of the tracker.

    Without the package, Python takes a directory of the same name for it, such as `wandb`, into which Weights & Biases
    writes its files.

    Args:
        library: `mlflow`, `wandb` or `trackio`.

    Raises:
        SettingsError: the library is missing, or cannot be imported.
    """
    package = "'towernmt[mlflow]'" if library == "mlflow" else library
    try:
        module = import_module(library)
    except Exception as error:  # noqa: BLE001 -- a damaged library may raise any exception
        raise SettingsError(f"log.tracker={library} needs the package {library}, which cannot be imported "
                            f"({first_line(error)}): pip install {package}, or set log.tracker=none.") from error
    if not all(hasattr(module, name) for name in _FUNCTIONS[library]):
        path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), library)
        raise SettingsError(f"log.tracker={library} needs the package {library}, but Python imports {path} instead: "
                            f"pip install {package}, or set log.tracker=none.")


def make_tracker(library: str, project: str, name: str) -> Tracker:
    """Return a run of a tracker.

    Args:
        library: `mlflow`, `wandb` or `trackio`.
        project: name of the project or experiment.
        name: name of the run.

    Raises:
        SettingsError: see `check_library`.
    """
    check_library(library)
    return MlflowTracker(project, name) if library == "mlflow" else WandbTracker(library, project, name)


def name_for_tracker(directory: Path) -> str:
    """Return the name of a run for a tracker: the name of its directory.

    `train --monolingual` trains its first model in `LOGDIR/monolingual/model`, and `adapt` trains in
    `OUTPUT.work/HASH/run`. These runs also have the names of the two directories around them, joined by hyphens,
    because the name of a run of Weights & Biases must not contain a slash.

    Args:
        directory: directory of the run.
    """
    names = directory.absolute().parts[1:]
    return "-".join(names[-3:] if names[-1] in ("model", "run") else names[-1:])


class TrackerMonitor(StepRecorder):
    """A monitor that sends all finite scalars of a step to a tracker, together.

    If the tracker fails, the scalars of at most `MAX_UNSENT_STEPS` steps are kept, and are sent at a later step. If it
    refuses the scalars of a step as invalid, they are sent one by one, and those that it refuses again are dropped.

    Args:
        tracker: the tracker.
        directory: the log directory of the run.
        settings: settings of the run by dotted name.
    """

    def __init__(self, tracker: Tracker, directory: str | Path, settings: Mapping[str, Any]) -> None:
        super().__init__(f"log.tracker={tracker.library}", (Exception,))    # those of networks and of each library
        self._tracker, self._file, self._settings = tracker, Path(directory) / TRACKER_FILE, settings
        self._has_begun, self._next_attempt = False, -math.inf
        self._unsent: deque[tuple[dict[str, float], int]] = deque()     # scalars of a step, and the step
        self._dropped = 0       # steps since the tracker has failed
        self._refused: set[str] = set()     # names of scalars whose refusal was logged

    def _before_train(self) -> None:
        self._send()

    def _begin(self) -> None:
        advice = f"Remove it to begin a new run in {self._tracker.library}."
        identifiers = read_json(self._file, dict[str, str], advice) if self._file.exists() else {}
        identifier = self._tracker.begin(identifiers.get(self._tracker.library), self._settings)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._file, json.dumps({**identifiers, self._tracker.library: identifier}))

    def _record(self, scalars: dict[str, Any], step: int) -> None:
        finite = {name: float(value) for name, value in scalars.items() if math.isfinite(value)}
        if finite:
            self._unsent.append((finite, step))
        if len(self._unsent) > MAX_UNSENT_STEPS:
            self._unsent.popleft()
            self._dropped += 1

    def _add(self) -> None:
        if self._pending:
            scalars, self._pending = self._pending, {}
            self._record(scalars, self._step)
        if time.monotonic() >= self._next_attempt:
            self._send()

    def _send(self) -> None:
        """Begin the run of the tracker if it has not begun, and send all scalars that are unsent, in their order."""
        if self._has_begun and not self._unsent:
            return
        start = time.monotonic()
        try:
            if not self._has_begun:
                self._begin()
                self._has_begun = True
            while self._unsent:
                self._log(*self._unsent[0])
                self._unsent.popleft()
        except self._failures as error:
            now = time.monotonic()
            self._next_attempt = now + max(RETRY_SECONDS, RETRY_FACTOR * (now - start))
            if not self._has_failed:
                self._has_failed = True
                logger.warning(f"{self._name} records nothing at present ({first_line(error)}). Training continues, "
                               "and the figures are sent when the tracker works again.")
            return
        if self._has_failed:
            logger.info(f"{self._name} records again.{self._dropped_steps()}")
            self._has_failed, self._dropped = False, 0

    def _log(self, scalars: dict[str, float], step: int) -> None:
        """Send the scalars of a step; if the tracker refuses them as invalid, send them one by one.

        Scalars that are sent one by one are removed from `scalars`, so that a failure does not send them twice.
        """
        try:
            self._tracker.log(scalars, step)
        except self._failures as error:
            if not self._tracker.is_refusal(error):
                raise
        else:
            return
        refusals: dict[str, str] = {}
        try:
            for name in list(scalars):
                try:
                    self._tracker.log({name: scalars[name]}, step)
                except self._failures as error:
                    if not self._tracker.is_refusal(error):
                        raise
                    refusals[name] = first_line(error)
                del scalars[name]
        finally:
            self._report_refusals(refusals)

    def _report_refusals(self, refusals: Mapping[str, str]) -> None:
        """Log the names of refused scalars, each of them once.

        Args:
            refusals: the reason of the tracker, by the name of the scalar.
        """
        names = [name for name in refusals if name not in self._refused]
        self._refused.update(names)
        if names:
            logger.warning(f"{self._name} refuses {', '.join(names)} ({refusals[names[0]]}). These figures are missing "
                           "there; stats.jsonl in the log directory has them.")

    def _dropped_steps(self) -> str:
        return f" Number of steps whose figures are missing there: {self._dropped:,}." if self._dropped else ""

    def _after_train(self) -> None:
        self._next_attempt = -math.inf      # the last attempt
        self._add()
        if self._has_failed:
            self._dropped += len(self._unsent)
            logger.warning(f"{self._name} has not worked again until the end of training.{self._dropped_steps()}")
        else:
            self._write(self._tracker.end)
