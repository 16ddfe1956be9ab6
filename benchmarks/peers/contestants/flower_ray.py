"""Flower: its simulation on Ray, one actor for each core; a round is a ``start`` of FedAvg with one round."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.protocol import Task, flat, serve, task

CORES = len(os.sched_getaffinity(0))


@lru_cache(1)
def data_of_all(given: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Return everyone's examples and labels, read once in each actor."""
    return tuple(map(torch.from_numpy, given.examples_of(range(given.clients))))


def local_training(given: Task, module: torch.nn.Module, client: int) -> float:
    """Train a client's model; return its last loss."""
    x, y = (part[client] for part in data_of_all(given))
    examples = torch.utils.data.TensorDataset(x, y)
    optimiser, loss = torch.optim.SGD(module.parameters(), given.lr, given.momentum), torch.nn.CrossEntropyLoss()
    for _ in range(given.epochs):
        for images, labels in torch.utils.data.DataLoader(examples, given.batch, shuffle=True):
            optimiser.zero_grad()
            found = loss(module(images), labels)
            found.backward()
            optimiser.step()
    return float(found)


def client_app(given: Task) -> ClientApp:
    """Return the app of a client."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        module = given.module().train()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        last = local_training(given, module, int(context.node_config["partition-id"]))
        metrics = MetricRecord({"loss": last, "num-examples": given.examples})
        return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def server_app(given: Task) -> ServerApp:
    """Return the app of the server, in which the rounds are served."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start, found = ArrayRecord(given.module().state_dict()), list[ArrayRecord]()
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=given.clients)

        def one_round() -> None:
            found[:] = [strategy.start(grid, start, num_rounds=1).arrays]

        def mean_model() -> np.ndarray:
            module = given.module()
            module.load_state_dict(found[0].to_torch_state_dict())
            return flat(module)

        serve(one_round, mean_model, "flwr", "ray", "torch")

    return app


def simulate(given: Task) -> None:
    run_simulation(
        server_app(given),
        client_app(given),
        num_supernodes=given.clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": CORES}},
    )


if __name__ == "__main__":
    from benchmarks.peers.contestants import flower_ray  # noqa: PLW0406 - under the name by which actors find it

    flower_ray.simulate(task())
