"""One process for each core, each with its share of the clients: for contestants that have no runtime of their own.

Every client's trained parameters end in its row of one shared array, as the engine's replies do. A process is kept on
one core, so that libraries which count cores start one thread.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from benchmarks.peers.protocol import Task

Train = Callable[[Task, range], Callable[[np.ndarray], None]]
"""Prepare to train these clients; the function that it returns does a round and fills their rows."""


class Halves:
    """The processes and the rows that they fill."""

    def __init__(self, task: Task, train: Train, size: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._memory = SharedMemory(create=True, size=4 * task.clients * size)
        self.rows = np.ndarray((task.clients, size), np.float32, self._memory.buf)
        spawn = multiprocessing.get_context("spawn")
        bounds = np.linspace(0, task.clients, len(cores) + 1).astype(int)
        self._ends = []
        for core, first, last in zip(cores, bounds, bounds[1:], strict=False):
            here, there = spawn.Pipe()
            share = (task, train, range(int(first), int(last)), core, self._memory.name, self.rows.shape, there)
            spawn.Process(target=_work, args=share, daemon=True).start()
            self._ends.append(here)
        self._wait()

    def round(self) -> None:
        """Let all clients train."""
        for end in self._ends:
            end.send("go")
        self._wait()

    def mean_model(self) -> np.ndarray:
        """Return the mean of all clients' parameters."""
        return self.rows.mean(0, dtype=np.float64)

    def close(self) -> None:
        """Let the processes end and give the memory back."""
        for end in self._ends:
            end.close()
        del self.rows
        self._memory.close()
        self._memory.unlink()

    def _wait(self) -> None:
        for end in self._ends:
            end.recv()


def _work(
    task: Task, train: Train, share: range, core: int, memory: str, shape: tuple[int, int], end: Connection
) -> None:
    """Train a share of the clients each time the other end of the pipe says so, until it is closed."""
    os.sched_setaffinity(0, [core])
    block = SharedMemory(memory)
    rows = np.ndarray(shape, np.float32, block.buf)[share.start : share.stop]
    work = train(task, share)
    end.send("ready")
    try:
        while end.recv():
            work(rows)
            end.send("done")
    except EOFError:
        del rows
        block.close()
