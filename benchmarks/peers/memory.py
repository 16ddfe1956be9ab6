"""The memory of a process and all that it started, watched while it works.

Shared pages are divided among those who share them (PSS), so that the sum over processes counts them once.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass
class Peak:
    """The largest memory seen so far, in bytes."""

    size: int = 0

    @contextmanager
    def watching(self, pid: int, every: float = 0.5) -> Iterator[None]:
        """Look at the processes every so many seconds while the block runs, and once at its end."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(every):
                self.size = max(self.size, memory_of(pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            self.size = max(self.size, memory_of(pid))


def memory_of(pid: int) -> int:
    """Return the bytes that a process and its descendants occupy; 0 where the system does not say."""
    return sum(map(_own_memory, family_of(pid)))


def family_of(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = defaultdict(list)
    for path in PROC.glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        children[parent].append(int(path.parent.name))
    found = [pid]
    for each in found:
        found.extend(children[each])
    return found


def _own_memory(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
