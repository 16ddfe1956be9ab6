"""Seeding: every random draw has an address, made of a seed and of words for its owner and its purpose.

There is no global seed and no shared generator. A draw depends on its address only, never on earlier draws. So results
do not depend on the runtime, the order of clients, chunk sizes or dropouts, and a resumed run equals an unbroken one
bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np


def number(*address: str | int) -> int:
    """Return a 63-bit number for an address, the same on every machine.

    >>> number(1, "test", "anna") == number(1, "test", "anna"), number(1, "test", "anna") == number(1, "test", "bert")
    (True, False)
    """
    text = "\x1f".join(map(str, address))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*address: str | int) -> np.random.Generator:
    """Return a numpy generator for an address.

    >>> int(generator(1, "test", "anna").integers(1000)) == int(generator(1, "test", "anna").integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(number(*address)))


class Key(NamedTuple):
    """The part of an address that the server sets in training: the run's seed and the round."""

    seed: int
    round: int

    def number(self, *words: str | int) -> int:
        """Return a 63-bit number for this key and these words.

        >>> Key(1, 0).number("client-007", "batches") == number(1, 0, "client-007", "batches")
        True
        """
        return number(*self, *words)

    def generator(self, *words: str | int) -> np.random.Generator:
        """Return a numpy generator for this key and these words."""
        return generator(*self, *words)
