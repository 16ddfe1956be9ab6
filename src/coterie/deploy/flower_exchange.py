"""Exchanges with sites over Flower: requests out, replies and reasons in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects

from coterie.deploy.flower import RECORD, REPLY, REQUEST
from coterie.errors import FederationError
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire.envelope import Channel
from coterie.wire.remote import Heard

MOST_PARTS = 8
"""Parts that a reply may have: the message, its record, and what is in it, three in all, and a few to spare."""


PATIENCE, PAUSE = 60.0, 1.0
"""Seconds for which a call is tried again where Flower's server answers with an error, and between two tries."""

SERVER_ERRORS = 500
"""Answers from this number on are the server's fault."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Arrived(NamedTuple):
    """The number of the message that was answered, and the reply, or why it cannot be had."""

    number: str
    reply: Message | FederationError


class Post(Protocol):
    """Carries messages to nodes and replies back."""

    def nodes(self) -> dict[str, int]:
        """The numbers of the nodes that are there, by name."""

    def send(self, messages: Sequence[Message]) -> list[str | None]:
        """Send messages; the number of each, or None if it was not taken."""

    def arrived(self, numbers: Iterable[str], seconds: float) -> list[Arrived]:
        """What has come since the last call; parts of replies to these are waited for so many seconds more."""


@dataclass(frozen=True)
class GridPost:
    """The post of a run's Grid."""

    grid: Grid
    inbox: SimpleQueue[Arrived]

    def nodes(self) -> dict[str, int]:
        """The numbers of the nodes that are there, by name."""
        return {node.name: node.node_id for node in patiently(self.grid.get_nodes)}

    def send(self, messages: Sequence[Message]) -> list[str | None]:
        """Send messages; the number of each, or None if it was not taken."""
        return list(patiently(lambda: self.grid.push_messages(messages))) if messages else []

    def arrived(self, numbers: Iterable[str], seconds: float) -> list[Arrived]:
        """What has come since the last call; parts of replies to these are waited for so many seconds more."""
        wanted = PullAppMessagesRequest(message_ids=list(numbers))
        with suppress(httpx.HTTPError):  # of a server that is gone for good, whoever sends next is told
            found = patiently(lambda: self._runtime.PullMessages(wanted), seconds)
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                threading.Thread(target=self._fetch, args=(message.metadata, tree, seconds), daemon=True).start()
        return list(_drained(self.inbox))

    @property
    def _runtime(self) -> Any:
        return cast(Any, self.grid)._runtime_client

    def _fetch(self, metadata: Any, tree: Any, seconds: float) -> None:
        """Put a reply together and into the inbox; whatever is wrong with it is a reason."""
        reply: Message | FederationError
        try:
            reply = self._put_together(metadata, tree, seconds)
        except FederationError as error:
            reply = error
        except ObjectPullError:
            reply = FederationError(
                f"announced a reply and did not send all of it within {seconds:.3g} s; is it above largest_mb?"
            )
        except Exception as error:  # a reply is a stranger's bytes: none of them may end the run
            reply = FederationError(f"sent a reply that cannot be put together ({type(error).__name__})")
        self.inbox.put(Arrived(metadata.reply_to_message_id, reply))

    def _put_together(self, metadata: Any, tree: Any, seconds: float) -> Message:
        parts = [each.object_id for each in iterate_object_tree(tree)]
        if len(parts) > MOST_PARTS:
            raise FederationError(f"sent a reply of {len(parts)} parts; one of ours has 3")
        node, run = cast(Any, self.grid).node, metadata.run_id
        pull = make_pull_object_fn_protobuf(pull_object_protobuf=self._runtime.PullObject, node=node, run_id=run)
        contents = pull_objects(parts, pull_object_fn=pull, max_time=seconds)
        self._runtime.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=metadata.message_id)
        )
        return cast(Message, inflate_object_from_contents(metadata.message_id, contents))


def patiently(call: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Make a call of Flower's, again and again for some seconds if its server is busy or restarted.

    While Flower's database takes in something large it answers other calls with an error.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except httpx.HTTPError as error:
            final = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < SERVER_ERRORS
            if final or time.monotonic() > until:
                raise
            _log.warning("Flower's server cannot be asked (%s); trying again", type(error).__name__)
            time.sleep(PAUSE)


def _drained(queue: SimpleQueue[Arrived]) -> Iterable[Arrived]:
    """What is in a queue now."""
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return


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
