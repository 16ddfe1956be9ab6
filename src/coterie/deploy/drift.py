"""Drift: how well each site is served by its model as time goes on, and whether another cluster would serve it better.

A look is two exchanges without training: each site tests the model that serves it on its test data, and reports the
mean loss of all cluster models on its train data with their spread. Every look is kept, so that a site's losses can be
compared over time. A site's losses change when its data do: it reads its file again when its agent is restarted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from coterie.deploy.order import Order
from coterie.deploy.server_run import Sites, reported_sizes, wait_for_sites, with_data
from coterie.deploy.status import RUNNING, StatusBoard
from coterie.errors import FederationError
from coterie.experiments.placement import Trained, load_trained
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report, Sample
from coterie.protocol.stack import UNPLACED
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.contract import State
from coterie.server.exchange import Meter
from coterie.server.roster import with_clients
from coterie.server.serving import evaluate
from coterie.terminal import cell
from coterie.typing import Array
from coterie.wire.remote import Remote

EVERYTHING = Sample(0, 1 << 40)
"""All of a client's train data; the losses of a sample come with their spread."""

CLEAR = 2.0
"""Another cluster is said to be better if its loss is lower by more than this many standard errors."""

Line = dict[str, Any]


def look_for_drift(order: Order, sites: Sites, board: StatusBoard) -> list[Line]:
    """Ask the sites of an order how well the models of its run serve them now, and add their answers to its history."""
    assert order.history is not None, "an order to look for drift names it"
    with board.recording_end():
        trained = load_trained(Path(order.out))
        descriptions, misfits = with_data(order, sites, wait_for_sites(order, sites, board))
        board.sites(misfits)
        board.update(state=RUNNING, rounds=trained.state.round)
        sizes = reported_sizes(order, descriptions)
        remote = Remote(order.sites, trained.model, sites, run=order.run, sizes=sizes)
        lines = losses_now(trained, remote, order.run)
        append(Path(order.history), lines)
        return lines


def losses_now(trained: Trained, federation: Federation, run: str) -> list[Line]:
    """Return a line for each client: its test loss under the model that serves it, and all models' train losses."""
    names = [str(row["client"]) for row in trained.members]
    state = with_clients(trained.algorithm, trained.state, names, federation.names)
    tested = evaluate(trained.algorithm, federation, state, trained.seed)
    everyone = np.arange(len(federation.names))
    meter = Meter(federation, Key(trained.seed, state.round), state.shares)
    task = Task(report=Report(params=None, losses=True, sample=EVERYTHING))
    compared = meter.ask(task, state.stack, np.zeros_like(everyone), everyone)
    if not len(tested) and not len(compared):
        why = next(iter({**tested.missing, **compared.missing}.values()), "nobody was asked")
        raise FederationError(f"no site told its losses; the first said: {why}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        {"time": now, "run": run, "site": name, **_of_site(at, name, state, tested, compared)}
        for at, name in enumerate(federation.names)
    ]


def _of_site(at: int, name: str, state: State, tested: Replies, compared: Replies) -> Line:
    """Return what is known of one site; None where it did not answer, and why."""
    label = int(state.labels[at])
    found: Line = {"cluster": label, "test_loss": None, "losses": None, "errors": None, "better": None}
    test, train = (np.flatnonzero(replies.clients == at) for replies in (tested, compared))
    if len(test) and tested.metrics is not None:
        found["test_loss"] = _numbers(tested.metrics[test[0], 2:3])[0]
    if len(train) and compared.losses is not None and compared.spreads is not None:
        losses = compared.losses[train[0]]
        errors = np.sqrt(compared.spreads[train[0]] / compared.examples[train[0]])
        found |= {"losses": _numbers(losses), "errors": _numbers(errors)}
        soft = state.memberships is not None
        found |= {} if soft or label == UNPLACED else {"better": better_cluster(label, losses, errors)}
    missing = {**compared.missing, **tested.missing}.get(name)
    return found if missing is None else {**found, "missing": missing}


def better_cluster(own: int, losses: Array, errors: Array) -> Line | None:
    """Return the cluster with the least loss if its loss is clearly lower than that of a site's own cluster, else None.

    The standard error of the difference is that of two independent means. The losses of the same examples under two
    models usually rise and fall together, so it is rather too large: a small gain is not called one.

    >>> better_cluster(0, np.array([0.9, 0.5]), np.array([0.03, 0.04]))
    {'cluster': 1, 'gain': 0.4, 'error': 0.05}
    >>> better_cluster(0, np.array([0.59, 0.5]), np.array([0.03, 0.04]))
    """
    best = int(np.where(np.isfinite(losses), losses, np.inf).argmin())
    gain, error = float(losses[own] - losses[best]), float(np.hypot(errors[own], errors[best]))
    diverged = best != own and not np.isfinite(losses[own])
    if diverged:
        return {"cluster": best, "gain": None, "error": None}
    return {"cluster": best, "gain": round(gain, 6), "error": round(error, 6)} if gain > CLEAR * error else None


def _numbers(values: Array) -> list[float | None]:
    """Return numbers for JSON, which has no infinity."""
    return [float(value) if np.isfinite(value) else None for value in values]


def append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines to the history."""
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def read_history(path: Path, run: str) -> list[Line]:
    """Return the lines of one run in the history, the oldest first; a damaged line is left out."""
    found: list[Line] = []
    if not path.exists():
        return found
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and line.get("run") == run and {"time", "site", "cluster"} <= line.keys():
            found.append(line)
    return found


def drift_table(lines: Sequence[Line]) -> Table:
    """Return a row for each site: its test loss at the first look, the one before and now, and the better cluster."""
    looks = sorted({line["time"] for line in lines})
    table = Table(title=f"{len(looks)} look{'s' * (len(looks) != 1)}, the last at {looks[-1]}", title_justify="left")
    for title in ("site", "cluster", "first", "before", "now", "another cluster?"):
        table.add_column(title, justify="right" if title in ("first", "before", "now") else "left")
    for site in sorted({line["site"] for line in lines}):
        own = [line for line in lines if line["site"] == site]
        known = [line["test_loss"] for line in own if line.get("test_loss") is not None]
        before = known[-2] if len(known) > 1 and own[-1].get("test_loss") is not None else None
        cells = (_loss(known[0] if known else None), _loss(before), _loss(own[-1].get("test_loss")))
        table.add_row(*map(cell, (site, str(own[-1]["cluster"]), *cells, better_in_words(own[-1]))))
    return table


def better_in_words(line: Mapping[str, Any]) -> str:
    """Return, in words, whether another cluster would serve a site better.

    >>> better_in_words({"losses": [0.9, 0.5], "better": {"cluster": 1, "gain": 0.4, "error": 0.05}})
    'yes, 1: its loss is lower by 0.4 +- 0.05'
    """
    if line.get("losses") is None:
        return f"not known: {line.get('missing', 'it did not answer')}"
    better = line.get("better")
    if better is None:
        return "no"
    if better["gain"] is None:
        return f"yes, {better['cluster']}: the site's own model gives no finite loss there"
    return f"yes, {better['cluster']}: its loss is lower by {better['gain']:.3g} +- {better['error']:.2g}"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
