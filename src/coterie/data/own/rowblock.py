"""Some rows of a table at a time: the form in which every kind of table is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from coterie.data.own.problems import BadFile


@dataclass(frozen=True)
class Block:
    """Some rows of a table; ``row`` says how a user counts them."""

    frame: pl.DataFrame
    row: Callable[[int], int]


def check_names(file: Path | str, names: Sequence[str]) -> list[str]:
    """The names of columns without outer spaces, if every column has one of its own."""
    stripped = [name.strip() for name in names]
    for place, name in enumerate(stripped):
        if not name:
            remedy = "name it, or save without the index (pandas: index=False)"
            raise BadFile(file, None, f"column {place + 1} has no name", remedy)
        if name in stripped[:place]:
            what = f"columns {stripped.index(name) + 1} and {place + 1} are both named {name!r}"
            raise BadFile(file, None, what, "rename or remove one")
    return stripped
