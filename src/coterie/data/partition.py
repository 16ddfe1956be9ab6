"""The catalogue of partitions: how a text such as ``dirichlet(0.1,10)`` becomes a way to divide a data set.

To add one, write a function that takes its arguments and returns a ``divide(data, clients, rng) -> Shares``, mark it
``@named`` and list it below. Most only decide weights, clients x classes, and leave the rest to ``hand_out``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.catalogue import Catalogue
from coterie.data.classes import classes
from coterie.data.dirichlet import dirichlet, skewed
from coterie.data.handout import equal_shares
from coterie.data.rotation import rotation
from coterie.data.shares import Divide, Partition, Rng, Shares, named
from coterie.errors import PartitionError

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
    """Clients as they come: the files of a user's own folder."""

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        raise PartitionError(f"{data.name} does not come with clients; load a folder of clients, or use dirichlet(0.1)")

    return divide


partitions = Catalogue(
    "partition",
    {
        "iid": iid,
        "dirichlet": dirichlet,
        "skewed": skewed,
        "classes": classes,
        "rotation": rotation,
        "natural": natural,
    },
)


def parse_partition(text: str) -> Partition:
    """The partition that a text names.

    >>> parse_partition("dirichlet(0.10, 10.0, groups=10)").text
    'dirichlet(0.1,10)'
    """
    partition: Partition = partitions.build(text)
    return partition
