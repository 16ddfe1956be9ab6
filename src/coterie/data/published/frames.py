"""Pickled pandas tables, read without pandas and without letting a pickle run anything.

A pickle is a program: it names globals and calls them with arguments of its choice. Here every name that a table
needs stands for ``Kept``, which only keeps what it is given, and any other name is refused before it is looked up.
What was kept is then read as data.
"""

from __future__ import annotations

import io
import math
import pickle
from functools import partial
from typing import Any

import numpy as np

from coterie.errors import DataError

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

NAMES = frozenset(
    {
        "copy_reg._reconstructor",
        "pandas.core.frame.DataFrame",
        "pandas.core.internals.managers.BlockManager",
        "pandas.core.indexes.base._new_Index",
        "pandas.core.indexes.base.Index",
        "pandas.core.indexes.range.RangeIndex",
        "numpy.core.multiarray._reconstruct",
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",
        "__builtin__.object",
        "__builtin__.slice",
    }
)

_NUMBERS = ("<f8", "<i8")
# The layout of a table's blocks that pandas has written since its version of this number.
_LAYOUT = "0.14.1"


class Kept:
    """Stands for what a pickle makes: the name that was called, its arguments, and the state set afterwards."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in of its own for every name, so that a pickle cannot change anything that outlives it."""
        full = f"{module}.{name}"
        if full not in NAMES:
            raise DataError(f"the pickle names {full}, which no table needs; it is refused and nothing of it is run")
        return partial(Kept, full)


def unpickle(raw: bytes) -> Any:
    """What a pickle holds: plain values as they are, everything else as ``Kept``."""
    try:
        return _Reader(io.BytesIO(raw)).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail anywhere inside the unpickler
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"not a pickle of tables, or cut short ({reason})") from error


def columns(frame: Kept) -> Columns:
    """The columns of a table by name: whole numbers as int64, others as float64."""
    try:
        layout = frame.state["_data"].state[3][_LAYOUT]
        names = layout["axes"][0].arguments[1]["data"].state[-1]
        found: Columns = {}
        for block in layout["blocks"]:
            values = _array(block["values"])
            places = range(*block["mgr_locs"].arguments)
            found.update({names[place]: row for place, row in zip(places, values, strict=True)})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a table as pandas pickles it ({type(error).__name__}: {error})") from error
    return {name: found[name] for name in names}


def _array(kept: Kept) -> Array:
    """A numpy array of numbers, from the parts of its pickle."""
    _, shape, kind, by_column, content = kept.state
    name = kind.state[1] + kind.arguments[0]
    if name not in _NUMBERS:
        raise DataError(f"a table holds {name}; only {' and '.join(_NUMBERS)} are expected")
    text, encoding = content.arguments
    raw = text.encode("latin1") if encoding == "latin1" else b""
    if len(raw) != 8 * math.prod(shape):
        raise DataError(f"a block of shape {tuple(shape)} holds {len(raw)} bytes; the table is cut short or damaged")
    return np.frombuffer(raw, name).reshape(shape, order="F" if by_column else "C")
