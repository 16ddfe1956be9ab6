"""How a person follows a run of a federation: its rounds as they are recorded, and what each site is doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.deploy.server import Place
from coterie.deploy.status_file import DONE, is_alive, is_over, read_board
from coterie.errors import FederationError
from coterie.experiments.clients import load_clients
from coterie.experiments.run_folder import load_labels, load_rounds, load_summary
from coterie.experiments.session import Progress
from coterie.terminal import cell, line

PAUSE = 0.3
LONGEST_NAME, LONGEST_ERROR = 100, 800
"""Letters that are shown of a run's name, and of what it ended with."""

SILENCE = 60.0
"""Seconds after which a run that has not begun is given up."""


def follow(place: Place, progress: Progress, tell: Callable[[str], None] = lambda note: None) -> dict[str, Any]:
    """Return the summary of the submitted run once it is over; ``progress`` gets every round, ``tell`` every note."""
    seen, said, until = 0, 0, time.monotonic() + SILENCE
    while True:
        told = read_board(place.board)
        if told is not None:
            records = load_rounds(Path(told["out"]))
            for record in records[seen:]:
                progress(record)
            seen = max(seen, len(records))
            for note in told["notes"][said:]:
                tell(note)
                said += 1
            if is_over(told):
                return _end(told)
        if (told is None and time.monotonic() > until) or (told is not None and not is_alive(told)):
            raise FederationError(
                f"the run's process is gone; look at {place.folder / 'logs' / 'superlink.log'}, and start the server "
                "again: it goes on from the last checkpoint"
            )
        time.sleep(PAUSE)


def _end(told: Mapping[str, Any]) -> dict[str, Any]:
    if told["state"] != DONE:
        raise FederationError(
            f"run {line(told['run'], LONGEST_NAME)} {told['state']}: {line(told.get('error'), LONGEST_ERROR)}"
        )
    summary = load_summary(Path(told["out"]))
    assert summary is not None, "a run that is done has a summary"
    return summary


def status_table(told: Mapping[str, Any] | None, online: Mapping[str, str]) -> Table:
    """Each site: whether it is there, what it did last, and its cluster; below, what is to be known of the run."""
    notes = [] if told is None else told["notes"]
    table = Table(
        title=None if told is None else cell(_headline(told)),
        title_justify="left",
        caption=Text("\n").join(cell(note) for note in notes) if notes else None,
        caption_justify="left",
    )
    for title in ("site", "connection", "last", "when", "cluster"):
        table.add_column(title)
    sites = {} if told is None else told["sites"]
    clusters = {} if told is None else _clusters(told)
    for name in sorted({*online, *sites}):
        last = sites.get(name, {})
        cells = (online.get(name, "unknown"), last.get("now", ""), last.get("when", ""), str(clusters.get(name, "")))
        table.add_row(*map(cell, (name, *cells)))
    return table


def _headline(told: Mapping[str, Any]) -> str:
    state = told["state"] if is_over(told) or is_alive(told) else "interrupted"
    record = told.get("record")
    at = f", round {record['round'] + 1} of {told['rounds']}" if record else ""
    problem = f": {told['error']}" if "error" in told else ""
    return f"run {line(told['run'], LONGEST_NAME)} {state}{at}{line(problem, LONGEST_ERROR)}"


def _clusters(told: Mapping[str, Any]) -> dict[str, int]:
    """The cluster of each site after the last round that was saved."""
    out = Path(told["out"])
    if (out / "clients.csv").exists():
        return load_clients(out)
    labels = load_labels(out)
    return dict(zip(told["sites"], labels[-1].tolist(), strict=True)) if len(labels) else {}
