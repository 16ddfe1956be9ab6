"""Results by client: its cluster and its test scores at the end of a run; and how stable clusters are over seeds."""

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
from coterie.server.contract import State
from coterie.terminal import cell
from coterie.typing import Array

Row = Mapping[str, Any]


def client_rows(facts: DataFacts, state: State, test: Replies, attendance: Attendance) -> list[Row]:
    """Return a row for each client: name, cluster, true group, sizes, and test scores (empty if it did not answer).

    If clients join or leave during the run, also the rounds in which they do (empty for those that do not); if clusters
    are soft, also its membership in each.
    """
    dated = {"joined": attendance.joins, "left": attendance.leaves} if len(attendance.changes()) > 1 else {}
    scores: tuple[str, ...] = ("rmse",) if facts.classes is None else ("accuracy", "macro_f1")
    found = dict(zip(test.clients.tolist(), scores_by_client(test, facts.classes, facts.unit), strict=True))
    return [
        {
            "client": facts.names[i],
            "cluster": int(state.labels[i]),
            **({} if facts.groups is None else {"group": int(facts.groups[i])}),
            "train": int(facts.train[i]),
            "test": int(facts.test[i]),
            **{name: rounds.get(facts.names[i], "") for name, rounds in dated.items()},
            **dict(zip(scores, found.get(i, ("",) * len(scores)), strict=True)),
            **_memberships(state, i),
        }
        for i in range(len(facts))
    ]


def _memberships(state: State, client: int) -> dict[str, float]:
    if state.memberships is None:
        return {}
    return {f"membership_{k}": float(value) for k, value in enumerate(state.memberships[client])}


def scores_by_client(replies: Replies, classes: int | None, unit: float) -> list[tuple[float, ...]]:
    """Return accuracy and macro-F1 of each evaluated client, or its rmse in the units of the user's targets."""
    assert replies.metrics is not None, "an evaluation always asks for metrics"
    if classes is None:
        return [(float(value),) for value in unit * np.sqrt(replies.metrics[:, 0])]
    return [(float(accuracy), float(f1)) for accuracy, f1 in replies.metrics[:, :2]]


def save_clients(folder: Path, rows: Sequence[Row]) -> None:
    """Write the rows to ``clients.csv`` in a run folder."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / CLIENTS, text.getvalue().encode())


def save_distances(folder: Path, names: Sequence[str], distances: Array) -> None:
    """Write the distances between clients to ``distances.csv``, with their names; unknown distances are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["client", *names])
    for name, row in zip(names, distances, strict=True):
        writer.writerow([name, *("" if np.isnan(value) else float(value) for value in row)])
    write_atomically(folder / MATRIX, text.getvalue().encode())


def load_rows(folder: Path) -> list[Row]:
    """Return the rows of ``clients.csv`` in the folder of a finished run; all values are strings."""
    try:
        text = io.StringIO(read_file(folder / CLIENTS).decode(), newline="")
        rows: list[Row] = list(csv.DictReader(text, strict=True))
        _clusters(rows)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise damaged(folder / CLIENTS, f"{type(error).__name__}: {error}") from None
    return rows


def load_clusters(folder: Path) -> dict[str, int]:
    """Return the cluster of every client of a finished run, by name."""
    return _clusters(load_rows(folder))


def _clusters(rows: Sequence[Row]) -> dict[str, int]:
    return {row["client"]: int(row["cluster"]) for row in rows}


def names_by_cluster(clusters: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the names of the clients in each cluster, largest cluster first.

    >>> names_by_cluster({"anna": 1, "bert": 0, "carl": 1})
    {1: ['anna', 'carl'], 0: ['bert']}
    """
    names: dict[int, list[str]] = {}
    for name, cluster in clusters.items():
        names.setdefault(cluster, []).append(name)
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def stability(runs: Sequence[Mapping[str, int]]) -> float | None:
    """Return the mean adjusted Rand index over all pairs of runs; None for one run.

    1: the clusters are always the same; 0: they agree no more than by chance.
    """
    pairs = list(combinations(runs, 2))
    if not pairs:
        return None
    return float(np.mean([_agreement(first, second) for first, second in pairs]))


def most_typical(runs: Sequence[Mapping[str, int]]) -> int:
    """Return the position of the run that agrees best with the others."""
    total = [sum(_agreement(one, other) for other in runs) for one in runs]
    return int(np.argmax(total))


def _agreement(first: Mapping[str, int], second: Mapping[str, int]) -> float:
    return float(adjusted_rand_score(list(first.values()), [second[name] for name in first]))


def clusters_table(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Table | None:
    """Return a table of each method's clusters: those of its most typical seed, and their stability over seeds.

    Methods with a single cluster, or with one client in each, are left out; None if that leaves no method.
    """
    table = Table(caption_justify="left", show_lines=True)
    for title in ("algorithm", "stability", "clients", "who"):
        table.add_column(
            title, justify="right" if title in ("stability", "clients") else "left", no_wrap=title != "who"
        )
    for name, clusterings in runs.items():
        groups = list(names_by_cluster(clusterings[most_typical(clusterings)]).values())
        if not 1 < len(groups) < sum(map(len, groups)):
            continue
        stable = stability(clusterings)
        for position, group in enumerate(groups):
            first = (name, "—" if stable is None else f"{stable:.2f}") if position == 0 else ("", "")
            table.add_row(*map(cell, (*first, len(group), ", ".join(group))))
    if not table.row_count:
        return None
    table.caption = "stability: mean adjusted Rand index between seeds; 1 always the same clusters, 0 chance"
    return table
