"""A run of a federation from its server: ordered, followed and stopped, one at a time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.deploy import flower
from coterie.deploy.delivery import read_ledger
from coterie.deploy.deployment import SCHEMA
from coterie.deploy.order import DELIVER, DRIFT, Order
from coterie.deploy.order_lock import ordering
from coterie.deploy.processes import wait_until
from coterie.deploy.run_names import find_run
from coterie.deploy.server_folder import HISTORY, ServerFolder
from coterie.deploy.status import (
    DONE,
    LONGEST_ERROR,
    LONGEST_NAME,
    WAITING,
    Status,
    is_alive,
    is_over,
    mark_stopped,
    read_board,
)
from coterie.errors import FederationError, RunFolderError, UsageError
from coterie.experiments import building
from coterie.experiments.run_folder import CONFIG, SUMMARY, load_rounds, load_summary, no_finished_run
from coterie.experiments.session import Progress
from coterie.experiments.settings import Settings, load_settings
from coterie.experiments.sweep import slug
from coterie.experiments.warm_start import load_earlier
from coterie.files import write_atomically
from coterie.terminal import line

_log = logging.getLogger(__name__)

LEAST_PATIENCE = 300.0
"""The least seconds that a run waits for its sites, even if a round waits for less."""

PAUSE, SILENCE, LONGEST_START = 0.3, 60.0, 600.0
"""Seconds between two looks at the status of a run; seconds after which Flower is asked whether a run that says nothing
is still about to begin, and after which it is given up.
"""

FINISHED = "finished"
"""How Flower's word for a run begins that is over, whatever its end was."""


def make_order(
    server: ServerFolder,
    settings: Settings,
    out: Path | None = None,
    resume: bool = False,
    *,
    earlier: Path | None = None,
    tables: Settings | None = None,
) -> Order:
    """Return the order for these settings; refuse now what the run would refuse later.

    ``earlier`` is the folder of a finished run whose models and clusters this one begins with; ``tables`` are the
    settings if the sites turn out to have tables, where that is not known yet.
    """
    folder = (out or server.runs / f"{slug(settings.algorithm)}-seed-{settings.seed}").resolve()
    check_free(server, folder if resume else None)
    if (folder / CONFIG).exists() and not resume:
        raise RunFolderError(
            f"{folder} already holds a run; continue it with --resume, give another --out, or a --name for a schedule"
        )
    if resume and not (folder / CONFIG).exists():
        raise RunFolderError(f"{folder} holds no run to resume; correct --out, or leave --resume out to begin one")
    schema = server.folder / SCHEMA
    order = replace(
        new_order(server, settings, folder),
        resume=resume,
        schema=str(schema) if schema.is_file() else None,
        earlier=None if earlier is None else str(earlier.resolve()),
        tables=None if tables is None else tables.table(),
    )
    for kind in (False, True):
        building.build_algorithm(order.experiment(kind))
    order.begins_with()
    return order


def new_order(server: ServerFolder, settings: Settings, out: Path) -> Order:
    """Return an order with what the server's configuration says about the sites."""
    config = server.config
    return Order(
        settings=settings.table(),
        out=str(out),
        board=str(server.board),
        sites=config.sites,
        minimum=config.needed,
        timeout=config.timeout,
        patience=max(config.timeout, LEAST_PATIENCE),
        quorum=config.quorum,
    )


def drift_order(server: ServerFolder, run: Path) -> Order:
    """Return the order to look how well the models of a finished run serve the sites now."""
    check_free(server)
    settings = load_settings(load_earlier(run).folder / CONFIG, {})
    schema = run.resolve() / SCHEMA
    return replace(
        new_order(server, settings, run.resolve()),
        job=DRIFT,
        history=str(server.folder / HISTORY),
        schema=str(schema) if schema.is_file() else None,
    )


def make_delivery(server: ServerFolder, run: str | None = None, again: bool = False) -> Order:
    """Return the order to deliver the models of a finished run, by its name or folder; default: the last one.

    ``again``: also to sites that have them already.
    """
    check_free(server)
    folder = _finished_run(server, run)
    return replace(
        new_order(server, load_settings(folder / CONFIG, {}), folder),
        schema=str(folder / SCHEMA) if (folder / SCHEMA).is_file() else None,
        job=DELIVER,
        again=again,
    )


def _finished_run(server: ServerFolder, run: str | None) -> Path:
    """Return the folder of a finished run: of this name or path, or the last one that was delivered or ordered."""
    status = read_board(server.board)
    last = read_ledger(server.ledger).get("run") if status is None else status["out"]
    if run is None and not isinstance(last, str):
        raise UsageError(f"{server.folder} has no run to deliver; name its folder, or order one with federate run")
    folder = (Path(str(last)) if run is None else find_run(server.runs, run)).resolve()
    if not (folder / SUMMARY).exists():
        raise no_finished_run(folder)
    return folder


def check_free(server: ServerFolder, resumed: Path | None = None) -> None:
    """Refuse to order anything while a run goes on, is about to begin, or was interrupted, unless that is ``resumed``.

    An order in the place of an interrupted run would make the server forget it.
    """
    if is_starting(server):
        raise UsageError("an order was given a moment ago; wait until it begins: coterie federate status shows it")
    now = current_run(server)
    if now is not None:
        raise UsageError(f"run {line(now['run'], 100)} goes on; wait for it, or stop it with coterie federate stop")
    past = interrupted_run(server)
    if past is not None and (resumed is None or Path(past["out"]).resolve() != resumed):
        raise UsageError(
            f"run {line(past['run'], 100)} was interrupted, and goes on when the server is started again: coterie "
            "federate server; to give it up, coterie federate stop"
        )


