"""What tells a run folder that is as it was written from a damaged one: a hash of every file, in ``hashes.txt``.

A line is a name and a hash. Of files that grow there is one after every round: ``rounds.jsonl:3`` is the first three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coterie.errors import RunFolderError
from coterie.typing import Array

HASHES = "hashes.txt"


def read_file(path: Path) -> bytes:
    """The content of a file of a run folder; one that cannot be read is an error."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror}") from None


def damaged(path: Path, why: str) -> RunFolderError:
    """The error for a file of a run folder without which nothing can be gone on with."""
    return RunFolderError(f"{path} is damaged ({why}); put it back from a copy, or delete the folder and run again")


def hash_of(content: bytes) -> str:
    """The hash of a file's content."""
    return _new(content).hexdigest()


def _new(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def as_lines(hashes: Iterable[tuple[str, str]]) -> bytes:
    """Names and hashes as lines of ``hashes.txt``."""
    return "".join(f"{name} {value}\n" for name, value in hashes).encode()


def load_hashes(folder: Path) -> dict[str, str]:
    """The hash of every name; of a name that is there twice the later one. Nothing where there is no such file."""
    if not (folder / HASHES).exists():
        return {}
    lines = read_file(folder / HASHES).decode(errors="replace").split("\n")
    return dict(line.split(" ", 1) for line in lines if " " in line)


def check_hash(path: Path, known: dict[str, str]) -> None:
    """Refuse a file that is not what it was when its hash was taken."""
    if hash_of(read_file(path)) != known.get(path.name):
        raise damaged(path, f"its hash is not that in {HASHES}")


class Growing:
    """The hashes of the records and of the labels of a run, after any number of rounds."""

    def __init__(self, records: str, labels: str) -> None:
        self.rounds, self.names, self.hashes = 0, (records, labels), (_new(), _new())

    def add(self, line: bytes, labels: Array) -> list[tuple[str, str]]:
        """The two hashes after one more round, by name."""
        row = np.ascontiguousarray(labels, dtype=np.int64)  # an algorithm's own type of labels may change on the way
        self.rounds += 1
        for running, content in zip(self.hashes, (line, f"{row.shape}".encode() + row.tobytes()), strict=True):
            running.update(content)
        return [(f"{n}:{self.rounds}", each.hexdigest()) for n, each in zip(self.names, self.hashes, strict=True)]
