"""The server's end of Flower: the app that Flower starts for a run, and the exchange of messages with the sites.

Flower imports ``app`` from here by name (``deploy.flower`` ships that name). ``FlowerExchange`` seals requests, sends
them, and opens the replies; a reply that is late, lost or not signed for its request becomes a reason.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import httpx
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects

from coterie.deploy.certificates import server_channels
from coterie.deploy.drift import look_for_drift
from coterie.deploy.flower import ORDER, RECORD, REPLY, REQUEST, shorten_retries
from coterie.deploy.logs import FACTS, log_to
from coterie.deploy.order import DRIFT, Order
from coterie.deploy.processes import end_with_parent
from coterie.deploy.server_run import JOBS
from coterie.deploy.status import EXCHANGES, StatusBoard
from coterie.errors import FederationError
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire.envelope import HEAD, Channel
from coterie.wire.remote import NOT_CONNECTED, WENT_AWAY, PackedReplies

MOST_PARTS = 8
"""The most parts of a reply; an honest one has three: the message, its record, and the content of the record."""

MOST_SEALED_BYTES = 1 << 28
"""The most bytes of requests that are sealed before they are sent, so that memory does not grow with the sites."""

RETRY_SECONDS, PAUSE = 60.0, 1.0
"""Seconds for which a call is retried when Flower's server answers with an error, and seconds between two tries."""

SERVER_ERRORS = 500
"""The first HTTP status of a fault of the server."""

FIRST_WAIT, LONGEST_WAIT, GROWTH = 0.05, 1.0, 1.3
"""Seconds between two checks for replies: the first, the longest, and the factor between two."""

LEAST_SHARE = 0.1
"""The least share of the timeout for sites that repeatedly did not answer."""

GRACE = 10.0
"""Seconds for which Flower keeps a message beyond the timeout, so that the timeout ends the wait and not Flower."""

EXPIRED, LOST = (3, 4), 5
"""Flower's error codes for a message that it no longer keeps, and for a node that disconnected with a message."""

T = TypeVar("T")
ReportSites = Callable[[Mapping[str, str]], None]
"""Receives the news of each site: asked, answered, or the reason for no answer."""

ReportTimes = Callable[[Mapping[str, Any]], None]
"""Receives the times of an exchange: to send, until each answer, and in all."""

_log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the order that the run's configuration names.

    Flower would leave this process running when its SuperLink is killed, and a second one, started to resume the run,
    would write to the same folder. So this process ends with its parent.
    """
    end_with_parent(signal.SIGKILL)
    shorten_retries()
    path = Path(str(context.run_config[ORDER]))
    order = Order.load(path)
    board = StatusBoard(Path(order.board), order.run, order.out, order.sites)
    channels = server_channels(path.parent, order.sites)
    record = partial(append_json, Path(order.out) / EXCHANGES)
    transport = GridTransport(grid, SimpleQueue())
    exchange = FlowerExchange(transport, channels, order.timeout, on_sites=board.sites, on_times=record)
    with log_to(path.parent / "logs" / "run.jsonl"):
        _log.info("the run begins", extra={FACTS: {"run": order.run, "job": order.job, "resume": order.resume}})
        {**JOBS, DRIFT: look_for_drift}[order.job](order, exchange, board)


def append_json(path: Path, values: Mapping[str, Any]) -> None:
    """Append one line of JSON to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


class Arrival(NamedTuple):
    """The number of the message that was answered, and the reply or the reason why it cannot be fetched."""

    number: str
    reply: Message | FederationError


class Transport(Protocol):
    """Carries messages to nodes and replies back."""

    def nodes(self) -> dict[str, int]:
        """Return the number of each connected node, by name."""

    def send(self, messages: Sequence[Message]) -> list[str | None]:
        """Send messages; return the number of each, or None if it was not accepted."""

    def arrived(self, numbers: Iterable[str], seconds: float) -> list[Arrival]:
        """Return the arrivals since the last call; wait ``seconds`` more for the parts of announced replies."""


