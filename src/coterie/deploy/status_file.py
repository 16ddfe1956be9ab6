"""What a federation is doing right now, as a small file that anyone on the server may read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.files import write_atomically

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"


class Board:
    """The file ``status.json`` of a run, kept up to date."""

    def __init__(self, path: Path, run: str, out: str, sites: tuple[str, ...]) -> None:
        self.path = path
        self.told: dict[str, Any] = {
            "run": run,
            "out": out,
            "state": WAITING,
            "process": [os.getpid(), _born(os.getpid())],
            "sites": {name: {"now": "not asked yet"} for name in sites},
            "notes": [],
        }

    def say(self, **news: Any) -> None:
        """Change what it says."""
        self.told |= news
        write_atomically(self.path, (json.dumps(self.told, indent=2) + "\n").encode())

    def sites(self, news: Mapping[str, str]) -> None:
        """What is new of some sites."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.say(sites={**self.told["sites"], **{name: {"now": what, "when": now} for name, what in news.items()}})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The end, good or bad, of what goes on inside."""
        try:
            yield
        except CoterieError as error:
            self.say(state=FAILED, error=str(error))
            raise
        except Exception as error:
            self.say(state=FAILED, error=f"internal error: {type(error).__name__}: {error}; please report it")
            raise
        self.say(state=DONE)


def read_board(path: Path) -> dict[str, Any] | None:
    """What the board says; None where there is none yet, or what is there is none."""
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return told if _is_board(told) else None


def _is_board(told: Any) -> bool:
    """Whether a value has all that a board says from the start, each of its kind."""
    kinds = {"run": str, "out": str, "state": str, "process": list, "sites": dict, "notes": list}
    if not isinstance(told, dict) or not all(isinstance(told.get(name), kind) for name, kind in kinds.items()):
        return False
    return len(told["process"]) == 2 and all(isinstance(site, dict) for site in told["sites"].values())


def is_over(told: Mapping[str, Any]) -> bool:
    """Whether the run has come to its end, good or bad."""
    return told["state"] in (DONE, FAILED, STOPPED)


def mark_stopped(path: Path) -> None:
    """Say of a run whose process is gone that this was meant."""
    told = read_board(path)
    if told is not None and told["state"] != DONE:
        content = {**told, "state": STOPPED, "error": "it was stopped"}
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def is_alive(told: Mapping[str, Any]) -> bool:
    """Whether the process that keeps the board up to date is there, and not another that has its number now."""
    number, born = told["process"]
    return born is not None and _born(number) == born


def _born(number: int) -> str | None:
    """When a process began, in the system's own count; None if it is gone, even if nobody has buried it yet."""
    try:
        facts = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if facts[0] in "ZX" else facts[19]
