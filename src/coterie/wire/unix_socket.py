"""Send and receive messages over a Unix socket: 8 bytes of length, most significant first, then the message.

Each connection carries one request and one reply. This module imports the standard library only, so a small process
can call a site's agent without loading torch.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

LENGTH = 8
"""Bytes that hold the length of a message."""

CHUNK = 1 << 20
"""Bytes that must arrive within the timeout."""


def call(socket_path: str, request: bytes, timeout: float | None = None) -> bytes:
    """Send one request to the agent at a Unix socket and return its reply; ``timeout`` applies to each chunk.

    Raise an ``OSError`` that gives the reason if the agent cannot be reached, hangs up or is silent.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(socket_path))
            with suppress(BrokenPipeError):  # an agent that stops reading has sent its reason
                send(connection, request, timeout)
            return receive(connection, receive_length(connection, timeout), timeout)
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or error
            raise type(error)(f"the agent at {socket_path} does not answer ({why}); is it running?") from None


def send(connection: socket.socket, content: bytes, timeout: float | None) -> None:
    """Send one message."""
    connection.settimeout(timeout)
    connection.sendall(len(content).to_bytes(LENGTH, "big"))
    connection.sendall(content)


def receive_length(connection: socket.socket, timeout: float | None) -> int:
    """Read the length of the next message."""
    return int.from_bytes(receive(connection, LENGTH, timeout), "big")


def receive(connection: socket.socket, length: int, timeout: float | None) -> bytes:
    """Read ``length`` bytes; each chunk must arrive in time, so a slow sender cannot hold a connection for long."""
    held = bytearray()
    while len(held) < length:
        wanted, deadline = min(len(held) + CHUNK, length), None if timeout is None else time.monotonic() + timeout
        while len(held) < wanted:
            connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-3))
            some = connection.recv(wanted - len(held))
            if not some:
                raise ConnectionResetError(f"it hung up after {len(held)} of {length} bytes")
            held += some
    return bytes(held)
