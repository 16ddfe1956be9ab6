"""What a frozen trunk gives is computed once: the numbers are those of the whole network, in every plan and runtime."""

from __future__ import annotations

import logging
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.engine import features
from coterie.engine.engine import Engine
from coterie.models.combined import additive
from coterie.models.given import as_model
from coterie.models.model import Model
from coterie.models.trunk import Rest, rest_of
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.loop import rounds
from coterie.server.serving import evaluate
from coterie.testing import Loopback

SHAPE, CLASSES = (1, 8, 8), 4


def frozen(*layers: nn.Module) -> nn.Sequential:
    """Layers that rest: nothing of them is trained, and they stay in evaluation mode."""
    return nn.Sequential(*layers).eval().requires_grad_(False)


def conv_trunk(normed: bool = True) -> nn.Sequential:
    torch.manual_seed(5)
    trunk = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6) if normed else nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)
    )
    for parameter in trunk.parameters():
        nn.init.normal_(parameter)
    return frozen(*trunk)


def head(width: int = 54, dropout: float = 0.0) -> list[nn.Module]:
    dropped = [nn.Dropout(dropout)] if dropout else []
    return [nn.Flatten(), nn.Linear(width, 8), nn.ReLU(), *dropped, nn.Linear(8, CLASSES)]


class Declared(nn.Module):
    """No Sequential, but it has a trunk."""

    def __init__(self, skip: bool = False):
        super().__init__()
        self.trunk, self.head, self.skip = conv_trunk(), nn.Sequential(*head()), skip

    def forward(self, x):
        out = self.head(self.trunk(x))
        return out + x.mean((1, 2, 3))[:, None] if self.skip else out


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        return x + float(self.generator.normal())


class Moody(nn.Module):
    def forward(self, x):
        return x * 2 if self.training else x


class Whole(nn.Module):
    def forward(self, x):
        return (x.flatten(1) * 3).abs().clamp(max=15).long()


NETS = {
    "a trunk and a head": lambda: nn.Sequential(conv_trunk(), *head()),
    "dropout behind": lambda: nn.Sequential(conv_trunk(), *head(dropout=0.5)),
    "normalisation behind": lambda: nn.Sequential(conv_trunk(), nn.BatchNorm2d(6), *head()),
    "a convolution behind": lambda: nn.Sequential(conv_trunk(), nn.Conv2d(6, 6, 2), nn.ReLU(), *head(24)),
    "declared": Declared,
    "frozen layers in the middle": lambda: nn.Sequential(
        conv_trunk(), nn.Flatten(), nn.Linear(54, 9), frozen(nn.Linear(9, 9)), nn.Linear(9, CLASSES)
    ),
}


def model_of(module: nn.Module, shape: tuple[int, ...] = SHAPE) -> Model:
    return as_model(module, shape, CLASSES)


@pytest.fixture(scope="module")
def data(request):
    return request.getfixturevalue("images")(sizes=(24, 30, 18, 36, 21))


def trained(name: str, data, net: Model, reuse: bool, plan: str = "workers", count: int = 2):
    """The last round of a simulation, and the metrics of its evaluation."""
    algorithm = build_algorithm(name, clusters=2, fit=Fit(steps=3, batch=8))
    net = algorithm.network(net)
    simulator = Simulator(data, net, threads=2, plan=plan)
    simulator.engine = Engine(net, data, threads=2, plan=plan, reuse=reuse)
    *_, last = islice(rounds(algorithm, simulator, 1), count)
    return last, evaluate(algorithm, simulator, last.state, 1).metrics, simulator.engine


def assert_same(one, other, atol: float = 2e-5) -> None:
    (a, scores, _), (b, others, _) = one, other
    assert a.state.labels.tolist() == b.state.labels.tolist()
    np.testing.assert_allclose(a.state.stack.params, b.state.stack.params, rtol=0, atol=atol)
    np.testing.assert_allclose(a.state.stack.buffers, b.state.stack.buffers, rtol=1e-5, atol=atol)
    np.testing.assert_allclose(scores, others, rtol=1e-4, atol=1e-5)


