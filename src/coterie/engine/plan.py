"""How work is laid on cores: the plan, and the threads that carry it out."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from coterie.errors import UnknownName, UsageError
from coterie.models.model import Model

LOCKSTEP_NUMBERS = 260_000
"""Parameters a lockstep group may hold together: beyond about a megabyte it falls out of a core's cache."""

SMALLEST_GROUP = 4
KINDS = ("auto", "single", "workers", "lockstep")


@dataclass(frozen=True)
class Plan:
    """A kind of plan and, for lockstep, how many clients train as one."""

    kind: str
    group: int = 1


def make_plan(wanted: str, model: Model, clients: int, threads: int) -> Plan:
    """The plan asked for, or for ``auto`` the one that measures fastest for this model and number of clients."""
    if wanted not in KINDS:
        raise UnknownName("plan", wanted, KINDS)
    group = max(1, min(512, LOCKSTEP_NUMBERS // model.layout.size, -(-clients // threads)))
    if wanted != "auto":
        usable = wanted != "lockstep" or model.can_lockstep
        return Plan(wanted, max(group, 2)) if usable else Plan("workers")
    if model.can_lockstep and not model.is_convolutional and group >= SMALLEST_GROUP:
        return Plan("lockstep", group)
    return Plan("workers" if clients >= threads else "single")


Job = TypeVar("Job")
Result = TypeVar("Result")


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads(wanted: int | None) -> int:
    """The threads asked for, where this machine can bear them; all cores unless said."""
    cores = available_cores()
    if wanted is not None and not 1 <= wanted <= 4 * cores:
        raise UsageError(f"threads is {wanted}; it must be between 1 and {4 * cores} on this machine")
    return wanted or cores


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads hand over the interpreter ten times as often: one that comes back from torch waits less for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Workers:
    """``count`` threads; ``map`` runs jobs on them, results in the order of the jobs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._desks = threading.local()
        self._pool = ThreadPoolExecutor(count, "coterie", initializer=torch.set_num_threads, initargs=(1,))

    def desk(self, key: object, make: Callable[[], Any]) -> Any:
        """This thread's own object for ``key``, made at first use and kept."""
        desks = self._desks.__dict__.setdefault("made", {})
        if key not in desks:
            desks[key] = make()
        return desks[key]

    def map(self, work: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """Do all jobs; the first error stops the rest."""
        with torch_threads(1), short_turns():
            futures = [self._pool.submit(work, job) for job in jobs]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def here(self, work: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """Do all jobs in this thread, one after the other, torch using ``count`` threads for each."""
        with torch_threads(self.count):
            return [work(job) for job in jobs]
