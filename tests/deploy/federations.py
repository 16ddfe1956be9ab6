"""What tests of a running federation do to it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.deploy import site_programs as agent
from coterie.deploy.config import load_site
from coterie.deploy.processes import Program
from coterie.deploy.run_control import follow, make_order, submit
from coterie.deploy.site_answers import SealedSite
from coterie.deploy.site_programs import build_site
from coterie.deploy.trial import Trial, part_running
from coterie.experiments.run_folder import STATE, load_rounds, load_state
from coterie.experiments.settings import Settings
from coterie.server.contract import State


def begin(federation: Trial, settings: Settings, out: Path, **order: Any) -> None:
    """A run as far as its first record; ``order`` changes what the server's configuration says."""
    submit(federation.place, replace(make_order(federation.place, settings, out), **{"deliver": False, **order}))
    wait_for(lambda: len(load_rounds(out)) >= 1, 180)


def train(federation: Trial, settings: Settings, out: Path, **order: Any) -> tuple[State, list[dict[str, Any]]]:
    """A run to its end; its state and its records."""
    begin(federation, settings, out, **order)
    follow(federation.place, lambda record: None)
    return load_state(out / STATE), load_rounds(out)


def kill(program: Program) -> None:
    """At once, with everything it started, as a power cut would."""
    os.killpg(program.process.pid, signal.SIGKILL)
    program.process.wait()


@contextmanager
def held(program: Program) -> Iterator[None]:
    """A program, and what it started, does nothing while the block runs."""
    number = program.process.pid
    children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    groups = [number, *map(int, children)]
    for each in groups:
        os.killpg(os.getpgid(each), signal.SIGSTOP)
    try:
        yield
    finally:
        for each in groups:
            os.killpg(os.getpgid(each), signal.SIGCONT)


def answering_at(path: Path) -> bool:
    """Whether an agent listens; a killed one leaves its socket behind."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except OSError:
        return False
    return True


def wait_for(true: Callable[[], bool], seconds: float = 60.0, pause: float = 0.05) -> None:
    """Wait until a condition holds; ``pause`` is longer where a look at it starts a program."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(pause)


@contextmanager
def another_agent(federation: Trial, name: str, make: Callable[[SealedSite], agent.Answering]) -> Iterator[None]:
    """Put what ``make`` makes of a site in the place of its agent, which nobody finds while the block runs."""
    folder = site_folder(federation, name)
    path = load_site(folder).socket_path
    honest = path.rename(path.with_name("honest.sock"))
    ended = threading.Event()
    served = threading.Thread(target=agent.serve, args=(make(build_site(load_site(folder))), path, ended))
    served.start()
    try:
        yield
    finally:
        ended.set()
        served.join()
        honest.rename(path)


@contextmanager
def agent_again(federation: Trial, name: str) -> Iterator[Program]:
    """The honest agent of a site whose own was killed."""
    folder = site_folder(federation, name)
    with part_running(folder, "agent") as program:
        wait_for(lambda: answering_at(load_site(folder).socket_path))
        yield program


def site_folder(federation: Trial, name: str) -> Path:
    """The folder of a site."""
    return federation.place.folder.parent / "sites" / name
