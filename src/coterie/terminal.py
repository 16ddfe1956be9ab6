"""What a command says: results on standard output, all else on standard error; the words of others as they are."""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

from rich.console import Console

from coterie.plain import line

console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(text: object, style: str | None = None) -> None:
    """Print one line of results."""
    console.print(line(text), style=style, soft_wrap=True)


def tell(text: object, style: str | None = None) -> None:
    """Print one line that is no result."""
    errors.print(line(text), style=style, soft_wrap=True)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON, at once: nothing is left to be written when the reader has gone."""
    print(json.dumps(value), flush=True)


def is_closed() -> bool:
    """Whether nobody reads the standard output any more, as after ``| head``; what is left to be written is let go."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    closed = any(event & select.POLLERR for _, event in look.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed
