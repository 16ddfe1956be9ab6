"""Many runs: algorithms x seeds, each in its own folder, skipping what is done and resuming what is not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from coterie.algorithms import has_number
from coterie.algorithms.auto import AUTO
from coterie.data import Federated
from coterie.data.named import is_own
from coterie.data.tables.files import own_hash
from coterie.errors import UsageError
from coterie.experiments.building import about_data, build_data
from coterie.experiments.records import Record
from coterie.experiments.resuming import check_files, finished_summary
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.session import Progress, ShowRun
from coterie.experiments.settings import Settings
from coterie.experiments.summary import Row, load_rows
from coterie.experiments.tracked import Track, untracked
from coterie.files import write_atomically
from coterie.limits import SEEDS, check_most
from coterie.terminal import plain

LONGEST = 120
"""Bytes of a folder's name; file systems take 255."""

PLAN = "plan.json"
"""The file of a comparison that lists the runs it will have, for whoever looks before all are there."""

FolderOf = Callable[[Settings], Path | None]


def folder_for(settings: Settings, out: Path) -> Path:
    """Return the folder of one run of a comparison.

    >>> str(folder_for(Settings("wecfl(shots=10)", seed=3), Path("runs")))
    'runs/wecfl-shots-10/seed-3'
    """
    return out / slug(settings.algorithm) / f"seed-{settings.seed}"


def slug(text: str) -> str:
    """Return a text as the name of a folder.

    >>> slug("fedprox(strength=0.1)")
    'fedprox-strength-0.1'
    """
    return folder_name(re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-"))


def folder_name(text: str) -> str:
    """Return the name of a data set, or a path, as the name of a folder; a long or unprintable one as its hash.

    A name that began with a dot would be a hidden folder, one with a dash an option.

    >>> folder_name("./hospitals"), folder_name("a" * 500)
    ('hospitals', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-12f91f38505983c3')
    """
    name = text.replace("/", "-").lstrip(".-") or "here"
    if len(name.encode(errors="surrogateescape")) <= LONGEST and plain(name) == name:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"{re.sub('[^A-Za-z0-9.]+', '-', name)[:40]}-{digest}"


def save_plan(plan: Sequence[Settings], out: Path) -> None:
    """Write which runs a comparison will have, and in which folders."""
    runs = [
        {
            "algorithm": each.algorithm,
            "seed": each.seed,
            "rounds": each.rounds,
            "folder": str(folder_for(each, out).relative_to(out)),
        }
        for each in plan
    ]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / PLAN, (json.dumps(runs, indent=2) + "\n").encode())


def with_plan(show: ShowRun, plan: Sequence[Settings], out: Path) -> ShowRun:
    """Return what shows runs and writes the plan with their first round, so that a refused comparison leaves none."""
    save = cache(lambda: save_plan(plan, out))

    @contextmanager
    def showing(settings: Settings) -> Iterator[Progress]:
        with show(settings) as progress:

            def report(record: Record) -> None:
                save()
                if progress is not None:
                    progress(record)

            yield report

    return showing


class Done(NamedTuple):
    """A run of a plan: its settings, its summary, the records of its rounds, and a row for each client."""

    settings: Settings
    summary: Record
    history: list[Record]
    rows: Sequence[Row] = ()


class Made(NamedTuple):
    """The numbers of a run that was just made, or resumed."""

    summary: Record
    history: list[Record]
    rows: Sequence[Row] = ()


Make = Callable[[Settings, Path | None, Progress | None], Made]
"""``(settings, folder, progress) -> numbers``: make one run, or resume it in its folder."""


def check_finished(plan: Sequence[Settings], folder_of: FolderOf) -> None:
    """Refuse folders with finished runs of other settings, before time is spent on what stands beside them."""
    for settings in plan:
        folder = folder_of(settings)
        if folder is not None:
            finished_summary(settings, folder)


def run_all(plan: Sequence[Settings], folder_of: FolderOf, show: ShowRun, make: Make | None = None) -> Iterator[Done]:
    """Yield each run, in order: read a finished run, resume an unfinished one, begin a new one.

    ``make`` makes a run whose data, network or algorithm no setting names; without a folder nothing is kept.
    """
    make = from_settings() if make is None else make
    files = cache(lambda data: own_hash(Path(data)) if is_own(data) else None)
    for settings in plan:
        folder = folder_of(settings)
        summary = None if folder is None else finished_summary(settings, folder)
        if folder is not None and summary is not None:
            check_files(folder, files(settings.data), settings.data)
            yield Done(settings, summary, load_rounds(folder), load_rows(folder))
            continue
        with show(settings) as progress:
            made = make(settings, folder, progress)
        yield Done(settings, *made)


def from_settings(track: Track = untracked) -> Make:
    """Return what makes runs from settings; neighbours that differ in the algorithm alone share their data."""
    about: tuple[Any, ...] = ()
    data: Federated | None = None

    def make(settings: Settings, folder: Path | None, progress: Progress | None) -> Made:
        nonlocal about, data
        if about != about_data(settings):
            about, data = about_data(settings), build_data(settings)
        done = run_settings(settings, folder, resume=True, progress=progress, data=data, track=track)
        return Made(done.summary, done.history, done.trained.members)

    return make


def grid(base: Settings, algorithms: Sequence[str], seeds: Sequence[int]) -> list[Settings]:
    """Return every algorithm on every seed, seed by seed, so that an early stop leaves whole comparisons.

    ``clusters=auto`` holds only for algorithms that have a number of clusters. No run has references of its own.
    """
    twice = {a for a in algorithms if list(algorithms).count(a) > 1}
    if twice:
        raise UsageError(f"{', '.join(sorted(twice))} is listed twice; name each algorithm once")
    numbers = {a: base.clusters if base.clusters != AUTO or has_number(a) else None for a in algorithms}
    plain = replace(base, references=False)
    return [replace(plain, algorithm=a, clusters=numbers[a], seed=s) for s in seeds for a in algorithms]


def parse_seeds(text: str) -> list[int]:
    """Read seeds as people write them.

    >>> parse_seeds("1..3"), parse_seeds("1,5")
    ([1, 2, 3], [1, 5])
    """
    first, dots, last = text.partition("..")
    try:
        seeds: Sequence[int] = range(int(first), int(last) + 1) if dots else [int(word) for word in text.split(",")]
    except ValueError:
        seeds = []
    check_most("the number of seeds", seeds.stop - seeds.start if isinstance(seeds, range) else len(seeds), SEEDS)
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds are {text!r}; write a range such as 1..5 or a list such as 1,2,7")
    return list(seeds)
