"""A table by one command, from a user's own file: planned, run, killed, resumed, compared and shown."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.errors import CoterieError, UsageError
from coterie.experiments.records import RoundRecorder
from coterie.reporting.overall import SoFar
from coterie.reproducing import results, running
from coterie.reproducing.catalogue import Column, Row, find_experiment
from coterie.reproducing.costs import estimated_seconds
from coterie.reproducing.drawing import draw
from coterie.reproducing.measures import Measure, Numbers
from coterie.reproducing.page import MARK, as_html, as_markdown, make_page, save_page
from coterie.reproducing.planning import Cell, Plan, Run, make_plan
from coterie.reproducing.published import Place, Printed, find_printed
from coterie.reproducing.results import Found, collect, order_agreement
from coterie.reproducing.running import Tally, folder_of, numbers_of, run_all

OWN = """
source = "a test"
settings = { clients = 8, rounds = 3, lr = 0.1 }
seeds = "1..2"

[quick]
said = "one round less."
few = 20
settings = { rounds = 2 }

[[reasons]]
text = "digits are small"
methods = ["WeCFL"]

[rows]
both = [{ name = "FedAvg", algorithm = "fedavg" }, { name = "WeCFL", algorithm = "wecfl", clusters = [2, 4] }]

[columns]
"Rotated digits" = { data = "digits", settings = { partition = "rotation(0,90,180,270)" } }
"Paths" = { data = "medmnist(pathmnist)", settings = { partition = "iid" } }

[measures]
accuracy = { of = "accuracy_last3", percent = true }
"accuracy, round" = { of = "accuracy", at = [1, 3], percent = true }
"rounds to 0.4" = { until = "accuracy=0.4", than = "FedAvg" }

[experiments.digits]
title = "rotated digits"
kind = "figure"
rows = ["both"]
columns = ["Rotated*"]
measures = ["accuracy", "accuracy, round", "rounds to 0.4"]
figures = ["curves", "bars", "sizes", "flow", "truth", "map", "heatmap", "classes"]
curves = ["accuracy", "ari"]

[experiments.paths]
title = "data that are not here"
kind = "table"
rows = ["both"]
columns = ["*"]
measures = ["accuracy"]
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "my.toml").write_text(OWN)
    return str(tmp_path / "my.toml")


def quiet(so_far: SoFar) -> None:
    """Show nothing."""


def numbers(plan: Plan, out: Path) -> list[tuple[str, tuple[float, ...]]]:
    return [(one.cell.name, one.values) for one in collect(plan, out, {})]


def test_a_table_of_one_s_own_is_made_shown_and_not_made_again(own: str, tmp_path: Path) -> None:
    plan, out = make_plan(find_experiment(f"{own}:digits")), tmp_path / "out"
    assert len(plan.runs()) == 3 * 2
    assert run_all(plan.runs(), out, 1, quiet) == {}

    found = collect(plan, out, {})
    accuracy = {one.cell.row.label(): one.values for one in found if one.cell.measure.name == "accuracy"}
    for run in next(cell.runs for cell in plan.cells if cell.row.name == "FedAvg"):
        rounds = [json.loads(line) for line in (folder_of(run, out) / "rounds.jsonl").read_text().splitlines()]
        expected = 100 * mean(record["accuracy"] for record in rounds[-3:])
        assert any(math.isclose(expected, value) for value in accuracy["FedAvg"])
    assert mean(accuracy["WeCFL, K = 4"]) > mean(accuracy["FedAvg"])

    page = make_page(plan, found, draw(plan, found, out))
    html, markdown = as_html(page), as_markdown(page)
    assert html.count("<figure") >= 10
    assert "Found against true clusters: WeCFL, K = 4" in html
    assert markdown.count("\n| WeCFL, K = 4 |") == 4
    assert f"coterie reproduce {own}:digits" in markdown
    assert save_page(page, plan, out).name == "my-digits.html"

    times = {run.name: (folder_of(run, out) / "summary.json").stat().st_mtime_ns for run in plan.runs()}
    assert run_all(plan.runs(), out, 1, quiet) == {}
    assert times == {run.name: (folder_of(run, out) / "summary.json").stat().st_mtime_ns for run in plan.runs()}


