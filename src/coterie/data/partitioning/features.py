"""Feature skew: add-ons under which clients see the same things through different instruments.

Each names levels, which are dealt to the clients in turn, group by group where the partition has groups, so that
every group has all levels about equally often; a further one is dealt among those whom the ones before left alike.
Level 0 leaves the examples as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from coterie.data.partitioning.limits import require_between, require_images, require_number
from coterie.data.partitioning.shares import Array, Change, Rng, Shares, add_on
from coterie.errors import PartitionError
from coterie.seeding import generator

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

Effect = Callable[[Array, float, Rng], Array]
"""What a level makes of the examples ``x``."""

LOUDEST = 1e6


@add_on
def blur(*sigmas: float) -> Change:
    """Clients see images blurred by a Gaussian of so many pixels: blur(0,1,2)."""
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

    Each example has noise of its own, the same in every round. Pixels are not cut off at -1 and 1.
    """
    for level in levels:
        require_between("the noise", level, 0, LOUDEST)
    return _at_levels("noise", levels, noisy, lambda data: None)


@add_on
def stroke(*widths: int) -> Change:
    """Clients see light strokes thicker by so many pixels on every side, or thinner by negative ones: stroke(-1,0,1).

    Grey dilation and erosion with a square; on images with a light ground it is dark strokes that get thinner.
    """
    for width in widths:
        if not isinstance(width, int | np.integer) or isinstance(width, bool):
            raise PartitionError(f"the stroke={width} must be a whole number of pixels, such as stroke(-1,0,1)")

    def check(data: Dataset) -> None:
        most = (min(require_images("stroke", data)) - 1) // 2
        for width in widths:
            require_between("the stroke", width, -most, most)

    return _at_levels("stroke", widths, stroked, check)


def blurred(x: Array, sigma: float, rng: Rng) -> Array:
    """Images blurred by a Gaussian, each channel on its own; the border goes on outside."""
    result: Array = ndimage.gaussian_filter(x, (0, 0, sigma, sigma), mode="nearest")
    return result


def noisy(x: Array, level: float, rng: Rng) -> Array:
    """Features with Gaussian noise of this deviation."""
    return x + np.float32(level) * rng.standard_normal(x.shape, np.float32)


def stroked(x: Array, width: float, rng: Rng) -> Array:
    """Images whose light strokes grow by ``width`` pixels on every side, or shrink.

    >>> stroked(np.array([[[[0, 0, 5, 0, 0]]]]), 1, generator(1)).tolist()
    [[[[0, 5, 5, 5, 0]]]]
    """
    window = (1, 1, 2 * abs(int(width)) + 1, 2 * abs(int(width)) + 1)
    filtered = ndimage.grey_dilation if width > 0 else ndimage.grey_erosion
    result: Array = filtered(x, size=window, mode="nearest")
    return result


def _at_levels(name: str, levels: tuple[float, ...], effect: Effect, check: Callable[[Dataset], None]) -> Change:
    """The change that deals the levels; they are the true groups where there were none and there are several levels."""
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


def in_turn(groups: Array, levels: int) -> Array:
    """The number of each client's level: dealt in turn, one group after the other.

    >>> in_turn(np.array([0, 0, 0, 1, 1, 1]), 2).tolist()
    [0, 1, 0, 1, 0, 1]
    """
    dealt = np.empty(len(groups), np.int64)
    dealt[np.argsort(groups, kind="stable")] = np.arange(len(groups)) % levels
    return dealt


def _view(x: Array, y: Array, split: str, effect: Effect, level: float, key: int, client: int) -> tuple[Array, Array]:
    return effect(x, level, generator(key, str(client), split)), y
