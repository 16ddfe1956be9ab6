"""Memory for the replies of a round, used again in the next: fresh pages cost more than the copy that fills them."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import DTypeLike

from coterie.data.store import room
from coterie.models.layout import Array


class Shelf:
    """Keeps the largest block of memory that came back: it comes back once nobody can see the array made from it."""

    def __init__(self) -> None:
        self._spare: Array | None = None

    def take(self, shape: tuple[int, ...], dtype: DTypeLike, limit: int) -> Array:
        """An array of this shape, not yet filled; beyond ``limit`` bytes a mapped file, which is not kept.

        >>> shelf = Shelf()
        >>> first = shelf.take((2, 3), np.float32, limit=1000)
        >>> place = first.ctypes.data
        >>> del first
        >>> shelf.take((3, 2), np.float32, limit=1000).ctypes.data == place
        True
        """
        count = int(np.prod(shape, dtype=np.int64))
        size = count * np.dtype(dtype).itemsize
        if not 0 < size <= limit:
            return room(shape, dtype, limit)
        block, self._spare = self._spare, None
        if block is None or block.nbytes < size:
            block = np.empty(size, np.uint8)
        # Whatever is cut from this array has it as its base, so that it lives as long as any part of it is seen.
        array = np.frombuffer(block.data, dtype, count)
        weakref.finalize(array, self._back, block).atexit = False
        return array.reshape(shape)

    def _back(self, block: Array) -> None:
        if self._spare is None or self._spare.nbytes < block.nbytes:
            self._spare = block
