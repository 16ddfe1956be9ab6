"""pfl: federated averaging in one process per core, which meet in torch.distributed as its guide says.

Process 0 is the contestant. It starts the others and tells them on their standard input when a round begins; they end
when it does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.peers.protocol import Task, flat, serve, task
from benchmarks.peers.turns import Turns

CORES = len(os.sched_getaffinity(0))
MANY = 10_000
"""More rounds than anyone asks for."""


def start_others() -> list[subprocess.Popen[str]]:
    """Start the other processes, and set what pfl reads in this one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"localhost:{port}"] * CORES)
    os.environ["PFL_WORKER_RANK"] = "0"
    command = [sys.executable, "-m", "benchmarks.peers.contestants.pfl_fedavg", sys.argv[1]]
    ranks = [{**os.environ, "PFL_WORKER_RANK": str(rank)} for rank in range(1, CORES)]
    return [subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=each) for each in ranks]


def simulate(given: Task, module: torch.nn.Module, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Run pfl's loop, which calls ``begin`` before each round and ``end`` after it."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Gate(TrainingProcessCallback):
        """Holds the simulation until a round is asked for."""

        def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
            begin()
            return Metrics()

        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            end()
            begin()
            return False, Metrics()

    def optimiser(params: object, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr, given.momentum)

    x, y = map(torch.from_numpy, given.examples_of(range(given.clients)))
    users = FederatedDataset(
        lambda i: Dataset((x[i], y[i])), get_user_sampler("minimize_reuse", list(range(given.clients)))
    )
    FederatedAveraging().run(
        NNAlgorithmParams(MANY, MANY, given.clients, None),
        SimulatedBackend(users, None),
        PyTorchModel(module, optimiser, torch.optim.SGD(module.parameters(), 1.0)),
        NNTrainHyperParams(local_num_epochs=given.epochs, local_learning_rate=given.lr, local_batch_size=given.batch),
        callbacks=[Gate()],
        send_metrics_to_platform=False,
    )


def network(given: Task) -> torch.nn.Module:
    """Return the network with the two methods that pfl asks for; it measures nothing."""
    module = given.module().train()
    module.loss = lambda x, y: torch.nn.functional.cross_entropy(module(x), y)
    module.metrics = lambda x, y: {}
    return module


def first(given: Task) -> None:
    """Be the contestant: every round also begins in the other processes."""
    others, turns, module = start_others(), Turns(), network(given)

    def one_round() -> None:
        for each in others:
            print("go", file=each.stdin, flush=True)
        turns.round()

    loop = partial(simulate, given, module, turns.begin, turns.end)
    turns.run(loop, lambda: serve(one_round, lambda: flat(module), "pfl", "torch"))


def other(given: Task) -> None:
    """Do a share of each round that the first process begins."""

    def begin() -> None:
        if not sys.stdin.readline():
            os._exit(0)

    simulate(given, network(given), begin, lambda: None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.random.seed(1)  # pfl divides the cohort in the same way in all processes if they share a seed
    (other if "PFL_WORKER_RANK" in os.environ else first)(task())
