"""What Flower starts on the server for a run."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.deploy.flower import ORDER, wait_less
from coterie.deploy.flower_exchange import GridPost, PostExchange
from coterie.deploy.message_keys import server_channels
from coterie.deploy.order import Order
from coterie.deploy.processes import end_with_parent
from coterie.deploy.status_file import Board
from coterie.deploy.training import carry_out

app = ServerApp()
EXCHANGES = "exchanges.jsonl"
"""The file of a run that says how long each exchange took."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the order that the run's configuration names.

    Flower would leave this process alone when its SuperLink is killed; a second one, started to go on with the run,
    must find nobody who writes to the same folder.
    """
    end_with_parent(signal.SIGKILL)
    wait_less()
    path = Path(str(context.run_config[ORDER]))
    order = Order.load(path)
    board = Board(Path(order.board), order.run, order.out, order.sites)
    channels = server_channels(path.parent, order.sites)
    timed = partial(note, Path(order.out) / EXCHANGES)
    exchange = PostExchange(GridPost(grid, SimpleQueue()), channels, order.timeout, board.sites, timed)
    carry_out(order, exchange, board)


def note(path: Path, facts: Mapping[str, Any]) -> None:
    """One line more about how long exchanges take."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(facts) + "\n")
