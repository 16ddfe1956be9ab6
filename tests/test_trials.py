"""Trials on halves: draws of minibatches under one key, metrics on one half, the model that ignores its inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.deploy.policy import Policy, Refused
from coterie.engine.evaluation import rows_of_half
from coterie.engine.pool import Pool
from coterie.errors import UsageError
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.clustering.trials import MOST_ROUNDS, Trials, hardly_falls
from coterie.server.exchange import Meter
from coterie.testing import Loopback

KEY = Key(3, -1)


def first_of(sim):
    return Stack(*(part[None] for part in sim.model.initial(1)))


def trials_of(sim, fit=Fit(steps=5, lr=0.05, batch=8)):
    return Trials(Meter(sim, KEY).ask, fit, np.arange(len(sim.names)))


class TestDraw:
    @pytest.mark.parametrize("plan", ["native", "workers", "lockstep"])
    def test_another_draw_has_other_minibatches_of_the_same_half(self, plan, images, simulator):
        sim = simulator(images((40, 30)), plan=plan, threads=1)
        zeros, both = np.zeros(2, dtype=np.int64), np.arange(2)

        def train(**fit):
            task = Task(fit=(Fit(steps=3, batch=4, lr=0.05, half=0, **fit),))
            return sim.ask(task, Sent(first_of(sim)), zeros, both, KEY).params

        np.testing.assert_array_equal(train(), train(draw=0))
        assert np.abs(train() - train(draw=1)).max() > 1e-4
        np.testing.assert_array_equal(train(draw=1), train(draw=1))

    def test_a_draw_sees_nothing_of_the_other_half(self, images, simulator):
        """If the other half is replaced by noise, nothing changes, whatever the draw."""
        data = images((20, 20))
        sim = simulator(data, threads=1)
        rows, _ = rows_of_half(1, Pool(data.train, sim.engine._like(first_of(sim))), data.names, KEY)(np.arange(2))
        x = data.train.x.copy()
        x[rows] = np.random.default_rng(0).normal(size=x[rows].shape)
        other = simulator(replace(data, train=replace(data.train, x=x)), threads=1)
        zeros = np.zeros(2, dtype=np.int64)
        for draw in (0, 1, 7):
            task = Task(fit=(Fit(steps=9, batch=4, lr=0.05, half=0, draw=draw),))
            found = [each.ask(task, Sent(first_of(sim)), zeros, np.arange(2), KEY).params for each in (sim, other)]
            np.testing.assert_array_equal(*found)

    @pytest.mark.parametrize("draw", [-1, 10**9])
    def test_draws_have_limits(self, draw):
        with pytest.raises(UsageError, match="draw"):
            Fit(draw=draw)


class TestMetricsOnAHalf:
    def test_they_are_the_losses_on_that_half(self, images, simulator):
        data = images((20, 31, 7))
        sim, zeros, all_three = simulator(data, threads=1), np.zeros(3, dtype=np.int64), np.arange(3)
        for half in (0, 1):
            asked = (Report(params=None, evaluate_on="train", half=half), Report(params=None, losses=True, half=half))
            judged, losses = (
                sim.ask(Task(report=report), Sent(first_of(sim)), zeros, all_three, KEY) for report in asked
            )
            np.testing.assert_allclose(judged.metrics[:, 2], losses.losses[:, 0], rtol=1e-5)
            assert judged.metrics[:, 3].tolist() == asked[0].distinct_examples(data.train.sizes).tolist()

    def test_a_client_that_trains_is_judged_with_what_it_trained(self, images, simulator):
        sim = simulator(images((20, 20)), threads=1)
        zeros, both, on_half = np.zeros(2, dtype=np.int64), np.arange(2), Report(evaluate_on="train", half=1)
        task = Task(fit=(Fit(steps=5, lr=0.1, half=0),), report=on_half)
        own = sim.ask(task, Sent(first_of(sim)), zeros, both, KEY)
        again = sim.ask(Task(report=replace(on_half, params=None)), Sent(own.models()), both, both, KEY)
        np.testing.assert_allclose(own.metrics, again.metrics, rtol=1e-6)

    def test_they_travel(self, images, simulator):
        data = images((20, 31))
        sim = simulator(data, threads=1)
        zeros, task = np.zeros(2, dtype=np.int64), Task(report=Report(params=None, evaluate_on="train", half=1))
        sent = Sent(first_of(sim))
        there, here = (each.ask(task, sent, zeros, np.arange(2), KEY) for each in (Loopback(data, sim.model), sim))
        np.testing.assert_array_equal(there.metrics, here.metrics)
        assert there.cost == here.cost

    @pytest.mark.parametrize("split", ["test", "validation", None])
    def test_only_train_data_have_halves(self, split):
        with pytest.raises(UsageError, match=r"report\.half"):
            Report(params=None, evaluate_on=split, half=1)

    def test_a_site_counts_the_half(self):
        task, sizes = Task(report=Report(params=None, evaluate_on="train", half=1)), {"train": 19, "test": 50}
        with pytest.raises(Refused, match="the metrics of a half would rest on 9 examples"):
            Policy().check_task(task, 1, 1, sizes)
        Policy().check_task(task, 1, 1, {**sizes, "train": 20})


class TestTrials:
    @pytest.mark.parametrize("model", ["logistic", "mlp(8)"])
    def test_the_constant_model_says_the_shares_of_the_classes(self, model, images, simulator):
        data = images((60, 60, 60))
        sim = simulator(data, model, threads=1)
        found = trials_of(sim).constant(sim.model.layout, first_of(sim))
        bias = found.params[0, sim.model.layout.numbers("head_bias")]
        rows, _ = rows_of_half(0, Pool(data.train, sim.engine._like(found)), data.names, KEY)(np.arange(3))
        shares = np.bincount(data.train.y[rows], minlength=data.classes) / len(rows)
        np.testing.assert_allclose(np.exp(bias) / np.exp(bias).sum(), shares, atol=0.05)
        rest = np.setdiff1d(np.arange(found.params.shape[1]), sim.model.layout.numbers("head_bias"))
        assert not found.params[0, rest].any()

    def test_one_model_learns_until_its_loss_hardly_falls(self, lines, simulator):
        sim = simulator(lines([2.0] * 6, [20] * 6), "linear", threads=1)
        found = trials_of(sim).learn(first_of(sim))
        assert found.rounds < MOST_ROUNDS
        assert not found.falling
        assert found.model.params[0, 0] == pytest.approx(2.0, abs=0.1)
        slow = trials_of(sim, Fit(steps=1, lr=1e-4, momentum=0.0)).learn(first_of(sim))
        assert slow.falling

    def test_clusters_go_on_apart(self, lines, simulator):
        data = lines([2.0, -1.0] * 4, [20] * 8)
        sim = simulator(data, "linear", threads=1)
        labels = np.arange(8) % 2
        models = trials_of(sim).go_on(first_of(sim).take([0, 0]), labels, 20)
        np.testing.assert_allclose(models.params[:, 0], [2.0, -1.0], atol=0.05)
        judged = trials_of(sim).judge(models, labels)
        wrong = trials_of(sim).judge(models, 1 - labels)
        assert max(each.loss for each in judged.values()) < min(each.loss for each in wrong.values())
        assert {each.examples for each in judged.values()} == {data.train.sizes[0] // 2}

    def test_a_loss_falls_as_long_as_it_falls_by_a_twentieth(self):
        assert not hardly_falls([1.0, 0.9, 0.8, 0.7, 0.6])
        assert hardly_falls([1.0, 0.5, 0.42, 0.41, 0.40, 0.40])
        assert hardly_falls([1.0, 1.0, 1.0, 1.1])
