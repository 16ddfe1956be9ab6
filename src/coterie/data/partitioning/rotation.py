"""Partition by rotation: every group sees the whole data set, turned by its own angle.

Train and test were split before anything is turned, so an image is in the train set of every group or in the test
set of every group, and once in each (Ghosh et al. 2020, IFCA, arXiv:2006.04088).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from coterie.data.partitioning.handout import equal_shares, even
from coterie.data.partitioning.limits import require_images, require_number, require_whole
from coterie.data.partitioning.shares import Array, Divide, Rng, Shares, named
from coterie.errors import PartitionError

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

_PLANE = (-2, -1)


@named
def rotation(*angles: float, minimum: int = 10) -> Divide:
    """Every group sees the whole set turned by one of the angles (degrees, against the clock): rotation(0,90,180,270).

    Right angles are exact; other angles interpolate, and continue the border into the corners.
    """
    require_whole("minimum", minimum)
    for angle in angles:
        require_number("an angle", angle)
    if not angles or len({angle % 360 for angle in angles}) < len(angles):
        raise PartitionError(f"the angles {angles} must be different, one per group, such as rotation(0,90,180,270)")

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        _check_images(data, angles)
        require_whole("clients", clients)
        sizes = even(clients, len(angles))
        _check_room(data, clients, len(angles), minimum)
        parts = [equal_shares(data, int(size), minimum, rng) for size in sizes]
        turned = zip(parts, angles, strict=True)
        shares = tuple(replace(s, view=partial(turn, angle=angle)) for part, angle in turned for s in part.clients)
        return Shares(shares, np.repeat(np.arange(len(sizes)), sizes))

    return divide


def turn(x: Array, y: Array, split: str, angle: float) -> tuple[Array, Array]:
    """Images turned against the clock, with their labels.

    >>> turn(np.array([[[[1, 2], [3, 4]]]]), np.array([7]), "train", 90)[0].tolist()
    [[[[2, 4], [1, 3]]]]
    """
    if angle % 90 == 0:
        return np.rot90(x, int(angle // 90), axes=_PLANE), y
    return ndimage.rotate(x, angle, axes=_PLANE, reshape=False, order=1, mode="nearest"), y


def _check_room(data: Dataset, clients: int, groups: int, minimum: int) -> None:
    """Each group has the whole set, so the limit is on the clients of one group."""
    most = groups * min(len(data.y_train) // minimum, len(data.y_test))
    if clients > most:
        raise PartitionError(
            f"{clients} clients in {groups} groups, {minimum} train and 1 test examples each, are too many: "
            f"{data.name} has {len(data.y_train)} and {len(data.y_test)} a group; use at most {most} clients"
        )


def _check_images(data: Dataset, angles: tuple[float, ...]) -> None:
    height, width = require_images("rotation", data)
    if height != width and any(angle % 180 for angle in angles):
        raise PartitionError(f"images of {height}x{width} change their shape when turned; use rotation(0,180)")