@dataclass(frozen=True)
class GridTransport:
    """The transport of a run's Grid."""

    grid: Grid
    inbox: SimpleQueue[Arrival]

    def nodes(self) -> dict[str, int]:
        """Return the number of each connected node, by name."""
        return {node.name: node.node_id for node in retry(self.grid.get_nodes)}

    def send(self, messages: Sequence[Message]) -> list[str | None]:
        """Send messages; return the number of each, or None if it was not accepted."""
        return list(retry(lambda: self.grid.push_messages(messages))) if messages else []

    def arrived(self, numbers: Iterable[str], seconds: float) -> list[Arrival]:
        """Return the arrivals since the last call; wait ``seconds`` more for the parts of announced replies."""
        wanted = PullAppMessagesRequest(message_ids=list(numbers))
        with suppress(httpx.HTTPError):  # if the server is gone for good, the next call of send raises the error
            found = retry(lambda: self._runtime.PullMessages(wanted), seconds)
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                threading.Thread(target=self._fetch, args=(message.metadata, tree, seconds), daemon=True).start()
        return list(_drain(self.inbox))

    @property
    def _runtime(self) -> Any:
        return cast(Any, self.grid)._runtime_client

    def _fetch(self, metadata: Any, tree: Any, seconds: float) -> None:
        """Fetch a reply and put it, or the reason why it cannot be fetched, into the inbox."""
        reply: Message | FederationError
        try:
            reply = self._assemble(metadata, tree, seconds)
        except FederationError as error:
            reply = error
        except ObjectPullError:
            reply = FederationError(
                f"announced a reply and did not send all of it within {seconds:.3g} s; is it above largest_mb?"
            )
        except Exception as error:  # the reply is not trusted: none may end the run
            reply = FederationError(f"sent a reply that cannot be put together ({type(error).__name__})")
        self.inbox.put(Arrival(metadata.reply_to_message_id, reply))

    def _assemble(self, metadata: Any, tree: Any, seconds: float) -> Message:
        """Fetch the parts of a reply and put them together."""
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


