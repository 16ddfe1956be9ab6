"""What a person sees: progress as a line now and then, the progress of many runs, and tables that fit the screen."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from coterie.experiments.settings import Settings
from coterie.experiments.verdict import Against, Score, Verdict
from coterie.reporting import overall as overall_module
from coterie.reporting import progress as progress_module
from coterie.reporting.comparison import CLASSIFICATION, comparison, verdict_table
from coterie.reporting.overall import Pace, SoFar, overall
from coterie.reporting.progress import watch, watch_plan


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets, and the lines that are told."""

    class Clock:
        now = 100.0

        def __init__(self) -> None:
            self.lines: list[str] = []

    found = Clock()
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    for module in (overall_module, progress_module):
        monkeypatch.setattr(module, "tell", lambda text, style=None: found.lines.append(str(text)))
    return found


def record(number: int, **more) -> dict:
    return {"round": number, "accuracy": 0.5, "worst": 0.25, "clusters": [1], "moved": 0, "seconds": 1.0, **more}


def test_lines_come_at_first_then_now_and_then_and_at_last(clock):
    pace, due = Pace(every=15), []
    for second in range(0, 50, 5):
        clock.now = 100.0 + second
        due.append(pace.is_due())
    assert [5 * place for place, each in enumerate(due) if each] == [0, 15, 30, 45]
    assert pace.is_due(final=True)


def test_a_run_is_told_in_its_first_and_last_round_and_seldom_between(clock):
    with watch(Settings("wecfl", rounds=40)) as progress:
        for number in range(40):
            clock.now += 1
            progress(record(number))
    assert [line.split()[4] for line in clock.lines] == ["1/40", "16/40", "31/40", "40/40"]


def test_a_note_is_told_when_it_comes_and_once(clock):
    with watch(Settings("wecfl", rounds=40)) as progress:
        for number in range(3):
            progress(record(number, note="few clients"))
    assert [line for line in clock.lines if "few clients" in line] == ["wecfl seed 1: few clients"]


def test_many_runs_are_told_as_one_work_with_the_time_left(clock):
    """Ten rounds of a second each in four runs: after the first run 10 of 40 s are over, and 30 are left."""
    plan = [Settings("wecfl", rounds=10, seed=seed) for seed in range(4)]
    with watch_plan(plan) as show:
        for settings in plan:
            with show(settings) as progress:
                for number in range(10):
                    clock.now += 1
                    progress(record(number))
    assert clock.lines == [
        "0 of 4 runs, about 39 s left; wecfl seed 0 round 1/10 accuracy 0.500 worst 0.250 clusters 1",
        "1 of 4 runs, about 24 s left; wecfl seed 1 round 6/10 accuracy 0.500 worst 0.250 clusters 1",
        "3 of 4 runs, about 9 s left; wecfl seed 3 round 1/10 accuracy 0.500 worst 0.250 clusters 1",
        "4 of 4 runs, about 0 s left",
    ]


def test_runs_that_were_finished_before_are_no_work_of_now(clock):
    """Three of four runs are read: of the fourth, with a round a second, nine seconds are left after its first."""
    plan = [Settings("wecfl", rounds=10, seed=seed) for seed in range(4)]
    with watch_plan(plan) as show, show(plan[3]) as progress:
        for number in range(10):
            clock.now += 1
            progress(record(number))
    assert [line.partition(";")[0] for line in clock.lines] == [
        "3 of 4 runs, about 9 s left",
        "4 of 4 runs, about 0 s left",
    ]


def test_quiet_is_quiet(clock):
    plan = [Settings("wecfl", rounds=1)]
    with watch_plan(plan, quiet=True) as show, show(plan[0]) as progress:
        progress(record(0, note="few clients"))
    assert clock.lines == []


def test_a_terminal_gets_one_bar_for_all_runs(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(overall_module, "errors", screen)
    with overall() as show:
        show(SoFar(8, 3, 40.0, "wecfl seed 1"))
    assert "3/8" in screen.file.getvalue()
    assert "40 s left wecfl seed 1" in screen.file.getvalue()


NAMES = ("fedavg", "local", "wecfl(shots=10)", "fedprox(strength=0.1)+cks(strength=0.1)+finetune(steps=10)")


def summaries() -> dict:
    scores = {column.key: 0.95123 for column in CLASSIFICATION}
    facts = {"data": "digits", "partition": "rotation(0,90,180,270)", "clients": 40, "model": "mlp(64)", "rounds": 20}
    some = [{**facts, **scores, "last": 3, "seed": seed, "shown": {}} for seed in (1, 2, 3)]
    return {name: [{**each, "algorithm": name} for each in some] for name in NAMES}


def drawn(width: int, make) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(make(screen))
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 101, 110, 130, 160, 200])
def test_the_table_of_a_comparison_is_whole_at_any_width(width):
    lines = drawn(width, lambda screen: comparison(summaries(), screen))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    for word in ("algorithm", "gain", "wins", "worst", "client", "accuracy", "macro-F1", "95.1 ± 0.0"):
        assert word in text
    letters = "".join(line.split("  ")[0].strip(" │") for line in lines)
    assert NAMES[-1] in letters


@pytest.mark.parametrize("width", [70, 80, 90, 101, 130])
def test_long_numbers_leave_columns_out_rather_than_be_cut(width):
    some = summaries()
    numbers = {"worst_client": 85.6, "rmse": 38.79, "r2": 0.241}
    for each in (each for runs in some.values() for each in runs):
        dropped = [each.pop(column.key) for column in CLASSIFICATION[:4]]
        assert dropped
        each |= {name: value * (1 + each["seed"] / 9) for name, value in numbers.items()}
    lines = drawn(width, lambda screen: comparison(some, screen))
    assert max(map(len, lines)) <= width
    (row,) = [line for line in lines if line.strip(" │").startswith("fedavg") and "±" in line]
    spreads = [float(said) for said in re.findall(r"± (\d+\.\d+)", row)]
    assert len(spreads) == row.count("±") >= 1, "a number is cut"
    wanted = [np.std([v * (1 + seed / 9) for seed in (1, 2, 3)], ddof=1) for v in numbers.values()]
    assert spreads[:3] == pytest.approx(wanted[: len(spreads)], abs=6e-4)


def test_short_names_leave_room_for_the_scores_in_80_columns():
    some = {name: summaries()[name] for name in NAMES[:2]}
    (head,) = [line for line in drawn(80, lambda screen: comparison(some, screen)) if "algorithm" in line]
    assert head.split() == ["algorithm", "points", "wins", "p", "%", "%", "%"]


@pytest.mark.parametrize("width", [80, 100, 101, 110, 130, 160, 200])
def test_the_table_of_verdicts_is_whole_at_any_width(width):
    found = Against(0.5, 0.123, 0.101, 0.152, 180, 12, 200, "better")
    score = Score("accuracy", "accuracy", scale=100.0, unit="%")
    verdict = Verdict(score, 0.9, "yes", 200, 0, dict.fromkeys(("guess", "one_model", "local"), found))
    lines = drawn(width, lambda screen: verdict_table(dict.fromkeys(NAMES, verdict), screen))
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)
    for words in ("+12.3", "(+10.1 to +15.2)", "better 180, worse 12", "of 200"):
        assert "\n".join(lines).count(words) == 3 * len(NAMES)
