"""What the node of a site has carried: counts, in a file, which the node's parent reads for ``/metrics``.

This module imports the standard library only: it is loaded by the program that runs Flower's SuperNode.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

CARRIED = "carried.json"


@dataclass(frozen=True)
class Counts:
    """Messages that were answered and that were not, their bytes, the seconds the agent took, and the last time."""

    messages: int = 0
    failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    last: float | None = None


class Carried:
    """Carries messages to the agent, one at a time, and counts them. A node cannot read what it carries."""

    def __init__(self, call: Callable[[bytes], bytes], path: Path) -> None:
        self.call, self.path, self.counts = call, path, Counts()

    def __call__(self, request: bytes) -> bytes:
        """Carry a request to the agent, and return its reply."""
        began, now = time.monotonic(), self.counts
        try:
            reply = self.call(request)
        except OSError:
            self._keep(replace(now, failures=now.failures + 1))
            raise
        self._keep(
            Counts(
                now.messages + 1,
                now.failures,
                now.bytes_in + len(request),
                now.bytes_out + len(reply),
                now.seconds + time.monotonic() - began,
                time.time(),
            )
        )
        return reply

    def _keep(self, counts: Counts) -> None:
        """Replace the file as a whole; it need not survive a power cut."""
        self.counts = counts
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(counts)))
        os.replace(fresh, self.path)


def read_counts(path: Path) -> Counts:
    """Return the counts in a file; zeros if there is none yet."""
    try:
        return Counts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return Counts()
