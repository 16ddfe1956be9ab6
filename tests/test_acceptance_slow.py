"""What the README and docs/performance.md claim, measured: `make check-slow`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


def run(out, *words):
    command = [sys.executable, "-m", "coterie", "run", *words, "--json", "--quiet", "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("algorithm", ["wecfl", "ifca", "clove", "pacfl", "flux", "stocfl"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_groups_of_rotated_digits_are_found_on_every_seed(tmp_path, algorithm, seed):
    summary = run(tmp_path / "r", algorithm, "--seed", str(seed))
    assert summary["ari"] == 1.0
    assert summary["accuracy"] > (0.92 if algorithm == "stocfl" else 0.94)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_fifth_of_the_clients_in_a_round_is_enough_for_stocfl(tmp_path, seed):
    """The number of clusters is not given either."""
    summary = run(tmp_path / "r", "stocfl", "--participation", "0.2", "--seed", str(seed))
    assert (summary["ari"], summary["clusters_found"]) == (1.0, 4)


def test_clove_finds_groups_from_random_starts_where_ifca_merges_some(tmp_path):
    """Whether all four rotations are found, on ten seeds."""
    found = {
        algorithm: sum(
            run(tmp_path / f"{algorithm}-{seed}", algorithm, "--rounds", "10", "--seed", str(seed))["ari"] == 1.0
            for seed in range(6, 16)
        )
        for algorithm in ("clove", "ifca(start=random)")
    }
    assert found["clove"] >= 9
    assert found["ifca(start=random)"] <= 6


@pytest.mark.parametrize("seed", range(1, 6))
def test_flux_places_newcomers_of_every_rotation_without_labels(seed):
    """Eighty clients, of which forty take no part: ten of each rotation."""
    whole = ct.load("digits").partition("rotation(0,90,180,270)", clients=80, seed=seed)
    rotations = [np.flatnonzero(whole.groups == group) for group in range(4)]
    own, new = (
        np.sort(np.concatenate([clients[part] for clients in rotations])) for part in (slice(10), slice(10, 20))
    )
    done = ct.run(ct.flux(), whole.select(own.tolist()), "mlp", rounds=10, seed=seed)
    group_of = {int(label): whole.groups[own][done.labels == label][0] for label in np.unique(done.labels)}
    assert adjusted_rand_score(whole.groups[own], done.labels) == 1.0
    placed = [done.assign(whole.train.of(client)[0]) for client in new]
    assert [group_of[each.cluster] for each in placed] == whole.groups[new].tolist()
    assert placed[0].served is None


def test_ten_thousand_logistic_regressions_fit_in_4_gb(tmp_path):
    few = ("--data", "fashion-mnist", "--partition", "iid(minimum=1)", "--clients", "10000", "--model", "logistic")
    summary = run(tmp_path / "r", "wecfl", *few, "--rounds", "5", "--participation", "0.1")
    assert summary["peak_memory_mb"] < 4096


@pytest.mark.parametrize("algorithm", ["wecfl", "ifca"])
def test_two_thousand_cnns_fit_in_4_gb(tmp_path, algorithm):
    many = ("--data", "fashion-mnist", "--partition", "iid(minimum=1)", "--clients", "2000", "--model", "cnn")
    summary = run(tmp_path / "r", algorithm, *many, "--rounds", "5", "--participation", "0.1")
    assert summary["peak_memory_mb"] < 4096


def test_clustering_helps_on_fashion_mnist_by_groups(tmp_path):
    groups = ("--data", "fashion-mnist", "--partition", "dirichlet(0.1,10)", "--clients", "100", "--model", "mlp(64)")
    one, many = (run(tmp_path / a, a, *groups, "--rounds", "10", "--lr", "0.02") for a in ("fedavg", "wecfl"))
    assert many["accuracy"] - one["accuracy"] > 0.05
    assert many["ari"] > 0.9


def rotated_mnist(angles, clients, seed):
    """Clients of 200 pictures each."""
    data, count = ct.load("mnist"), 200 * clients // len(angles)
    rows = np.random.default_rng(seed).permutation(len(data.y_train))[:count]
    part = replace(data, x_train=data.x_train[rows], y_train=data.y_train[rows])
    return part.partition(f"rotation({','.join(map(str, angles))})", clients=clients, seed=seed)


@pytest.mark.parametrize(
    ("angles", "clients", "clusters", "model", "share"),
    [
        ((0, 90, 180, 270), 200, 4, "logistic", 0.06),
        ((0, 90, 180, 270), 160, 4, "mlp(64)", 0.06),
        (tuple(range(0, 360, 36)), 160, 10, "logistic", 0.12),
        ((0, 90, 180, 270), 160, 10, "logistic", 0.25),
        ((0, 90, 180, 270), 160, 10, "mlp(64)", 0.25),
    ],
)
def test_lcfl_on_samples_finds_the_clusters_of_the_exact_losses(
    angles, clients, clusters, model, share, train, simulator
):
    """Measured shares of the evaluations: 0.040, 0.040, 0.081, 0.243 and 0.230.

    In the last two there are four groups: how each is cut further hangs on which medoids are a little better, and all
    pairs inside a group, a quarter of all, would have to be seen to the end if not only medoids counted.
    """
    data = rotated_mnist(angles, clients, seed=1)
    sim, fit = simulator(data, model), ct.Fit(epochs=10, batch=20, lr=0.02)
    found = {c: train(f"lcfl(cross={c})", sim, 2, clusters=clusters, fit=fit)[-1] for c in ("exact", "sampled")}
    exact, cheap = found["exact"], found["sampled"]
    assert cheap.state.labels.tolist() == exact.state.labels.tolist()
    assert exact.cost.evaluations == clients * 200 * clients
    assert cheap.cost.evaluations <= share * exact.cost.evaluations
    assert len(angles) != clusters or adjusted_rand_score(data.groups, cheap.state.labels) == 1
