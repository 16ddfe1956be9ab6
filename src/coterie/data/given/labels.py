"""Labels given by Python: whole numbers, words and truth values are classes, floats are targets of a regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.errors import DataError
from coterie.target import BINARY, Target
from coterie.typing import Array

MOST_CLASSES = 1000

_KINDS = {"b": "truth values", "i": "whole numbers", "u": "whole numbers", "f": "floats", "U": "words"}
"""What labels are, by numpy's letters."""


def find_task(labels: Mapping[str, Array], task: str | None) -> str:
    """Return ``classification`` or ``regression`` for the labels of all parts, by name; refuse a mixture.

    Whole numbers and floats are no mixture where the ``task`` is given.

    >>> find_task({"bern": np.array(["ill", "well"])}, None), find_task({"bern": np.array([0.5])}, None)
    ('classification', 'regression')
    """
    first = next(iter(labels))
    kinds = {name: _kind_of(name, y) for name, y in labels.items()}
    alike = {"floats": "numbers", "whole numbers": "numbers"} if task else {}
    for name, kind in kinds.items():
        if alike.get(kind, kind) != alike.get(kinds[first], kinds[first]):
            what = f"the labels in {name} are {kind}, and those in {first} are {kinds[first]}"
            raise DataError(f"{what}; give all clients labels of one kind")
    if task == "regression" and kinds[first] in ("words", "truth values"):
        raise DataError(f"task=regression needs numbers, and the labels in {first} are {kinds[first]}; leave it out")
    return task or ("regression" if kinds[first] == "floats" else "classification")


def _kind_of(name: str, y: Array) -> str:
    if y.dtype.kind not in _KINDS:
        raise DataError(f"the labels in {name} are of {y.dtype}; give whole numbers, words or floats")
    return _KINDS[y.dtype.kind]


def find_classes(labels: Mapping[str, Array]) -> Array:
    """Return the different labels of all parts, whole numbers by size and words by the alphabet.

    >>> find_classes({"bern": np.array([7, -1]), "chur": np.array([7, 3])}).tolist()
    [-1, 3, 7]
    """
    for name, y in labels.items():
        if y.dtype.kind == "f":
            broken = np.flatnonzero(y != np.floor(y))
            if len(broken):
                what = f"the label in {name}, row {broken[0]}, is {y[broken[0]]}, which is not whole"
                raise DataError(f"{what}; classes are whole numbers or words: use task='regression'")
    found = np.unique(np.concatenate([np.unique(y) for y in labels.values()]))
    if len(found) < 2:
        raise DataError(f"all labels are {found[0].item()!r}; at least 2 classes are needed to tell apart")
    if len(found) > MOST_CLASSES:
        what = f"there are {len(found)} different labels; at most {MOST_CLASSES} are taken for classes"
        raise DataError(f"{what}: use task='regression' if they are quantities")
    return found.astype(np.int64) if found.dtype.kind == "f" else found


def class_numbers(y: Array, classes: Array) -> Array:
    """Return the number of each label among the classes, which are in order."""
    return np.searchsorted(classes, y).astype(np.int64)


def fits_labels(y: Array) -> bool:
    """Return whether an array can be labels: ``(n,)``, or ``(n, k)`` for k of two or more labels or targets."""
    return y.ndim == 1 or (y.ndim == 2 and y.shape[1] > 1)


def several_columns(labels: Mapping[str, Array], task: str | None) -> Target | None:
    """Return what the columns of ``y`` are in all parts, by name; None where each has one column.

    Where every value is 0 or 1 they are labels, otherwise targets; ``task`` overrides that.

    >>> str(several_columns({"bern": np.eye(2), "chur": np.ones((1, 2))}, None))
    '2 labels'
    """
    first = next(iter(labels))
    shape = labels[first].shape[1:]
    for name, y in labels.items():
        if y.shape[1:] != shape:
            what = f"the labels in {name} have shape {y.shape[1:]} an example, and those in {first} {shape}"
            raise DataError(f"{what}; give as many for all")
    if not shape:
        if task == "multilabel":
            raise DataError("task is multilabel, and y has one label an example; give y as (n, k), or leave it out")
        return None
    if task == "classification":
        raise DataError(f"task is classification, and y has {shape[0]} labels an example; use task multilabel")
    others = [name for name, y in labels.items() if not np.isin(y, (0, 1)).all()]
    if task == "multilabel" and others:
        raise DataError(f"task is multilabel, and labels in {others[0]} are neither 0 nor 1; use task regression")
    return Target(None if task == "regression" or others else BINARY, shape[0])


def vocabulary_of(*examples: Array) -> int:
    """Return the number of tokens, those that do not occur among smaller ones included.

    >>> vocabulary_of(np.array([[0, 7]]), np.array([[3]]))
    8
    """
    return 1 + max(int(x.max()) for x in examples if x.size)


def group_numbers(names: Sequence[str], groups: Mapping[str, object]) -> Array:
    """Return the number of each client's true group, in the order of the groups' names.

    >>> group_numbers(("bern", "chur"), {"chur": "east", "bern": "west"}).tolist()
    [1, 0]
    """
    given = {str(name): str(group) for name, group in groups.items()}
    for name in names:
        if name not in given:
            raise DataError(f"groups has no group for client {name!r}; name a group for each, or leave groups out")
    for name in given:
        if name not in names:
            raise DataError(f"groups names {name!r}, which is no client; leave it out")
    kinds = sorted(set(given.values()))
    return np.array([kinds.index(given[name]) for name in names], np.int64)
