"""Axes of a drawing: round numbers for ticks, and where a number is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps numbers from ``low`` to ``high`` onto places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number.

        >>> Scale(0, 10, 100, 200)(2.5)
        125.0
        """
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round numbers on the scale.

        >>> Scale(0.0, 1.0, 0, 1).ticks(), Scale(1, 20, 0, 1).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [5.0, 10.0, 15.0, 20.0])
        """
        wide = (self.high - self.low) / max(1, most - 1)
        if not wide > 0:
            return [self.low]
        size = 10.0 ** math.floor(math.log10(wide))
        step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= wide * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [round((first + i) * step, 12) for i in range(count)]


def spanning(values: Iterable[float], start: float, end: float, margin: float = 0.0) -> Scale:
    """Return a scale for all finite values, with a margin that is a share of their range.

    >>> spanning([1.0, 3.0, float("nan")], 0, 100, margin=0.5)
    Scale(low=0.0, high=4.0, start=0, end=100)
    """
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    room = margin * (high - low)
    return Scale(low - room, high + room, start, end)


def shown(value: float) -> str:
    """Return a number as an axis, or a note beside the pointer, shows it.

    >>> shown(0.30000000000000004), shown(20.0), shown(1234567.0)
    ('0.3', '20', '1.235e+06')
    """
    return f"{value:.4g}"
