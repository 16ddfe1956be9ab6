"""One server for a folder, and one order at a time.

The right to give an order is held by a server while it starts and goes on with an old one.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import UsageError

LOCK, SERVER_LOCK = "orders.lock", "server.lock"
"""The files that are locked; the system frees them when the program that holds them ends, however it ends."""


@contextmanager
def ordering(home: Path) -> Iterator[None]:
    """Hold the right to give orders during the block; refuse if another program holds it."""
    what = "the server is starting, or another order is being given"
    with _locked(home / LOCK, f"{what}; try again once the server says that it serves its sites"):
        yield


@contextmanager
def the_only_server(home: Path) -> Iterator[None]:
    """Hold the right to serve a folder during the block: two servers would write to the same database."""
    with _locked(home / SERVER_LOCK, f"another server runs on {home.parent}; stop it first"):
        yield


@contextmanager
def _locked(path: Path, refusal: str) -> Iterator[None]:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(refusal) from None
        yield
