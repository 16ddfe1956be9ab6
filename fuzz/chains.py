"""Random chains of layers and random passes of training, by a seed: for the native plan beside PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch import nn

from coterie.data import Federated, Split
from coterie.models.model import Model
from coterie.protocol.task import Fit, Near, Others, Proximal

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)


@dataclass(frozen=True)
class ChainCase:
    """A network that is a chain, clients' data for it, and a pass of training."""

    model: Model
    data: Federated
    fit: Fit

    def __repr__(self) -> str:
        return f"{self.model.build()} on {self.data.train.sizes.tolist()} x {self.model.shape}, {self.fit}"


def chain_case(seed: int) -> ChainCase:
    """Return the case of a seed: double precision, so that any difference beyond rounding is a fault."""
    rng = np.random.default_rng(seed)
    image = rng.random() < 0.65
    shape = tuple(rng.integers(1, 5, 1)) + tuple(rng.integers(3, 12, 2)) if image else (int(rng.integers(1, 40)),)
    shape = tuple(int(n) for n in shape)
    classes, columns = [(int(rng.integers(2, 13)), None), (None, None), (None, 3), (2, 4)][
        int(rng.choice(4, p=[0.7, 0.1, 0.1, 0.1]))
    ]
    width = columns or classes or 1
    recipe = layers(rng, shape, width)
    normed = any(isinstance(make(), NORMS) for make in recipe)
    model = Model("chain", lambda: nn.Sequential(*(make() for make in recipe)), shape, classes, columns=columns)
    sizes = [int(n) for n in rng.integers(2, 45, 3)]
    return ChainCase(model, clients(rng, shape, sizes, classes, columns), a_pass(rng, normed))


def layers(rng: np.random.Generator, shape: tuple[int, ...], width: int) -> list:
    """Return makers of layers: some on images if there are any, some on vectors, and the last."""
    found: list = []
    while len(shape) == 3 and len(found) < 7 and rng.random() < 0.85:
        make, shape = image_layer(rng, shape, [type(each()) for each in found])
        found.append(make)
    found.append(nn.Flatten)
    features = prod(shape)
    for _ in range(int(rng.integers(0, 4))):
        make, features = vector_layer(rng, features, [type(each()) for each in found])
        found.append(make)
    return [*found, lambda: nn.Linear(features, width, bias=bool(width > 2))]


def image_layer(rng: np.random.Generator, shape: tuple[int, ...], before: list[type]) -> tuple:
    """Return a maker of a layer for images of this shape, and the shape of what it gives.

    torch 2.13 crashes in the backward pass of a group normalisation below which nothing is trained.
    """
    channels, height, breadth = shape
    kind = rng.choice(["conv", "conv", "pool", "act", "drop", *(["norm"] if not is_normed(before) else [])])
    if kind == "conv":
        k = (int(rng.integers(1, min(6, height) + 1)), int(rng.integers(1, min(6, breadth) + 1)))
        pad = tuple(int(rng.integers(0, n)) for n in k)
        stride, out, bias = int(rng.integers(1, 3)), int(rng.integers(1, 12)), bool(rng.random() < 0.7)
        after = [(n + 2 * p - own) // stride + 1 for n, own, p in zip(shape[1:], k, pad, strict=True)]
        return (lambda: nn.Conv2d(channels, out, k, stride, pad, bias=bias)), (out, *after)
    if kind == "pool" and min(height, breadth) >= 2:
        k, stride = int(rng.integers(2, min(4, height, breadth) + 1)), int(rng.integers(1, 4))
        pad, layer = int(rng.integers(0, k // 2 + 1)), [nn.MaxPool2d, nn.AvgPool2d][int(rng.integers(2))]
        after = [(n + 2 * pad - k) // stride + 1 for n in shape[1:]]
        return (lambda: layer(k, stride, pad)), (channels, *after)
    if kind == "norm":
        groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
        affine = bool(rng.random() < 0.8)
        if rng.random() < 0.5 or nn.Conv2d not in before:
            return (lambda: nn.BatchNorm2d(channels, affine=affine)), shape
        return (lambda: nn.GroupNorm(groups, channels, affine=affine)), shape
    if kind == "drop":
        return (lambda: nn.Dropout2d(0.3)), shape
    return activation(rng), shape


def vector_layer(rng: np.random.Generator, features: int, before: list[type]) -> tuple:
    """Return a maker of a layer for vectors, and how many features it gives."""
    kind = rng.choice(["linear", "linear", "act", "drop", *(["norm"] if not is_normed(before) else [])])
    if kind == "linear":
        out = int(rng.integers(1, 45))
        return (lambda: nn.Linear(features, out)), out
    if kind == "norm":
        return (lambda: nn.BatchNorm1d(features)), features
    return (lambda: nn.Dropout(0.4)) if kind == "drop" else activation(rng), features


def is_normed(before: list[type]) -> bool:
    """Return whether a normalisation would stand upon another one, and have slopes of rounding alone."""
    last = next((kind for kind in reversed(before) if kind in (*NORMS, nn.Conv2d, nn.Linear)), None)
    return last in NORMS


def activation(rng: np.random.Generator):
    """Return a maker of a layer that treats every number alone."""
    return [nn.ReLU, nn.Tanh, nn.GELU, lambda: nn.GELU(approximate="tanh"), nn.Identity][int(rng.integers(5))]


def clients(rng: np.random.Generator, shape, sizes: list[int], classes: int | None, columns: int | None) -> Federated:
    """Return clients with examples of noise in double precision."""

    def split(counts: list[int]) -> Split:
        total = sum(counts)
        if columns is not None:
            y = rng.normal(size=(total, columns)) if classes is None else rng.integers(0, 2, (total, columns)) * 1.0
        else:
            y = rng.normal(size=total) if classes is None else rng.integers(0, classes, total)
        return Split(rng.normal(size=(total, *shape)), y, np.cumsum([0, *counts]))

    names = tuple(f"client-{i}" for i in range(len(sizes)))
    return Federated("noise", "none", names, split(sizes), split([5] * len(sizes)), classes, columns=columns)


def a_pass(rng: np.random.Generator, normed: bool) -> Fit:
    """Return a pass of training with any of its options.

    Adam divides by the size of gradients: where a normalisation makes them zero, what is left is rounding alone.
    """
    terms = [(), (), (Proximal(0.3),), (Near(0.2),), (Others(0.1, (0.5, 0.5), part="linear"), Proximal(0.1))]
    adam = not normed and bool(rng.random() < 0.5)
    return Fit(
        steps=int(rng.integers(1, 5)),
        batch=int(rng.integers(2, 40)),
        lr=0.001 if adam else 0.05,
        momentum=float(rng.choice([0.0, 0.9])),
        optimizer="adam" if adam else "sgd",
        weight_decay=float(rng.choice([0.0, 0.01])),
        terms=terms[int(rng.integers(len(terms)))],
        pull=float(rng.choice([0.0, 0.0, 0.2])),
        half=[None, None, 0, 1][int(rng.integers(4))],
        part=str(rng.choice(["all", "all", "all", "head", "body"])),
    )
