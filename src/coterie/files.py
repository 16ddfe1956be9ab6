"""Files: written all or nothing, in the background if the caller has other work, and TOML read with a size limit."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from coterie.limits import TOML


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; any fault of its content is a ``ValueError`` of one line."""
    with path.open("rb") as file:
        content = file.read(TOML + 1)
    if len(content) > TOML:
        raise ValueError(f"it has more than {TOML >> 20} MB")
    return parse_toml(content)


def parse_toml(content: bytes) -> dict[str, Any]:
    """Read the content of a TOML file; see ``read_toml``."""
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write all of the content or none of it: to a temporary file in the same folder, fsync, rename.

    ``content`` are the bytes, or a function that writes them to an open file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def last_lines(path: Path, most: int) -> list[bytes]:
    """Return the lines that are whole in the last ``most`` bytes of a file; none if it is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            content = file.read(most)
    except OSError:
        return []
    lines = content.split(b"\n")[:-1]  # after the last line end there is nothing, or a line that is being written
    return lines if size <= most else lines[1:]


class Background:
    """Does one piece of work at a time while the caller does its own; what fails is raised when it is waited for.

    Work is queued for a single thread, so that Ctrl-C at any moment leaves it done or not begun, and in order.
    """

    def __init__(self) -> None:
        self._queue = ThreadPoolExecutor(1, "coterie-background")
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], object]) -> None:
        """Wait for the work before this, and begin; a program does not end before the work does."""
        self.wait()
        self._queue.submit(self._do, work)

    def wait(self) -> None:
        """Return when nothing is left to do; raise what went wrong."""
        self._queue.submit(lambda: None).result()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
