"""Whether the node of a site reaches its server, as the log of Flower's node says, and what its operator is told."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coterie.deploy.logs import telling

PATIENCE = 30.0
"""Seconds of failed tries after which the operator is told."""

FAILED, GAVE_UP = "Connection attempt failed", "Giving up reconnection"
REACHED = ("Connection successful after", "SuperNode ID:")
"""What Flower's node logs of its connection. A first try that succeeds is not logged."""

_REFUSED = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl|$)")

CAUSES = {
    "expired": "its certificate has expired; the server's operator renews it: coterie federate renew FOLDER",
    "not yet valid": "its certificate is not valid yet; compare the clocks of both machines",
    "mismatch": "its certificate is for another host; is `server` in site.toml right?",
    "issuer": "its certificate is not of this federation; are `server` in site.toml and the site's ca.crt right?",
    "self": "its certificate is not of this federation; are `server` in site.toml and the site's ca.crt right?",
}
"""What is wrong with the server's certificate and what to do, by a part of OpenSSL's words."""


class Reach:
    """Follows the log of a site's node; tells the operator once that the server is not reached, once that it is again.

    ``problem`` is what is wrong now, None if nothing is known to be; ``refused`` is whether this node refused
    the server's certificate, after which it ends; who starts another one resets it.
    """

    def __init__(self, server: str, log: Path, tell: Callable[[str], None]) -> None:
        self.server, self.log = server, log
        self.problem: str | None = None
        self.refused = False
        self._tell, self._at = telling(tell, __name__, logging.WARNING), _size(log)
        self._since: float | None = None

    def look(self) -> None:
        """Read what the log says since the last look."""
        for line in self._lines():
            if any(words in line for words in REACHED):
                self._reached()
            elif FAILED in line:
                self._since = time.monotonic() if self._since is None else self._since
            elif GAVE_UP in line:
                self._since = None
            elif found := _REFUSED.search(line):
                self._since, self.refused = None, True
                self._is(f"cannot reach {self.server}: {_cause(found[1])}")
        if self._since is not None and time.monotonic() - self._since >= PATIENCE:
            self.refused = False
            what = "is the server running, and is `server` in site.toml right?"
            self._is(f"cannot reach {self.server} for {PATIENCE:g} s; {what}")

    def _is(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._tell(f"{problem} (the site keeps trying)")

    def _reached(self) -> None:
        if self.problem is not None:
            self._tell(f"{self.server} is reached again")
        self.problem, self.refused, self._since = None, False, None

    def _lines(self) -> Iterator[str]:
        """Yield the whole lines that are new; a log that is shorter than before was put aside."""
        if _size(self.log) < self._at:
            self._at = 0
        try:
            with self.log.open("rb") as file:
                file.seek(self._at)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        yield from whole.decode(errors="replace").splitlines()


def _cause(words: str) -> str:
    """Return what is wrong with the server's certificate, from OpenSSL's words."""
    known = (cause for part, cause in CAUSES.items() if part in words.lower())
    return next(known, f"its certificate is refused: {words}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
