"""A site's end of Flower: within the SuperNode, take each message to the site's agent and send its answer back.

Flower would store a message, start a process for it, and run in it the app that the server shipped. Here the two steps
of the SuperNode's loop, fetch a message and send the reply, are replaced: bytes go to the agent's socket and back, in
the same process. The app is neither run nor fetched. The two steps are those of Flower 1.41.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.run import RunNotRunningException

from coterie.deploy.flower import RECORD, REPLY, REQUEST

Answer = Callable[[bytes], bytes]
_log = logging.getLogger(__name__)


class Carrier:
    """The two steps of the SuperNode's loop, with the names of the arguments that Flower gives them."""

    def __init__(self, answer: Answer, on_message: Callable[[], None] = lambda: None) -> None:
        self.answer, self.on_message = answer, on_message
        self.reply: Message | None = None
        self.seconds = 0.0

    def pull(self, *, receive: Any, pull_object: Any, confirm_message_received: Any, **others: Any) -> int | None:
        """Fetch the next message and have it answered; return the number of its run, or None if there is none."""
        found = None
        try:
            found = receive()
            if found is None:
                return None
            head, tree = found
            run, number = head.metadata.run_id, head.metadata.message_id
            parts = [each.object_id for each in iterate_object_tree(tree)]
            contents = pull_objects(parts, pull_object_fn=partial(pull_object, run))
            confirm_message_received(run, number)
        except RunNotRunningException:
            return None
        except Exception as error:  # as Flower does: one message that cannot be fetched must not end the node
            if found is None:
                raise
            _log.warning("a message was lost: %s", error)
            return None
        self.on_message()
        message = cast(Message, inflate_object_from_contents(number, contents))
        message.metadata.__dict__["_message_id"] = number
        began = time.monotonic()
        self.reply, self.seconds = reply_to(message, self.answer), time.monotonic() - began
        return cast(int, run)

    def push(self, *, send: Any, push_object: Any, **others: Any) -> None:
        """Send the reply to the message that ``pull`` fetched."""
        reply, self.reply = self.reply, None
        assert reply is not None, "a reply follows a message"
        reply.metadata.__dict__["_message_id"] = reply.object_id
        try:
            with no_object_id_recompute():
                wanted, session = send(reply, get_object_tree(reply), self.seconds)
                to_server = partial(push_object, reply.metadata.run_id, session)
                push_objects(get_all_nested_objects(reply), to_server, object_ids_to_push=wanted)
        except RunNotRunningException:
            _log.info("the run was over before its message was answered")
        except Exception as error:  # as Flower does
            _log.warning("an answer was lost: %s", error)


def reply_to(message: Message, answer: Answer) -> Message:
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
