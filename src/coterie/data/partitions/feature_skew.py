"""Feature skew: a partition and add-ons by which clients see rotated, blurred, noisy, thicker or thinner examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitions.base import (
    Change,
    Divide,
    Rng,
    Shares,
    add_on,
    named,
    require_between,
    require_images,
    require_number,
    require_numbers,
    require_whole,
)
from coterie.data.partitions.division import divide_equally, even_groups
from coterie.errors import PartitionError
from coterie.seeding import generator
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

Effect = Callable[[Array, float, Rng], Array]
"""How a level changes the examples ``x``."""

LOUDEST = 1e6
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
        height, width = require_images("rotation", data)
        if height != width and any(angle % 180 for angle in angles):
            raise PartitionError(f"images of {height}x{width} change their shape when turned; use rotation(0,180)")
        require_whole("clients", clients)
        sizes = even_groups(clients, len(angles))
        _require_enough(data, clients, len(angles), minimum)
        parts = [divide_equally(data, int(size), minimum, rng) for size in sizes]
        turned = zip(parts, angles, strict=True)
        shares = tuple(replace(s, view=partial(turn, angle=angle)) for part, angle in turned for s in part.clients)
        return Shares(shares, np.repeat(np.arange(len(sizes)), sizes))

    return divide


@add_on
def blur(*sigmas: float) -> Change:
    """Clients see images blurred by a Gaussian of these widths in pixels: blur(0,1,2)."""
    for sigma in sigmas:
        require_number("the blur", sigma)

    def check(data: Dataset) -> None:
        side = min(require_images("blur", data))
        for sigma in sigmas:
            require_between("the blur", sigma, 0, side)

    return _at_levels("blur", sigmas, blurred, check)


@add_on
def noise(*levels: float) -> Change:
    """Clients see features with Gaussian noise of these deviations, where pixels range from -1 to 1: noise(0,0.5).

    The noise of an example is the same in every round. Pixels are not cut off at -1 and 1.
    """
    for level in levels:
        require_between("the noise", level, 0, LOUDEST)
    return _at_levels("noise", levels, noisy, lambda data: require_numbers("noise", data))


@add_on
def stroke(*widths: int) -> Change:
    """Clients see light strokes thicker by these widths in pixels on every side, or thinner: stroke(-1,0,1).

    Grey dilation and erosion with a square; on images with a light background it is dark strokes that get thinner.
    """
    for width in widths:
        if not isinstance(width, int | np.integer) or isinstance(width, bool):
            raise PartitionError(f"the stroke={width} must be a whole number of pixels, such as stroke(-1,0,1)")

    def check(data: Dataset) -> None:
        most = (min(require_images("stroke", data)) - 1) // 2
        for width in widths:
            require_between("the stroke", width, -most, most)

    return _at_levels("stroke", widths, stroked, check)


def turn(x: Array, y: Array, split: str, angle: float) -> tuple[Array, Array]:
    """Return images turned against the clock, with their labels.

    >>> turn(np.array([[[[1, 2], [3, 4]]]]), np.array([7]), "train", 90)[0].tolist()
    [[[[2, 4], [1, 3]]]]
    """
    if angle % 90 == 0:
        return np.rot90(x, int(angle // 90), axes=_PLANE), y
    from scipy import ndimage

    return ndimage.rotate(x, angle, axes=_PLANE, reshape=False, order=1, mode="nearest"), y


def blurred(x: Array, sigma: float, rng: Rng) -> Array:
    """Return images blurred by a Gaussian, each channel by itself; border pixels are repeated outside."""
    from scipy import ndimage

    result: Array = ndimage.gaussian_filter(x, (0, 0, sigma, sigma), mode="nearest")
    return result


def noisy(x: Array, level: float, rng: Rng) -> Array:
    """Return features with Gaussian noise of this deviation."""
    return x + np.float32(level) * rng.standard_normal(x.shape, np.float32)


def stroked(x: Array, width: float, rng: Rng) -> Array:
    """Return images with light strokes that are ``width`` pixels thicker on every side, or thinner.

    >>> stroked(np.array([[[[0, 0, 5, 0, 0]]]]), 1, generator(1)).tolist()
    [[[[0, 5, 5, 5, 0]]]]
    """
    from scipy import ndimage

    window = (1, 1, 2 * abs(int(width)) + 1, 2 * abs(int(width)) + 1)
    filtered = ndimage.grey_dilation if width > 0 else ndimage.grey_erosion
    result: Array = filtered(x, size=window, mode="nearest")
    return result


def in_turn(groups: Array, levels: int) -> Array:
    """Return the number of each client's level, assigned in turn within one group after the other.

    >>> in_turn(np.array([0, 0, 0, 1, 1, 1]), 2).tolist()
    [0, 1, 0, 1, 0, 1]
    """
    dealt = np.empty(len(groups), np.int64)
    dealt[np.argsort(groups, kind="stable")] = np.arange(len(groups)) % levels
    return dealt


def _at_levels(name: str, levels: tuple[float, ...], effect: Effect, check: Callable[[Dataset], None]) -> Change:
    """Return the change that gives each client a level.

    Several levels are the true groups if there were no groups before.
    """
    if not levels or len(set(levels)) < len(levels):
        raise PartitionError(f"{name} needs at least one level, and different ones; it has {levels}, use {name}(0,1)")

    def change(data: Dataset, shares: Shares, rng: Rng) -> Shares:
        check(data)
        clients = len(shares.clients)
        if len(levels) > clients:
            raise PartitionError(
                f"{len(levels)} levels of {name} need as many clients, not {clients}; use fewer levels"
            )
        groups = np.zeros(clients, int) if shares.groups is None else shares.groups
        alike = groups if shares.alike is None else shares.alike
        dealt = in_turn(alike, len(levels))
        key = int(rng.integers(2**63))
        seen = tuple(
            share.through(partial(_view, effect=effect, level=levels[own], key=key, client=i)) if levels[own] else share
            for i, (share, own) in enumerate(zip(shares.clients, dealt, strict=True))
        )
        truth = dealt if shares.groups is None and len(levels) > 1 else shares.groups
        return replace(shares, clients=seen, groups=truth, alike=alike * len(levels) + dealt)

    return change


def _view(x: Array, y: Array, split: str, effect: Effect, level: float, key: int, client: int) -> tuple[Array, Array]:
    return effect(x, level, generator(key, str(client), split)), y


def _require_enough(data: Dataset, clients: int, groups: int, minimum: int) -> None:
    """Refuse too many clients; each group has the whole set, so the limit is on the clients of one group."""
    most = groups * min(len(data.y_train) // minimum, len(data.y_test))
    if clients > most:
        raise PartitionError(
            f"{clients} clients in {groups} groups, {minimum} train and 1 test examples each, are too many: "
            f"{data.name} has {len(data.y_train)} and {len(data.y_test)} a group; use at most {most} clients"
        )
