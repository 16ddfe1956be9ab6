"""fluke: its centralised federation, without evaluation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

# torchvision, which fluke imports, may be built for a torch with CUDA: it then lacks two operators, which nobody uses
# here, and cannot be imported unless they are declared.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

# ruff: noqa: E402
from fluke import FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver

from benchmarks.peers.protocol import Task, flat, serve, task
from benchmarks.peers.turns import Turns

MANY = 10_000
"""More rounds than anyone asks for."""


class Gate(FederationObserver):
    """Holds the federation until a round is asked for."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def start_round(self, round: int, global_model: Any) -> None:
        """Wait for the turn."""
        self.turns.begin()

    def end_round(self, round: int) -> None:
        """Give the turn back."""
        self.turns.end()


def federation(given: Task) -> CentralizedFL:
    """Return fluke's server and clients with the workload's data and model."""
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    x, y = map(torch.from_numpy, given.examples_of(range(given.clients)))
    optimiser = OptimizerConfigurator({"name": "SGD", "lr": given.lr, "momentum": given.momentum})
    clients = [
        Client(
            index=i,
            train_set=FastDataLoader(x[i], y[i], num_labels=10, batch_size=given.batch, shuffle=True),
            test_set=None,
            optimizer_cfg=optimiser,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=given.epochs,
        )
        for i in range(given.clients)
    ]
    return CentralizedFL(given.clients, None, {}, clients, Server(given.module(), None, clients))


def main(given: Task) -> None:
    fluke, turns = federation(given), Turns()
    fluke.set_callbacks([Gate(turns)])
    model = partial(flat, fluke.server.model)
    turns.run(lambda: fluke.run(MANY, 1.0), lambda: serve(turns.round, model, "fluke-fl", "torch"))


if __name__ == "__main__":
    main(task())
