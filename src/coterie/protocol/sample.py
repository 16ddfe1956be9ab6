"""Parts of a client's data that grow, and how wrong a mean over what was seen so far may be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import require as _require
from coterie.models.layout import Array


@dataclass(frozen=True)
class Sample:
    """The examples number ``begin`` to ``end`` of a client's train data, in an order drawn at its address.

    >>> Sample(0, 16).following, Sample(16, 32).following
    (Sample(begin=16, end=32), Sample(begin=32, end=64))
    """

    begin: int
    end: int

    def __post_init__(self) -> None:
        _require(0 <= self.begin < self.end, "a sample", f"{self.begin} to {self.end}", "a range from at least 0")

    @property
    def following(self) -> Sample:
        """The next part, after which twice as many examples have been seen."""
        return Sample(self.end, 2 * self.end)

    def count(self, sizes: Array) -> Array:
        """How many examples it has at clients with so many.

        >>> Sample(16, 32).count(np.array([10, 20, 99])).tolist()
        [0, 4, 16]
        """
        number: Array = np.minimum(sizes, self.end) - np.minimum(sizes, self.begin)
        return number


def standard_error(variance: Array, seen: Array, sizes: Array) -> Array:
    """Of a mean over ``seen`` of ``sizes`` examples, drawn without replacement: nothing is uncertain once all are seen.

    ``variance`` is the mean squared deviation among those seen.

    >>> standard_error(np.array([4.0, 4.0]), np.array([5, 10]), np.array([10, 10])).round(4).tolist()
    [0.7071, 0.0]
    """
    error: Array = np.sqrt(np.maximum(variance, 0) * (1 - seen / sizes) / np.maximum(seen - 1, 1))
    return error
