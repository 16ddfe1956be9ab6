"""Newcomers: a client finds the cluster of its group by the rule of each method; a misfit is warned of."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.data import Split
from coterie.data.apportion import stratified_split
from coterie.engine.metrics import find_metric
from coterie.errors import DataError, RunFolderError
from coterie.experiments.main_score import main_score
from coterie.experiments.placement import load_trained, member_scores, misfit_warning, read_newcomer
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key, generator
from coterie.server.assign import Clustered, nearest_centre
from coterie.server.contract import Scores, least_loss
from coterie.server.one_shot import Formed, OneShot
from coterie.server.placement import nearest_update
from coterie.server.start import first_state

METHODS = ("ifca", "wecfl", "fesem(layer=all)", "joint(strength=0)", "ifca+cam", "wecfl+cam")


@cache
def rotated():
    """Twenty-eight clients of four groups; one of each group, and later one more, is kept back."""
    whole = ct.load("digits").partition("rotation(0,90,180,270)", clients=28, seed=1)
    late = [int(np.flatnonzero(whole.groups == group)[place]) for group in range(4) for place in (0, 1)]
    return whole, whole.select([i for i in range(28) if i not in late]), late


@cache
def trained(text):
    _, early, _ = rotated()
    length = 40 if text.startswith("joint") else 8
    return ct.run(
        ct.build_algorithm(text, 4), early, model="mlp(32)", rounds=length, seed=3, eval_every=length, threads=1
    )


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


class TestWhereTheyGo:
    @pytest.mark.parametrize("text", METHODS)
    def test_a_newcomer_finds_the_cluster_of_its_group(self, text):
        whole, early, late = rotated()
        run = trained(text)
        assert run.summary["ari"] == 1.0
        for client in late:
            found = run.assign(*whole.train.of(client))
            assert found.cluster == run.labels[early.groups == whole.groups[client]][0]
            assert found.cluster == int(np.argmax(found.scores))
            assert len(found.scores) == 4
            assert found.warning is None
            assert found.served > 0.6

    @pytest.mark.parametrize("text", ["ifca", "wecfl"])
    def test_one_that_names_everything_differently_fits_nowhere(self, text):
        whole, _, late = rotated()
        x, y = whole.train.of(late[0])
        found = trained(text).assign(x, (y + 5) % 10)
        assert found.served < 0.2
        assert found.warning.startswith(f"no cluster fits: the best, {found.cluster}, serves it with accuracy")

    def test_it_is_the_same_every_time(self):
        whole, _, late = rotated()
        one, other = (trained("wecfl").assign(*whole.train.of(late[3])) for _ in range(2))
        assert one == other

    def test_where_there_is_one_model_for_all_there_is_no_question(self):
        whole, _, late = rotated()
        assert trained("fedavg").assign(*whole.train.of(late[3])).cluster == 0

    def test_examples_of_another_shape_or_kind_are_refused(self):
        whole, _, late = rotated()
        x, y = whole.train.of(late[0])
        for bad, problem in (
            ((x[:, :, :4], y), "x has shape"),
            ((x, y[1:]), "x has shape"),
            ((x, y / 2), "y holds float"),
        ):
            with pytest.raises(DataError, match=problem):
                trained("ifca").assign(*bad)
        with pytest.raises(DataError, match=r"label out of range in train row 0; labels must be 0\.\.9"):
            trained("ifca").assign(x, y + 10)


def accuracy(outputs, y):
    return float((outputs.argmax(1).numpy() == y).mean())


def outputs_of(run, stack, row, x):
    """Return what the run's network gives with the parameters of one row."""
    with torch.no_grad():
        return run.model.with_row(stack.params[row], stack.buffers[row])(torch.from_numpy(x))