def submit(server: ServerFolder, order: Order) -> None:
    """Have Flower carry out an order, if none goes on; its file stays until the run is over."""
    with ordering(server.home):
        check_free(server, Path(order.out).resolve() if order.resume else None)
        _begin(server, order)


def _begin(server: ServerFolder, order: Order) -> None:
    """Have Flower carry out an order."""
    app = server.folder / "app"
    app.mkdir(exist_ok=True)
    for name, text in flower.bundle().items():
        (app / name).write_text(text)
    files = (server.board, server.number, server.order)
    before = {path: path.read_bytes() for path in files if path.exists()}
    for past in (server.board, server.number):
        past.unlink(missing_ok=True)
    order.save(server.order)
    try:
        answer = server.ask(flower.start_run(app, server.order))
    except FederationError:
        if not order.resume:
            server.order.unlink()
            for path, content in before.items():
                write_atomically(path, content)
        raise
    write_atomically(server.number, json.dumps({"run": str(answer["run-id"])}).encode())


def interrupted_run(server: ServerFolder) -> Status | None:
    """Return the status of a run that has neither a process nor an end; None if there is none."""
    status = read_board(server.board)
    lost = server.order.exists() and status is not None and not is_over(status) and not is_alive(status)
    return status if lost else None


def resume_interrupted(server: ServerFolder) -> None:
    """Resume the run that was not over when the server ended."""
    status = read_board(server.board)
    if server.order.exists() and not (status is not None and is_over(status)):
        _log.info("going on with the run that was interrupted")
        _begin(server, replace(Order.load(server.order), resume=True))


def current_run(server: ServerFolder) -> Status | None:
    """Return the status of the run that goes on now; None if none does."""
    status = read_board(server.board)
    return status if status is not None and not is_over(status) and is_alive(status) else None


def is_starting(server: ServerFolder) -> bool:
    """Return whether an order was given and its run is about to begin: it has no status, and has not ended.

    A busy machine takes minutes to start the run's process, so after a minute it is Flower that knows.
    """
    age = time_since_order(server)
    return age is not None and (age < SILENCE or not _has_ended(server))


def time_since_order(server: ServerFolder) -> float | None:
    """Return the seconds since an order of which there is no status yet; None if there is none, or an old one."""
    with suppress(OSError):
        age = time.time() - server.order.stat().st_mtime
        return age if age < LONGEST_START and not server.board.exists() else None
    return None


def _has_ended(server: ServerFolder) -> bool:
    """Return whether Flower says that the run of the last order is over, or was never given one."""
    try:
        number = json.loads(server.number.read_text())["run"]
    except OSError:
        return True
    runs = server.ask(flower.show_run(number))["runs"]
    return all(str(run["status"]).startswith(FINISHED) for run in runs)


def follow(server: ServerFolder, progress: Progress, tell: Callable[[str], None] = lambda note: None) -> dict[str, Any]:
    """Wait for the submitted run; pass each round to ``progress`` and each note to ``tell``, return the summary."""
    rounds, notes, waited, until = 0, 0, None, time.monotonic() + SILENCE
    while True:
        status = read_board(server.board)
        if status is not None:
            records = load_rounds(Path(status["out"]))
            for record in records[rounds:]:
                progress(record)
            for note in status["notes"][notes:]:
                tell(note)
            if status.get("awaited") not in (None, waited) and status["state"] == WAITING:
                waited = status["awaited"]
                tell(f"waiting {waited}")
            rounds, notes = max(rounds, len(records)), max(notes, len(status["notes"]))
            if is_over(status):
                return _summary(status)
        silent = status is None and time.monotonic() > until
        if silent or (status is not None and not is_alive(status)):
            check_not_lost(server)
            until += SILENCE
        time.sleep(PAUSE)


def check_not_lost(server: ServerFolder) -> None:
    """Raise an error if the run that was submitted has neither a process nor an end, and is not about to begin.

    What was read of it before is old: it may have begun or ended since.
    """
    starting = is_starting(server)
    status = read_board(server.board)
    if not starting and (status is None or not (is_over(status) or is_alive(status))):
        raise FederationError(
            f"the run's process is gone; look at {server.folder / 'logs' / 'superlink.log'}, and start the server "
            "again: it goes on from the last checkpoint"
        )


def _summary(status: Status) -> dict[str, Any]:
    """Return the summary of a run that is over; raise its error if it failed or was stopped."""
    if status["state"] != DONE:
        error = line(status.get("error"), LONGEST_ERROR)
        raise FederationError(f"run {line(status['run'], LONGEST_NAME)} {status['state']}: {error}")
    summary = load_summary(Path(status["out"]))
    assert summary is not None, "a run that is done has a summary"
    return summary


def stop(server: ServerFolder) -> None:
    """Stop the run that goes on, or that was interrupted; its last checkpoint stays, and no server resumes it."""
    if interrupted_run(server) is not None:
        server.order.unlink(missing_ok=True)
        mark_stopped(server.board)
        return
    if current_run(server) is None:
        raise UsageError("no run goes on; coterie federate status shows what there was")
    server.order.unlink(missing_ok=True)
    server.ask(flower.stop_run(json.loads(server.number.read_text())["run"]))
    wait_until(lambda: current_run(server) is None, [], "the run's process goes on")
    mark_stopped(server.board)
