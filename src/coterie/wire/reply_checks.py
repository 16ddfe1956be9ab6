"""Read the reply of a client that may be broken or hostile: refuse what the task did not ask for.

A reply is refused with a ``FederationError`` if it is too large, cannot be read, holds other arrays than the task asks
for, or a number out of its range. Its signature is checked before, by ``wire.envelope``. An update that is far longer
than the others is refused later, by ``server.exchange``, in simulations too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import FederationError
from coterie.protocol import message
from coterie.protocol.task import Task
from coterie.terminal import line
from coterie.typing import Array
from coterie.wire import codec

LONGEST_NAMES = 200
"""The most letters that an error quotes of the names of arrays that were not asked for."""


def read_reply(content: bytes, wanted: message.Form, task: Task, row: Array) -> message.Arrays:
    """Return the arrays of a reply to a task; refuse other arrays, other shapes and numbers out of range.

    ``row`` is the one that the client was asked to work on; one that does not choose must have worked on it.
    """
    arrays = open_reply(content, sum(field.nbytes for field in wanted.values()))[0]
    if arrays.keys() != wanted.keys():
        sent = line(", ".join(arrays) or "nothing", LONGEST_NAMES)
        raise FederationError(f"sent {sent} where {', '.join(wanted)} was asked for")
    for name, field in wanted.items():
        _check_array(name, arrays[name], field)
    return arrays if task.choose else {**arrays, "rows": np.asarray(row)[None]}


def open_reply(content: bytes, nbytes: int = 0) -> tuple[message.Arrays, dict[str, Any]]:
    """Return the arrays and the header of a reply; raise the problem that the client reports as an error.

    Do not read a reply that is larger than ``nbytes`` of arrays and a header.
    """
    if len(content) > nbytes + codec.LARGEST_HEADER:
        most = f"at most {nbytes + codec.LARGEST_HEADER} can be an answer"
        raise FederationError(f"sent {len(content)} bytes; {most}")
    arrays, header = codec.decode(content)
    if header.get("problem") is not None:
        raise FederationError(line(header["problem"], codec.LONGEST_PROBLEM))
    return arrays, header


def _check_array(name: str, array: Array, field: message.Field) -> None:
    """Refuse an array of another shape or type, or with a number out of its range."""
    if array.shape != field.shape or array.dtype.name != field.kind:
        sent, asked = f"{array.shape} of {array.dtype.name}", f"{field.shape} of {field.kind}"
        raise FederationError(f"sent {name} of shape {sent} where {asked} was asked for")
    outside = field.outside(array)
    if not outside.any():
        return
    if name in message.FIELDS:
        raise FederationError(message.BROKEN)
    first = np.unravel_index(int(outside.argmax()), array.shape)
    low, high = (np.broadcast_to(limit, array.shape)[first] for limit in (field.low, field.high))
    allowed = f"{low:.12g}" if low == high else f"{low:.12g} to {high:.12g}"
    raise FederationError(f"sent {array[first]} in {name}; it must be {allowed}")
