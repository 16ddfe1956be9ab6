"""What every partition is made of: the types of shares, partitions and add-ons, and the checks of their arguments."""

from __future__ import annotations

import functools
import inspect
import math
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


# Checks of arguments: each refuses a value and names the limit.


def require_whole(name: str, value: Any) -> None:
    """Refuse anything but a whole number of at least 1."""
    if not isinstance(value, int | np.integer) or value is True or value < 1:
        raise PartitionError(f"{name}={value} must be a whole number of at least 1")


def require_positive(name: str, value: Any) -> None:
    """Refuse anything but a positive, finite number."""
    require_number(name, value)
    if value <= 0:
        raise PartitionError(f"{name}={value} must be greater than 0, such as 0.1")


def require_switch(name: str, value: Any) -> None:
    """Refuse anything but true and false: a word such as ``no`` would count as true."""
    if not isinstance(value, bool):
        raise PartitionError(f"{name}={value} must be true or false")


def require_default(name: str, value: Any, default: Any, form: str) -> None:
    """Refuse an argument that would be ignored: it belongs to another form of the same partition."""
    if value != default:
        raise PartitionError(f"{name}={value} is for {form}; leave it out, or use that form")


def require_number(name: str, value: Any) -> None:
    """Refuse anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise PartitionError(f"{name}={value} must be a finite number")


def require_between(name: str, value: Any, low: float, high: float) -> None:
    """Refuse anything but a number from ``low`` to ``high``."""
    require_number(name, value)
    if not low <= value <= high:
        raise PartitionError(f"{name}={value} must be from {low:g} to {high:g}")


def require_classes(what: str, data: Dataset) -> int:
    """Return the number of classes; refuse data in which an example has not exactly one."""
    classes = data.target.one_of
    if classes is None:
        has = data.target if data.columns else "numbers for targets"
        raise PartitionError(f"{what} needs classes and {data.name} has {has}; use the partition iid")
    return classes


def require_numbers(what: str, data: Dataset) -> None:
    """Refuse tokens: a changed token is another word, not a similar one."""
    if data.vocabulary is not None:
        raise PartitionError(f"{what} changes numbers and {data.name} has tokens; use the partition iid")


def require_images(what: str, data: Dataset) -> tuple[int, int]:
    """Return height and width of the images; refuse examples of another shape."""
    require_numbers(what, data)
    shape = data.x_train.shape[1:]
    if len(shape) != 3:
        raise PartitionError(
            f"{what} needs images and an example of {data.name} has shape {shape}; use one that works on any features, "
            f"such as dirichlet(0.1) or noise(0,0.5)"
        )
    return shape[1], shape[2]
