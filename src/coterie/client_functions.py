"""Client functions that come with coterie: arrays that clients may be asked for beside models, losses and scores.

Each is named in a task as ``coterie.client_functions:NAME(arguments)``. It is a summary of a client's train data that
leaves the client as it is, so a site of a federation gives it only if its ``policy.toml`` lists it, to the letter. A
method of your own may bring others: see ``coterie.client_function``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from coterie.errors import ModelError, UsageError
from coterie.protocol.client_function import ClientData, client_function
from coterie.seeding import generator
from coterie.typing import Array

if TYPE_CHECKING:
    from torch import nn

HERE = __name__
"""How the names of these functions begin in a task: ``f"{HERE}:class_bases(3)"``."""

VANISHING = 1e-6
"""Directions with a singular value below this share of the largest are arbitrary and are left out."""

FEWEST = 2
"""Fewer examples of a class than this are left out: they would be sent as they are, and have no deviation."""

ABSENT = -1.0
"""The standard deviation, which no set of examples has, of a class that the client has too few examples of."""

BATCH = 4096


@client_function("classes")
def label_counts(client: ClientData) -> Array:
    """Return how many train examples a client has of each class."""
    check_one_label(client)
    return np.bincount(client.y, minlength=client.classes or 0)


def check_one_label(client: ClientData) -> None:
    """Refuse to look at classes where an example has several labels."""
    if client.classes is not None and client.y.ndim > 1:
        raise UsageError("this function is of classes, and an example here has several labels; use another function")


@client_function(2, "features", labels=False)
def input_sums(client: ClientData) -> Array:
    """Return the mean of every input over a client's train examples, and the mean squared deviation from it."""
    return mean_and_spread(client.x.reshape(len(client.x), -1))


@client_function(2, "classes")
def label_sums(client: ClientData) -> Array:
    """Return the mean and the mean squared deviation of every target or label; of classes, their shares and p (1 - p).

    >>> x, y = np.zeros((4, 1)), np.array([0, 1, 1, 1])
    >>> label_sums(ClientData(x, y, 2, make_model=None, models=(), make_rng=None)).tolist()
    [[0.25, 0.75], [0.1875, 0.1875]]
    """
    if client.classes is None or client.y.ndim > 1:
        return mean_and_spread(client.y.reshape(len(client.y), -1))
    shares = np.bincount(client.y, minlength=client.classes) / len(client.y)
    return np.stack([shares, shares * (1 - shares)])


def mean_and_spread(values: Array) -> Array:
    """Return the mean of every column and the mean squared deviation from it, ``(2, columns)``, in double precision."""
    mean, squares = np.zeros((2, values.shape[1]))
    for start in range(0, len(values), BATCH):
        mean += values[start : start + BATCH].sum(axis=0, dtype=np.float64) / len(values)
    for start in range(0, len(values), BATCH):
        squares += np.square(values[start : start + BATCH] - mean).sum(axis=0) / len(values)
    return np.stack([mean, squares])


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
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    model, found = client.models[number], []
    like = next(model.parameters())
    with torch.no_grad():
        for i in range(0, len(client.y), BATCH):
            x, y = (torch.as_tensor(part[i : i + BATCH], device=like.device) for part in (client.x, client.y))
            out = model(x.to(like.dtype) if x.is_floating_point() else x)
            if client.classes is not None and y.dim() == 1:
                found.append(cross_entropy(out, y, reduction="none"))
                continue
            wanted = y.reshape(out.shape).to(out)
            both = binary_cross_entropy_with_logits(out, wanted, reduction="none")
            found.append(((out - wanted) ** 2 if client.classes is None else both).mean(1))
    losses: Array = torch.cat(found).double().cpu().numpy()
    return np.where(np.isnan(losses), np.inf, losses)


@client_function(4)
def attribute(client: ClientData, column: str) -> Array:
    """Return a code of the client's value of a column that is known of it; zeros where it has none.

    Equal values have equal codes, 64 bits of a hash as four numbers. A code hides the value only from those who cannot
    guess it: whoever lists the possible values can try them all.
    """
    value = client.attributes.get(column)
    return np.zeros(4) if value is None else code(value)


def code(value: str) -> Array:
    """Return the code of a value, never zeros.

    >>> code("north").shape, bool((code("north") == code("south")).all())
    ((4,), False)
    """
    numbers = np.frombuffer(blake2b(value.encode(), digest_size=8).digest(), dtype="<u2")
    return numbers.astype(np.float64) + 1


