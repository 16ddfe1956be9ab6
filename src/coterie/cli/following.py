"""A run of a federation as its terminal shows it, from its order to its end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.terminal import tell

if TYPE_CHECKING:
    from coterie.deploy.order import Order
    from coterie.deploy.server_folder import ServerFolder
    from coterie.experiments.session import Progress


def watched(server: ServerFolder, order: Order, quiet: bool) -> dict[str, Any]:
    """Show the progress of a submitted run to its end; return its summary with the values that a table shows.

    How many rounds there are is known once the run has begun, with its first record.
    """
    from coterie.deploy.run_control import follow
    from coterie.experiments.run_folder import CONFIG, load_rounds
    from coterie.experiments.settings import load_settings
    from coterie.experiments.summary import add_shown
    from coterie.reporting.progress import watch

    out = Path(order.out)
    shown: dict[str, Progress] = {}
    with ExitStack() as bar:

        def progress(record: dict[str, Any]) -> None:
            if not shown:
                shown["bar"] = bar.enter_context(watch(load_settings(out / CONFIG, {}), quiet=quiet))
            shown["bar"](record)

        summary = follow(server, progress, tell)
    return add_shown(summary, load_rounds(out), None)
