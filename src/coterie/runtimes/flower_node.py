"""Flower's SuperNode with pauses that fit the work: short while a run goes on, as long as Flower's own when idle.

A program of its own, run by its path and not as a part of coterie, so that it loads nothing but Flower. The SuperNode
looks for a message every 3 seconds and for an answer every half second, fixed numbers in Flower 1.41; most of an
exchange would be waiting for these.
"""

from __future__ import annotations

import time
from typing import Any, cast

SHORTEST, GROWTH, ANSWER = 0.2, 1.3, 0.1
"""Seconds of the first pause after a message, by what it grows, and the longest pause in which an answer is awaited."""

PART = 0.05
"""Seconds of the first pause before a part of a message is looked for again; Flower's own is 1."""

IDLE = 3
"""Pauses of this length and more are those between two looks for a message."""


class Pauses:
    """Stands in for the module ``time`` where the SuperNode waits.

    >>> slept = []
    >>> pauses = Pauses(slept.append)
    >>> for asked in (0.5, 3, 3, 3, 0.5, 3):
    ...     pauses.sleep(asked)
    >>> [round(seconds, 3) for seconds in slept]
    [0.1, 0.2, 0.26, 0.338, 0.1, 0.2]
    """

    def __init__(self, wait: Any = time.sleep) -> None:
        self.wait, self.next = wait, SHORTEST

    def sleep(self, seconds: float) -> None:
        """Pause, for no longer than was asked."""
        if seconds < IDLE:
            self.next = SHORTEST
            self.wait(min(seconds, ANSWER))
            return
        self.wait(min(seconds, self.next))
        self.next = min(seconds, self.next * GROWTH)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def wait_less() -> None:
    """Let Flower look again sooner for parts of a message that are announced and not there yet, in this process."""
    from flwr.supercore.inflatable import inflatable_utils

    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        cast(Any, pull).__kwdefaults__ |= {"initial_backoff": PART, "backoff_cap": 1.0, "max_tries_per_object": None}


def main() -> None:
    """Start the SuperNode with the flags of this command."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    vars(start_client_internal)["time"] = Pauses()
    wait_less()
    flower_supernode()


if __name__ == "__main__":
    main()
