"""Rows with the group of each, as scikit-learn has them, become the clients of a federation."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d

from coterie.data.federated import Federated, Split
from coterie.errors import EstimatorError
from coterie.typing import Array

ALL = "all"
"""The one group of rows that come without groups."""


def group_names(groups: Any, rows: Any) -> Array:
    """Return the group of every row as text; refuse rows without one.

    >>> group_names([3, 4], [[0.0], [1.0]]).tolist(), group_names(None, [[0.0], [1.0]]).tolist()
    (['3', '4'], ['all', 'all'])
    """
    if groups is None:
        return np.full(len(rows), ALL)
    check_consistent_length(rows, groups)
    given = column_or_1d(groups).tolist()
    for row, group in enumerate(given):
        if group is None or group != group:
            raise EstimatorError(f"row {row}, counted from 0, has no group; name one for every row")
    return np.array([str(group) for group in given])


def rows_by_group(names: Array) -> list[tuple[str, Array]]:
    """Return the different names in order, each with its rows.

    >>> [(name, rows.tolist()) for name, rows in rows_by_group(np.array(["b", "a", "b"]))]
    [('a', [1]), ('b', [0, 2])]
    """
    found, owners, counts = np.unique(names, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
    return list(zip(found.tolist(), parts, strict=True))


def distinct_groups(groups: Any, names: Array) -> tuple[Array, Array]:
    """Return the different groups in order, as they were given, and the number of each row's among them."""
    try:
        given = names if groups is None else column_or_1d(groups)
        found, owners = np.unique(given, return_inverse=True)
    except TypeError:
        raise EstimatorError("groups are of several kinds, such as words and numbers; use one kind") from None
    return found, owners


def as_clients(
    x: Array, y: Array, owners: Array, names: tuple[str, ...], *, classes: int | None, unit: float
) -> Federated:
    """Return a client for each group that trains on all its rows; none is set aside, so it is tested on the same."""
    order = np.argsort(owners, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(names)))])
    split = Split(x[order], y[order], offsets)
    note = "clients are tested on the examples that they train on: the scores are training scores"
    return Federated("rows", "natural", names, split, split, classes, unit=unit, notes=(note,))
