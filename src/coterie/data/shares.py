"""Shares: which rows of a data set each client is handed, and how it sees them.

A partition is a named value that divides a data set into shares. Its text is the address of its chance, so two
ways to write the same partition must have one text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from coterie.catalogue import Call, Value

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
View = Callable[[Array, Array], tuple[Array, Array]]
P = ParamSpec("P")


def unchanged(x: Array, y: Array) -> tuple[Array, Array]:
    """The view of a client that sees its examples as they are."""
    return x, y


@dataclass(frozen=True)
class Share:
    """What one client is handed: rows of the train and of the test set, seen through a view of ``(x, y)``."""

    train: Array
    test: Array
    view: View = unchanged


@dataclass(frozen=True)
class Shares:
    """What all clients are handed, their true groups where there are any, and what a user should know of it."""

    clients: tuple[Share, ...]
    groups: Array | None = None
    notes: tuple[str, ...] = ()


Divide = Callable[["Dataset", int, Rng], Shares]


@dataclass(frozen=True)
class Partition:
    """A named way to divide a data set among clients; equal texts are equal partitions."""

    text: str
    divide: Divide = field(compare=False, repr=False)


def named(make: Callable[P, Divide]) -> Callable[P, Partition]:
    """Let a function that makes a ``divide`` return a partition, whose text is the call without its defaults."""

    @functools.wraps(make)
    def build(*args: P.args, **kwargs: P.kwargs) -> Partition:
        divide = make(*args, **kwargs)
        bound = inspect.signature(make).bind(*args, **kwargs)
        options = tuple((k, _plain(v)) for k, v in bound.kwargs.items() if v != _default(make, k))
        return Partition(str(Call(make.__name__, tuple(map(_plain, bound.args)), options)), divide)

    return build


def _default(make: Callable[..., Any], name: str) -> Any:
    return inspect.signature(make).parameters[name].default


def _plain(value: Any) -> Value:
    whole = isinstance(value, float) and value.is_integer()
    plain: Value = int(value) if whole else value
    return plain
