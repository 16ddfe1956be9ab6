"""Marks of files: size, date and number of each, which tell without reading whether a folder has changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

Mark = tuple[tuple[str, int, int, int], ...]
"""Path, size, date in nanoseconds and inode of files; a file that is replaced has another inode."""

DEPTH = 4
"""Levels of folders that are looked at: a comparison has method, seed, references and a run in it."""

MOST = 20_000
"""The most files that are looked at."""


def mark_of(*paths: Path) -> Mark:
    """Return the mark of files, and of all files in folders; what is not there has none."""
    found: list[tuple[str, int, int, int]] = []
    for path, facts in _files(map(str, paths), DEPTH):
        found.append((path, facts.st_size, facts.st_mtime_ns, facts.st_ino))
        if len(found) == MOST:
            break
    return tuple(sorted(found))


def _files(paths: Iterable[str], depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files with their facts, without links to folders and hidden files, which are not finished yet."""
    for path in paths:
        try:
            if depth and os.path.isdir(path):
                with os.scandir(path) as entries:
                    inner = [each.path for each in entries if not each.name.startswith(".")]
                yield from _files((each for each in inner if not os.path.islink(each)), depth - 1)
            else:
                yield path, os.stat(path)
        except OSError:  # it was removed meanwhile
            continue
