"""Cells: the fields of a column as numbers, as dates, as words, or as missing values.

Every column is read as text first, so that the meaning of a field never depends on the rows before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from coterie.typing import Array

if TYPE_CHECKING:
    import polars as pl

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Words, in small or capital letters, that stand for a missing value."""

COUNTS_AS_MISSING = "words such as none, NA and ? count as missing"
"""What is said where such words may have been meant as values."""

LARGEST = 1e100
"""Numbers of a larger magnitude count as infinite."""

FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1}
"""How a label that is one of several may be written, in small or capital letters, and the number that it is."""

_DATE = r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(?::(\d{2})(?:\.\d{1,9})?)?)?(?:Z|[+-]\d{2}:?\d{2})?$"
"""A date as ISO 8601 writes it, perhaps with a time of day and an offset from universal time."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")
"""With more digits it is a word: Python itself reads at most 4300."""


@dataclass(frozen=True)
class Block:
    """Some rows of a table, which is how every kind of table is read.

    ``number_of`` gives the number of a row as a user counts it: a line of a .csv file, else a row counted from 1.
    """

    frame: pl.DataFrame
    number_of: Callable[[int], int]

    def __len__(self) -> int:
        return len(self.frame)

    def cells(self, name: str) -> Cells:
        """Return the cells of a column."""
        return read_cells(self.frame[name])


@dataclass(frozen=True)
class Cells:
    """The fields of one column: ``numbers`` is NaN where there is no number, and infinite where it is too large."""

    fields: pl.Series
    numbers: Array
    missing: Array

    @property
    def words(self) -> pl.Series:
        """The fields as text without outer spaces, null where a value is missing."""
        import polars as pl

        return self.fields if self.fields.dtype == pl.String else _words(self.fields)

    @property
    def dates(self) -> Array:
        """The fields as days since the beginning of the year 2000, NaN where there is no date."""
        return read_dates(self.words)


def read_cells(fields: pl.Series) -> Cells:
    """Return the cells of a column's fields.

    >>> import polars as pl
    >>> cells = read_cells(pl.Series(["1.5", " 2 ", "NA", "red"]))
    >>> cells.numbers.tolist(), cells.missing.tolist(), cells.words.to_list()
    ([1.5, 2.0, nan, nan], [False, False, True, False], ['1.5', '2', None, 'red'])
    """
    import polars as pl

    if fields.dtype.is_numeric():
        numbers = _numbers(fields)
        return Cells(fields, numbers, np.isnan(numbers))
    if fields.dtype == pl.String:
        numbers = _numbers(fields)
        if not np.isnan(numbers).any():
            return Cells(fields, numbers, np.zeros(len(fields), bool))
    words = _words(fields)
    return Cells(words, _numbers(words), words.is_null().to_numpy())


def read_dates(words: pl.Series) -> Array:
    """Return dates, and times as they are written, as days since the beginning of 2000; NaN where there is none.

    An offset from universal time is left out: the hour of the day is the one that people saw on their clocks.

    >>> import polars as pl
    >>> read_dates(pl.Series(["2000-01-02", "2000-01-01T06:00+02:00", "2000-02-30", "today", None])).tolist()
    [1.0, 0.25, nan, nan, nan]
    """
    import polars as pl

    parts = words.str.extract_groups(_DATE).struct.unnest()
    day, minute, second = (parts.to_series(i) for i in range(3))
    if day.null_count() == len(day):
        return np.full(len(words), np.nan)
    text = day + " " + minute.fill_null("00:00") + ":" + second.fill_null("00")
    found = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    seconds = (found - datetime(2000, 1, 1)).dt.total_seconds()
    return (seconds.cast(pl.Float64) / 86400).fill_null(np.nan).to_numpy()


def _words(fields: pl.Series) -> pl.Series:
    import polars as pl

    if fields.dtype == pl.Datetime:
        fields = fields.dt.replace_time_zone(None).dt.to_string("%Y-%m-%d %H:%M:%S")
    words = fields.cast(pl.String).str.strip_chars()
    return words.set(words.str.to_lowercase().is_in(list(MISSING)), None)


def _numbers(fields: pl.Series) -> Array:
    import polars as pl

    numbers = fields.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    large = np.abs(numbers) > LARGEST
    return np.where(large, np.inf, numbers) if large.any() else numbers


def is_whole(word: str) -> bool:
    """Return whether a word is written as a whole number.

    >>> is_whole("-07"), is_whole("7.0")
    (True, False)
    """
    return _WHOLE.fullmatch(word) is not None


def canonical(word: str) -> str:
    """Return a whole number as it is usually written, and any other word unchanged.

    >>> canonical("-07"), canonical("7.0"), canonical("7.5"), canonical("seven")
    ('-7', '7', '7.5', 'seven')
    """
    if is_whole(word):
        return str(int(word))
    number = as_number(word)
    return str(int(number)) if number is not None and number.is_integer() else word


def as_number(word: str) -> float | None:
    """Return the finite number that a word spells, or None."""
    import polars as pl

    number = float(read_cells(pl.Series([word])).numbers[0])
    return number if np.isfinite(number) else None


def is_number(word: str) -> bool:
    """Return whether a word spells a finite number."""
    return is_whole(word) or as_number(word) is not None


class Vocabulary:
    """A growing list of words, numbered in the order in which they are first seen, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self.overflowed, self._numbers = limit, False, dict[str, int]()

    @property
    def words(self) -> list[str]:
        """The words so far; incomplete once it has ``overflowed``."""
        return list(self._numbers)

    def add(self, cells: Cells) -> None:
        """Add the words that are new."""
        if self.overflowed:
            return
        for word in cells.words.unique(maintain_order=True).drop_nulls().head(self.limit + 1).to_list():
            self.number(word)
        self.overflowed = len(self._numbers) > self.limit

    def number(self, word: str) -> int:
        """Return the number of a word, which is added if it is new."""
        return self._numbers.setdefault(word, len(self._numbers))

    def encode(self, cells: Cells) -> Array:
        """Add new words and return the number of each; -1 where a value is missing, or if there are too many words."""
        self.add(cells)
        if self.overflowed:
            return np.full(len(cells.numbers), -1, np.int32)
        return positions(cells.words, self.words)


