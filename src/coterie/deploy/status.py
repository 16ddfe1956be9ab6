"""The status of a federation's run: the file ``status.json``, which the run keeps up to date, and its table."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.deploy.logs import FACTS
from coterie.errors import CoterieError
from coterie.experiments.run_folder import load_labels
from coterie.experiments.summary import load_clusters
from coterie.files import write_atomically
from coterie.terminal import cell, line

_log = logging.getLogger(__name__)

EXCHANGES = "exchanges.jsonl"
"""The file of a run that records how long each exchange took."""

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"
LONGEST_NAME, LONGEST_ERROR = 100, 800
"""The most letters shown of a run's name, and of its error."""

Status = Mapping[str, Any]
"""The content of ``status.json``."""


class StatusBoard:
    """The file ``status.json`` of a run, kept up to date by the process of the run."""

    def __init__(self, path: Path, run: str, out: str, sites: tuple[str, ...]) -> None:
        self.path = path
        self.status: dict[str, Any] = {
            "run": run,
            "out": out,
            "state": WAITING,
            "process": [os.getpid(), _start_time(os.getpid())],
            "sites": {name: {"now": "not asked yet"} for name in sites},
            "notes": [],
        }

    def update(self, **news: Any) -> None:
        """Change some entries and write the file."""
        self.status |= news
        write_atomically(self.path, (json.dumps(self.status, indent=2) + "\n").encode())

    def sites(self, news: Mapping[str, str]) -> None:
        """Record the news of some sites."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.update(sites={**self.status["sites"], **{name: {"now": what, "when": now} for name, what in news.items()}})

    @contextmanager
    def recording_end(self) -> Iterator[None]:
        """Record how the block ends, also in the log: done, or failed with the error."""
        run = {FACTS: {"run": self.status["run"]}}
        try:
            yield
        except CoterieError as error:
            self.update(state=FAILED, error=str(error))
            _log.error("the run failed: %s", error, extra=run)
            raise
        except Exception as error:
            self.update(state=FAILED, error=f"internal error: {type(error).__name__}: {error}; please report it")
            _log.exception("the run failed", extra=run)
            raise
        self.update(state=DONE)
        _log.info("the run is done", extra=run)


def read_board(path: Path) -> dict[str, Any] | None:
    """Return the status in a file; None if there is no file yet or it holds no status."""
    try:
        status = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return status if _is_status(status) else None


def _is_status(value: Any) -> bool:
    """Return whether a value has all entries that a status has from the start, each of its type."""
    kinds = {"run": str, "out": str, "state": str, "process": list, "sites": dict, "notes": list}
    if not isinstance(value, dict) or not all(isinstance(value.get(name), kind) for name, kind in kinds.items()):
        return False
    return len(value["process"]) == 2 and all(isinstance(site, dict) for site in value["sites"].values())


def mark_stopped(path: Path) -> None:
    """Record that a run was stopped on purpose, after its process has ended."""
    status = read_board(path)
    if status is not None and status["state"] != DONE:
        content = {**status, "state": STOPPED, "error": "it was stopped"}
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def is_over(status: Status) -> bool:
    """Return whether the run is done, failed or stopped."""
    return status["state"] in (DONE, FAILED, STOPPED)


def is_alive(status: Status) -> bool:
    """Return whether the process of the run exists, and is not another that has its number now."""
    number, started = status["process"]
    return started is not None and _start_time(number) == started


def _start_time(number: int) -> str | None:
    """Return when a process began, in the system's count; None if it has ended, even if its parent has not noticed."""
    try:
        facts = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if facts[0] in "ZX" else facts[19]


def status_table(
    status: Status | None,
    online: Mapping[str, str],
    ledger: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> Table:
    """Return a table of the sites, with connection, last news, cluster and model of each; below it notes and warnings.

    ``ledger`` is that of deliveries.
    """
    models = (ledger or {}).get("sites", {})
    notes = [*([] if status is None else status["notes"]), *warnings]
    table = Table(
        title=None if status is None else cell(headline(status)),
        title_justify="left",
        caption=Text("\n").join(cell(note) for note in notes) if notes else None,
        caption_justify="left",
    )
    for title in ("site", "connection", "last", "when", "cluster", "model"):
        table.add_column(title)
    sites = {} if status is None else status["sites"]
    clusters = {} if status is None else clusters_of(status, ledger or {})
    for name in sorted({*online, *sites}):
        last, model = sites.get(name, {}), models.get(name, {})
        cells = (online.get(name, "unknown"), last.get("now", ""), last.get("when", ""), str(clusters.get(name, "")))
        table.add_row(*map(cell, (name, *cells, model_text(model))))
    return table


def model_text(entry: Mapping[str, Any]) -> str:
    """Return which version a site has, and whether it uses another or waits for one."""
    version = str(entry.get("version", ""))
    used = version if entry.get("current", True) else f"{version}, not in use"
    waits = entry.get("away") or entry.get("silent")
    late = f"waits for a{' newer' * bool(version)} one" if waits else ""
    late += f", tried again at {entry.get('next')}" if entry.get("silent") else ""
    return "; ".join(filter(None, (used, late))) or str(entry.get("missing", ""))


def headline(status: Status) -> str:
    """Return how a run stands, in a line."""
    state = status["state"] if is_over(status) or is_alive(status) else "interrupted"
    record = status.get("record")
    at = f", round {record['round'] + 1} of {status['rounds']}" if record else ""
    beside = {} if is_over(status) else status.get("beside", {})
    if beside:
        at += f"; to compare with, {beside['algorithm']} is in round {beside['round'] + 1} of {beside['rounds']}"
    if state == WAITING and "awaited" in status:
        at = f" {status['awaited']}"
    problem = f": {status['error']}" if "error" in status else ""
    return f"run {line(status['run'], LONGEST_NAME)} {state}{at}{line(problem, LONGEST_ERROR)}"


def clusters_of(status: Status, ledger: Mapping[str, Any]) -> dict[str, int]:
    """Return the cluster of each site after the last saved round, or in which a delivery of the run placed it later."""
    out = Path(status["out"])
    if (out / "clients.csv").exists():
        return {**load_clusters(out), **_placed(status, ledger)}
    labels = load_labels(out)
    if not len(labels):
        return {}
    return dict(zip(status["sites"], labels[-1].tolist(), strict=True))


def _placed(status: Status, ledger: Mapping[str, Any]) -> dict[str, int]:
    """Return the cluster of each site that has the version of the ledger, where this is one of the run's."""
    if ledger.get("run") != status["out"]:
        return {}
    entries = {name: each for name, each in ledger["sites"].items() if each.get("version") == ledger.get("version")}
    return {name: each["cluster"] for name, each in entries.items() if isinstance(each.get("cluster"), int)}
