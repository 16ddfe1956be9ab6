"""Clients that choose: every score against plain autograd, the movement's sign, pinned clients, identical starts."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coterie.algorithms import build_algorithm, fedavg, ifca, joint
from coterie.engine.choice import agree, preview
from coterie.engine.local_training import Work, draw
from coterie.engine.plan import make_plan
from coterie.engine.pool import Pool
from coterie.errors import UsageError
from coterie.models.model import Model
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Agreement, BatchLoss, Fit, Loss, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.aggregate import uniform
from coterie.server.loop import rounds
from coterie.server.start import Pinned, first_state
from coterie.testing import Loopback

KEY = Key(seed=7, round=3)
SIZES = (3, 7, 8, 20, 13, 30, 11)
FIT = Fit(steps=1, batch=8, lr=0.1, momentum=0.0, lr_decay=0.5)
PLANS = ("native", "single", "workers", "lockstep")
SCORES = {
    "mean loss": (BatchLoss(),),
    "total loss": (BatchLoss(0.5, total=True),),
    "cosine": (Agreement(),),
    "euclidean": (Agreement(euclidean=True),),
    "joint": (Agreement(0.3), BatchLoss(0.7)),
    "joint euclidean": (Agreement(0.3, euclidean=True), BatchLoss(0.7, total=True)),
    "with the loss on everything": (Agreement(0.3), Loss(0.7)),
}


def make_stack(model, count=4, seed=0):
    """Different models; further rows, the same number, where they came from; the last one never moved."""
    rows = [model.initial(i) for i in range(count)]
    params, buffers = (np.stack(part).astype(np.float64) for part in zip(*rows, strict=True))
    before = params - 0.004 / params.shape[1] ** 0.5 * np.random.default_rng(seed).normal(size=params.shape)
    before[-1] = params[-1]
    return Stack(np.concatenate([params, before]), np.concatenate([buffers, buffers]))


def reference(sim, scores, stack, client):
    """One client's weighted sum of scores for every model, by plain autograd in training mode."""
    model, count = sim.model, len(stack) // 2
    x, y = (torch.from_numpy(part) for part in sim.data.train.of(client))
    x = x.double()
    rows = draw(len(y), FIT, KEY.generator(sim.names[client], "batches", 0)).rows(0)
    found = np.zeros(count)
    for k in range(count):
        module = model.with_row(stack.params[k], stack.buffers[k]).train()
        loss = cross_entropy(module(x[rows]), y[rows])
        loss.backward()
        slots = {n: p.grad for n, p in module.named_parameters()}
        gradient = torch.empty(model.layout.size, dtype=torch.float64)
        for slot in model.slots:
            slot.view(gradient).copy_(slots[slot.name])
        down, movement = -gradient.numpy(), stack.params[k] - stack.params[count + k]
        whole = cross_entropy(model.with_row(stack.params[k], stack.buffers[k])(x), y).item()
        for score in scores:
            if isinstance(score, Loss):
                value = -whole
            elif isinstance(score, BatchLoss):
                value = -loss.item() * (len(rows) if score.total else 1)
            elif score.euclidean:
                value = -np.linalg.norm(0.1 * 0.5**3 * down - movement)
            else:
                length = np.linalg.norm(down) * np.linalg.norm(movement)
                value = down @ movement / length if length else 0.0
            found[k] += score.weight * value
    return found


def choice(federation, scores, stack, **options):
    """What every client chooses, rows of references behind the models."""
    everyone = np.arange(len(federation.names))
    task = Task(choose=scores, fit=(FIT,), **options)
    return federation.ask(task, in_two(stack), np.zeros_like(everyone), everyone, KEY)


def in_two(stack):
    """The first half of the rows as models, the others as references."""
    count = len(stack) // 2
    return Sent(stack.take(slice(count)), stack.take(slice(count, None)))


@pytest.fixture(scope="module")
def dense(images, simulator):
    return simulator(images(SIZES, shape=(1, 4, 4)), "mlp(6)", threads=2)


