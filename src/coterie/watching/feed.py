"""The feed of a page: looks for changes, makes new views when there are some, and tells browsers what changed.

All browsers share one view: however many look, a change is collected once. While nobody looks, nothing is collected.
How the watched thing stands is told at most once a second; its report, which takes longer, as often as its pace allows.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field

from coterie.reporting.report.page import Section
from coterie.watching.pace import MOST, Pace
from coterie.watching.view import View, Watched, trouble

PAUSE = 0.5
"""Seconds between two looks at the mark."""

HEARTBEAT = 15.0
"""Seconds after which a browser that has no news gets a sign of life, so that broken connections are noticed."""

NOT_MADE = object()
"""The mark of a report that could not be made: it differs from every other, so that it is tried again."""

NO_VIEW, NO_REPORT = "trouble", "report-trouble"
"""The ids of the sections that say why there is no newer view, and no newer report."""


@dataclass(frozen=True)
class Update:
    """What a browser needs to show the newest view: its stamp and title, the order of sections, the changed ones."""

    stamp: str
    title: str
    order: tuple[str, ...]
    sections: tuple[Section, ...]


@dataclass(eq=False)
class Feed:
    """The newest view of something watched, and in which version each of its sections last changed.

    A stamp names the feed and a version, so that a browser that comes back after a restart of the server gets all.
    """

    watched: Watched
    now_pace: Pace = field(default_factory=Pace)
    report_pace: Pace = field(default_factory=Pace)
    name: str = field(default_factory=lambda: secrets.token_hex(4))
    version: int = 0
    title: str = ""
    sections: tuple[Section, ...] = ()
    listeners: int = 0
    closed: bool = False
    _now: View = field(default_factory=lambda: View("coterie", ()))
    _report: Sequence[Section] = ()
    _now_mark: Hashable = None
    _report_mark: Hashable = None
    _changed: dict[str, int] = field(default_factory=dict)
    _turn: asyncio.Event = field(default_factory=asyncio.Event)
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stamp(self) -> str:
        """Return the stamp of the newest view."""
        return f"{self.name}-{self.version}"

    def since(self, stamp: str) -> Update:
        """Return what a browser lacks that has the view of a stamp; all, if the stamp is of another server."""
        name, _, number = stamp.rpartition("-")
        seen = int(number) if name == self.name and number.isdecimal() else -1
        fresh = tuple(each for each in self.sections if self._changed[each.id] > seen)
        return Update(self.stamp, self.title, tuple(each.id for each in self.sections), fresh)

    async def refresh(self) -> None:
        """Look for changes, and make a new view of what changed if the last one is old enough."""
        async with self._alone:
            if await asyncio.to_thread(self._look):
                self._publish()

    def _look(self) -> bool:
        """Make new views of what changed; return whether any was made."""
        due_now, due_report = self.now_pace.is_due(), self.report_pace.is_due()
        if not (due_now or due_report):
            return False
        mark, again = self.watched.mark(), self._now.again
        late = again is not None and time.time() >= again
        look_now = due_now and (mark != self._now_mark or late or not self.version)
        before = self._now
        if look_now:
            self._now_mark, self._now = mark, self.now_pace.do(self._told_now)
        ends = self._now.ended and not before.ended
        look_report = (due_report or ends) and (mark != self._report_mark or not self.version)
        if look_report:
            self._report, made = self.report_pace.do(self._told_report)
            self._report_mark = mark if made else NOT_MADE
        return look_now or look_report

    def _told_now(self) -> View:
        """Return how it stands; where that cannot be told, what was told before, with the reason."""
        try:
            return self.watched.now()
        except Exception as error:
            return View(self._now.title, _troubled(NO_VIEW, error, self._now.sections), time.time() + MOST)

    def _told_report(self) -> tuple[Sequence[Section], bool]:
        """Return the report and True; where it cannot be made, the one before with the reason, and False."""
        try:
            return self.watched.report(), True
        except Exception as error:
            return _troubled(NO_REPORT, error, self._report), False

    def _publish(self) -> None:
        """Take the views as the newest and wake all listeners, if they differ from the ones before."""
        before, sections = {each.id: each for each in self.sections}, (*self._now.sections, *self._report)
        if self.version and self._now.title == self.title and sections == self.sections:
            return
        self.version += 1
        self.title, self.sections = self._now.title, sections
        self._changed = {
            each.id: self._changed[each.id] if before.get(each.id) == each else self.version for each in sections
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


def _troubled(name: str, error: Exception, sections: Sequence[Section]) -> tuple[Section, ...]:
    """Return sections that are not the newest, after one that says why."""
    return trouble(name, error), *(each for each in sections if each.id != name)
