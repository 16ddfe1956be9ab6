"""Begin a new run with the models and clusters of an earlier one, also when clients have joined or left since.

It is not a resumed run: it has a folder of its own, which records where it came from. Rounds are counted on, so that
warm-ups, shots and a decaying learning rate are where the earlier run left them, and no minibatch is drawn twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.data import Schema
from coterie.errors import RunFolderError, UsageError
from coterie.experiments.records import DataFacts
from coterie.experiments.resuming import check_frozen, meaning
from coterie.experiments.run_folder import (
    CONFIG,
    SCHEMA,
    STATE,
    load_checked,
    load_config,
    recorded_hashes,
    require_finished,
)
from coterie.experiments.settings import BEGAN, Settings, load_settings
from coterie.experiments.summary import load_clusters
from coterie.server.contract import Algorithm, State
from coterie.server.roster import with_clients
from coterie.textforms import parse

LISTED = 5
"""The most clients that a line names."""

OWN_MODELS = "local"
"""The method in which every client has a model of its own, so that a newcomer has none."""


@dataclass(frozen=True)
class Earlier:
    """A finished run whose models another run begins with: its folder, last state, clients, and the state's hash."""

    folder: Path
    state: State
    names: tuple[str, ...]
    digest: str

    @property
    def round(self) -> int:
        """Return the number of rounds that the models have been trained for."""
        return self.state.round

    def newcomers(self, names: Sequence[str]) -> list[str]:
        """Return the clients among ``names`` that the earlier run did not have."""
        return [name for name in names if name not in self.names]

    def left(self, names: Sequence[str]) -> list[str]:
        """Return the clients of the earlier run that are not among ``names``."""
        return [name for name in self.names if name not in names]

    def state_for(self, algorithm: Algorithm, names: Sequence[str]) -> State:
        """Return the state with which a run with these clients begins."""
        return with_clients(algorithm, self.state, self.names, names)

    def record(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what the new run's config.toml says about where it came from."""
        known = {"folder": str(self.folder), "round": self.round, "state": self.digest}
        return {**known, "joined": self.newcomers(names), "left": self.left(names)}

    def note(self, names: Sequence[str]) -> str:
        """Return what was taken, in one line."""
        new, kept = self.newcomers(names), len(names) - len(self.newcomers(names))
        models = f"{len(self.state.stack)} model{'s' if len(self.state.stack) > 1 else ''}"
        said = [
            f"begins with {models} of {self.folder} after {self.round} rounds",
            f"{kept} clients keep their cluster",
        ]
        said += [f"new, to be placed: {_listed(new)}"] if new else []
        said += [f"left: {_listed(self.left(names))}"] if self.left(names) else []
        return "; ".join(said)


def load_earlier(folder: Path) -> Earlier:
    """Load the last state of a finished run."""
    require_finished(folder, STATE)
    state, _, digest = load_checked(folder / STATE, recorded_hashes(folder))
    return Earlier(folder.resolve(), state, tuple(load_clusters(folder)), digest)


def check_fits(earlier: Earlier, settings: Settings, facts: DataFacts, frozen: str) -> None:
    """Refuse to begin with models of another network, for other examples, or of another algorithm."""
    folder, examples = earlier.folder, load_config(earlier.folder)["examples"]
    old = load_settings(folder / CONFIG, {})
    before, now = meaning(old).get("algorithm", old.algorithm), meaning(settings).get("algorithm", settings.algorithm)
    _require_same(folder, "the algorithm", before, now)
    _require_same(folder, "the model", old.model, settings.model)
    _require_same(folder, "examples of shape", tuple(examples.get("shape", ())), tuple(facts.shape))
    for what in ("classes", "columns", "vocabulary", "unit"):
        _require_same(folder, what, examples.get(what), getattr(facts, what))
    check_frozen(folder, frozen)
    if facts.schema is not None and (folder / SCHEMA).exists() and Schema.load(folder / SCHEMA) != facts.schema:
        raise UsageError(
            f"{folder} was trained on tables read by another {SCHEMA}, so its models expect other numbers; "
            "give all clients that schema, or begin without --from"
        )
    new = earlier.newcomers(facts.names)
    if new and parse(settings.algorithm)[0].name == OWN_MODELS:
        raise UsageError(
            f"{OWN_MODELS} has one model for each client, and {folder} none for {_listed(new)}; begin without --from"
        )


def rounds_before(out: Path | None, resume: bool, earlier: Earlier | None) -> int:
    """Return the number of rounds with which a run begins: those of the earlier run, also when it is resumed."""
    if resume and out is not None and (out / CONFIG).exists():
        return int(load_config(out).get(BEGAN, {}).get("round", 0))
    return 0 if earlier is None else earlier.round


def with_rounds(settings: Settings, before: int) -> Settings:
    """Return settings that train for ``rounds`` more rounds after those before."""
    return replace(settings, rounds=before + settings.rounds) if before else settings


def begun_with(out: Path) -> Earlier | None:
    """Return the earlier run with which the run in a folder began; refuse one that has changed since."""
    began = load_config(out).get(BEGAN)
    if began is None:
        return None
    earlier = load_earlier(Path(began["folder"]))
    if earlier.digest != began["state"]:
        raise RunFolderError(f"{out} began with other models than {earlier.folder} holds now; give another --out")
    return earlier


def _require_same(folder: Path, what: str, before: object, now: object) -> None:
    if before != now:
        raise UsageError(f"{folder} has {what} {before}, not {now}; give the same, or begin without --from")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
