"""Shares: which rows of a data set each client is handed, and how it sees them.

A partition is a named value that divides a data set into shares. Its text is the address of its chance, so two
ways to write the same partition must have one text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from coterie.catalogue import Call, Value
from coterie.seeding import generator

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
View = Callable[[Array, Array, str], tuple[Array, Array]]
"""How a client sees its ``(x, y)`` of a split, "train" or "test"; equal arguments must give equal results."""
P = ParamSpec("P")


def unchanged(x: Array, y: Array, split: str) -> tuple[Array, Array]:
    """The view of a client that sees its examples as they are."""
    return x, y


@dataclass(frozen=True)
class Share:
    """What one client is handed: rows of the train and of the test set, seen through a view."""

    train: Array
    test: Array
    view: View = unchanged

    def through(self, view: View) -> Share:
        """The same rows, seen through one more view on top of the present one."""
        return replace(self, view=functools.partial(_both, self.view, view))


def _both(first: View, second: View, x: Array, y: Array, split: str) -> tuple[Array, Array]:
    return second(*first(x, y, split), split)


@dataclass(frozen=True)
class Shares:
    """What all clients are handed, their true groups where there are any, and what a user should know of it.

    ``names`` are the clients' own names, where the data come with some. ``classes`` is how many classes there are
    once labels were seen through the views; None is as many as the data set has. ``alike`` is equal for
    clients of the same group and the same levels of the add-ons so far; None: no levels have been dealt yet.
    """

    clients: tuple[Share, ...]
    groups: Array | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    classes: int | None = None
    alike: Array | None = None


Divide = Callable[["Dataset", int, Rng], Shares]
Change = Callable[["Dataset", Shares, Rng], Shares]


@dataclass(frozen=True)
class AddOn:
    """A named change to what clients were handed, on top of any partition; equal texts are equal add-ons."""

    text: str
    change: Change = field(compare=False, repr=False)


@dataclass(frozen=True)
class Partition:
    """A named way to divide a data set among clients, perhaps with add-ons; equal texts are equal partitions."""

    name: str
    divide: Divide = field(compare=False, repr=False)
    add_ons: tuple[AddOn, ...] = ()

    @property
    def text(self) -> str:
        """The text form, such as ``rotation(0,180)+quantity(1.5)``."""
        return "+".join((self.name, *(each.text for each in self.add_ons)))

    def shares(self, data: Dataset, clients: int, seed: int) -> Shares:
        """What each client is handed; the base is drawn as it would be without the add-ons."""
        shares, text = self.divide(data, clients, generator(seed, "partition", self.name)), self.name
        for each in self.add_ons:
            text = f"{text}+{each.text}"
            shares = each.change(data, shares, generator(seed, "partition", text))
        return shares


def named(make: Callable[P, Divide]) -> Callable[P, Partition]:
    """Let a function that makes a ``divide`` return a partition, whose text is the call without its defaults."""

    @functools.wraps(make)
    def build(*args: P.args, **kwargs: P.kwargs) -> Partition:
        return Partition(_text(make, *args, **kwargs), make(*args, **kwargs))

    return build


def add_on(make: Callable[P, Change]) -> Callable[P, AddOn]:
    """Let a function that makes a ``change`` return an add-on, whose text is the call without its defaults."""

    @functools.wraps(make)
    def build(*args: P.args, **kwargs: P.kwargs) -> AddOn:
        return AddOn(_text(make, *args, **kwargs), make(*args, **kwargs))

    return build


def _text(make: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    signature = inspect.signature(make)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    plain = [p.default for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    values = list(bound.args)
    while values and len(values) <= len(plain) and values[-1] == plain[len(values) - 1]:
        values.pop()
    options = tuple((k, _plain(v)) for k, v in bound.kwargs.items() if v != signature.parameters[k].default)
    return str(Call(make.__name__.replace("_", "-"), tuple(map(_plain, values)), options))


def _plain(value: Any) -> Value:
    whole = isinstance(value, float) and value.is_integer()
    plain: Value = int(value) if whole else value
    return plain