class TestServing:
    """A newcomer is served as the clients of the run are: the same model, fine-tuned or mixed in the same way."""

    @pytest.fixture
    def examples(self):
        whole, _, late = rotated()
        return whole.train.of(late[5])

    def test_a_plain_method_serves_the_cluster_s_model_and_tests_it_on_all_examples(self, examples):
        run, (x, y) = trained("wecfl"), examples
        found = run.assign(x, y)
        assert found.served == pytest.approx(accuracy(outputs_of(run, run.state.stack, found.cluster, x), y))

    def test_fine_tuning_is_on_four_fifths_of_the_examples_and_the_test_on_the_others(self, examples):
        run, (x, y) = trained("wecfl+finetune"), examples
        found = run.assign(x, y)
        keep, aside = stratified_split(y, 0.2, generator(3, "newcomer"))
        assert len(aside) == round(0.2 * len(y))
        train, test = (Split(x[rows], y[rows], np.array([0, len(rows)])) for rows in (keep, aside))
        alone = Simulator(ct.Federated("d", "natural", ("newcomer",), train, test, 10), run.model, threads=1)
        task, key = Task(fit=run.algorithm.serve.fit), Key(3, run.state.round)
        tuned = alone.ask(task, Sent(run.state.stack), np.array([found.cluster]), np.array([0]), key).models()
        assert found.served == pytest.approx(accuracy(outputs_of(run, tuned, 0, test.x), test.y))
        assert not np.array_equal(tuned.params[0], run.state.stack.params[found.cluster])

    def test_a_single_example_is_both_trained_and_tested_on(self, examples):
        x, y = examples
        assert trained("wecfl+finetune").assign(x[:1], y[:1]).served in (0.0, 1.0)

    @pytest.mark.parametrize("text", ["vote(fedavg,wecfl)", "fedavg-ensemble(members=2,by=logits)"])
    def test_an_ensemble_places_it_by_every_member_and_serves_the_sum_of_their_logits(self, examples, text):
        """Both members separate the groups or have one model, so each serves the model of the newcomer's own group."""
        run, (x, y) = trained(text), examples
        whole, early, late = rotated()
        group = early.groups == whole.groups[late[5]]
        members = [(each.stack, each.labels[group][0]) for each in (run.state, *run.state.members)]
        logits = [outputs_of(run, stack, cluster, x) for stack, cluster in members]
        found = run.assign(x, y)
        assert (len(logits), found.cluster) == (2, members[0][1])
        assert found.served == pytest.approx(accuracy(sum(logits), y))
        assert found.served not in [pytest.approx(accuracy(each, y)) for each in logits]


