"""Drift: the losses that a look finds, the cluster it calls better, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from coterie.data import load
from coterie.deploy.drift import append, better_cluster, better_in_words, drift_table, losses_now, read_history
from coterie.experiments.placement import load_trained
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings
from coterie.runtimes.simulator import Simulator

SHORT = Settings("ifca", partition="rotation(0,180)", clients=4, clusters=2, model="mlp(16)", rounds=6, eval_every=9)


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=4, seed=1)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift") / "run"
    run_settings(SHORT, folder, data=data)
    return load_trained(folder)


def swapped(data):
    """The clients' data after client 0 has begun to see what the other group sees."""
    labels = data.groups.tolist()
    other = next(i for i in range(len(data)) if labels[i] != labels[0])
    others = [i for i in range(len(data)) if i not in (0, other)]
    order = np.argsort([0, *others])
    return replace(data.select([[other, *others][i] for i in order]), names=tuple(data.names[i] for i in (0, *others)))


def test_losses_are_those_of_every_example_under_every_model(data, trained):
    """An independent pass of the network over the client's own train and test data."""
    line = losses_now(trained, Simulator(data, trained.model, threads=1), "r")[2]
    x, y = (torch.as_tensor(part) for part in data.train.of(2))
    for k, (loss, error) in enumerate(zip(line["losses"], line["errors"], strict=True)):
        module = trained.model.with_row(trained.state.stack.params[k], trained.state.stack.buffers[k]).eval()
        with torch.no_grad():
            each = torch.nn.functional.cross_entropy(module(x), y, reduction="none").double().numpy()
        assert loss == pytest.approx(each.mean(), rel=1e-4)
        assert error == pytest.approx(each.std() / np.sqrt(len(each)), rel=1e-3)
    assert line["cluster"] == trained.state.labels[2]


def test_a_site_whose_data_changed_is_told_the_better_cluster_and_nobody_else(data, trained):
    before = losses_now(trained, Simulator(data, trained.model, threads=1), "r")
    assert [line["better"] for line in before] == [None] * 4, "those who stay are served best where they are"
    after = losses_now(trained, Simulator(swapped(data), trained.model, threads=1), "r")
    assert [line["better"] is None for line in after] == [False, True, True]
    assert after[0]["better"]["cluster"] == 1 - after[0]["cluster"]
    assert after[0]["test_loss"] > before[0]["test_loss"]
    assert better_in_words(after[0]).startswith(f"yes, {1 - after[0]['cluster']}: its loss is lower by")


def test_a_gain_within_two_standard_errors_is_none():
    errors = np.array([0.3, 0.4])
    assert better_cluster(0, np.array([2.0, 1.01]), errors) is None
    assert better_cluster(0, np.array([2.02, 1.0]), errors) == {"cluster": 1, "gain": 1.02, "error": 0.5}
    assert better_cluster(1, np.array([2.02, 1.0]), errors) is None
    assert better_cluster(0, np.array([np.inf, 1.0]), errors) == {"cluster": 1, "gain": None, "error": None}


def test_looks_are_kept_and_shown_over_time(tmp_path):
    path, common = tmp_path / "drift.jsonl", {"run": "r", "site": "bern", "cluster": 0}
    for day, loss in enumerate((0.5, 0.6, 0.7), 1):
        append(path, [{**common, "time": f"2026-11-0{day}", "test_loss": loss, "losses": [loss], "better": None}])
    append(path, [{**common, "run": "other", "time": "2026-11-09", "test_loss": 9.0}])
    with path.open("a") as file:
        file.write('{"torn')
    lines = read_history(path, "r")
    assert [line["test_loss"] for line in lines] == [0.5, 0.6, 0.7]
    console = Console(width=80, record=True)
    console.print(drift_table(lines))
    said = console.export_text()
    assert "3 looks, the last at 2026-11-03" in said
    assert [word for word in said.split() if word.startswith("0.")] == ["0.5", "0.6", "0.7"]


def test_a_site_that_did_not_answer_is_not_known():
    assert better_in_words({"losses": None, "missing": "not connected"}) == "not known: not connected"
