"""Which clients certainly differ: the theorem of lcfl on halves that no model has seen, and what a run keeps."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import advised, build_algorithm
from coterie.cli.main import app
from coterie.data.federated import Federated, Split
from coterie.deploy.audit import task_summary
from coterie.deploy.policy import Policy
from coterie.errors import Refused, UsageError
from coterie.models.zoo import build_model
from coterie.protocol.report import Report, Sample
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server import one_shot as formed
from coterie.server.distances.separation import certain_differences, differ, findings
from coterie.server.distances.vectors import cross_losses
from coterie.server.exchange import Meter
from coterie.server.start import BEGINNING
from coterie.testing import Loopback

KEY = Key(1, BEGINNING)
LONG = Fit(steps=60, batch=32, lr=0.1)


def half_losses(sim, stack, half, bounded=None):
    task = Task(report=Report(params=None, losses=True, half=half, bounded=bounded))
    return Meter(sim, KEY).ask(task, stack, np.zeros(len(sim.names), dtype=np.int64), np.arange(len(sim.names)))


def opinion_of(sim, fit=LONG, loss="zero-one"):
    return certain_differences(loss, fit)(sim, KEY, Meter(sim, KEY).ask)


class TestHalves:
    def test_the_losses_of_a_half_are_those_of_its_examples_as_training_divides_them(self, targets, simulator):
        """Odd and even sizes; the first half is the larger. Squared errors written out from the drawn order."""
        data = targets((3, 7, 8, 1))
        sim = simulator(data, "linear", threads=1)
        weights = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
        found = [half_losses(sim, Stack(weights, np.zeros((2, 0), np.float32)), half).losses for half in (0, 1)]
        for i, name in enumerate(data.names):
            x, y = data.train.of(i)
            order = KEY.generator(name, "halves").permutation(len(y))
            parts = order[: (len(y) + 1) // 2], order[(len(y) + 1) // 2 :] if len(y) > 1 else order
            for half, part in enumerate(parts):
                wanted = [np.mean((x[part] @ w[:5] + w[5] - y[part]) ** 2) for w in weights]
                np.testing.assert_allclose(found[half][i], wanted, rtol=1e-4)

    def test_a_pass_on_one_half_has_not_seen_the_other(self, simulator, images):
        """Labels are coins: what is learnt by heart on the one half is of no use on the other."""
        sim = simulator(coins(1, 40), "mlp(64)", threads=1)
        start = Stack(*(part[None] for part in sim.model.initial(1)))
        task, zero = Task(fit=(Fit(steps=300, lr=0.1, half=0),)), np.array([0])
        made = Meter(sim, KEY).ask(task, start, zero, zero).models()
        own, other = (half_losses(sim, made, half, "zero-one").losses[0, 0] for half in (0, 1))
        assert own == 0
        assert other > 0.2

    def test_their_cost_is_that_of_the_examples_seen(self, images, simulator):
        sim = simulator(images((5, 8)), threads=1)
        stack = Stack(*(np.repeat(part[None], 3, 0) for part in sim.model.initial(1)))
        assert [half_losses(sim, stack, half).cost.evaluations for half in (0, 1)] == [3 * (3 + 4), 3 * (2 + 4)]

    def test_a_site_refuses_a_half_of_too_few_and_writes_down_what_was_asked(self):
        task = Task(report=Report(None, losses=True, half=1, bounded="zero-one"))
        Policy().check_task(task, models=1, served=1, sizes={"train": 20})
        with pytest.raises(Refused, match="the losses of a half would rest on 9 examples"):
            Policy().check_task(task, models=1, served=1, sizes={"train": 19})
        assert task_summary(task) == "report zero-one losses on half 1"

    def test_halves_that_cannot_be_are_refused(self):
        with pytest.raises(UsageError, match=r"report\.half is 2; it must be 0 or 1"):
            Report(losses=True, half=2)
        for report in ({"half": 0}, {"half": 0, "losses": True, "sample": Sample(0, 8)}):
            with pytest.raises(
                UsageError, match=r"report\.half is 0; it must be None without losses or metrics of train data"
            ):
                Report(**report)


def coins(clients, size, seed=0):
    """Clients of the same data: pictures of noise, labels that are coins."""
    rng = np.random.default_rng(seed)
    parts = [(rng.normal(size=(size, 20)).astype(np.float32), rng.integers(2, size=size)) for _ in range(clients)]
    names = tuple(f"client-{i}" for i in range(clients))
    return Federated("coins", "natural", names, Split.join(parts), Split.join(parts), 2)


class TestOpinion:
    @pytest.mark.parametrize("loss", ["zero-one", "clipped"])
    def test_groups_are_told_apart_and_members_of_one_are_not(self, images, simulator, loss):
        data = images((300,) * 4)
        found = opinion_of(simulator(data, threads=1), loss=loss)
        pairs = [(one, other) for other in range(4) for one in range(other) if data.groups[one] != data.groups[other]]
        assert sorted(found["named"]) == sorted([data.names[one], data.names[other]] for one, other in pairs)
        assert (found["differ"], found["could"], found["pairs"]) == (4, 6, 6)
        assert found["text"].startswith("4 of 6 pairs of clients certainly differ (95 % sure, by ")
        assert found["text"].endswith("one model may not be enough.")

    def test_clients_of_the_same_data_that_learn_by_heart_do_not_differ(self, simulator):
        """On their train data they would: loss 0 on the own examples, 1/2 on the others', a distance of 1."""
        sim = simulator(coins(2, 200), "mlp(256)", threads=1)
        ask, everyone = Meter(sim, KEY).ask, np.arange(2)
        long = Fit(steps=600, batch=32, lr=0.1)
        start = Stack(*(part[None] for part in sim.model.initial(1)))
        made = ask(Task(fit=(long,)), start, np.zeros_like(everyone), everyone)
        losses = cross_losses(made, ask, Report(params=None, losses=True, bounded="zero-one"))
        assert differ(losses, np.full(2, 200), 0.05 / 4, 0.0).any()
        found = opinion_of(sim, long)
        assert (found["differ"], found["could"]) == (0, 1)
        assert found["text"].startswith("None of 1 pairs of clients with enough examples certainly differs")

    def test_with_few_examples_it_says_that_it_cannot_tell(self, images, simulator):
        found = opinion_of(simulator(images((16, 16, 16, 16)), threads=1))
        assert found == {
            "differ": 0,
            "could": 0,
            "pairs": 6,
            "named": [],
            "text": "No two clients have enough examples to say that they certainly differ.",
        }

    def test_those_who_are_absent_or_hold_one_example_have_no_say(self, images, simulator, flaky):
        sim = flaky(simulator(images((300, 1, 300, 300)), threads=1), {BEGINNING: [2]})
        found = opinion_of(sim)
        assert found["pairs"] == 1
        assert found["named"] == [["client-0", "client-3"]]

    def test_the_farthest_pairs_are_named_first_and_only_so_many(self, monkeypatch):
        """By eq. 6: 0.6 + 0.6 between the first and the third, 0.8 + 0.8 between the second and the third."""
        losses = np.array([[0.0, 0.0, 0.6], [0.0, 0.0, 0.8], [0.6, 0.8, 0.0]])
        names = ["a", "b", "c"]
        assert findings(losses, np.full(3, 1000), names, "clipped")["named"] == [["b", "c"], ["a", "c"]]
        monkeypatch.setattr("coterie.server.distances.separation.MOST_NAMED", 1)
        found = findings(losses, np.full(3, 1000), names, "clipped")
        assert (found["named"], found["differ"]) == ([["b", "c"]], 2)

    def test_it_is_asked_where_advice_is_asked_for_and_the_loss_is_bounded(self, images, simulator, train):
        sim = simulator(images(), threads=1)

        def start(text):
            return advised(build_algorithm(text)).start(sim, KEY, Meter(sim, KEY).ask)

        assert "certain" not in start("lcfl").advice
        assert start("lcfl(loss=clipped)").advice["certain"]["pairs"] == 28

    def test_over_bytes_it_is_the_same_and_costs_what_is_packed(self, images):
        """One training on a half, and four models to four clients, who judge them on the other half."""
        data = images((300, 301, 200, 100))
        model = build_model("logistic", data.shape, data.classes)
        near, far = Simulator(data, model, threads=1), Loopback(data, model)
        meters = [Meter(federation, KEY) for federation in (near, far)]
        fit = Fit(epochs=2, batch=50)
        ours, theirs = (
            certain_differences("clipped", fit)(f, KEY, m.ask) for f, m in zip((near, far), meters, strict=True)
        )
        assert ours == theirs
        assert meters[0].cost == meters[1].cost
        assert (far.payload.bytes_down, far.payload.bytes_up) == (meters[1].cost.bytes_down, meters[1].cost.bytes_up)
        assert meters[0].cost.steps == 2 * (3 + 4 + 2 + 1)
        assert meters[0].cost.evaluations == 4 * (150 + 150 + 100 + 50)
        assert meters[0].cost.bytes_down == 4 * (4 * model.layout.size + 8) + 4 * (4 * 4 * model.layout.size + 8)


