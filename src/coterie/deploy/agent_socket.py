"""How two processes of one machine hand each other messages: 8 bytes of length, most significant first, and the bytes.

One request and one reply a connection. Nothing but the standard library is imported here, so that this file alone is
all that a small process needs to call an agent.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

LENGTH = 8
PART = 1 << 20


def call(socket_path: str, request: bytes, timeout: float | None = None) -> bytes:
    """Send one request to the agent at a Unix socket and wait for its reply; ``timeout`` is for each part of either.

    An agent that cannot be reached, hangs up or is silent is an ``OSError`` that says so.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(socket_path))
            with suppress(BrokenPipeError):  # an agent that does not read on has said why
                send(connection, request, timeout)
            return receive(connection, receive_length(connection, timeout), timeout)
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or error
            raise type(error)(f"the agent at {socket_path} does not answer ({why}); is it running?") from None


def send(connection: socket.socket, content: bytes, patience: float | None) -> None:
    """A whole message."""
    connection.settimeout(patience)
    connection.sendall(len(content).to_bytes(LENGTH, "big"))
    connection.sendall(content)


def receive_length(connection: socket.socket, patience: float | None) -> int:
    """How long the message is that comes."""
    return int.from_bytes(receive(connection, LENGTH, patience), "big")


def receive(connection: socket.socket, length: int, patience: float | None) -> bytes:
    """So many bytes. Each part must be there in time, so that a byte now and then does not hold a place for long."""
    held = bytearray()
    while len(held) < length:
        wanted, ends = min(len(held) + PART, length), None if patience is None else time.monotonic() + patience
        while len(held) < wanted:
            connection.settimeout(None if ends is None else max(ends - time.monotonic(), 1e-3))
            some = connection.recv(wanted - len(held))
            if not some:
                raise ConnectionResetError(f"it hung up after {len(held)} of {length} bytes")
            held += some
    return bytes(held)