class TestEqualNumbers:
    @pytest.mark.parametrize("plan", ["workers", "lockstep", "single", "native"])
    @pytest.mark.parametrize("name", NETS)
    def test_training_and_evaluation_have_the_numbers_of_the_whole_network(self, data, name, plan):
        net = model_of(NETS[name]())
        found = trained("wecfl", data, net, True, plan)
        assert isinstance(found[2].learner, Rest)
        assert_same(found, trained("wecfl", data, net, False, plan))

    @pytest.mark.parametrize("name", ["ifca", "joint", "lcfl", "ifca+con-rep", "fesem+cks", "ifca(choose=race)"])
    def test_whatever_clients_are_asked(self, data, name):
        net = model_of(NETS["dropout behind"]())
        assert_same(trained(name, data, net, True), trained(name, data, net, False))

    def test_a_sum_of_two_networks_with_the_same_trunk(self, data):
        net = model_of(NETS["a trunk and a head"]())
        one = trained("ifca+cam(warmup=1)", data, net, True)
        assert one[2].learner.cut == (("common.0", "cluster.0"), ("common.1", "cluster.1"))
        assert_same(one, trained("ifca+cam(warmup=1)", data, net, False))

    def test_a_sum_of_two_networks_with_other_trunks_is_left_whole(self):

        def build():
            return nn.Sequential(frozen(nn.Flatten(), nn.Linear(64, 5)), nn.Linear(5, CLASSES))

        net = Model("drawn", build, SHAPE, CLASSES)
        assert rest_of(net) is not None
        assert rest_of(additive(net)) is None

    def test_a_site_has_the_simulators_bits(self, data):
        """Features are computed client by client, so that they do not depend on who is in the same engine."""
        net, algorithm = model_of(NETS["a trunk and a head"]()), build_algorithm("wecfl", 2, Fit(steps=3, batch=8))
        near, far = Simulator(data, net, threads=2, plan="native"), Loopback(data, net)
        ours, theirs = (list(islice(rounds(algorithm, each, 1), 2))[-1] for each in (near, far))
        np.testing.assert_array_equal(ours.state.stack.params, theirs.state.stack.params)

    def test_models_are_judged_with_their_features_computed_once(self, data, monkeypatch):
        net = model_of(NETS["a trunk and a head"]())
        engines = [Engine(net, data, threads=1, reuse=reuse) for reuse in (True, False)]
        stack = Stack(*(part[None] for part in net.initial(1)))
        np.testing.assert_allclose(*(e.judge(stack, data.test.take([np.arange(9)])) for e in engines), rtol=1e-5)
        split = data.test.take([np.arange(20)])
        first = engines[0].judge(stack, split)
        monkeypatch.setattr("coterie.engine.engine.with_features", None)
        np.testing.assert_array_equal(engines[0].judge(stack, split), first)

    def test_double_precision_stays_double(self, data):
        net = model_of(NETS["a trunk and a head"]())
        engine = Engine(net, data, threads=1)
        wide = Stack(*(part[None].astype(np.float64) for part in net.initial(1)))
        everyone = np.arange(len(data))
        task = Task(report=Report(params=None, evaluate_on="test"))
        found, narrow = (
            engine.run(task, Sent(stack), np.zeros(len(data), int), everyone, Key(1, 0)).metrics
            for stack in (wide, Stack(*(part.astype(np.float32) for part in wide)))
        )
        np.testing.assert_allclose(found, narrow, rtol=1e-4)
        assert engine._pools["test", torch.float64].x.dtype == torch.float64

    def test_client_functions_and_served_models_see_the_whole_network(self):
        clients = ct.load("digits").partition("rotation(0,180)", clients=4, seed=1)
        net = nn.Sequential(conv_trunk(), nn.Flatten(), nn.Linear(54, 10))
        done = ct.run("fedavg", clients, net, rounds=2, steps=2)
        x, y = clients.test.of(0)
        assert len(done.model_for(0)) == 3
        assert torch.equal(done.model_for(0)[0][0].weight, net[0][0].weight)
        assert (done.predict(x, 0) == np.array(clients.class_names)[y]).mean() == pytest.approx(
            done.results.trained.members[0]["accuracy"]
        )


