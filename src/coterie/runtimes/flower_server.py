"""The server's end of Flower: packed requests to nodes, and what they send back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from coterie.errors import FederationError
from coterie.plain import line
from coterie.runtimes import codec
from coterie.runtimes.envelope import Channel
from coterie.runtimes.flower import RECORD, REPLY, REQUEST
from coterie.runtimes.flower_post import Post
from coterie.runtimes.remote import Heard

FIRST_WAIT, LONGEST_WAIT, GROWTH = 0.05, 1.0, 1.3
"""Seconds between two looks for replies: short at first, then longer."""

LEAST_SHARE = 0.1
"""The least part of the time that is waited for sites that have not answered again and again."""

GRACE = 10.0
"""Seconds for which Flower keeps a message longer than its reply is waited for, so that it is we who end the wait."""

EXPIRED, LOST = (3, 4), 5
"""Flower's error codes for a message that it no longer keeps, and for a node that went away with one."""

Told = Callable[[Mapping[str, str]], None]
"""Is told of every site that was asked: asked, answered, or why not."""

Timed = Callable[[Mapping[str, Any]], None]
"""Is told when an exchange is over how long it took: to send, until each answer came, and in all."""


class PostExchange:
    """Carries an exchange over Flower, in envelopes; sites are known by the names of their registered keys.

    One that let the time pass is asked again, but waited for alone only half as long each time, down to a tenth, until
    it answers: a site that hangs does not cost the whole time in every round.
    """

    def __init__(self, post: Post, channels: Sequence[Channel], timeout: float, told: Told, timed: Timed) -> None:
        self.post, self.channels, self.timeout, self.told, self.timed = post, channels, timeout, told, timed
        self.names = tuple(channel.site for channel in channels)
        self.silent: dict[int, int] = {}

    def connected(self) -> dict[str, int]:
        """The node number of every site that is there now."""
        return {name: node for name, node in self.post.nodes().items() if name in self.names}

    def __call__(self, requests: Mapping[int, bytes]) -> Heard:
        """Ask those that are there, and wait until all have answered or the time is over."""
        at, began = time.time(), time.monotonic()
        envelopes = {client: self.channels[client].request(content) for client, content in requests.items()}
        waiting, missing = self._send(envelopes)
        sent = time.monotonic() - began
        answers: dict[int, bytes] = {}
        seconds: dict[str, float] = {}
        for client, reply in self._replies(waiting):
            seconds[self.names[client]] = round(time.monotonic() - began, 3)
            try:
                answers[client] = self.channels[client].open_reply(reading(reply), envelopes[client])
                self._tell({client: told_in(answers[client])})
            except FederationError as error:
                missing[client] = str(error)
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
        numbers = self.post.send(messages)
        waiting = {number: client for number, client in zip(numbers, asked, strict=True) if number}
        missing |= dict.fromkeys(set(asked) - set(waiting.values()), "could not be sent to; is the message too large?")
        self._tell(dict.fromkeys(waiting.values(), "asked") | missing)
        return waiting, missing

    def _replies(self, waiting: dict[str, int]) -> Iterator[tuple[int, Message | FederationError]]:
        """Replies as they come, until all have or the time is over; those that came are no longer waited for."""
        began, wait = time.monotonic(), FIRST_WAIT
        while waiting and (left := began + self._patience(waiting) - time.monotonic()) > 0:
            time.sleep(min(wait, left))
            wait = min(wait * GROWTH, LONGEST_WAIT)
            for number, reply in self.post.arrived(list(waiting), left):
                if number in waiting and not expired(reply):
                    yield waiting.pop(number), reply

    def _patience(self, waiting: Mapping[str, int]) -> float:
        """How many seconds after they were asked these are waited for."""
        fewest = min((self.silent.get(client, 0) for client in waiting.values()), default=0)
        return self.timeout * max(LEAST_SHARE, 0.5**fewest)

    def _message(self, content: bytes, node: int) -> Message:
        record = RecordDict({RECORD: ConfigRecord({REQUEST: content})})
        return Message(record, dst_node_id=node, message_type="query", ttl=self.timeout + GRACE)

    def _tell(self, news: Mapping[int, str]) -> None:
        self.told({self.names[client]: what for client, what in news.items()})


def told_in(content: bytes) -> str:
    """What a packed reply amounts to: answered, or the problem that it tells."""
    try:
        problem = codec.unwrap(content).header.get("problem")
    except FederationError as error:
        return str(error)
    return "answered" if problem is None else line(problem, codec.LONGEST_PROBLEM)


def expired(reply: Message | FederationError) -> bool:
    """Whether Flower says of a message that it no longer keeps it: the same as no answer."""
    return isinstance(reply, Message) and reply.has_error() and reply.error.code in EXPIRED


def reading(reply: Message | FederationError) -> bytes:
    """Return the envelope of a reply; why there is none is an error."""
    if isinstance(reply, FederationError):
        raise reply
    if reply.has_error():
        lost = reply.error.code == LOST
        why = line(reply.error.reason or reply.error.code, codec.LONGEST_PROBLEM)
        raise FederationError("went away while it was asked" if lost else f"failed: {why}")
    try:
        content = reply.content[RECORD][REPLY]
    except KeyError:
        raise FederationError("sent a message that is none of ours") from None
    if not isinstance(content, bytes):
        raise FederationError("sent no bytes")
    return content