@pytest.fixture(scope="module")
def normed(images):
    data = images(SIZES, shape=(1, 4, 4))
    layers = (lambda: nn.Conv2d(1, 3, 3), lambda: nn.BatchNorm2d(3), nn.Tanh, nn.Flatten, lambda: nn.Linear(12, 4))
    return Simulator(data, Model("mine", lambda: nn.Sequential(*(make() for make in layers)), data.shape, 4), threads=2)


class TestScores:
    @pytest.mark.parametrize("name", SCORES)
    @pytest.mark.parametrize("net", ["dense", "normed"])
    def test_every_plan_and_runtime_chooses_as_plain_autograd_does(self, request, net, name):
        sim = request.getfixturevalue(net)
        stack = make_stack(sim.model)
        wanted = [reference(sim, SCORES[name], stack, c).argmax() for c in range(len(SIZES))]
        federations = [Simulator(sim.data, sim.model, threads=1, plan=plan) for plan in PLANS]
        for federation in (*federations, Loopback(sim.data, sim.model)):
            assert choice(federation, SCORES[name], stack).rows.tolist() == wanted
        assert len(set(wanted)) > 1, "a choice that never varies would show nothing"

    @pytest.mark.parametrize("plan", PLANS)
    @pytest.mark.parametrize("net", ["dense", "normed"])
    def test_the_numbers_themselves_are_those_of_plain_autograd(self, request, net, plan):
        sim = request.getfixturevalue(net)
        stack, everyone, workers = make_stack(sim.model), np.arange(len(SIZES)), sim.engine.workers
        pool = Pool(sim.data.train, torch.empty(0).double())
        work = Work(
            model=sim.model,
            pool=pool,
            names=sim.names,
            sent=in_two(stack),
            rows=everyone,
            clients=everyone,
            key=KEY,
            out=stack,
        )
        for score in (Agreement(), Agreement(euclidean=True)):
            seen = preview(work, FIT, score, make_plan(plan, sim.model, len(SIZES), 2), workers)
            for found, part in ((seen.losses, BatchLoss(-1.0)), (seen.agreements, score)):
                wanted = [reference(sim, (part,), stack, c) for c in everyone]
                np.testing.assert_allclose(found, wanted, atol=1e-10)

    def test_a_total_loss_outweighs_the_agreement_that_a_mean_loss_does_not(self, lines, simulator):
        """Losses 1.21 and 0.49 of models at -0.2, on its way up, and 0.2, on its way down, for four examples of 0.9.

        0.6 - 0.45 * 1.21 = 0.06 > -0.6 - 0.45 * 0.49 = -0.82; four times the losses give -1.58 < -1.48.
        """
        sim = simulator(lines((0.9,), (2,)), "linear", threads=1)
        stack = Stack(np.array([[-0.2, 0.0], [0.2, 0.0], [-0.5, 0.0], [0.5, 0.0]]), np.zeros((4, 0)))
        for total in (False, True):
            assert choice(sim, (Agreement(0.6), BatchLoss(0.45, total)), stack).rows.tolist() == [int(total)]

    @pytest.mark.parametrize("plan", PLANS)
    def test_the_choice_leaves_no_trace_in_the_training(self, normed, dense, plan):
        """What is trained from the chosen row is what is trained when the row is named."""
        for sim in (normed, dense):
            federation, stack = Simulator(sim.data, sim.model, threads=1, plan=plan), make_stack(sim.model)
            chosen = choice(federation, SCORES["joint"], stack)
            named = federation.ask(Task(fit=(FIT,)), Sent(stack), chosen.rows, chosen.clients, KEY)
            np.testing.assert_allclose(chosen.params, named.params, atol=1e-12)
            np.testing.assert_allclose(chosen.buffers, named.buffers, atol=1e-12)

    @pytest.mark.parametrize(
        ("gradient", "movement", "cosine", "distance"),
        [([-3.0, 0.0], [2.0, 0.0], 1.0, -1.7), ([3.0, 0.0], [2.0, 0.0], -1.0, -2.3), ([1.0, 1.0], [0.0, 0.0], 0, -0.1)],
        ids=["with it", "against it", "no movement"],
    )
    def test_to_go_on_the_way_the_model_came_scores_high(self, gradient, movement, cosine, distance):
        gradient, movement = torch.tensor(gradient), torch.tensor(movement)
        assert agree(gradient, movement, Agreement(), 0.1).item() == pytest.approx(cosine)
        length = agree(gradient, movement, Agreement(euclidean=True), 0.1).item()
        assert length == pytest.approx(distance if cosine else -(0.02**0.5))

    def test_the_printed_sign_scores_a_matching_client_lowest(self):
        """For the record: the gradient points up the loss, and models move down."""
        gradient, movement = torch.tensor([-3.0, 0.0]), torch.tensor([2.0, 0.0])
        assert agree(gradient, movement, Agreement(printed=True), 0.1).item() == pytest.approx(-1.0)
        assert agree(gradient, movement, Agreement(euclidean=True, printed=True), 0.1).item() == pytest.approx(-2.3)
        scores = (build_algorithm(f"joint(sign={sign})").task for sign in ("descent", "printed"))
        state = SimpleNamespace(round=1, memory=Pinned({}), stack=())
        assert [task(state).choose[0].printed for task in scores] == [False, True]
        with pytest.raises(UsageError, match="sign is 'up'; it must be descent or printed"):
            build_algorithm("joint(sign=up)")

    def test_a_model_that_diverged_is_never_chosen(self, dense):
        stack = make_stack(dense.model)
        stack.params[0] = np.nan
        assert 0 not in choice(dense, SCORES["joint"], stack).rows

    def test_a_minibatch_must_be_that_of_a_pass(self):
        with pytest.raises(UsageError, match="fit is empty; it must be a pass"):
            Task(choose=(BatchLoss(),))

    def test_one_pass_over_the_minibatch_is_counted_for_every_model(self, dense):
        """min(8, size) examples of each client, 4 models; loss and gradient come from the same pass."""
        seen = 3 + 7 + 6 * 8 - 8
        for name in ("mean loss", "joint"):
            assert choice(dense, SCORES[name], make_stack(dense.model)).cost.evaluations == 4 * seen
        both = choice(dense, SCORES["with the loss on everything"], make_stack(dense.model)).cost.evaluations
        assert both == 4 * (seen + sum(SIZES))

    def test_a_client_that_cannot_look_is_missing_with_the_reason(self, images):
        """Batch normalisation of vectors cannot learn from a minibatch of one example."""
        data = images(sizes=(1, 8, 16))

        def build():
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

        model = Model("mine", build, data.shape, 4)
        for federation in (Simulator(data, model, plan="native"), Loopback(data, model)):
            replies = choice(federation, SCORES["joint"], make_stack(model))
            assert replies.clients.tolist() == [1, 2]
            assert "ValueError" in replies.missing["client-0"]


