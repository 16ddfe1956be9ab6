"""What the README and docs/performance.md claim, measured: `make check-slow`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


def run(out, *words):
    command = [sys.executable, "-m", "coterie.cli", "run", *words, "--json", "--quiet", "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("algorithm", ["wecfl", "ifca"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_groups_of_rotated_digits_are_found_on_every_seed(tmp_path, algorithm, seed):
    summary = run(tmp_path / "r", algorithm, "--seed", str(seed))
    assert summary["ari"] == 1.0
    assert summary["accuracy"] > 0.94


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
