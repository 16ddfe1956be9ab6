"""What people type first: run, compare, tune, load_run, predict, with texts, values, modules and functions."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.api.settings import seeds_of
from coterie.cli.main import app
from coterie.errors import DataError, ModelError, RunFolderError, UnknownName, UsageError
from coterie.experiments.run_folder import load_rounds
from coterie.models.given import as_model
from coterie.reporting.html import html_pairs

FEW = {"rounds": 2, "steps": 2, "batch": 8}


@pytest.fixture(scope="module")
def clients():
    return ct.load("digits").partition("rotation(0,180)", clients=4, seed=1)


@pytest.fixture(scope="module")
def table(clients, tmp_path_factory):
    out = tmp_path_factory.mktemp("both")
    return ct.compare(["fedavg", "wecfl"], clients, "mlp(4)", seeds=2, clusters=2, out=out, **FEW)


def timeless(run):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]


def small():
    """Make a network that the command line could make too."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def net(shape, outputs, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.ReLU(), nn.Linear(width, outputs))


class TestRun:
    def test_a_text_is_the_value_that_it_names(self, clients):
        value = ct.wecfl(clusters=2, fit=ct.Fit(steps=2, batch=8)) + ct.cks(strength=0.2)
        one = ct.run(value, clients, "mlp(4)", rounds=2)
        other = ct.run("wecfl(clusters=2)+cks(strength=0.2)", clients, "mlp(4)", **FEW)
        assert timeless(one) == timeless(other)

    def test_options_of_a_text_are_those_of_the_command_line(self, clients, tmp_path):
        done = ct.run("wecfl", clients, "mlp(4)", clusters=2, out=tmp_path / "python", **FEW)
        words = ["wecfl", "--clusters", "2", "--model", "mlp(4)", "--rounds", "2", "--steps", "2", "--batch", "8"]
        words += ["--partition", "rotation(0,180)", "--clients", "4", "--quiet", "--out", str(tmp_path / "line")]
        assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
        assert [r["accuracy"] for r in load_rounds(tmp_path / "line")] == [r["accuracy"] for r in done.history]
        words[-1] = str(tmp_path / "python")
        assert CliRunner().invoke(app, ["run", *words, "--resume"]).exit_code == 0

    def test_without_a_number_of_clusters_a_text_has_that_of_own_files(self, clients):
        assert ct.run("wecfl", clients, "mlp(4)", **FEW).settings.clusters == 4
        assert ct.run("fedavg", clients, "mlp(4)", **FEW).settings.clusters is None

    @pytest.mark.parametrize(
        ("arguments", "options", "problem"),
        [
            (("wecfl", "digits"), {}, "clients is a str; it must be a coterie.Federated"),
            ((ct.wecfl, None), {}, "clients is a NoneType"),
            (("wecfl", ...), {"round": 3}, "unknown option 'round'; did you mean 'rounds'"),
            (("wecfl", ...), {"partition": "iid"}, "partition is given, but the clients' data have decided it"),
            ((ct.wecfl(clusters=2), ...), {"lr": 0.1}, "lr is given, but the algorithm is a value and has it already"),
            ((ct.wecfl(clusters=2), ...), {"clusters": 3}, "clusters is given, but the algorithm is a value"),
            ((3, ...), {}, "algorithm is a int; give ct.wecfl"),
            (("wecf", ...), {}, "unknown algorithm 'wecf'; did you mean 'wecfl'"),
            (("wecfl", ..., 3), {}, "model is a int; give a text, a torch.nn.Module or a function"),
            (("wecfl", ..., lambda: 3), {}, "must be a torch.nn.Module, not int"),
            (("wecfl", ...), {"participation": 2}, r"participation is 2; it must be in \(0, 1\]"),
        ],
    )
    def test_what_is_wrong_is_one_line(self, arguments, options, problem, clients):
        given = [clients if each is ... else each for each in arguments]
        with pytest.raises(UsageError, match=problem) as refused:
            ct.run(*given, **options)
        assert "\n" not in str(refused.value)

    def test_progress_is_a_function_of_every_record_or_a_bar(self, clients, capsys):
        seen = []
        ct.run("fedavg", clients, "mlp(4)", progress=seen.append, **FEW)
        assert [record["round"] for record in seen] == [0, 1]
        assert capsys.readouterr().err == ""
        ct.run("fedavg", clients, "mlp(4)", progress=True, **FEW)
        assert "fedavg seed 1 round 2/2" in capsys.readouterr().err


