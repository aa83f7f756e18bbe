"""The models that are served, by direction; and which of them a request means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from towernmt.core.errors import SettingsError, TowerNMTError
from towernmt.serve.detection import Detected, detect
from towernmt.serve.engine.served_model import ServedModel
from towernmt.serve.languages import Direction, language_name, spoken
from towernmt.serve.refusal import bad


class Models:
    """The models, at least one."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """
        Raises:
            SettingsError: two of one direction.
        """
        self._models = {model.direction: model for model in models}
        if len(self._models) < len(models):
            raise SettingsError("--model: two models have the same direction: serve one of them at another port.")

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def sources(self) -> list[str]:
        """The languages from which is translated."""
        return sorted({direction.source for direction in self._models})

    @property
    def targets(self) -> list[str]:
        """The languages to which is translated."""
        return sorted({direction.target for direction in self._models})

    def targets_of(self, source: str) -> list[str]:
        """The languages to which is translated from this one."""
        return sorted(direction.target for direction in self._models if direction.source == source)

    def sources_of(self, target: str) -> list[str]:
        """The languages from which is translated to this one."""
        return sorted(direction.source for direction in self._models if direction.target == target)

    def find(self, source: str | None, target: str | None, sample: str) -> tuple[ServedModel, Detected | None]:
        """The model that a request means.

        Args:
            source, target: codes; None: not said.
            sample: of the text, by which the source is told where it is not said.
        Returns:
            the model, and which language the text was taken for, where the request did not say it.
        Raises:
            Refusal: there is no such model.
        """
        if target is None:
            if len(self.targets) > 1:
                raise bad(f"Into which language? There are {_listed(self.targets)}.")
            target = self.targets[0]
        known = spoken(target, self.targets)
        if known is None:
            raise bad(f"'{target[:40]}' is no language that this server translates into: there are "
                      f"{_listed(self.targets)}.")
        sources = self.sources_of(known)
        if source is None:
            detected = detect(sample, sources)[0]
            return self._of(detected.language, known), detected
        found = spoken(source, sources)
        if found is None:
            raise bad(f"'{source[:40]}' is no language that this server translates into {language_name(known)} from: "
                      f"there are {_listed(sources)}.")
        return self._of(found, known), None

    def _of(self, source: str, target: str) -> ServedModel:
        return self._models[Direction(source, target)]

    def exchange(self) -> dict[str, str]:
        """Load all models anew.

        Returns:
            for each direction an error, or "".
        """
        told = {}
        for direction, model in self._models.items():
            try:
                model.exchange()
                told[str(direction)] = ""
            except TowerNMTError as error:
                told[str(direction)] = str(error)
        return told

    def close(self) -> None:
        """Translate what was submitted, and nothing more."""
        for model in self._models.values():
            model.close()


def _listed(codes: Sequence[str]) -> str:
    return ", ".join(codes)
