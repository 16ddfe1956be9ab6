"""The types that a partition is made of: shares of a data set, partitions, and add-ons that change them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from coterie.errors import PartitionError
from coterie.seeding import generator
from coterie.textforms import Call, Value
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

P = ParamSpec("P")
Rng = np.random.Generator
View = Callable[[Array, Array, str], tuple[Array, Array]]
"""How a client sees its ``(x, y)`` of a split, "train" or "test"; equal arguments must give equal results."""


def unchanged(x: Array, y: Array, split: str) -> tuple[Array, Array]:
    """Return the examples as they are: the view of most clients."""
    return x, y


@dataclass(frozen=True)
class Share:
    """The examples of one client: rows of the train and of the test set, seen through a view."""

    train: Array
    test: Array
    view: View = unchanged

    def through(self, view: View) -> Share:
        """Return the same rows, seen through one more view after the present one."""
        return replace(self, view=functools.partial(_both, self.view, view))


def _both(first: View, second: View, x: Array, y: Array, split: str) -> tuple[Array, Array]:
    return second(*first(x, y, split), split)


@dataclass(frozen=True)
class Shares:
    """The shares of all clients, their true groups if there are any, and notes for the user.

    ``names`` are the clients' names where the data come with some. ``classes`` is the number of classes in the labels
    that the views give, None if it is that of the data set. ``alike`` is equal for clients of the same group and the
    same levels of the add-ons so far, None before the first levels.
    """

    clients: tuple[Share, ...]
    groups: Array | None = None
    _: KW_ONLY
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    classes: int | None = None
    alike: Array | None = None


Divide = Callable[["Dataset", int, Rng], Shares]
"""How a data set becomes the shares of a number of clients."""

Change = Callable[["Dataset", Shares, Rng], Shares]
"""How an add-on changes the shares of a data set."""


@dataclass(frozen=True)
class AddOn:
    """A named change of the shares, on top of any partition; add-ons with equal texts are equal."""

    text: str
    change: Change = field(compare=False, repr=False)


@dataclass(frozen=True)
class Partition:
    """A named way to divide a data set among clients, perhaps with add-ons; partitions with equal texts are equal."""

    name: str
    divide: Divide = field(compare=False, repr=False)
    add_ons: tuple[AddOn, ...] = ()

    @property
    def text(self) -> str:
        """The text form, such as ``rotation(0,180)+quantity(1.5)``."""
        return "+".join((self.name, *(each.text for each in self.add_ons)))

    def shares(self, data: Dataset, clients: int, seed: int) -> Shares:
        """Divide a data set; add-ons do not change the draws of the partition before them."""
        shares, text = self.divide(data, clients, generator(seed, "partition", self.name)), self.name
        for each in self.add_ons:
            text = f"{text}+{each.text}"
            shares = each.change(data, shares, generator(seed, "partition", text))
        return shares


def named(make: Callable[P, Divide], name: str | None = None) -> Callable[P, Partition]:
    """Turn a function that returns a ``divide`` into one that returns a partition, named by the call.

    ``name`` is what the text calls it, if that is not the name of the function.
    """

    @functools.wraps(make)
    def build(*args: P.args, **kwargs: P.kwargs) -> Partition:
        made = make(*args, **kwargs)
        divide = made.divide if isinstance(made, Partition) else made
        return Partition(_text(make, name, *args, **kwargs), _checked(divide, make, "(data, clients, rng) -> Shares"))

    return build


def add_on(make: Callable[P, Change], name: str | None = None) -> Callable[P, AddOn]:
    """Turn a function that returns a ``change`` into one that returns an add-on, named by the call, as ``named``."""

    @functools.wraps(make)
    def build(*args: P.args, **kwargs: P.kwargs) -> AddOn:
        made = make(*args, **kwargs)
        change = made.change if isinstance(made, AddOn) else made
        return AddOn(_text(make, name, *args, **kwargs), _checked(change, make, "(data, shares, rng) -> Shares"))

    return build


def _checked(made: Any, make: Callable[..., Any], form: str) -> Any:
    """Return what a function made, if it can be called."""
    if not callable(made):
        raise PartitionError(f"{make.__name__} gives a {type(made).__name__}; it must return a function {form}")
    return made


def _text(make: Callable[..., Any], name: str | None, *args: Any, **kwargs: Any) -> str:
    """Return the text form of a call, without arguments that have their default."""
    signature = inspect.signature(make)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    plain = [p.default for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    values = list(bound.args)
    while values and len(values) <= len(plain) and values[-1] == plain[len(values) - 1]:
        values.pop()
    options = tuple((k, _plain(v)) for k, v in bound.kwargs.items() if v != signature.parameters[k].default)
    return str(Call(name or make.__name__.replace("_", "-"), tuple(map(_plain, values)), options))


def _plain(value: Any) -> Value:
    whole = isinstance(value, float) and value.is_integer()
    plain: Value = int(value) if whole else value
    return plain
