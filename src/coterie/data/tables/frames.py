"""Tables in memory: a pandas, polars or pyarrow table becomes a polars frame, whichever of these is installed.

They are known by what they can do. All newer ones hand over their columns by Arrow's C stream, which names no package.
A pandas frame that cannot, because it is old or pyarrow is absent, is read column by column.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import DataError
from coterie.terminal import line

if TYPE_CHECKING:
    import polars as pl

ACCEPTED = "give a pandas DataFrame, a polars DataFrame or a pyarrow Table"


def is_frame(source: Any) -> bool:
    """Return whether a source of rows is taken for a table in memory: whatever is not the path of a file."""
    return not isinstance(source, (str, Path))


def as_frame(table: Any) -> pl.DataFrame:
    """Return a table as a polars frame with the same columns; the index of a pandas frame is none of them.

    >>> import polars as pl
    >>> as_frame(pl.DataFrame({"age": [31, 47]})).columns
    ['age']
    >>> as_frame({"age": [31, 47]})
    Traceback (most recent call last):
    coterie.errors.DataError: a dict is no table; give a pandas DataFrame, a polars DataFrame or a pyarrow Table
    """
    import polars as pl

    if isinstance(table, pl.LazyFrame):
        table = table.collect()
    if isinstance(table, pl.DataFrame):
        return table
    try:
        return _handed_over(table)
    except ImportError:  # pandas hands over its columns by pyarrow
        return _column_by_column(table)


def _handed_over(table: Any) -> pl.DataFrame:
    """Return the columns that a table hands over by Arrow's C stream, or those of a pandas frame one by one."""
    import polars as pl
    from polars.exceptions import PolarsError

    if not hasattr(table, "__arrow_c_stream__"):
        return _column_by_column(table)
    try:
        frame = pl.DataFrame(table)
    except (PolarsError, TypeError, ValueError, NotImplementedError) as error:
        if _is_pandas(table):
            _name_bad_column(table)
        kind, why = type(table).__name__, line(str(error).partition("\n")[0], 300)
        one = "give each column a name of its own and values of one kind"
        remedy = one if hasattr(table, "columns") else ACCEPTED
        raise DataError(f"the {kind} cannot be read as a table ({why}); {remedy}") from error
    # pandas hands over an index too, as one more column, which would identify the rows.
    return frame[list(map(str, table.columns))] if _is_pandas(table) else frame


def _is_pandas(table: Any) -> bool:
    return all(hasattr(table, name) for name in ("columns", "index", "isna"))


def _column_by_column(table: Any) -> pl.DataFrame:
    if not _is_pandas(table):
        hint = "; files go through ct.load_own" if isinstance(table, (str, Path)) else ""
        raise DataError(f"a {type(table).__name__} is no table; {ACCEPTED}{hint}")
    import polars as pl

    _check_names(table)
    return pl.DataFrame([_series(str(name), table[name]) for name in table.columns])


def _check_names(table: Any) -> None:
    """Refuse a pandas frame with two columns of a name."""
    names = list(map(str, table.columns))
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"the frame has two columns named {name!r}; rename or remove one")


def _name_bad_column(table: Any) -> None:
    """Refuse the column for which a pandas frame cannot hand over its columns, if one can be named."""
    import polars as pl
    from polars.exceptions import PolarsError

    _check_names(table)
    for name in table.columns:
        series = _series(str(name), table[name])
        try:
            pl.DataFrame(table[[name]])
        except (PolarsError, TypeError, ValueError, NotImplementedError) as error:
            values = type(next((value for value in series if value is not None), None)).__name__
            what = f"column {str(name)!r} of the frame holds {values} values, neither numbers, words nor dates"
            raise DataError(f"{what}; turn them into these, or leave the column out") from error


def _series(name: str, column: Any) -> pl.Series:
    """Return a column of a pandas frame; missing values become null, or stay NaN among numbers."""
    import polars as pl

    values = column.to_numpy()
    if values.dtype.kind in "biufM":
        return pl.Series(name, values)
    missing = np.asarray(column.isna(), bool)
    present = [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)]
    kinds = sorted({_kind(value) for value in present if value is not None})
    if len(kinds) > 1:
        raise DataError(f"column {name!r} of the frame holds {' and '.join(kinds)} values; turn them into one kind")
    return pl.Series(name, present)


def _kind(value: Any) -> str:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
