"""A score to reach: recorded, and on request the end of a run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.errors import RunFolderError, UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import load_labels, load_state
from coterie.experiments.settings import Goal, Settings
from coterie.reporting.plots import curves

WHOLE = Settings("wecfl", clients=12, clusters=2, partition="rotation(0,180)", steps=2, rounds=8)


@pytest.fixture(scope="module")
def whole():
    return run_settings(WHOLE)


@pytest.fixture(scope="module")
def goal(whole):
    """The accuracy of round 3, as a setting; it must be the first round that reaches it."""
    accuracy = [record["accuracy"] for record in whole.history]
    assert max(accuracy[:3]) < accuracy[3]
    return f"accuracy={accuracy[3]!r}"


def timeless(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def test_an_error_is_to_be_at_most_and_all_else_at_least():
    assert Goal("rmse", 0.5).first([{"round": 0, "rmse": 0.6}, {"round": 1}, {"round": 2, "rmse": 0.5}]) == 2
    assert Goal("ari", 0.5).first([{"round": 0, "ari": 0.4}, {"round": 1, "ari": None}, {"round": 2, "ari": 0.5}]) == 2
    assert Goal("ari", 0.5).first([{"round": 0, "ari": 0.4}]) is None


def test_a_goal_alone_ends_nothing(whole, goal):
    found = run_settings(replace(WHOLE, until=goal))
    assert timeless(found.history) == timeless(whole.history)
    assert found.summary["rounds_to_accuracy"] == 3
    assert found.summary["stopped"] is False


def test_a_run_that_stops_is_a_finished_run_with_the_first_rounds_of_a_whole_one(tmp_path, whole, goal):
    stopping = replace(WHOLE, until=goal, stop=True, checkpoint_every=100)
    found = run_settings(stopping, tmp_path / "r")
    assert timeless(found.history) == timeless(whole.history[:4])
    assert (found.summary["rounds"], found.summary["stopped"], found.summary["rounds_to_accuracy"]) == (4, True, 3)
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["stopped"] is True
    assert (tmp_path / "r" / "clients.csv").exists()
    assert load_state(tmp_path / "r" / "state.safetensors").round == len(load_labels(tmp_path / "r")) == 4


def test_a_run_that_stopped_stays_so_whatever_rounds_are_allowed(tmp_path, goal):
    stopping = replace(WHOLE, until=goal, stop=True)
    first = run_settings(stopping, tmp_path / "r")
    again = run_settings(replace(stopping, rounds=20), tmp_path / "r", resume=True)
    assert timeless(again.history) == timeless(first.history)
    with pytest.raises(RunFolderError, match="begun with stop = True, not None"):
        run_settings(replace(WHOLE, until=goal), tmp_path / "r", resume=True)


def test_an_interrupted_run_that_is_to_stop_does_so_after_it_is_resumed(tmp_path, goal):
    stopping = replace(WHOLE, until=goal, stop=True)
    run_settings(replace(stopping, rounds=2), tmp_path / "r")
    assert run_settings(stopping, tmp_path / "r", resume=True).summary["rounds"] == 4


def test_a_run_ends_only_with_a_round_that_was_evaluated():
    found = run_settings(replace(WHOLE, until="purity=0.5", stop=True, eval_every=3))
    assert (found.summary["rounds_to_purity"], found.summary["rounds"]) == (0, 3)
    assert "accuracy" in found.history[-1]


def test_a_goal_without_a_truth_to_compare_with_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(20, 3)), y=rng.normal(size=20))
    asked = Settings("fedavg", data=str(tmp_path), model="linear", rounds=2, until="purity=0.9")
    with pytest.raises(UsageError, match=r"until is purity=0\.9, but the true groups are not known; take rmse"):
        run_settings(asked)
    with pytest.raises(UsageError, match="has no such score; take rmse"):
        run_settings(replace(asked, until="accuracy=0.9"))


def test_curves_of_runs_that_ended_early_go_on_with_their_last_score():
    short = [{"round": 1, "worst": 0.1}, {"round": 3, "worst": 0.4}]
    long = [{"round": t, "worst": t / 10} for t in (1, 3, 5)]
    rounds, values = curves([short, long], "worst")
    assert rounds.tolist() == [2, 4, 6]
    np.testing.assert_allclose(values, [[0.1, 0.4, 0.4], [0.1, 0.3, 0.5]])


def test_compare_pairs_runs_of_different_length_and_does_not_repeat_those_that_stopped(tmp_path):
    words = ["compare", "fedavg", "wecfl", "--clients", "12", "--clusters", "2", "--partition", "rotation(0,180)"]
    words += ["--steps", "2", "--rounds", "6", "--seeds", "1,2", "--until", "purity=0.9", "--stop", "--no-local"]
    words += ["--quiet", "--out", str(tmp_path / "c")]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    assert "1 to 6 rounds" in first.stdout
    assert "purity=0.9 first held, by seed: fedavg never, never; wecfl 0, 0." in " ".join(first.stdout.split())
    stamp = (tmp_path / "c" / "wecfl" / "seed-2" / "summary.json").stat().st_mtime_ns
    assert CliRunner().invoke(app, words).stdout == first.stdout
    assert (tmp_path / "c" / "wecfl" / "seed-2" / "summary.json").stat().st_mtime_ns == stamp
