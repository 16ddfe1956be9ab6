"""What settings name: data, models, algorithms, federations; and whether two settings mean the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie import algorithms
from coterie.data import (
    SUFFIXES,
    Dataset,
    Federated,
    Reading,
    load,
    load_own,
    load_pooled,
    naturally_federated,
    parse_partition,
)
from coterie.data.sources.registry import sources
from coterie.errors import UsageError
from coterie.experiments.settings import OWN, Settings
from coterie.models import zoo
from coterie.models.model import Model
from coterie.outside import is_outside
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attendance, attendance
from coterie.runtimes.ray import RayFederation
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.contract import Algorithm
from coterie.server.loop import check_rounds, participants
from coterie.textforms import parse_one

RUNTIMES: dict[str, type[Simulator | RayFederation]] = {"simulator": Simulator, "ray": RayFederation}
"""Where clients can run."""


def completed(settings: Settings) -> Settings:
    """Fill in the defaults that depend on the data."""
    if _has_clients(settings):
        return replace(settings, partition=settings.partition or "natural", clusters=settings.clusters or 4)
    small = settings.data == "digits"
    return replace(
        settings,
        partition=settings.partition or ("rotation(0,90,180,270)" if small else "dirichlet(0.1,10)"),
        clients=settings.clients or (40 if small else 200),
        clusters=settings.clusters or (4 if small else 10),
    )


def build_algorithm(settings: Settings) -> Algorithm:
    """Build the algorithm with these clusters and this local training; the rounds must be enough for what it does."""
    clusters = completed(settings).clusters
    algorithm = algorithms.build_algorithm(settings.algorithm, clusters, settings.fit(), settings.choose)
    check_rounds(algorithm, settings.rounds)
    return algorithm


def build_data(settings: Settings) -> Federated:
    """Load the data and deal them to clients."""
    full = completed(settings)
    if is_own(settings.data) and _has_clients(settings):
        _refuse(settings, ("classes",), f"{settings.data} has clients of its own: choose their rows there")
        return _own_clients(settings)
    _refuse(settings, () if is_own(settings.data) else OWN, f"{settings.data} is no table of yours")
    whole = load_pooled(settings.data, **settings.reading()) if is_own(settings.data) else _loaded(settings.data)
    whole = whole if settings.classes is None else whole.only(settings.classes)
    return whole.partition(full.partition, full.clients, full.seed, full.validation)


def about_data(settings: Settings) -> tuple[Any, ...]:
    """Return everything that the data depend on: settings that agree in this have the same data."""
    names = ("data", "classes", "partition", "clients", "validation", "seed", *OWN)
    return tuple(getattr(settings, name) for name in names)


def build_model(settings: Settings, data: Federated) -> Model:
    """Build the network for these data."""
    return zoo.build_model(settings.model, data.shape, data.classes)


def build_federation(settings: Settings, data: Federated, model: Model) -> Simulator | RayFederation:
    """Build all clients where they are to run."""
    return RUNTIMES[settings.runtime](data, model, settings.threads, plan=settings.plan, device=settings.device)


def build_attendance(settings: Settings, names: tuple[str, ...]) -> Attendance:
    """Return who is there in which round."""
    return attendance(names, settings.seed, settings.join, settings.leave)


def check_enough(settings: Settings, who: Attendance, algorithm: Algorithm) -> None:
    """Refuse rounds without clients, with fewer than must answer, or never as many as clustering needs."""
    most, least = 0, max(each.least_answers for each in (algorithm, *algorithm.members))
    for number in (number for number in who.changes() if number < settings.rounds):
        there = len(who.present(number))
        asked = len(participants(there, settings.participation, Key(settings.seed, number)))
        if not there:
            raise UsageError(f"nobody is there in round {number}; let fewer clients join late or leave")
        if settings.min_clients > asked:
            raise UsageError(
                f"min-clients is {settings.min_clients}; {asked} are asked in round {number}, so 1 to {asked}"
            )
        most = max(most, asked)
    if most < least <= len(who.names):
        raise UsageError(
            f"participation is {settings.participation:g}, so that at most {most} clients are asked in a round; "
            f"{algorithm.name} needs {least} answers to cluster: raise it"
        )


def meaning(settings: Settings) -> dict[str, Any]:
    """Return what the run is, however it is written: settings of the same run are equal in this.

    >>> one, other = Settings("wecfl", clusters=3), Settings("wecfl(3)", partition="rotation(0, 90,180,270)")
    >>> meaning(one) == meaning(other)
    True
    """
    full = completed(settings)
    found = {**full.table(), **_about_algorithm(full), **_about_own(full), "data": _address_of_data(settings)}
    found["robust"], found["weight_bound"] = str(parse_one(full.robust)), full.weight_bound or None
    found["partition"] = _readable(lambda: parse_partition(str(full.partition)).text, str(full.partition))
    return {name: value for name, value in found.items() if value is not None and value is not False}


def is_own(data: str) -> bool:
    """Return whether ``data`` means a user's folder or file; the name of a data set comes first: write ./digits."""
    return data.partition("(")[0].strip() not in sources and (
        "/" in data or "\\" in data or Path(data).suffix in SUFFIXES or Path(data).is_dir()
    )


