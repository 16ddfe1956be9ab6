"""The command line of the fuzzer: ``python -m fuzz``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TextIO

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fuzz.judge import Verdict
from fuzz.lanes import Limits, Name, apart, run

Counts = Counter[tuple[str, str]]
"""How many cases of a kind came out how."""

SHARES = {"words": 30, "tables": 16, "folders": 16, "files": 14, "messages": 12, "networks": 12}
"""How many of a hundred cases are of each kind."""

SOME = 200
"""Cases after which a log that is no terminal gets a line."""

HEAVY = (
    "scipy.optimize",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.metrics",
    "polars",
    "matplotlib.pyplot",
)
"""Imported once, before cases are forked from this process."""


def names(seed: int, cases: int) -> list[Name]:
    """The cases of a run, kinds in turn, so that one that is stopped has seen all of them."""
    numbers = {kind: round(cases * share / 100) for kind, share in SHARES.items()}
    most = max(numbers.values())
    places = [
        ((number + 0.5) * most / count, kind, number) for kind, count in numbers.items() for number in range(count)
    ]
    return [Name(seed, kind, number) for _, kind, number in sorted(places)]


def load(prepared: Path, wanted: set[str]) -> dict[str, ModuleType]:
    """Every kind that is wanted, with what its cases need."""
    for name in HEAVY:
        importlib.import_module(name)
    kinds = {kind: importlib.import_module(f"fuzz.{kind}") for kind in SHARES if kind in wanted}
    importlib.import_module("fuzz.stand_ins").install()
    for kind, module in kinds.items():
        (prepared / kind).mkdir()
        apart(lambda module=module, kind=kind: module.prepare(prepared / kind))
    return kinds


def verdicts(asked: list[Name], limits: Limits) -> Iterator[tuple[Name, Verdict]]:
    """Run all cases that are asked for."""
    with tempfile.TemporaryDirectory(prefix="fuzz-prepared-") as folder:
        kinds = load(Path(folder), {name.kind for name in asked})
        yield from run(asked, {kind: module.make for kind, module in kinds.items()}, Path(folder), limits)


def report(counts: Counts, seconds: float) -> Table:
    """How many cases of each kind came out how."""
    columns = ("cases", "refused", "done", "ended", "faults")
    table = Table(title=f"{sum(n for (_, what), n in counts.items() if what == 'cases')} cases in {seconds:.0f} s")
    for title in ("kind", *columns):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for kind in [kind for kind in SHARES if counts[kind, "cases"]]:
        table.add_row(kind, *(str(counts[kind, what]) for what in columns))
    return table


def show(console: Console, name: Name, found: Verdict) -> None:
    """A fault with the command that repeats it and the whole of its input."""
    head = "fault in" if found.faults else found.outcome
    console.print(f"{head} {name.kind}:{name.number}; repeat it with: {name.again}", style="red", markup=False)
    for line in (found.told, *(found.faults or [found.said])):
        console.print(line.encode("unicode_escape").decode().replace("\\n", "\n"), markup=False, soft_wrap=True)


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Seeded, bounded fuzzing of the whole program.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument(
        "--only", action="append", metavar="KIND[:NUMBER]", help="one kind, or one case; may be repeated"
    )
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="that one case may take")
    parser.add_argument("--lanes", type=int, default=Limits.lanes, help="cases side by side")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="folder for the faults, a JSON line each")
    parser.add_argument("--all", action="store_true", help="show every case, not only faults")
    return parser.parse_args()


def wanted(seed: int, cases: int, only: Sequence[str] | None) -> list[Name]:
    """The cases that are asked for: all, those of some kinds, or some by their numbers."""
    every = names(seed, cases)
    if not only:
        return every
    alone = [Name(seed, kind, int(number)) for kind, _, number in (each.partition(":") for each in only) if number]
    return alone + [name for name in every if name.kind in only]


def watch(found: Iterable[tuple[Name, Verdict]], total: int, out: TextIO, everything: bool, console: Console) -> Counts:
    """Count verdicts as they come; show and keep faults, and how far it is."""
    counts, began = Counts(), time.monotonic()
    with Progress(console=console, auto_refresh=False) as bar:
        task = bar.add_task("cases", total=total)
        for done, (name, verdict) in enumerate(found, 1):
            counts.update([(name.kind, "cases"), (name.kind, verdict.outcome)])
            if verdict.faults:
                counts[name.kind, "faults"] += 1
                line = {"case": f"{name.kind}:{name.number}", "again": name.again, **vars(verdict)}
                print(json.dumps(line), file=out, flush=True)
            if verdict.faults or everything:
                show(console, name, verdict)
            bar.update(task, advance=1, refresh=console.is_terminal)
            if not console.is_terminal and done % SOME == 0:
                console.print(f"{done} of {total} cases, {time.monotonic() - began:.0f} s")
    return counts


def main() -> int:
    """Run the cases, show faults as they are found and a table at the end; 1 if there were faults."""
    asked, console, began = arguments(), Console(stderr=True, highlight=False), time.monotonic()
    cases = wanted(asked.seed, asked.cases, asked.only)
    found = verdicts(cases, Limits(asked.seconds, lanes=asked.lanes))
    asked.out.mkdir(parents=True, exist_ok=True)
    with (asked.out / "faults.jsonl").open("w") as out:
        counts = watch(found, len(cases), out, asked.all, console)
    console.print(report(counts, time.monotonic() - began))
    return int(any(counts[kind, "faults"] for kind in SHARES))


if __name__ == "__main__":
    sys.exit(main())
