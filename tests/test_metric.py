"""A metric that the user names: one number of each client from outputs and truth, recorded, shown and tuned by."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from sklearn import metrics as reference
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.deploy.audit import task_summary
from coterie.deploy.policy import Policy
from coterie.engine.metrics import METRICS, find_metric
from coterie.errors import Refused, UnknownName, UsageError
from coterie.experiments.main_score import main_score
from coterie.experiments.settings import Settings
from coterie.experiments.summary import add_shown
from coterie.experiments.tuning import score
from coterie.models.zoo import build_model
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.reporting.comparison import columns_of, comparison
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.target import Target
from coterie.testing import Loopback
from coterie.textforms import Call
from coterie.wire.codec import from_json, to_json

OUTSIDE = """
def first(outputs, y, add=0):
    return float(outputs[0, 0]) + add

def at_even(outputs, y):
    return float(len(y)) if len(y) % 2 == 0 else float("nan")

def loss(outputs, y):
    return 1.0
loss.smaller = True

def breaks(outputs, y):
    raise ValueError("no such thing")
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_metrics"


@pytest.fixture
def clients(images):
    return images(sizes=(20, 30, 25, 40))


def of(name, outputs, y):
    found, call = find_metric(name)
    return found.of(outputs, y, call)


class TestCatalogue:
    def test_classes_are_scored_as_scikit_learn_scores_them(self):
        rng = np.random.default_rng(0)
        outputs, y = rng.normal(size=(50, 4)), rng.integers(0, 3, 50)
        said = outputs.argmax(1)
        assert of("accuracy", outputs, y) == pytest.approx(reference.accuracy_score(y, said))
        recalls = [(said[y == label] == label).mean() for label in range(3)]
        assert of("balanced_accuracy", outputs, y) == pytest.approx(np.mean(recalls))
        assert of("macro_f1", outputs, y) == pytest.approx(reference.f1_score(y, said, average="macro"))

    def test_several_labels_are_scored_each(self):
        rng = np.random.default_rng(1)
        outputs, y = rng.normal(size=(50, 4)), rng.integers(0, 2, (50, 4)).astype(np.float32)
        assert of("accuracy", outputs, y) == pytest.approx(1 - reference.hamming_loss(y, outputs > 0))
        assert of("macro_f1", outputs, y) == pytest.approx(reference.f1_score(y, outputs > 0, average="macro"))

    @pytest.mark.parametrize("shape", [(50,), (50, 3)])
    def test_numbers_are_scored_as_scikit_learn_scores_them(self, shape):
        rng = np.random.default_rng(2)
        outputs, y = rng.normal(size=(50, shape[1] if len(shape) > 1 else 1)), rng.normal(size=shape)
        said = outputs.reshape(shape)
        assert of("mae", outputs, y) == pytest.approx(reference.mean_absolute_error(y, said))
        assert of("rmse", outputs, y) == pytest.approx(math.sqrt(reference.mean_squared_error(y, said)))
        explained = reference.r2_score(y, said, multioutput="variance_weighted")
        assert of("r2", outputs, y) == pytest.approx(explained)

    def test_what_is_not_defined_is_infinite(self):
        assert of("r2", np.ones((3, 1)), np.ones(3)) == math.inf

    def test_each_is_refused_on_data_that_it_is_not_for(self):
        for name in ("accuracy", "macro_f1", "balanced_accuracy", "auroc", "log_loss"):
            with pytest.raises(UsageError, match="the data have a real target; take rmse or mae or r2"):
                METRICS[name].check(Target())
        with pytest.raises(UsageError, match="the data have 3 labels; take accuracy or macro_f1 or auroc or"):
            METRICS["balanced_accuracy"].check(Target(2, 3))
        with pytest.raises(UsageError, match="the data have 3 classes"):
            METRICS["mae"].check(Target(3))

    def test_unknown_names_and_arguments_are_refused(self):
        with pytest.raises(UnknownName, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
            Settings("fedavg", metric="acuracy")
        with pytest.raises(UsageError, match=r"accuracy\(2\): too many positional arguments; `coterie list accuracy`"):
            find_metric("accuracy(2)")
        with pytest.raises(UsageError, match="average is all; classes count by macro"):
            Settings("fedavg", metric="auroc(average=all)")
        for bins, what in (("0", "takes 1 to 1000"), ("1001", "takes 1 to 1000"), ("1.5", "must be a whole number")):
            with pytest.raises(UsageError, match=f"bins is {bins}; .*{what}"):
                find_metric(f"calibration_error(bins={bins})")

    def test_arguments_may_come_by_position(self):
        outputs, y = np.log([[0.3, 0.7], [0.6, 0.4], [0.1, 0.9]]), np.array([1, 1, 0])
        found = [find_metric(f"calibration_error({said})") for said in ("10", "bins=10", "1")]
        by_place, by_name, other = (metric.of(outputs, y, call) for metric, call in found)
        assert by_place == by_name != other

    @pytest.mark.parametrize("name", [name for name, each in METRICS.items() if each.needs != "numbers"])
    def test_a_model_that_diverged_has_a_bad_score_or_none_and_does_not_stop_the_run(self, name):
        y = np.array([0, 1, 2, 0])
        outputs = np.where(np.arange(4)[:, None] < 2, np.eye(3)[y], np.nan)
        found = METRICS[name].of(outputs, y, Call(name))
        assert found == np.inf or METRICS[name].low <= found <= METRICS[name].high
        if name in ("calibration_error", "brier", "log_loss", "auroc", "average_precision"):
            assert found == np.inf, "probabilities that are no numbers have no score"

    def test_every_one_says_what_it_is(self):
        for name, each in METRICS.items():
            assert each.low < each.high, name
            assert each.meaning.startswith("Return the "), name
            assert each.better == ("lower" if each.smaller else "higher")
        shown = CliRunner().invoke(app, ["list", "metrics"], env={"COLUMNS": "80"})
        assert shown.exit_code == 0
        assert [
            " ".join(line.split()[1:5]) for line in shown.stdout.splitlines() if line.startswith(("r2", "brier"))
        ] == [
            "lower 0 to 2",
            "higher -inf to 1",
        ]
        assert "range: 0 to inf, in the target's unit" in CliRunner().invoke(app, ["list", "mae"]).stdout


class TestRuns:
    def test_it_is_recorded_for_rounds_clients_and_the_summary(self, clients, tmp_path):
        run = ct.run("wecfl(clusters=2)", clients, rounds=3, metric="balanced_accuracy", out=tmp_path / "run")
        by_hand = []
        for i in range(len(clients)):
            x, y = clients.test.of(i)
            right = run.predict(x, i).astype(int) == y
            by_hand.append(np.mean([right[y == label].mean() for label in np.unique(y)]))
        weights = clients.test.sizes
        assert run.summary["metric"] == pytest.approx(np.average(by_hand, weights=weights))
        assert run.history[-1]["metric"] == run.summary["metric"]
        assert run.summary["metric_name"] == "balanced_accuracy"
        with (tmp_path / "run" / "clients.csv").open() as file:
            assert [float(row["metric"]) for row in csv.DictReader(file)] == pytest.approx(by_hand)
        again = ct.run("wecfl(clusters=2)", clients, rounds=3, metric="balanced_accuracy", weigh_by="train")
        assert again.summary["metric"] == pytest.approx(np.average(by_hand, weights=clients.train.sizes))

    def test_a_run_says_for_how_many_clients_it_is_defined(self, images):
        clients = images(sizes=(20, 30, 25))
        single = replace(
            clients.test, y=np.where(np.arange(len(clients.test.y)) < clients.test.offsets[1], 0, clients.test.y)
        )
        run = ct.run("fedavg", replace(clients, test=single), rounds=2, metric="auroc")
        assert run.summary["metric_clients"] == run.history[-1]["metric_clients"] == 2
        shown = comparison({"fedavg": [add_shown(run.summary, run.history, None)]}, Console(width=200))
        told = "auroc: 1 of 3 clients have no value (all their examples are of one class); they do not count."
        assert told in str(shown.caption)
        everywhere = ct.run("fedavg", clients, rounds=2, metric="auroc")
        shown = comparison({"fedavg": [add_shown(everywhere.summary, everywhere.history, None)]}, Console(width=200))
        assert "no value" not in str(shown.caption)

    def test_the_other_numbers_are_those_of_a_run_without_it(self, clients):
        with_it, without = (ct.run("ifca(clusters=2)", clients, rounds=2, metric=name) for name in ("accuracy", None))
        assert np.array_equal(with_it.state.stack.params, without.state.stack.params)
        assert with_it.summary["metric"] == pytest.approx(without.summary["accuracy"])
        assert "metric" not in without.summary
        assert "metric" not in without.history[-1]
        same = ("bytes_down", "bytes_up", "accuracy", "macro_f1", "worst_client")
        assert {k: with_it.summary[k] for k in same} == {k: without.summary[k] for k in same}

    def test_a_function_of_the_user_has_arguments_and_may_be_undefined_at_some_clients(
        self, clients, package, tmp_path
    ):
        plain, more = (ct.run("fedavg", clients, rounds=1, metric=f"{package}:first{a}") for a in ("", "(add=2)"))
        assert more.summary["metric"] == pytest.approx(plain.summary["metric"] + 2)
        run = ct.run("fedavg", clients, rounds=1, metric=f"{package}:at_even", out=tmp_path / "run")
        even = clients.test.sizes[clients.test.sizes % 2 == 0]
        expected = float(np.average(even, weights=even)) if len(even) else None
        assert run.summary["metric"] == (expected if expected is None else pytest.approx(expected))
        with (tmp_path / "run" / "clients.csv").open() as file:
            written = [row["metric"] for row in csv.DictReader(file)]
        assert [bool(each) for each in written] == (clients.test.sizes % 2 == 0).tolist()

    def test_one_that_fails_ends_the_run_in_one_line(self, clients, package):
        with pytest.raises(UsageError, match=r"metric own_metrics:breaks failed: ValueError: no such thing") as caught:
            ct.run("fedavg", clients, rounds=1, metric=f"{package}:breaks")
        assert "\n" not in str(caught.value)
        with pytest.raises(UsageError, match="has no function 'nothing' for metric"):
            ct.run("fedavg", clients, rounds=1, metric=f"{package}:nothing")

    def test_python_gives_a_function_itself_if_it_has_a_name(self, clients, package):
        import own_metrics

        run = ct.run("fedavg", clients, rounds=1, metric=own_metrics.first)
        assert run.settings.metric == "own_metrics:first"
        assert (
            run.summary["metric"] == ct.run("fedavg", clients, rounds=1, metric="own_metrics:first").summary["metric"]
        )
        with pytest.raises(UsageError, match="has no name in a module; define it with def at the top of one"):
            ct.run("fedavg", clients, rounds=1, metric=lambda outputs, y: 1.0)

    def test_errors_are_in_the_users_unit(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=60)
        frame = pl.DataFrame({"site": ["a", "b"] * 30, "x": x, "price": 1000 + 50 * x + rng.normal(size=60)})
        data = ct.from_frame(frame, client="site", label="price", task="regression")
        rmse, mae = (ct.run("fedavg", data, "linear", rounds=3, metric=name).summary for name in ("rmse", "mae"))
        assert mae["metric"] > 0.5
        one = ct.run("fedavg", data.select([0]), "linear", rounds=3, metric="rmse").summary
        assert one["metric"] == pytest.approx(one["rmse"])
        assert rmse["metric"] <= rmse["rmse"] + 1e-9  # a mean of roots, below the root of the mean

    def test_a_mixture_of_models_is_scored_as_one(self, clients):
        run = ct.run("fedavg-ensemble(members=2)", clients, rounds=2, metric="accuracy")
        assert run.summary["metric"] == pytest.approx(run.summary["accuracy"])

    def test_tables_show_it_and_tuning_ranks_by_it(self, clients, package):
        worst, column, *_ = columns_of(main_score(False, f"{package}:loss"), False)
        assert (worst.title, worst.best) == ("worst loss", "min")
        assert (column.title, column.best) == ("loss", "min")
        assert score({"metric_name": f"{package}:loss", "validation_metric": 0.3}) == -0.3
        assert score({"metric_name": "macro_f1", "validation_metric": 0.3, "validation_accuracy": 0.9}) == 0.3
        assert score({"metric_name": "macro_f1", "validation_metric": None}) == -math.inf
        tuned = ct.tune("fedavg", clients, over={"lr": [0.001, 0.1]}, rounds=2, metric="macro_f1")
        assert "validation macro_f1" in str(tuned)


class TestFederation:
    def task(self, metric):
        return Task(report=Report(params=None, evaluate_on="test", metric=metric))

    def test_it_travels_and_comes_back(self, clients, package):
        task = self.task(f"{package}:first(add=2)")
        assert from_json(to_json(task)) == task
        model = build_model("linear", clients.shape, clients.classes)
        stack, everyone = Stack(*(each[None] for each in model.initial(1))), np.arange(len(clients))
        found = [
            federation.ask(task, Sent(stack), np.zeros(len(clients), int), everyone, Key(1, 0))
            for federation in (Simulator(clients, model, threads=1), Loopback(clients, model))
        ]
        np.testing.assert_allclose(found[0].metric, found[1].metric, atol=1e-6)
        assert found[0].metrics.shape == (4, 4)

    def test_a_site_computes_a_function_only_if_its_policy_lists_it_to_the_letter(self):
        check = {"models": 1, "served": 1, "sizes": {"train": 50, "test": 50}}
        Policy().check_task(self.task("balanced_accuracy"), **check)
        for functions in ((), ("own_metrics:first",), ("own_metrics:first(add=3)",)):
            with pytest.raises(Refused, match=r"the metric is 'own_metrics:first\(add=2\)'; this site allows"):
                Policy(functions=functions).check_task(self.task("own_metrics:first(add=2)"), **check)
        Policy(functions=("own_metrics:first(add=2)",)).check_task(self.task("own_metrics:first(add=2)"), **check)

    def test_a_site_logs_it(self):
        assert "the metric mae" in task_summary(self.task("mae"))

    def test_a_report_without_metrics_has_none(self):
        with pytest.raises(UsageError, match=r"report\.metric is mae; it must be None without evaluate_on"):
            Report(metric="mae")
        assert replace(Report(evaluate_on="test"), metric="mae").metric == "mae"