class TestTrunk:
    @pytest.mark.parametrize(
        ("net", "cut"),
        [
            (lambda: nn.Sequential(conv_trunk(), *head()), ["0", "1"]),
            (lambda: nn.Sequential(nn.Sequential(conv_trunk(), nn.Conv2d(6, 6, 1)), *head()), ["0.0"]),
            (lambda: nn.Sequential(frozen(nn.Flatten()), nn.Linear(64, CLASSES)), None),
            (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), None),
            (lambda: Declared(), ["trunk"]),
            (lambda: Declared(skip=True), None),
            (lambda: nn.Sequential(conv_trunk(), nn.Dropout(0.5), *head()), ["0"]),
            (lambda: nn.Sequential(conv_trunk(), Centred(), *head()), ["0"]),
            (lambda: nn.Sequential(conv_trunk(), Noisy(), *head()), ["0"]),
            (lambda: nn.Sequential(conv_trunk(), Moody(), *head()), ["0"]),
            (lambda: nn.Sequential(Noisy(), conv_trunk(), *head()), None),
            (
                lambda: nn.Sequential(nn.Sequential(*conv_trunk(), nn.Dropout(0.5)), *head()),
                ["0.0", "0.1", "0.2", "0.3"],
            ),
            (lambda: nn.Sequential(Whole(), nn.Embedding(16, 3).requires_grad_(False), *head(192)), ["0", "1", "2"]),
            (lambda: nn.Sequential(frozen(nn.Linear(8, 8)), Whole(), nn.Embedding(16, 3), *head(192)), ["0"]),
        ],
    )
    def test_it_is_the_longest_row_of_leading_layers_that_may_be_kept(self, net, cut):
        rest = rest_of(model_of(net()))
        assert (rest and [name for layer in rest.cut for name in layer]) == cut

    def test_normalisation_by_batches_ends_it_unless_it_rests(self):
        layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.MaxPool2d(2)]
        awake = nn.Sequential(nn.Sequential(*layers).requires_grad_(False), *head())
        assert rest_of(model_of(awake)).cut == (("0.0",),)
        assert model_of(awake).layout.buffer_size == 12
        awake[0].eval()
        assert rest_of(model_of(awake)).cut == (("0",), ("1",))
        assert model_of(awake).layout.buffer_size == 0

    def test_one_layer_in_two_places_is_kept_in_the_other(self, data):
        twist = nn.Softplus()
        trunk = [frozen(nn.Conv2d(1, 6, 3)), twist, nn.MaxPool2d(2), frozen(nn.Conv2d(6, 6, 1)), twist]
        model = model_of(nn.Sequential(*trunk, nn.Flatten(), nn.Linear(54, 8), twist, nn.Linear(8, CLASSES)))
        assert len(rest_of(model).cut) == 6
        assert_same(*(trained("fedavg", data, model, reuse) for reuse in (True, False)))

    def test_its_parts_and_default_rate_are_those_of_the_whole(self):
        net = model_of(NETS["a trunk and a head"]())
        rest = rest_of(net)
        assert (rest.layout, rest.homes, rest.default_lr) == (net.layout, net.homes, 0.01)
        assert not rest.is_convolutional
        assert rest.can_lockstep


class TestMemory:
    def test_features_that_are_far_larger_than_the_examples_are_not_stored_and_it_is_said_once(
        self, data, monkeypatch, caplog
    ):
        net = model_of(nn.Sequential(frozen(nn.Flatten(), nn.Linear(64, 400)), nn.Linear(400, CLASSES)))
        monkeypatch.setattr(features, "MOST", 1000)
        with caplog.at_level(logging.WARNING):
            engines = [Engine(net, data, threads=1) for _ in range(2)]
        assert [engine.learner for engine in engines] == [net, net]
        (line,) = caplog.messages
        assert "6 times the examples: they are computed anew in every step" in line

    def test_large_features_of_small_ratio_go_to_a_mapped_file(self, data, monkeypatch):
        net = model_of(NETS["a trunk and a head"]())
        monkeypatch.setattr(features, "MOST", 1000)
        monkeypatch.setattr("coterie.data.array_memory.LIMIT", 1000)
        one = trained("fedavg", data, net, True)
        assert isinstance(one[2].learner, Rest)
        assert_same(one, trained("fedavg", data, net, False))


def data_and_network(kind):
    """Data of one kind of task, and a network with a frozen trunk for it."""
    rng = np.random.default_rng(2)
    x, tokens = rng.normal(size=(30, 5)), rng.integers(0, 9, size=(30, 4))
    trunk = frozen(nn.Linear(5, 6), nn.ReLU())
    if kind == "labels":
        return ct.from_arrays(dict.fromkeys("abc", (x, (x[:, :3] > 0) * 1))), nn.Sequential(trunk, nn.Linear(6, 3))
    if kind == "targets":
        return ct.from_arrays(dict.fromkeys("abc", (x, x[:, :2] * 2 + 1))), nn.Sequential(trunk, nn.Linear(6, 2))
    embedded = nn.Sequential(frozen(nn.Embedding(9, 3)), nn.Flatten(), nn.Linear(12, 2))
    return ct.from_arrays(dict.fromkeys("abc", (tokens, x[:, 0] > 0)), tokens=True), embedded


@pytest.mark.parametrize("kind", ["labels", "targets", "tokens"])
def test_features_serve_every_kind_of_task(kind):
    data, module = data_and_network(kind)
    model = as_model(module, data.shape, data.classes, data.columns, data.vocabulary)
    assert isinstance(rest_of(model), Rest)
    sent = Sent(Stack(*(part[None] for part in model.initial(0))))
    task = Task(fit=(Fit(steps=3, batch=8, lr=0.05),), report=Report(evaluate_on="test"))
    engines = [Engine(model, data, threads=1, plan="workers", reuse=reuse) for reuse in (True, False)]
    kept, whole = (each.run(task, sent, np.zeros(3, int), np.arange(3), Key(1, 0)) for each in engines)
    np.testing.assert_allclose(kept.params, whole.params, atol=1e-6)
    np.testing.assert_allclose(kept.metrics, whole.metrics, atol=1e-6)
