"""What the server's loop is to do, as a file: it outlives the process, so that a killed run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coterie.errors import UsageError
from coterie.experiments.placement import FEDERATION
from coterie.experiments.settings import Settings, make_settings
from coterie.files import write_atomically
from coterie.server.bounds import WEIGHT

ABOUT_DATA = (
    *(
        "data",
        "classes",
        "partition",
        "clients",
        "validation",
        "label",
        "client",
        "group",
        "ignore",
        "missing",
        "task",
        "test",
    ),
    *("runtime", "threads", "plan", "device"),
)
"""Settings of a simulation that mean nothing to a federation: there the sites have the data and the machines."""


@dataclass(frozen=True)
class Order:
    """An experiment, where its results go, and which sites it is for.

    A run begins once ``minimum`` sites are ready, or after ``patience`` seconds with those who are, if they are
    ``quorum`` or more (0: as many as ``minimum``). An exchange waits ``timeout`` seconds for answers. ``schema`` is
    the file that says how the sites' tables become arrays, where the server has it.
    """

    settings: dict[str, Any]
    out: str
    board: str
    sites: tuple[str, ...]
    minimum: int
    timeout: float
    patience: float = 600.0
    resume: bool = False
    quorum: int = 0
    schema: str | None = None

    @property
    def run(self) -> str:
        """What sites are told this run is called."""
        return Path(self.out).name

    def experiment(self) -> Settings:
        """The settings, with the federation in the place of a simulation's data, where sizes are only claims."""
        told = {name: value for name, value in self.settings.items() if name not in ABOUT_DATA}
        settings = make_settings(told, "the order")
        if settings.momentum_kept:
            raise UsageError("momentum-kept is set, but sites keep nothing between rounds; leave it out")
        return replace(
            settings,
            data=FEDERATION,
            partition="natural",
            clients=len(self.sites),
            clusters=settings.clusters or 4,
            weight_bound=WEIGHT if settings.weight_bound is None else settings.weight_bound,
        )

    def save(self, path: Path) -> None:
        """Write it, all or nothing."""
        write_atomically(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Order:
        """Read what ``save`` wrote."""
        try:
            table = json.loads(path.read_text())
            return cls(**{**table, "sites": tuple(table["sites"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path} is no order ({error}); give one with coterie federate run") from None
