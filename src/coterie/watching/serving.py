"""Serves the page of something watched on loopback, until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib import import_module
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from coterie.errors import UsageError, require

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Server

    from coterie.watching.feed import Feed
    from coterie.watching.view import Watched

HOST, PORT, TRIED = "127.0.0.1", 8710, 20
"""Where the page is, the port that is taken unless another is given, and how many are tried if it is in use."""

GRACE = 2
"""Seconds that open connections have at the end."""


def check_loopback(host: str) -> None:
    """Refuse an address that other machines reach."""
    try:
        good = host == "localhost" or IPv4Address(host).is_loopback
    except ValueError:
        good = False
    remedy = "from another machine look through ssh -L 8710:127.0.0.1:8710"
    require(good, "host", host, f"127.0.0.1, since the page has no password; {remedy}")


def open_socket(port: int | None) -> socket.socket:
    """Return a socket that listens on a port of loopback: the given one, or the first free one from the usual on."""
    for number in range(PORT, PORT + TRIED) if port is None else [port]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a restarted server has its port again
        try:
            listener.bind((HOST, number))
            listener.listen()
        except OSError as error:
            listener.close()
            problem = error.strerror
            continue
        return listener
    tried = f"{PORT} to {PORT + TRIED - 1}" if port is None else port
    raise UsageError(f"port is {tried}, where nothing can listen ({problem}); give another --port")


def serve(watched: Watched, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or the end of the program; ``ready`` is told its address."""
    try:
        from coterie.watching.app import application
        from coterie.watching.feed import Feed

        import_module("uvicorn")
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'coterie[watch]'") from None
    with open_socket(port) as listener:
        feed = Feed(watched)
        server = web_server(application(feed))
        ready(f"http://{HOST}:{listener.getsockname()[1]}/")
        asyncio.run(serve_feed(feed, server, listener))


def web_server(application: Starlette) -> Server:
    """Return the server of an application: it logs no requests, and ends its event streams at Ctrl-C."""
    from uvicorn import Config, Server

    return Server(
        Config(
            application,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
    )


async def serve_feed(feed: Feed, server: Server, listener: socket.socket) -> None:
    """Look for changes and serve them until the server is told to end."""
    await asyncio.gather(server.serve(sockets=[listener]), feed.run(lambda: server.should_exit))
