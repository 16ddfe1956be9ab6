"""Who ended together: the file of clients, and what several seeds agree on."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from rich.console import Console

from coterie.algorithms import wecfl
from coterie.api.run import run
from coterie.data import Dataset
from coterie.data.dataset import Owners
from coterie.experiments.run_folder import CLIENTS
from coterie.experiments.summary import load_clusters
from coterie.protocol.task import Fit
from coterie.reporting.comparison import clusters_table, most_typical, names_by_cluster, stability

ONE = {"a": 0, "b": 0, "c": 1, "d": 1}
SAME = {"a": 5, "b": 5, "c": 2, "d": 2}
OTHER = {"a": 0, "b": 1, "c": 0, "d": 1}


def test_stability_is_one_whatever_the_clusters_are_called():
    assert stability([ONE, SAME]) == 1.0
    assert stability([ONE]) is None


def test_stability_is_the_mean_over_pairs_of_runs():
    # Two against two in crossed pairs: no pair agrees, expected 2 * 2 / 6 of 2 pairs, so (0 - 2/3) / (2 - 2/3) = -0.5.
    assert stability([ONE, OTHER]) == pytest.approx(-0.5)
    assert stability([ONE, SAME, OTHER]) == pytest.approx((1 - 0.5 - 0.5) / 3)


def test_runs_are_compared_by_name_not_by_place():
    assert stability([ONE, dict(reversed(ONE.items()))]) == 1.0


def test_the_most_typical_run_agrees_with_most_others():
    assert most_typical([OTHER, ONE, SAME]) == 1


def test_the_largest_cluster_comes_first():
    assert names_by_cluster({"a": 3, "b": 1, "c": 1}) == {1: ["b", "c"], 3: ["a"]}


def test_the_table_tells_of_methods_that_found_clusters_only():
    alone, one = {n: i for i, n in enumerate(ONE)}, dict.fromkeys(ONE, 0)
    assert clusters_table({"local": [alone], "fedavg": [one]}) is None
    assert clusters_table({"ifca": [{"a": -1, "b": 0, "c": 0, "d": 0}]}) is None, (
        "a client without a cluster is in none"
    )
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(clusters_table({"fedavg": [one, one], "wecfl": [ONE, SAME]}))
    text = capture.get()
    assert "wecfl" in text
    assert "fedavg" not in text
    assert "1.00" in text
    assert "a, b" in text


def people(classes: int | None) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = rng.integers(2, size=60) if classes else rng.normal(size=60).astype(np.float32)
    owner = np.arange(60) % 3
    return Dataset("people", x, y, x, y, classes, owners=Owners(("carl", "anna", "bert"), owner, owner))


@pytest.mark.parametrize("classes", [2, None])
def test_a_run_leaves_a_row_for_every_client_by_its_own_name(tmp_path, classes):
    data = people(classes).partition()
    assert data.names == ("carl", "anna", "bert")
    done = run(wecfl(clusters=2, fit=Fit(steps=2, lr=0.1)), data, rounds=2, out=tmp_path / "run")
    with (tmp_path / "run" / CLIENTS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["carl", "anna", "bert"]
    assert [int(row["cluster"]) for row in rows] == done.labels.tolist()
    assert load_clusters(tmp_path / "run") == dict(zip(data.names, done.labels.tolist(), strict=True))
    if classes:
        weighted = np.average([float(r["accuracy"]) for r in rows], weights=[int(r["test"]) for r in rows])
        assert weighted == pytest.approx(done.summary["accuracy"])
    else:
        assert max(float(r["rmse"]) for r in rows) == pytest.approx(done.summary["worst_client"])
