"""Tuning: candidates, their judge, and what is left of the test split's influence (nothing)."""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import UnknownName, UsageError
from coterie.experiments import tuning
from coterie.experiments.building import build_data
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings, load_settings
from coterie.reporting.listing import entry

BASE = Settings("fedprox", clients=4, partition="iid", rounds=2, steps=2)
GRID = [{"lr": 0.01}, {"lr": 0.3}]


@contextmanager
def unwatched(plan, label_of):
    yield lambda settings: nullcontext()


@contextmanager
def forbidden(plan, label_of):
    def refuse(settings):
        raise AssertionError(f"{label_of(settings)} was run again")

    yield refuse


def test_a_grid_is_every_combination_in_order():
    ranges = dict(map(tuning.parse_range, ["lr=0.01,0.1", "strength=1,2,3"]))
    found = tuning.candidates(ranges, None)
    assert [(c["lr"], c["strength"]) for c in found] == [(a, b) for a in (0.01, 0.1) for b in (1, 2, 3)]


def test_random_candidates_differ_repeat_and_stay_in_their_interval():
    ranges = dict(map(tuning.parse_range, ["lr=0.001..1", "batch=8,16", "steps=1..3", "weight-decay=0..0.5"]))
    found = tuning.candidates(ranges, 30)
    assert found == tuning.candidates(ranges, 30)
    assert len({tuning.describe(c) for c in found}) == 30
    assert all(0.001 <= c["lr"] <= 1 and c["batch"] in (8, 16) and c["steps"] in (1, 2, 3) for c in found)
    assert all(0 <= c["weight_decay"] <= 0.5 for c in found)
    # Evenly on a logarithmic scale: about a third in each decade, where an even draw would put 90 % into the last.
    assert 4 <= sum(c["lr"] < 0.01 for c in found) <= 16


def test_more_tries_than_there_are_candidates_give_all_of_them():
    assert len(tuning.candidates({"lr": (0.1, 0.2, 0.3)}, 50)) == 3


def test_settings_and_arguments_go_where_they_belong():
    made = tuning.settings_of(replace(BASE, algorithm="fedopt(server=sgd)"), {"lr": 0.5, "fedopt.lr": 2, "batch": 8})
    assert (made.lr, made.batch, made.algorithm) == (0.5, 8, "fedopt(server=sgd,lr=2)")


def test_candidates_are_judged_with_validation_data_even_if_none_were_asked_for():
    assert tuning.settings_of(BASE, {"lr": 0.1}).validation == tuning.VALIDATION
    assert tuning.settings_of(replace(BASE, validation=0.3), {"lr": 0.1}).validation == 0.3


def test_the_better_rate_wins_and_is_written_as_an_experiment_file(tmp_path):
    results = tuning.search(BASE, GRID, [1, 2], tmp_path, show=unwatched)
    assert [r.candidate["lr"] for r in results] == [0.3, 0.01]
    assert results[0].mean == pytest.approx(np.mean(results[0].scores))
    path = tuning.write_best(BASE, results[0].candidate, tmp_path)
    chosen = load_settings(path, {})
    assert (chosen.lr, chosen.algorithm, chosen.validation) == (0.3, "fedprox", 0.0)


def test_scores_are_those_of_the_validation_split(tmp_path):
    results = tuning.search(BASE, GRID[:1], [1], tmp_path, show=unwatched)
    alone = run_settings(tuning.settings_of(BASE, GRID[0])).summary
    assert results[0].scores == (alone["validation_accuracy"],)
    assert alone["validation_accuracy"] != alone["accuracy"]


def test_a_search_goes_on_where_it_stopped(tmp_path):
    tuning.search(BASE, GRID[:1], [1], tmp_path, show=unwatched)
    again = tuning.search(BASE, GRID[:1], [1], tmp_path, show=forbidden)
    assert len(again[0].scores) == 1
    with pytest.raises(AssertionError, match=r"lr=0.3"):
        tuning.search(BASE, GRID, [1], tmp_path, show=forbidden)


def test_poisoned_test_labels_change_no_choice(tmp_path, monkeypatch):
    honest = tuning.search(BASE, GRID, [1], tmp_path / "honest", show=unwatched)

    def poisoned(settings):
        data = build_data(settings)
        wrong = replace(data.test, y=(data.test.y + 1) % data.classes)
        return replace(data, test=wrong)

    monkeypatch.setattr("coterie.experiments.sweep.build_data", poisoned)
    assert tuning.search(BASE, GRID, [1], tmp_path / "poisoned", show=unwatched) == honest


def test_a_candidate_that_diverged_comes_last():
    assert tuning.score({"accuracy": 1.0, "validation_accuracy": None}) == -math.inf
    assert tuning.score({"rmse": 2.0, "validation_rmse": 3.0}) == -3.0


