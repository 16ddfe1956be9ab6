"""Some rows of a table at a time: the form in which every kind of table is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from coterie.data.tables.problems import BadFile
from coterie.limits import COLUMNS


@dataclass(frozen=True)
class Block:
    """Some rows of a table; ``row`` says how a user counts them."""

    frame: pl.DataFrame
    row: Callable[[int], int]


def check_names(file: Path | str, names: Sequence[str]) -> list[str]:
    """The names of columns without outer spaces, if every column has one of its own."""
    if len(names) > COLUMNS:
        what = f"has {len(names):,} columns; at most {COLUMNS:,} are read one by one"
        raise BadFile(file, None, what, "leave some out, or save it as .npz with arrays x and y")
    found: dict[str, int] = {}
    for place, name in enumerate((name.strip() for name in names), 1):
        if not name:
            remedy = "name it, or save without the index (pandas: index=False)"
            raise BadFile(file, None, f"column {place} has no name", remedy)
        if name in found:
            what = f"columns {found[name]} and {place} are both named {name!r}"
            raise BadFile(file, None, what, "rename or remove one")
        found[name] = place
    return list(found)
