"""The status is shown again and again; where there is no terminal, when it has changed."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from coterie.deploy import watching


def one(text: str) -> Table:
    table = Table()
    table.add_column("site")
    table.add_row(text)
    return table


def test_without_a_terminal_each_change_is_printed_once(monkeypatch):
    def looks(_):
        yield from map(one, ("asked", "asked", "answered", "answered"))
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "tables", looks)
    monkeypatch.setattr(watching, "PAUSE", 0.0)
    console = Console(file=io.StringIO(), width=60)
    watching.watch_status(None, console)  # type: ignore[arg-type]  # the looks are given
    said = console.file.getvalue()
    assert (said.count("asked"), said.count("answered")) == (1, 1)
