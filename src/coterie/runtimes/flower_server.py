"""The server's end of Flower: packed requests to nodes over a Grid, and what they send back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coterie.errors import FederationError
from coterie.plain import line
from coterie.runtimes import codec
from coterie.runtimes.flower import RECORD, REPLY, REQUEST
from coterie.runtimes.remote import Heard

FIRST_WAIT, LONGEST_WAIT, GROWTH = 0.05, 1.0, 1.3
"""Seconds between two looks for replies: short at first, then longer."""

LEAST_SHARE = 0.1
"""The least part of the time that is waited for sites that have not answered again and again."""

LOST = 5
"""Flower's error code for a node that went away with a message."""

Told = Callable[[Mapping[str, str]], None]
"""Is told of every site that was asked: asked, answered, or why not."""

Timed = Callable[[Mapping[str, Any]], None]
"""Is told when an exchange is over how long it took: to send, until each answer came, and in all."""


class GridExchange:
    """Carries an exchange over Flower; sites are known by the names under which their keys were registered.

    One that let the time pass is asked again, but waited for alone only half as long each time, down to a tenth, until
    it answers: a site that hangs does not cost the whole time in every round.
    """

    def __init__(self, grid: Grid, names: tuple[str, ...], timeout: float, told: Told, timed: Timed) -> None:
        self.grid, self.names, self.timeout, self.told, self.timed = grid, names, timeout, told, timed
        self.silent: dict[int, int] = {}

    def connected(self) -> dict[str, int]:
        """The node number of every site that is there now."""
        return {node.name: node.node_id for node in self.grid.get_nodes() if node.name in self.names}

    def __call__(self, requests: Mapping[int, bytes]) -> Heard:
        """Ask those that are there, and wait until all have answered or the time is over."""
        at, began = time.time(), time.monotonic()
        waiting, missing = self._send(requests)
        sent = time.monotonic() - began
        answers: dict[int, bytes] = {}
        seconds: dict[str, float] = {}
        for client, content in self._replies(waiting):
            seconds[self.names[client]] = round(time.monotonic() - began, 3)
            if isinstance(content, bytes):
                answers[client] = content
            else:
                missing[client] = content
            self._tell({client: missing[client] if client in missing else told_in(content)})
        missing |= dict.fromkeys(waiting.values(), f"no answer within {self._patience(waiting):g} s")
        silent = {client: self.silent.get(client, 0) + 1 for client in waiting.values()}
        self.silent = {client: times for client, times in self.silent.items() if client not in answers} | silent
        self._tell(missing)
        total, received = time.monotonic() - began, sum(map(len, answers.values()))
        times = {"at": round(at, 3), "sent": round(sent, 3), "answered": seconds, "total": round(total, 3)}
        self.timed({**times, "bytes_down": sum(map(len, requests.values())), "bytes_up": received})
        return Heard(answers, missing)

    def _send(self, requests: Mapping[int, bytes]) -> tuple[dict[str, int], dict[int, str]]:
        """Hand the requests to Flower: whose reply is awaited, by message, and who could not be asked."""
        there = self.connected()
        missing = {client: "not connected" for client in requests if self.names[client] not in there}
        asked = [client for client in requests if client not in missing]
        messages = [self._message(requests[client], there[self.names[client]]) for client in asked]
        pushed = list(self.grid.push_messages(messages)) if messages else []
        waiting = {number: client for number, client in zip(pushed, asked, strict=True) if number}
        missing |= dict.fromkeys(set(asked) - set(waiting.values()), "could not be sent to; is the message too large?")
        self._tell(dict.fromkeys(waiting.values(), "asked") | missing)
        return waiting, missing

    def _replies(self, waiting: dict[str, int]) -> Iterator[tuple[int, bytes | str]]:
        """Replies as they come, until all have or the time is over; those that came are no longer waited for."""
        began, wait = time.monotonic(), FIRST_WAIT
        while waiting and time.monotonic() < began + self._patience(waiting):
            time.sleep(wait)
            wait = min(wait * GROWTH, LONGEST_WAIT)
            for reply in self.grid.pull_messages(list(waiting)):
                yield waiting.pop(reply.metadata.reply_to_message_id), reading(reply)

    def _patience(self, waiting: Mapping[str, int]) -> float:
        """How many seconds after they were asked these are waited for."""
        fewest = min((self.silent.get(client, 0) for client in waiting.values()), default=0)
        return self.timeout * max(LEAST_SHARE, 0.5**fewest)

    def _message(self, content: bytes, node: int) -> Message:
        record = RecordDict({RECORD: ConfigRecord({REQUEST: content})})
        return Message(record, dst_node_id=node, message_type="query", ttl=self.timeout)

    def _tell(self, news: Mapping[int, str]) -> None:
        self.told({self.names[client]: what for client, what in news.items()})


def told_in(content: bytes | str) -> str:
    """What a packed reply amounts to: answered, or the problem that it tells."""
    try:
        problem = codec.unwrap(content).header.get("problem") if isinstance(content, bytes) else content
    except FederationError as error:
        return str(error)
    return "answered" if problem is None else line(problem, codec.LONGEST_PROBLEM)


def reading(reply: Message) -> bytes | str:
    """The packed bytes of a reply, or why there are none."""
    if reply.has_error():
        lost = reply.error.code == LOST
        why = line(reply.error.reason or reply.error.code, codec.LONGEST_PROBLEM)
        return "went away while it was asked" if lost else f"failed: {why}"
    try:
        content = reply.content[RECORD][REPLY]
    except KeyError:
        return "sent a message that is none of ours"
    return content if isinstance(content, bytes) else "sent no bytes"
