"""A site of a federation as something that is watched: what it was asked, what left it, and the models it has."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coterie.deploy.audit import AUDIT, COLUMNS, AuditLine, audit_cells, parse_line
from coterie.deploy.certificates import expiry_warnings
from coterie.deploy.config import SiteConfig, load_site
from coterie.deploy.health import agent_answers
from coterie.deploy.model_store import MODELS, VERSION_COLUMNS, ModelStore, version_cells
from coterie.files import last_lines
from coterie.reporting.durations import duration
from coterie.reporting.markup import join
from coterie.reporting.report.page import Section
from coterie.watching.marks import mark_of
from coterie.watching.pieces import Words, ago, bullets, facts, paragraph, strong, table
from coterie.watching.run_sections import NOW
from coterie.watching.view import View

REQUESTS, MODELS_ID = "requests", "models"
"""The ids of the sections."""

SHOWN, RECENT_BYTES = 30, 1 << 18
"""The most requests that are shown, and the bytes at the end of the audit log that are read."""


@dataclass(frozen=True)
class SiteWatch:
    """The folder of a site."""

    config: SiteConfig

    @classmethod
    def of(cls, folder: Path) -> SiteWatch:
        """Return the watch of a site's folder."""
        return cls(load_site(folder))

    def mark(self) -> Hashable:
        """Return the dates and sizes of its log, models and certificate, and whether its agent answers."""
        folder = self.config.folder
        return mark_of(folder / AUDIT, folder / MODELS, folder / "ca.crt"), agent_answers(self.config.socket_path)

    def now(self) -> View:
        """Return how the site is."""
        lines = self._log()
        sections = Section(NOW, "Now", self._now(lines)), Section(REQUESTS, "What it was asked", _requests(lines))
        return View(f"Site {self.config.name}", sections)

    def report(self) -> list[Section]:
        """Return the models that the site has, with their scores here."""
        versions = ModelStore(self.config.folder / MODELS).versions()
        rows = [version_cells(each) for each in reversed(versions)]
        if not rows:
            return []
        body = table("The models that this site has received", VERSION_COLUMNS, rows)
        return [Section(MODELS_ID, "Models", body)]

    def _log(self) -> list[AuditLine]:
        """Return the last lines of the audit log."""
        lines = last_lines(self.config.folder / AUDIT, RECENT_BYTES)
        return [parse_line(each.decode(errors="replace")) for each in lines if each]

    def _now(self, lines: Sequence[AuditLine]) -> str:
        """Return whether the agent answers, when it was last asked, and what needs attention."""
        answers = agent_answers(self.config.socket_path)
        state = ("Ready", ": the agent answers requests.") if answers else ("Off", ": the agent does not run.")
        counts = Counter(str(each.get("outcome", "damaged")) for each in lines)
        last = _moment(lines[-1]) if lines else None
        known: list[tuple[str, Words]] = [
            ("last request", None if last is None else ago(last, duration(time.time() - last) + " ago")),
            ("of the last requests", ", ".join(f"{count} {name}" for name, count in counts.items()) or None),
            ("model in use", ModelStore(self.config.folder / MODELS).current()),
        ]
        remedy = [] if answers else [f"start it with coterie federate client --folder {self.config.folder}"]
        parts = [
            paragraph(strong(state[0]), state[1], kind=f"state {'running' if answers else 'silent'}"),
            facts(known),
        ]
        attention = [*remedy, *expiry_warnings(self.config.folder)]
        parts += [bullets(attention)] if attention else []
        return join(parts)


def _requests(lines: Sequence[AuditLine]) -> str:
    """Return the last requests, the newest first."""
    if not lines:
        return paragraph("It was asked nothing yet.")
    rows = [audit_cells(each) for each in reversed(lines[-SHOWN:])]
    return table("The last requests, and what left the site", list(COLUMNS.values()), rows)


def _moment(line: Mapping[str, object]) -> float | None:
    """Return when a request was answered, in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(line.get("time"))).timestamp()
    except ValueError:
        return None
