"""Logs that do not grow for ever: coterie's own as JSON lines, and those of other programs, cut when they are large."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from coterie.terminal import TOLD

LARGEST, KEPT = 10_000_000, 5
"""The bytes from which on a log is put aside, and how many older ones are kept, as ``NAME.1`` to ``NAME.5``."""

FACTS = "facts"
"""The attribute of a record with further entries: ``log.info("...", extra={FACTS: {...}})``."""


class JsonLines(logging.Formatter):
    """Format a record as one line of JSON: time, level, the module, the text, and the facts that it brings."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"time": when, "level": record.levelname.lower(), "from": record.name, "text": record.getMessage()}
        entry |= getattr(record, FACTS, {})
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@contextmanager
def log_to(path: Path, name: str = "coterie") -> Iterator[None]:
    """Write what a program logs to a file during the block, beside wherever else it goes.

    A new folder is its owner's alone: a site's log may quote a table, which the user of its node must not read.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
    handler.setFormatter(JsonLines())
    logger, level = logging.getLogger(name), logging.getLogger(name).level
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO) if level else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def telling(tell: Callable[[str], None], name: str, level: int = logging.INFO) -> Callable[[str], None]:
    """Return a function that tells the operator a text, and logs it in the name of a module."""

    def both(text: str) -> None:
        logging.getLogger(name).log(level, "%s", text, extra={TOLD: True})
        tell(text)

    return both


def rotate(path: Path, largest: int = LARGEST, kept: int = KEPT) -> bool:
    """Put a log aside that another program appends to, if it is large; return whether it was.

    The content is copied and the file emptied, because the program keeps the file open. A line that is written between
    the two is lost.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_size < largest:
            return False
        for number in range(kept, 1, -1):
            with suppress(FileNotFoundError):
                os.replace(_aside(path, number - 1), _aside(path, number))
        shutil.copy2(path, _aside(path, 1))
        os.truncate(path, 0)
        return True
    return False


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
