"""Which examples are in which minibatch: the same in every plan, because they are drawn here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from coterie.models.layout import Array
from coterie.protocol.task import Fit

PADDED = 1 << 20
"""About how many row numbers of a group are laid side by side at a time."""


@dataclass(frozen=True)
class Batches:
    """Minibatch q is ``order[bounds[q]:bounds[q+1]]``: row numbers of the client's examples."""

    order: Array
    bounds: Array

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def rows(self, step: int) -> Array:
        """The row numbers of one minibatch."""
        part: Array = self.order[self.bounds[step] : self.bounds[step + 1]]
        return part


def draw(examples: int, fit: Fit, rng: np.random.Generator) -> Batches:
    """Walk through shuffled epochs, cut into minibatches; the last of an epoch may be smaller, none is padded.

    >>> b = draw(5, Fit(steps=4, batch=2), np.random.default_rng(0))
    >>> [len(b.rows(q)) for q in range(len(b))]
    [2, 2, 1, 2]
    """
    wanted, seen = fit.count(examples), fit.sees(examples)
    epoch = -(-seen // fit.batch)
    epochs = -(-wanted // epoch)
    order = np.concatenate([rng.permutation(seen) for _ in range(epochs)])
    ends = np.minimum(np.arange(1, epoch + 1) * fit.batch, seen)
    bounds = (ends[None, :] + seen * np.arange(epochs)[:, None]).ravel()[:wanted]
    return Batches(order, np.concatenate([[0], bounds]))


def halve(batches: Batches, examples: int, fit: Fit, rng: np.random.Generator) -> Batches:
    """The same minibatches among the examples of the half that the pass is confined to.

    >>> both = [Fit(steps=1, half=half) for half in (0, 1)]
    >>> found = [halve(draw(5, f, np.random.default_rng(0)), 5, f, np.random.default_rng(1)) for f in both]
    >>> sorted(np.concatenate([b.order for b in found]).tolist())
    [0, 1, 2, 3, 4]
    """
    return replace(batches, order=half_of(examples, fit, rng)[batches.order])


def half_of(examples: int, fit: Fit, rng: np.random.Generator) -> Array:
    """The examples of the half that the pass is confined to."""
    everything, seen = rng.permutation(examples), fit.sees(examples)
    half: Array = everything[-seen:] if fit.half else everything[:seen]
    return half


def pad(batches: list[Batches], starts: Array) -> Iterator[tuple[Array, Array]]:
    """Minibatches of G clients side by side: pool row numbers ``(G, B)`` and example weights that sum to 1, by step.

    A client whose batch is smaller, or who has finished, is padded with its first row at weight 0. Some steps are made
    at a time, so that a long pass takes no more room than a short one.
    """
    steps = max(len(b) for b in batches)
    width = max(int(np.diff(b.bounds).max()) for b in batches)
    some = max(1, PADDED // (width * len(batches)))
    for first in range(0, steps, some):
        yield from zip(*_padded(batches, starts, slice(first, min(first + some, steps)), width), strict=True)


def _padded(batches: list[Batches], starts: Array, steps: slice, width: int) -> tuple[Array, Array]:
    """Row numbers and weights ``(Q, G, B)`` of some steps."""
    shape = (steps.stop - steps.start, len(batches), width)
    rows, weights = np.broadcast_to(starts[None, :, None], shape).copy(), np.zeros(shape)
    for g, b in enumerate(batches):
        bounds = b.bounds[steps.start : steps.stop + 1]
        sizes = np.diff(bounds)
        filled = np.arange(width)[None, :] < sizes[:, None]
        if len(sizes):
            rows[: len(sizes), g][filled] = b.order[bounds[0] : bounds[-1]] + starts[g]
            weights[: len(sizes), g] = filled / sizes[:, None]
    return rows, weights
