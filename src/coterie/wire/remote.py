"""Clients that are reached only through bytes: requests are packed, replies are read with suspicion.

Late, failed, malformed or non-finite replies become missing rows with a reason; a round goes on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from coterie.data.federated import Split
from coterie.errors import FederationError
from coterie.models.model import Model
from coterie.protocol import message
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.runtimes.simulator import BROKEN
from coterie.seeding import Key
from coterie.terminal import line
from coterie.typing import Array
from coterie.wire import codec
from coterie.wire.requests import pack_task

MOST_BYTES = 1 << 30
"""Different messages are packed as long as they take no more than this, and sent before others are."""


LONGEST_NAMES = 200
"""Letters that are told of the names of arrays that nobody asked for."""


class Heard(NamedTuple):
    """The packed replies of an exchange by position, and why others sent none."""

    answers: Mapping[int, bytes]
    missing: Mapping[int, str]

    def plus(self, more: Heard) -> Heard:
        """Those of two exchanges."""
        return Heard({**self.answers, **more.answers}, {**self.missing, **more.missing})


Exchange = Callable[[Mapping[int, bytes]], Heard]
"""Carries packed requests to clients, by position, and packed replies back."""


class Remote:
    """A federation behind a wall of bytes, whatever carries them; ``sizes`` are what each client told that it has."""

    def __init__(
        self,
        names: tuple[str, ...],
        model: Model,
        exchange: Exchange,
        run: str = "",
        sizes: Sequence[message.Sizes] | None = None,
    ) -> None:
        self.names, self.model, self.exchange, self.run = names, model, exchange, run
        self.sizes = sizes or [message.UNKNOWN_SIZES] * len(names)

    @property
    def kept(self) -> dict[str, Array]:
        """Return nothing: what clients keep between rounds stays with them."""
        return {}

    def present(self, number: int) -> Array:
        """Return the positions of all clients: who is not connected is a missing row."""
        return np.arange(len(self.names))

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> None:
        """Return nothing: there are no examples that belong to no client."""

    def close(self) -> None:
        """Do nothing: what carries the bytes is opened and closed by its owner."""

    def ask(self, task: Task, sent: Sent, labels: Array, clients: Array, key: Key) -> Replies:
        """One packed exchange with each client; clients that work on the same rows get the same bytes."""
        rows = dict(zip(clients.tolist(), labels, strict=True))
        heard, layout = self._exchange(task, sent, rows, key), self.model.layout
        missing = {self.names[client]: line(why, codec.LONGEST_PROBLEM) for client, why in heard.missing.items()}
        served, classes = np.size(labels) // max(len(clients), 1), self.model.classes
        answers: dict[int, message.Arrays] = {}
        for client, content in heard.answers.items():
            wanted = message.form(task, sent, layout, served=served, classes=classes, sizes=self.sizes[client])
            try:
                answers[client] = read_reply(content, wanted, task, rows[client])
            except FederationError as error:
                missing[self.names[client]] = line(error, codec.LONGEST_PROBLEM)
        replies = message.collect(layout, message.form(task, sent, layout, served=served), answers, missing)
        return replace(replies, cost=message.cost(task, sent, replies, len(clients)))

    def _exchange(self, task: Task, sent: Sent, rows: Mapping[int, Array], key: Key) -> Heard:
        """What the clients answer, each asked on its rows; part after part where different messages are large."""
        groups: dict[bytes, list[int]] = {}
        for client, row in rows.items():
            groups.setdefault(row.tobytes(), []).append(client)
        whole, requests, size = Heard({}, {}), dict[int, bytes](), 0
        for clients in groups.values():
            arrays = message.down(task, sent, rows[clients[0]], self.model.layout)
            packed = pack_task(self.run, task, key, self.model, arrays)
            if requests and size + len(packed) > MOST_BYTES:
                whole, requests, size = whole.plus(self.exchange(requests)), {}, 0
            requests, size = requests | dict.fromkeys(clients, packed), size + len(packed)
        return whole.plus(self.exchange(requests))


def read_reply(content: bytes, wanted: message.Form, task: Task, row: Array) -> message.Arrays:
    """The arrays of a reply to a task, exactly those that it asked for, each within its range; else it is an error.

    The label of a client that did not choose is the one it was asked under.
    """
    arrays = open_reply(content, sum(field.nbytes for field in wanted.values()))[0]
    if arrays.keys() != wanted.keys():
        sent = line(", ".join(arrays) or "nothing", LONGEST_NAMES)
        raise FederationError(f"sent {sent} where {', '.join(wanted)} was asked for")
    for name, field in wanted.items():
        _check(name, arrays[name], field)
    return arrays if task.choose else {**arrays, "labels": np.asarray(row)[None]}


def _check(name: str, array: Array, field: message.Field) -> None:
    """Refuse an array of another shape or type, or with a number that is out of its range."""
    if array.shape != field.shape or array.dtype.name != field.kind:
        told, asked = f"{array.shape} of {array.dtype.name}", f"{field.shape} of {field.kind}"
        raise FederationError(f"sent {name} of shape {told} where {asked} was asked for")
    outside = field.outside(array)
    if outside.any():
        place = np.unravel_index(int(outside.argmax()), array.shape)
        low, high = (np.broadcast_to(limit, array.shape)[place] for limit in (field.low, field.high))
        range_told = f"it must be {low:.12g}" if low == high else f"it must be {low:.12g} to {high:.12g}"
        raise FederationError(BROKEN if name in message.FIELDS else f"sent {array[place]} in {name}; {range_told}")


def open_reply(content: bytes, nbytes: int = 0) -> tuple[message.Arrays, dict[str, Any]]:
    """The arrays and the header of a reply; a problem that the client tells is an error.

    One with more than so many bytes of arrays, and a header, is not even read.
    """
    if len(content) > nbytes + codec.LARGEST_HEADER:
        most = f"at most {nbytes + codec.LARGEST_HEADER} can be an answer"
        raise FederationError(f"sent {len(content)} bytes; {most}")
    arrays, header = codec.decode(content)
    if header.get("problem") is not None:
        raise FederationError(line(header["problem"], codec.LONGEST_PROBLEM))
    return arrays, header
