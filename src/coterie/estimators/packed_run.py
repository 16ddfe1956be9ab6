"""A run as plain values, for pickle: its algorithm and network hold functions, and are built again from settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.data.federated import Federated
from coterie.experiments import building
from coterie.experiments.placement import Trained
from coterie.experiments.run import Run
from coterie.experiments.settings import Settings
from coterie.server.contract import State


@dataclass(frozen=True)
class PackedRun:
    """The parts of a run that are not made from its settings."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    state: State
    data: Federated
    settings: Settings
    members: Sequence[Mapping[str, Any]]
    mix: str | None

    @classmethod
    def of(cls, run: Run) -> PackedRun:
        """Pack a run whose settings name its algorithm and network."""
        return cls(run.summary, run.history, run.state, run.data, run.settings, run.trained.members, run.mix)

    def unpacked(self) -> Run:
        """Return the run."""
        algorithm = building.build_algorithm(self.settings)
        model = algorithm.network(building.build_model(self.settings, self.data))
        trained = Trained(algorithm, model, self.state, self.members, self.settings.seed, self.data.unit)
        return Run(self.summary, self.history, self.state, model, self.data, trained, self.settings, self.mix)
