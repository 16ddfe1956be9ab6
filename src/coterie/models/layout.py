"""Which coordinates of a flat parameter vector belong to which part of a network. Numpy only: the server reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.errors import UnknownName
from coterie.typing import Array

Coordinates = slice | Array
PARTS = ("all", "head", "head_weight", "head_bias", "body", "linear", "projection", "features", "global", "cluster")
"""The names of parts of a model; the last two are those of a sum of two networks."""

MIXES = ("softmax", "logits", "majority")
"""Rules by which the outputs of an ensemble's members may be mixed."""


@dataclass(frozen=True)
class Layout:
    """Sizes and named parts of a model's two flat vectors: parameters and normalisation buffers.

    The parts are ``all``, ``head`` (last linear layer), ``head_weight`` and ``head_bias`` (each alone), ``body`` (all
    but the head), ``linear`` (every linear layer), ``projection`` (every linear layer after the convolutions; the head
    where nothing convolves) and ``features`` (all before). Buffers belong to the part that holds their module's
    parameters.
    A sum of two networks has the parts ``global`` and ``cluster`` too, and the names above are of its cluster part.
    """

    size: int
    buffer_size: int
    parts: Mapping[str, Array] = field(repr=False)
    buffer_parts: Mapping[str, Array] = field(repr=False)

    def part(self, name: str) -> Coordinates:
        """Return the parameter coordinates of a part: a slice where they are adjacent, otherwise their numbers."""
        return _sliced(self.numbers(name))

    def buffer_part(self, name: str) -> Coordinates:
        """Return the buffer coordinates of a part, as ``part`` does."""
        return _sliced(self.numbers(name, buffers=True))

    def numbers(self, name: str, *, buffers: bool = False) -> Array:
        """Return the parameter coordinates of a part, or those of its buffers, as ascending numbers."""
        parts = self.buffer_parts if buffers else self.parts
        if name not in parts:
            raise UnknownName("part of a model", name, parts)
        return parts[name]


def _sliced(numbers: Array) -> Coordinates:
    """Return a slice where possible: it copies nothing, as an index array would."""
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers):
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
