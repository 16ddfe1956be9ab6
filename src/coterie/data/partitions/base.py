"""What a partition is made of: shares of a data set, how they are dealt out, and their limits."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from coterie.data.apportion import mixes, share_out, top_up
from coterie.errors import PartitionError
from coterie.seeding import generator
from coterie.textforms import Call, Value
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


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


def require_default(name: str, value: Any, default: Any, place: str) -> None:
    """Refuse an argument that would be ignored: it belongs to another form of the same partition."""
    if value != default:
        raise PartitionError(f"{name}={value} is for {place}; leave it out, or write that")


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
    """How many classes the data have; refuse numbers for targets."""
    if data.classes is None:
        raise PartitionError(f"{what} needs classes and {data.name} has numbers for targets; use the partition iid")
    return data.classes


def require_images(what: str, data: Dataset) -> tuple[int, int]:
    """Height and width of the images; refuse examples of any other shape."""
    shape = data.x_train.shape[1:]
    if len(shape) != 3:
        raise PartitionError(
            f"{what} needs images and an example of {data.name} has shape {shape}; use what works on all features, "
            f"as dirichlet(0.1) or noise(0,0.5)"
        )
    return shape[1], shape[2]


if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

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


if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@dataclass(frozen=True)
class Pool:
    """What is to be handed out: the class of every train and of every test example."""

    train: Array
    test: Array
    classes: int

    @property
    def counts(self) -> Array:
        """How many train examples each class has."""
        return np.bincount(self.train, minlength=self.classes)

    @property
    def test_counts(self) -> Array:
        """How many test examples each class has."""
        return np.bincount(self.test, minlength=self.classes)


def by_class(data: Dataset, clients: int, minimum: int) -> Pool:
    """The data set as classes, for partitions that divide each class on its own; enough for these clients."""
    classes = require_classes("this partition", data)
    _check_room(data, clients, minimum)
    return Pool(data.y_train, data.y_test, classes)


def as_one(data: Dataset, clients: int, minimum: int) -> Pool:
    """The data set as a single class, for partitions that do not look at labels; enough for these clients."""
    _check_room(data, clients, minimum)
    return Pool(np.zeros(len(data.y_train), np.int64), np.zeros(len(data.y_test), np.int64), 1)


def _check_room(data: Dataset, clients: int, minimum: int) -> None:
    require_whole("clients", clients)
    require_whole("minimum", minimum)
    if clients * minimum > len(data.y_train):
        raise PartitionError(
            f"{clients} clients x {minimum} examples need {clients * minimum} train examples and {data.name} has "
            f"{len(data.y_train)}; use at most {len(data.y_train) // minimum} clients or a smaller minimum"
        )
    if clients > len(data.y_test):
        raise PartitionError(
            f"{clients} clients need a test example each and {data.name} has {len(data.y_test)}; "
            f"use at most {len(data.y_test)} clients"
        )


def _fill(counts: Array, weights: Array, minimum: int) -> tuple[Array, Array]:
    """The train table of these weights, topped up to ``minimum``, and how many examples that moved to each client."""
    table = share_out(counts, weights)
    full = top_up(table, mixes(weights * counts), minimum, "train")
    return full, np.maximum(full.sum(axis=1) - table.sum(axis=1), 0)


def hand_out(pool: Pool, weights: Array, minimum: int, rng: Rng, groups: Array | None = None) -> Shares:
    """Divide each class by its column of ``weights``, in train and test alike."""
    table, moved = _fill(pool.counts, weights, minimum)
    return settle(pool, table, rng, groups, _topped_up(moved, minimum, "train"))


def hand_to_groups(pool: Pool, held: Array, weights: Sequence[Array], minimum: int, rng: Rng) -> Shares:
    """Divide what each group holds, ``(groups, classes)``, over its clients by the group's own weights."""
    filled = [_fill(counts, own, minimum) for counts, own in zip(held, weights, strict=True)]
    table, moved = (np.concatenate(parts) for parts in zip(*filled, strict=True))
    groups = np.repeat(np.arange(len(held)), [len(own) for own in weights])
    return settle(pool, table, rng, groups, _topped_up(moved, minimum, "train"))


def equal_shares(data: Dataset, clients: int, minimum: int, rng: Rng) -> Shares:
    """Divide the whole set into equal parts at random, whatever its labels."""
    pool = as_one(data, clients, minimum)
    return hand_out(pool, np.ones((clients, 1)), minimum, rng)


def settle(pool: Pool, train: Array, rng: Rng, groups: Array | None = None, notes: tuple[str, ...] = ()) -> Shares:
    """Turn a train table into shares: each class of the test set is divided as in train, rows are drawn at random."""
    plain = share_out(pool.test_counts, train)
    test = top_up(plain, mixes(train), 1, "test")
    moved = np.maximum(test.sum(axis=1) - plain.sum(axis=1), 0)
    rows = zip(_rows(pool.train, train, rng), _rows(pool.test, test, rng), strict=True)
    clients = tuple(Share(own, check) for own, check in rows)
    return Shares(clients, groups, (*notes, *_topped_up(moved, 1, "test"), *_unused(pool, train, test)))


def _topped_up(moved: Array, minimum: int, what: str) -> tuple[str, ...]:
    """A note of how many clients were topped up, if any were."""
    count = int(np.count_nonzero(moved))
    if not count:
        return ()
    return (f"{count} of {len(moved)} clients were topped up to {minimum} {what} examples, {moved.sum()} in all",)


def _unused(pool: Pool, train: Array, test: Array) -> tuple[str, ...]:
    """A note of what is left over: classes that nobody holds, and classes of which fewer were asked for."""
    left = np.stack([pool.counts - train.sum(axis=0), pool.test_counts - test.sum(axis=0)])
    held = train.any(axis=0)
    notes = []
    for kind, why in ((~held, "nobody holds class"), (held, "there are more than asked for of class")):
        numbers = np.flatnonzero(kind & left.any(axis=0))
        if numbers.size:
            own, check = left[:, numbers].sum(axis=1)
            which = ", ".join(map(str, numbers))
            notes.append(f"{own} train and {check} test examples are unused: {why} {which}")
    return tuple(notes)


def _rows(labels: Array, table: Array, rng: Rng) -> list[Array]:
    """The rows of each client, in order: each class shuffled, then cut by its column."""
    owners = np.full(len(labels), -1)
    for column in range(table.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == column))
        owners[rows[: table[:, column].sum()]] = np.repeat(np.arange(len(table)), table[:, column])
    return rows_of(owners, len(table))


def rows_of(owners: Array, clients: int) -> list[Array]:
    """The rows of each client, in order, from the owner of every row (-1 where it has none).

    >>> [rows.tolist() for rows in rows_of(np.array([1, -1, 0, 1]), 2)]
    [[2], [0, 3]]
    """
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.searchsorted(owners[order], np.arange(clients)))[1:]


def even(clients: int, groups: int) -> Array:
    """Clients per group, as equal as possible.

    >>> even(10, 4).tolist()
    [3, 3, 2, 2]
    """
    require_whole("groups", groups)
    if groups > clients:
        raise PartitionError(
            f"{groups} groups need as many clients and there are {clients}; use more clients or fewer groups"
        )
    return clients // groups + (np.arange(groups) < clients % groups)