class TestRuns:
    def test_the_command_line_says_it_beside_the_advice(self, tmp_path):
        words = ["run", "lcfl(loss=zero-one,clusters=2)", "--data", "digits", "--partition", "rotation(0,180)"]
        words += ["--clients", "4", "--rounds", "2", "--advise", "--epochs", "5", "--out", str(tmp_path / "run")]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "4 of 6 pairs of clients certainly differ (95 % sure, by zero-one losses on new data)" in result.output
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["advise"]["certain"]["differ"] == 4

    @pytest.mark.parametrize("text", ["lcfl", "diffnorm"])
    def test_the_distances_are_kept_by_the_names_of_the_clients(self, images, text, tmp_path):
        data = images()
        run = ct.run(build_algorithm(text), data, "mlp(16)", rounds=2, out=tmp_path / "run")
        with (tmp_path / "run" / "distances.csv").open(newline="") as file:
            head, *rows = csv.reader(file)
        assert head == ["client", *data.names]
        assert [row[0] for row in rows] == list(data.names)
        table = np.array([row[1:] for row in rows], dtype=float)
        assert np.array_equal(table, run.state.memory.formed.distances)
        assert np.array_equal(table, table.T)
        assert not table.diagonal().any()
        assert (table > 0).sum() == 8 * 7

    def test_who_was_not_measured_has_an_empty_place(self, images, simulator, flaky, train):
        sim = flaky(simulator(images(), threads=1), {1: [2]})
        found = train("lcfl", sim, 2)[-1].state.memory.formed.distances
        assert np.isnan(found[2]).all()
        assert np.isnan(found).sum() == 8 + 8 - 1

    def test_a_matrix_of_many_clients_is_not_kept(self, images, monkeypatch, tmp_path):
        monkeypatch.setattr(formed, "MOST_KEPT", 7)
        run = ct.run(ct.lcfl(), images(), "mlp(16)", rounds=2, out=tmp_path / "run")
        assert run.state.memory.formed.distances is None
        assert not (tmp_path / "run" / "distances.csv").exists()

    def test_a_run_that_never_clusters_has_none(self, images, tmp_path):
        ct.run(ct.ifca(), images(), "mlp(16)", rounds=2, out=tmp_path / "run")
        assert not (tmp_path / "run" / "distances.csv").exists()


def test_a_client_of_two_examples_can_be_divided_and_one_of_one_cannot(images):
    data = images((2, 1, 9, 9))
    sim = Simulator(data, build_model("logistic", data.shape, data.classes), threads=1)
    said = certain_differences("clipped", Fit(steps=1))(sim, KEY, Meter(sim, KEY).ask)
    assert said["pairs"] == 3


def test_large_matrices_are_not_kept(monkeypatch):
    monkeypatch.setattr(formed, "MOST_KEPT", 2)
    assert formed.among_all(np.arange(2), np.zeros((2, 2)), 3) is None
    assert formed.among_all(np.arange(2), np.zeros((2, 2)), 2).tolist() == [[0, 0], [0, 0]]
