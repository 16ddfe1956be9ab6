"""The catalogue of partitions: how a text such as ``dirichlet(0.1,10)`` becomes a way to divide a data set.

To add one, write a function that takes its arguments and returns a ``divide(data, clients, rng) -> Shares``, mark it
``@named`` and list it below. Most only decide weights, clients x classes, and leave the rest to ``hand_out``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.catalogue import Catalogue, parse
from coterie.data.partitioning.blocks import blocks
from coterie.data.partitioning.class_table import table
from coterie.data.partitioning.classes import classes
from coterie.data.partitioning.dirichlet import dirichlet, skewed
from coterie.data.partitioning.features import blur, noise, stroke
from coterie.data.partitioning.handout import equal_shares, rows_of
from coterie.data.partitioning.labels import label_noise, permute, swap
from coterie.data.partitioning.quantity import few, quantity
from coterie.data.partitioning.rotation import rotation
from coterie.data.partitioning.shards import shards
from coterie.data.partitioning.shares import Divide, Partition, Rng, Share, Shares, named
from coterie.errors import PartitionError, UsageError

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@named
def iid(*, minimum: int = 10) -> Divide:
    """Equal shares, at random."""

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        return equal_shares(data, clients, minimum, rng)

    return divide


@named
def natural() -> Divide:
    """Clients as they come: people, states, hospitals; the files or the client column of a user's own data."""

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        if data.owners is None:
            raise PartitionError(f"{data.name} does not come with clients; use another partition, as dirichlet(0.1)")
        names = data.owners.names
        if clients != len(names):
            raise PartitionError(f"clients={clients}, but {data.name} has {len(names)} of its own; leave clients out")
        train, test = (rows_of(owners, len(names)) for owners in (data.owners.train, data.owners.test))
        return Shares(tuple(map(Share, train, test)), names=names)

    return divide


add_ons = Catalogue(
    "add-on of a partition",
    {"quantity": quantity, "few": few, "blur": blur, "noise": noise, "stroke": stroke, "label-noise": label_noise},
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
)


def parse_partition(text: str) -> Partition:
    """The partition that a text names, with its add-ons: ``|`` or ``+`` chains them, in order.

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
