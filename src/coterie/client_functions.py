"""Client functions that come with coterie: arrays that clients may be asked for beside models, losses and scores.

Each is a summary of a client's train data that leaves the client as it is, so a site of a federation gives it only if
its policy lists the function. A method of your own may bring others: see ``coterie.client_function``.
"""

from __future__ import annotations

import numpy as np

from coterie.protocol.client_function import ClientData, client_function
from coterie.typing import Array

BATCH = 4096
"""Examples that go through a model at a time."""


@client_function("classes")
def label_counts(client: ClientData) -> Array:
    """Return how many train examples a client has of each class."""
    return np.bincount(client.y, minlength=client.classes or 0)


@client_function("models", all_models=True)
def shares_of_least_loss(client: ClientData, smoothing: float = 0.0) -> Array:
    """Return for each cluster model the share of the client's examples of which its loss is the least of all models.

    Ties go to the lowest number. Shares below ``smoothing`` are raised to it, and all divided by their sum.
    """
    losses = np.stack([example_losses(client, number) for number in range(len(client.models))])
    counts = np.bincount(losses.argmin(axis=0), minlength=len(losses))
    raised = np.maximum(counts / len(client.y), smoothing)
    shares: Array = raised / raised.sum()
    return shares


def example_losses(client: ClientData, number: int) -> Array:
    """Return the loss of each of a client's examples under one cluster model; infinite where it is not a number."""
    import torch
    from torch.nn.functional import cross_entropy

    model, found = client.models[number], []
    like = next(model.parameters())
    with torch.no_grad():
        for i in range(0, len(client.y), BATCH):
            x, y = (torch.as_tensor(part[i : i + BATCH], device=like.device) for part in (client.x, client.y))
            out = model(x.to(like.dtype) if x.is_floating_point() else x)
            real = client.classes is None
            found.append((out.squeeze(-1) - y) ** 2 if real else cross_entropy(out, y, reduction="none"))
    losses: Array = torch.cat(found).double().cpu().numpy()
    return np.where(np.isnan(losses), np.inf, losses)
