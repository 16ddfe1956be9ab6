"""The feed of a page: looks for changes, makes a new view when there are some, and tells browsers what changed.

All browsers share one view: however many look, a change is collected once. While nobody looks, nothing is collected.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass

from coterie.reporting.report.page import Section
from coterie.watching.view import TROUBLE, View, Watched, trouble

PAUSE = 0.5
"""Seconds between two looks at the mark."""

LEAST, MOST, SHARE = 1.0, 60.0, 0.05
"""Seconds between two views: at least and at most, and the share of the time that making views may take."""

HEARTBEAT = 15.0
"""Seconds after which a browser that has no news gets a sign of life, so that broken connections are noticed."""


@dataclass(frozen=True)
class Update:
    """What a browser needs to show the newest view: its stamp and title, the order of sections, the changed ones."""

    stamp: str
    title: str
    order: tuple[str, ...]
    sections: tuple[Section, ...]


class Feed:
    """The newest view of something watched, and in which version each of its sections last changed.

    A stamp names the feed and a version, so that a browser that comes back after a restart of the server gets all.
    """

    def __init__(self, watched: Watched, clock: Callable[[], float] = time.monotonic) -> None:
        self.watched, self.clock = watched, clock
        self.name, self.version = secrets.token_hex(4), 0
        self.current = View("coterie", ())
        self.listeners, self.closed = 0, False
        self._changed: dict[str, int] = {}
        self._mark: Hashable = None
        self._took, self._ended = 0.0, -MOST
        self._turn = asyncio.Event()
        self._alone = asyncio.Lock()

    @property
    def stamp(self) -> str:
        """Return the stamp of the newest view."""
        return f"{self.name}-{self.version}"

    def since(self, stamp: str) -> Update:
        """Return what a browser lacks that has the view of a stamp; all, if the stamp is of another server."""
        name, _, number = stamp.rpartition("-")
        seen = int(number) if name == self.name and number.isdecimal() else -1
        fresh = (each for each in self.current.sections if self._changed[each.id] > seen)
        order = tuple(each.id for each in self.current.sections)
        return Update(self.stamp, self.current.title, order, tuple(fresh))

    async def refresh(self) -> None:
        """Make a new view if something changed and the last one is old enough."""
        async with self._alone:
            if self.clock() - self._ended < self.pause:
                return
            mark = await asyncio.to_thread(self.watched.mark)
            again = self.current.again
            if self.version and mark == self._mark and not (again is not None and time.time() >= again):
                return
            began = self.clock()
            view = await asyncio.to_thread(self._look)
            self._mark, self._ended = mark, self.clock()
            self._took = self._ended - began
            self._publish(view)

    @property
    def pause(self) -> float:
        """Return how many seconds to wait after a view before the next is made: longer if views take long."""
        return min(MOST, max(LEAST, self._took / SHARE))

    def _look(self) -> View:
        """Return a view; where none can be made the last one, with the reason."""
        try:
            return self.watched.view()
        except Exception as error:
            rest = tuple(each for each in self.current.sections if each.id != TROUBLE)
            return View(self.current.title, (trouble(error), *rest), time.time() + MOST)

    def _publish(self, view: View) -> None:
        """Take a view as the newest and wake all listeners, if it differs from the one before."""
        before = {each.id: each for each in self.current.sections}
        same = view.title == self.current.title and view.sections == self.current.sections
        self.current = view
        if same and self.version:
            return
        self.version += 1
        self._changed = {
            each.id: self._changed[each.id] if before.get(each.id) == each else self.version for each in view.sections
        }
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def updates(self, stamp: str) -> AsyncIterator[Update | None]:
        """Yield updates for a browser that has the view of a stamp, until the feed is closed; None is a sign of life.

        A browser that reads slowly gets fewer, larger updates: none are queued.
        """
        self.listeners += 1
        try:
            while not self.closed:
                turn = self._turn
                if stamp != self.stamp:
                    update = self.since(stamp)
                    stamp = update.stamp
                    yield update
                    continue
                try:
                    await asyncio.wait_for(turn.wait(), HEARTBEAT)
                except TimeoutError:
                    yield None
        finally:
            self.listeners -= 1

    async def run(self, ended: Callable[[], bool]) -> None:
        """Look for changes while somebody listens, until it has ended; then let all listeners go."""
        while not ended():
            if self.listeners:
                await self.refresh()
            await asyncio.sleep(PAUSE)
        self.closed = True
        self._turn.set()