class TestJoint:
    def test_without_similarity_it_chooses_as_ifca_does(self, images, simulator):
        """From round 1 on, from the same states, where the minibatch is all that a client has."""
        sim, fit = simulator(images(), threads=2), Fit(steps=1, batch=100, lr=0.05)
        plain = replace(ifca(2, start="random", fit=fit), weigh=uniform)
        run = list(islice(rounds(joint(2, strength=0.0, fit=fit), sim, 1), 6))
        for before, done in pairwise(run):
            again = next(rounds(plain, sim, 1, state=before.state))
            assert again.state.labels.tolist() == done.state.labels.tolist()
            np.testing.assert_array_equal(again.state.stack.params, done.state.stack.params)

    def test_the_minibatch_of_the_choice_is_that_of_the_step(self, train, dense):
        """The loss reported is that of the step; the least over models is what the choice saw."""
        done = train("joint(strength=0)", dense, 3, fit=replace(FIT, batch=4))[-1]
        losses = []
        for client, name in enumerate(dense.names):
            x, y = (torch.from_numpy(part) for part in dense.data.train.of(client))
            rows = draw(len(y), replace(FIT, batch=4), Key(1, 2).generator(name, "batches", 0)).rows(0)
            models = [dense.model.with_row(*row) for row in zip(*done.before.stack, strict=True)]
            losses.append(min(cross_entropy(module(x[rows]), y[rows]).item() for module in models))
        np.testing.assert_allclose(done.replies.training_loss, losses, atol=1e-6)

    def test_the_printed_sign_sends_clients_away_from_models_that_go_their_way(self, lines, simulator):
        """Two models at -0.2 and 0.2 that come from 0: clients of slope 0.9 and -0.9 would go on with one of them.

        Their losses, (0.9 + 0.2)^2 and (0.9 - 0.2)^2, differ by 0.72; at strength 0.9 the similarities, +-1, decide.
        """
        sim = simulator(lines((0.9, -0.9), (2, 2)), "linear", threads=1)
        stack = Stack(np.array([[-0.2, 0.0], [0.2, 0.0], [0.0, 0.0], [0.0, 0.0]]), np.zeros((4, 0)))
        assert choice(sim, (Agreement(0.9), BatchLoss(0.1)), stack).rows.tolist() == [1, 0]
        assert choice(sim, (Agreement(-0.9), BatchLoss(0.1)), stack).rows.tolist() == [0, 1]

    def test_first_labels_are_random_and_every_model_is_sent_from_round_1_on(self, train, dense):
        done = train("joint", dense, 2, clusters=3)
        begun = [train("joint", dense, 1, clusters=3, seed=seed)[0] for seed in range(1, 6)]
        assert len({tuple(each.state.labels) for each in begun}) > 1
        for each in begun:
            assert each.before.labels.tolist() == each.state.labels.tolist()
            assert each.cost.evaluations == 0
        row = dense.model.layout.size * 4
        assert [step.cost.bytes_down for step in done] == [7 * (row + 8), 7 * (2 * 3 * row + 8)]

    def test_clients_weigh_the_same_whatever_their_size(self, train, dense):
        one = train("joint(clusters=1)", dense, 2, fit=FIT)[-1]
        wanted = list(islice(rounds(replace(fedavg(fit=FIT), weigh=uniform), dense, 1), 2))[-1]
        np.testing.assert_allclose(one.state.stack.params, wanted.state.stack.params, atol=1e-7)
        np.testing.assert_allclose(one.replies.params.mean(0), one.state.stack.params[0], atol=1e-6)

    def test_it_takes_one_step_whatever_the_fit_says(self, train, dense):
        for fit in (Fit(steps=5), Fit(epochs=3)):
            assert joint(2, fit=fit).fit.minibatches(1000) == 1
            assert train("joint", dense, 1, fit=fit)[0].cost.steps == len(SIZES)

    def test_knowledge_is_shared_with_the_mean_of_the_models_and_not_with_one_of_the_round_before(self, train, lines):
        """Four rows of references would be two too many: T_k came from somewhere, and the mean stands last."""
        sim = Simulator(lines((1.0, -1.0), (2, 2)), build_linear(), threads=1)
        fit, state = Fit(steps=1, batch=100, lr=0.05, momentum=0.0), begun([0.5, -0.3], [0, 1])
        done = train("joint(strength=0)+cks(strength=2)", sim, 1, fit=fit, state=state)[0]
        moving = train("joint+cks(strength=2)", sim, 1, fit=fit, state=state)[0]
        for step in (done, moving):
            assert step.state.labels.tolist() == [0, 1]
            wanted = [w - 0.05 * (2 * (w - slope) + 2 * (w - 0.1)) for w, slope in ((0.5, 1.0), (-0.3, -1.0))]
            assert step.state.stack.params[:, 0].tolist() == pytest.approx(wanted, abs=1e-12)

    @pytest.mark.parametrize("argument", ["strength=1.5", "strength=-0.1", "similarity=manhattan"])
    def test_arguments_out_of_range_are_refused(self, argument):
        with pytest.raises(UsageError, match=f"{argument.partition('=')[0]} is .*; it must be"):
            build_algorithm(f"joint({argument})")


