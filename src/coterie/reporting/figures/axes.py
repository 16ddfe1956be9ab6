"""Axes of a drawing: round numbers for ticks, and where a number is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

LARGE = 1e5
"""Numbers from here on are shown by powers of ten."""


@dataclass(frozen=True)
class Scale:
    """Maps numbers from ``low`` to ``high`` onto places from ``start`` to ``end``; ``log``: by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a number; one that has no logarithm has none.

        >>> Scale(0, 10, 100, 200)(2.5), Scale(1, 100, 0, 200, log=True)(10), Scale(1, 100, 0, 200, log=True)(0)
        (125.0, 100.0, nan)
        """
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value) if value > 0 else math.nan
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round numbers on the scale.

        >>> Scale(0.0, 1.0, 0, 1).ticks(), Scale(1, 20, 0, 1).ticks(), Scale(0.5, 2e3, 0, 1, log=True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [5.0, 10.0, 15.0, 20.0], [1.0, 10.0, 100.0, 1000.0])
        """
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers[:: -(-len(powers) // most)]] if powers else [self.low]
        step = self._step(most)
        if step is None:
            return [self.low]
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [round((first + i) * step, 12) for i in range(count)]

    def rounded(self, most: int = 6) -> Scale:
        """Return a scale that begins and ends at a round number, so that the axis names what its ends are.

        >>> Scale(0.31, 0.97, 0, 1).rounded(), Scale(0.3, 4e3, 0, 1, log=True).rounded().high
        (Scale(low=0.2, high=1.0, start=0, end=1, log=False), 10000.0)
        """
        if self.log:
            down, up = math.floor(math.log10(self.low) + 1e-9), math.ceil(math.log10(self.high) - 1e-9)
            return replace(self, low=10.0**down, high=10.0 ** max(up, down + 1))
        step = self._step(most)
        if step is None:
            return self
        low, high = math.floor(self.low / step + 1e-9) * step, math.ceil(self.high / step - 1e-9) * step
        return replace(self, low=round(low, 12), high=round(high, 12))

    def _step(self, most: int) -> float | None:
        """Return the distance of ticks, which is 1, 2 or 5 times a power of ten; None where all numbers are one."""
        wide = (self.high - self.low) / max(1, most - 1)
        if not wide > 0:
            return None
        size = 10.0 ** math.floor(math.log10(wide))
        return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= wide * 0.999)


def spanning(values: Iterable[float], start: float, end: float, margin: float = 0.0, log: bool = False) -> Scale:
    """Return a scale for all finite values, with a margin that is a share of their range; by ``log`` for those above 0.

    >>> spanning([1.0, 3.0, float("nan")], 0, 100, margin=0.5)
    Scale(low=0.0, high=4.0, start=0, end=100, log=False)
    """
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [0.1, 1.0]
    low, high = min(known), max(known)
    if log:
        return Scale(low, high, start, end, log)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    room = margin * (high - low)
    return Scale(low - room, high + room, start, end)


def shown(value: float) -> str:
    """Return a number as an axis, or a note beside the pointer, shows it.

    >>> shown(0.30000000000000004), shown(20.0), shown(15000.0), shown(1234567.0)
    ('0.3', '20', '15,000', '1.235e+06')
    """
    return f"{value:,.0f}" if 1e4 <= abs(value) < LARGE else f"{value:,.4g}"
