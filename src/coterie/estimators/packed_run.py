"""A run as plain values, for pickle: its algorithm and network hold functions, and are built again from settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coterie.api.run import Run
from coterie.experiments import building
from coterie.experiments.placement import Trained
from coterie.experiments.run import Results
from coterie.models.zoo import build_model

BUILT = ("model", "trained")
"""The fields of a run that are built again."""


@dataclass(frozen=True)
class PackedRun:
    """The other fields of a run, and the scores of its clients."""

    kept: Mapping[str, Any]
    members: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, run: Run) -> PackedRun:
        """Pack a run whose settings name its algorithm and network."""
        found = run.results
        kept = {field.name: getattr(found, field.name) for field in fields(found) if field.name not in BUILT}
        return cls(kept, found.trained.members)

    def unpacked(self) -> Run:
        """Return the run."""
        settings, data, state = (self.kept[name] for name in ("settings", "data", "state"))
        algorithm = building.build_algorithm(settings)
        model = algorithm.network(build_model(settings.model, data.shape, data.classes))
        trained = Trained(algorithm, model, state, self.members, settings.seed, data.unit, settings.metric)
        return Run(Results(**self.kept, model=model, trained=trained))
