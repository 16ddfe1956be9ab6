"""The driver's side of the protocol: contestants as processes, told to do a round in turns of random order."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.memory import Peak, family_of

ROOT = Path(__file__).resolve().parents[2]

LONGEST_ANSWER = 1200.0
"""Seconds after which a contestant that does not answer is ended."""


class Failed(Exception):
    """A contestant did not answer; the message is the last line of its log."""


@dataclass
class Result:
    """What was measured of a contestant, or why nothing was."""

    start_up: float = 0.0
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    model: np.ndarray | None = None
    failure: str = ""

    @property
    def median(self) -> float:
        """Return the median time of a round, the first left out."""
        return statistics.median(self.seconds)


class Contestant:
    """A process that does rounds of one workload when told; ``result`` collects what it did."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name, self.result, self._command, self._folder = name, Result(), command, folder
        self._peak, self._log = Peak(), folder / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None

    def __str__(self) -> str:
        found = self.result
        said = f"failed: {found.failure}" if found.failure else f"first round {found.first:.1f} s"
        return f"{self.name}, started in {found.start_up:.1f} s, {said}"

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step, unless one before it has failed."""
        if self.result.failure:
            return
        try:
            step()
        except Failed as failure:
            self.result.failure = str(failure)
            self.stop()

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        begun = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self._folder)],
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True},
                **{"env": _environment(), "cwd": self._folder, "start_new_session": True},
            )
        self.result.versions = self._answer()["versions"]
        self.result.start_up = time.perf_counter() - begun

    def warm_up(self) -> None:
        """Do the first round, in which some compile and others start their workers."""
        self.result.first = self._round()

    def measure(self) -> None:
        """Do one more round, which counts."""
        self.result.seconds.append(self._round())

    def hand_in(self) -> None:
        """Take the mean of the trained models: after the first round all contestants are equally far."""
        path = self._folder / f"{self.name}.npy"
        self._ask(f"model {path}")
        self.result.model = np.load(path)

    def stop(self) -> None:
        """Let the process end by itself; if it does not, end it and all it started."""
        if self._process is None:
            return
        family = family_of(self._process.pid)
        with suppress(subprocess.TimeoutExpired, OSError, ValueError):
            self._process.communicate("quit\n", timeout=30)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _round(self) -> float:
        assert self._process is not None
        with self._peak.watching(self._process.pid):
            seconds = float(self._ask("go")["seconds"])
        self.result.memory = self._peak.size
        return seconds

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there will be no answer, either
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Return the next answer; a contestant that is silent for too long is ended, and so has failed."""
        assert self._process is not None
        assert self._process.stdout is not None
        patience = threading.Timer(LONGEST_ANSWER, self._process.kill)
        patience.start()
        line = self._process.stdout.readline()
        patience.cancel()
        if not line:
            raise Failed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "ended without a word"


def compete(commands: Mapping[str, list[str]], folder: Path, repeats: int) -> dict[str, Result]:
    """Start all contestants, let each do a first round, then ``repeats`` more in turns of random order."""
    contestants = [Contestant(name, command, folder) for name, command in commands.items()]
    order = random.Random(1)
    try:
        for each in contestants:
            each.attempt(each.start)
            each.attempt(each.warm_up)
            each.attempt(each.hand_in)
            print(f"{folder.name}: {each}", flush=True)
        for turn in range(repeats):
            for each in order.sample(contestants, len(contestants)):
                each.attempt(each.measure)
            print(f"{folder.name}: turn {turn + 1} of {repeats} is done", flush=True)
    finally:
        for each in contestants:
            each.stop()
    return {each.name: each.result for each in contestants}


def _environment() -> dict[str, str]:
    """Return the variables of a contestant: the checkout is on its path, and it knows who started it."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CONTESTANT": str(os.getpid())}
