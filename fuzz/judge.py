"""What a case is, and what counts as a fault of the program that it is given to."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

DONE, REFUSED, ENDED = "done", "refused", "ended"
"""How a case may come out: what was asked was done, was refused, or was begun and met an error that was told."""

PARSER = re.compile(r"(Usage: [^\n]*\n(Try [^\n]*\n)?)?╭─ Error ─.*╯\n", re.DOTALL)
"""What the parser of command lines says of words that it does not know."""

NEWS = re.compile(
    r"^(.* round \d+/\d+ .* s|starting a server.*|as \w+: .*|fetching .*\n(?!error: ).*|problem: .*)\n", re.MULTILINE
)
"""Lines that a refusal may follow: rounds, a paper's settings, places that were tried, what is wrong with a file."""

NEVER = {
    "a traceback": "Traceback (most",
    "an internal error": "internal error",
    "a warning": "Warning: ",
    "more memory than there is": "there is not enough memory",
}
"""Faults by what is said."""

LONGEST_LINE = 2000


def _nothing_more(code: int) -> list[str]:
    return []


@dataclass(frozen=True)
class Case:
    """Work that gives an exit code, and the whole of its input in words.

    ``after`` looks for further faults. ``prints``: a refusal is told on stdout, in lines. ``keeps``: a refusal leaves
    the folder as it was.
    """

    told: str
    work: Callable[[], int]
    after: Callable[[int], list[str]] = _nothing_more
    prints: bool = False
    keeps: bool = True


@dataclass(frozen=True)
class Verdict:
    """How a case came out, every fault, and the last that the program said."""

    told: str
    outcome: str
    faults: list[str] = field(default_factory=list)
    said: str = ""


@dataclass(frozen=True)
class Said:
    """What a program said before it ended."""

    code: int
    out: str
    err: str


def command(words: Sequence[str]) -> Callable[[], int]:
    """The real entry of the command line with these words, as work that gives its exit code."""

    def work() -> int:
        from coterie.cli.main import main

        sys.argv = ["coterie", *words]
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return 0

    return work


def judged(case: Case, folder: Path, streams: Path) -> Verdict:
    """Do a case's work in its folder, which is the working one, and judge what is said and left behind."""
    before, crash, code = content(folder), "", 1
    with redirected(streams):
        try:
            code = case.work()
        except BaseException:
            crash = traceback.format_exc()
    said = Said(code, _read(streams / "out"), _read(streams / "err"))
    faults = [f"raised:\n{crash}"] if crash else [*words_at_fault(said, case.prints)]
    begun = any(path.stat().st_size for path in folder.rglob("rounds.jsonl") if path.is_file())
    outcome = DONE if code == 0 else ENDED if code == 1 or (begun and content(folder) != before) else REFUSED
    if outcome == REFUSED and case.keeps and not crash:
        faults += left_behind(before, content(folder))
    if not faults:
        faults += _checked(case, code)
    return Verdict(case.told, outcome, [f"{fault}\n{_shown(said)}" for fault in faults], (said.err or said.out)[-300:])


def _checked(case: Case, code: int) -> list[str]:
    try:
        return case.after(code)
    except Exception:
        return [f"what is left behind cannot be checked:\n{traceback.format_exc()}"]


def words_at_fault(said: Said, prints: bool = False) -> Iterator[str]:
    """What is wrong about what a program said at its end."""
    for name, found in NEVER.items():
        if found in said.err or found in said.out:
            yield name
    if any(mark in said.err + said.out for mark in ("\x1b", "\x07", "\x9b", "\x7f")):
        yield "a control character reaches the terminal"
    if said.code not in (0, 1, 2):
        yield f"exit code {said.code}"
    if said.code in (1, 2):
        yield from _refusal_at_fault(said, prints)


def _refusal_at_fault(said: Said, prints: bool) -> Iterator[str]:
    told = NEWS.sub("", said.err)
    if prints and said.out and not told:
        return
    if said.out:
        yield "output on stdout at a refusal"
    if PARSER.fullmatch(told):
        return
    if told.count("\n") != 1 or not told.endswith("\n") or len(told.splitlines()) != 1:
        yield f"{len(told.splitlines())} lines on stderr at a refusal"
    if not told.startswith(("error: ", "internal error: ")):
        yield "a refusal that does not begin with error:"
    if len(told) > LONGEST_LINE:
        yield f"a refusal of {len(told)} letters"


def left_behind(before: dict[str, bytes | None], after: dict[str, bytes | None]) -> list[str]:
    """What a refusal made, changed or removed."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name, b"-") != after.get(name, b"-"))
    return [f"a refusal changed {', '.join(changed[:5])}"] if changed else []


def content(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: files with their content, and folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@contextmanager
def redirected(streams: Path) -> Iterator[None]:
    """Let whatever this process writes, from Python or not, go to files ``out`` and ``err`` in a folder."""
    kept, names = [os.dup(1), os.dup(2)], ("out", "err")
    was = sys.stdout, sys.stderr
    sys.stdout.flush()
    sys.stderr.flush()
    for number, name in enumerate(names, 1):
        file = os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = was
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="backslashreplace")


def _shown(said: Said) -> str:
    return f"exit {said.code}\nstdout: {said.out[:2000]!r}\nstderr: {said.err[:3000]!r}"