def test_the_edge_of_a_range_is_told():
    ranges = {"lr": (0.1, 0.2, 0.3), "batch": (8, 16), "layer": ("all", "linear", "head_weight")}
    assert tuning.at_edge({"lr": 0.3, "batch": 8, "layer": "all"}, ranges) == ["lr"]
    assert tuning.at_edge({"lr": 0.2, "batch": 8, "layer": "all"}, ranges) == []


def test_without_ranges_the_published_ones_are_searched():
    found = tuning.ranges_for(BASE, [])
    assert set(found) == {"lr", "strength"}
    assert 0.95 in found["strength"]
    assert 0.001 in found["lr"]


def test_what_is_searched_is_listed_and_values_of_our_own_are_not_called_published():
    told = entry("sattler").plain
    assert "tune searches eps2: 0.2, 0.35, 0.5" in told
    assert "published values" not in told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lr", "cannot read the range 'lr'"),
        ("lr=", "cannot read"),
        ("lr=0.1,", "cannot read"),
        ("lr=1..0.1", "from a smaller number to a larger"),
        ("lr=a..b", "from a smaller number to a larger"),
        ("strengt=1", "did you mean"),
        ("seed=1,2", "unknown setting or argument"),
        ("data=digits", "unknown setting or argument"),
        ("lr=0.1,-1", "lr"),
        ("batch=0", "batch"),
        ("batch=many", "it must be a whole number"),
    ],
)
def test_ranges_that_cannot_be_searched_are_refused(text, reason):
    with pytest.raises(UsageError, match=reason):
        [tuning.settings_of(BASE, point) for point in tuning.candidates(tuning.ranges_for(BASE, [text]), None)]


def test_an_interval_needs_a_number_of_tries():
    with pytest.raises(UsageError, match="--tries"):
        tuning.candidates({"lr": tuning.Interval(0.1, 1)}, None)
    with pytest.raises(UsageError, match="tries is 0"):
        tuning.candidates({"lr": (0.1,)}, 0)


def test_the_command_prints_a_ranking_and_names_the_file(tmp_path):
    from typer.testing import CliRunner

    from coterie.cli.main import app

    words = "tune fedprox --over lr=0.01,0.3 --clients 4 --partition iid --rounds 2 --steps 2 --quiet --out"
    result = CliRunner().invoke(app, [*words.split(), str(tmp_path / "t")])
    assert result.exit_code == 0, result.output
    assert result.output.index("0.3") < result.output.index("0.01")
    assert Path(tmp_path / "t" / "best.toml").exists()
    assert "best.toml" in result.output.replace("\n", "")


def test_only_what_the_algorithm_reads_is_searched():
    """ifca+cam has no pull: its candidates were the same runs three times, and the warm-up was left out."""
    ranges = tuning.ranges_for(replace(BASE, algorithm="ifca+cam", rounds=20), ())
    assert set(ranges) == {"lr", "cam.warmup"}
    assert ranges["cam.warmup"] == (0, 2, 4, 6, 8, 10)
    pulled = tuning.ranges_for(replace(BASE, algorithm="wecfl+cam", rounds=20), ())
    assert set(pulled) == {"lr", "pull", "cam.warmup"}
    with pytest.raises(
        UsageError, match=r"pull is 0\.1, but clients of ifca\(clusters=4\) choose and are not moved back"
    ):
        tuning.search(replace(BASE, algorithm="ifca+cam"), [{"pull": 0.1}], [1], Path("nowhere"), show=forbidden)


def test_a_warm_up_that_would_not_fit_is_no_candidate():
    ranges = tuning.ranges_for(replace(BASE, algorithm="wecfl(shots=1)+cam", rounds=2), ())
    assert ranges["cam.warmup"] == (0, 1)


@pytest.mark.parametrize("text", ["ifca+cam", "wecfl+cam", "fedprox", "fedopt", "wecfl+cks", "ifca+con-cks"])
def test_every_argument_that_is_searched_changes_the_run(text, train, images, simulator):
    """Four rounds with the smallest and the largest value of each, all others at their defaults."""
    base, federation = replace(BASE, algorithm=text, clients=None, rounds=4), simulator(images())
    ranges = {name: values for name, values in tuning.ranges_for(base, ()).items() if name != "lr"}
    assert ranges
    for name, values in ranges.items():
        texts = [tuning.settings_of(base, {name: value}).algorithm for value in (values[0], values[-1])]
        ends = [train(each, federation, 4)[-1].state.stack.params for each in texts]
        assert ends[0].shape != ends[1].shape or not np.allclose(*ends, atol=1e-7), name


def test_a_name_that_is_a_setting_and_an_argument_is_listed_once():
    with pytest.raises(UnknownName, match=r"search 'lrr'; did you mean 'lr'\? known: ") as caught:
        tuning.ranges_for(Settings("wecfl"), ["lrr=0.1"])
    known = str(caught.value).partition("known: ")[2].split(", ")
    assert len(known) == len(set(known))
    assert "clusters" in known
