"""The order in which k-medoids tries candidates: a shuffle of all points by the words of a ChaCha stream.

Any fixed shuffle would do as well. It is this one since the swaps, and so which of several local optima is found,
depend on it: results from when the package ``kmedoids`` made the swaps stay as they are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coterie.typing import Array

FEW = 11
"""Up to this number of points the shuffle is Floyd's, beyond it that of Fisher and Yates."""

DOUBLE_ROUNDS = 6
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
WORD = 2**32
ROWS = np.arange(4)[:, None]
DIAGONALS, COLUMNS = (ROWS.T + ROWS) % 4, (ROWS.T - ROWS) % 4
"""A block is a square of words: where the words are when its diagonals become columns, and when they return."""


def candidate_order(points: int, seed: int) -> Array:
    """Return the numbers below ``points`` in an order that depends on ``seed`` alone.

    >>> candidate_order(8, seed=1).tolist()
    [4, 6, 3, 5, 0, 2, 7, 1]
    """
    words = iter(_stream(_key(seed), 2 * points).tolist())  # a draw takes two at most
    return np.array(_floyd(points, words) if points <= FEW else _fisher_yates(points, words), dtype=np.int64)


def _floyd(points: int, words: Iterator[int]) -> list[int]:
    order: list[int] = []
    for last in range(points):
        drawn = _below(last + 1, words)
        if drawn in order:
            order[order.index(drawn)] = last
        order.append(drawn)
    return order


def _fisher_yates(points: int, words: Iterator[int]) -> list[int]:
    order = list(range(points))
    for place in range(points):
        drawn = place + _below(points - place, words)
        order[place], order[drawn] = order[drawn], order[place]
    return order


def _below(bound: int, words: Iterator[int]) -> int:
    """Return a number below ``bound``: a word as a fraction of it, one more word where the first is on the edge."""
    whole, fraction = divmod(next(words) * bound, WORD)
    if fraction > WORD - bound:
        whole += fraction + next(words) * bound // WORD >= WORD
    return whole


def _key(seed: int) -> Array:
    """Return the eight words that a PCG generator (O'Neill, 2014) makes of a seed."""
    words = []
    for _ in range(8):
        seed = (seed * 6364136223846793005 + 11634580027462260723) % 2**64
        word, turn = ((seed >> 18) ^ seed) >> 27 & WORD - 1, seed >> 59
        words.append((word >> turn | word << 32 - turn) & WORD - 1)
    return np.array(words, dtype=np.uint32)


def _stream(key: Array, count: int) -> Array:
    """Return the first words of ChaCha with twelve rounds (Bernstein, 2008), all blocks of sixteen at once."""
    blocks = -(-count // 16)
    start = np.zeros((4, 4, blocks), dtype=np.uint32)
    start[0], start[1:3] = CONSTANTS[:, None], key.reshape(2, 4, 1)
    start[3, 0] = np.arange(blocks)
    words = start
    for _ in range(DOUBLE_ROUNDS):
        words = _round(_round(words)[ROWS, DIAGONALS])[ROWS, COLUMNS]
    return (start + words).reshape(16, blocks).T.ravel()[:count]


def _round(words: Array) -> Array:
    """Mix the four words of every column."""
    a, b, c, d = words
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _turned(d ^ a, first)
        c = c + d
        b = _turned(b ^ c, second)
    return np.stack([a, b, c, d])


def _turned(words: Array, bits: int) -> Array:
    turned: Array = words << bits | words >> 32 - bits
    return turned
