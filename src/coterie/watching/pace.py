"""Pace: how often something that costs time is done again, so that it takes a small share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

LEAST, MOST, SHARE = 1.0, 60.0, 0.04
"""Seconds between two times: at least and at most, and the share of a core that all of them may take."""

T = TypeVar("T")


@dataclass
class Pace:
    """When something may be done again, by what it took the last time.

    ``clock`` tells the time, ``work`` the seconds of a core that this thread has used.
    """

    clock: Callable[[], float] = time.monotonic
    work: Callable[[], float] = time.thread_time
    _took: float = 0.0
    _ended: float | None = None

    @property
    def pause(self) -> float:
        """Return the seconds between the last time and the next."""
        return min(MOST, max(LEAST, self._took / SHARE))

    def is_due(self) -> bool:
        """Return whether it may be done now."""
        return self._ended is None or self.clock() - self._ended >= self.pause

    def do(self, what: Callable[[], T]) -> T:
        """Do it, and note what it took."""
        began = self.work()
        try:
            return what()
        finally:
            self._took, self._ended = self.work() - began, self.clock()
