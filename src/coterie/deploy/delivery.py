"""Hand over: at the end of a run every site receives the model that serves it, and the server remembers who has it.

A delivery is the request by which a site is evaluated, without a report: what a site keeps is what it was scored with.
A site that joined after the run is placed by the rule of its algorithm first. Who could not be reached is remembered in
``deliveries.json`` of the server's folder and asked again later.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coterie.deploy.order import Order
from coterie.errors import CoterieError, FederationError
from coterie.experiments.placement import Trained
from coterie.experiments.references import ALGORITHMS, FOLDER
from coterie.experiments.run_folder import CLIENTS
from coterie.experiments.summary import load_rows
from coterie.experiments.sweep import slug
from coterie.experiments.verdict import LOCAL, ONE_MODEL
from coterie.files import write_atomically
from coterie.protocol.message import UNKNOWN_SIZES, Sizes
from coterie.protocol.stack import UNPLACED
from coterie.server.contract import State
from coterie.server.serving import serve, with_clients
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire.remote import NOT_CONNECTED, WENT_AWAY, Exchange, PackedReplies, Remote
from coterie.wire.requests import Parcel, Receipt, pack_delivery, read_part

LEDGER = "deliveries.json"
"""The file in the server's folder that says who has which version, and who waits for one."""

REFERENCES = {"one_model": ALGORITHMS[ONE_MODEL], "local_model": ALGORITHMS[LOCAL]}
"""The scores of a card that come from runs beside a run, and the algorithms of these runs."""

LONGEST_RUN = 60
"""The most letters of a run's name in the name of a version."""

Entries = dict[str, dict[str, Any]]
"""What the ledger says of each site: its version, since when and in which cluster; or why it has not received one."""

Ledger = Mapping[str, Any]
"""The content of ``deliveries.json``: the folder of the run, its version, and an entry for each site."""

AWAY = (NOT_CONNECTED, WENT_AWAY)
"""Why a site was not reached that gets its model as soon as it returns."""

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 3600.0
"""Seconds until a site is tried again that is connected and gives no answer: the first time, and at most."""

NO_SIZES: Mapping[str, Sizes] = {}


@dataclass(frozen=True)
class Among:
    """An exchange with sites at some ``positions``, from 0; ``unreached`` fills with why some of them give no reply."""

    exchange: Exchange
    positions: Sequence[int]
    unreached: dict[int, str] = field(default_factory=dict)

    def __call__(self, requests: Mapping[int, bytes]) -> PackedReplies:
        """Exchange messages with these sites."""
        place = {position: at for at, position in enumerate(self.positions)}
        packed = self.exchange({self.positions[at]: content for at, content in requests.items()})
        missing = {place[position]: why for position, why in packed.missing.items()}
        self.unreached.update(missing)
        return PackedReplies({place[position]: reply for position, reply in packed.answers.items()}, missing)


@dataclass(frozen=True)
class Delivering:
    """An exchange that makes of each request a delivery; ``receipts`` fills as sites answer."""

    exchange: Exchange
    parcels: Sequence[Parcel]
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def __call__(self, requests: Mapping[int, bytes]) -> PackedReplies:
        """Send each client its model with its parcel, and keep the receipts."""
        packed = self.exchange({at: pack_delivery(each, self.parcels[at]) for at, each in requests.items()})
        for at, content in packed.answers.items():
            with suppress(FederationError):  # without a receipt the reply itself says what went wrong
                receipt = read_part(Receipt, codec.unwrap(content).header.get("receipt"), "receipt")
                if receipt.version == self.parcels[at].version:
                    self.receipts[at] = receipt
        return packed


def hand_over(
    order: Order,
    trained: Trained,
    names: Sequence[str],
    sites: Exchange,
    *,
    sizes: Mapping[str, Sizes] = NO_SIZES,
    welcome: Callable[[Sequence[int]], None] = lambda newcomers: None,
) -> Ledger:
    """Hand over the models of a run of clients ``names`` to the sites of the order that lack them; return the ledger.

    ``sizes`` are those that sites have reported, as far as they are known. ``welcome`` is called with the positions of
    the sites that are to be placed first.
    """
    version = version_of(order.run, trained.state)
    ledger = read_ledger(ledger_of(order))
    lacking = [at for at, name in enumerate(order.sites) if _is_due(order, ledger, name, version)]
    known, new = _known_and_new(order, trained, names, lacking)
    here = _HandOver(order, trained, sites, version, sizes)
    seats = np.array([names.index(order.sites[at]) for at in known], np.int64)
    entries = here.deliver(known, with_clients(trained.state, seats))
    if new:
        welcome(new)
    for at in new:
        entries |= here.place_and_deliver(at)
    before = ledger.get("sites", {})
    tries = {name: before.get(name, {}).get("tries", 0) if ledger.get("version") == version else 0 for name in entries}
    failed = {
        name: _paused({**before.get(name, {}), **entry}, tries[name])
        for name, entry in entries.items()
        if "missing" in entry
    }
    return save_ledger(order, version, {**before, **entries, **failed})


