"""Models as rows: a stack of them, and what clients are sent of several stacks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from coterie.typing import Array

UNPLACED = -1
"""The label of a client that belongs to no cluster yet."""


class Stack(NamedTuple):
    """K models: ``params (K, P)`` and normalisation ``buffers (K, B)``; row k is cluster k's model."""

    params: Array
    buffers: Array

    def __repr__(self) -> str:
        return f"Stack({len(self.params)} models of {self.params.shape[-1]:,} parameters)"

    def __len__(self) -> int:
        """Return the number of models, not of fields."""
        return len(self.params)

    def take(self, rows: Any) -> Stack:
        """Return these rows, in this order."""
        return Stack(self.params[rows], self.buffers[rows])

    def plus(self, more: Stack) -> Stack:
        """Return these rows, followed by the rows of another stack."""
        return Stack(*(np.concatenate(parts) for parts in zip(self, more, strict=True)))

    def mix(self, weights: Array) -> Stack:
        """Return the models ``weights @ rows``, computed in double precision."""
        wide = np.asarray(weights, dtype=np.float64)
        return Stack(*((wide @ part).astype(part.dtype) for part in (self.params, self.buffers)))

    def contiguous(self) -> Stack:
        """Return the same with each array in one piece."""
        return Stack(*map(np.ascontiguousarray, self))

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of both arrays."""
        return int(self.params.nbytes + self.buffers.nbytes)


@dataclass(frozen=True)
class Sent:
    """What clients are sent: the cluster models, and beside them models that are nobody's cluster.

    ``references`` are read by penalty terms, by scores and by reports: the mean of all clusters, the models of the
    round before, clients' own models. ``unplaced`` is the one model on which clients without a cluster work.

    A client works on one row: 0 to K - 1 is a cluster model, from K on a reference, and ``UNPLACED`` (-1) the model for
    clients without a cluster.
    """

    models: Stack
    references: Stack | None = None
    unplaced: Stack | None = None

    @cached_property
    def rows(self) -> Stack:
        """Return all rows in one stack: models, references, and last the one for clients without a cluster."""
        whole = self.models
        for more in (self.references, self.unplaced):
            whole = whole if more is None or not len(more) else whole.plus(more)
        return whole

    def contiguous(self) -> Sent:
        """Return the same with each array in one piece."""
        others = (None if stack is None else stack.contiguous() for stack in (self.references, self.unplaced))
        return Sent(self.models.contiguous(), *others)

    def take(self, rows: Any) -> Stack:
        """Return the model of each of these rows."""
        if self.unplaced is None and np.size(rows) and np.min(rows) < 0:
            raise ValueError("a client without a cluster has no model here; send one as 'unplaced'")
        return self.rows.take(rows)

    def names_cluster(self, rows: Array) -> Array:
        """Return which rows name a cluster model, rather than a reference or the model of unplaced clients."""
        found: Array = (rows >= 0) & (rows < len(self.models))
        return found