def build_linear():
    return Model("linear", lambda: nn.Linear(1, 1), (1,), None)


def begun(weights, labels):
    """Round 1 with these weights and no bias, which came from 0."""
    params = np.array([[w, 0.0] for w in weights])
    state = first_state(Stack(params, np.zeros((len(weights), 0))), np.array(labels))
    before = Stack(np.zeros_like(params), state.stack.buffers)
    return replace(state, round=1, previous=before, memory=Pinned({}))


class TestPinned:
    def test_one_client_of_each_cluster_stays_there_for_ever(self, train, dense):
        done = train("joint(pinned=true)", dense, 8, clusters=3)
        rows = done[0].state.memory.rows
        assert sorted(rows.values()) == [0, 1, 2]
        for step in done:
            assert {name: step.state.labels[dense.names.index(name)] for name in rows} == rows
        assert len({tuple(step.state.labels) for step in done}) > 1, "the others move"

    def test_it_takes_the_row_although_its_scores_say_another(self, dense):
        stack = make_stack(dense.model)
        free = choice(dense, SCORES["joint"], stack).rows
        other = int(free[2] + 1) % 4
        for federation in (dense, Loopback(dense.data, dense.model)):
            held = choice(federation, SCORES["joint"], stack, pinned=((dense.names[2], other), ("nobody", 3))).rows
            assert held[2] == other
            assert np.delete(held, 2).tolist() == np.delete(free, 2).tolist()

    def test_who_is_pinned_depends_on_the_seed_and_not_on_the_order_of_clients(self, train, dense, simulator):
        turned = simulator(dense.data.select(range(len(SIZES))[::-1]), "mlp(6)")
        drawn = [train("joint(pinned=true)", dense, 1, seed=seed)[0].state.memory for seed in range(1, 6)]
        assert drawn[0] == train("joint(pinned=true)", turned, 1)[0].state.memory
        assert len({str(each) for each in drawn}) > 1


