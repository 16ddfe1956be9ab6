"""Room for what many clients send: memory, or a temporary file mapped into memory when it would be too much."""

from __future__ import annotations

import tempfile

import numpy as np
from numpy.typing import DTypeLike

from coterie.models.layout import Array

LIMIT = 1 << 30
"""Bytes of client models kept in memory; more than this goes to a temporary file."""


def room(shape: tuple[int, int], dtype: DTypeLike, limit: int = LIMIT) -> Array:
    """An array for ``shape``, in memory or mapped from a temporary file that vanishes with it."""
    if int(np.prod(shape)) * np.dtype(dtype).itemsize <= limit:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="coterie-") as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
