"""A plain loop by someone in a hurry: one model for all clients, batches by index, a process with one thread a core."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from benchmarks.peers.halves import Halves
from benchmarks.peers.protocol import Task, flat, serve, task


def train(given: Task, share: range) -> Callable[[np.ndarray], None]:
    """Prepare to train a share of the clients with one model, set to the start before each."""
    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, given.examples_of(share))
    model, loss = given.module().train(), nn.CrossEntropyLoss()
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def fit(client: int) -> None:
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        optimiser = torch.optim.SGD(model.parameters(), given.lr, given.momentum, foreach=True)
        order = torch.cat([torch.randperm(given.examples) for _ in range(given.epochs)]).split(given.batch)
        for batch in order:
            optimiser.zero_grad()
            loss(model(x[client].index_select(0, batch)), y[client].index_select(0, batch)).backward()
            optimiser.step()

    def work(rows: np.ndarray) -> None:
        for client in range(len(share)):
            fit(client)
            torch.cat([p.detach().reshape(-1) for p in model.parameters()], out=torch.from_numpy(rows[client]))

    return work


def main(given: Task) -> None:
    halves = Halves(given, train, len(flat(given.module())))
    serve(halves.round, halves.mean_model, "torch")
    halves.close()


if __name__ == "__main__":
    main(task())
