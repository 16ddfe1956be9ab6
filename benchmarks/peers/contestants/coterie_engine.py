"""coterie's engine: one task for all clients."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.engine import Case, engine_round, federation
from benchmarks.peers.protocol import Task, flat, serve, task
from coterie.models.zoo import build_model
from coterie.protocol.replies import Replies


def main(given: Task) -> None:
    case = Case(given.model, given.shape, given.clients, 1.0)
    work = engine_round(case, federation(case), "auto")
    replies: list[Replies] = []

    def one_round() -> None:
        replies[:] = [work()]

    def mean_model() -> np.ndarray:
        model, params = build_model(case.model, case.shape, 10), replies[0].params.mean(0)
        return flat(model.with_row(params.astype(np.float32), model.initial(0)[1]))

    serve(one_round, mean_model, "torch")


if __name__ == "__main__":
    torch.manual_seed(1)
    main(task())
