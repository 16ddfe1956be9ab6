"""One order at a time: the right to give one, which a server holds while it starts and goes on with an old one."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import UsageError

LOCK = "orders.lock"
"""The file that is locked; the system frees it when the program that holds it ends, however it ends."""


@contextmanager
def ordering(home: Path) -> Iterator[None]:
    """Hold the right to give orders during the block; refuse if another program holds it."""
    home.mkdir(mode=0o700, exist_ok=True)
    with (home / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            what = "the server is starting, or another order is being given"
            raise UsageError(f"{what}; try again once the server says that it serves its sites") from None
        yield
