"""The loop of research code: a deepcopy, an optimiser and a DataLoader for each client (see benchmarks/engine.py)."""

from __future__ import annotations

from torch import nn

from benchmarks.engine import Case, federation, plain_loop
from benchmarks.peers.protocol import Task, flat, serve, task


def main(given: Task) -> None:
    case = Case(given.model, given.shape, given.clients, 1.0)
    work, trained = plain_loop(case, federation(case)), list[nn.Module]()

    def one_round() -> None:
        trained[:] = [work()]

    serve(one_round, lambda: flat(trained[0]), "torch")


if __name__ == "__main__":
    main(task())
