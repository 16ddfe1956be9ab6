"""Memory for large arrays: ordinary memory, or beyond a limit a temporary file that is mapped into memory.

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
"""Bytes that are copied or checked at a time."""


def allocate(shape: tuple[int, ...], dtype: DTypeLike, limit: int | None = None) -> Array:
    """Return an array of this shape, not yet filled.

    >>> allocate((2, 3), np.float32).shape
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
        folder, wanted = tempfile.gettempdir(), f"{size / 1e9:.1f} GB"
        raise DataError(
            f"the examples need {wanted} in {folder} and cannot get it ({error.strerror}); set TMPDIR to a larger place"
        ) from error


def release(array: Array) -> None:
    """Drop the pages of a mapped array from memory; they are read from its file again when they are needed."""
    mapped: Any = array.base.base if isinstance(array.base, np.memmap) else None
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def take_rows(array: Array, rows: Array) -> Array:
    """Return a copy of these rows of an array."""
    found = allocate((len(rows), *array.shape[1:]), array.dtype)
    for part in row_blocks(found):
        found[part] = array[rows[part]]
        release(found)
        release(array)
    return found


def row_blocks(array: Array) -> list[slice]:
    """Return slices that go through an array's rows, ``BLOCK`` bytes at a time.

    >>> row_blocks(np.zeros((3, BLOCK), np.uint8))
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)]
    """
    step = max(1, BLOCK * len(array) // max(1, array.nbytes)) if len(array) else 1
    return [slice(start, min(start + step, len(array))) for start in range(0, len(array), step)]


def _reserve(descriptor: int, size: int) -> None:
    """Take the space on disk now, because running out of it later would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)
