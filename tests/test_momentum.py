"""Momentum kept from round to round: as one torch optimiser a client that lives as long as the run."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coterie.algorithms import build_algorithm, keeping_momentum
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.engine.local_training import draw
from coterie.errors import Refused, UsageError
from coterie.experiments.checkpoint import load_checkpoint
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import RunFolder
from coterie.experiments.settings import Settings
from coterie.models.zoo import build_model
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.loop import rounds
from coterie.server.serving import evaluate

FIT = Fit(steps=3, batch=8, lr=0.05, momentum=0.9)
SIZES = (24, 9, 17)


def fedavg_by_torch(sim, fit, seed, count, kept):
    """FedAvg with one SGD for each client, made anew every round or once; returns the model after each round."""
    data, model = sim.data, sim.model
    state = model.initial(Key(seed, -1).number("model", 0))
    modules = [model.with_row(*state).train() for _ in data.names]
    optimizers = [torch.optim.SGD(m.parameters(), lr=fit.lr, momentum=fit.momentum) for m in modules]
    sizes, found, current = data.train.sizes, [], state[0]
    for number in range(count):
        rows = []
        for client, module in enumerate(modules):
            with torch.no_grad():
                for slot in model.slots:
                    dict(module.named_parameters())[slot.name].copy_(slot.view(torch.from_numpy(current.copy())))
            if not kept:
                optimizers[client] = torch.optim.SGD(module.parameters(), lr=fit.lr, momentum=fit.momentum)
            x, y = (torch.from_numpy(part) for part in data.train.of(client))
            batches = draw(len(y), fit, Key(seed, number).generator(data.names[client], "batches", 0))
            for step in range(len(batches)):
                optimizers[client].zero_grad()
                cross_entropy(module(x[batches.rows(step)]), y[batches.rows(step)]).backward()
                optimizers[client].step()
            rows.append(model.flatten(module)[0])
        current = (np.array(rows, dtype=np.float64).T @ (sizes / sizes.sum())).T.astype(np.float32)
        found.append(current)
    return found


@pytest.mark.parametrize("plan", ["native", "single", "workers", "lockstep"])
@pytest.mark.parametrize("fit", [FIT, replace(FIT, steps=None, epochs=2)], ids=["steps", "epochs of other lengths"])
@pytest.mark.parametrize("model", ["mlp(6)", "lenet"])
def test_it_is_an_optimiser_that_lives_as_long_as_the_run(images, fit, plan, model):
    data = images(SIZES, shape=(1, 16, 16))
    sim = Simulator(data, build_model(model, data.shape, data.classes), threads=1, plan=plan)
    kept, reset = (fedavg_by_torch(sim, fit, 1, 3, kept) for kept in (True, False))
    done = list(islice(rounds(keeping_momentum(build_algorithm("fedavg", fit=fit)), sim, 1), 3))
    for step, wanted in zip(done, kept, strict=True):
        np.testing.assert_allclose(step.state.stack.params[0], wanted, rtol=0, atol=2e-6)
    assert np.abs(kept[2] - reset[2]).max() > 1e-3, "it matters"


def test_halves_of_a_sum_and_members_of_an_ensemble_have_momenta_of_their_own(images):
    algorithm = keeping_momentum(build_algorithm("vote(fedavg,wecfl)+cam", 2, FIT))
    sim = Simulator(images(), algorithm.network(build_model("mlp(6)", (1, 8, 8), 4)))
    list(islice(rounds(algorithm, sim, 1), 2))
    names = [f"{member}/{half}/client-{i}" for member in (0, 1) for half in ("cluster", "global") for i in range(8)]
    assert sorted(sim.kept) == sorted(names)
    assert not np.array_equal(sim.kept["0/cluster/client-0"], sim.kept["1/cluster/client-0"])
    layout = sim.model.layout
    assert not sim.kept["0/cluster/client-0"][layout.part("global")].any()


def test_what_is_trained_for_a_test_leaves_it_alone(images, simulator):
    algorithm, sim = keeping_momentum(build_algorithm("wecfl+finetune", 2, FIT)), simulator(images())
    state = list(islice(rounds(algorithm, sim, 1), 2))[-1].state
    before = {name: row.copy() for name, row in sim.kept.items()}
    evaluate(algorithm, sim, state, seed=1)
    assert all(np.array_equal(before[name], row) for name, row in sim.kept.items())


@pytest.mark.parametrize("text", ["wecfl+cam", "fedavg-ensemble(members=2)"])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, text):
    settings = Settings(text, clients=6, clusters=2, partition="rotation(0,180)", model="mlp(8)", rounds=5, steps=3)
    settings = replace(settings, momentum_kept=True, participation=0.7)
    whole = run_settings(settings)

    def stops(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_settings(settings, tmp_path / "run", progress=stops)
    assert load_checkpoint(tmp_path / "run" / "state.safetensors")[1]
    resumed = run_settings(settings, tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.state.stack.params, whole.state.stack.params)
    folder = RunFolder(tmp_path / "run")
    folder.resume()
    assert folder.kept.keys() == load_checkpoint(tmp_path / "run" / "state.safetensors")[1].keys()


def test_where_nothing_can_be_kept_it_is_refused():
    with pytest.raises(UsageError, match=r"needs --runtime simulator, not ray"):
        Settings("fedavg", momentum_kept=True, runtime="ray")
    order = Order({"algorithm": "fedavg", "momentum_kept": True}, "out", "board", ("a", "b"), minimum=2, timeout=60.0)
    with pytest.raises(UsageError, match="sites keep nothing between rounds; leave it out"):
        order.experiment()
    with pytest.raises(Refused, match="sites keep nothing between rounds"):
        Policy().check_task(Task(fit=(replace(FIT, keeps="0"),)), models=1, served=1, sizes={"train": 50})
    with pytest.raises(UsageError, match=r"the momentum to keep is 0\.0 of sgd; it must be sgd's, above 0"):
        Settings("fedavg", momentum_kept=True, momentum=0.0)
    with pytest.raises(UsageError, match=r"the momentum to keep is 0\.9 of adam"):
        Fit(optimizer="adam", keeps="0")


def test_a_run_interrupted_in_the_middle_of_a_round_goes_on_with_the_momenta_of_the_round_before(tmp_path, monkeypatch):
    settings = Settings("fedavg", clients=6, partition="rotation(0,180)", model="mlp(8)", rounds=4, steps=3)
    settings = replace(settings, momentum_kept=True, checkpoint_every=10)  # so that the interruption itself saves
    whole, ask, asked = run_settings(settings), Simulator.ask, []

    def interrupted(self, task, *rest):
        replies = ask(self, task, *rest)
        asked.append(bool(task.fit))
        if sum(asked) == 3 and task.fit:
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(Simulator, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_settings(settings, tmp_path / "run")
    monkeypatch.undo()
    resumed = run_settings(settings, tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.state.stack.params, whole.state.stack.params)


def test_a_client_that_went_astray_once_begins_anew(images, simulator):
    """Its momentum was not finite for ever, and it was missing from every further round."""
    sim = simulator(images())
    algorithm = keeping_momentum(build_algorithm("fedavg", fit=FIT))
    first, *_ = islice(rounds(algorithm, sim, 1), 1)
    sim.kept["0/all/client-0"] = np.full(sim.model.layout.size, np.inf, np.float32)
    done = list(islice(rounds(algorithm, sim, 1, first.state), 2))
    assert [0 in step.replies.clients for step in done] == [False, True]
