"""What happened in a run, in lines: clusters that form, clients that move, that are missing and come back, notes.

All of it follows from the records of the rounds, so that it is the same after a restart of whoever looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coterie.experiments.records import Record

NAMED = 3
"""The most clients that a line names."""


class Happening(NamedTuple):
    """What happened in a round, counted from 1."""

    round: int
    text: str


def happenings(records: Sequence[Record]) -> list[Happening]:
    """Return what happened, the oldest first."""
    found: list[Happening] = []
    before: Record = {}
    for record in records:
        found += [Happening(record["round"] + 1, text) for text in _of_round(record, before)]
        before = record
    return found


def _of_round(record: Record, before: Record) -> Iterator[str]:
    """Yield what a round has that the one before had not."""
    note = record.get("note")
    if note is not None and note != before.get("note"):
        yield str(note)
    now, then = (sum(size > 0 for size in each.get("clusters", ())) for each in (record, before))
    if now != then and then:
        yield f"{then} {_cluster(then)} became {now}"
    elif now != then and now > 1:
        yield f"{now} clusters"
    if record.get("moved"):
        yield f"{record['moved']} {'client' if record['moved'] == 1 else 'clients'} moved to another cluster"
    missing, gone = record.get("missing", {}), before.get("missing", {})
    by_reason: dict[str, list[str]] = {}
    for name, why in missing.items():
        if name not in gone:
            by_reason.setdefault(str(why), []).append(str(name))
    for why, names in by_reason.items():
        yield f"{listed(names)} missing: {why}"
    back = [name for name in gone if name not in missing]
    if back:
        yield f"{listed(back)} answered again"


def _cluster(count: int) -> str:
    return "cluster" if count == 1 else "clusters"


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """Return names in a line.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
