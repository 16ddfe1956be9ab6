"""How the server is: what its ``/health`` and ``/metrics`` say about its programs, its run and its certificates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.deploy.certificates import expiry_warnings
from coterie.deploy.health import days_left, of_programs
from coterie.deploy.monitoring import Health, Measure
from coterie.deploy.processes import Program
from coterie.deploy.status import EXCHANGES, FAILED, Status, is_alive, is_over, read_board
from coterie.files import last_lines

LAST_BYTES = 4096
"""Bytes at the end of a file in which its last line is."""

ANSWERED, ASKED = "answered", "asked"
SCORES = ("accuracy", "macro_f1", "rmse", "loss")
"""The scores of a round that are measures, where it has them."""


def server_health(folder: Path, board: Path, programs: Sequence[Program]) -> Health:
    """Return how the server is: its programs, its run, its certificates."""
    status = read_board(board)
    problems, measures = of_programs(programs)
    measures += days_left(folder)
    facts: dict[str, Any] = {}
    if status is not None:
        run_problems, run_measures = _of_run(status)
        problems, measures = problems + run_problems, measures + run_measures
        facts = {"run": status["run"], "state": status["state"], "sites": status["sites"]}
    return Health(problems, expiry_warnings(folder), facts, measures)


def _of_run(status: Status) -> tuple[list[str], list[Measure]]:
    """Return what is wrong with the run that goes on or was the last, and its measures."""
    going = not is_over(status) and is_alive(status)
    problems = [f"run {status['run']} failed: {status.get('error')}"] if status["state"] == FAILED else []
    if not going and not is_over(status):
        problems.append(f"run {status['run']} was interrupted; the server resumes it when it is started again")
    measures = [Measure("run_going", "Whether a run goes on", going)]
    record = status.get("record")
    if record is not None:
        measures.append(Measure("run_round", "Rounds that are done", record["round"] + 1))
        measures.append(Measure("run_rounds", "Rounds of the run", status["rounds"]))
        measures.append(Measure("run_missing", "Sites missing in the last round", len(record.get("missing", {}))))
        found = {name: record[name] for name in SCORES if isinstance(record.get(name), int | float)}
        text = "Score of the last evaluated round"
        measures += [Measure("run_score", text, value, {"score": name}) for name, value in found.items()]
    for name, site in status["sites"].items():
        good = site.get("now") in (ANSWERED, ASKED)
        text = "Whether a site answered the last time; while it is asked, that it was reached"
        measures.append(Measure("site_answered", text, good, {"site": name}))
    return problems, measures + _exchange(Path(status["out"]))


def _exchange(out: Path) -> list[Measure]:
    """Return the measures of a run's last exchange."""
    try:
        last = json.loads(last_lines(out / EXCHANGES, LAST_BYTES)[-1])
        return [
            Measure("exchange_seconds", "Duration of the last exchange with the sites", last["total"]),
            Measure("exchange_bytes", "Bytes of the last exchange", last["bytes_down"], {"direction": "down"}),
            Measure("exchange_bytes", "Bytes of the last exchange", last["bytes_up"], {"direction": "up"}),
        ]
    except (ValueError, IndexError, KeyError, TypeError):
        return []
