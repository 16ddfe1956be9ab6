"""An order: the experiment that the server runs, kept in a file so that a killed run goes on."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import UsageError
from coterie.experiments.settings import OWN, Settings, make_settings
from coterie.files import write_atomically
from coterie.server.exchange import WEIGHT
from coterie.typed import make

if TYPE_CHECKING:
    from coterie.experiments.warm_start import Earlier

ABOUT_DATA = (
    *("data", "classes", "partition", "clients", "validation", *OWN),
    *("runtime", "threads", "plan", "device"),
)
"""Settings of a simulation that mean nothing to a federation: there the sites have the data and the machines."""

TRAIN, DELIVER, DRIFT = "train", "deliver", "drift"
"""What an order may be for."""


@dataclass(frozen=True)
class Order:
    """An experiment, where its results go, and which sites it is for.

    A run begins once ``minimum`` sites are ready, or after ``patience`` seconds with those who are, if they are
    ``quorum`` or more (0: as many as ``minimum``). An exchange waits ``timeout`` seconds for answers. ``schema`` is the
    file that says how the sites' tables become arrays, where the server has it. ``job`` is to train, or only to deliver
    the models of a run that is over, or to look for drift; after training they are delivered if ``deliver`` is set, and
    only to sites that lack them unless it is done ``again``, and of these to those in ``only`` if it names any.
    ``earlier`` is the folder of a finished run whose models and clusters this one begins with. ``history`` is the file
    to which a look for drift is added. ``tables`` are the settings if the sites turn out to have tables, whose training
    has defaults of its own; None: the same.
    """

    settings: dict[str, Any]
    out: str
    board: str
    sites: tuple[str, ...]
    _: KW_ONLY
    minimum: int
    timeout: float
    patience: float = 600.0
    resume: bool = False
    quorum: int = 0
    schema: str | None = None
    job: str = TRAIN
    deliver: bool = True
    again: bool = False
    only: tuple[str, ...] = ()
    earlier: str | None = None
    history: str | None = None
    tables: dict[str, Any] | None = None

    @property
    def run(self) -> str:
        """Return the name of the run, as sites know it."""
        return Path(self.out).name

    def experiment(self, tables: bool = False) -> Settings:
        """Return the settings, those for ``tables`` or others, on the federation; sizes of clients are only claims."""
        from coterie.experiments.placement import FEDERATION

        chosen = self.settings if self.tables is None or not tables else self.tables
        given = {name: value for name, value in chosen.items() if name not in ABOUT_DATA}
        settings = make_settings(given, "the order")
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

    def begins_with(self) -> Earlier | None:
        """Return the finished run with whose models this one begins, if there is one."""
        from coterie.experiments.warm_start import load_earlier

        return None if self.earlier is None else load_earlier(Path(self.earlier))

    def save(self, path: Path) -> None:
        """Write the order to a file, all or nothing."""
        write_atomically(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Order:
        """Read an order from a file that ``save`` wrote."""
        try:
            return make(cls, dict(json.loads(path.read_text())), where=str(path), noun="key")
        except (OSError, ValueError, TypeError, RecursionError, UsageError) as error:
            raise UsageError(f"{path} is no order ({error}); give one with coterie federate run") from None
