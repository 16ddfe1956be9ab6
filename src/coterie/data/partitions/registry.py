"""The catalogue of partitions: how a text such as ``dirichlet(0.1,10)`` becomes a partition.

To add one, write a function that takes its arguments and returns a ``divide(data, clients, rng) -> Shares``, mark it
``@named`` and list it below. Most only choose weights, clients x classes, and leave the rest to ``divide_by_weights``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.data.partitions.base import Divide, Partition, Rng, Share, Shares, add_on, named
from coterie.data.partitions.class_table import table
from coterie.data.partitions.division import divide_equally, rows_of
from coterie.data.partitions.feature_skew import blur, noise, rotation, stroke
from coterie.data.partitions.label_noise import label_noise, permute, swap
from coterie.data.partitions.label_skew import blocks, classes, dirichlet, shards, skewed
from coterie.data.partitions.quantity_skew import few, quantity
from coterie.errors import PartitionError, UsageError
from coterie.textforms import Catalogue, parse

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@named
def iid(*, minimum: int = 10) -> Divide:
    """Equal shares, at random."""

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        return divide_equally(data, clients, minimum, rng)

    return divide


@named
def natural() -> Divide:
    """The clients that the data come with: people, states, hospitals; the files or client column of a user's data."""

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        if data.owners is None:
            raise PartitionError(f"{data.name} comes without clients; use another partition, such as dirichlet(0.1)")
        names = data.owners.names
        if clients != len(names):
            raise PartitionError(f"clients={clients}, but {data.name} comes with {len(names)}; leave clients out")
        train, test = (rows_of(owners, len(names)) for owners in (data.owners.train, data.owners.test))
        return Shares(tuple(map(Share, train, test)), names=names)

    return divide


add_ons = Catalogue(
    "add-on of a partition",
    {"quantity": quantity, "few": few, "blur": blur, "noise": noise, "stroke": stroke, "label-noise": label_noise},
    adopt=add_on,
)
partitions = Catalogue(
    "partition",
    {
        "iid": iid,
        "dirichlet": dirichlet,
        "skewed": skewed,
        "classes": classes,
        "shards": shards,
        "blocks": blocks,
        "table": table,
        "rotation": rotation,
        "swap": swap,
        "permute": permute,
        "natural": natural,
    },
    adopt=named,
)


def parse_partition(text: str) -> Partition:
    """Return the partition of a text, with its add-ons, which ``|`` or ``+`` chains in order.

    >>> parse_partition("dirichlet(0.10, 10.0, groups=10)").text
    'dirichlet(0.1,10)'
    >>> parse_partition("rotation(0,180) | quantity(1.5)").text
    'rotation(0,180)+quantity(1.5)'
    """
    first, *rest = parse(text.replace("|", "+"))
    if first.name in add_ons:
        raise UsageError(f"{first.name} changes a partition and cannot stand alone; write 'iid+{first}'")
    partition: Partition = partitions.build(first)
    return replace(partition, add_ons=tuple(add_ons.build(each) for each in rest))
