"""What a site was asked and what left it, one JSON line for each message: written before a reply leaves.

Lines are only ever added. Where a line cannot be written, nothing leaves.
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
from coterie.protocol.task import Fit, Report, Task
from coterie.terminal import cell

Line = dict[str, Any]


class Audit:
    """The growing log of one site; each line is on disk when ``write`` returns."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, line: Line) -> None:
        """Add one line; an error if it cannot be kept."""
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


def read_audit(path: str | Path) -> list[Line]:
    """All lines; one that is damaged says so in place of its outcome."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FederationError(
            f"the audit log {path} cannot be read ({error.strerror}); check its permissions"
        ) from None
    return [_line(each) for each in text.split("\n") if each]


def _line(text: str) -> Line:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    return line if isinstance(line, dict) else {"outcome": "damaged", "reason": text[:80]}


def task_summary(task: Task) -> str:
    """A task in a few words.

    >>> task_summary(Task(fit=(Fit(steps=5, lr=0.1),)))
    'train all: 5 steps of 32, lr 0.1; report params of all'
    """
    choose = [f"choose by {' and '.join(type(score).__name__ for score in task.choose)}"] if task.choose else []
    return "; ".join([*choose, *map(_pass, task.fit), _report(task.report)])


def _pass(fit: Fit) -> str:
    long = f"{fit.count(0)} steps" if fit.epochs is None else f"{fit.epochs} epochs"
    rate = "the model's lr" if fit.lr is None else f"lr {fit.lr:g}"
    terms = "".join(f", {type(term).__name__}" for term in fit.terms)
    half = "" if fit.half is None else f", half {fit.half}"
    return f"train {fit.part}: {long} of {fit.batch}, {rate}{terms}{half}"


def _report(report: Report) -> str:
    sample = "" if report.sample is None else f" on examples {report.sample.begin} to {report.sample.end}"
    sample += "" if report.half is None else f" on half {report.half}"
    losses = "differences of losses" if report.differences else "losses"
    bounded = "" if report.bounded is None else f"{report.bounded} "
    asked = [
        f"params of {report.params}" if report.params else "",
        f"{bounded}{losses}{sample}" if report.losses else "",
        f"metrics on {report.metrics}" if report.metrics else "",
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
"""The columns of sentences, which share the width that the others leave."""

NARROW, WIDEST = 24, dict.fromkeys(WIDE, 500)
"""Letters of a cell: a name is a server's choice, and must leave the sentences their room."""


def audit_table(lines: Iterable[Line]) -> Table:
    """The log for people, one row a message."""
    table = Table(box=box.SIMPLE_HEAD)
    for key, title in COLUMNS.items():
        number = key in ("round", "bytes_out", "seconds")
        table.add_column(title, justify="right" if number else "left", ratio=WIDE.get(key), no_wrap=key not in WIDE)
    for line in lines:
        ended = ": ".join(str(line[key]) for key in ("outcome", "reason") if line.get(key))
        when = str(line.get("time") or "").partition(".")[0].replace("T", " ")
        shown = {**line, "outcome": ended, "time": when, "asked": line.get("asked") or line.get("kind")}
        table.add_row(*(cell(_words(shown.get(key)), longest=WIDEST.get(key, NARROW)) for key in COLUMNS))
    return table


def _words(value: Any) -> str:
    """What a line says in one column, whoever wrote it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shape(shape)}" for name, shape in value.items())
    return "" if value is None else str(value)


def _shape(shape: Any) -> str:
    return "x".join(map(str, shape)) if isinstance(shape, list) else str(shape)