class Killed(BaseException):
    """The end of the program, which nothing expects."""


def test_stopped_in_the_middle_and_resumed_it_has_the_same_numbers(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    plan = make_plan(find_experiment(f"{own}:digits"), patterns=["accuracy"])
    kept, count = RoundRecorder.describe, iter(range(100))

    def describe(*given: Any) -> Any:
        if next(count) == 5:
            raise Killed
        return kept(*given)

    with monkeypatch.context() as patched:
        patched.setattr(RoundRecorder, "describe", describe)
        with pytest.raises(Killed):
            run_all(plan.runs(), broken, 1, quiet)
    assert [numbers_of(run, broken) is not None for run in plan.runs()] == [True, *[False] * 5]

    run_all(plan.runs(), broken, 1, quiet)
    run_all(plan.runs(), whole, 1, quiet)
    assert numbers(plan, broken) == numbers(plan, whole)


@pytest.mark.slow
def test_killed_with_all_its_processes_and_resumed_it_has_the_same_numbers(own: str, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    plan = make_plan(find_experiment(f"{own}:digits"))
    command = [sys.executable, "-m", "coterie", "reproduce", f"{own}:digits", "--jobs", "2", "--out", str(broken)]
    program = subprocess.Popen(command, start_new_session=True)
    while not any((folder_of(run, broken) / "rounds.jsonl").exists() for run in plan.runs()):
        time.sleep(0.01)
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    assert not all(numbers_of(run, broken) for run in plan.runs())

    assert subprocess.run(command, check=False).returncode == 0
    run_all(plan.runs(), whole, 1, quiet)
    assert numbers(plan, broken) == numbers(plan, whole)


def test_two_programs_do_not_make_runs_in_one_folder(own: str, tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(UsageError, match="another --out"):
        run_all(make_plan(find_experiment(f"{own}:digits")).runs(), tmp_path, 1, quiet)


def test_a_run_that_fails_is_said_and_the_others_are_made(own: str, tmp_path: Path) -> None:
    plan = make_plan(find_experiment(f"{own}:digits"), quick=True, patterns=["FedAvg/accuracy"])
    first, second = plan.runs()
    broken = replace(first, settings=replace(first.settings, model="no-such-network"))
    wrong = run_all([broken, second], tmp_path, 1, quiet)
    assert list(wrong) == [broken.name]
    assert "no-such-network" in wrong[broken.name]
    assert numbers_of(second, tmp_path) is not None
    (cell,) = collect(replace(plan, cells=plan.cells[:1]), tmp_path, wrong)
    assert len(cell.values) == 1
    assert cell.missing.startswith("1 of 2 runs failed: ")


def test_a_goal_that_some_seeds_do_not_reach_is_said_beside_the_mean_of_the_others(own: str) -> None:
    plan = make_plan(find_experiment(f"{own}:digits"), patterns=["FedAvg/accuracy"])
    cell = replace(plan.cells[0], measure=Measure("rounds", until="accuracy=0.5"))
    known = {run.name: Numbers({}, records(0.1, value)) for run, value in zip(cell.runs, (0.6, 0.4), strict=True)}
    one = results._found(cell, known, {}, None)
    assert one.values == (2.0,)
    assert one.missing == "1 of 2 runs did not reach it: the mean is of the others"
    assert (
        results._found(cell, dict(known.items()), {cell.runs[1].name: "no room"}, None).missing
        == "1 of 2 runs failed: no room"
    )
    none = results._found(cell, {name: Numbers({}, records(0.1)) for name in known}, {}, None)
    assert (none.values, none.missing) == ((), "not reached")
    assert none.beyond is None
    marked = replace(one, values=(2.0, 2.0), cell=replace(cell, runs=(*cell.runs, cell.runs[0]), printed=Printed(9.0)))
    assert replace(marked, cell=replace(marked.cell, runs=cell.runs)).beyond is True
    assert marked.beyond is None, "the seeds that reach a goal are the fast ones, and no sample of all"


def test_a_worker_that_is_killed_is_one_line_with_the_remedy(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(find_experiment(f"{own}:digits"), quick=True, patterns=["FedAvg/accuracy"])
    monkeypatch.setattr(running, "_make", _die)
    with pytest.raises(CoterieError, match="fewer --jobs"):
        run_all(plan.runs(), tmp_path, 2, quiet)


def _die(run: Run, out: Path) -> str:
    os._exit(9)


def test_cells_are_picked_by_name(own: str) -> None:
    experiment = find_experiment(f"{own}:digits")
    names = [cell.name for cell in make_plan(experiment, patterns=["wecfl*round 1", "FedAvg/accuracy, round 3"]).cells]
    assert names == [
        "Rotated digits/FedAvg/accuracy, round 3",
        "Rotated digits/WeCFL, K = 2/accuracy, round 1",
        "Rotated digits/WeCFL, K = 4/accuracy, round 1",
    ]
    with pytest.raises(UsageError, match="no cell is called so"):
        make_plan(experiment, patterns=["nothing"])


def test_the_quick_version_is_smaller_and_says_what_it_cannot_show(own: str) -> None:
    plan = make_plan(find_experiment(f"{own}:digits"), quick=True)
    assert {run.settings.rounds for run in plan.runs()} == {2}
    assert {run.settings.partition for run in plan.runs()} == {"rotation(0,90,180,270)+few(20)"}
    late = [cell for cell in plan.cells if cell.measure.at == 3]
    assert late
    assert all(cell.missing == "beyond the 2 rounds of this version" for cell in late)


def test_a_run_s_name_goes_by_what_its_settings_mean(own: str) -> None:
    experiment = find_experiment(f"{own}:digits")
    spaced = replace(
        experiment, columns=(replace(experiment.columns[0], settings={"partition": "rotation(0, 90, 180, 270)"}),)
    )
    other = replace(experiment, settings={**experiment.settings, "lr": 0.2})
    names = [[run.name for run in make_plan(each).runs()] for each in (experiment, spaced, other)]
    assert names[0] == names[1]
    assert not {*names[0]} & {*names[2]}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('rows = ["both"]\ncolumns = ["Rotated*"]', 'rows = ["others"]\ncolumns = ["Rotated*"]', "others"),
        ('columns = ["Rotated*"]', 'columns = ["Turned*"]', "Turned"),
        ('figures = ["curves"', 'figures = ["painting"', "painting"),
        ("lr = 0.1", "rate = 0.1", "rate"),
        ('algorithm = "fedavg"', 'algorithm = "fedavgs"', "fedavgs"),
        ("[experiments.digits]", "[experiment.digits]", "digits"),
        ("seeds = ", "seeds = = ", "cannot read"),
    ],
)
def test_a_fault_in_a_file_is_one_line_that_names_it(own: str, before: str, after: str, said: str) -> None:
    assert before in OWN
    Path(own).write_text(OWN.replace(before, after))
    result = CliRunner().invoke(app, ["reproduce", f"{own}:digits", "--dry-run"])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output


def test_the_command_line_plans_runs_and_lists(own: str, tmp_path: Path) -> None:
    runner, out = CliRunner(), str(tmp_path / "out")
    listed = runner.invoke(app, ["reproduce", "--list"])
    assert "ocfl:I" in listed.output
    assert "thesis:fig7.7" in listed.output
    planned = runner.invoke(app, ["reproduce", f"{own}:paths", "--dry-run", "--out", out])
    assert "pathmnist is not here" in planned.output
    assert "6 cells (3 cannot be filled), 6 runs, 0 of them finished" in planned.output
    assert not (tmp_path / "out").exists()
    made = runner.invoke(
        app, ["reproduce", f"{own}:paths", "--quick", "--jobs", "1", "--cells", "FedAvg", "--out", out]
    )
    assert made.exit_code == 0, made.output
    assert "1 of 2 cells filled" in made.output
    page = (tmp_path / "out" / "my-paths-quick-part.md").read_text()
    assert "give --data-file pathmnist=PATH" in page
    assert "This is the quick version" in page
    refused = runner.invoke(app, ["reproduce", f"{own}:paths", "--data-file", "pathmnist=nowhere.npz"])
    assert refused.exit_code == 2
    assert "nowhere.npz" in refused.output


# The numbers of a cell.

CELL = Cell(Row("A", "fedavg"), Column("data", "digits"), Measure("accuracy"), (), 50)


def found(values: tuple[float, ...], printed: Printed | None, seeds: int | None = 5) -> Found:
    return Found(replace(CELL, printed=printed), values, published_seeds=seeds)


def test_the_mark_and_the_interval_by_hand() -> None:
    one = found((80.0, 84.0), Printed(86.0, 2.0, 0.005))
    assert one.ours == 82
    assert one.difference == -4
    assert one.error == pytest.approx(2.0)
    assert one.interval() is None, "two seeds say nothing about a third"
    three = found((80.0, 82.0, 84.0), None).interval()
    assert three == pytest.approx((82 - 4.30265 * 2 / 3**0.5, 82 + 4.30265 * 2 / 3**0.5), abs=1e-3), "t(2) = 4.30265"
    assert one.beyond is False, "4 is within 2 * sqrt(2 ** 2 + 2 ** 2 / 5) = 4.38"
    assert found((80.0, 84.0), Printed(86.5, 2.0, 0.005)).beyond is True
    assert found((80.0, 84.0), Printed(86.2, None)).beyond is True, "without a deviation it counts as exact"
    assert found((0.975, 0.975), Printed(0.98, None, 0.005)).beyond is False, "the print is rounded"
    assert found((0.97, 0.97), Printed(0.98, None, 0.005)).beyond is True
    assert found((80.0,), Printed(86.0, 2.0)).beyond is None, "one seed cannot tell"
    assert found((), Printed(86.0, 2.0)).ours is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8), st.floats(0, 100), st.floats(0, 20))
