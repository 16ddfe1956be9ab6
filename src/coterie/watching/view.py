"""What is watched: something with a cheap mark, which changes when it does, and views of it as sections of a page."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.errors import CoterieError
from coterie.reporting.markup import element
from coterie.reporting.report.page import Section
from coterie.terminal import line

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class View:
    """What a page shows of a moment: a title, sections, and when to look again even if no file has changed.

    ``again`` is a time in seconds since 1970, such as the moment at which a silent run counts as stopped. When
    something has ``ended``, its report is made at once: a page that says "finished" must not show half of it.
    """

    title: str
    sections: tuple[Section, ...]
    again: float | None = None
    ended: bool = False


class Watched(Protocol):
    """Something that changes: a run, a comparison, a federation."""

    def mark(self) -> Hashable:
        """Return a value that differs when there may be something new; it costs a few looks at file dates."""

    def now(self) -> View:
        """Return how it stands, which is quickly told."""

    def report(self) -> Sequence[Section]:
        """Return all that is known of it, below how it stands; this may take longer."""


def trouble(name: str, error: Exception) -> Section:
    """Return a section that says why something could not be shown, such as a file that is being cut back."""
    why = line(error)
    if not isinstance(error, CoterieError | OSError):
        why = f"internal error: {type(error).__name__}: {why}; please report it"
        _log.warning("cannot show what has changed: %s", why)
    return Section(name, "Not up to date", element("p", f"{why}; it is tried again."))
