"""What a partition's arguments may be; a refusal names the value and what would do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coterie.errors import PartitionError


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
