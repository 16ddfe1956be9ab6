"""A federation as something that is watched, on its server: the run, the sites and what each has answered."""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.deploy.certificates import expiry_warnings
from coterie.deploy.connections import UNKNOWN, Connections
from coterie.deploy.delivery import read_ledger
from coterie.deploy.run_control import time_since_order
from coterie.deploy.server_folder import HISTORY, ServerFolder
from coterie.deploy.status import (
    EXCHANGES,
    Status,
    clusters_of,
    headline,
    is_alive,
    is_over,
    model_text,
    read_board,
)
from coterie.experiments.records import Record
from coterie.files import last_lines
from coterie.reporting.durations import duration
from coterie.reporting.markup import Markup, join
from coterie.reporting.report.page import Section
from coterie.watching.marks import mark_of
from coterie.watching.pieces import Words, ago, bar, bullets, facts, paragraph, strong, table, until
from coterie.watching.pieces import late as late_words
from coterie.watching.run_sections import NOW, last_round, missing_of, run_sections
from coterie.watching.run_watch import report_sections
from coterie.watching.standing import Standing, standing_of
from coterie.watching.view import View

SITES, NOTES = "sites", "notes"
"""The ids of the sections."""

ASKED = "asked"
"""What the status says of a site that has been asked and has not answered."""

CONNECTIONS = 60.0
"""Seconds between two looks at the connections, while somebody looks at the page."""

RECENT_BYTES = 1 << 16
"""Bytes at the end of the file of exchanges that say how fast sites usually answer."""

LATE = 3.0
"""A site is late when it takes this many times as long as it, or the others, usually do."""

LEAST = 5.0
"""Seconds before a site is called late."""


@dataclass(frozen=True)
class ServerWatch:
    """The folder of a server."""

    server: ServerFolder
    connections: Connections

    @classmethod
    def of(cls, folder: Path) -> ServerWatch:
        """Return the watch of a server's folder."""
        server = ServerFolder.of(folder)
        return cls(server, Connections(server, ThreadPoolExecutor(1), CONNECTIONS))

    def mark(self) -> Hashable:
        """Return the dates and sizes of the files of the server and of its run, and the connections."""
        server, status = self.server, read_board(self.server.board)
        files = [server.board, server.order, server.ledger, server.folder / HISTORY, server.folder / "server.crt"]
        run = [] if status is None else [Path(status["out"])]
        alive = status is not None and is_alive(status)
        return mark_of(*files, *run), alive, tuple(self.connections.known().items())

    def now(self) -> View:
        """Return how the federation is."""
        status, warnings = read_board(self.server.board), expiry_warnings(self.server.folder)
        standing = None if status is None else standing_of(Path(status["out"]))
        found = Federation(self.server, status, standing, self.connections.known(), warnings)
        sections = [found.now(), found.sites()]
        sections += [] if standing is None else [each for each in run_sections(standing) if each.id != NOW]
        name = self.server.folder.name if status is None else status["run"]
        return View(f"Federation: {name}", tuple(sections), found.again(), status is not None and is_over(status))

    def report(self) -> list[Section]:
        """Return the report of its run, as far as it has come."""
        status = read_board(self.server.board)
        return [] if status is None else report_sections(Path(status["out"]))


