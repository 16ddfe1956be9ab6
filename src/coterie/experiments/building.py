"""What settings name: data and algorithms; and whether enough clients take part for what they ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie import algorithms
from coterie.data import Dataset, Federated, load, naturally_federated, read_own, read_pooled
from coterie.data.named import is_own
from coterie.errors import UsageError
from coterie.experiments.settings import OWN, Settings
from coterie.outside import is_outside
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Sketching
from coterie.runtimes.attendance import Attendance, attendance
from coterie.seeding import Key
from coterie.server.contract import Algorithm
from coterie.server.exchange import Limits
from coterie.server.loop import Conditions, check_rounds, participants
from coterie.server.robust import rules


def completed(settings: Settings) -> Settings:
    """Fill in the defaults that depend on the data."""
    if has_clients(settings):
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
    own, full = is_own(settings.data), completed(settings)
    if own and has_clients(settings):
        _refuse(settings, ("classes",), f"{settings.data} has clients of its own: choose their rows there")
        return _own_clients(settings)
    _refuse(settings, () if own else OWN, f"{settings.data} is no table of yours")
    whole = read_pooled(settings.data, **settings.reading()) if own else _published(settings.data)
    whole = whole if settings.classes is None else whole.only(settings.classes)
    return whole.partition(full.partition, full.clients, full.seed, full.validation)


def about_data(settings: Settings) -> tuple[Any, ...]:
    """Return everything that the data depend on: settings that agree in this have the same data."""
    names = ("data", "classes", "partition", "clients", "validation", "seed", *OWN)
    return tuple(getattr(settings, name) for name in names)


def build_attendance(settings: Settings, names: tuple[str, ...]) -> Attendance | None:
    """Return who is there in which round; None if nobody joins or leaves."""
    if not settings.join and not settings.leave:
        return None
    return attendance(names, settings.seed, settings.join, settings.leave)


def build_conditions(settings: Settings) -> Conditions:
    """Return who is asked in a round, how many answers it needs, and what the server accepts."""
    bound, weight = settings.norm_bound, settings.weight_bound or 0
    many = Sketching(settings.exact_clients, settings.sketch, settings.sketch_sample)
    limits = Limits(norm_bound=bound, weight_bound=weight, combine=rules.build(settings.robust), sketching=many)
    return Conditions(participation=settings.participation, min_clients=settings.min_clients, limits=limits)


def check_enough(settings: Settings, federation: Federation, changes: Iterable[int], algorithm: Algorithm) -> None:
    """Refuse rounds without clients, with fewer than must answer, or never as many as clustering needs.

    ``changes`` are the rounds in which the clients that are there change, and round 0.
    """
    most, least = 0, max(each.least_answers for each in (algorithm, *algorithm.members))
    for number in (number for number in changes if number < settings.rounds):
        there = len(federation.present(number))
        asked = len(participants(there, settings.participation, Key(settings.seed, number)))
        if not there:
            raise UsageError(f"nobody is there in round {number}; let fewer clients join late or leave")
        if settings.min_clients > asked:
            raise UsageError(
                f"min-clients is {settings.min_clients}; {asked} are asked in round {number}, so 1 to {asked}"
            )
        most = max(most, asked)
    if most < least <= len(federation.names):
        raise UsageError(
            f"participation is {settings.participation:g}, so that at most {most} clients are asked in a round; "
            f"{algorithm.name} needs {least} answers to cluster: raise it"
        )


def has_clients(settings: Settings) -> bool:
    """Return whether the data come with clients: a naturally federated set does, and so does a user's folder.

    A user's single file does if a column names them, or if no partition divides it; a function's data if they have
    owners.
    """
    if settings.client is not None:
        return True
    if is_own(settings.data):
        return settings.partition is None or Path(settings.data).is_dir()
    name = settings.data.partition("(")[0].strip()
    return _loaded(settings.data).owners is not None if is_outside(name) else name in naturally_federated


def _published(data: str) -> Dataset:
    """Load a data set of the catalogue, or of a user's own function."""
    return _loaded(data) if is_outside(data) else load(data)


@lru_cache(maxsize=1)
def _loaded(data: str) -> Dataset:
    """Load the data set that a user's own function returns, once for all questions about it."""
    return load(data)


def _own_clients(settings: Settings) -> Federated:
    """Load a user's folder or table that comes with clients, so that there is nothing to deal out."""
    if settings.partition not in (None, "natural"):
        raise UsageError(
            f"partition is {settings.partition!r}, but {settings.data} has clients of its own; leave it out"
        )
    data = read_own(settings.data, validation=settings.validation, **settings.reading())
    if settings.clients not in (None, len(data)):
        raise UsageError(f"clients is {settings.clients}, but {settings.data} holds {len(data)}; leave it out")
    return data


def _refuse(settings: Settings, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(settings, name) is not None:
            raise UsageError(f"{name} is {getattr(settings, name)}, but {reason}; leave it out")
