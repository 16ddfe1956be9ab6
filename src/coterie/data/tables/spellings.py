"""Spellings: numbers and dates that are written as people write them and are read as words, and how to write them.

Nothing is converted: 1,234 is one number in Zurich and another in London. So columns are named with the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.data.tables.cells import read_dates

MOST_WORDS = 0.9
"""A column with at least this share of such words is taken to hold them."""

_GROUPED = r"\d{1,3}(?:['\u2019,\s]\d{3})+"
_NUMBER = rf"(?:\d+(?:[.,]\d+)?|{_GROUPED}(?:[.,]\d+)?|\d{{1,3}}(?:\.\d{{3}})+,\d+)"
_UNIT = r"(?:[€$£¥%‰°]|(?:CHF|EUR|USD|GBP|JPY|Fr\.?|kg|g|mg|km|cm|mm|m|h|min|°C)(?![a-z]))"
_PLAIN = re.compile(r"[+-]?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Spelling:
    """A way to write: what it is, the words that are written so, and how they should be."""

    what: str
    pattern: re.Pattern[str]
    remedy: str


@dataclass(frozen=True)
class Spelt:
    """A way in which words are written, with one of them.

    >>> print(Spelt(SPELLINGS[0], "31.12.2021"))
    looks like dates ('31.12.2021')
    """

    spelling: Spelling
    example: str

    def __str__(self) -> str:
        return f"looks like {self.spelling.what} ({self.example!r})"

    @property
    def remedy(self) -> str:
        """How such words are to be written."""
        return self.spelling.remedy


DATES = Spelling(
    "dates",
    re.compile(
        r"(?:(?:[0-2]?\d|3[01])[./-](?:[0-2]?\d|3[01])[./-](?:19|20)\d\d|(?:19|20)\d\d[./](?:[0-2]?\d|3[01])"
        r"[./](?:[0-2]?\d|3[01])|[0-3]\d[./][0-3]\d[./]\d\d)(?:[T ]\d{1,2}:\d\d(?::\d\d)?)?"
    ),
    "write 2021-12-31",
)

LABEL_DATES = replace(DATES, remedy="save what is to be predicted, such as the days from another date, or the year")
"""A label that is a date, however it is written, is neither a number nor a class."""

SPELLINGS = (
    DATES,
    Spelling(
        "numbers with marks between the thousands",
        re.compile(rf"[+-]?(?:{_GROUPED}(?:\.\d+)?|\d{{1,3}}(?:\.\d{{3}}){{2,}})"),
        "write 1234.56",
    ),
    Spelling(
        "numbers with a decimal comma",
        re.compile(r"[+-]?(?:\d+|\d{1,3}(?:['\u2019.\s]\d{3})+),\d+"),
        "write 1234.56",
    ),
    Spelling(
        "numbers with a unit",
        re.compile(rf"{_UNIT}\s*[+-]?{_NUMBER}|[+-]?{_NUMBER}\s*{_UNIT}"),
        "write the numbers alone, such as 1234.56",
    ),
)
"""The ways that are known, the first that fits first."""


def spelt(words: Collection[str]) -> Spelt | None:
    """Return the way in which nearly all of these words are written, perhaps beside plain numbers; None if in no other.

    >>> print(spelt(["1234,56", "7", "20,5"]))
    looks like numbers with a decimal comma ('1234,56')
    >>> spelt(["1'234.50", "12'000"]).spelling.what, spelt(["12%", "7.5 %"]).spelling.what
    ('numbers with marks between the thousands', 'numbers with a unit')
    >>> spelt(["red", "3,5"]) is None, spelt(["3", "7"]) is None, spelt(["A12", "B7"]) is None
    (True, True, True)
    """
    others = sorted(word for word in words if not _PLAIN.fullmatch(word))
    for spelling in SPELLINGS:
        found = [word for word in others if spelling.pattern.fullmatch(word)]
        if found and len(found) >= MOST_WORDS * len(others):
            return Spelt(spelling, found[0])
    return None


def spelt_label(words: Sequence[str]) -> Spelt | None:
    """Return the way in which labels are written, as ``spelt`` does, and dates also where they are written as needed.

    >>> print(spelt_label(["2021-12-31", "2022-01-01 12:00"]))
    looks like dates ('2021-12-31')
    """
    import polars as pl

    way = spelt(words)
    if way is not None and way.spelling is DATES:
        return replace(way, spelling=LABEL_DATES)
    are_dates = ~np.isnan(read_dates(pl.Series(words, dtype=pl.String)))
    if len(words) and are_dates.mean() >= MOST_WORDS:
        return Spelt(LABEL_DATES, words[int(are_dates.argmax())])
    return way
