"""Rounds one at a time from frameworks that insist on their own loop: it waits for its turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class Turns:
    """The framework's loop calls ``begin`` before and ``end`` after each of its rounds."""

    def __init__(self) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._serving: threading.Thread | None = None

    def run(self, loop: Callable[[], object], serving: Callable[[], None]) -> None:
        """Run the framework's loop, which may need the main thread; serve from its first round on, end with that."""

        def serve_and_end() -> None:
            serving()
            os._exit(0)

        self._serving = threading.Thread(target=serve_and_end, daemon=True)
        loop()

    def begin(self) -> None:
        """Wait until a round is asked for; nobody asks before the loop is here for the first time."""
        if self._serving is not None:
            self._serving.start()
            self._serving = None
        self._go.acquire()

    def end(self) -> None:
        """Say that the round is over."""
        self._done.release()

    def round(self) -> None:
        """Let the loop do one round."""
        self._go.release()
        self._done.acquire()