def same_every_time():
    """A network whose initial weights are not drawn."""

    def build():
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
        nn.init.zeros_(net[1].weight)
        nn.init.zeros_(net[1].bias)
        return net

    return Model("zeros", build, (1, 4, 4), 4)


class TestIdenticalStarts:
    def test_everyone_chooses_the_first_and_it_is_fedavg_for_ever(self, train, dense, caplog):
        sim = Simulator(dense.data, same_every_time(), threads=1)
        collapsed, average = (train(text, sim, 4) for text in ("ifca(start=random)", "fedavg"))
        for one, other in zip(collapsed, average, strict=True):
            assert one.state.labels.tolist() == [0] * len(SIZES)
            assert np.array_equal(one.state.stack.params[0], other.state.stack.params[0])
            assert not one.state.stack.params[1].any(), "nobody ever trains the second"
        assert len(caplog.records) == 1
        assert "all 2 cluster models are equal at the start" in caplog.text
        assert "collapses into fedavg; use start=farthest" in caplog.text

    def test_the_warning_comes_with_joint_too(self, train, dense, caplog):
        train("joint", Simulator(dense.data, same_every_time(), threads=1), 1, clusters=3)
        assert "all 3 cluster models are equal" in caplog.text

    @pytest.mark.parametrize("text", ["ifca", "ifca(start=random)", "ifca(clusters=1)", "joint", "wecfl", "fedavg"])
    def test_models_that_differ_and_methods_that_do_not_choose_pass_in_silence(self, train, dense, caplog, text):
        train(text, dense, 1)
        assert not caplog.records

    def test_the_default_start_of_ifca_tells_even_such_models_apart(self, train, dense, caplog):
        train("ifca", Simulator(dense.data, same_every_time(), threads=1), 1)
        assert not caplog.records
