"""Where a user's data lie: a folder with one file per client, or one file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from coterie.data.tables.problems import BadFile, Problems
from coterie.errors import DataError

SUFFIXES = (".npz", ".csv", ".parquet")
"""The kinds of files that are read."""


def folder_files(folder: Path, problems: Problems) -> list[Path]:
    """The files of a folder, sorted by their stem, the client's name; those that cannot be taken are problems.

    Hidden files and files of other kinds are passed over. Nothing outside the folder is read.
    """
    check_name(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; name one that holds a .npz, .csv or .parquet file per client")
    try:
        found = [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != "."]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its permissions") from error
    if not found:
        raise DataError(f"{folder} holds no .npz, .csv or .parquet file; put one per client there")
    found.sort(key=lambda file: (file.stem, file.name))
    _check_one_kind(folder, found)
    return [file for file in found if _is_usable(folder, file, problems)]


def _check_one_kind(folder: Path, files: list[Path]) -> None:
    first = files[0]
    for other in files[1:]:
        if other.suffix.lower() != first.suffix.lower():
            raise DataError(f"{folder} holds {first.name} and {other.name}; keep files of one kind")
    for left, right in pairwise(files):
        if left.stem == right.stem:
            raise DataError(f"{folder} holds {left.name} and {right.name}, both of client {left.stem!r}; rename one")


def _is_usable(folder: Path, file: Path, problems: Problems) -> bool:
    try:
        if folder.resolve() not in file.resolve().parents:
            raise BadFile(file, None, f"is a link to {file.resolve()}, outside the folder", "copy the file itself")
        if not file.is_file():
            raise BadFile(file, None, "is not a file", "rename or remove it")
        check_name(file)
    except BadFile as error:
        problems.add(error.problem)
        return False
    return True


def check_name(path: Path) -> None:
    """Refuse a name that is no text: it could not be recorded."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadFile(path, None, "has a name that is not UTF-8", "rename it") from None


def content_hash(files: Iterable[Path]) -> str:
    """A hash over the names and all bytes of files: the same on every machine, another for any cell that is changed."""
    whole = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as content:
            own = hashlib.file_digest(content, hashlib.blake2b)
        whole.update(f"{file.name}\x1f{own.hexdigest()}\x1f".encode(errors="surrogateescape"))
    return whole.hexdigest()


def own_hash(path: Path) -> str | None:
    """The hash of a user's file, or of the files of a folder; None where they are gone."""
    if not path.exists():
        return None
    return content_hash(folder_files(path, Problems()) if path.is_dir() else [path])


def check_file(path: Path) -> None:
    """Refuse a path that is no file of a kind that is read."""
    check_name(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; name one file, or leave the client column out to take a client per file")
    if not path.is_file():
        raise DataError(f"there is no file {path}; name a .npz, .csv or .parquet file")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path} is of a kind that is not read; save it as .csv, .parquet or .npz")
