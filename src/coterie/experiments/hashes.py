"""Hashes of the files of a run folder, in ``hashes.txt``: they tell a damaged folder from a sound one.

A line is a name and a hash. Files that grow have a line for every round: ``rounds.jsonl:3`` is its first three rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coterie.errors import RunFolderError
from coterie.typing import Array

HASHES = "hashes.txt"
SIZE = 16
"""Bytes of a hash."""


def read_file(path: Path) -> bytes:
    """Return the content of a file of a run folder; refuse one that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror}") from None


def damaged(path: Path, why: str) -> RunFolderError:
    """Return the error for a damaged file without which a run cannot be resumed."""
    return RunFolderError(f"{path} is damaged ({why}); put it back from a copy, or delete the folder and run again")


def hash_of(content: bytes) -> str:
    """Return the hash of the content of a file."""
    return hashlib.blake2b(content, digest_size=SIZE).hexdigest()


def as_lines(hashes: Iterable[tuple[str, str]]) -> bytes:
    """Return names and hashes as lines of ``hashes.txt``."""
    return "".join(f"{name} {value}\n" for name, value in hashes).encode()


def load_hashes(folder: Path) -> dict[str, str]:
    """Return the last hash of every name in ``hashes.txt``; nothing if there is no such file."""
    if not (folder / HASHES).exists():
        return {}
    lines = read_file(folder / HASHES).decode(errors="replace").split("\n")
    return dict(line.split(" ", 1) for line in lines if " " in line)


def check_hash(path: Path, hashes: dict[str, str]) -> None:
    """Refuse a file that does not have its recorded hash."""
    if hash_of(read_file(path)) != hashes.get(path.name):
        raise damaged(path, f"its hash is not that in {HASHES}")


class RunningHashes:
    """The hashes of the records and the labels of a run, updated round by round."""

    def __init__(self, records: str, labels: str) -> None:
        self.rounds, self.names = 0, (records, labels)
        self.hashes = hashlib.blake2b(digest_size=SIZE), hashlib.blake2b(digest_size=SIZE)

    def add(self, line: bytes, labels: Array) -> list[tuple[str, str]]:
        """Add a round, and return the names and values of both hashes after it."""
        row = np.ascontiguousarray(labels, dtype=np.int64)  # labels may have another integer type before they are saved
        self.rounds += 1
        for running, content in zip(self.hashes, (line, f"{row.shape}".encode() + row.tobytes()), strict=True):
            running.update(content)
        return [(f"{n}:{self.rounds}", each.hexdigest()) for n, each in zip(self.names, self.hashes, strict=True)]
