"""How each client ended: its cluster and how well it is served; and who ended together, run after run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from sklearn.metrics import adjusted_rand_score

from coterie.experiments.data_facts import DataFacts
from coterie.experiments.hashes import damaged, read_file
from coterie.experiments.run_folder import CLIENTS, MATRIX
from coterie.files import write_atomically
from coterie.protocol.replies import Replies
from coterie.runtimes.attendance import Attendance
from coterie.terminal import cell
from coterie.typing import Array

Row = Mapping[str, Any]


def client_rows(known: DataFacts, labels: Array, test: Replies, attendance: Attendance) -> list[Row]:
    """One row a client: name, cluster, true group, sizes, and its own test scores (empty where it did not answer).

    In a run in which clients come and go, also the rounds in which each joined and left (empty where it did not).
    """
    dated = {"joined": attendance.joins, "left": attendance.leaves} if len(attendance.changes()) > 1 else {}
    scores: tuple[str, ...] = ("rmse",) if known.classes is None else ("accuracy", "macro_f1")
    found = dict(zip(test.clients.tolist(), own_scores(test, known.classes, known.unit), strict=True))
    return [
        {
            "client": known.names[i],
            "cluster": int(labels[i]),
            **({} if known.groups is None else {"group": int(known.groups[i])}),
            "train": int(known.train[i]),
            "test": int(known.test[i]),
            **{name: rounds.get(known.names[i], "") for name, rounds in dated.items()},
            **dict(zip(scores, found.get(i, ("",) * len(scores)), strict=True)),
        }
        for i in range(len(known))
    ]


def own_scores(replies: Replies, classes: int | None, unit: float) -> list[tuple[float, ...]]:
    """Accuracy and macro-F1 of each client that was evaluated, or its rmse in the user's own units."""
    assert replies.metrics is not None, "an evaluation always asks for metrics"
    if classes is None:
        return [(float(value),) for value in unit * np.sqrt(replies.metrics[:, 0])]
    return [(float(accuracy), float(f1)) for accuracy, f1 in replies.metrics[:, :2]]


def save_clients(folder: Path, rows: Sequence[Row]) -> None:
    """The rows as ``clients.csv`` in a run folder."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / CLIENTS, text.getvalue().encode())


def save_distances(folder: Path, names: Sequence[str], distances: Array) -> None:
    """A matrix of distances between clients as ``distances.csv``, by their names; empty where it is not known."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["client", *names])
    for name, row in zip(names, distances, strict=True):
        writer.writerow([name, *("" if np.isnan(value) else float(value) for value in row)])
    write_atomically(folder / MATRIX, text.getvalue().encode())


def load_rows(folder: Path) -> list[Row]:
    """The rows of a finished run, all values as text."""
    try:
        text = io.StringIO(read_file(folder / CLIENTS).decode(), newline="")
        rows: list[Row] = list(csv.DictReader(text, strict=True))
        _clusters(rows)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise damaged(folder / CLIENTS, f"{type(error).__name__}: {error}") from None
    return rows


def load_clients(folder: Path) -> dict[str, int]:
    """The cluster of every client of a finished run, by name."""
    return _clusters(load_rows(folder))


def _clusters(rows: Sequence[Row]) -> dict[str, int]:
    return {row["client"]: int(row["cluster"]) for row in rows}


def members(clusters: Mapping[str, int]) -> dict[int, list[str]]:
    """The names in each cluster, largest cluster first.

    >>> members({"anna": 1, "bert": 0, "carl": 1})
    {1: ['anna', 'carl'], 0: ['bert']}
    """
    found: dict[int, list[str]] = {}
    for name, cluster in clusters.items():
        found.setdefault(cluster, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def stability(runs: Sequence[Mapping[str, int]]) -> float | None:
    """The mean adjusted Rand index between the clusterings of every two runs; None for one run.

    1: the same clients always end together; 0: no more than by chance.
    """
    pairs = list(combinations(runs, 2))
    if not pairs:
        return None
    return float(np.mean([_agreement(first, second) for first, second in pairs]))


def most_typical(runs: Sequence[Mapping[str, int]]) -> int:
    """The run that agrees best with the others."""
    total = [sum(_agreement(one, other) for other in runs) for one in runs]
    return int(np.argmax(total))


def _agreement(first: Mapping[str, int], second: Mapping[str, int]) -> float:
    return float(adjusted_rand_score(list(first.values()), [second[name] for name in first]))


def together(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Table | None:
    """Who ended with whom, by method: the clusters of its most typical seed, and how stable they are over seeds.

    Methods that leave all clients in one cluster, or each in its own, have nothing to tell; None if none has.
    """
    table = Table(caption_justify="left", show_lines=True)
    for title in ("algorithm", "stability", "clients", "who"):
        table.add_column(
            title, justify="right" if title in ("stability", "clients") else "left", no_wrap=title != "who"
        )
    for name, clusterings in runs.items():
        groups = list(members(clusterings[most_typical(clusterings)]).values())
        if not 1 < len(groups) < sum(map(len, groups)):
            continue
        stable = stability(clusterings)
        for place, group in enumerate(groups):
            first = (name, "—" if stable is None else f"{stable:.2f}") if place == 0 else ("", "")
            table.add_row(*map(cell, (*first, len(group), ", ".join(group))))
    if not table.row_count:
        return None
    table.caption = "stability: mean adjusted Rand index between seeds; 1 always the same clusters, 0 chance"
    return table
