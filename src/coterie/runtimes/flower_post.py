"""Messages to nodes and their replies, over Flower's Grid; one bad reply keeps no other waiting.

Flower's own ``Grid.pull_messages`` fetches all replies in one call: a reply whose parts are announced and never sent
blocks it for two hours, and one that cannot be put together ends the run. So the parts of each reply are fetched here
in a thread of their own, by the calls of Flower 1.41's Runtime API that ``HttpGrid`` itself makes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects

from coterie.errors import FederationError

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
