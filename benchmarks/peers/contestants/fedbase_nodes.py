"""fedbase: its nodes and its server, as its own FedAvg puts them together, without the test after each round."""

from __future__ import annotations

import torch
from fedbase.nodes.node import node
from fedbase.server.server import server_class
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.protocol import Task, flat, serve, task

DEVICE = torch.device("cpu")


def client(given: Task, number: int, x: torch.Tensor, y: torch.Tensor) -> node:
    """Return a node with its data, its own model and its own optimiser."""
    one = node(number, DEVICE)
    one.assign_train(DataLoader(TensorDataset(x, y), batch_size=given.batch, shuffle=True))
    one.assign_model(given.module().train())
    one.assign_objective(torch.nn.CrossEntropyLoss())
    one.assign_optim(torch.optim.SGD(one.model.parameters(), given.lr, given.momentum))
    return one


def main(given: Task) -> None:
    x, y = map(torch.from_numpy, given.examples_of(range(given.clients)))
    nodes = [client(given, i, x[i], y[i]) for i in range(given.clients)]
    models, weights = [each.model for each in nodes], [1 / given.clients] * given.clients
    server = server_class(DEVICE)
    server.assign_model(given.module())

    def one_round() -> None:
        for each in nodes:
            each.local_update_steps(given.steps, each.train_single_step)
        server.model.load_state_dict(server.aggregate(models, weights))
        server.distribute(models)

    serve(one_round, lambda: flat(server.model), "fedbase", "torch")


if __name__ == "__main__":
    main(task())