class TestObjects:
    def test_a_clusterer_is_a_value_or_a_text(self, clients):
        from coterie.parts import agglomerative

        value = ct.lcfl(clusters=2, clusterer=agglomerative(clusters=2, linkage="complete"), warmup=0)
        assert value.name == "lcfl(clusters=2,clusterer=agglomerative(clusters=2,linkage=complete),warmup=0)"
        assert build_algorithm(value.name).name == value.name
        text = ct.lcfl(clusters=2, clusterer="agglomerative(clusters=2,linkage=complete)", warmup=0)
        one, other = (ct.run(each, clients, "mlp(4)", rounds=2) for each in (value, text))
        assert timeless(one) == timeless(other)

    def test_a_partition_is_a_value_or_a_text(self):
        from coterie.data.partitions.registry import parse_partition

        value = parse_partition("rotation(0,180)+quantity(1.5)")
        one, other = (ct.load("digits").partition(how, 4) for how in (value, value.text))
        assert one.fingerprint() == other.fingerprint()


class TestModels:
    def test_a_module_is_where_every_seed_starts(self, clients):
        torch.manual_seed(3)
        module = small()
        before = [p.clone() for p in module.parameters()]
        runs = [ct.run("fedavg", clients, module, rounds=1, steps=1, lr=1e-9, seed=seed) for seed in (1, 2)]
        for run in runs:
            for ours, theirs in zip(before, run.model_for(0).parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)), "it is not trained"

    def test_a_function_makes_a_new_network_for_each_seed(self, clients):
        one, other = (as_model(small, (1, 8, 8), 10).initial(seed)[0] for seed in (1, 2))
        assert not np.allclose(one, other)
        assert as_model(lambda shape, outputs: net(shape, outputs), (1, 8, 8), 10).layout.size == 64 * 5 + 5 + 60

    def test_a_function_of_a_module_has_a_text_that_the_command_line_takes(self):
        assert as_model(net, (1, 8, 8), 10).text == f"{__name__}:net"
        assert as_model(small, (1, 8, 8), 10).text == f"{__name__}:small"

    def test_another_module_of_the_same_class_has_another_text(self):
        texts = [as_model(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8), 10).text for _ in range(2)]
        assert all(re.fullmatch(r"python:Sequential-[0-9a-f]{8}", text) for text in texts)
        assert texts[0] != texts[1]

    def test_a_run_on_a_module_is_resumed_and_loaded_with_it(self, clients, tmp_path):
        module = small()
        ct.run("fedavg", clients, module, out=tmp_path / "run", **{**FEW, "rounds": 1})
        again = ct.run("fedavg", clients, module, out=tmp_path / "run", resume=True, **FEW)
        assert timeless(again) == timeless(ct.run("fedavg", clients, module, **FEW))
        with pytest.raises(RunFolderError, match="was begun with model = python:Sequential"):
            ct.run("fedavg", clients, small(), out=tmp_path / "run", resume=True, **FEW)
        with pytest.raises(ModelError, match="was made in Python; give the module or the function as model="):
            ct.load_run(tmp_path / "run")
        assert ct.load_run(tmp_path / "run", model=module).summary == again.summary
        with pytest.raises(RunFolderError, match="was run with the model 'python:Sequential"):
            ct.load_run(tmp_path / "run", model=small())


