"""Room for examples: memory, or beyond a limit a temporary file mapped into memory.

The file has no name once it is open, so nothing is left behind however the process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from coterie.errors import DataError
from coterie.typing import Array

LIMIT = 1 << 28
"""Bytes of one array that are kept in memory; a larger one goes to a temporary file."""

BLOCK = 1 << 24
"""Bytes that are copied or looked at in one go."""


def room(shape: tuple[int, ...], dtype: DTypeLike, limit: int | None = None) -> Array:
    """An array of this shape, not yet filled.

    >>> room((2, 3), np.float32).shape
    (2, 3)
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size <= (LIMIT if limit is None else limit):
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="coterie-") as file:
            _reserve(file.fileno(), size)
            # A plain array over the map: it keeps the map alive and behaves like any other.
            return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
    except OSError as error:
        place, wanted = tempfile.gettempdir(), f"{size / 1e9:.1f} GB"
        raise DataError(
            f"the examples need {wanted} in {place} and cannot get it ({error.strerror}); set TMPDIR to a larger place"
        ) from error


def _reserve(descriptor: int, size: int) -> None:
    """Take the space now: running out of it later would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


def release(array: Array) -> None:
    """Let go of what memory holds of a mapped array; it is read from its file again when it is needed."""
    mapped: Any = array.base.base if isinstance(array.base, np.memmap) else None
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def gather(array: Array, rows: Array) -> Array:
    """These rows of an array, in room of their own."""
    found = room((len(rows), *array.shape[1:]), array.dtype)
    for part in row_parts(found):
        found[part] = array[rows[part]]
        release(found)
        release(array)
    return found


def row_parts(array: Array) -> list[slice]:
    """Slices that go through an array's rows, ``BLOCK`` bytes at a time.

    >>> row_parts(np.zeros((3, BLOCK), np.uint8))
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)]
    """
    step = max(1, BLOCK * len(array) // max(1, array.nbytes)) if len(array) else 1
    return [slice(start, min(start + step, len(array))) for start in range(0, len(array), step)]
