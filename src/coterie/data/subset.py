"""A data set of some of its classes: which ones a text names, and what is left of the examples and their owners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import DataError, UnknownName

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset, Owners

Array = np.ndarray[Any, Any]

FEWEST = {"train": 2, "test": 1}
"""An owner who is left with fewer examples than this is no client: one to train on, one to set aside, one to test."""


def of_classes(data: Dataset, text: str) -> Dataset:
    """Only the examples of some classes, numbered anew in their old order; owners with too few of them are left out."""
    kept = read_classes(text, data)
    new = np.full(data.classes or 0, -1)
    new[kept] = np.arange(len(kept))
    rows = {split: np.flatnonzero(new[getattr(data, f"y_{split}")] >= 0) for split in FEWEST}
    owners, notes = data.owners, [f"only the classes {text}: {len(kept)} of {data.classes}"]
    if owners is not None:
        stay = _enough(owners, rows)
        rows = {split: own[stay[getattr(owners, split)[own]]] for split, own in rows.items()}
        gone, owners = int((~stay).sum()), _those(owners, stay, rows)
        notes += [f"clients left out, with too few examples of these classes: {gone}"] if gone else []
    if min(map(len, rows.values())) < 1:
        raise DataError(f"classes is {text}, and {data.name} has no example of them to train or test on; name others")
    return replace(
        data,
        **{f"x_{split}": getattr(data, f"x_{split}")[own] for split, own in rows.items()},
        **{f"y_{split}": new[getattr(data, f"y_{split}")[own]] for split, own in rows.items()},
        classes=len(kept),
        class_names=tuple(data.class_names[i] for i in kept) if data.class_names else (),
        owners=owners,
        notes=(*data.notes, *notes),
        words=None if data.words is None else {**data.words, "classes": text},
    )


def read_classes(text: str, data: Dataset) -> list[int]:
    """The numbers of the classes that a text names, ascending: ``a..j``, ``1,3,7``, ``coat,bag``, ``0..2,9``."""
    if data.classes is None:
        raise DataError(f"classes is {text}, but {data.name} has numbers as targets; leave it out")
    if data.schema is not None:
        raise DataError(f"classes is {text}, but {data.name} is a table of yours; choose its rows there")
    found: set[int] = set()
    for word in (word.strip() for word in text.split(",")):
        first, dots, last = word.partition("..")
        low, high = _number(first, data), _number(last if dots else first, data)
        if low > high:
            raise DataError(
                f"classes is {text}, but {last} stands before {first} in {data.name}; write {last}..{first}"
            )
        found |= set(range(low, high + 1))
    if len(found) < 2:
        raise DataError(f"classes is {text}, which is one class; name at least two")
    return sorted(found)


def _number(word: str, data: Dataset) -> int:
    """The number of a class: by its name, or by itself where no class has a number as its name."""
    names = data.class_names or tuple(map(str, range(data.classes or 0)))
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names) and not any(name.isdecimal() for name in names):
        return int(word)
    raise UnknownName(f"class of {data.name}", word, names)


def _enough(owners: Owners, rows: dict[str, Array]) -> Array:
    """Which owners have enough of these rows in both splits."""
    count = len(owners.names)
    enough = [np.bincount(getattr(owners, s)[own], minlength=count) >= FEWEST[s] for s, own in rows.items()]
    both: Array = np.logical_and(*enough)
    return both


def _those(owners: Owners, stay: Array, rows: dict[str, Array]) -> Owners:
    """The owners who stay, of these rows, numbered anew."""
    number = np.cumsum(stay) - 1
    names = tuple(name for name, here in zip(owners.names, stay, strict=True) if here)
    return replace(owners, names=names, **{split: number[getattr(owners, split)[own]] for split, own in rows.items()})
