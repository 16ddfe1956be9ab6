"""Predictions for files: with probabilities, in the target's unit, row by row, by the model of the right client."""

from __future__ import annotations

import csv
import io

import numpy as np
import polars as pl
import pytest
import torch
from local_sites import LocalSites
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.deploy.order import Order
from coterie.deploy.server_run import carry_out
from coterie.deploy.status import StatusBoard
from coterie.experiments.settings import make_settings
from coterie.exporting.folder import read_network


def stays(rows=30, seed=0, sites=("bern", "chur", "thun", "wil")):
    """A table in which the length of a stay depends on age: upwards in two hospitals, downwards in the others."""
    rng = np.random.default_rng(seed)
    count = rows * len(sites)
    age, site = rng.uniform(20, 90, count).round(1), np.repeat(sites, rows)
    slope = np.where(np.isin(site, sites[:2]), 1.0, -1.0)
    days = 50 + slope * (age - 55) / 5 + rng.normal(0, 0.5, count)
    return pl.DataFrame(
        {
            "id": [f"p{i}" for i in range(count)],
            "site": site,
            "age": age,
            "sex": rng.choice(["f", "m"], count),
            "days": days.round(2),
            "long": np.where(days > 50, "yes", "no"),
        }
    )


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Runs on one table: of a number and of classes, and one with a rule for newcomers without labels."""
    folder = tmp_path_factory.mktemp("home")
    stays().write_csv(folder / "stays.csv")
    train = (
        "--client",
        "site",
        "--model",
        "mlp(8)",
        "--rounds",
        4,
        "--epochs",
        4,
        "--data",
        folder / "stays.csv",
        "--quiet",
    )
    for name, algorithm, label, other in [
        ("days", "ifca(2)", "days", "long"),
        ("long", "ifca(2)", "long", "days"),
        ("flux", "flux", "long", "days"),
        ("one", "fedavg", "long", "days"),
        ("tuned", "ifca(2)+finetune(steps=2)", "long", "days"),
    ]:
        told = call("run", algorithm, "--label", label, "--ignore", f"id,{other}", "--out", folder / name, *train)
        assert told.exit_code == 0, told.output
    return folder


def predicted(*words):
    told = call("predict", *words)
    assert told.exit_code == 0, told.output
    return list(csv.DictReader(io.StringIO(told.stdout))), told.stderr


class TestValuesThatTrainingNeverSaw:
    NOTE = "note: 2 rows have a value of 'sex' that training never saw, such as 'x'; they are read as"

    @pytest.mark.parametrize(("gap", "read_as"), [("f", "none of its values"), ("", "missing")])
    def test_are_noted_with_how_they_are_read(self, tmp_path, gap, read_as):
        frame = stays().with_columns(sex=pl.when(pl.int_range(pl.len()) < 9).then(pl.lit(gap)).otherwise("sex"))
        frame.write_csv(tmp_path / "stays.csv")
        told = call("run", "flux", "--data", tmp_path / "stays.csv", "--client", "site", "--label", "long", "--ignore",
                    "id,days", "--missing", "indicator", "--rounds", 3, "--quiet", "--out", tmp_path / "r")  # fmt: skip
        assert told.exit_code == 0, told.output
        new = stays(5, seed=9).filter(pl.col("site") == "wil")
        new = new.with_columns(sex=pl.when(pl.int_range(pl.len()) < 2).then(pl.lit("x")).otherwise("sex"))
        new.write_csv(tmp_path / "new.csv")
        assert f"{self.NOTE} {read_as}" in predicted(tmp_path / "r", "--data", tmp_path / "new.csv")[1]
        new.drop("long").write_csv(tmp_path / "late.csv")
        for name in ("new.csv", "late.csv"):
            assigned = call("assign", tmp_path / "r", "--data", tmp_path / name, "--json")
            assert f"{self.NOTE} {read_as}" in assigned.stderr, assigned.output

    def test_the_others_need_no_note(self, home, tmp_path):
        stays(5, seed=9).write_csv(tmp_path / "new.csv")
        assert "never saw" not in predicted(home / "long", "--data", tmp_path / "new.csv", "--client", "wil")[1]


class TestForAClient:
    def test_classes_come_with_probabilities(self, home, tmp_path):
        new = stays(5, seed=9).drop("long")
        new.write_csv(tmp_path / "new.csv")
        rows, _ = predicted(home / "long", "--data", tmp_path / "new.csv", "--client", "thun", "--keep", "id")
        run = ct.load_run(home / "long")
        assert list(rows[0]) == ["id", "prediction", "probability_no", "probability_yes"]
        assert [row["id"] for row in rows] == new["id"].to_list()
        assert [row["prediction"] for row in rows] == run.predict(new, "thun").tolist()
        chances = [[float(row["probability_no"]), float(row["probability_yes"])] for row in rows]
        assert np.allclose(chances, run.predict(new, "thun", proba=True), atol=1e-6)

    def test_numbers_are_in_their_unit(self, home, tmp_path):
        new = stays(5, seed=9).drop("days")
        new.write_csv(tmp_path / "new.csv")
        rows, _ = predicted(home / "days", "--data", tmp_path / "new.csv", "--client", "bern")
        found = [float(row["prediction"]) for row in rows]
        assert np.allclose(found, ct.load_run(home / "days").predict(new, "bern"), rtol=1e-5)
        assert 35 < np.mean(found) < 65

    def test_a_model_that_is_fine_tuned_is_fine_tuned(self, home, tmp_path):
        new = stays(5, seed=9)
        new.write_csv(tmp_path / "new.csv")
        rows, _ = predicted(home / "tuned", "--data", tmp_path / "new.csv", "--client", "bern")
        chances = [float(row["probability_yes"]) for row in rows]
        assert np.allclose(chances, ct.load_run(home / "tuned").predict(new, "bern", proba=True)[:, 1], atol=1e-6)

    def test_parquet_is_read_too(self, home, tmp_path):
        new = stays(5, seed=9)
        new.write_csv(tmp_path / "new.csv")
        new.write_parquet(tmp_path / "new.parquet")
        one, other = (
            predicted(home / "long", "--data", tmp_path / name, "--client", "wil")[0]
            for name in ("new.csv", "new.parquet")
        )
        assert one == other

    def test_an_unknown_one_is_refused(self, home):
        told = call("predict", home / "long", "--data", home / "stays.csv", "--client", "thunn")
        assert told.exit_code == 2
        assert "unknown client 'thunn'; did you mean 'thun'?" in told.output


class TestForManyClients:
    def test_each_row_is_predicted_by_its_own(self, home, tmp_path):
        new = stays(5, seed=9).drop("days").sample(fraction=1, shuffle=True, seed=1)
        new.write_csv(tmp_path / "new.csv")
        rows, _ = predicted(home / "days", "--data", tmp_path / "new.csv", "--keep", "id")
        run = ct.load_run(home / "days")
        assert [(row["id"], row["site"]) for row in rows] == list(zip(new["id"], new["site"], strict=True))
        expected = [run.predict(new[i : i + 1], client)[0] for i, client in enumerate(new["site"])]
        assert np.allclose([float(row["prediction"]) for row in rows], expected, rtol=1e-5)
        of_one = run.predict(new, "bern")
        assert not np.allclose(expected, of_one, rtol=0.01), "all clients have the same model: this shows nothing"

    def test_one_that_took_no_part_is_named(self, home, tmp_path):
        new = stays(2, sites=("bern", "chur", "genf", "wil"))
        new.write_csv(tmp_path / "new.csv")
        told = call("predict", home / "days", "--data", tmp_path / "new.csv")
        assert told.exit_code == 2
        assert "line 6: client 'genf' took no part in the run (and in 1 more rows); leave its rows out" in told.stderr
        assert not told.stdout


class TestForANewcomer:
    def test_it_is_placed_by_its_labels(self, home, tmp_path):
        new = stays(30, seed=4).filter(pl.col("site") == "wil").drop("site", "id", "days")
        new.write_csv(tmp_path / "new.csv")
        rows, said = predicted(home / "long", "--data", tmp_path / "new.csv")
        run = ct.load_run(home / "long")
        assert f"placed as a newcomer in cluster {run.clusters()['wil']} by 30 labelled rows" in said
        assert [row["prediction"] for row in rows] == run.predict(new, "wil").tolist()

    def test_without_labels_it_needs_a_name(self, home, tmp_path):
        stays(3).drop("site", "long").write_csv(tmp_path / "new.csv")
        told = call("predict", home / "long", "--data", tmp_path / "new.csv")
        assert told.exit_code == 2
        assert (
            "new.csv has no column 'site', which names clients, and ifca(2) places a newcomer by labels alone; name a "
            in told.stderr
        )

    def test_a_misspelt_column_of_clients_is_named(self, home, tmp_path):
        stays(4, sites=("wil",)).rename({"site": "Site"}).write_csv(tmp_path / "new.csv")
        _, said = predicted(home / "long", "--data", tmp_path / "new.csv")
        assert "new.csv has no column 'site', which names clients; did you mean 'Site'? placed as a newcomer" in said
        stays(4, sites=("wil",)).rename({"site": "Site"}).drop("long").write_csv(tmp_path / "new.csv")
        told = call("predict", home / "long", "--data", tmp_path / "new.csv")
        assert "has no column 'site', which names clients, and ifca(2) places" in told.stderr
        assert "did you mean 'Site'? name a client with --client" in told.stderr

    def test_without_labels_it_is_placed_by_a_method_that_can(self, home, tmp_path):
        stays(30, seed=4).drop("site", "long", "days").write_csv(tmp_path / "new.csv")
        rows, said = predicted(home / "flux", "--data", tmp_path / "new.csv")
        assert len(rows) == 120
        assert "by 120 rows without labels" in said or "the run has one model" in said

    def test_one_model_is_everybodys(self, home, tmp_path):
        new = stays(3).drop("site", "long", "days")
        new.write_csv(tmp_path / "new.csv")
        rows, said = predicted(home / "one", "--data", tmp_path / "new.csv")
        assert "the run has one model, for everybody" in said
        assert [row["prediction"] for row in rows] == ct.load_run(home / "one").predict(new, 0).tolist()


class TestFiles:
    def test_are_written_whole(self, home, tmp_path):
        told = call("predict", home / "long", "--data", home / "stays.csv", "-o", tmp_path / "found.csv")
        assert told.exit_code == 0
        assert told.stdout == f"120 predictions are in {tmp_path / 'found.csv'}\n"
        rows, _ = predicted(home / "long", "--data", home / "stays.csv")
        assert list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text()))) == rows
        assert len(list(tmp_path.iterdir())) == 1

    def test_are_not_written_where_there_is_no_folder(self, home, tmp_path):
        told = call("predict", home / "long", "--data", home / "stays.csv", "-o", tmp_path / "no" / "found.csv")
        assert told.exit_code == 2
        assert f"there is no folder {tmp_path / 'no'}" in told.stderr

    @pytest.mark.parametrize("name", ["found.xlsx", "found.parquet"])
    def test_are_not_written_as_what_they_are_not(self, name, home, tmp_path):
        told = call("predict", home / "long", "--data", home / "stays.csv", "-o", tmp_path / name)
        assert told.exit_code == 2
        assert f"out is {tmp_path / name}, and predictions are written as .csv; name it" in told.stderr
        assert not list(tmp_path.iterdir())

    def test_bad_rows_are_named_all_at_once(self, home, tmp_path):
        (tmp_path / "new.csv").write_text("age,sex\n40,f\nold,m\n50,x\n,m\n60,x\n")
        told = call("predict", home / "long", "--data", tmp_path / "new.csv", "--client", "wil")
        assert told.exit_code == 2
        assert not told.stdout
        lines = told.stderr.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["problem"] * 3 + ["error"]
        for line, said in [("line 3", "'old'"), ("line 4", "'x'"), ("line 5", "missing")]:
            assert any(line in each and said in each for each in lines)
        assert "--ignore" not in told.stderr, "an option of a run, not of this command"

    def test_without_a_column_that_is_needed_are_refused(self, home, tmp_path):
        stays(2).drop("age", "sex").write_csv(tmp_path / "new.csv")
        told = call("predict", home / "long", "--data", tmp_path / "new.csv", "--client", "wil")
        assert told.exit_code == 2
        assert "'age'" in told.stderr
        assert "'sex'" in told.stderr

    def test_with_columns_to_keep_that_are_not_there_are_refused(self, home):
        told = call("predict", home / "long", "--data", home / "stays.csv", "--keep", "idd")
        assert told.exit_code == 2
        assert "'idd'" in told.stderr
        assert "correct --keep" in told.stderr

    def test_with_other_columns_say_so(self, home, tmp_path):
        stays(2).with_columns(colour=pl.lit("red")).write_csv(tmp_path / "new.csv")
        _, said = predicted(home / "long", "--data", tmp_path / "new.csv", "--client", "wil")
        assert "columns that the model does not know are passed over: colour (--keep writes them too)" in said

    def test_of_arrays_are_predicted(self, tmp_path):
        rng = np.random.default_rng(0)
        for name in ("a", "b"):
            x = rng.normal(size=(20, 3)).astype(np.float32)
            np.savez(tmp_path / f"{name}.npz", x=x, y=(x[:, 0] > 0).astype(int))
        told = call(
            "run",
            "fedavg",
            "--data",
            tmp_path,
            "--model",
            "mlp(4)",
            "--rounds",
            1,
            "--out",
            tmp_path / "run",
            "--quiet",
        )
        assert told.exit_code == 0, told.output
        np.savez(tmp_path / "new.npz", x=np.ones((2, 3), np.float32))
        rows, _ = predicted(tmp_path / "run", "--data", tmp_path / "new.npz", "--client", "a")
        assert list(rows[0]) == ["prediction", "probability_0", "probability_1"]
        told = call("predict", tmp_path / "run", "--data", tmp_path / "new.npz", "--client", "a", "--keep", "id")
        assert (told.exit_code, "leave --keep out" in told.stderr) == (2, True)

    def test_that_are_not_there_are_refused(self, home):
        told = call("predict", home / "long", "--data", home / "nothing.csv")
        assert told.exit_code == 2
        assert "there is no file" in told.stderr


class TestFederations:
    @pytest.fixture(scope="class")
    @staticmethod
    def federation(tmp_path_factory):
        """The folder of a federation's run, over sites in this process, and the simulation of the same run."""
        folder = tmp_path_factory.mktemp("federation")
        frame = stays(60).drop("days", "id")
        data = ct.from_frame(frame, client="site", label="long")
        data.schema.save(folder / "schema.json")
        paths = {
            "out": str(folder / "run"),
            "board": str(folder / "status.json"),
            "schema": str(folder / "schema.json"),
        }
        settings = make_settings({"algorithm": "ifca", "clusters": 2, "model": "mlp(8)", "rounds": 2}, tables=True)
        order = Order(settings=settings.table(), sites=data.names, minimum=1, timeout=1.0, patience=0.0, **paths)
        board = StatusBoard(folder / "status.json", order.run, order.out, order.sites)
        carry_out(order, LocalSites(data, folder), board)
        return folder / "run", ct.run("ifca", data, clusters=2, model="mlp(8)", rounds=2, threads=1)

    def test_their_runs_predict_as_simulations_do(self, federation, tmp_path):
        folder, simulated = federation
        new = stays(5, seed=9)
        new.write_csv(tmp_path / "new.csv")
        rows, _ = predicted(folder, "--data", tmp_path / "new.csv", "--client", "thun")
        chances = [float(row["probability_yes"]) for row in rows]
        assert np.allclose(chances, simulated.predict(new, "thun", proba=True)[:, 1], atol=1e-5)

    def test_their_runs_are_exported(self, federation, tmp_path):
        folder, simulated = federation
        told = call(
            "export", folder, "--cluster", simulated.clusters()["bern"], "--format", "safetensors", "-o", tmp_path / "x"
        )
        assert told.exit_code == 0, told.output
        x = simulated.data.test.of(0)[0]
        with torch.no_grad():
            found = read_network(tmp_path / "x")(torch.from_numpy(x)).numpy()
        assert np.allclose(found, simulated.predict(x, "bern", proba=True), atol=1e-5)
