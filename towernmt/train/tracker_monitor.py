"""Send the scalars of a run to an experiment tracker: MLflow, Weights & Biases, or Trackio.

A tracker is a separate service. If it fails, one warning is logged, and training continues without it. A resumed run
continues the run of the tracker: `tracker.json` in the log directory holds its identifier.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.core.structured_files import read_json
from towernmt.train.monitors import StepRecorder

TRACKER_FILE = "tracker.json"
_LONGEST_VALUE = 500


class Tracker(Protocol):
    """A run of an experiment tracker."""

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

    def end(self) -> None:
        """End the run, and send everything that was recorded."""
        ...


class MlflowTracker:
    """A run of MLflow, at the URI in MLFLOW_TRACKING_URI.

    Args:
        project: name of the experiment.
        name: name of the run.
    """

    def __init__(self, project: str, name: str) -> None:
        self._project, self._name = project, name

    def begin(self, identifier: str | None, settings: Mapping[str, Any]) -> str:
        """Begin a run, or continue the run `identifier`; return the identifier of the run."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._make_metric = MlflowClient(), Metric
        if identifier is None:
            experiment = self._client.get_experiment_by_name(self._project)
            number = (experiment.experiment_id if experiment is not None
                      else self._client.create_experiment(self._project))
            identifier = str(self._client.create_run(number, run_name=self._name).info.run_id)
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
            self._make_metric(name, value, milliseconds, step) for name, value in scalars.items()])

    def end(self) -> None:
        """End the run."""
        self._client.set_terminated(self._identifier)


class WandbTracker:
    """A run of Weights & Biases, or of a library with the same functions `init`, `log` and `finish`, such as Trackio.

    Args:
        library: name of the library, `wandb` or `trackio`.
        project: name of the project.
        name: name of the run.
    """

    def __init__(self, library: str, project: str, name: str) -> None:
        self._library_name, self._project, self._name = library, project, name

    def begin(self, identifier: str | None, settings: Mapping[str, Any]) -> str:
        """Begin a run, or continue the run `identifier`; return the identifier of the run."""
        self._library: Any = import_module(self._library_name)
        run_identifier = identifier or f"{self._name}-{uuid.uuid4().hex[:8]}"
        if self._library_name == "wandb":
            named = {"id": run_identifier, "name": self._name}
        else:
            named = {"name": run_identifier}
        self._library.init(project=self._project, config=dict(settings), resume="allow", **named)
        return run_identifier

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Record the scalars of a step."""
        self._library.log(dict(scalars), step=step)

    def end(self) -> None:
        """End the run."""
        self._library.finish()


def make_tracker(library: str, project: str, name: str) -> Tracker:
    """Return a run of a tracker; its library is imported when it begins.

    Args:
        library: `mlflow`, `wandb` or `trackio`.
        project: name of the project or experiment.
        name: name of the run.

    Raises:
        SettingsError: the library is not installed.
    """
    if find_spec(library) is None:
        package = "'towernmt[mlflow]'" if library == "mlflow" else library
        raise SettingsError(f"log.tracker={library} needs the package {library}: pip install {package}.")
    return MlflowTracker(project, name) if library == "mlflow" else WandbTracker(library, project, name)


@dataclass(frozen=True)
class _TrackerRecord:
    """The content of `tracker.json`: the tracker's identifier of the run."""

    run: str


class TrackerMonitor(StepRecorder):
    """A monitor that sends all finite scalars of a step to a tracker, together.

    Args:
        tracker: the tracker.
        directory: the log directory of the run.
        settings: settings of the run by dotted name.
    """

    def __init__(self, tracker: Tracker, directory: str | Path, settings: Mapping[str, Any]) -> None:
        super().__init__(type(tracker).__name__, (Exception,))      # those of networks and of each library
        self._tracker, self._file, self._settings = tracker, Path(directory) / TRACKER_FILE, settings

    def _before_train(self) -> None:
        self._write(self._begin)

    def _begin(self) -> None:
        recorded_identifier = None
        if self._file.exists():
            advice = "Remove it to begin a new run of the tracker."
            recorded_identifier = read_json(self._file, _TrackerRecord, advice).run
        identifier = self._tracker.begin(recorded_identifier, self._settings)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._file, json.dumps(asdict(_TrackerRecord(identifier))))

    def _record(self, scalars: dict[str, Any], step: int) -> None:
        finite = {name: float(value) for name, value in scalars.items() if math.isfinite(value)}
        if finite:
            self._tracker.log(finite, step)

    def _after_train(self) -> None:
        super()._after_train()
        self._write(self._tracker.end)
