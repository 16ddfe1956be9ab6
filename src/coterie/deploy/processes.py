"""Run other programs beside this one: start them with a log, watch them, and end them with all their children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import FederationError

_SYSTEM = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
"""Linux's number of the option that signals a process when its parent ends."""

GRACE = 10.0
"""Seconds that a program has to end before it is killed."""


@dataclass(frozen=True)
class Program:
    """A running program, which leads its own group of processes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise an error with the last line of the log if the program has ended."""
        if self.process.poll() is not None:
            raise FederationError(f"{self.name} ended with code {self.process.returncode}: {last_line(self.log)}")


@contextmanager
def running(name: str, command: Sequence[str], env: Mapping[str, str], log: Path, folder: Path) -> Iterator[Program]:
    """Run a program in a folder during the block; end it with all its children."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
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
        yield Program(name, process, log)
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


def last_line(log: Path) -> str:
    """Return the last line that a program wrote."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return f"{log} cannot be read"
    return f"{lines[-1][-300:]} (more in {log})" if lines else f"{log} is empty"
