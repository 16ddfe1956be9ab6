"""Ray workers give the simulator's numbers, and a worker that dies costs its clients one exchange."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.cli.main import app
from coterie.engine.plan import make_plan
from coterie.errors import DataError, FederationError, UnknownName, UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings
from coterie.models.combined import additive
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.replies import ROWS
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.ray import QUIET, RayFederation, deal
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.loop import Conditions, rounds
from coterie.server.serving import evaluate

ray = pytest.importorskip("ray")

SIZES = (24, 30, 18, 36, 24, 27, 32, 17, 20, 31, 26, 22)
EVERYBODY = np.arange(len(SIZES))
SHORT = Fit(steps=2, batch=8, lr=0.05)
SAME = [
    "fedavg",
    "wecfl",
    "ifca(choose=race)",
    "ocfl-hdbscan",
    "lcfl",
    "lcfl(cross=sampled)",
    "joint",
    "vote(fedavg,ifca)",
    "wecfl+cks",
    "fedavg+finetune",
]
SMALL = Settings("wecfl", clients=8, rounds=3, steps=2, clusters=2, partition="rotation(0,180)", plan="workers")


def network():
    """Convolution, both kinds of buffers, and a layer that cannot learn from a minibatch of one example."""
    images = (nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*images, nn.Linear(108, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def with_trunk():
    trunk = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()).eval().requires_grad_(False)
    return nn.Sequential(trunk, nn.Linear(108, 5), nn.Dropout(0.5), nn.Linear(5, 4))


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=8, include_dashboard=False, **QUIET)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def pair(cluster, images):
    """A simulator and Ray workers for a network: the same ones for all tests that use it."""
    data = images(sizes=SIZES)
    kinds = {
        "images": lambda: Model("mine", lambda: network(), data.shape, 4),
        "halves": lambda: additive(build_model("mlp(16)", data.shape, 4)),
        "trunk": lambda: Model("trunk", lambda: with_trunk(), data.shape, 4),
    }
    made = {}

    def make(kind):
        if kind not in made:
            net = kinds[kind]()
            made[kind] = tuple(federation(data, net, 2, plan="workers") for federation in (Simulator, RayFederation))
        return made[kind]

    yield make
    for _, far in made.values():
        far.close()


def start(federation, models=3):
    """Some models to begin with."""
    return Stack(*map(np.array, zip(*(federation.model.initial(seed) for seed in range(models)), strict=True)))


def assert_same(near, far, exact=True):
    assert near.clients.tolist() == far.clients.tolist()
    assert near.missing == far.missing
    assert near.cost == far.cost
    for name in ROWS:
        ours, theirs = getattr(near, name), getattr(far, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            close = 1e-6 if exact else 1e-5
            bound = 0 if exact and name in ("rows", "examples", "params", "buffers") else close
            np.testing.assert_allclose(theirs, ours, rtol=bound, atol=bound, err_msg=name)


def assert_same_states(ours, theirs):
    for a, b in zip((ours, *ours.members), (theirs, *theirs.members), strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.stack.params, b.stack.params)
        np.testing.assert_array_equal(a.stack.buffers, b.stack.buffers)


def assert_same_rounds(name, near, far, **options):
    algorithm = build_algorithm(name, clusters=2, fit=SHORT)
    ours, theirs = (
        list(islice(rounds(algorithm, each, 1, conditions=Conditions(**options)), 3)) for each in (near, far)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert_same_states(a.state, b.state)
        assert a.cost == b.cost
    for split in ("test", "train"):
        mine, yours = (evaluate(algorithm, each, ours[-1].state, 1, split=split) for each in (near, far))
        np.testing.assert_allclose(yours.metrics, mine.metrics, rtol=1e-6, atol=1e-6)


class TestSameNumbers:
    @pytest.mark.parametrize("name", SAME)
    def test_models_and_labels_are_bit_for_bit_those_of_the_simulator(self, pair, name):
        assert_same_rounds(name, *pair("images"))

    @pytest.mark.slow  # starts two more workers
    def test_features_of_a_frozen_trunk_are_bit_for_bit_those_of_the_simulator(self, pair):
        near, far = pair("trunk")
        assert near.engine.learner.cut == far.engine.learner.cut == (("0",),)
        assert_same_rounds("ifca", near, far)

    @pytest.mark.parametrize("name", ["ifca+cam(warmup=1)", "fesem+cam(sequential=true)"])
    def test_networks_of_two_halves_too(self, pair, name):
        assert_same_rounds(name, *pair("halves"))

    def test_also_where_only_some_are_asked(self, pair):
        assert_same_rounds("wecfl", *pair("images"), participation=0.4)

    def test_rows_come_in_the_order_asked(self, pair):
        near, far = pair("images")
        clients, labels = np.array([6, 0, 7, 3, 1]), np.array([2, 0, 1, 1, 0])
        task = Task(fit=(SHORT,), report=Report(evaluate_on="test", losses=True))
        both = [each.ask(task, Sent(start(near)), labels, clients, Key(3, 5)) for each in (near, far)]
        assert both[1].clients.tolist() == clients.tolist()
        assert_same(*both)

    def test_a_part_of_a_model_is_all_that_comes_back(self, pair):
        near, far = pair("images")
        task = Task(fit=(SHORT,), report=Report(params="head"))
        assert_same(*(each.ask(task, Sent(start(near)), EVERYBODY % 3, EVERYBODY, Key(3, 5)) for each in (near, far)))

    def test_a_client_that_fails_is_missing_for_the_same_reason(self, pair):
        near, far = pair("images")
        task = Task(fit=(replace(SHORT, steps=None, epochs=1),))
        both = [each.ask(task, Sent(start(near)), 0 * EVERYBODY, EVERYBODY, Key(1, 0)) for each in (near, far)]
        assert list(both[1].missing) == ["client-7"]
        assert_same(*both)

    def test_models_that_blew_up_are_missing_too(self, pair):
        near, far = pair("halves")
        task = Task(fit=(replace(SHORT, lr=1e30),))
        both = [each.ask(task, Sent(start(near)), 0 * EVERYBODY, EVERYBODY, Key(1, 0)) for each in (near, far)]
        assert "client-0" in both[1].missing
        assert_same(*both)


class Overheard:
    """A worker whose exchanges are noted."""

    def __init__(self, worker, plans):
        self.worker, self.plans = worker, plans
        self.run = self

    def remote(self, plan, *rest):
        self.plans.append(plan)
        return self.worker.run.remote(plan, *rest)


class TestPlans:
    @pytest.mark.parametrize(("of_first", "of_second", "plan"), [(6, 1, "lockstep"), (5, 0, "workers")])
    def test_the_plan_is_chosen_for_all_clients_not_for_a_worker_s_own(
        self, pair, monkeypatch, of_first, of_second, plan
    ):
        """One client alone would not train in lockstep, and five would; seven on two threads do, five do not."""
        near, far = pair("halves")
        monkeypatch.setattr(near.engine, "plan", "auto")
        monkeypatch.setattr(far, "plan", "auto")
        far.ask(Task(), Sent(start(near)), 0 * EVERYBODY, EVERYBODY, Key(1, 0))
        plans = []
        monkeypatch.setattr(far, "_workers", {i: Overheard(w, plans) for i, w in far._workers.items()})
        first, second = (np.flatnonzero(far.homes == home) for home in (0, 1))
        clients = np.sort(np.concatenate([first[:of_first], second[:of_second]]))
        both = [
            each.ask(Task(fit=(SHORT,)), Sent(start(near)), clients % 3, clients, Key(1, 0)) for each in (near, far)
        ]
        assert_same(*both, exact=False)
        assert set(plans) == {plan}
        assert plan == make_plan("auto", near.model, len(clients), 2).kind

    def test_a_worker_has_one_thread_and_its_own_clients_in_memory_of_its_own(self, pair):
        """Rows that are read-only would lie in the shared memory, and be copied once more to be read."""
        _, far = pair("images")
        far.ask(Task(), Sent(start(far)), 0 * EVERYBODY, EVERYBODY, Key(1, 0))
        names = []
        for home, worker in sorted(far._workers.items()):
            threads, torchs, own, examples, writeable = ray.get(
                worker.__ray_call__.remote(
                    lambda self: (
                        self.engine.workers.count,
                        torch.get_num_threads(),
                        self.engine.data.names,
                        len(self.engine.data.train.x),
                        self.engine.data.train.x.flags.writeable,
                    )
                )
            )
            assert (threads, torchs, writeable) == (1, 1, True)
            assert examples == sum(np.array(SIZES)[far.homes == home])
            names += own
        assert sorted(names) == sorted(far.names)

    def test_replies_beyond_the_limit_are_a_mapped_file(self, pair, monkeypatch):
        near, far = pair("images")
        monkeypatch.setattr(far, "spill", 100)
        task = Task(fit=(SHORT,))
        both = [each.ask(task, Sent(start(near)), 0 * EVERYBODY, EVERYBODY, Key(1, 0)) for each in (near, far)]
        assert isinstance(both[1].params.base, np.memmap)
        assert_same(*both)


class TestDeadWorkers:
    def test_its_clients_are_missing_once_and_another_takes_its_place(self, pair):
        near, far = pair("halves")
        task, stack, labels = Task(fit=(SHORT,)), start(near), EVERYBODY % 3
        first = far.ask(task, Sent(stack), labels, EVERYBODY, Key(1, 0))
        ray.kill(far._workers[1])
        second = far.ask(task, Sent(stack), labels, EVERYBODY, Key(1, 0))
        lost = np.flatnonzero(far.homes == 1)
        assert list(second.missing) == [far.names[i] for i in lost]
        assert all(why.startswith("its Ray worker died: ") for why in second.missing.values())
        assert second.clients.tolist() == np.flatnonzero(far.homes == 0).tolist()
        np.testing.assert_array_equal(second.params, first.params[far.homes == 0])
        assert second.cost.bytes_down == first.cost.bytes_down
        assert second.cost.bytes_up == first.cost.bytes_up // 2
        assert_same(*(each.ask(task, Sent(stack), labels, EVERYBODY, Key(1, 0)) for each in (near, far)))

    def test_if_all_die_the_round_fails_with_the_reason(self, pair):
        _, far = pair("halves")
        algorithm = build_algorithm("fedavg", fit=SHORT)
        steps = rounds(algorithm, far, 1)
        next(steps)
        for worker in far._workers.values():
            ray.kill(worker)
        with pytest.raises(FederationError, match=r"only 0 of 12 clients answered.*its Ray worker died"):
            next(steps)

    def test_a_worker_that_cannot_begin_says_why(self, cluster, images, monkeypatch):
        """The network is in a module that the workers do not have."""
        module = ModuleType("only_here")
        exec(
            "def build():\n  from torch import nn\n  return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))", vars(module)
        )
        monkeypatch.setitem(sys.modules, "only_here", module)
        data = images(sizes=(8, 8))
        far = RayFederation(data, Model("mine", module.build, data.shape, 4), 1)
        stack = Stack(np.zeros((1, 260), np.float32), np.zeros((1, 0), np.float32))
        replies = far.ask(Task(fit=(SHORT,)), Sent(stack), np.zeros(2, int), np.arange(2), Key(1, 0))
        far.close()
        assert "No module named 'only_here'" in replies.missing["client-0"]


class TestErrors:
    def test_what_is_wrong_with_a_task_is_said_as_in_the_simulator(self, pair):
        task = Task(report=Report(params=None, evaluate_on="validation"))
        for each in pair("images"):
            with pytest.raises(DataError, match=r"^there is no validation split"):
                each.ask(task, Sent(start(each)), 0 * EVERYBODY, EVERYBODY, Key(1, 0))

    def test_an_unknown_name_travels_between_processes(self, pair):
        task = Task(report=Report(params="tail"))
        for each in pair("images"):
            with pytest.raises(UnknownName, match=r"^unknown part of a model 'tail'"):
                each.ask(task, Sent(start(each)), 0 * EVERYBODY, EVERYBODY, Key(1, 0))
        told = UnknownName("plan", "autp", ["auto", "single"])
        assert str(pickle.loads(pickle.dumps(told))) == str(told)

    @pytest.mark.parametrize("threads", [0, 9])
    def test_more_workers_than_the_cluster_has_are_refused(self, cluster, images, threads):
        data = images()
        far = RayFederation(data, build_model("mlp(4)", data.shape, 4), threads)
        with pytest.raises(UsageError, match=f"threads is {threads}; it must be between 1 and 8 on this Ray cluster"):
            far.ask(Task(), Sent(start(far)), 0 * EVERYBODY, EVERYBODY, Key(1, 0))

    def test_a_missing_package_is_a_usage_error(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        told = CliRunner().invoke(app, ["run", "fedavg", "--runtime", "ray"])
        assert told.exit_code == 2
        assert "error: --runtime ray needs the ray package; pip install 'coterie[ray]'" in told.stderr

    def test_an_unknown_runtime_is_refused(self):
        with pytest.raises(UnknownName, match=r"unknown runtime 'rays'; did you mean 'ray'\? known: ray, simulator"):
            Settings("fedavg", runtime="rays")

    def test_another_device_is_refused(self, images):
        data = images()
        with pytest.raises(UsageError, match=r"device is 'meta'; Ray workers compute on the cpu"):
            RayFederation(data, build_model("mlp(4)", data.shape, 4), device="meta")


class TestRuns:
    def test_a_run_is_resumed_in_the_other_runtime(self, cluster, tmp_path):
        whole = run_settings(SMALL)
        run_settings(replace(SMALL, rounds=1), tmp_path)
        rest = run_settings(replace(SMALL, runtime="ray", threads=1), tmp_path, resume=True)
        assert_same_states(whole.state, rest.state)
        assert rest.summary["accuracy"] == pytest.approx(whole.summary["accuracy"], abs=1e-9)
        assert rest.summary["gf1"] == pytest.approx(whole.summary["gf1"], abs=1e-9)

    def test_from_the_command_line_ray_is_started_quietly_and_ended(self, tmp_path):
        """In a process of its own: nothing but the summary is printed, and Ray is gone afterwards."""
        options = "run fedavg --runtime ray --threads 2 --clients 6 --rounds 2 --steps 1 --plan workers --json --quiet"
        code = (
            "import sys; from coterie.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
            "import ray; assert not ray.is_initialized()"
        )
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        words = [sys.executable, "-c", code, *options.split(), "--out", str(tmp_path / "run")]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        clients = ct.load("digits").partition("rotation(0,90,180,270)", clients=6, seed=1)
        here = ct.run(ct.fedavg(fit=Fit(steps=1)), clients, rounds=2, plan="workers").summary
        assert json.loads(done.stdout)["accuracy"] == here["accuracy"]


class TestDealing:
    @pytest.mark.parametrize("workers", [1, 2, 3, 7, 20])
    def test_every_worker_gets_as_many_clients_and_much_the_same_work(self, workers):
        sizes = np.random.default_rng(0).integers(1, 500, 100)
        homes = deal(sizes, workers)
        counts, work = np.bincount(homes, minlength=workers), np.bincount(homes, sizes, minlength=workers)
        assert counts.max() - counts.min() <= 1
        assert work.max() - work.min() <= sizes.max()

    def test_more_workers_than_clients_are_not_used(self):
        assert sorted(deal(np.array([3, 1, 2]), 8).tolist()) == [0, 1, 2]
