"""Make the runs of a plan, several at a time: finished ones are read, unfinished ones resumed, others begun."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.errors import CoterieError, UsageError
from coterie.experiments.resuming import finished_summary
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.sweep import Make, from_settings
from coterie.reporting.overall import ShowSoFar, SoFar
from coterie.reproducing.costs import estimated_seconds
from coterie.reproducing.measures import Numbers
from coterie.reproducing.planning import Run

RUNS = "runs"
"""The folder of the runs inside the output folder: all tables share them."""


def folder_of(run: Run, out: Path) -> Path:
    """Return the folder of a run."""
    return out / RUNS / run.name


def numbers_of(run: Run, out: Path) -> Numbers | None:
    """Return the numbers of a finished run; None if it is not finished."""
    folder = folder_of(run, out)
    summary = finished_summary(run.settings, folder)
    return None if summary is None else Numbers(summary, load_rounds(folder))


@dataclass
class Tally:
    """How much of the work is done, in estimated seconds, and how the estimates compare with the clock."""

    total: float
    runs: int
    jobs: int
    began: float = field(default_factory=time.monotonic)
    done: float = 0.0
    finished: int = 0

    def add(self, run: Run) -> None:
        """Count a run as finished."""
        self.done += estimated_seconds(run.settings)
        self.finished += 1

    def left(self) -> float:
        """Return the seconds that are left: by the estimates at first, then by what the runs took."""
        rest = max(self.total - self.done, 0.0)
        if self.done == 0:
            return rest / self.jobs
        return rest * (time.monotonic() - self.began) / self.done

    def so_far(self) -> SoFar:
        """Return how far the work is."""
        return SoFar(self.runs, self.finished, self.left())


def run_all(runs: Sequence[Run], out: Path, jobs: int, report: ShowSoFar) -> dict[str, str]:
    """Make the runs that are not finished, and return what went wrong, by the name of the run."""
    if all(numbers_of(run, out) is not None for run in runs):
        return {}
    with _alone(out):
        return _run_unfinished([run for run in runs if numbers_of(run, out) is None], out, jobs, report)


def _run_unfinished(todo: Sequence[Run], out: Path, jobs: int, report: ShowSoFar) -> dict[str, str]:
    tally = Tally(sum(estimated_seconds(run.settings) for run in todo), len(todo), max(1, min(jobs, len(todo))))
    report(tally.so_far())
    wrong: dict[str, str] = {}
    for run, problem in _one_by_one(todo, out) if jobs == 1 else _at_once(todo, out, jobs):
        if problem:
            wrong[run.name] = problem
        tally.add(run)
        report(tally.so_far())
    return wrong


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the output folder, so that no two programs make the same run; the end of a program gives it back."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout:
        raise UsageError(f"another reproduce is making runs in {out}; wait for it, or give another --out") from None


def _one_by_one(runs: Sequence[Run], out: Path) -> Iterator[tuple[Run, str]]:
    for run in runs:
        yield run, _make(run, out)


def _at_once(runs: Sequence[Run], out: Path, jobs: int) -> Iterator[tuple[Run, str]]:
    """Make runs in processes of their own, and yield each when it is finished."""
    if not runs:
        return
    with _workers(min(jobs, len(runs))) as pool:
        waiting: dict[Future[str], Run] = {pool.submit(_make, run, out): run for run in runs}
        while waiting:
            for each in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(each), _result(each)


def _result(made: Future[str]) -> str:
    """Return what is wrong with a run; an error that names the remedy if its process was killed."""
    try:
        return made.result()
    except BrokenProcessPool:
        raise CoterieError(
            "a process that made runs was killed, perhaps because memory ran out; finished rounds are saved: the same "
            "command goes on from there, and fewer --jobs need less memory"
        ) from None


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes; what is not begun is dropped when the caller stops."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (os.getpid(),))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _begin(parent: int) -> None:
    """Prepare a process that makes runs: one thread, and an end with the program that started it."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone; finished rounds are saved."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@cache
def _maker() -> Make:
    return from_settings()


def _make(run: Run, out: Path) -> str:
    """Make or resume a run; return what is wrong with it, or nothing."""
    try:
        _maker()(run.settings, folder_of(run, out), None)
    except CoterieError as error:
        return str(error)
    return ""
