"""Cases side by side, each in a forked process with a limit on its time and its memory."""

from __future__ import annotations

import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzz.judge import ENDED, Case, Verdict, judged

Make = Callable[[Random, Path], Case]
"""Makes a case in the working folder by chance, from what was prepared in a folder for all of its kind."""


@dataclass(frozen=True)
class Name:
    """Which case it is: all that it is made from."""

    seed: int
    kind: str
    number: int

    @property
    def again(self) -> str:
        """The command that repeats it."""
        return f"python -m fuzz --seed {self.seed} --only {self.kind}:{self.number}"


@dataclass(frozen=True)
class Limits:
    """Seconds that a case may take, bytes of addresses that it may use beside what is there, and cases at once."""

    seconds: float = 20.0
    memory: int = 4 << 30
    lanes: int = 2


@dataclass
class _Lane:
    name: Name
    child: int
    pipe: int
    folder: Path
    began: float
    heard: bytes = b""


def run(
    names: Iterable[Name], makers: dict[str, Make], prepared: Path, limits: Limits
) -> Iterator[tuple[Name, Verdict]]:
    """The verdict on every case, as they end."""
    waiting, lanes = iter(names), dict[int, _Lane]()
    with selectors.DefaultSelector() as ready:
        while True:
            while len(lanes) < limits.lanes and (name := next(waiting, None)) is not None:
                lane = _start(name, makers[name.kind], prepared, limits)
                lanes[lane.pipe] = lane
                ready.register(lane.pipe, selectors.EVENT_READ)
            if not lanes:
                return
            heard = {key.fd for key, _ in ready.select(0.2)}
            for pipe, lane in list(lanes.items()):
                late = time.monotonic() - lane.began > limits.seconds
                part = os.read(pipe, 1 << 16) if pipe in heard else None
                lane.heard += part or b""
                if part == b"" or late:
                    ready.unregister(pipe)
                    del lanes[pipe]
                    yield lane.name, _end(lane, limits if late and part != b"" else None)


def _start(name: Name, make: Make, prepared: Path, limits: Limits) -> _Lane:
    """Fork a process that does one case and tells its verdict through a pipe."""
    folder, (mine, its) = Path(tempfile.mkdtemp(prefix="fuzz-")), os.pipe()
    child = os.fork()
    if child:
        os.close(its)
        return _Lane(name, child, mine, folder, time.monotonic())
    code = 1
    try:
        os.setsid()
        os.write(its, (json.dumps({"folder": str(folder)}) + "\n").encode())
        found = _alone(name, make, prepared, folder, limits, lambda told: os.write(its, told))
        with os.fdopen(its, "wb") as pipe:
            pipe.write(json.dumps(asdict(found)).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def _alone(
    name: Name, make: Make, prepared: Path, folder: Path, limits: Limits, tell: Callable[[bytes], Any]
) -> Verdict:
    """The case in this process, which is for it alone; what it is given is told before it begins."""
    work, streams = folder / "work", folder / "streams"
    for place in (work, streams, folder / "home", folder / "tmp"):
        place.mkdir()
    os.environ |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    tempfile.tempdir = str(folder / "tmp")
    os.chdir(work)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    limit = _addresses() + limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.memory, limits.memory))
    case = make(Random(f"{name.seed}:{name.kind}:{name.number}"), prepared / name.kind)
    tell(json.dumps({"told": case.told}).encode() + b"\n")
    return judged(case, work, streams)


def _addresses() -> int:
    """How many bytes of addresses this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _end(lane: _Lane, passed: Limits | None) -> Verdict:
    """What a process told, or that it told nothing; whatever it started is ended with it."""
    with suppress(ProcessLookupError):
        os.killpg(lane.child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(lane.child, 0)[1])
    os.close(lane.pipe)
    lines = [json.loads(line) for line in lane.heard.splitlines()]
    told = next((line["told"] for line in lines if "told" in line), "(the case could not be made)")
    said = _last_words(lane.folder)
    shutil.rmtree(lane.folder, ignore_errors=True)
    if passed is not None:
        return Verdict(told, ENDED, [f"no end after {passed.seconds:g} s\n{said}"])
    if not lines or "outcome" not in lines[-1]:
        return Verdict(told, ENDED, [f"the process ended by {status}\n{said}"])
    return Verdict(**lines[-1])


def _last_words(folder: Path) -> str:
    """What a process that told no verdict had written."""
    return "\n".join(
        f"{path.name}: {path.read_bytes()[-2000:].decode(errors='backslashreplace')}"
        for path in sorted(folder.glob("streams/*"))
    )


def apart(work: Callable[[], None]) -> None:
    """Do some work in a forked process, so that this one starts no threads."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("what the cases need could not be prepared")
