"""The workloads: each is written to a folder, from which every contestant reads the same data and the same start.

A contestant's environment has neither coterie nor its requirements, so a folder holds plain files: the examples and
labels as numpy arrays, the network as a pickled torch module and as arrays, and the numbers of the workload as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.engine import BATCH, CASES, LR, MOMENTUM, STEPS, Case, federation, plain_module
from benchmarks.peers.protocol import flat
from coterie.models.zoo import build_model

CLIENTS = {"logistic": 2000}
"""How many clients a workload has, where it is not 200."""

JUDGED = 2048
"""The examples on which the driver compares the models of the contestants."""


@dataclass(frozen=True)
class Workload:
    """A case, the folder in which contestants find it, and how many operations a round of it takes."""

    case: Case
    folder: Path
    flops: float

    def loss(self, params: np.ndarray) -> float:
        """Return the loss of a model, given as the flat vector of its parameters, on examples of the first clients.

        Normalisation uses the batch's own statistics: contestants keep them in their own ways, or not at all.
        """
        module = torch.load(self.folder / "start.pt", weights_only=False).train()
        nn.utils.vector_to_parameters(torch.from_numpy(np.asarray(params, np.float32)), module.parameters())
        x, y = (np.load(self.folder / f"{name}.npy", mmap_mode="r")[:JUDGED] for name in "xy")
        with torch.no_grad():
            return float(nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y)))

    def start(self) -> np.ndarray:
        """Return the parameters from which every client starts."""
        return flat(torch.load(self.folder / "start.pt", weights_only=False))


def cases(models: list[str], clients: int | None) -> list[Case]:
    """Return the cases of these models (all if none is named), with 200 clients unless another number is given."""
    chosen = [case for case in CASES if not models or case.model in models or case.model.partition("(")[0] in models]
    return [replace(case, clients=clients or CLIENTS.get(case.model, 200)) for case in chosen]


def prepare(case: Case, root: Path) -> Workload:
    """Write the folder of a case."""
    folder = root / case.model.partition("(")[0]
    folder.mkdir(parents=True, exist_ok=True)
    train, model = federation(case).train, build_model(case.model, case.shape, 10)
    np.save(folder / "x.npy", train.x)
    np.save(folder / "y.npy", train.y)
    module = plain_module(case)
    start = torch.from_numpy(flat(model.with_row(*model.initial(0))))
    nn.utils.vector_to_parameters(start, module.parameters())
    torch.save(module, folder / "start.pt")
    np.savez(folder / "start.npz", **{name: p.detach().numpy() for name, p in module.named_parameters()})
    (folder / "workload.json").write_text(json.dumps(_numbers(case, len(train.y))))
    return Workload(case, folder, 3.0 * model.flops * BATCH * STEPS * case.clients)


def _numbers(case: Case, examples: int) -> dict[str, object]:
    """Return what a contestant has to know; an epoch of a client is ``examples / batch`` steps."""
    each = examples // case.clients
    sizes = {"clients": case.clients, "examples": each, "steps": STEPS, "batch": BATCH, "epochs": STEPS * BATCH // each}
    return {"model": case.model, "shape": case.shape, "lr": LR, "momentum": MOMENTUM, **sizes}