class TestAfterwards:
    def test_a_run_is_loaded_as_it_was(self, clients, tmp_path):
        done = ct.run("ifca+finetune(steps=2)", clients, "mlp(4)", clusters=2, out=tmp_path / "run", **FEW)
        found = ct.load_run(tmp_path / "run")
        assert (found.summary, found.history, repr(found)) == (done.summary, done.history, repr(done))
        x = clients.test.of(2)[0]
        np.testing.assert_array_equal(found.predict(x, 2, proba=True), done.predict(x, 2, proba=True))

    def test_data_without_words_must_be_given(self, images, tmp_path):
        ct.run("fedavg", images(), "mlp(4)", out=tmp_path / "run", **FEW)
        with pytest.raises(RunFolderError, match="data that Python made; give them as clients="):
            ct.load_run(tmp_path / "run")
        assert ct.load_run(tmp_path / "run", images()).data.names == images().names
        with pytest.raises(RunFolderError, match="was begun on other examples"):
            ct.load_run(tmp_path / "run", images(seed=5))

    def test_predictions_are_those_that_were_scored(self, clients):
        done = ct.run("wecfl", clients, "mlp(8)", clusters=2, rounds=3)
        right = total = 0
        for client, name in enumerate(clients.names):
            x, y = clients.test.of(client)
            right += (done.predict(x, name) == np.array(clients.class_names)[y]).sum()
            total += len(y)
            np.testing.assert_allclose(done.predict(x, name, proba=True).sum(1), 1, rtol=1e-5)
        assert right / total == pytest.approx(done.summary["accuracy"])

    def test_a_frame_is_predicted_in_the_targets_unit(self, tmp_path):
        import polars as pl

        rng = np.random.default_rng(0)
        x, who = rng.normal(size=400), np.repeat(["a", "b"], 200)
        frame = pl.DataFrame({"x": x, "who": who, "price": 1000 + 50 * x})
        clients = ct.from_frame(frame, client="who", label="price")
        done = ct.run("fedavg", clients, "linear", rounds=10, optimizer="sgd", steps=10)
        found = done.predict(frame.select("x"), "a")
        assert np.abs(found - frame["price"].to_numpy()).max() < 20
        with pytest.raises(UsageError, match="proba is True, but the run predicts a number"):
            done.predict(frame, "a", proba=True)

    def test_wrong_examples_and_clients_are_refused(self, clients):
        done = ct.run("fedavg", clients, "mlp(4)", **FEW)
        with pytest.raises(DataError, match=r"x has shape \(2, 3\)"):
            done.predict(np.zeros((2, 3)), 0)
        with pytest.raises(DataError, match="the run was not trained on tables"):
            done.predict({"a": 1}, 0)
        with pytest.raises(UnknownName, match="unknown client 'client-01'; did you mean"):
            done.predict(np.zeros((2, 1, 8, 8)), "client-01")
        assert len(done.predict(np.zeros((0, 1, 8, 8)), 0)) == 0

    def test_the_models_that_clients_sent_in_a_round_have_the_mean_that_the_server_made(self, clients):
        done = ct.run("fedavg", clients, "mlp(4)", rounds=3)
        sent = done.client_models(round=2)
        assert set(sent) == set(clients.names)
        rows = np.stack([done.model.flatten(sent[name])[0] for name in clients.names])
        mean = np.average(rows, axis=0, weights=clients.train.sizes)
        np.testing.assert_allclose(mean, done.state.stack.params[0], atol=1e-6)
        first = done.client_models(round=0)["client-000"]
        assert not torch.equal(next(first.parameters()), next(sent["client-000"].parameters()))
        assert torch.equal(*(next(each["client-001"].parameters()) for each in (sent, done.client_models())))
        with pytest.raises(UsageError, match="round is 3; the run has rounds 0 to 2"):
            done.client_models(round=3)

    def test_a_run_shows_itself_in_a_notebook(self, clients, tmp_path):
        done = ct.run("wecfl", clients, "mlp(4)", clusters=2, **FEW)
        page = done._repr_html_()
        assert "<svg" in page
        assert f"<td>{done.summary['accuracy']:.3f}</td>" in page
        done.plot(tmp_path / "run.png")
        assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
        assert "&lt;b&gt;" in html_pairs("<b>", [("a", "<i>")])
        assert done.clusters() == dict(zip(clients.names, done.labels.tolist(), strict=True))


