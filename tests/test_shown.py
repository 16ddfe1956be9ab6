"""What tables and pictures show of runs: the mean of the last rounds, alike in both."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.errors import UsageError
from coterie.experiments.main_score import main_score
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.summary import add_shown, default_last, mean_of_last
from coterie.reporting.comparison import CLASSIFICATION, comparison
from coterie.reporting.plots import gains_by_seed

ABOUT = {"data": "d", "partition": "p", "clients": 2, "model": "linear", "clusters_found": 1}
ABOUT |= {"seconds": 1.0, "bytes_down": 1, "bytes_up": 1}
# Rounds 0 to 3; nobody evaluated round 2.
RECORDS = [
    {"accuracy": 0.1, "macro_f1": 0.2, "worst": 0.0},
    {"accuracy": 0.5, "macro_f1": 0.3, "worst": 0.4},
    {},
    {"accuracy": 0.9, "macro_f1": 0.7, "worst": 0.6},
]


def printed(runs, width=150):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(comparison(runs, console))
    return console.export_text()


def run_of(name, seed, values, last, key="accuracy"):
    records = [{key: value, "worst": value / 2, "macro_f1": value, "r2": 0.5} for value in values]
    summary = {**ABOUT, "algorithm": name, "seed": seed, "rounds": len(values), key: values[-1]}
    return add_shown(summary, records, last), records


def test_the_last_rounds_are_those_that_were_evaluated():
    found = mean_of_last(RECORDS, 2)
    assert found == {"last": 2, "accuracy": 0.7, "macro_f1": 0.5, "worst_client": 0.5}
    assert mean_of_last(RECORDS, 1)["accuracy"] == 0.9


@pytest.mark.parametrize("last", [0, -1, 4])
def test_more_rounds_than_were_evaluated_or_none_are_an_error(last):
    with pytest.raises(UsageError, match=f"last is {last}; the run has 3 evaluated rounds, so 1 to 3"):
        mean_of_last(RECORDS, last)


def test_a_round_without_a_number_is_not_covered_by_the_others():
    astray = [*RECORDS, {"accuracy": None, "macro_f1": 0.1, "worst": 0.1}]
    assert mean_of_last(astray, 2)["accuracy"] is None
    assert mean_of_last(astray, 2)["macro_f1"] == pytest.approx(0.4)


@pytest.mark.parametrize(("lengths", "wanted"), [([9], 1), ([10], 3), ([100, 10], 3), ([100, 9], 1)])
def test_three_rounds_are_usual_where_every_run_has_ten(lengths, wanted):
    assert default_last([[{"round": i, "worst": 0.5} for i in range(rounds)] for rounds in lengths]) == wanted


def test_fewer_are_usual_where_fewer_were_evaluated():
    """A warm-up that counts as nine of ten rounds; a run that was evaluated once in thirty."""
    swallowed = [{"round": 8, "worst": 0.5}, {"round": 9, "worst": 0.6}]
    once = [{"round": i} for i in range(29)] + [{"round": 29, "worst": 0.5}]
    assert (default_last([swallowed]), default_last([once]), default_last([swallowed, once])) == (2, 1, 1)
    assert add_shown({"rounds": 10}, swallowed, None)["shown"]["worst_client"] == pytest.approx(0.55)


def test_table_gains_p_values_and_picture_are_of_the_same_rounds():
    # In the last round both are equal; over the last two, wecfl gains 10 and 20 points.
    last_rounds = {
        ("fedavg", 1): (0.5, 0.6),
        ("fedavg", 2): (0.3, 0.6),
        ("wecfl", 1): (0.7, 0.6),
        ("wecfl", 2): (0.7, 0.6),
    }
    made = {key: run_of(*key, values, last=2) for key, values in last_rounds.items()}
    runs, records = (
        {name: [made[name, seed][part] for seed in (1, 2)] for name in ("fedavg", "wecfl")} for part in (0, 1)
    )
    text = printed(runs)
    assert "+15.0 [-48.5, 78.5]" in text
    assert "2/2" in text
    assert "0.2" in text  # t = 15 / (7.07 / sqrt 2) = 3 with one degree of freedom: p = 0.205
    assert "65.0 ± 0.0" in text
    assert "mean of the last 2 rounds" in text
    np.testing.assert_allclose(gains_by_seed(records, main_score(False), 2)["wecfl"], [10, 20])
    np.testing.assert_allclose(gains_by_seed(records, main_score(False), 1)["wecfl"], [0, 0], atol=1e-12)


def test_a_regression_table_shows_small_gains_and_names_what_gained():
    runs = {
        name: [run_of(name, s, [9.0, rmse + s / 1000], last=1, key="rmse")[0] for s in (1, 2)]
        for name, rmse in (("fedavg", 0.15), ("ifca", 0.11))
    }
    text = printed(runs)
    assert "+0.040" in text
    assert "Gains in rmse over fedavg" in text
    assert "last round" in text


def test_the_table_says_when_clients_count_by_train_examples():
    runs = {"fedavg": [{**run_of("fedavg", 1, [0.5], last=1)[0], "weigh_by": "train"}]}
    assert "clients count by their train examples" in printed(runs)
    runs["fedavg"][0]["weigh_by"] = "test"
    assert "Clients count" not in printed(runs)


def test_a_method_that_went_astray_has_no_gain():
    runs = {name: [run_of(name, 1, [value], last=1)[0]] for name, value in (("fedavg", 0.5), ("ifca", 0.6))}
    runs["ifca"][0]["shown"]["accuracy"] = None
    assert "+10" not in printed(runs)


def test_a_mean_of_the_seeds_that_did_not_go_astray_says_so_and_is_never_the_best():
    runs = {
        name: [run_of(name, seed, [value], last=1)[0] for seed in (1, 2)]
        for name, value in (("fedavg", 0.5), ("ifca", 0.6))
    }
    runs["ifca"][1]["shown"]["accuracy"] = None
    assert "60.0 (1 of 2)" in printed(runs)
    column = next(each for each in CLASSIFICATION if each.key == "accuracy")
    shown = column.cells({name: [s["shown"] for s in some] for name, some in runs.items()})
    assert (shown["fedavg"].style, shown["ifca"].style) == ("bold", "")


def call(*words):
    return CliRunner().invoke(app, list(words))


SMALL = ("--clients", "12", "--clusters", "2", "--partition", "rotation(0,180)", "--steps", "1", "--quiet")


def test_compare_shows_the_mean_of_the_last_three_of_ten_rounds_and_any_other_number_of_the_same_runs(tmp_path):
    out = tmp_path / "c"
    words = ("compare", "fedavg", *SMALL, "--no-local", "--rounds", "10", "--seeds", "1", "--out", str(out))
    usual = call(*words, "--json")
    folder = out / "fedavg" / "seed-1"
    before = (folder / "summary.json").read_bytes()
    accuracy = [record["accuracy"] for record in load_rounds(folder)]
    shown = json.loads(usual.stdout)["fedavg"][0]["shown"]
    assert shown["last"] == 3
    assert shown["accuracy"] == pytest.approx(np.mean(accuracy[-3:]))
    assert f"{100 * np.mean(accuracy[-5:]):.1f}" in call(*words, "--last", "5").stdout
    assert "mean of the last 5 rounds" in call(*words, "--last", "5").stdout
    assert "last round" in call(*words, "--last", "1").stdout
    assert (folder / "summary.json").read_bytes() == before


def test_run_shows_the_last_rounds_too(tmp_path):
    words = ("run", "fedavg", *SMALL, "--rounds", "3", "--last", "2", "--json", "--out", str(tmp_path / "r"))
    summary = json.loads(call(*words).stdout)
    records = load_rounds(tmp_path / "r")
    assert summary["shown"]["worst_client"] == pytest.approx(np.mean([r["worst"] for r in records[-2:]]))
    assert summary["accuracy"] == records[-1]["accuracy"]


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("last", ["0", "4"])
def test_a_wrong_number_of_last_rounds_is_refused_before_anything_is_run(tmp_path, command, last):
    result = call(command, "fedavg", *SMALL, "--rounds", "3", "--last", last, "--out", str(tmp_path / "r"))
    assert result.exit_code == 2
    assert f"last is {last}; the run has 3 rounds, so 1 to 3" in result.stderr
    assert not (tmp_path / "r").exists()


def test_last_rounds_that_were_not_evaluated_are_refused(tmp_path):
    result = call(
        *("run", "fedavg", *SMALL, "--rounds", "6", "--eval-every", "100", "--last", "4"), "--out", str(tmp_path)
    )
    assert result.exit_code == 2
    assert "last is 4; the run has 3 evaluated rounds, so 1 to 3" in result.stderr
