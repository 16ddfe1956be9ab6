"""What is told about a run, the same to every tracker: names, numbers, texts, pictures and files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.experiments.run_folder import APART, CLIENTS, CONFIG, MATRIX, SCHEMA, STATE, SUMMARY
from coterie.experiments.settings import Settings
from coterie.reporting.plots import History, draw_run

MOST_CLUSTERS = 64
"""Of more clusters than this, as where every client has its own model, the sizes are not told."""

FILES = (CONFIG, SUMMARY, CLIENTS, STATE, SCHEMA, MATRIX, APART)
"""The files of a finished run that a tracker keeps, if there are any; the state holds the final models."""


@dataclass(frozen=True)
class Beginning:
    """A run that begins or is resumed: its name, its settings, its folder, and by which id the tracker knows it."""

    name: str
    group: str
    settings: Mapping[str, Any]
    folder: Path | None
    known_as: str | None = None


@dataclass(frozen=True)
class Ending:
    """A run that is finished: its last numbers, what is said about it, its pictures (PNG) and its files."""

    numbers: Mapping[str, float]
    texts: Mapping[str, str]
    pictures: Mapping[str, bytes]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Telling:
    """A run that a tracker has begun to listen to.

    id        by which the tracker knows the run again when it is resumed
    told      the number of rounds that the tracker has heard of before
    round     takes the number of a round, from 1, and its numbers
    finished  takes the ending of a run
    close     ends the listening: True if the run is finished
    """

    id: str
    told: int
    round: Callable[[int, Mapping[str, float]], None]
    finished: Callable[[Ending], None]
    close: Callable[[bool], None]


Begin = Callable[[Beginning], Telling]
"""What a tracker does when a run begins or is resumed."""


def beginning_of(settings: Settings, folder: Path | None, known_as: str | None) -> Beginning:
    """Return what is told when a run begins."""
    name = f"{settings.algorithm} on {settings.data}, seed {settings.seed}"
    table = {key: value for key, value in settings.table().items() if key != "track"}
    return Beginning(name, settings.algorithm, table, folder, known_as)


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record or a summary, and the size of each cluster.

    >>> numbers_of({"accuracy": 0.5, "ari": None, "clusters": [3, 1], "data": "digits", "stopped": True})
    {'accuracy': 0.5, 'clusters/0': 3.0, 'clusters/1': 1.0}
    """
    found = {key: float(value) for key, value in record.items() if type(value) in (int, float) and key != "round"}
    sizes = record.get("clusters")
    if isinstance(sizes, list) and len(sizes) <= MOST_CLUSTERS:
        found |= {f"clusters/{number}": float(size) for number, size in enumerate(sizes)}
    return found


def ending_of(summary: Mapping[str, Any], history: History, folder: Path | None) -> Ending:
    """Return what is told when a run is finished."""
    said = {"verdict": summary.get("verdict", {}).get("text"), "advice": summary.get("advise", {}).get("text")}
    title = f"{summary['algorithm']} on {summary['data']}"
    return Ending(
        numbers=numbers_of(summary),
        texts={name: text for name, text in said.items() if text},
        pictures={"run": _picture(history, title)},
        files=() if folder is None else tuple(folder / name for name in FILES if (folder / name).exists()),
    )


def _picture(history: History, title: str) -> bytes:
    content = io.BytesIO()
    draw_run(history, title).savefig(content, format="png", dpi=150)
    return content.getvalue()