def test_the_mark_equals_a_slow_reference(values: list[float], theirs: float, std: float) -> None:
    error = math.sqrt(stdev(values) ** 2 / len(values) + std**2 / 5)
    assume(not math.isclose(abs(mean(values) - theirs), 2 * error, rel_tol=1e-6, abs_tol=1e-6))
    assert found(tuple(values), Printed(theirs, std)).beyond == (abs(mean(values) - theirs) > 2 * error)


def test_orders_of_methods() -> None:
    def each(*pairs: tuple[float, float]) -> list[Found]:
        return [found((ours,), Printed(theirs)) for ours, theirs in pairs]

    assert order_agreement(each((1, 10), (2, 20), (3, 30))) == pytest.approx(1)
    assert order_agreement(each((3, 10), (2, 20), (1, 30))) == pytest.approx(-1)
    assert order_agreement(each((1, 10), (2, 20))) is None
    assert order_agreement(each((1, 10), (1, 20), (1, 30))) is None


def records(*accuracies: float) -> list[dict[str, object]]:
    return [{"round": n, "accuracy": value, "clusters": [3, 1]} for n, value in enumerate(accuracies)]


def test_measures_by_hand() -> None:
    run, other = Numbers({"accuracy_last3": 0.5}, records(0.1, 0.5, 0.9)), Numbers({}, records(0.1, 0.2, 0.3, 0.6))
    assert Measure("a", of="accuracy_last3", percent=True).value(run, 3) == 50
    assert Measure("a", of="accuracy", at=2).value(run, 3) == 0.5
    assert Measure("a", of="accuracy", at=9).value(run, 3) is None
    assert Measure("a", of="largest_share").value(run, 3) == 0.75
    assert Measure("a", of="accuracy", mean=True).value(run, 4) == pytest.approx((0.1 + 0.5 + 0.9 + 0.9) / 4)
    assert Measure("a", until="accuracy=0.5").value(run, 3) == 2
    assert Measure("a", until="accuracy=0.95").value(run, 3) is None
    assert Measure("a", until="accuracy=0.5", than="B").value(run, 3, other) == 50
    assert Measure("a", until="accuracy=0.9", than="B").value(run, 3, other) == pytest.approx(40), (
        "3 against more than 4"
    )


