"""The experiments of the papers: every id has a plan, and every published number belongs to exactly one cell."""

from __future__ import annotations

import csv
import io
import re
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from coterie.errors import CoterieError
from coterie.reproducing.catalogue import PAPERS, all_ids, find_experiment
from coterie.reproducing.costs import estimated_seconds
from coterie.reproducing.drawing import check_kinds, panels_of
from coterie.reproducing.planning import Plan, make_plan, place_of
from coterie.reproducing.published import FOLDER

LISTED = [
    *(f"thesis:{chapter}.{table}" for chapter in (3, 4, 5, 6) for table in (1, 2, 3, 4)),
    *(f"thesis:7.{table}" for table in (1, 2, 3, 4, 5, 6)),
    *(f"thesis:fig{number}" for number in ("1.3", "3.2", "3.3", "3.4", "3.5", "3.6")),
    *(f"thesis:fig7.{number}" for number in range(1, 8)),
    *("lcfl:II", "lcfl:III", "lcfl:fig2", "lcfl:fig3", "lcfl:fig4", "lcfl:fig5"),
    *("joint:fig4", "joint:fig5", "ocfl:I", "ocfl:fig1", "ocfl:fig2", "ocfl:fig3"),
]

LEFT_OUT: dict[tuple[str, ...], str] = {}
"""Published numbers that no cell has, each with the reason."""


def test_every_table_and_figure_of_the_papers_is_there() -> None:
    assert sorted(all_ids()) == sorted(LISTED)


@cache
def planned(name: str, quick: bool) -> Plan:
    return make_plan(find_experiment(name), quick)


@pytest.mark.parametrize("name", LISTED)
def test_every_id_has_a_plan_at_once_and_without_data(name: str) -> None:
    began = time.process_time()
    experiment, plans = find_experiment(name), [planned(name, quick) for quick in both_or_one(name)]
    assert time.process_time() - began < 3, "a plan reads no data"

    check_kinds(experiment.figures)
    assert experiment.quick.said
    for plan in plans:
        assert plan.cells or experiment.figures == ("classes",)
        assert len({cell.name for cell in plan.cells}) == len(plan.cells), "a name picks one cell"
        assert all(panels_of(plan).values())
    large, *others = [cell_seconds(plan) for plan in plans]
    for small in others:
        assert all(0 < one < other for one, other in zip(small, large, strict=True)), "a quick run is smaller"


def both_or_one(name: str) -> tuple[bool, ...]:
    """Return the versions to plan: tables 2 to 4 of a chapter of the thesis are the first one's rows on other data."""
    again = re.fullmatch(r"thesis:[3-7]\.[234]", name)
    return (False,) if again else (False, True)


def cell_seconds(plan: Plan) -> list[float]:
    return [estimated_seconds(cell.runs[0].settings) for cell in plan.cells]


@pytest.mark.parametrize("name", ["thesis:3.1", "ocfl:I"])
def test_quick_versions_are_estimated_to_end_within_a_quarter_of_an_hour_on_two_cores(name: str) -> None:
    runs = planned(name, quick=True).runs()
    assert sum(estimated_seconds(run.settings) for run in runs) / 2 < 15 * 60


def test_every_published_number_is_claimed_by_one_cell() -> None:
    claimed: Counter[tuple[str, ...]] = Counter()
    for experiment in map(find_experiment, LISTED):
        for table in experiment.tables:
            for row in experiment.rows:
                for column in experiment.columns:
                    for measure in (one for one in experiment.measures if one.published and one.than != row.name):
                        place = place_of(table, row, column, measure)
                        claimed.update(_fitting(experiment.paper, tuple(vars(place).values())))

    known = {_key(row) for row in _published()}
    assert {key for key in known if not claimed[key]} == set(LEFT_OUT)
    assert [key for key, count in claimed.items() if count > 1] == []


def _published() -> list[dict[str, str]]:
    return [
        row for name in ("thesis.csv", "papers.csv") for row in csv.DictReader(io.StringIO((FOLDER / name).read_text()))
    ]


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(
        row[name] for name in ("source", "table", "dataset", "partition", "method", "metric", "clusters", "round")
    )


def _fitting(source: str, place: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the published numbers at a place, found by going through all; empty words fit everything."""
    return [key for key in _BY_TABLE.get((source, place[0]), []) if _fits(key[1:], place)]


def _fits(key: tuple[str, ...], place: tuple[str, ...]) -> bool:
    return key[:5] == place[:5] and all(word in ("", own) for word, own in zip(place[5:], key[5:], strict=True))


_BY_TABLE: dict[tuple[str, str], list[tuple[str, ...]]] = {}
for _row in _published():
    _BY_TABLE.setdefault((_row["source"], _row["table"]), []).append(_key(_row))


def test_the_published_numbers_are_whole() -> None:
    rows = _published()
    assert len(rows) == 2656 + 411
    assert len({_key(row) for row in rows}) == len(rows)
    assert {row["source"] for row in rows} == set(PAPERS)
    assert all(float(row["mean"]) or row["mean"] == "0" for row in rows)


def test_tables_share_their_runs() -> None:
    names = {table: {run.name for run in planned(f"thesis:{table}", quick=False).runs()} for table in ("3.1", "4.1")}
    shared = names["3.1"] & names["4.1"]
    assert len(shared) == 4 * 7 * 5, "four columns, FedAvg and three methods with two K, five seeds"
    figure = {run.name for run in planned("thesis:fig3.2", quick=False).runs()}
    assert figure <= names["3.1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3.1", "PAPER:TABLE"),
        ("thesis:9.9", "thesis:3.1"),
        ("theses:3.1", "table or figure"),
        ("nowhere.toml:one", "cannot read"),
    ],
)
def test_an_unknown_id_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(CoterieError, match=said) as refused:
        find_experiment(text)
    assert "\n" not in str(refused.value)


def test_data_that_cannot_be_had_are_named_with_the_remedy(tmp_path: Path) -> None:
    experiment = find_experiment("thesis:3.2")
    missing = make_plan(experiment)
    assert not missing.runs()
    assert all("--data-file" in cell.missing for cell in missing.cells)

    file = tmp_path / "path.npz"
    given = make_plan(experiment, given={"pathmnist": str(file)})
    assert {run.settings.data for run in given.runs()} == {f"medmnist(pathmnist,file={file})"}
    assert given.command.endswith(f"--data-file pathmnist={file}")
