"""Output on a terminal: results on standard output, the rest on standard error, foreign text made printable."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import unicodedata
from functools import cache
from typing import Any

from rich.console import Console
from rich.text import Text

LONGEST = 1_500
"""Letters of a line; of a longer one the middle is left out."""

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control, format (such as letters that turn the direction) and half letters, and line ends."""


@cache
def warn_once(text: str) -> None:
    """Log a warning, the first time it is given."""
    logging.getLogger(__name__).warning(text)


def plain(text: object) -> str:
    r"""Return a text on one line, with escapes for what a terminal would obey and what cannot be encoded.

    >>> print(plain("a\x1b[2Jb\nc\udcff"))
    a\x1b[2Jb\nc\xff
    """
    words = str(text)
    return words if words.isascii() and words.isprintable() else "".join(map(_shown, words))


def _shown(letter: str) -> str:
    if unicodedata.category(letter) not in _UNSEEN:
        return letter
    if "\udc80" <= letter <= "\udcff":  # how Python keeps a byte of a file's name that is not UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()


def line(text: object, longest: int = LONGEST) -> str:
    """Return a plain text of at most ``longest`` letters; of a longer one the middle is left out.

    >>> line("a" * 9000).count("a"), len(line("a" * 9000))
    (1495, 1500)
    """
    words = str(text)
    shown = plain(words if len(words) <= 2 * longest else words[:longest] + words[-longest:])
    if len(shown) <= longest:
        return shown
    part = (longest - 5) // 2
    return f"{shown[: longest - 5 - part]} ... {shown[-part:]}"


def cell(text: object, style: str = "", longest: int = LONGEST) -> Text:
    """Return a plain text as a cell or the title of a table, in which nothing is markup.

    >>> cell("[/x]").plain
    '[/x]'
    """
    return Text(line(text, longest), style)


def _width() -> int | None:
    """Return the width of what is printed where no terminal has one; COLUMNS may say another."""
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 120


console = Console(highlight=False, markup=False, emoji=False, width=_width())
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(text: object, style: str | None = None) -> None:
    """Print one line of results."""
    console.print(line(text), style=style, soft_wrap=True)


TOLD = "told"
"""The attribute of a log's record whose text is told by other means: the command does not print it once more."""


def tell(text: object, style: str | None = None) -> None:
    """Print one line that is no result, on standard error."""
    errors.print(line(text), style=style, soft_wrap=True)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON, without buffering, so that nothing is left to write if the reader goes."""
    print(json.dumps(value), flush=True)


def is_closed() -> bool:
    """Return whether nobody reads the standard output any more, as after ``| head``; then drop what is unwritten."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    closed = any(event & select.POLLERR for _, event in look.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed
