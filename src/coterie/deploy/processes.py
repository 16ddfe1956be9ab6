"""Run other programs beside this one: start them with a log, watch them, and end them with all their children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from coterie.errors import FederationError

_SYSTEM = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
"""Linux's number of the option that signals a process when its parent ends."""

GRACE = 10.0
"""Seconds that a program has to end before it is killed."""

NEAR, LONGEST = 15, 300
"""The lines at the end of a log in which an error is looked for, and the most letters that are shown of it."""

LEVELS = ("INFO", "WARNING", "DEBUG")
"""How lines of a log begin that are no part of the error before them."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Program:
    """A running program, which leads its own group of processes; its words begin at ``start`` of the log's bytes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    start: int = 0

    def check(self) -> None:
        """Raise an error with the program's last words if it has ended."""
        if self.process.poll() is not None:
            raise FederationError(f"{self.name} ended with code {self.process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """Return why the program ended, as far as its log says."""
        return last_words(self.log, self.start)


@contextmanager
def running(name: str, command: Sequence[str], env: Mapping[str, str], log: Path, folder: Path) -> Iterator[Program]:
    """Run a program in a folder during the block; end it with all its children."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        start = file.tell()
        process = subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it makes one call of the system
        )
    try:
        yield Program(name, process, log, start)
    finally:
        end(process)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the system signal this process when its parent ends, even if the parent is killed."""
    _SYSTEM.prctl(PR_SET_PDEATHSIG, number)


def end(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """Ask the group of a process to end, then kill what is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_together(programs: Sequence[Program], grace: float = GRACE) -> None:
    """Ask several programs to end, wait for all of them at once, and kill what is left."""
    for program in programs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.process.pid, signal.SIGTERM)
    until = time.monotonic() + grace
    for program in programs:
        end(program.process, max(0.0, until - time.monotonic()))


def wait_until(
    ready: Callable[[], bool], programs: Sequence[Program], what: str, seconds: float = 60.0, pause: float = 0.1
) -> None:
    """Wait until ``ready`` returns True; raise an error if a program ends meanwhile or the wait is too long."""
    until = time.monotonic() + seconds
    while not ready():
        for program in programs:
            program.check()
        if time.monotonic() > until:
            logs = ", ".join(str(program.log) for program in programs)
            raise FederationError(f"{what} after {seconds:g} s; look at {logs}")
        time.sleep(pause)


def stop_on_signals(stop: threading.Event) -> None:
    """Set ``stop`` on SIGTERM and SIGINT; call this in the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a program listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def last_words(log: Path, start: int = 0) -> str:
    """Return the last error that a program wrote shortly before its end, else its last line; colours are left out.

    A program that ends after an error, as Flower's do, still says that it shuts down. What stands before ``start`` is
    of an earlier program; a log that is shorter was cut since.
    """
    try:
        content = log.read_bytes()
    except OSError:
        return f"{log} cannot be read"
    text = _COLOURS.sub("", content[start if start <= len(content) else 0 :].decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"{log} says nothing"
    return f"{_last_error(lines[-NEAR:]) or lines[-1][-LONGEST:]} (more in {log})"


def _last_error(lines: Sequence[str]) -> str | None:
    """Return the last error in a log with the lines that belong to it; None if there is none, or a traceback."""
    begins = [at for at, line in enumerate(lines) if line.startswith("ERROR")]
    if not begins:
        return None
    first, *more = lines[begins[-1] :]
    belongs = list(takewhile(lambda line: not line.startswith(LEVELS), more))
    if any(line.startswith("Traceback") for line in (first.partition(":")[2].strip(), *belongs)):
        return None
    return " ".join((first, *belongs))[:LONGEST]
