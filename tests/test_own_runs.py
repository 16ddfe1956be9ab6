"""A user's own tables from file to results, on the command line and in Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.experiments.building import has_clients, is_own
from coterie.experiments.settings import Settings

QUICK = ("--rounds", "2", "--steps", "5", "--clusters", "2", "--quiet")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*words):
    return CliRunner().invoke(app, list(words))


def said(result):
    return " ".join(result.output.split())


def visits(rows: int = 240, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(50, 10, rows), rng.uniform(0, 1, rows)
    ward = rng.choice(["north", "south"], rows)
    site = np.array([f"site-{i}" for i in np.arange(rows) % 4])
    cost = 1000 * (0.1 * age + dose) + rng.normal(0, 50, rows)
    ill = np.where(dose + 0.02 * age > 1.5, "ill", "well")
    region = np.arange(rows) % 2
    return pl.DataFrame(
        {"age": age, "dose": dose, "ward": ward, "site": site, "cost": cost, "ill": ill, "region": region}
    )


@pytest.fixture
def table():
    visits().write_csv("visits.csv")
    return ("--data", "visits.csv", "--client", "site", "--label", "ill", "--ignore", "cost,region")


def test_a_table_with_a_client_column_runs_and_keeps_its_schema(table):
    result = call("run", "wecfl", *table, *QUICK, "--out", "r", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["clients"], summary["partition"], summary["data"]) == (4, "natural", "visits.csv")
    data = ct.load_own("visits.csv", client="site", label="ill", ignore=["cost", "region"])
    later = visits().filter(pl.col("site") == "site-2").drop("site", "cost", "region")
    later.write_csv("later.csv")
    x, y = ct.Schema.load("r/schema.json").arrays("later.csv")
    mine = np.concatenate([data.train.of(2)[0], data.test.of(2)[0]])
    assert sorted(map(tuple, x.tolist())) == sorted(map(tuple, mine.tolist()))
    assert np.bincount(y).tolist() == (np.bincount(data.train.of(2)[1]) + np.bincount(data.test.of(2)[1])).tolist()


def test_the_clients_of_a_run_are_called_by_their_own_names(table):
    result = call("run", "wecfl", *table, *QUICK, "--out", "r")
    assert result.exit_code == 0, result.output
    assert "site-3" in result.output
    assert Path("r/clients.csv").read_text().splitlines()[1].startswith("site-0,")


def test_true_groups_of_a_column_are_scored_and_never_features(table):
    words = [*table[:-1], "cost"]
    result = call("run", "wecfl", *words, "--group", "region", *QUICK, "--out", "r", "--json")
    assert "ari" in json.loads(result.stdout)
    assert [f["name"] for f in json.loads(Path("r/schema.json").read_text())["features"]] == ["age", "dose", "ward"]


def test_errors_of_a_regression_are_in_the_user_s_units():
    visits().write_csv("visits.csv")
    options = {"client": "site", "label": "cost", "ignore": ["ill", "region"]}
    words = ("--data", "visits.csv", "--client", "site", "--label", "cost", "--ignore", "ill,region")
    result = call("run", "fedavg", *words, *QUICK, "--rounds", "1", "--out", "r", "--json")
    summary = json.loads(result.stdout)
    run = ct.run("fedavg", ct.load_own("visits.csv", **options), rounds=1, steps=5)
    assert run.summary["rmse"] == pytest.approx(summary["rmse"])
    # A direct computation: predictions turned back into money, against the costs in the file's own units.
    data, schema = run.data, run.data.schema
    model, total = run.model_for(0), 0.0
    for client in range(4):
        x, y = data.test.of(client)
        guess = model(torch.from_numpy(x)).detach().numpy()[:, 0] * schema.target.std + schema.target.mean
        total += ((guess - (y * schema.target.std + schema.target.mean)) ** 2).sum()
    assert summary["rmse"] == pytest.approx(np.sqrt(total / len(data.test.y)), rel=1e-4)
    assert 50 < summary["rmse"] < 5000


def test_a_table_without_clients_is_divided_by_a_partition(table):
    words = ("--data", "visits.csv", "--label", "ill", "--ignore", "cost,region,site", "--clients", "5")
    result = call("run", "fedavg", *words, "--partition", "iid", *QUICK, "--out", "r", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["clients"] == 5
    assert ct.Schema.load("r/schema.json").label == "ill"


def test_a_single_file_needs_a_client_column_or_a_partition(table):
    result = call("run", "fedavg", "--data", "visits.csv", "--label", "ill", *QUICK, "--out", "r")
    assert result.exit_code == 2
    assert "name the column of its clients with --client, or divide it by a partition" in said(result)


def test_a_comparison_reads_a_table_once_for_all_algorithms(table, monkeypatch):
    from coterie.experiments import building

    reads = []
    load = building.read_own
    monkeypatch.setattr(building, "read_own", lambda *args, **kw: reads.append(args) or load(*args, **kw))
    result = call("compare", "fedavg", "wecfl", *table, *QUICK, "--seeds", "1..2", "--out", "c")
    assert result.exit_code == 0, result.output
    assert len(reads) == 2


def test_a_check_lists_everything_and_ends_with_2(table):
    good = call("data", "check", "visits.csv", *table[2:])
    assert good.exit_code == 0, good.output
    assert "4 clients, 240 rows, 3 features" in good.output
    lines = Path("visits.csv").read_text().splitlines()
    lines[3] = "," + lines[3].partition(",")[2]
    lines[7] = lines[7].partition(",")[0] + ",much," + lines[7].split(",", 2)[2]
    Path("visits.csv").write_text("\n".join(lines) + "\n")
    bad = call("data", "check", "visits.csv", *table[2:])
    assert bad.exit_code == 2
    assert "line 4" in said(bad)
    assert "line 8" in said(bad)
    assert "'much'" in said(bad)
    run = call("run", "fedavg", *table, *QUICK, "--out", "r")
    assert run.exit_code == 2
    assert "coterie data check visits.csv lists them" in said(run)


@pytest.mark.parametrize("flag", ["--label=y", "--client=c", "--group=g", "--ignore=i", "--missing=mean", "--test=0.3"])
def test_options_of_tables_are_refused_for_published_data(flag):
    result = call("run", "fedavg", flag, *QUICK, "--out", "r")
    assert result.exit_code == 2
    assert "digits is no table of yours" in said(result)


def test_values_that_no_option_takes_are_refused(table):
    for flag, told in (("--missing=drop", "missing"), ("--task=ranking", "task"), ("--test=2", "test")):
        result = call("run", "fedavg", *table, flag, *QUICK, "--out", "r")
        assert result.exit_code == 2, flag
        assert told in said(result)


def test_a_path_is_told_from_the_name_of_a_data_set(tmp_path):
    (tmp_path / "digits").mkdir()
    assert not is_own("digits")
    assert not is_own("emnist(letters,file=a/b.zip)")
    assert is_own("./digits")
    assert is_own("visits.csv")


@pytest.mark.parametrize(
    ("data", "undivided", "divided"),
    [("./digits", True, True), ("hapt", True, True), ("mnist", False, False), ("visits.csv", True, False)],
)
def test_a_folder_and_a_federated_set_have_clients_and_a_file_unless_it_is_divided(tmp_path, data, undivided, divided):
    (tmp_path / "digits").mkdir()
    assert has_clients(Settings("fedavg", data=data)) is undivided
    assert has_clients(Settings("fedavg", data=data, partition="iid")) is divided
    assert has_clients(Settings("fedavg", data=data, partition="iid", client="site"))


def test_a_picture_and_the_facts_of_own_data(table, tmp_path):
    result = call("data", "show", "visits.csv", *table[2:], "--picture", "who.png")
    assert result.exit_code == 0, result.output
    assert "0 ill, 1 well" in said(result)
    assert (tmp_path / "who.png").stat().st_size > 10_000


def test_an_experiment_file_carries_the_options_of_a_table(table):
    call("tune", "fedprox", *table, "--over", "lr=0.01,0.3", *QUICK, "--out", "t")
    result = call("run", "t/best.toml", "--out", "r", "--quiet", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["clients"] == 4
