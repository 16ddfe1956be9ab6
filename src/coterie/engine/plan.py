"""How work is spread over the cores: the plan, and the threads that carry it out."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from coterie.errors import UnknownName, UsageError
from coterie.models.model import Model

Job = TypeVar("Job")
Result = TypeVar("Result")

LOCKSTEP_NUMBERS = 260_000
"""Parameters that a lockstep group may hold together: beyond about a megabyte they fall out of a core's cache."""

SMALLEST_GROUP = 4
"""The smallest group for which ``auto`` takes lockstep."""

KINDS = ("auto", "native", "single", "workers", "lockstep")


@dataclass(frozen=True)
class Plan:
    """A kind of plan and, for lockstep, how many clients train together."""

    kind: str
    group: int = 1


def make_plan(wanted: str, model: Model, clients: int, threads: int, *, native: bool = False) -> Plan:
    """Return the plan asked for, or for ``auto`` the one that was measured to be fastest for such a model.

    ``native`` says whether the compiled library can do the work; where it cannot, its plan is that of ``workers``.
    """
    if wanted not in KINDS:
        raise UnknownName("plan", wanted, KINDS)
    if wanted in ("auto", "native") and native:
        return Plan("native")
    group = max(1, min(512, LOCKSTEP_NUMBERS // model.layout.size, -(-clients // threads)))
    if wanted != "auto":
        usable = wanted != "native" and (wanted != "lockstep" or model.can_lockstep)
        return Plan(wanted, max(group, 2)) if usable else Plan("workers")
    if model.can_lockstep and not model.is_convolutional and group >= SMALLEST_GROUP:
        return Plan("lockstep", group)
    return Plan("workers" if clients >= threads else "single")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads(wanted: int | None) -> int:
    """Return the number of threads asked for, or of cores if None; refuse more than four for each core."""
    cores = available_cores()
    if wanted is not None and not 1 <= wanted <= 4 * cores:
        raise UsageError(f"threads is {wanted}; it must be between 1 and {4 * cores} on this machine")
    return wanted or cores


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers:
    """``count`` threads that run jobs; results come in the order of the jobs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(count, "coterie", initializer=torch.set_num_threads, initargs=(1,))

    def local(self, key: object, make: Callable[[], Any]) -> Any:
        """Return this thread's object for ``key``, made at first use and kept."""
        made = self._local.__dict__.setdefault("made", {})
        if key not in made:
            made[key] = make()
        return made[key]

    def map(self, work: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """Do all jobs on the threads; the first error stops the rest.

        Threads hand over the interpreter ten times as often meanwhile: one that returns from torch waits less for it.
        """
        turn = sys.getswitchinterval()
        sys.setswitchinterval(turn / 10)
        futures: list[Future[Result]] = []
        try:
            with torch_threads(1):
                futures += [self._pool.submit(work, job) for job in jobs]
                return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        finally:
            sys.setswitchinterval(turn)

    def here(self, work: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """Do all jobs in this thread, one after the other; torch uses ``count`` threads for each."""
        with torch_threads(self.count):
            return [work(job) for job in jobs]
