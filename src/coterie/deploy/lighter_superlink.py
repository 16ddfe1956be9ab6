"""Flower's SuperLink with less work for every request: the answers are the same, and so is who is let in.

Most of a round with a small model is the SuperLink, which answers each part of each message as a request of its own.
Three things that it does for every request are changed here, in its own process alone, and only in the one version of
Flower of which it was checked that they decide nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from typing import Any

from coterie.deploy.flower import replace

_log = logging.getLogger(__name__)

CHECKED = "1.41.0"
"""The version of Flower that is changed; any other one runs as it is, and takes longer."""

CONTROL, FLEET = "/v1/control/", "/v1/fleet/"
"""The beginnings of the paths of orders, and of the sites' messages."""

CLEANING = 1.0
"""Seconds between two searches for tasks that have ended without a word; Flower searches in nearly every request."""


class Only:
    """A layer of the SuperLink that looks only at paths with a beginning; all others pass it by at once.

    Each layer checks the path itself, but by then it has started a task, a queue and two streams for the request.
    """

    def __init__(self, app: Any, layer: Any, beginning: str) -> None:
        self.app, self.beginning = app, beginning
        self.layer = layer.cls(app, *layer.args, **layer.kwargs)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, through the layer if the layer is for it."""
        concerned = scope["type"] != "http" or scope["path"].startswith(self.beginning)
        await (self.layer if concerned else self.app)(scope, receive, send)


def lighten() -> None:
    """Change the SuperLink of this process, before it starts, if it is of the version that was checked."""
    found = metadata.version("flwr")
    if found != CHECKED:
        _log.warning("Flower is %s, and its requests are made lighter in %s alone; rounds take longer", found, CHECKED)
        return
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.corestate.sql_corestate import SqlCoreState
    from flwr.supercore.sql_mixin import SqlMixin
    from flwr.superlink import main

    layers = main._get_middleware
    replace(main, _get_middleware=lambda: concerned(layers()))
    replace(SqlMixin, session=in_turn(SqlMixin.session))
    replace(SqlCoreState, _cleanup_expired_task_tokens=now_and_then(SqlCoreState._cleanup_expired_task_tokens))
    replace(SqlLinkState, store_traffic=lambda *_, **__: None)  # statistics that only Flower shows


def concerned(layers: Sequence[Any]) -> list[Any]:
    """Return the layers in their order, each for the paths that it is about, without two that have nothing to do.

    No event log is kept, and tracing is off (both are Flower's defaults, and ``deploy.flower`` does not set them).
    """
    from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
    from flwr.superlink.routers.control import middlewares as control
    from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
    from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
    from starlette.middleware import Middleware

    idle = (RuntimeTracingMiddleware, FleetEventLogMiddleware, control.ControlEventLogMiddleware)
    about = {
        control.ControlSensitiveResponseMiddleware: CONTROL,
        control.ControlAuthenticationMiddleware: CONTROL,
        control.ControlLicenseMiddleware: CONTROL,
        NodeAuthMiddleware: FLEET,
    }
    kept = [each for each in layers if each.cls not in idle]
    return [Middleware(Only, each, about[each.cls]) if each.cls in about else each for each in kept]


def in_turn(session: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let threads of this process use the database one after the other.

    SQLite has one writer. Where several want to write, all but one sleep and try again, longer each time, and after
    five seconds the request fails; at a lock each goes on as soon as it can.
    """
    turn = threading.RLock()

    @wraps(session)
    @contextmanager
    def waiting(self: Any) -> Iterator[Any]:
        with turn, session(self) as found:
            yield found

    return waiting


def now_and_then(action: Callable[[Any], None], seconds: float = CLEANING) -> Callable[[Any], None]:
    """Return an action that is done at most once in some seconds.

    >>> done = []
    >>> twice = now_and_then(done.append, 60)
    >>> twice("first"), twice("second")
    (None, None)
    >>> done
    ['first']
    """
    due, lock = [0.0], threading.Lock()

    @wraps(action)
    def at_most(self: Any) -> None:
        with lock:
            if time.monotonic() < due[0]:
                return
            due[0] = time.monotonic() + seconds
        action(self)

    return at_most