def positions(words: pl.Series, known: Sequence[str], codes: Sequence[int] | None = None) -> Array:
    """Return the position of each word among the known ones, or the code given for it; -1 for any other word.

    >>> import polars as pl
    >>> positions(pl.Series(["b", None, "x"]), ["a", "b"]).tolist()
    [1, -1, -1]
    """
    import polars as pl

    if not known:
        return np.full(len(words), -1, np.int32)
    values = range(len(known)) if codes is None else codes
    found = words.replace_strict(list(known), list(values), default=-1, return_dtype=pl.Int32)
    return found.fill_null(-1).to_numpy()


def class_numbers(words: pl.Series, classes: Sequence[str]) -> Array:
    """Return the class number of each label, -1 where it is no class; whole numbers may be written in any way.

    >>> import polars as pl
    >>> class_numbers(pl.Series(["1.0", "-1", "2"]), ("-1", "1")).tolist()
    [1, 0, -1]
    """
    numbers = {name: i for i, name in enumerate(classes)}
    form = canonical if all(map(is_whole, classes)) else str
    seen = words.unique().drop_nulls().to_list()
    return positions(words, seen, [numbers.get(form(word), -1) for word in seen]).astype(np.int64)


def flag_of(word: str) -> int:
    """Return the 0 or 1 that a word stands for, -1 for any other word.

    >>> flag_of("1.0"), flag_of("False"), flag_of("2")
    (1, 0, -1)
    """
    return FLAGS.get(canonical(word).lower(), -1)


def flag_numbers(words: pl.Series) -> Array:
    """Return the 0 or 1 of each word, -1 where it is neither."""
    seen = words.unique().drop_nulls().to_list()
    return positions(words, seen, [flag_of(word) for word in seen])