@dataclass(frozen=True)
class Federation:
    """What is known of a federation at a moment."""

    server: ServerFolder
    status: Status | None
    standing: Standing | None
    connections: Mapping[str, str]
    warnings: Sequence[str] = ()
    clock: float = field(default_factory=time.time)

    def now(self) -> Section:
        """Return how the run is, and what needs attention."""
        parts = [self._state_line()]
        going = self.status is not None and not is_over(self.status)
        if self.standing is not None and self.standing.rounds is not None:
            parts.append(bar("rounds that are done", self.standing.done, self.standing.rounds))
        if self.standing is not None and self.standing.records:
            parts.append(facts(last_round(self.standing)))
        late = self.late() if going else {}
        lines = [f"{name} is late: {why}" for name, why in late.items()]
        lines += [*self.warnings, *([] if self.status is None else self.status["notes"])]
        parts += [bullets(lines)] if lines else []
        return Section(NOW, "Now", join(parts))

    def _state_line(self) -> Markup:
        """Return the state of the run in a sentence, with the remedy where it stopped."""
        if self.status is None:
            ordered = time_since_order(self.server) is not None
            said = "an order was given; it begins" if ordered else "no run was ordered yet"
            return paragraph(strong("Waiting"), f": {said}. coterie federate run orders one.", kind="state waiting")
        words: list[Words] = [strong(headline(self.status).capitalize())]
        if not is_over(self.status) and not is_alive(self.status):
            words.append("; the server resumes it when it is started again: coterie federate server")
        elif not is_over(self.status) and self.standing is not None and self.standing.ends is not None:
            words += [
                ", about ",
                until(self.standing.ends, duration(max(0.0, self.standing.ends - self.clock))),
                " left",
            ]
        state = self.status["state"] if is_over(self.status) or is_alive(self.status) else "silent"
        return paragraph(*words, ".", kind=f"state {state}")

    def late(self) -> dict[str, str]:
        """Return the sites that take far longer to answer than is usual, with the reason to think so."""
        usual = self.usual()
        typical = sorted(usual.values())[len(usual) // 2] if usual else None
        found: dict[str, str] = {}
        for name, site in self._sites().items():
            asked = _moment(site.get("when"))
            if site.get("now") != ASKED or asked is None:
                continue
            waited, normal = self.clock - asked, usual.get(name, typical)
            if waited > max(LEAST, LATE * (normal or 0)):
                known = "" if normal is None else f", usually answers in {duration(normal)}"
                found[name] = (
                    f"asked {duration(waited)} ago{known}; given up after {duration(self.server.config.timeout)}"
                )
        return found

    def usual(self) -> dict[str, float]:
        """Return in how many seconds each site answered, as a median of the last exchanges."""
        if self.status is None:
            return {}
        times: dict[str, list[float]] = {}
        for content in last_lines(Path(self.status["out"]) / EXCHANGES, RECENT_BYTES):
            with suppress(ValueError, AttributeError, TypeError):
                for name, seconds in json.loads(content)["answered"].items():
                    times.setdefault(name, []).append(float(seconds))
        return {name: sorted(some)[len(some) // 2] for name, some in times.items()}

    def sites(self) -> Section:
        """Return the table of sites."""
        usual, late = self.usual(), self.late()
        records: Sequence[Record] = () if self.standing is None else self.standing.records
        missed = [name for record in records for name in missing_of(record)]
        ledger = read_ledger(self.server.ledger)
        models = ledger.get("sites", {})
        clusters = {} if self.status is None else clusters_of(self.status, ledger)
        rows: list[tuple[Words, ...]] = []
        for name in sorted({*self.server.config.sites, *self._sites()}):
            site = self._sites().get(name, {})
            when, now = _moment(site.get("when")), str(site.get("now", "not asked yet"))
            rows.append(
                (
                    name,
                    self.connections.get(name, UNKNOWN),
                    late_words(f"late: {late[name]}") if name in late else now,
                    None if when is None else ago(when, duration(self.clock - when) + " ago"),
                    duration(usual[name]) if name in usual else None,
                    missed.count(name),
                    clusters.get(name),
                    model_text(models.get(name, {})),
                )
            )
        heads = ("site", "connection", "last news", "when", "usually answers in", "rounds missed", "cluster", "model")
        return Section(SITES, "Sites", table("All sites of the federation", heads, rows))

    def _sites(self) -> Mapping[str, Mapping[str, Any]]:
        return {} if self.status is None else self.status["sites"]

    def again(self) -> float | None:
        """Return when to look again though nothing changed: soon while a site is awaited, as it may become late."""
        going = self.status is not None and not is_over(self.status) and is_alive(self.status)
        waits = any(site.get("now") == ASKED for site in self._sites().values())
        return self.clock + LEAST if going and waits else None


def _moment(text: object) -> float | None:
    """Return a moment of the status in seconds since 1970."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
