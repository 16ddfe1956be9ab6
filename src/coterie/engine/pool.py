"""The clients' examples in one tensor, and memory for the models they train."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from coterie.data.array_memory import allocate
from coterie.data.federated import Split
from coterie.typing import Array


class Pool:
    """The examples of one split; batches come on the device and in the precision of ``like``, images channels last."""

    def __init__(self, split: Split, like: Tensor) -> None:
        self.x, self.y = (torch.from_numpy(a if a.flags.writeable else a.copy()) for a in (split.x, split.y))
        self.offsets = split.offsets
        self.sizes = split.sizes
        self.like = like
        self.example_bytes = int(np.prod(self.x.shape[1:])) * like.element_size()
        kinds = {self.x.dtype, self.y.dtype}
        self.as_is = kinds <= {torch.int64, like.dtype} and like.device.type == "cpu"

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Return the examples of these rows, in the shape of ``rows``; adjacent rows are viewed, not copied."""
        if rows.ndim == 1 and len(rows) and rows[-1] - rows[0] + 1 == len(rows) and np.all(np.diff(rows) == 1):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            x, y = self.x[part], self.y[part]
        else:
            index = torch.from_numpy(np.ascontiguousarray(rows)).flatten()
            x, y = (every.index_select(0, index) for every in (self.x, self.y))
            if rows.ndim > 1:
                x, y = x.view(*rows.shape, *x.shape[1:]), y.view(*rows.shape, *y.shape[1:])
        if not self.as_is:
            x, y = self._moved(x), self._moved(y)
        return (x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x), y

    def _moved(self, values: Tensor) -> Tensor:
        """Return values on the device and in the precision of ``like``; class numbers and tokens stay whole numbers."""
        return values.to(self.like.device) if values.dtype == torch.int64 else values.to(self.like)

    def rows_of(self, clients: Array, at_most: int | None = None) -> tuple[Array, Array]:
        """Return the rows of these clients (the first ``at_most`` of each), and the offset at which each begins."""
        sizes = self.sizes[clients] if at_most is None else np.minimum(self.sizes[clients], at_most)
        ends = np.cumsum(sizes)
        rows = np.arange(int(ends[-1])) + np.repeat(self.offsets[clients] - (ends - sizes), sizes)
        return rows, np.concatenate([[0], ends])

    def shuffled(self, client: int, rng: np.random.Generator, at_most: int | None = None) -> Array:
        """Return the rows of a client (its first ``at_most``) in random order."""
        size = int(self.sizes[client]) if at_most is None else min(int(self.sizes[client]), at_most)
        order: Array = rng.permutation(size) + self.offsets[client]
        return order


class SpareBlock:
    """Reuses memory: keeps the largest block that came back, which happens when nothing refers to its array."""

    _spare: Array | None = None

    def take(self, shape: tuple[int, ...], dtype: DTypeLike, limit: int) -> Array:
        """Return an array of this shape, not yet filled; beyond ``limit`` bytes it is a mapped file, which is not kept.

        >>> spare = SpareBlock()
        >>> first = spare.take((2, 3), np.float32, limit=1000)
        >>> address = first.ctypes.data
        >>> del first
        >>> spare.take((3, 2), np.float32, limit=1000).ctypes.data == address
        True
        """
        count = int(np.prod(shape, dtype=np.int64))
        size = count * np.dtype(dtype).itemsize
        if not 0 < size <= limit:
            return allocate(shape, dtype, limit)
        block, self._spare = self._spare, None
        if block is None or block.nbytes < size:
            block = np.empty(size, np.uint8)
        # Every view of this array has it as its base, so that it lives as long as any view of it.
        array = np.frombuffer(block.data, dtype, count)
        weakref.finalize(array, self._back, block).atexit = False
        return array.reshape(shape)

    def _back(self, block: Array) -> None:
        if self._spare is None or self._spare.nbytes < block.nbytes:
            self._spare = block