class TestCompare:
    def test_it_is_the_table_of_the_runs(self, table, clients):
        assert list(table.summaries) == ["fedavg", "wecfl", "local"]
        alone = ct.run("wecfl", clients, "mlp(4)", clusters=2, seed=2, **FEW)
        assert table.summaries["wecfl"][1]["accuracy"] == alone.summary["accuracy"]
        rows = {row["algorithm"]: row for row in table.rows()}
        scores = [each["accuracy"] for each in table.summaries["wecfl"]]
        plain = [each["accuracy"] for each in table.summaries["fedavg"]]
        assert rows["wecfl"]["accuracy"] == pytest.approx(np.mean(scores))
        assert rows["wecfl"]["accuracy_std"] == pytest.approx(np.std(scores, ddof=1))
        assert rows["wecfl"]["gain"] == pytest.approx(np.mean(scores) - np.mean(plain))
        assert "gain" not in rows["fedavg"]

    def test_every_form_has_the_same_numbers(self, table):
        rows = table.rows()
        read = list(csv.DictReader(io.StringIO(table.to_csv())))
        assert [float(row["accuracy"]) for row in read] == [row["accuracy"] for row in rows]
        assert json.loads(table.to_json())["rows"] == rows
        latex = table.to_latex()
        assert latex.count(r"\\") == 4
        assert f"{100 * rows[0]['accuracy']:.1f}" in latex
        assert "%" not in latex.replace(r"\%", "").partition(r"\end{tabular}")[0]
        assert "<svg" in table._repr_html_()
        assert str(table).count("wecfl") == 2  # among the scores, and among the verdicts

    def test_the_folder_keeps_the_table(self, table):
        files = {"comparison.csv", "comparison.tex", "comparison.json", "comparison.png", "plan.json"}
        assert {path.name for path in table.folder.iterdir()} == files | {"fedavg", "wecfl", "local"}
        assert (table.folder / "comparison.csv").read_text() == table.to_csv()

    def test_finished_runs_are_read_and_other_data_refused(self, table, clients, monkeypatch):
        monkeypatch.setattr("coterie.api.comparing.simulate", None)
        again = ct.compare(["fedavg", "wecfl"], clients, "mlp(4)", seeds=2, clusters=2, out=table.folder, **FEW)
        assert again.rows() == table.rows()
        other = ct.load("digits").partition("rotation(0,180)", clients=4, seed=9)
        with pytest.raises(RunFolderError, match="was begun on other examples"):
            ct.compare(["fedavg", "wecfl"], other, "mlp(4)", seeds=2, clusters=2, out=table.folder, **FEW)

    def test_the_command_line_and_python_read_each_others_comparisons(self, tmp_path, monkeypatch):
        def draw(seed):
            return ct.load("digits").partition("rotation(0,180)", clients=4, seed=seed)

        words = ["compare", "fedavg", "wecfl", "--partition", "rotation(0,180)", "--clients", "4", "--clusters", "2"]
        words += ["--model", "mlp(4)", "--rounds", "2", "--steps", "2", "--batch", "8", "--seeds", "1..2", "--quiet"]
        done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "line"), "--json"])
        assert done.exit_code == 0, done.stderr
        given = {"seeds": "1..2", "clusters": 2, **FEW}
        mine = ct.compare(["fedavg", "wecfl"], draw, "mlp(4)", out=tmp_path / "python", **given)
        theirs = ct.compare(["fedavg", "wecfl"], draw, "mlp(4)", out=tmp_path / "line", **given)
        for name, key in (("wecfl", "accuracy"), ("local", "macro_f1")):
            assert [s[key] for s in mine.summaries[name]] == [s[key] for s in theirs.summaries[name]]
        monkeypatch.setattr("coterie.experiments.sweep.run_settings", None)
        again = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "python"), "--json"])
        assert again.exit_code == 0, again.stderr

    def test_values_and_texts_stand_side_by_side(self, clients):
        value = ct.wecfl(clusters=2, fit=ct.Fit(steps=2, batch=8)) + ct.finetune(steps=1)
        found = ct.compare(["fedavg", value], clients, "mlp(4)", seeds=[7], local=False, **FEW)
        assert list(found.summaries) == ["fedavg", "wecfl(clusters=2)+finetune(steps=1)"]
        assert "p" not in str(found).splitlines()[1].split()[:3]

    @pytest.mark.parametrize(
        ("algorithms", "seeds", "problem"),
        [
            ("fedavg", 2, "algorithms is a single one; give a list"),
            (["fedavg", "fedavg"], 2, "fedavg is listed twice"),
            (["fedavg"], "1..", "seeds are '1..'"),
            (["fedavg"], 0, "seeds are '1..0'"),
        ],
    )
    def test_what_is_wrong_is_said(self, algorithms, seeds, problem, clients):
        with pytest.raises(UsageError, match=re.escape(problem)):
            ct.compare(algorithms, clients, seeds=seeds)

    def test_seeds_are_a_number_a_list_or_a_text(self):
        assert (seeds_of(3), seeds_of([4, 9]), seeds_of("2..3")) == ([1, 2, 3], [4, 9], [2, 3])

    def test_pandas_gets_the_rows(self, table):
        pandas = pytest.importorskip("pandas")
        frame = table.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame.loc["wecfl", "accuracy"] == table.rows()[1]["accuracy"]


class TestTune:
    def test_the_best_is_by_validation_data_alone(self, clients, tmp_path):
        over = {"lr": [1e-5, 0.1], "strength": [0.1]}
        best = ct.tune("fedprox", clients, "mlp(8)", over=over, rounds=3, out=tmp_path)
        assert best.best == {"lr": 0.1, "strength": 0.1}
        assert len(best.results) == 2
        assert "Tuned(fedprox(strength=0.1): best lr=0.1" in repr(best)
        done = best.run(rounds=4)
        assert (done.settings.lr, done.summary["algorithm"], done.summary["rounds"]) == (
            0.1,
            "fedprox(strength=0.1)",
            4,
        )
        assert done.data.validation is None

    def test_random_tries_of_an_interval(self, clients):
        found = ct.tune("fedavg", clients, "mlp(4)", over={"lr": "0.01..0.1"}, tries=2, rounds=1)
        assert len(found.results) == 2
        with pytest.raises(UsageError, match="ranges over an interval"):
            ct.tune("fedavg", clients, "mlp(4)", over={"lr": "0.01..0.1"}, rounds=1)
        with pytest.raises(UnknownName, match="strenght"):
            ct.tune("fedprox", clients, "mlp(4)", over={"strenght": [1]}, rounds=1)
