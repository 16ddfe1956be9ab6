"""A federation of clients that are reached only through bytes: pack requests, send them, check the replies.

A late, failed, malformed or non-finite reply becomes a missing row with a reason; the round goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from coterie.data.federated import Split
from coterie.engine.metrics import reported_shape
from coterie.errors import FederationError
from coterie.models.model import Model
from coterie.protocol import message
from coterie.protocol.client_function import declared_shape
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.terminal import line
from coterie.typing import Array
from coterie.wire import codec
from coterie.wire.reply_checks import read_reply
from coterie.wire.requests import pack_task

MOST_BYTES = 1 << 30
"""The most bytes of different messages that are packed before they are sent; further messages wait."""


NOT_CONNECTED, WENT_AWAY = "not connected", "went away while it was asked"
"""The reasons for a missing reply of a client that is not there; it may come back."""


class PackedReplies(NamedTuple):
    """The packed replies of an exchange by client, and the reason for each client that sent none."""

    answers: Mapping[int, bytes]
    missing: Mapping[int, str]

    def plus(self, more: PackedReplies) -> PackedReplies:
        """Return the replies of both exchanges."""
        return PackedReplies({**self.answers, **more.answers}, {**self.missing, **more.missing})


Exchange = Callable[[Mapping[int, bytes]], PackedReplies]
"""Carries packed requests to clients, by position, and brings the packed replies back."""


class Remote:
    """A federation behind any exchange of bytes; ``sizes`` are the numbers of examples that clients report."""

    def __init__(
        self,
        names: tuple[str, ...],
        model: Model,
        exchange: Exchange,
        *,
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

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Exchange one packed message with each client; clients that work on the same rows get the same bytes."""
        row_of = dict(zip(clients.tolist(), rows, strict=True))
        heard, layout = self._exchange(task, sent, row_of, key), self.model.layout
        missing = {self.names[client]: line(why, codec.LONGEST_PROBLEM) for client, why in heard.missing.items()}
        served, classes = np.size(rows) // max(len(clients), 1), self.model.classes
        described = declared_shape(task.report.describe, self.model, len(sent.models))
        measured = reported_shape(task.report.metric, self.model.target)
        form = partial(message.form, task, sent, layout, served=served, described=described, measured=measured)
        answers: dict[int, message.Arrays] = {}
        for client, content in heard.answers.items():
            wanted = form(classes=classes, sizes=self.sizes[client])
            try:
                answers[client] = read_reply(content, wanted, task, row_of[client])
            except FederationError as error:
                missing[self.names[client]] = line(error, codec.LONGEST_PROBLEM)
        replies = message.collect(layout, form(), answers, missing)
        return replace(replies, cost=message.cost(task, sent, replies, len(clients)))

    def _exchange(self, task: Task, sent: Sent, rows: Mapping[int, Array], key: Key) -> PackedReplies:
        """Ask each client on its rows; send in several parts if different messages take more than ``MOST_BYTES``."""
        groups: dict[bytes, list[int]] = {}
        for client, row in rows.items():
            groups.setdefault(row.tobytes(), []).append(client)
        whole, requests, size = PackedReplies({}, {}), dict[int, bytes](), 0
        for clients in groups.values():
            arrays = message.down(task, sent, rows[clients[0]], self.model.layout)
            packed = pack_task(self.run, task, key, self.model, arrays)
            if requests and size + len(packed) > MOST_BYTES:
                whole, requests, size = whole.plus(self.exchange(requests)), {}, 0
            requests, size = requests | dict.fromkeys(clients, packed), size + len(packed)
        return whole.plus(self.exchange(requests))