def test_a_published_number_is_found_at_its_place_only() -> None:
    place = Place("3.1", "fashion-mnist", "dirichlet(0.1,10)", "WeCFL", "accuracy", "10")
    assert find_printed("thesis", place) == Printed(95.88, 0.85, 0.005)
    assert find_printed("thesis", replace(place, clusters="7")) is None
    assert find_printed("thesis", replace(place, clusters="")) is None, "two numbers of clusters fit"
    assert find_printed(
        "lcfl", Place("II", "rotated-mnist", "rotation(4),1200 clients", "LCFL", "accuracy", "10", "60")
    ) == (Printed(97.9, 0.08, 0.05))


def test_a_page_shows_marks_reasons_and_what_is_missing(own: str) -> None:
    plan = make_plan(find_experiment(f"{own}:digits"), patterns=["/accuracy"])
    cells = [cell for cell in plan.cells if cell.measure.name == "accuracy"]
    given_numbers = [(50.0, 50.1, 50.2), (60.0, 61.0), ()]
    shown = [
        Found(replace(cell, printed=Printed(70.0, 1.0, 0.05)), values, "" if values else "not reached", 5)
        for cell, values in zip(cells, given_numbers, strict=True)
    ]
    lines = [line for line in as_markdown(make_page(plan, shown, {})).splitlines() if line.startswith("| ")][2:]
    assert lines[0] == f"| FedAvg | accuracy | 50.10 | 70 ± 1 | -19.9 | 49.85 to 50.35 | 3 | {MARK} |  |"
    assert lines[1] == f"| WeCFL, K = 2 | accuracy | 60.50 | 70 ± 1 | -9.5 |  | 2 | {MARK} | 1 |"
    assert lines[2] == "| WeCFL, K = 4 | accuracy | none | 70 ± 1 |  |  | 0 |  | not reached |"


