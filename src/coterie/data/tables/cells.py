"""Cells: what the fields of a column say, as numbers, as words, or that nothing is there.

Every column is read as text first, so that what a field means never depends on which rows come before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from coterie.typing import Array

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Words, in small or capital letters, that stand for a value that is not there."""

LARGEST = 1e100
"""A number larger than this, either way, counts as infinite."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")
"""More digits than that are a word: Python itself reads 4300 at most."""


@dataclass(frozen=True)
class Cells:
    """The fields of one column: ``numbers`` has NaN where there is none, and infinity where it is too large."""

    fields: pl.Series
    numbers: Array
    missing: Array

    @property
    def words(self) -> pl.Series:
        """The fields as text without outer spaces, null where a value is missing."""
        return self.fields if self.fields.dtype == pl.String else _words(self.fields)


def read_cells(fields: pl.Series) -> Cells:
    """What the fields of a column say.

    >>> cells = read_cells(pl.Series(["1.5", " 2 ", "NA", "red"]))
    >>> cells.numbers.tolist(), cells.missing.tolist(), cells.words.to_list()
    ([1.5, 2.0, nan, nan], [False, False, True, False], ['1.5', '2', None, 'red'])
    """
    if fields.dtype.is_numeric():
        numbers = _numbers(fields)
        return Cells(fields, numbers, np.isnan(numbers))
    if fields.dtype == pl.String:
        numbers = _numbers(fields)
        if not np.isnan(numbers).any():
            return Cells(fields, numbers, np.zeros(len(fields), bool))
    words = _words(fields)
    return Cells(words, _numbers(words), words.is_null().to_numpy())


def _words(fields: pl.Series) -> pl.Series:
    words = fields.cast(pl.String).str.strip_chars()
    return words.set(words.str.to_lowercase().is_in(list(MISSING)), None)


def _numbers(fields: pl.Series) -> Array:
    numbers = fields.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    large = np.abs(numbers) > LARGEST
    return np.where(large, np.inf, numbers) if large.any() else numbers


def is_whole(word: str) -> bool:
    """Whether a word is written as a whole number.

    >>> is_whole("-07"), is_whole("7.0")
    (True, False)
    """
    return _WHOLE.fullmatch(word) is not None


def canonical(word: str) -> str:
    """A whole number as it is usually written; any other word as it is.

    >>> canonical("-07"), canonical("7.0"), canonical("7.5"), canonical("seven")
    ('-7', '7', '7.5', 'seven')
    """
    if is_whole(word):
        return str(int(word))
    number = as_number(word)
    return str(int(number)) if number is not None and number.is_integer() else word


def as_number(word: str) -> float | None:
    """The finite number that a word spells, if it does."""
    number = float(read_cells(pl.Series([word])).numbers[0])
    return number if np.isfinite(number) else None


class Codes:
    """A growing dictionary: words become numbers, in the order in which they are first seen, up to a limit."""

    def __init__(self, most: int) -> None:
        self.most, self.many, self._codes = most, False, dict[str, int]()

    @property
    def words(self) -> list[str]:
        """The words so far; no longer all of them once there are too ``many``."""
        return list(self._codes)

    def note(self, cells: Cells) -> None:
        """Enter the words that are new."""
        if self.many:
            return
        for word in cells.words.unique(maintain_order=True).drop_nulls().head(self.most + 1).to_list():
            self.code(word)
        self.many = len(self._codes) > self.most

    def code(self, word: str) -> int:
        """The number of one word."""
        return self._codes.setdefault(word, len(self._codes))

    def encode(self, cells: Cells) -> Array:
        """The number of each word, new ones included; -1 where a word is missing, or there are too many."""
        self.note(cells)
        return np.full(len(cells.numbers), -1, np.int32) if self.many else codes_of(cells.words, self.words)


def codes_of(words: pl.Series, known: Sequence[str], codes: Sequence[int] | None = None) -> Array:
    """The place of each word among the known ones, or its code where they have codes; -1 for any other.

    >>> codes_of(pl.Series(["b", None, "x"]), ["a", "b"]).tolist()
    [1, -1, -1]
    """
    if not known:
        return np.full(len(words), -1, np.int32)
    places = range(len(known)) if codes is None else codes
    found = words.replace_strict(list(known), list(places), default=-1, return_dtype=pl.Int32)
    return found.fill_null(-1).to_numpy()


def class_numbers(words: pl.Series, classes: Sequence[str]) -> Array:
    """The number of each label's class, -1 where it is none; whole numbers may be written in any way.

    >>> class_numbers(pl.Series(["1.0", "-1", "2"]), ("-1", "1")).tolist()
    [1, 0, -1]
    """
    places = {name: i for i, name in enumerate(classes)}
    form = canonical if all(map(is_whole, classes)) else str
    seen = words.unique().drop_nulls().to_list()
    return codes_of(words, seen, [places.get(form(word), -1) for word in seen]).astype(np.int64)
