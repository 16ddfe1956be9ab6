"""What a text that names data means: a data set of the catalogue, or a user's own folder or file."""

from __future__ import annotations

from pathlib import Path

from coterie.data.tables.files import SUFFIXES

TABLES = (".csv", ".parquet")
"""Files that hold tables, and no arrays."""


def is_own(data: str) -> bool:
    """Return whether ``data`` means a user's folder or file; the name of a data set comes first: write ./digits."""
    from coterie.data.sources.registry import sources

    return data.partition("(")[0].strip() not in sources.entries and (
        "/" in data or "\\" in data or Path(data).suffix in SUFFIXES or Path(data).is_dir()
    )


def is_tables(data: str) -> bool:
    """Return whether ``data`` means tables of a user: a file of that kind, or a folder that holds some.

    >>> is_tables("hospitals.csv"), is_tables("hospitals.npz"), is_tables("digits")
    (True, False, False)
    """
    if not is_own(data):
        return False
    path = Path(data)
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
    except OSError:
        return False
    return any(file.suffix.lower() in TABLES and not file.name.startswith(".") for file in files)