def test_a_name_from_a_file_cannot_write_on_the_page(own: str) -> None:
    Path(own).write_text(OWN.replace("rotated digits", "<script>alert(1)</script>"))
    plan = make_plan(find_experiment(f"{own}:digits"), patterns=["FedAvg/accuracy"])
    page = as_html(make_page(plan, collect(plan, Path("nowhere"), {}), {}))
    assert "<script>alert" not in page


def test_more_work_is_estimated_to_take_longer(own: str) -> None:
    settings = make_plan(find_experiment(f"{own}:digits")).runs()[0].settings
    base = estimated_seconds(settings)
    assert estimated_seconds(replace(settings, rounds=300)) > base
    assert estimated_seconds(replace(settings, algorithm="ifca", clusters=10, rounds=300)) > estimated_seconds(
        replace(settings, algorithm="ifca", clusters=10, rounds=300, choose="race")
    )


def test_the_time_left_goes_by_what_runs_really_took(own: str) -> None:
    run = make_plan(find_experiment(f"{own}:digits")).runs()[0]
    each = estimated_seconds(run.settings)
    tally = Tally(total=4 * each, runs=4, jobs=2)
    assert tally.left() == pytest.approx(2 * each)
    tally.began = time.monotonic() - 10
    tally.add(run)
    assert tally.left() == pytest.approx(30, abs=1), "a quarter took 10 s, so three quarters take 30"


def test_unknown_words_of_a_measure_are_refused(own: str) -> None:
    Path(own).write_text(OWN.replace('until = "accuracy=0.4"', 'until = "beauty=0.4"'))
    with pytest.raises(CoterieError, match="beauty"):
        make_plan(find_experiment(f"{own}:digits"))
