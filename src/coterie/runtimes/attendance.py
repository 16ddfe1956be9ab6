"""Clients that join or leave while training goes on, in any federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coterie.data.federated import Split
from coterie.errors import UnknownName, UsageError
from coterie.models.model import Model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array

When = str | Mapping[str, int]
"""Which clients, and in which round: ``"0.2@10"`` is a share of them, ``"anna@10"`` or ``{"anna": 10}`` a name."""


@dataclass(frozen=True)
class Attendance:
    """The round in which clients join, and the first round without those that leave, by name.

    Others are always there. Rounds count from 0, as in the records; before round 0 the clients of round 0 are there.

    >>> there = Attendance(("anna", "bert"), joins={"bert": 3}, leaves={"anna": 5})
    >>> [there.present(t).tolist() for t in (-1, 2, 3, 5)]
    [[0], [0], [0, 1], [1]]
    """

    names: tuple[str, ...]
    joins: Mapping[str, int] = field(default_factory=dict)
    leaves: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, first in self.joins.items():
            if first >= self.leaves.get(name, first + 1):
                raise UsageError(
                    f"{name} joins in round {first} and leaves in round {self.leaves[name]}; it must join before"
                )

    def present(self, number: int) -> Array:
        """Return the positions of the clients that are there in a round, ascending."""
        return np.array([i for i, name in enumerate(self.names) if self.why_not(name, number) is None], dtype=np.int64)

    def why_not(self, name: str, number: int) -> str | None:
        """Return why a client is not there in a round; None if it is."""
        if self.joins.get(name, 0) > max(number, 0):
            return f"joins in round {self.joins[name]}"
        if self.leaves.get(name, number + 1) <= number:
            return f"left in round {self.leaves[name]}"
        return None

    def changes(self) -> list[int]:
        """Return the rounds in which the clients that are there change, and round 0."""
        return sorted({0, *self.joins.values(), *self.leaves.values()})

    def check(self, rounds: int) -> None:
        """Refuse clients that join after the last round and so never take part; to leave after it is no matter."""
        for name, number in self.joins.items():
            if number >= rounds:
                last = f"the last round is {rounds - 1}, as rounds count from 0"
                raise UsageError(f"join is {name}@{number}, but {last}; name an earlier one, or raise rounds")


class Attended:
    """A federation with clients that come and go: those that are absent are missing from exchanges, with the reason."""

    def __init__(self, inner: Federation, attendance: Attendance) -> None:
        self.inner, self.attendance = inner, attendance

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all clients that are there in any round."""
        return self.inner.names

    @property
    def model(self) -> Model:
        """Return the network that the clients train."""
        return self.inner.model

    def present(self, number: int) -> Array:
        """Return the positions of the clients that are there in a round."""
        return self.attendance.present(number)

    @property
    def kept(self) -> dict[str, Array]:
        """Return what clients keep between rounds."""
        return self.inner.kept

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> Array | None:
        """Return the metrics of models on examples that belong to no client."""
        return self.inner.judge(models, split, rows, mix)

    def close(self) -> None:
        """Close the federation inside."""
        self.inner.close()

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Ask the clients that are there in the key's round."""
        reasons = [self.attendance.why_not(self.names[client], key.round) for client in clients]
        there = np.array([reason is None for reason in reasons], dtype=bool)
        replies = self.inner.ask(task, sent, rows[there], clients[there], key)
        absent = {self.names[c]: why for c, why in zip(clients, reasons, strict=True) if why is not None}
        return replace(replies, missing={**replies.missing, **absent})


def attendance(names: Sequence[str], seed: int, join: When | None, leave: When | None) -> Attendance:
    """Return who is there when; shares are drawn by name from the seed, clients that leave among those that are there.

    >>> sorted(attendance(("anna", "bert", "carl", "dora"), 1, "0.5@3", {"anna": 9}).joins.values())
    [3, 3]
    """
    joins = _rounds("join", join, names, Key(seed, 0), {})
    return Attendance(tuple(names), joins, _rounds("leave", leave, names, Key(seed, 0), joins))


def _rounds(word: str, when: When | None, names: Sequence[str], key: Key, joins: Mapping[str, int]) -> dict[str, int]:
    """Return the round of each client that is named or drawn; shares are drawn among clients that are not named."""
    by_name = when if isinstance(when, Mapping) else {}
    shares: list[tuple[float, int]] = []
    found: dict[str, int] = {}
    for who, number in [*by_name.items(), *_items(word, when if isinstance(when, str) else "")]:
        if number < 1:
            raise UsageError(f"{word} is in round {number}; it must be round 1 or later, rounds count from 0")
        if isinstance(who, float):
            shares.append((who, number))
        elif who in names:
            found[who] = number
        else:
            raise UnknownName("client", who, names)
    drawn = sorted(names, key=lambda name: key.number(name, word))
    for share, number in shares:
        count = max(1, round(share * len(names)))
        free = [name for name in drawn if name not in found and joins.get(name, 0) < number]
        if count > len(free):
            raise UsageError(f"{word} {share:g}@{number}: {count} clients, but only {len(free)} can; lower the share")
        found |= dict.fromkeys(free[:count], number)
    return found


def _items(word: str, text: str) -> list[tuple[str | float, int]]:
    """Parse a text such as ``0.2@10,anna@12``."""
    items: list[tuple[str | float, int]] = []
    for part in text.split(",") if text else ():
        who, _, number = part.strip().rpartition("@")
        if not who or not number.isdecimal():
            raise UsageError(f"{word} is {text!r}; write a share or a client and a round, such as 0.2@10 or anna@10")
        try:
            share = float(who)
        except ValueError:
            items.append((who, int(number)))
            continue
        if not 0 < share <= 1:
            raise UsageError(f"{word} is {text!r}; the share must be in (0, 1]")
        items.append((share, int(number)))
    return items
