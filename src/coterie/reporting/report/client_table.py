"""The table of clients of a report: cluster, examples, and every score under the run's and under other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.experiments.main_score import Score, main_score
from coterie.experiments.summary import Row
from coterie.experiments.verdict import GUESS, NAMES, column_of
from coterie.reporting.html_tables import Cell, sortable_table
from coterie.reporting.markup import Markup, element, join
from coterie.reporting.report.collecting import Content, RunContent
from coterie.reporting.report.parts import has_clusters

MOST_ROWS = 1000
"""Clients of the table; of more those with the worst scores are shown."""

SHOWN = {"accuracy": "accuracy", "macro_f1": "macro-F1", "loss": "loss", "rmse": "rmse", "metric": "metric"}
"""The scores of a client, and how a table calls them."""


def clients_body(content: Content) -> Markup:
    """Return the table of clients; a run that is not finished has no scores of clients yet."""
    if content.is_comparison:
        return _of_methods(content)
    run = content.run
    if not run.rows:
        return element("p", "The scores of single clients come when the run is finished.")
    score = main_score(bool(run.rows) and "rmse" in run.rows[0], run.settings.metric)
    others = {which: _by_client(other.rows) for which, other in run.references.items() if other.rows}
    own = [name for name in SHOWN if name in run.rows[0]]
    heads = ["client", "cluster", *(["group"] if "group" in run.rows[0] else []), "train", "test"]
    first = len(heads)
    for name in own:
        shown = _name(name, run)
        heads += [shown, *(f"{shown},\n{NAMES[which]}" for which in others)]
        heads += [f"{shown},\nguessing"] if f"{GUESS}_{name}" in run.rows[0] else []
    rows = [_cells(row, heads[1:first], own, others) for row in worst_first(run.rows, score)]
    return join([sortable_table(heads, rows, "table of clients"), _few(len(run.rows))])


def _cells(
    row: Row, facts: Sequence[str], scores: Sequence[str], others: Mapping[str, Mapping[str, Row]]
) -> list[Cell]:
    found: list[Cell] = [str(row["client"]), *(_number(row.get(name, ""), 0) for name in facts)]
    for name in scores:
        found.append(_number(row.get(name, "")))
        found += [_number(rows.get(str(row["client"]), {}).get(name, "")) for rows in others.values()]
        if f"{GUESS}_{name}" in row:
            found.append(_number(row[f"{GUESS}_{name}"]))
    return found


def _of_methods(content: Content) -> Markup:
    """Return the main score of every client under every method, of the first seed that all have finished."""
    comparison = content.comparison
    if comparison is None:
        return element("p", "The scores of single clients come when every method has finished a seed.")
    seeds = [{run.settings.seed for run in runs if run.is_finished} for runs in content.runs.values()]
    seed = min(set.intersection(*seeds))
    chosen = {name: next(run for run in runs if run.settings.seed == seed) for name, runs in content.runs.items()}
    first = next(iter(chosen.values()))
    score = main_score("rmse" in first.rows[0], first.settings.metric)
    by_method = {name: _by_client(run.rows) for name, run in chosen.items()}
    clustered = [name for name, run in chosen.items() if has_clusters(run)]
    shown = _name(score.column, first)
    heads = [
        "client",
        "train",
        "test",
        *(f"{shown},\n{name}" for name in chosen),
        *(f"cluster,\n{name}" for name in clustered),
    ]
    rows = []
    for row in worst_first(first.rows, score):
        same = [rows_of.get(str(row["client"]), {}) for rows_of in by_method.values()]
        numbers = [
            *(_number(each.get(score.column, "")) for each in same),
            *(_number(by_method[name].get(str(row["client"]), {}).get("cluster", ""), 0) for name in clustered),
        ]
        rows.append([str(row["client"]), _number(row["train"], 0), _number(row["test"], 0), *numbers])
    return join([element("p", f"Seed {seed}."), sortable_table(heads, rows, "table of clients"), _few(len(first.rows))])


def worst_first(rows: Sequence[Row], score: Score) -> list[Row]:
    """Return the rows in their order, or of too many those with the worst scores."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    values = column_of(rows, score.column) * (-1 if score.smaller else 1)
    return [rows[i] for i in sorted(values.argsort(kind="stable")[:MOST_ROWS].tolist())]


def _few(count: int) -> Markup | None:
    if count <= MOST_ROWS:
        return None
    return element("p", f"The {MOST_ROWS} of {count} clients that are served worst; clients.csv has all.")


def _by_client(rows: Sequence[Row]) -> dict[str, Row]:
    return {str(row["client"]): row for row in rows}


def _name(column: str, run: RunContent) -> str:
    return str(run.settings.metric or column) if column == "metric" else SHOWN[column]


def _number(value: object, digits: int = 3) -> Cell:
    """Return a number of a row of ``clients.csv``, which is a text; an empty one is not known.

    >>> _number("0.94444"), _number("7", 0), _number("")
    (('0.944', 0.94444), ('7', 7.0), ('—', None))
    """
    try:
        number = float(str(value))
    except ValueError:
        return "—", None
    return (f"{number:.{digits}f}" if abs(number) < 1e6 else f"{number:.3g}"), number
