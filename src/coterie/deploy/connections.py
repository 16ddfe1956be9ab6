"""Which sites are connected, asked in the background now and then: each time starts a program of Flower's."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from coterie.deploy.server_folder import ServerFolder, online
from coterie.errors import FederationError

UNKNOWN = "unknown"
"""What is said of a connection while the server does not answer."""


@dataclass
class Connections:
    """The connections of a server's sites, at most ``seconds`` old but for the time that it takes to ask."""

    server: ServerFolder
    background: Executor
    seconds: float
    _known: dict[str, str] = field(default_factory=dict)
    _asked: float | None = None
    _looking: Future[dict[str, str]] | None = None

    def known(self) -> dict[str, str]:
        """Return what is known of the connections; ask again if that is old."""
        due = self._asked is None or time.monotonic() - self._asked >= self.seconds
        if self._looking is None and due:
            self._looking, self._asked = self.background.submit(online, self.server), time.monotonic()
        if self._looking is not None and self._looking.done():
            problem = self._looking.exception()
            if problem is not None and not isinstance(problem, FederationError):
                raise problem
            self._known = dict.fromkeys(self.server.config.sites, UNKNOWN) if problem else self._looking.result()
            self._looking = None
        return self._known