class TestRules:
    def state(self, weights, memory=None):
        params = np.array([[w, 0.0] for w in weights])
        state = first_state(Stack(params, np.zeros((len(weights), 0))), np.zeros(1, int))
        return replace(state, memory=memory)

    def test_least_loss_is_the_loss_of_each_model(self, lines, simulator):
        """(w - slope)^2 of the weights 1, -1 and 4 for a slope of 2."""
        ask = asker(simulator(lines((2.0,), (3,)), "linear", threads=1))
        scores = least_loss(self.state([1.0, -1.0, 4.0]), ask, np.array([0]))
        np.testing.assert_allclose(scores.values, [[-1.0, -9.0, -4.0]], atol=1e-12)

    def test_for_the_least_loss_no_parameters_leave_the_newcomer(self, lines, simulator):
        ask, asked = asker(simulator(lines((2.0,), (3,)), "linear", threads=1)), []

        def listen(task, *rest):
            asked.append(task)
            return ask(task, *rest)

        least_loss(self.state([1.0, -1.0]), listen, np.array([0]))
        assert asked == [Task(report=Report(params=None, losses=True))]

    def test_the_nearest_centre_is_found_from_the_middle_of_the_models(self, lines, simulator):
        """From 0, the middle of -3, 0 and 3 whatever their shares, a step of pull 0.5 to a slope of 2 ends at 1."""
        ask, fit = (
            asker(simulator(lines((2.0,), (3,)), "linear", threads=1)),
            ct.Fit(steps=1, batch=100, lr=0.25, momentum=0.0),
        )
        state = self.state([-3.0, 0.0, 3.0], Clustered(np.array([[-3.0], [0.4], [1.5]]), 1))
        state = replace(state, shares=np.array([0.8, 0.1, 0.1]))
        scores = nearest_centre("head_weight", fit)(state, ask, np.array([0]))
        np.testing.assert_allclose(scores.values, [[-4.0, -0.6, -0.5]], atol=1e-12)

    @pytest.mark.parametrize("text", ["wecfl", "fesem"])
    def test_methods_that_cluster_parameters_place_by_them_and_not_by_the_loss(self, text, lines, simulator):
        """A slope of 2 is best served by the weight 3, but after one step from 0 it is nearest to the centre 0.4."""
        ask = asker(simulator(lines((2.0,), (3,)), "linear", threads=1))
        state = self.state([-3.0, 0.0, 3.0], Clustered(np.array([[-3.0], [0.4], [3.0]]), 1))
        place = ct.build_algorithm(text, 3, ct.Fit(steps=1, batch=100, lr=0.25, momentum=0.0)).place
        assert place(state, ask, np.array([0])).clusters == [1]
        assert least_loss(state, ask, np.array([0])).clusters == [2]

    def test_the_nearest_update_is_from_the_model_that_was_sent(self, lines, simulator):
        """A step of pull 0.5 from weight 2.5 and bias 1: the slope 2 moves by (-0.25, -0.5), the clusters did by
        (-0.75, -0.5) and (0.75, -0.5). The models themselves, not their movements, would give the other cluster."""
        ask, fit = (
            asker(simulator(lines((2.0,), (3,)), "linear", threads=1)),
            ct.Fit(steps=1, batch=100, lr=0.25, momentum=0.0),
        )
        sent, means, none = np.array([[2.5, 1.0]]), np.array([[1.75, 0.5], [3.25, 0.5]]), np.zeros((2, 0))
        memory = OneShot(formed=Formed(Stack(sent, none[:1]), Stack(means, none), None))
        scores = nearest_update(fit)(self.state([0.0, 9.0], memory), ask, np.array([0])).values
        lengths = np.hypot(0.25, 0.5) * np.hypot(0.75, 0.5)
        np.testing.assert_allclose(scores, [[0.4375 / lengths, 0.0625 / lengths]], atol=1e-12)

    def test_without_centres_it_is_the_least_loss(self, lines, simulator):
        ask, state = asker(simulator(lines((2.0,), (3,)), "linear", threads=1)), self.state([1.0, -1.0])
        found = nearest_centre("head_weight", ct.Fit())(state, ask, np.array([0]))
        np.testing.assert_allclose(found.values, least_loss(state, ask, np.array([0])).values)

    @pytest.mark.parametrize(
        ("place", "memory"),
        [
            (least_loss, None),
            (nearest_centre("all", ct.Fit()), Clustered(np.zeros((2, 2)), 1)),
            (nearest_update(ct.Fit()), None),
        ],
    )
    def test_one_that_does_not_answer_has_no_scores(self, place, memory, lines, simulator, flaky):
        silent = flaky(simulator(lines((2.0, 1.0), (3, 3)), "linear", threads=1), {0: [1]})
        state = self.state([1.0, 2.0], memory)
        assert place(state, asker(silent), np.array([0, 1])).clients.tolist() == [0]
        assert place(state, asker(silent), np.array([1])).clusters.tolist() == []

    def test_a_model_that_has_diverged_places_nobody(self):
        assert Scores(np.arange(2), np.array([[np.nan, -9.0], [-np.inf, -1.0]])).clusters.tolist() == [1, 1]

    def test_members_are_those_of_the_cluster_or_where_they_are_few_everyone(self):
        rows = [{"cluster": str(int(i > 4)), "accuracy": str(i / 10), "rmse": str(i / 10)} for i in range(7)]
        assert member_scores(rows, 0, main_score(False)) == [0.0, 0.1, 0.2, 0.3, 0.4]
        assert member_scores(rows, 1, main_score(True)) == [0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
        assert member_scores([*rows, {"cluster": "0", "accuracy": ""}], 0, main_score(False)) == [
            0.0,
            0.1,
            0.2,
            0.3,
            0.4,
        ]

    @pytest.mark.parametrize(
        ("score", "served", "members", "fits"),
        [
            (main_score(False), 0.71, [0.8, 0.9], True),
            (main_score(False), 0.69, [0.8, 0.9], False),
            (main_score(False), 1.0, [0.8, 0.8], True),
            (main_score(True), 3.9, [3.0, 2.0], True),
            (main_score(True), 4.1, [3.0, 2.0], False),
            (main_score(True), 0.1, [3.0, 2.9], True),
            (main_score(False, "log_loss"), 3.9, [3.0, 2.0], True),
            (main_score(False, "log_loss"), 4.1, [3.0, 2.0], False),
            (main_score(False, "auroc"), 0.69, [0.8, 0.9], False),
        ],
    )
    def test_far_outside_is_below_the_worst_by_more_than_worst_and_best_are_apart(self, score, served, members, fits):
        assert (misfit_warning(1, score, served, members) is None) == fits


def asker(federation):
    return lambda task, stack, labels, clients: federation.ask(task, Sent(stack), labels, clients, Key(1, 0))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestOnTheCommandLine:
    def test_arrays_are_placed_by_the_folder_alone_as_by_the_run(self, here):
        whole, early, late = rotated()
        run = ct.run(ct.wecfl(4), early, model="mlp(16)", rounds=3, seed=2, out=here / "r", threads=1)
        x, y = whole.train.of(late[5])
        np.savez("late.npz", x=x, y=y)
        result = call("assign", "r", "--data", "late.npz", "--json")
        assert result.exit_code == 0, result.output
        found, wanted = json.loads(result.stdout), run.assign(x, y)
        assert found["cluster"] == wanted.cluster
        assert found["scores"] == pytest.approx(wanted.scores, abs=1e-6)
        assert found["served"] == pytest.approx(wanted.served)
        shown = call("assign", "r", "--data", "late.npz").output
        assert f"cluster {wanted.cluster} serves it with accuracy" in shown
        np.savez("odd.npz", x=x, y=(y + 5) % 10)
        assert "warning: no cluster fits" in call("assign", "r", "--data", "odd.npz").output

    def test_a_folder_knows_the_two_halves_of_cam(self, here):
        _, early, _ = rotated()
        x, y = early.train.of(0)
        run = ct.run(ct.build_algorithm("ifca+cam", 2), early, model="mlp(4)", rounds=1, out=here / "r", threads=1)
        assert load_trained(here / "r").assign(x, y) == run.assign(x, y)

    def test_an_error_is_in_the_units_of_the_target(self, here, lines):
        """The model is a weight of 3 for slopes of 2, with no bias: off by 1 on inputs of 1, in units of 10."""
        params = np.array([[3.0, 0.0]], np.float32)
        state = first_state(Stack(params, np.zeros((1, 0), np.float32)), np.zeros(1, int))
        data = replace(lines((2.0,), (3,)), unit=10.0)
        run = ct.run(ct.fedavg(ct.Fit(lr=1e-9)), data, model="linear", rounds=1, threads=1)
        found = replace(run.results.trained, state=state).assign(*data.train.of(0))
        assert (found.measure, found.served) == ("rmse", pytest.approx(10.0))

    @pytest.mark.parametrize(("label", "other"), [("ill", "cost"), ("cost", "ill")])
    def test_a_table_is_read_by_the_schema_of_the_run(self, here, label, other):
        rng = np.random.default_rng(0)
        frame = pl.DataFrame(
            {"age": rng.normal(50, 10, 200), "dose": rng.uniform(0, 1, 200), "site": np.arange(200) % 5}
        )
        frame = frame.with_columns(cost=100 * frame["dose"] + rng.normal(0, 1, 200), ill=frame["dose"] > 0.5)
        frame.write_csv("visits.csv")
        frame[:40].drop("site", other).write_csv("late.csv")
        done = call("run", "ifca", "--data", "visits.csv", "--client", "site", "--label", label, "--ignore", other,
                    "--clusters", "2", "--rounds", "2", "--quiet", "--out", "r")  # fmt: skip
        assert done.exit_code == 0, done.output
        result = call("assign", "r", "--data", "late.csv", "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["measure"] == ("accuracy" if label == "ill" else "rmse")
        low, high = sorted(found["members"])
        assert found["warning"] is None
        assert 0.3 * low <= found["served"] <= 3 * high

    def visits(self, metric, *more):
        """A run on the visits of five sites, judged by a metric."""
        rng = np.random.default_rng(0)
        dose, site = rng.uniform(0, 1, 400), np.repeat(["bern", "chur", "thun", "wil", "zug"], 80)
        frame = pl.DataFrame({"age": rng.normal(50, 10, 400), "dose": dose, "site": site, "ill": dose > 0.9})
        frame.write_csv("visits.csv")
        done = call("run", "ifca", "--data", "visits.csv", "--client", "site", "--label", "ill", "--clusters", "2",
                    "--rounds", "2", "--metric", metric, "--quiet", "--out", "r", *more)  # fmt: skip
        assert done.exit_code == 0, done.output
        return frame

    @pytest.mark.parametrize("metric", ["auroc", "log_loss"])
    def test_it_is_judged_by_the_metric_of_the_run(self, here, metric):
        frame = self.visits(metric)
        frame.filter(pl.col("site") == "thun").write_csv("late.csv")
        found = json.loads(call("assign", "r", "--data", "late.csv", "--json").stdout)
        rows = pl.read_csv("r/clients.csv")
        newcomer = read_newcomer(here / "late.csv", here / "r")
        outputs = (
            load_trained(here / "r").network(newcomer.x, newcomer.y)(torch.from_numpy(newcomer.x)).detach().numpy()
        )
        known, named = find_metric(metric)
        assert found["measure"] == metric
        assert found["served"] == pytest.approx(known.of(outputs, newcomer.y, named))
        worst, best = found["members"]
        assert (worst > best) == (metric == "log_loss")
        assert sorted((worst, best)) == pytest.approx([rows["metric"].min(), rows["metric"].max()])
        shown = call("assign", "r", "--data", "late.csv").output
        assert f"serves it with {metric}" in shown
        assert "score: how near the cluster is" in shown

    def test_a_metric_without_a_value_is_said_to_have_none(self, here):
        self.visits("auroc").filter(pl.col("ill").not_())[:50].write_csv("late.csv")
        shown = call("assign", "r", "--data", "late.csv").output
        assert "auroc has no value for its examples" in shown
        assert "warning" not in shown

    def test_several_clients_of_a_table_are_one_newcomer_with_a_note(self, here):
        frame = self.visits("auroc")
        whole = call("assign", "r", "--data", "visits.csv")
        assert "5 values in the column of clients, 'site': 'bern', 'chur', 'thun', 'wil', 'zug'" in whole.stderr
        assert "--client NAME takes the rows of one" in whole.stderr
        frame.filter(pl.col("site") == "thun").write_csv("late.csv")
        alone = call("assign", "r", "--data", "late.csv", "--json")
        assert alone.stderr == ""
        named = call("assign", "r", "--data", "visits.csv", "--client", "thun", "--json")
        assert (named.stdout, named.stderr) == (alone.stdout, "")
        wrong = call("assign", "r", "--data", "visits.csv", "--client", "thunn")
        assert "unknown client 'thunn'; did you mean 'thun'?" in wrong.output

    @pytest.mark.parametrize(
        "words", [["assign", "--data", "x.npz"], ["predict", "--data", "x.npz"], ["export", "--all"], ["show"]]
    )
    def test_a_run_that_is_not_finished_is_to_be_resumed_and_one_of_several_to_be_named(self, words, here):
        early = rotated()[1]
        ct.compare(["fedavg"], early, "mlp(4)", rounds=1, seeds=7, out=here / "all", local=False, threads=1)
        told = call(words[0], "all", *words[1:])
        assert told.exit_code == 2
        runs = ", ".join(f"all/fedavg/seed-{seed}" for seed in range(1, 6))
        assert f"all holds no finished run but several runs; name one of them: {runs} and 2 more" in told.stderr
        (here / "all" / "fedavg" / "seed-1" / "summary.json").unlink()
        told = call(words[0], "all/fedavg/seed-1", *words[1:])
        resumed = "finish it with run --resume --out all/fedavg/seed-1"
        assert f"seed-1 holds no finished run (summary.json is missing); {resumed}" in told.stderr
        told = call(words[0], "nowhere", *words[1:])
        assert "nowhere holds no finished run (config.toml is missing); name the folder of one" in told.stderr

    def test_without_labels_the_remedy_is_in_words_of_the_command_line_too(self, here):
        whole, early, late = rotated()
        ct.run("wecfl(2)", early, model="mlp(4)", rounds=1, out=here / "r", threads=1)
        np.savez("late.npz", x=whole.train.of(late[0])[0])
        told = call("assign", "r", "--data", "late.npz")
        assert "cannot place a newcomer without labels; give y, or the labels in its file, or train" in told.stderr

    def test_what_is_not_there_is_named(self, here):
        early = rotated()[1]
        with pytest.raises(RunFolderError, match="holds no finished run"):
            load_trained(here / "nowhere")
        ct.run(ct.fedavg(), early, model="mlp(4)", rounds=1, out=here / "r", threads=1)
        assert "there is no file" in call("assign", "r", "--data", "none.npz").output
        (here / "table.csv").write_text("a,b\n1,2\n")
        assert "was not trained on tables" in " ".join(call("assign", "r", "--data", "table.csv").output.split())

    def test_a_run_that_is_read_again_from_its_folder_can_place_too(self, here):
        settings = Settings("ifca", clients=8, clusters=2, rounds=1, model="mlp(4)", threads=1)
        first = run_settings(settings, here / "r")
        again = run_settings(settings, here / "r", resume=True)
        x, y = first.data.train.of(0)
        assert again.trained.assign(x, y) == first.trained.assign(x, y)
