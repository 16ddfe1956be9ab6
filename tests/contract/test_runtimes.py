"""Every runtime gives the same labels and models, and costs what is really packed."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from torch import nn

from coterie.algorithms import algorithms, build_algorithm
from coterie.data import load
from coterie.errors import FederationError
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.server.distances import vectors as distances
from coterie.server.loop import rounds
from coterie.server.serving import evaluate
from coterie.testing import Loopback
from coterie.wire import codec, remote

ADDED = ["wecfl+cks", "ifca+con-rep", "fesem+con-cks", "ifca+cam(warmup=1)", "fesem+cam(sequential=true)"]
ADDED += ["ifca+cam(alternate=true)", "wecfl+con-para+cam(warmup=2)", "wecfl+cks+cam", "joint+cam"]
EVERY = [*algorithms, *ADDED, "joint(pinned=true)+cks", "ifca(choose=race)", "lcfl(cross=sampled)"]
EVERY += ["lcfl(loss=zero-one)", "lcfl(iterations=3)"]


@pytest.fixture(scope="module")
def digits():
    return load("digits").partition("rotation(0,180)", clients=6, seed=1)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("model", ["mlp(8)", "cnn"])
def test_bytes_to_one_client_at_a_time_equal_the_simulator(digits, name, model):
    """The same models and labels, at a cost that is both the simulator's and that of the bytes really packed."""
    algorithm = build_algorithm(name, clusters=2, fit=Fit(steps=2))
    net = algorithm.network(build_model(model, digits.shape, digits.classes))
    near, far = Simulator(digits, net, plan="native"), Loopback(digits, net)
    ours = list(islice(rounds(algorithm, near, 1), 2))
    theirs = list(islice(rounds(algorithm, far, 1), 2))
    for a, b in zip(ours, theirs, strict=True):
        assert a.state.labels.tolist() == b.state.labels.tolist()
        np.testing.assert_allclose(a.state.stack.params, b.state.stack.params, rtol=0, atol=1e-6)
        np.testing.assert_allclose(a.state.stack.buffers, b.state.stack.buffers, rtol=0, atol=1e-6)
        assert a.cost == b.cost
    assert sum(step.cost.bytes_down for step in theirs) == far.payload.bytes_down
    assert sum(step.cost.bytes_up for step in theirs) == far.payload.bytes_up
    mine = evaluate(algorithm, near, ours[-1].state, 1).metrics
    np.testing.assert_allclose(mine, evaluate(algorithm, far, theirs[-1].state, 1).metrics, atol=1e-5)


@pytest.mark.parametrize("name", ["lcfl", "lcfl(losses=models)", "lcfl(loss=clipped,start=medoid)"])
def test_models_in_several_blocks_are_packed_and_counted_like_one(digits, name, monkeypatch):
    """Beside a block that does not hold everybody's model, each client is sent its own where it is compared with it."""
    algorithm = build_algorithm(name, clusters=2, fit=Fit(steps=2))
    net = build_model("mlp(8)", digits.shape, digits.classes)
    near, far = Simulator(digits, net, plan="native"), Loopback(digits, net)
    whole = list(islice(rounds(algorithm, near, 1), 2))
    monkeypatch.setattr(distances, "BLOCK_BYTES", 4 * 4 * net.layout.size)
    ours, theirs = (list(islice(rounds(algorithm, federation, 1), 2)) for federation in (near, far))
    for a, b, c in zip(ours, theirs, whole, strict=True):
        assert a.state.labels.tolist() == b.state.labels.tolist() == c.state.labels.tolist()
        assert a.cost == b.cost
    monkeypatch.setattr(remote, "MOST_BYTES", 1)
    again = list(islice(rounds(algorithm, Loopback(digits, net), 1), 2))
    assert [step.cost for step in again] == [step.cost for step in theirs], "one message at a time costs the same"
    assert np.array_equal(again[-1].state.memory.formed.distances, theirs[-1].state.memory.formed.distances)
    together = ours[0].cost + ours[1].cost
    assert (together.bytes_down, together.bytes_up) == (far.payload.bytes_down, far.payload.bytes_up)
    np.testing.assert_allclose(
        ours[-1].state.memory.formed.distances, whole[-1].state.memory.formed.distances, atol=1e-6
    )


def test_a_client_that_fails_is_missing_in_every_runtime(images):
    """Batch normalisation of vectors cannot learn from a minibatch of one example."""
    data = images(sizes=(9, 8, 16))

    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

    model = Model("mine", build, data.shape, 4)
    algorithm = build_algorithm("fedavg", fit=Fit(epochs=1, batch=8))
    near, far = (next(rounds(algorithm, f, 1)) for f in (Simulator(data, model), Loopback(data, model)))
    assert near.replies.clients.tolist() == far.replies.clients.tolist() == [1, 2]
    assert near.replies.missing == far.replies.missing
    assert near.cost == far.cost


def test_packing_adds_little_to_the_arrays():
    arrays = {"params": np.zeros((3, 1000), np.float32)}
    assert 12_000 < len(codec.encode(arrays, task=codec.to_json(Task(fit=(Fit(),))))) < 13_000


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"nonsense" * 20])
def test_garbage_is_refused_not_executed(content):
    with pytest.raises(FederationError, match="cannot be read"):
        codec.decode(content)


def test_an_unknown_part_is_refused():
    with pytest.raises(FederationError, match="unknown part 'Popen'"):
        codec.from_json({"kind": "Popen", "args": ["sh"]})
