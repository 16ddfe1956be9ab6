"""Ceilings: the most that may be asked for, so that a typing error is one line and not a full machine.

They are far above what is sensible. docs/howto.md lists them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from coterie.errors import UsageError

ROUNDS = 1_000_000
CLIENTS = 1_000_000
STEPS = 1_000_000
EPOCHS = 100_000
BATCH = 1_000_000_000

PASS = 50_000_000
"""Examples that one client sees in one pass, over and over: where each minibatch lies is drawn beforehand."""

LARGEST = 1e30
"""Rates, decays, strengths and thresholds: beyond, single precision ends. Its inverse is the least temperature."""

POWER = 100
"""Of a norm: beyond, its powers are beyond all numbers."""

MEMBERS = 100
ADD_ONS = 16
NESTED = 10
LETTERS = 10_000
"""Parentheses within each other, and all letters, of a text that names an algorithm, a model, data or a partition."""

WIDTH = 10_000_000
DEPTH = 1_000
"""Of a network of the catalogue; how many numbers it has is limited by the machine's memory."""

COPIES = 6
"""Copies of a model while it is trained: template, start, the client's, gradient, momentum, mean."""

SEEDS = 10_000
CANDIDATES = 10_000
COLUMNS = 20_000
TOML = 64 << 20
"""Bytes of an experiment file."""

INFLATED = 200
SMALL = 1 << 28
"""A compressed file may announce ``SMALL`` bytes, or ``INFLATED`` times its size."""

CGROUP = Path("/sys/fs/cgroup/memory.max")


def check_most(name: str, value: float | None, most: float, remedy: str = "lower it") -> None:
    """Refuse a value above its ceiling.

    >>> check_most("steps", 10**30, 100)
    Traceback (most recent call last):
    coterie.errors.UsageError: steps is 1e+30; it must be at most 100: lower it
    """
    if value is not None and value > most:
        raise UsageError(f"{name} is {_number(value)}; it must be at most {_number(most)}: {remedy}")


def _number(value: float) -> str:
    """Return a number in readable form: all digits of a short whole number, else the first few.

    >>> _number(1_000_000), _number(10**30), _number(10**5000), _number(2.5)
    ('1,000,000', '1e+30', '1e+5000', '2.5')
    """
    if not isinstance(value, int) or value < 10**12:
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return f"1e+{math.floor(math.log10(value))}"


def memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the limit of its control group."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no control groups here, or "max"
        return whole


def check_memory(what: str, needed: int, remedy: str) -> None:
    """Refuse what needs more memory than there is, before any of it is allocated.

    >>> check_memory("the stack", 10**18, "take fewer clusters")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    coterie.errors.UsageError: the stack needs about 1,000,000,000.0 GB of memory and this machine has ...
    """
    if needed > (there := memory()):
        raise UsageError(
            f"{what} needs about {needed / 1e9:,.1f} GB of memory and this machine has {there / 1e9:,.1f}: {remedy}"
        )


def inflated(size: int, announced: int) -> str | None:
    """Return what is wrong with a file that announces far more bytes than its size, or None if nothing is.

    >>> inflated(1000, 10**6), inflated(1000, 10**12)
    (None, 'has 1000 bytes and would become 1000.0 GB, more than 200 times as much')
    """
    if announced <= max(SMALL, INFLATED * size):
        return None
    return f"has {size} bytes and would become {announced / 1e9:.1f} GB, more than {INFLATED} times as much"