@client_function("classes", "features", "p")
def class_bases(client: ClientData, p: int = 3, fewest: int = FEWEST) -> Array:
    """Return the first ``p`` singular directions of the examples of each class, zeros for those that do not exist.

    A class with fewer than ``fewest`` examples has none: a single example would be sent as it is, but for its length.
    Where the target is real there is one class. The examples are not centred: the first direction is near their mean.
    """
    check_one_label(client)
    if client.classes is None:
        return _basis(client.x, p, fewest)[None]
    return np.stack([_basis(client.x[client.y == label], p, fewest) for label in range(client.classes)])


@client_function(1, "features", "p", labels=False)
def basis(client: ClientData, p: int = 3, fewest: int = FEWEST) -> Array:
    """Return the first ``p`` singular directions of all examples of the client, whatever their labels."""
    return _basis(client.x, p, fewest)[None]


def _basis(x: Array, p: int, fewest: int) -> Array:
    """Return orthonormal columns, ``(features, p)``; those beyond the rank of the examples are zero.

    >>> np.abs(_basis(np.array([[0.0, 2.0, 0.0], [0.0, 3.0, 0.0]]), 2, 2)).round(6).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """
    rows = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)
    found = np.zeros((rows.shape[1], p))
    if len(rows) >= fewest:
        _, lengths, directions = np.linalg.svd(rows, full_matrices=False)
        rank = int((lengths > VANISHING * lengths[0]).sum())
        found[:, : min(p, rank)] = directions[: min(p, rank)].T
    return found


@client_function("classes+1", 2, "dims")
def class_moments(client: ClientData, dims: int = 10, fewest: int = FEWEST) -> Array:
    """Return mean and standard deviation of the latent features: of all examples first, then of those of each class.

    Latent features are the inputs of the model's last layer, seen along ``dims`` directions that all clients share. A
    class with fewer than ``fewest`` examples has mean 0 and the impossible deviation -1.
    """
    check_one_label(client)
    latent = _seen_along(dims, _latent(client.model, client.x))
    classes = [client.y == label for label in range(client.classes)] if client.classes else [np.full(len(latent), True)]
    return np.stack([_moments(latent, fewest), *(_moments(latent[own], fewest) for own in classes)])


@client_function(1, 2, "dims", labels=False)
def moments(client: ClientData, dims: int = 10, fewest: int = FEWEST) -> Array:
    """Return mean and standard deviation of the latent features of all examples: the part that needs no labels."""
    return _moments(_seen_along(dims, _latent(client.model, client.x)), fewest)[None]


def _moments(rows: Array, fewest: int) -> Array:
    if len(rows) < fewest:
        return np.stack([np.zeros(rows.shape[1]), np.full(rows.shape[1], ABSENT)])
    return np.stack([rows.mean(axis=0), rows.std(axis=0)])


def _seen_along(dims: int, latent: Array) -> Array:
    """Return features along ``dims`` directions: all of them if they are few, or orthonormal ones drawn for everyone.

    Directions beyond the number of features are zero. The draw depends on the numbers alone, and signs are fixed, so
    that all clients have the same.
    """
    count = latent.shape[1]
    if count <= dims:
        return np.pad(latent, ((0, 0), (0, dims - count)))
    axes, upper = np.linalg.qr(generator(0, "latent directions", count, dims).normal(size=(count, dims)))
    seen: Array = latent @ (axes * np.sign(np.diag(upper)))
    return seen


def _latent(model: nn.Module, x: Array) -> Array:
    """Return the inputs of the model's last layer for every example, one row each."""
    return np.concatenate([part.reshape(len(part), -1) for part in _inputs_of_head(model, x)]).astype(np.float64)


def _inputs_of_head(model: nn.Module, x: Array) -> Iterator[Array]:
    import torch

    from coterie.models.model import head_of

    name = head_of(model)
    if name is None:
        raise ModelError("the model has no head with inputs; name a submodule head")
    found: list[Array] = []
    kind = next(model.parameters()).dtype
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].numpy()))
    with torch.no_grad():
        for start in range(0, len(x), BATCH):
            model(torch.from_numpy(np.ascontiguousarray(x[start : start + BATCH])).to(kind))
            yield found.pop()
    hook.remove()