def _is_due(order: Order, ledger: Ledger, name: str, version: str) -> bool:
    """Return whether a delivery is for this site."""
    return (order.again or not has_version(ledger, name, version)) and (not order.only or name in order.only)


def _known_and_new(
    order: Order, trained: Trained, names: Sequence[str], lacking: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the sites that the run has placed or tested, and those that are to be placed first, by position."""
    tested = {row["client"] for row in trained.members if _score_of(row) is not None}
    placed = {name for name, label in zip(names, trained.state.labels.tolist(), strict=True) if label != UNPLACED}
    known = [at for at in lacking if order.sites[at] in names and order.sites[at] in tested | placed]
    return known, [at for at in lacking if at not in known]


@dataclass(frozen=True)
class _HandOver:
    """What all deliveries of a run share."""

    order: Order
    trained: Trained
    sites: Exchange
    version: str
    sizes: Mapping[str, Sizes]

    def deliver(self, positions: Sequence[int], state: State) -> Entries:
        """Hand over to the sites at these positions, which are the clients of the state, in this order."""
        if not positions:
            return {}
        reached, names = Among(self.sites, positions), [self.order.sites[at] for at in positions]
        beside = {what: _scores(Path(self.order.out) / FOLDER / name) for what, name in REFERENCES.items()}
        parcels = [self._parcel(name, int(state.labels[at]), beside) for at, name in enumerate(names)]
        delivering = Delivering(reached, parcels)
        replies = serve(self.trained.algorithm, self._remote(names, delivering), state, self.trained.seed)
        return {
            name: _entry(parcels[at], delivering.receipts.get(at), replies.missing.get(name), reached.unreached.get(at))
            for at, name in enumerate(names)
        }

    def place_and_deliver(self, position: int) -> Entries:
        """Find the cluster of a site that took no part in the run, and hand its model over."""
        reached, name = Among(self.sites, [position]), self.order.sites[position]
        remote = self._remote([name], reached)
        try:
            state = self.trained.state_with(self.trained.place(remote), remote)
        except CoterieError as error:
            unreached = next(iter(reached.unreached.values()), None)
            return {name: _missing(unreached or str(error), unreached)}
        return self.deliver([position], state)

    def _remote(self, names: Sequence[str], exchange: Exchange) -> Remote:
        sizes = [self.sizes.get(name, UNKNOWN_SIZES) for name in names]
        return Remote(tuple(names), self.trained.model, exchange, run=self.order.run, sizes=sizes)

    def _parcel(self, name: str, label: int, beside: Mapping[str, Mapping[str, float]]) -> Parcel:
        state, members = self.trained.state, self.trained.state.labels.tolist()
        new = name not in {row["client"] for row in self.trained.members}
        return Parcel(
            version=self.version,
            algorithm=line(self.trained.algorithm.name, LONGEST_RUN),
            rounds=state.round,
            cluster=None if label == UNPLACED else label,
            clusters=len(state.stack),
            sites=members.count(label) + new,
            **{what: scores.get(name) for what, scores in beside.items()},
        )


def _entry(parcel: Parcel, receipt: Receipt | None, why: str | None, unreached: str | None) -> dict[str, Any]:
    """Return what the ledger says of a site that was asked to keep a model."""
    if receipt is None or why is not None:
        return _missing(why or "sent no receipt", unreached)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"version": receipt.version, "current": receipt.current, "cluster": parcel.cluster, "when": when}


def _missing(why: str, unreached: str | None) -> dict[str, Any]:
    """Return what the ledger says of a site without its model; ``unreached``: why it gave no reply, if it gave none.

    It is ``away``, or ``silent`` though it is connected; a site that replied has refused and is not asked again.
    """
    is_away = unreached in AWAY
    said = line(why, codec.LONGEST_PROBLEM)
    return {"missing": said, "away": is_away, "silent": unreached is not None and not is_away}


def _paused(entry: dict[str, Any], tries: int, now: float | None = None) -> dict[str, Any]:
    """Add to the entry of a site that waits when it is tried again, after so many ``tries`` by the server itself."""
    if not _waits(entry):
        return {**entry, "tries": 0, "next": None}
    at_once = entry.get("away") and tries == 0
    pause = 0.0 if at_once else min(FIRST_PAUSE * 2.0 ** min(tries, 20), LONGEST_PAUSE)
    moment = time.gmtime((time.time() if now is None else now) + pause)
    return {**entry, "tries": tries, "next": time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)}


def _waits(entry: Mapping[str, Any]) -> bool:
    return entry.get("away") is True or entry.get("silent") is True


def due(ledger: Ledger, now: float) -> list[str]:
    """Return the sites that wait for their model and whose pause is over; each gets it once it is connected."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return [name for name in waiting(ledger) if str(ledger["sites"][name].get("next") or "") <= moment]


def count_try(path: Path, names: Sequence[str], now: float) -> None:
    """Record that the server tries these sites again, before it does, so that the next pause is longer in any case."""
    ledger = read_ledger(path)
    sites = dict(ledger.get("sites", {}))
    for name in names:
        sites[name] = _paused(sites[name], int(sites[name].get("tries") or 0) + 1, now)
    write_atomically(path, (json.dumps({**ledger, "sites": sites}, indent=2) + "\n").encode())


def version_of(run: str, state: State) -> str:
    """Return the name of a run's version: the run, its round, and a hash of its models.

    The same models have the same name, so that a delivery can be repeated.
    """
    found = hashlib.blake2b(digest_size=4)
    for each in (state, *state.members):
        for array in (*each.stack, each.labels):
            found.update(np.ascontiguousarray(array).tobytes())
    return f"{slug(run)[:LONGEST_RUN].strip('.-') or 'run'}-round-{state.round}-{found.hexdigest()}"


def ledger_of(order: Order) -> Path:
    """Return the file of the ledger, beside the status of the run."""
    return Path(order.board).with_name(LEDGER)


def read_ledger(path: Path) -> Ledger:
    """Return the content of a ledger; an empty one if there is none, or if it is damaged: sites know their versions."""
    try:
        ledger = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    sites = ledger.get("sites") if isinstance(ledger, dict) else None
    good = isinstance(sites, dict) and all(isinstance(entry, dict) for entry in sites.values())
    return ledger if good else {}


def save_ledger(order: Order, version: str, entries: Entries) -> Ledger:
    """Write who has the version of a run now, and return it; what others have stays."""
    ledger = {"run": order.out, "version": version, "sites": entries}
    write_atomically(ledger_of(order), (json.dumps(ledger, indent=2) + "\n").encode())
    return ledger


def has_version(ledger: Ledger, name: str, version: str) -> bool:
    """Return whether a site has a version."""
    return bool(ledger.get("sites", {}).get(name, {}).get("version") == version)


def waiting(ledger: Ledger) -> list[str]:
    """Return the sites that could not be reached: away, and asked when they are back, or silent, and tried again."""
    return [name for name, entry in ledger.get("sites", {}).items() if _waits(entry)]


def delivery_notes(ledger: Ledger) -> list[str]:
    """Return a line for each site that has not received its model, and one on how many have."""
    sites = ledger["sites"]
    there = sum(has_version(ledger, name, ledger["version"]) for name in sites)
    return [
        f"{there} of {len(sites)} sites have the model {ledger['version']}",
        *(
            f"{name} has not received its model: {entry['missing']}{when_again(entry)}"
            for name, entry in sites.items()
            if "missing" in entry
        ),
    ]


def when_again(entry: Mapping[str, Any]) -> str:
    """Return when a site that lacks its model gets it, for the end of a line; nothing if it is not asked again."""
    if entry.get("away"):
        return "; it gets the model when it is back"
    if entry.get("silent"):
        return (
            f"; it is connected and gives no answer, and is tried again at {line(entry.get('next'), 30)}, then after "
            "pauses that grow to an hour; coterie federate deliver tries it at once"
        )
    return ""


def _scores(folder: Path) -> dict[str, float]:
    """Return the score of each client in a finished run, by name; none if there is no such run."""
    if not (folder / CLIENTS).exists():
        return {}
    return {row["client"]: found for row in load_rows(folder) if (found := _score_of(row)) is not None}


def _score_of(row: Mapping[str, Any]) -> float | None:
    """Return the score in a row of ``clients.csv``; None if the client was not tested."""
    text = row.get("accuracy", row.get("rmse", ""))
    return None if text == "" else float(text)