def is_federated(data: str) -> bool:
    """Return whether the data come with clients: a user's folder, a naturally federated set, a function's owners."""
    if is_own(data):
        return Path(data).is_dir()
    name = data.partition("(")[0].strip()
    return _loaded(data).owners is not None if is_outside(name) else name in naturally_federated


@lru_cache(maxsize=1)
def _loaded(data: str) -> Dataset:
    """Load the data set of a user's own function, once for all questions about it."""
    return load(data)


def _has_clients(settings: Settings) -> bool:
    """Return whether the data come with clients; a user's single file does unless a partition divides it."""
    undivided = is_own(settings.data) and settings.partition is None
    return undivided or settings.client is not None or is_federated(settings.data)


def _own_clients(settings: Settings) -> Federated:
    """Load a user's folder or table that comes with clients, so that there is nothing to deal out."""
    if settings.partition not in (None, "natural"):
        raise UsageError(
            f"partition is {settings.partition!r}, but {settings.data} has clients of its own; leave it out"
        )
    data = load_own(settings.data, validation=settings.validation, **settings.reading())
    if settings.clients not in (None, len(data)):
        raise UsageError(f"clients is {settings.clients}, but {settings.data} holds {len(data)}; leave it out")
    return data


def _refuse(settings: Settings, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(settings, name) is not None:
            raise UsageError(f"{name} is {getattr(settings, name)}, but {reason}; leave it out")


def _about_algorithm(full: Settings) -> dict[str, Any]:
    """Return the algorithm as one text, and how its clients really train; nothing where Python made it by hand."""
    try:
        algorithm = algorithms.spelled_out(full.algorithm, full.clusters, full.fit(), full.choose)
    except UsageError:
        return {}
    known = {each.name for each in fields(full)}
    fit = {each.name: getattr(algorithm.fit, each.name) for each in fields(Fit) if each.name in known}
    steps = {} if algorithm.fit.epochs else {"steps": algorithm.fit.count(0)}
    return {**fit, **steps, "algorithm": algorithm.name, "clusters": None, "choose": None}


def _about_own(full: Settings) -> dict[str, Any]:
    reading = Reading(**full.reading())
    return {**dict.fromkeys(OWN), **reading.words()} if is_own(full.data) else {}


def _address_of_data(settings: Settings) -> str:
    if is_own(settings.data):
        return str(Path(settings.data).resolve())
    return _readable(lambda: str(parse_one(settings.data)), settings.data)


def _readable(read: Callable[[], str], text: str) -> str:
    """Return a text in its one way of writing, or as it is where it cannot be read."""
    try:
        return read()
    except UsageError:
        return text
