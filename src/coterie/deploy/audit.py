"""The audit log of a site: what it was asked and what left it, one JSON line per message, written before the reply.

Lines are only ever appended. If a line cannot be written, nothing leaves the site.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from coterie.errors import FederationError
from coterie.protocol.report import Report
from coterie.protocol.task import Fit, Task
from coterie.terminal import cell

AUDIT = "audit.jsonl"
"""The name of the log in a site's folder."""

AuditLine = dict[str, Any]


class Audit:
    """The growing log of one site; each line is on disk when ``write`` returns."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, line: AuditLine) -> None:
        """Append one line; raise an error if it cannot be kept."""
        content = (json.dumps(line) + "\n").encode()
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
            try:
                size = os.fstat(file).st_size
                torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                content = b"\n" * torn + content
                if os.write(file, content) != len(content):
                    raise OSError("the line was not written as a whole")
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise FederationError(f"the audit log cannot be written ({error.strerror or error})") from error


def read_audit(path: str | Path) -> list[AuditLine]:
    """Return all lines of a log; a damaged line has the outcome ``damaged``."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FederationError(
            f"the audit log {path} cannot be read ({error.strerror}); check its permissions"
        ) from None
    return [parse_line(each) for each in text.split("\n") if each]


def parse_line(text: str) -> AuditLine:
    """Return a line of the log; one that is damaged says so."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    return line if isinstance(line, dict) else {"outcome": "damaged", "reason": text[:80]}


def task_summary(task: Task) -> str:
    """Return a short description of a task.

    >>> task_summary(Task(fit=(Fit(steps=5, lr=0.1),)))
    'train all: 5 steps of 32, lr 0.1; report params of all'
    """
    choose = [f"choose by {' and '.join(type(score).__name__ for score in task.choose)}"] if task.choose else []
    return "; ".join([*choose, *map(_fit_summary, task.fit), _report_summary(task.report)])


def _fit_summary(fit: Fit) -> str:
    given = {"steps": fit.minibatches(0) if fit.epochs is None else fit.steps, "epochs": fit.epochs}
    length = " or ".join(f"{number} {unit}" for unit, number in given.items() if number is not None)
    rate = "the model's lr" if fit.lr is None else f"lr {fit.lr:g}"
    terms = "".join(f", {type(term).__name__}" for term in fit.terms)
    half = "" if fit.half is None else f", half {fit.half}"
    return f"train {fit.part}: {length} of {fit.batch}, {rate}{terms}{half}"


def _report_summary(report: Report) -> str:
    sample = "" if report.sample is None else f" on examples {report.sample.begin} to {report.sample.end}"
    sample += "" if report.half is None else f" on half {report.half}"
    losses = "differences of losses" if report.differences else "losses"
    bounded = "" if report.bounded is None else f"{report.bounded} "
    asked = [
        f"params of {report.params}" if report.params else "",
        f"{bounded}{losses}{sample}" if report.losses else "",
        f"metrics on {report.evaluate_on}" if report.evaluate_on else "",
        f"the metric {report.metric}" if report.metric else "",
        f"the array of {report.describe.function}" if report.describe else "",
    ]
    return f"report {', '.join(filter(None, asked)) or 'nothing'}"


COLUMNS = {
    "time": "time",
    "run": "run",
    "round": "round",
    "asked": "asked",
    "outcome": "outcome",
    "left": "what left",
    "bytes_out": "bytes",
    "seconds": "s",
}
WIDE = {"asked": 3, "outcome": 2, "left": 2}
"""The columns of sentences and their shares of the width that the other columns leave."""

NARROW, WIDEST = 24, dict.fromkeys(WIDE, 500)
"""The most letters in a cell: a server chooses the name of a run, which must leave room for the sentences."""


def audit_table(lines: Iterable[AuditLine]) -> Table:
    """Return the log as a table with one row per message."""
    table = Table(box=box.SIMPLE_HEAD)
    for key, title in COLUMNS.items():
        number = key in ("round", "bytes_out", "seconds")
        share = WIDE.get(key)
        table.add_column(
            title, justify="right" if number else "left", ratio=share, no_wrap=share is None, overflow="fold"
        )
    for line in lines:
        longest = (WIDEST.get(key, NARROW) for key in COLUMNS)
        table.add_row(*(cell(text, longest=most) for text, most in zip(audit_cells(line), longest, strict=True)))
    return table


def audit_cells(line: AuditLine) -> list[str]:
    """Return the cells of a line of the log, in the order of ``COLUMNS``."""
    ended = ": ".join(str(line[key]) for key in ("outcome", "reason") if line.get(key))
    when = str(line.get("time") or "").partition(".")[0].replace("T", " ")
    shown = {**line, "outcome": ended, "time": when, "asked": line.get("asked") or line.get("kind")}
    return [_cell_text(shown.get(key)) for key in COLUMNS]


def _cell_text(value: Any) -> str:
    """Return the text of one cell, for any value that a line may hold."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shape_text(shape)}" for name, shape in value.items())
    return "" if value is None else str(value)


def _shape_text(shape: Any) -> str:
    return "x".join(map(str, shape)) if isinstance(shape, list) else str(shape)
