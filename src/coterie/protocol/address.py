"""Randomness has an address: a generator is a function of seed, round, who and what for; there is no global seed.

So results do not depend on the runtime, the order of clients, chunk sizes or who dropped out, and a resumed run
equals an unbroken one bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np


class Key(NamedTuple):
    """The part of an address that the server sets: the run's seed and the round."""

    seed: int
    round: int

    def number(self, *words: str | int) -> int:
        """A 63-bit number for this key and these words, the same on every machine.

        >>> Key(1, 0).number("client-007", "batches") == Key(1, 0).number("client-007", "batches")
        True
        >>> Key(1, 0).number("client-007", "batches") == Key(1, 1).number("client-007", "batches")
        False
        """
        text = "\x1f".join(map(str, (self.seed, self.round, *words)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def generator(self, *words: str | int) -> np.random.Generator:
        """A numpy generator for this key and these words."""
        return np.random.Generator(np.random.PCG64(self.number(*words)))
