"""A site's end of Flower: take messages from the SuperNode, have them answered, and return the answers.

Flower would start a process for every message, which runs code that the server ships. Here one resident process takes
the SuperNode's work as its executor (``--isolation process``): no process is started for a message, and no code of the
server ever runs at a site. The calls to the SuperNode are those of Flower 1.41's Runtime API.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from coterie.deploy.flower import EXECUTOR_WAIT, IDLE_GROWTH, IDLE_WAIT, RECORD, REPLY, REQUEST, shorten_retries

BEAT = 10.0
"""Seconds between two heartbeats; Flower abandons work after a minute without one."""

Answer = Callable[[bytes], bytes]
_log = logging.getLogger(__name__)


def relay(address: str, secret: bytes, answer: Answer, stop: threading.Event) -> None:
    """Answer the messages that the SuperNode at ``address`` receives, until ``stop`` is set.

    ``secret`` is the one that the SuperNode was started with, so no other user of the machine can take its work.
    """
    shorten_retries()
    acquire = "/flwr.proto.Runtime/AcquireTask"
    executor = _client(
        address, "SuperExec", SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[acquire])
    )
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    wait = EXECUTOR_WAIT
    while not stop.is_set():
        try:
            found = executor.AcquireTask(wanted)
            wait = min(wait * IDLE_GROWTH, IDLE_WAIT)
            if found.HasField("task") and found.token:
                wait = EXECUTOR_WAIT
                node = _client(address, "flwr-clientapp", RuntimeTokenHttpInterceptor(found.token))
                threading.Thread(target=_handle, args=(node, answer), daemon=True).start()
        except httpx.HTTPError as error:
            _log.warning("the SuperNode at %s cannot be asked (%s); trying again", address, error)
        stop.wait(wait)


def _handle(node: RuntimeHttpClient, answer: Answer) -> None:
    """Fetch one message from the SuperNode, have it answered, and send the reply.

    Each message has its own thread: Flower may hand out work without a message (if the run ended before the message was
    fetched), and that must not delay the next one.
    """
    context, status = None, SubStatus.FAILED
    try:
        with _heartbeat(node):
            message, context, _, _ = pull_task_input(node)
            push_message(node, _reply(message, answer), context)
        status = SubStatus.COMPLETED
    except (RuntimeError, httpx.HTTPError, ObjectPushError, ObjectPullError) as error:
        _log.warning("a message was lost: %s", error)
    finally:
        push_task_output(node, context, status, "")
        node.close()


@contextmanager
def _heartbeat(node: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats to the SuperNode during the block, however long it takes.

    Flower's own heartbeat interrupts the whole process when the work is no longer wanted; this process has more to do.
    """
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT):
            with suppress(httpx.HTTPError):
                node.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _reply(message: Message, answer: Answer) -> Message:
    """Return the reply to a message: packed bytes, or an error with a reason."""
    try:
        request = message.content[RECORD][REQUEST]
        if not isinstance(request, bytes):
            raise TypeError("the request is not bytes")
        record = RecordDict({RECORD: ConfigRecord({REPLY: answer(request)})})
    except (KeyError, TypeError):
        return _failed(message, "this site answers coterie's messages only")
    except OSError as error:
        _log.warning("%s", error)
        return _failed(message, "the site's agent does not answer; its log says why")
    return Message(record, reply_to=message)


def _failed(message: Message, reason: str) -> Message:
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)


def _client(
    address: str, component: str, interceptor: RuntimeTokenHttpInterceptor | SuperExecAuthHttpInterceptor
) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), interceptor],
        retry_invoker=make_simple_http_retry_invoker(),
    )