def retry(call: Callable[[], T], seconds: float = RETRY_SECONDS) -> T:
    """Make a call to Flower's server, and retry it for some seconds if the server is busy or restarted.

    While Flower's database stores something large, the server answers other calls with an error.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except httpx.HTTPError as error:
            final = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < SERVER_ERRORS
            if final or time.monotonic() > until:
                raise
            _log.warning("Flower's server does not answer (%s); trying again", type(error).__name__)
            time.sleep(PAUSE)


def _drain(queue: SimpleQueue[Arrival]) -> Iterable[Arrival]:
    """Yield everything that is in a queue now."""
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return


class FlowerExchange:
    """An exchange over Flower, in envelopes; a site is known by the name of its registered key.

    A site that did not answer in time is asked again, but the wait for it alone is halved each time, down to a tenth,
    until it answers: a site that hangs does not cost the whole timeout in every round.
    """

    def __init__(
        self,
        transport: Transport,
        channels: Sequence[Channel],
        timeout: float,
        *,
        on_sites: ReportSites,
        on_times: ReportTimes,
    ) -> None:
        self.transport, self.channels, self.timeout = transport, channels, timeout
        self.on_sites, self.on_times = on_sites, on_times
        self.names = tuple(channel.site for channel in channels)
        self.silent: dict[int, int] = {}

    def connected(self) -> dict[str, int]:
        """Return the node number of each site that is connected now."""
        return {name: node for name, node in self.transport.nodes().items() if name in self.names}

    def __call__(self, requests: Mapping[int, bytes]) -> PackedReplies:
        """Ask the connected sites, and wait until all have answered or the time is over."""
        at, began = time.time(), time.monotonic()
        waiting, heads, missing = self._send(requests)
        sent = time.monotonic() - began
        answers: dict[int, bytes] = {}
        seconds: dict[str, float] = {}
        for client, reply in self._replies(waiting):
            seconds[self.names[client]] = round(time.monotonic() - began, 3)
            try:
                answers[client] = self.channels[client].open_reply(envelope_of(reply), heads[client])
                self._report({client: reply_status(answers[client])})
            except FederationError as error:
                missing[client] = str(error)
        missing |= dict.fromkeys(waiting.values(), f"no answer within {self._patience(waiting):g} s")
        silent = {client: self.silent.get(client, 0) + 1 for client in waiting.values()}
        self.silent = {client: times for client, times in self.silent.items() if client not in answers} | silent
        self._report(missing)
        total, received = time.monotonic() - began, sum(map(len, answers.values()))
        times = {"at": round(at, 3), "sent": round(sent, 3), "answered": seconds, "total": round(total, 3)}
        self.on_times({**times, "bytes_down": sum(map(len, requests.values())), "bytes_up": received})
        return PackedReplies(answers, missing)

    def _send(self, requests: Mapping[int, bytes]) -> tuple[dict[str, int], dict[int, bytes], dict[int, str]]:
        """Seal the requests and give them to Flower, in parts, so that not all envelopes are in memory at once.

        Return the awaited sites by message, the head of each envelope, and the reason for each site not asked.
        """
        connected = self.connected()
        waiting, heads = dict[str, int](), dict[int, bytes]()
        missing = {client: NOT_CONNECTED for client in requests if self.names[client] not in connected}
        asked = {client: content for client, content in requests.items() if client not in missing}
        for part in _parts(asked):
            numbers, sealed = self._send_part(part, connected)
            waiting |= {number: client for number, client in zip(numbers, part, strict=True) if number}
            heads |= sealed
        missing |= dict.fromkeys(set(asked) - set(waiting.values()), "could not be sent to; is the message too large?")
        self._report(dict.fromkeys(waiting.values(), "asked") | missing)
        return waiting, heads, missing

    def _send_part(
        self, requests: Mapping[int, bytes], nodes: Mapping[str, int]
    ) -> tuple[list[str | None], dict[int, bytes]]:
        """Seal and send some requests; return their numbers and heads, by which replies refer to them."""
        envelopes = {client: self.channels[client].request(content) for client, content in requests.items()}
        messages = [self._message(each, nodes[self.names[client]]) for client, each in envelopes.items()]
        return self.transport.send(messages), {client: each[:HEAD] for client, each in envelopes.items()}

    def _replies(self, waiting: dict[str, int]) -> Iterator[tuple[int, Message | FederationError]]:
        """Yield replies as they arrive, until all have or the time is over; remove them from ``waiting``."""
        began, wait = time.monotonic(), FIRST_WAIT
        while waiting and (left := began + self._patience(waiting) - time.monotonic()) > 0:
            time.sleep(min(wait, left))
            wait = min(wait * GROWTH, LONGEST_WAIT)
            for number, reply in self.transport.arrived(list(waiting), left):
                if number in waiting and not is_expired(reply):
                    yield waiting.pop(number), reply

    def _patience(self, waiting: Mapping[str, int]) -> float:
        """Return how many seconds to wait for these sites."""
        fewest = min((self.silent.get(client, 0) for client in waiting.values()), default=0)
        return self.timeout * max(LEAST_SHARE, 0.5**fewest)

    def _message(self, envelope: bytes, node: int) -> Message:
        record = RecordDict({RECORD: ConfigRecord({REQUEST: envelope})})
        return Message(record, dst_node_id=node, message_type="query", ttl=self.timeout + GRACE)

    def _report(self, news: Mapping[int, str]) -> None:
        self.on_sites({self.names[client]: what for client, what in news.items()})


def _parts(requests: Mapping[int, bytes]) -> Iterator[dict[int, bytes]]:
    """Split requests into parts of at most ``MOST_SEALED_BYTES`` and at least one request each."""
    part, size = dict[int, bytes](), 0
    for client, content in requests.items():
        if part and size + len(content) > MOST_SEALED_BYTES:
            yield part
            part, size = {}, 0
        part[client] = content
        size += len(content)
    if part:
        yield part


def reply_status(content: bytes) -> str:
    """Return ``answered`` for a packed reply, or the problem that it reports."""
    try:
        problem = codec.unwrap(content).header.get("problem")
    except FederationError as error:
        return str(error)
    return "answered" if problem is None else line(problem, codec.LONGEST_PROBLEM)


def is_expired(reply: Message | FederationError) -> bool:
    """Return whether Flower reports that it no longer keeps the message, which counts as no answer."""
    return isinstance(reply, Message) and reply.has_error() and reply.error.code in EXPIRED


def envelope_of(reply: Message | FederationError) -> bytes:
    """Return the envelope of a reply; raise the reason if there is none."""
    if isinstance(reply, FederationError):
        raise reply
    if reply.has_error():
        lost = reply.error.code == LOST
        why = line(reply.error.reason or reply.error.code, codec.LONGEST_PROBLEM)
        raise FederationError(WENT_AWAY if lost else f"failed: {why}")
    try:
        content = reply.content[RECORD][REPLY]
    except KeyError:
        raise FederationError("sent a message that is none of ours") from None
    if not isinstance(content, bytes):
        raise FederationError("sent no bytes")
    return content
