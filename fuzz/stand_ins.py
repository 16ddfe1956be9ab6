"""What a case must not reach: networks, and programs that stay. Each is as if it were not there."""

from __future__ import annotations

import socket
from typing import Any

from coterie.data.sources import fetching as origins
from coterie.deploy import server, server_folder, site_node
from coterie.deploy import site_programs as client
from coterie.errors import DataError, FederationError


def install() -> None:
    """Put the stand-ins in place, in this process and those forked from it."""
    socket.socket.connect = _unreachable  # type: ignore[method-assign]
    socket.getaddrinfo = _unreachable
    origins._run = _no_client
    server_folder.ServerFolder.ask = _no_server  # type: ignore[method-assign]
    server.running = site_node.running = _no_program  # type: ignore[assignment]
    client.serve, client.keep_node = _ready_and_gone, _gone


def _unreachable(*_: Any, **__: Any) -> Any:
    raise OSError(101, "Network is unreachable")


def _no_client(*_: Any) -> Any:
    raise DataError("no package is fetched here")


def _no_server(*_: Any) -> Any:
    raise FederationError("no server runs here; start one")


def _no_program(*_: Any) -> Any:
    raise FederationError("no program is started here; start one")


def _ready_and_gone(*_: Any, ready: Any, **__: Any) -> None:
    """An agent that is stopped as soon as it is ready."""
    ready()


def _gone(*_: Any) -> None:
    """A node beside an agent, stopped with it: a refusal of its own would come after the line that says it is ready."""
