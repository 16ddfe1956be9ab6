"""Clustered additive modelling: two halves, their passes, their means, their choice and their warm-ups.

On lines a sum's loss is (g + t - slope)^2 + (biases)^2 for a global weight g and a cluster weight t, so one full-batch
step of rate r moves the half that is trained by -2 r (g + t - slope).
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.engine.local_training import draw
from coterie.engine.trainer import Trainer
from coterie.errors import UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import RunFolder
from coterie.experiments.settings import Settings
from coterie.models.combined import additive
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.loop import Conditions, rounds
from coterie.server.one_shot import OneShot
from coterie.server.serving import evaluate
from coterie.server.start import BEGINNING, first_state

RATE = 0.05
STEP = Fit(steps=1, batch=100, lr=RATE, momentum=0.0)
SLOPES, PAIRS = (1.0, 1.0, -1.0, -1.0), (1, 2, 3, 6)
QUICK = Fit(steps=3, batch=8, lr=0.05)


def sums(data, model="mlp(16)", **options):
    return Simulator(data, additive(build_model(model, data.shape, data.classes)), **options)


@pytest.fixture
def four(lines):
    return sums(lines(SLOPES, PAIRS), "linear", threads=1)


def begin(common, clusters, labels):
    """Round 0 with these weights and no biases: parameters are (g, bias, t, bias)."""
    params = np.array([[common, 0.0, own, 0.0] for own in clusters])
    return first_state(Stack(params, np.zeros((len(clusters), 0))), np.array(labels))


def run(text, federation, count, fit=STEP, clusters=2, **options):
    algorithm = build_algorithm(text, clusters, fit)
    return list(islice(rounds(algorithm, federation, 1, options.pop("state", None), Conditions(**options)), count))


def globals_of(state):
    return state.stack.params[:, 0]


def clusters_of(state):
    return state.stack.params[:, 2]


class TestTheModel:
    @pytest.mark.parametrize(("model", "shape"), [("mlp(5)", (1, 6, 6)), ("cnn", (1, 8, 8)), ("tabular", (7,))])
    def test_outputs_are_the_sum_of_the_halves(self, model, shape):
        plain = build_model(model, shape, 3)
        both = additive(plain)
        rows = [plain.initial(1), plain.initial(2)]
        params, buffers = (np.concatenate(part) for part in zip(*rows, strict=True))
        x = torch.randn(4, *shape)
        wanted = sum(plain.with_row(*row)(x) for row in rows)
        assert torch.allclose(both.with_row(params, buffers)(x), wanted, atol=1e-6)

    @pytest.mark.parametrize("model", ["mlp(5)", "cnn"])
    def test_usual_names_mean_the_cluster_half_and_all_is_everything(self, model):
        plain = build_model(model, (1, 8, 8), 4)
        small, big = plain.layout, additive(plain).layout
        assert (big.size, big.buffer_size) == (2 * small.size, 2 * small.buffer_size)
        for name in ("head", "head_weight", "body", "linear", "projection", "features"):
            assert np.array_equal(big.numbers(name), small.size + small.numbers(name))
            assert np.array_equal(big.buffer_parts[name], small.buffer_size + small.buffer_parts[name])
        for name, first, last in (("all", 0, 2), ("global", 0, 1), ("cluster", 1, 2)):
            assert np.array_equal(big.numbers(name), np.arange(first * small.size, last * small.size))
            wanted = np.arange(first * small.buffer_size, last * small.buffer_size)
            assert np.array_equal(big.buffer_parts[name], wanted)

    def test_the_global_half_starts_where_the_plain_model_would(self):
        plain = build_model("cnn", (1, 8, 8), 4)
        params = additive(plain).initial(7)[0]
        assert np.array_equal(params[: len(params) // 2], plain.initial(7)[0])
        assert not np.array_equal(params[: len(params) // 2], params[len(params) // 2 :])

    def test_a_head_that_the_user_named_is_found_in_the_cluster_half(self):
        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.head, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                return self.last(self.head(x))

        layout = additive(Model("own", Own, (4,), 2)).layout
        assert layout.part("head") == slice(30, 50)

    def test_statistics_without_parameters_belong_to_their_half(self):
        def build():
            return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2))

        layout = additive(Model("mine", build, (3,), 2)).layout
        assert layout.buffer_part("global") == slice(0, 10)
        assert layout.buffer_part("cluster") == slice(10, 20)

    def test_a_sum_of_sums_is_refused(self):
        with pytest.raises(UsageError, match="is already a sum of two parts; add cam once"):
            additive(additive(build_model("linear", (3,), None)))

    @pytest.mark.parametrize(("part", "frozen"), [("cluster", "common"), ("global", "cluster")])
    def test_the_frozen_half_runs_as_in_evaluation(self, part, frozen):
        def build():
            return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))

        trainer = Trainer(additive(Model("mine", build, (3,), 2)), torch.empty(0))
        trainer._prepare(part)
        for name, module in trainer.module.named_modules():
            if name.endswith((".1", ".2")):
                assert module.training is not name.startswith(frozen), name


def by_torch(sim, row, client, fits, key, sequential=False):
    """Both halves after local training, each a plain module; the other half is frozen and in evaluation mode."""
    half, base = len(row.params) // 2, replace(sim.model, build=lambda: sim.model.build().common, cluster_part="")
    x, y = (torch.from_numpy(part) for part in sim.data.train.of(client))
    x = x.double()
    places = {"global": slice(half), "cluster": slice(half, None)}
    tops = {"global": slice(len(row.buffers) // 2), "cluster": slice(len(row.buffers) // 2, None)}
    now = {name: base.with_row(row.params[places[name]], row.buffers[tops[name]]) for name in places}
    result = {}
    for number, fit in enumerate(fits):
        (other,) = set(places) - {fit.part}
        own = base.with_row(row.params[places[fit.part]], row.buffers[tops[fit.part]]).train()
        anchor = [p.detach().clone() for p in own.parameters()]
        optimizer = torch.optim.SGD(own.parameters(), lr=fit.lr, momentum=fit.momentum)
        batches = draw(len(y), fit, key.generator(sim.names[client], "batches", number))
        for step in range(len(batches)):
            rows = batches.rows(step)
            with torch.no_grad():
                fixed = now[other](x[rows])
            before = [p.detach().clone() for p in own.parameters()]
            optimizer.zero_grad()
            F.cross_entropy(own(x[rows]) + fixed, y[rows]).backward()
            optimizer.step()
            with torch.no_grad():
                for p, old, start in zip(own.parameters(), before, anchor, strict=True):
                    p += fit.pull * (start - old)
        result[fit.part] = base.flatten(own)
        if sequential:
            now[fit.part] = own.eval()
    return [np.concatenate([result["global"][i], result["cluster"][i]]) for i in (0, 1)]


class TestPasses:
    @pytest.mark.parametrize("model", ["mlp(6)", "cnn"])
    @pytest.mark.parametrize("sequential", [False, True])
    @pytest.mark.parametrize("plan", ["native", "workers", "lockstep"])
    def test_each_half_trains_as_torch_does_with_the_other_frozen(self, images, model, sequential, plan):
        sim = sums(images((12, 9, 15), shape=(1, 8, 8)), model, plan=plan)
        rows = [sim.model.initial(seed) for seed in (1, 2)]
        stack = Stack(*(np.stack(part).astype(np.float64) for part in zip(*rows, strict=True)))
        fits = (replace(QUICK, part="cluster", pull=0.1), replace(QUICK, part="global"))
        key, labels = Key(3, 1), np.array([0, 1, 1])
        found = sim.ask(Task(fit=fits, sequential=sequential), Sent(stack), labels, np.arange(3), key).models()
        for client, row in enumerate(labels):
            wanted = by_torch(sim, Stack(*(part[row] for part in stack)), client, fits, key, sequential)
            np.testing.assert_allclose(found.params[client], wanted[0], rtol=0, atol=1e-12)
            np.testing.assert_allclose(found.buffers[client], wanted[1], rtol=0, atol=1e-12)

    def test_both_halves_leave_from_the_same_sum(self, four):
        """From 0.25 + 0.15 towards 1 both move by 0.1 * 0.6; in sequence the second sees what the first has done."""
        for text, second in (("wecfl+cam(pull=0)", 0.06), ("wecfl+cam(pull=0,sequential=true)", 0.1 * (0.6 - 0.06))):
            done = run(text, four, 1, state=begin(0.25, [0.15], [0] * 4))[0]
            up = done.replies.params[0]
            assert up[[2, 0]].tolist() == pytest.approx([0.15 + 0.06, 0.25 + second], abs=1e-12)

    @pytest.mark.parametrize(("text", "pull"), [("fesem+cam(pull=0.1)", 0.1), ("wecfl+cam", 0.01), ("ifca+cam", 0.0)])
    def test_the_cluster_half_is_moved_back_after_every_step_except_where_clients_choose(self, four, text, pull):
        """Two steps of t <- (1 - pull) t + pull t0 - 2 r (g + t - 1), eq. 7.13, and of g without a pull."""
        fit, own, common = replace(STEP, steps=2), 0.15, 0.25
        for _ in range(2):
            own = (1 - pull) * own + pull * 0.15 - 2 * RATE * (0.25 + own - 1)
            common = common - 2 * RATE * (common + 0.15 - 1)
        state = begin(0.25, [0.15, -0.15], [0, 0, 1, 1])
        found = run(text, four, 1, fit=fit, state=state)[0].replies.params[0]
        assert found[[2, 0]].tolist() == pytest.approx([own, common], abs=1e-12)

    def test_finetuning_trains_both_halves_before_the_test(self, four):
        """Jointly: the sum moves by 2 x 0.1 of the way, from 0.4 to 0.4 + 0.2 * 0.6; nothing is aggregated."""
        state = begin(0.25, [0.15], [0] * 4)
        found = evaluate(build_algorithm("wecfl+cam+finetune", 1, STEP), four, state, seed=1).metrics[0, 2]
        assert found == pytest.approx((0.52 - 1) ** 2, abs=1e-12)


class TestAlternating:
    def test_the_global_half_is_trained_against_the_new_cluster_halves(self, four):
        """Thesis 7.2.1, (i) (ii) (i) (iii), by hand on four lines: two exchanges, each of one half."""
        done = run("ifca+cam(alternate=true)", four, 3, state=begin(0.2, [0.3, -0.3], [UNPLACED] * 4))
        common, up, down = 0.2, 0.3, -0.3
        for step in done:
            up, down = up - 2 * RATE * (common + up - 1), down - 2 * RATE * (common + down + 1)
            ahead, back = -2 * RATE * (common + up - 1), -2 * RATE * (common + down + 1)
            common += (3 * ahead + 9 * back) / 12
            assert globals_of(step.state).tolist() == pytest.approx([common] * 2, abs=1e-12)
            assert clusters_of(step.state).tolist() == pytest.approx([up, down], abs=1e-12)
            assert step.cost.steps == 8

    def test_clients_choose_again_between_the_halves(self, four):
        """Sums -1.3 and -1.4: all four take the first, which a long step brings to -2.2 + 1.62 = -0.58 on average.

        For a slope of -1 that is 0.42 away, and the second, which nobody has trained, is only 0.4.
        """
        state, fit = begin(-2.2, [0.9, 0.8], [UNPLACED] * 4), replace(STEP, lr=0.45)
        at_once, again = (
            run(text, four, 1, fit=fit, state=state)[0].state.labels.tolist()
            for text in ("ifca+cam", "ifca+cam(alternate=true)")
        )
        assert (at_once, again) == ([0, 0, 0, 0], [0, 0, 1, 1])

    def test_one_half_goes_up_in_each_exchange(self, images):
        sim = sums(images((8, 9, 10, 7)), "mlp(4)")
        half = build_model("mlp(4)", (1, 8, 8), 4).layout.size
        cost = run("ifca(start=random)+cam(alternate=true)", sim, 1, fit=QUICK)[0].cost
        assert cost.bytes_up == 4 * 2 * (4 * half + 8 * 3)
        assert cost.bytes_down == 4 * 2 * (3 * 4 * half + 8)

    def test_nobody_may_be_left_for_the_second_exchange(self, images):
        """All who answered have left the clusters: the halves stay as they were averaged."""
        sim = sums(images())
        done = run("wecfl+cam(alternate=true)", sim, 4, fit=QUICK, clusters=3, participation=0.25)
        assert all(np.isfinite(step.state.stack.params).all() for step in done)

    def test_both_orders_at_once_are_refused(self):
        with pytest.raises(UsageError, match="choose one order of the parts"):
            build_algorithm("ifca+cam(sequential=true,alternate=true)")


class TestMeans:
    def test_the_cluster_half_is_a_mean_in_the_cluster_and_the_global_half_of_all(self, four):
        done = run("ifca+cam", four, 3, state=begin(0.2, [0.3, -0.3], [UNPLACED] * 4))
        common, up, down = 0.2, 0.3, -0.3
        for step in done:
            ahead, back = -0.1 * (common + up - 1), -0.1 * (common + down + 1)
            common, up, down = common + (3 * ahead + 9 * back) / 12, up + ahead, down + back
            assert step.state.labels.tolist() == [0, 0, 1, 1]
            assert globals_of(step.state).tolist() == pytest.approx([common] * 2, abs=1e-12)
            assert clusters_of(step.state).tolist() == pytest.approx([up, down], abs=1e-12)

    @pytest.mark.parametrize(
        "text",
        [
            "ifca+cam",
            "ifca(start=random)+cam",
            "ifca+cam(warmup=2)",
            "fesem+cam",
            "wecfl+cam(warmup=2)",
            "lcfl+cam",
            "gradcos+cam",
            "sattler(minimum=0,eps1=9,eps2=0,least=none)+cam",
        ],
    )
    @pytest.mark.parametrize("model", ["mlp(8)", "cnn"])
    def test_the_global_half_is_the_same_in_all_models_and_the_mean_of_all_clients(self, images, text, model):
        sim = sums(images(), model)
        places = sim.model.layout.part("global"), sim.model.layout.buffer_part("global")
        for step in run(text, sim, 4, fit=QUICK, participation=0.75):
            weights = build_algorithm(text, 2).weigh(step.replies)
            weights = weights / weights.sum()
            sent = zip(step.before.stack, step.state.stack, step.replies.models(), places, strict=True)
            for before, after, replied, place in sent:
                assert (before[:, place] == before[0, place]).all()
                assert (after[:, place] == after[0, place]).all()
                np.testing.assert_allclose(after[0, place], weights @ replied[:, place], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("start", ["farthest", "random"])
    def test_cluster_halves_start_different(self, images, start):
        sim = sums(images())
        first = run(f"ifca(start={start})+cam", sim, 1, fit=QUICK)[0].before.stack.params
        half = sim.model.layout.size // 2
        assert np.array_equal(first[0, :half], first[1, :half])
        assert not np.allclose(first[0, half:], first[1, half:])
        assert np.array_equal(first[0, :half], sim.model.initial(Key(1, BEGINNING).number("model", 0))[0][:half])


class TestClusters:
    def test_with_the_global_half_zero_and_frozen_it_is_the_base(self, images, simulator):
        data, algorithm = images(), build_algorithm("ifca", 2, QUICK)
        alone = list(islice(rounds(algorithm, simulator(data), 1), 3))
        summed = build_algorithm("ifca+cam", 2, QUICK)
        frozen = replace(summed, task=lambda state: replace(summed.task(state), fit=summed.task(state).fit[:1]))
        before = alone[0].before
        wide = Stack(*(np.hstack([np.zeros_like(part), part]) for part in before.stack))
        state = replace(before, stack=wide, previous=wide)
        for one, other in zip(alone, islice(rounds(frozen, sums(data), 1, state), 3), strict=True):
            assert one.state.labels.tolist() == other.state.labels.tolist()
            half = one.state.stack.params.shape[1]
            assert not other.state.stack.params[:, :half].any()
            np.testing.assert_allclose(other.state.stack.params[:, half:], one.state.stack.params, rtol=0, atol=1e-6)

    def test_clients_choose_by_the_loss_of_the_sum(self, four):
        """With g = 3 the cluster weights 1 and -1 fit the slopes alone, but the sums 3 - 2 = 1 and 3 - 4 = -1 do."""
        state = begin(3.0, [1.0, -1.0, -2.0, -4.0], [UNPLACED] * 4)
        assert run("ifca+cam", four, 1, clusters=4, state=state)[0].state.labels.tolist() == [2, 2, 3, 3]

    def test_the_choice_is_that_of_a_direct_computation(self, images):
        sim = sums(images(), "cnn")
        done = run("ifca(clusters=3)+cam", sim, 2, fit=QUICK)[1]
        for client, chosen in zip(done.replies.clients, done.replies.rows, strict=True):
            x, y = (torch.from_numpy(part) for part in sim.data.train.of(client))
            with torch.no_grad():
                sums_of_rows = [sim.model.with_row(*row)(x) for row in zip(*done.before.stack, strict=True)]
                losses = [float(F.cross_entropy(outputs, y)) for outputs in sums_of_rows]
            assert chosen == np.argmin(losses)

    @pytest.mark.parametrize("layer", ["head_weight", "linear", "all", "cluster"])
    def test_clustering_sees_the_cluster_half_alone(self, images, layer):
        sim = sums(images())
        algorithm = build_algorithm(f"wecfl(layer={layer})+cam", 2, QUICK)
        done = next(rounds(algorithm, sim, 1))
        loud = done.replies.params.copy()
        loud[:, sim.model.layout.part("global")] += 100.0 * (np.arange(8) < 4)[:, None]
        seen = algorithm.assign(done.before, replace(done.replies, params=loud), Key(1, 0), None)
        assert seen.labels.tolist() == done.state.labels.tolist()
        size = len(sim.model.layout.numbers("cluster" if layer == "all" else layer))
        assert seen.memory.centres.shape == (2, size)

    @pytest.mark.parametrize("text", ["gradcos(warmup=0)+cam", "diffnorm(warmup=0)+cam", "ocfl-kmeans+cam"])
    def test_methods_that_cluster_once_see_the_cluster_half_alone(self, images, text):
        sim, algorithm = sums(images()), build_algorithm(text, 2, QUICK)
        done = next(rounds(algorithm, sim, 1))
        before = replace(done.before, memory=OneShot(seen=0.0))
        loud = done.replies.params.copy()
        loud[:, sim.model.layout.part("global")] += 100.0 * (np.arange(8) < 4)[:, None]
        found = [
            algorithm.assign(before, replace(done.replies, params=p), Key(1, 0), None)
            for p in (done.replies.params, loud)
        ]
        assert len(found[0].parents) == 2
        assert found[0].labels.tolist() == found[1].labels.tolist()

    @pytest.mark.parametrize("text", ["gradcos(warmup=0)+cam(pull=0.1)", "diffnorm(warmup=0)+cam(sequential=true)"])
    def test_those_who_were_not_drawn_train_in_the_same_two_passes(self, images, text):
        sim, asked = sums(images()), []

        class Listening(Simulator):
            def ask(self, task, *rest):
                asked.append(task)
                return super().ask(task, *rest)

        heard = Listening(sim.data, sim.model)
        run(text, heard, 1, fit=QUICK, participation=0.5)
        drawn, others = (task for task in asked if task.fit)
        assert drawn == others
        assert [fit.part for fit in others.fit] == ["cluster", "global"]

    def test_fesem_counts_clients_and_wecfl_examples(self, lines):
        """Half of one step of rate 0.25 goes to each half: cluster weights 0, 2 and 5, as for the bases alone."""
        sim = sums(lines((0.0, 4.0, 10.0), (100, 100, 1)), "linear", threads=1)
        fit = Fit(steps=1, batch=1000, lr=0.25, momentum=0.0)
        state = begin(0.0, [0.0], [0] * 3)
        labels = {name: run(f"{name}+cam", sim, 1, fit=fit, state=state)[0].state.labels for name in ("fesem", "wecfl")}
        assert [len(set(labels["fesem"][:2])), len(set(labels["wecfl"][1:]))] == [1, 1]
        assert [len(set(labels["fesem"])), len(set(labels["wecfl"]))] == [2, 2]

    def test_penalties_of_add_ons_are_on_the_cluster_half(self, images):
        """Shared knowledge pulls cluster halves together; the global half trains as if nothing were there."""
        sim = sums(images())
        weak, strong = (run(f"wecfl+cks(strength={s})+cam", sim, 2, fit=QUICK) for s in (0.0, 5.0))
        half = sim.model.layout.size // 2
        apart = [np.linalg.norm(np.subtract(*done[1].state.stack.params[:, half:])) for done in (weak, strong)]
        assert apart[1] < 0.7 * apart[0]
        assert np.array_equal(weak[1].replies.params[:, :half], strong[1].replies.params[:, :half])


class TestWarmUp:
    def test_of_ifca_is_fedavg_with_the_cluster_half_absent(self, images, simulator):
        data, half = images(), slice(0, build_model("cnn", (1, 8, 8), 4).layout.size)
        average = run("fedavg", simulator(data, "cnn"), 3, fit=QUICK)
        for one, other in zip(run("ifca+cam(warmup=3)", sums(data, "cnn"), 3, fit=QUICK), average, strict=True):
            np.testing.assert_allclose(one.state.stack.params[0, half], other.state.stack.params[0], rtol=0, atol=1e-6)
            assert one.state.round == other.state.round
            assert one.cost.evaluations == 0 or one.before.round == 0

    def test_a_cluster_half_that_is_present_would_change_it(self, four):
        """The control: next to t = 1 a global weight goes towards slope - 1."""
        present, absent = (run("fedavg+cam", four, 1, state=begin(0.0, [own], [0] * 4))[0] for own in (1.0, 0.0))
        assert globals_of(present.state)[0] == pytest.approx(globals_of(absent.state)[0] - 2 * RATE, abs=1e-12)

    def test_the_cluster_halves_of_the_start_take_their_places_afterwards(self, images):
        sim = sums(images())
        halves = sim.model.layout.part("cluster")
        started = run("ifca+cam", sim, 1, fit=QUICK)[0].before.stack.params[:, halves]
        warm = run("ifca+cam(warmup=2)", sim, 3, fit=QUICK)
        assert [len(step.before.stack) for step in warm] == [1, 1, 2]
        for step in warm[:2]:
            assert not step.before.stack.params[:, halves].any()
            assert set(step.before.labels) == {0}
        assert np.array_equal(warm[2].before.stack.params[:, halves], started)
        assert set(warm[2].before.labels) == {UNPLACED}
        assert warm[2].before.waiting is None
        assert not np.array_equal(warm[2].state.stack.params[:, halves], started)

    def test_one_cluster_is_warmed_up_too(self, images):
        warm = run("ifca+cam(warmup=1)", sums(images()), 2, fit=QUICK, clusters=1)
        assert [len(step.state.stack) for step in warm] == [1, 1]
        assert not set(warm[-1].state.labels) - {0}

    def test_halves_that_take_their_places_have_not_moved(self, images):
        """joint would take the way from zero to where they are for a movement of theirs."""
        step = run("joint+cam(warmup=2)", sums(images()), 2, fit=QUICK)[-1].state
        assert len(step.stack) == 2
        assert np.array_equal(step.previous.params, step.stack.params)

    def test_of_parameter_clustering_is_one_exchange_that_counts_as_many_rounds(self, four):
        """From 0.2 + 0.1 three rounds of two steps bring the sums 1 - 0.9^6 of the way, and the global half nowhere."""
        fit, state = replace(STEP, steps=2), begin(0.2, [0.1], [0] * 4)
        done = run("wecfl+cam(warmup=3,pull=0.1)", four, 2, fit=fit, state=state)
        first = done[0].state
        assert [step.state.round for step in done] == [3, 4]
        assert [step.cost.steps for step in done] == [4 * 3 * 2, 4 * 2 * 2]
        assert [step.cost.bytes_up for step in done] == [4 * (8 * half + 24) for half in (2, 4)], "one half, then both"
        assert globals_of(first).tolist() == pytest.approx([0.2, 0.2], abs=1e-12)
        up, down = (slope - (slope - 0.3) * 0.9**6 - 0.2 for slope in (1.0, -1.0))
        assert clusters_of(first)[first.labels[[0, 2]]].tolist() == pytest.approx([up, down], abs=1e-12)

    def test_it_must_leave_room(self):
        for base in ("ifca", "fesem", "wecfl", "lcfl(warmup=0)"):
            wanted = rf"rounds is 3; {re.escape(base)}\+cam\(warmup=3\) needs at least 4 "
            with pytest.raises(UsageError, match=wanted):
                run_settings(small(f"{base}+cam(warmup=3)", 3))
        with pytest.raises(UsageError, match="warmup is -1; it must be at least 0"):
            build_algorithm("ifca+cam(warmup=-1)")


def small(algorithm, count=6):
    return Settings(
        algorithm, clients=8, clusters=2, partition="rotation(0,180)", steps=2, model="mlp(8)", rounds=count
    )


class TestRuns:
    @pytest.mark.parametrize(
        ("algorithm", "stop"),
        [
            ("ifca+cam", 3),
            ("ifca+cam(warmup=3)", 2),
            ("ifca+cam(warmup=3)", 4),
            ("wecfl+cam(warmup=3)", 3),
            ("wecfl+cam(warmup=3)", 4),
        ],
    )
    def test_a_resumed_run_equals_an_unbroken_one(self, tmp_path, algorithm, stop):
        whole = run_settings(small(algorithm))

        def stops(record):
            if record["round"] + 1 == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_settings(small(algorithm), tmp_path / "run", progress=stops)
        assert RunFolder(tmp_path / "run").resume().round == stop
        resumed = run_settings(small(algorithm), tmp_path / "run", resume=True)
        for one, other in zip(whole.history, resumed.history, strict=True):
            assert {**one, "seconds": 0} == {**other, "seconds": 0}
        np.testing.assert_array_equal(resumed.state.stack.params, whole.state.stack.params)
        assert whole.summary["rounds"] == resumed.summary["rounds"] == 6
        assert whole.summary["model"] == "mlp(8)"

    def test_the_model_that_serves_a_client_is_the_sum(self):
        run = ct.Run(run_settings(small("wecfl+cam", 2)))
        served, x = run.model_for(3), torch.from_numpy(run.data.test.of(3)[0])
        row = run.state.stack.params[run.labels[3]]
        plain = build_model("mlp(8)", run.data.shape, run.data.classes)
        halves = [plain.with_row(part, np.zeros(0, np.float32))(x) for part in np.split(row, 2)]
        assert torch.allclose(served(x), sum(halves), atol=1e-6)

    def test_two_halves_travel(self, images):
        sim = sums(images((8, 9, 10, 7)), "mlp(4)")
        cost = run("wecfl+cam", sim, 1, fit=QUICK)[0].cost
        size = 2 * build_model("mlp(4)", (1, 8, 8), 4).layout.size
        assert (cost.bytes_down, cost.bytes_up) == (4 * (4 * size + 8), 4 * (4 * size + 8 * 3))

    @pytest.mark.parametrize("model", ["mlp(4)", "cnn"])
    def test_on_ifca_k_plus_one_halves_go_down_as_table_7_6_counts(self, images, simulator, model):
        """11 halves for 10 clusters, where ifca sends 10 models; in the warm-up one half, and one comes back."""
        data, plain = images((8,) * 10), build_model(model, (1, 8, 8), 4)
        half = sum(part.nbytes for part in plain.initial(1))
        costs = {
            text: [step.cost for step in run(text, sums(data, model), 3, fit=QUICK, clusters=10)]
            for text in ("ifca(start=random)+cam", "ifca(start=random)+cam(warmup=2)")
        }
        bare = [step.cost for step in run("ifca(start=random)", simulator(data, model), 3, fit=QUICK, clusters=10)]
        per_client = {text: [(cost.bytes_down // 10 - 8) / half for cost in found] for text, found in costs.items()}
        assert [(cost.bytes_down // 10 - 8) / half for cost in bare] == [10, 10, 10]
        assert per_client["ifca(start=random)+cam"] == [11, 11, 11]
        assert per_client["ifca(start=random)+cam(warmup=2)"] == [1, 1, 11]
        up = [(cost.bytes_up // 10 - 24) / half for cost in costs["ifca(start=random)+cam(warmup=2)"]]
        assert up == [1, 1, 2]

    @pytest.mark.parametrize("text", ["ifca+cam", "wecfl+cam", "wecfl+cks+cam", "ifca+con-para+cam(warmup=1)"])
    def test_what_a_client_puts_together_is_what_the_server_has(self, images, text):
        """Every message of four rounds, taken apart and put together again, also for clients without a cluster."""
        sim, seen = sums(images(), "cnn"), []

        class Apart(Simulator):
            def ask(self, task, sent, labels, clients, key):
                for row in labels:
                    arrays = message.down(task, sent, row, self.model.layout)
                    whole = message.received(task, arrays, self.model.layout)
                    chooses = row < 0 and sent.unplaced is None
                    own = whole.take(0 if chooses else arrays["row"][0])
                    wanted = sent.take(0 if chooses else row)
                    seen.append(all(np.array_equal(a, b) for a, b in zip(own, wanted, strict=True)))
                return super().ask(task, sent, labels, clients, key)

        run(text, Apart(sim.data, sim.model), 4, fit=QUICK, participation=0.6)
        assert len(seen) > 15
        assert all(seen)

    def test_a_function_call_does_what_the_text_does(self, images):
        made = ct.cam(warmup=1)(ct.ifca(clusters=2, fit=QUICK))
        one = ct.run(made, images(), model="mlp(8)", rounds=2)
        other = run("ifca+cam(warmup=1)", sums(images(), "mlp(8)"), 2, fit=replace(QUICK, lr=0.05))
        np.testing.assert_array_equal(one.state.stack.params, other[-1].state.stack.params)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fedopt+cam", "cam cannot be added to fedopt; it needs plain means"),
        ("wecfl+cam+cam", "cam cannot be added to wecfl"),
        ("wecfl+cam+cks", r"must stand before cam; write 'wecfl\+cks\+cam'"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_a_run(text, reason):
    with pytest.raises(UsageError, match=reason):
        build_algorithm(text)
