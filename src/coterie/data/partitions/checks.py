"""Checks of a partition's arguments: each refuses a value and names the limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import PartitionError

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
    """Return the number of classes; refuse data with numbers as targets."""
    if data.classes is None:
        raise PartitionError(f"{what} needs classes and {data.name} has numbers for targets; use the partition iid")
    return data.classes


def require_images(what: str, data: Dataset) -> tuple[int, int]:
    """Return height and width of the images; refuse examples of another shape."""
    shape = data.x_train.shape[1:]
    if len(shape) != 3:
        raise PartitionError(
            f"{what} needs images and an example of {data.name} has shape {shape}; use one that works on any features, "
            f"such as dirichlet(0.1) or noise(0,0.5)"
        )
    return shape[1], shape[2]
