"""A stack of models: K rows of flat parameters and of normalisation buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.typing import Array


class Stack(NamedTuple):
    """``params (K, P)`` and ``buffers (K, B)``; row k is cluster k's model."""

    params: Array
    buffers: Array

    def __repr__(self) -> str:
        return f"Stack({len(self.params)} models of {self.params.shape[-1]:,} parameters)"

    def __len__(self) -> int:
        """The number of models, not of fields."""
        return len(self.params)

    def take(self, rows: Any) -> Stack:
        """These rows, in this order."""
        return Stack(self.params[rows], self.buffers[rows])

    def plus(self, more: Stack) -> Stack:
        """These rows, then those."""
        return Stack(*(np.concatenate(parts) for parts in zip(self, more, strict=True)))

    def mix(self, weights: Array) -> Stack:
        """The models ``weights @ rows``, computed in double precision."""
        wide = np.asarray(weights, dtype=np.float64)
        return Stack(*((wide @ part).astype(part.dtype) for part in (self.params, self.buffers)))

    @property
    def nbytes(self) -> int:
        """How many bytes the two arrays take."""
        return int(self.params.nbytes + self.buffers.nbytes)
