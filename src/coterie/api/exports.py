"""Exports of a finished run: the network of a client, of a cluster, or all of them, as folders for use elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from coterie.errors import UsageError
from coterie.experiments.main_score import Score, score_of
from coterie.experiments.served_run import ServedRun, Serving
from coterie.experiments.sweep import slug
from coterie.exporting.card import GUESS, LOCAL, ONE, THIS, Card
from coterie.exporting.folder import ONNX, Export, write_folder

INDEX = "clients.csv"
"""The file beside the folders of all models that says which is whose."""


def export_run(
    run: ServedRun,
    out: Path | None = None,
    *,
    client: str | None = None,
    cluster: int | None = None,
    every: bool = False,
    kind: str = ONNX,
    show: Callable[[Sequence[Serving]], Iterable[Serving]] = tuple,
) -> Path:
    """Write the network of a client, of a cluster, or every network, and return the folder.

    ``show`` may show how far the work on every network has come.
    """
    if (client is not None) + (cluster is not None) + every != 1:
        raise UsageError("name one of these to export: --client NAME, --cluster K, or --all")
    if every:
        return _export_all(run, out or Path("exported"), kind, show)
    if client is not None:
        serving, title = run.serving_of(client), f"client {client}"
    else:
        assert cluster is not None, "one of three is given"
        serving, title = run.serving_of_cluster(cluster), f"cluster {cluster}"
    return write_folder(out or Path(f"exported-{slug(title)}"), [("", export_of(run, serving, title))], kind)


def export_of(run: ServedRun, serving: Serving, title: str) -> Export:
    """Return a network of the run with its card."""
    return Export(
        network=run.network(serving.clients[0]),
        model=run.trained.model,
        schema=run.schema,
        class_names=run.class_names,
        card=card_of(run, serving, title),
    )


def _export_all(run: ServedRun, out: Path, kind: str, show: Callable[[Sequence[Serving]], Iterable[Serving]]) -> Path:
    """Write a folder for each network, and a list of which client is served by which."""
    servings = run.servings()
    titles = [_title(run, serving, servings, number) for number, serving in enumerate(servings)]
    folders = _folder_names(titles)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["client", "folder"])
    homes = {client: name for name, serving in zip(folders, servings, strict=True) for client in serving.clients}
    writer.writerows([run.names[client], homes[client]] for client in sorted(homes))
    exports = (
        (name, export_of(run, serving, title))
        for name, serving, title in zip(folders, show(servings), titles, strict=True)
    )
    return write_folder(out, exports, kind, {INDEX: text.getvalue().encode()})


def _title(run: ServedRun, serving: Serving, servings: Sequence[Serving], number: int) -> str:
    """Return whose a network is: a client's, where each has its own; a cluster's; or a number."""
    if all(len(each.clients) == 1 for each in servings):
        return f"client {run.names[serving.clients[0]]}"
    return f"model {number}" if serving.cluster is None else f"cluster {serving.cluster}"


def _folder_names(titles: Sequence[str]) -> list[str]:
    """Return a folder for each title, no two the same, also where a file system ignores capital letters.

    >>> _folder_names(["client Bern", "client bern", "cluster 1"])
    ['client-bern', 'client-bern-2', 'cluster-1']
    """
    found: list[str] = []
    for title in titles:
        first = slug(title)
        tries = (first, *(f"{first}-{number}" for number in range(2, len(titles) + 2)))
        found.append(next(name for name in tries if name not in found))
    return found


def card_of(run: ServedRun, serving: Serving, title: str) -> Card:
    """Return what is known of a network of the run."""
    rows = [run.trained.members[client] for client in serving.clients]
    summary, score = run.summary, score_of(run.summary).of_clients
    scored = [row for row in rows if _has(row, score.column)]
    columns = {THIS: "", GUESS: "guess_", ONE: "one_model_", LOCAL: "local_"}
    return Card(
        title=title,
        algorithm=run.settings.algorithm,
        data=str(summary["data"]),
        rounds=int(summary["rounds"]),
        seed=run.settings.seed,
        clients=[run.names[client] for client in serving.clients],
        of=len(run.names),
        cluster=serving.cluster,
        made=_made(run, serving),
        train=sum(int(row["train"]) for row in rows),
        test=sum(int(row["test"]) for row in rows),
        measure=score.name,
        smaller=score.smaller,
        scores={name: mean_score(scored, f"{before}{score.column}", score) for name, before in columns.items()},
        scored=len(scored),
        why=score.why,
        by_client=[_plain(row) for row in rows],
        notes=[str(note) for note in summary.get("notes", ())],
        settings=tomli_w.dumps(run.settings.table()),
    )


def mean_score(rows: Sequence[Mapping[str, Any]], column: str, score: Score) -> float | None:
    """Return the mean of a column over clients by their test examples; of errors the root of the mean square.

    None if a client lacks it.

    >>> from coterie.experiments.main_score import main_score
    >>> rows = [{"test": "1", "rmse": "3"}, {"test": "3", "rmse": "1"}]
    >>> round(mean_score(rows, "rmse", main_score(regression=True)) ** 2, 6)
    3.0
    """
    if not all(_has(row, column) for row in rows):
        return None
    values, weights = (np.array([float(row[name]) for row in rows]) for name in (column, "test"))
    return float(score.over_clients(values, weights)) if weights.sum() else None


def _has(row: Mapping[str, Any], column: str) -> bool:
    return row.get(column, "") not in ("", None)


def _made(run: ServedRun, serving: Serving) -> str:
    """Return how the network came about."""
    trained = run.trained
    parts = []
    if trained.model.cluster_part:
        parts.append("It is the sum of a part that all clients share and a part of the cluster.")
    if run.mix is not None:
        parts.append(f"It mixes the outputs of {1 + len(trained.state.members)} networks ({run.mix}).")
    if trained.state.memberships is not None:
        parts.append("It is the client's own mixture of the models of the clusters.")
    elif run.is_by_cluster:
        parts.append(
            "It is the mean of the models of the clusters, because these clients have none."
            if serving.cluster is None
            else f"It is the model of cluster {serving.cluster}."
        )
    if trained.algorithm.serve.fit:
        parts.append("It was then fine-tuned on the client's own train examples, as before every test.")
    return " ".join(parts)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of clients.csv with numbers in the place of their words."""
    return {name: value if name == "client" else _number(value) for name, value in row.items()}


def _number(value: Any) -> Any:
    try:
        number = float(value)
    except ValueError:
        return value if value != "" else None
    return int(number) if number.is_integer() and "." not in str(value) else number
