"""``federate status --watch``: the status of a federation, shown again and again until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.table import Table

from coterie.deploy.certificates import expiry_warnings
from coterie.deploy.connections import Connections
from coterie.deploy.delivery import read_ledger
from coterie.deploy.server_folder import ServerFolder
from coterie.deploy.status import read_board, status_table

PAUSE, CONNECTIONS = 1.0, 10.0
"""Seconds between two looks at the run, and at the connections: each of the latter starts a program of Flower's."""


def watch_status(server: ServerFolder, console: Console) -> None:
    """Show the status until Ctrl-C; where there is no terminal, print it whenever it has changed."""
    if not console.is_terminal:
        print_changes(server, console)
        return
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        for table in tables(server):
            live.update(table, refresh=True)
            time.sleep(PAUSE)


def print_changes(server: ServerFolder, console: Console) -> None:
    """Print the status until Ctrl-C, each time that it has changed."""
    before = ""
    with suppress(KeyboardInterrupt):
        for table in tables(server):
            with console.capture() as drawn:
                console.print(table)
            if drawn.get() != before:
                before = drawn.get()
                console.print(table)
            time.sleep(PAUSE)


def tables(server: ServerFolder) -> Iterator[Table]:
    """Yield the table of the status as it is now, without end; connections may be some seconds old."""
    warnings = expiry_warnings(server.folder)
    with ThreadPoolExecutor(1) as background:
        connections = Connections(server, background, CONNECTIONS)
        while True:
            ledger = read_ledger(server.ledger)
            yield status_table(read_board(server.board), connections.known(), ledger, warnings)
