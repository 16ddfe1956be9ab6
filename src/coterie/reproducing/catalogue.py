"""The experiments of the papers: TOML files beside this module, or a user's own, as frozen values.

A file is about one paper. ``[rows]`` names lists of methods, ``[columns]`` data with their settings, ``[measures]`` the
numbers of a run; ``[experiments.ID]`` crosses them. ``[quick]`` says how the smaller version differs. Settings of the
file, the experiment, the column and the row follow one another, each over those before; then the quick ones likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from coterie.errors import UnknownName, UsageError
from coterie.files import parse_toml, read_toml
from coterie.reproducing.measures import Measure
from coterie.typed import make

PAPERS = ("thesis", "lcfl", "joint", "ocfl")
"""The papers, in the order of the list: a TOML file each."""

Table = Mapping[str, Any]
"""A table of a TOML file."""


@dataclass(frozen=True)
class Row:
    """A method: its name in the paper, our algorithm, its number of clusters, and settings of its own.

    ``{clusters}`` in an algorithm is the number of clusters. ``quick`` are settings of the smaller version, among which
    ``algorithm`` may be.
    """

    name: str
    algorithm: str
    clusters: int | None = None
    settings: Table = field(default_factory=dict)
    quick: Table = field(default_factory=dict)

    def label(self) -> str:
        """Return the method as the page names it."""
        return self.name if self.clusters is None else f"{self.name}, K = {self.clusters}"

    def told(self) -> Table:
        """Return the settings of the method."""
        text = self.algorithm.replace("{clusters}", str(self.clusters))
        return {"algorithm": text, **({} if self.clusters is None else {"clusters": self.clusters}), **self.settings}


@dataclass(frozen=True)
class Column:
    """Data, settings of runs on them, and how the published numbers call data set and partition."""

    name: str
    data: str
    settings: Table = field(default_factory=dict)
    quick: Table = field(default_factory=dict)
    dataset: str = ""
    partition: str = ""


@dataclass(frozen=True)
class Quick:
    """The smaller version: its settings, seeds, most train examples of a client, and a sentence about it."""

    said: str
    seeds: str = "1..2"
    settings: Table = field(default_factory=dict)
    few: int | None = None


@dataclass(frozen=True)
class Reason:
    """Why our numbers may differ, for methods and columns whose names contain one of the words; empty: for all.

    ``paper``: it is no reason of the quick version, which differs in more.
    """

    text: str
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    paper: bool = False

    def holds(self, row: Row, column: Column) -> bool:
        """Return whether the reason is about a cell."""
        return _names(self.methods, row.name) and _names(self.columns, column.name)


def _names(words: Sequence[str], name: str) -> bool:
    return not words or any(word in name for word in words)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper.

    ``tables`` are the published tables whose numbers belong to it, ``beside`` others whose numbers it shows again.
    ``figures`` are the kinds of its pictures (``drawing.KINDS``), ``curves`` the scores that curves show; there is a
    picture for each column, or with ``panels`` for each of these patterns of columns, over all that fit it.
    """

    id: str
    paper: str
    source: str
    title: str
    kind: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    measures: tuple[Measure, ...]
    quick: Quick
    reasons: tuple[Reason, ...] = ()
    seeds: str = "1"
    settings: Table = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    published_seeds: int | None = None
    beside: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    panels: tuple[str, ...] = ()
    note: str = ""


def all_ids() -> list[str]:
    """Return the ids of every table and figure of the papers."""
    return [f"{paper}:{name}" for paper in PAPERS for name in _content(paper)["experiments"]]


def find_experiment(text: str) -> Experiment:
    """Return the experiment of an id such as ``thesis:3.1``, or of a user's file: ``my.toml:ID``."""
    paper, colon, name = text.rpartition(":")
    if not colon:
        raise UsageError(f"{text} is no id of a table; write PAPER:TABLE, such as thesis:3.1 (--list shows all)")
    content = _own(Path(paper)) if paper.endswith(".toml") else _shipped(text, paper)
    if name not in content["experiments"]:
        raise UnknownName("table or figure", text, [f"{paper}:{each}" for each in content["experiments"]])
    return read_experiment(content, text, name)


def _shipped(text: str, paper: str) -> Table:
    if paper not in PAPERS:
        raise UnknownName("table or figure", text, all_ids())
    return _content(paper)


@cache
def _content(paper: str) -> Table:
    return parse_toml((files("coterie.reproducing") / "experiments" / f"{paper}.toml").read_bytes())


def _own(path: Path) -> Table:
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}; it must be a TOML file of experiments") from None
    if "experiments" not in content:
        raise UsageError(f"{path} has no [experiments.ID]; see docs/reproduce.md for what a file holds")
    return content


def read_experiment(content: Table, text: str, name: str) -> Experiment:
    """Return one experiment of a file's content."""
    told = dict(content["experiments"][name])
    where = f"the experiment {text}"
    rows = [row for each in _listed(told, "rows", where) for row in _rows(content, each, where)]
    columns = [column for each in _listed(told, "columns", where) for column in _columns(content, each, where)]
    measures = [one for each in _listed(told, "measures", where) for one in _measures(content, each, where)]
    quick = _quick(content.get("quick", {}), told.pop("quick", {}))
    table = {
        "source": content.get("source", ""),
        **{key: content[key] for key in ("seeds", "published_seeds") if key in content},
        **{key: value for key, value in told.items() if key not in ("rows", "columns", "measures", "settings")},
        "settings": {**content.get("settings", {}), **told.get("settings", {})},
    }
    return make(
        Experiment,
        table,
        where=where,
        id=text,
        paper=content.get("as", ""),
        rows=tuple(rows),
        columns=tuple(columns),
        measures=tuple(measures),
        quick=make(Quick, {"said": "", **quick}, where=where),
        reasons=tuple(make(Reason, each, where=where) for each in content.get("reasons", [])),
    )


def _listed(told: Table, key: str, where: str) -> list[str]:
    found = told.get(key, [])
    if not isinstance(found, list):
        raise UsageError(f"{where}: {key} is {found!r}; it must be a list of names of [{key}]")
    return found


def _entry(content: Table, kind: str, name: str, where: str) -> Any:
    known = content.get(kind, {})
    if name not in known:
        raise UnknownName(f"{kind} of {where}", str(name), known)
    return known[name]


def _rows(content: Table, name: str, where: str) -> list[Row]:
    """Return the methods of a named list; several numbers of clusters are a row each."""
    found = []
    for each in _entry(content, "rows", name, where):
        numbers = each.get("clusters")
        for number in numbers if isinstance(numbers, list) else [numbers]:
            table = {**each, "clusters": number}
            found.append(make(Row, {k: v for k, v in table.items() if v is not None}, where=where))
    return found


def _columns(content: Table, pattern: str, where: str) -> list[Column]:
    """Return the columns whose names fit a pattern, in the order of the file."""
    known = content.get("columns", {})
    found = [make(Column, {"name": name, **known[name]}, where=where) for name in known if fnmatchcase(name, pattern)]
    if not found:
        raise UnknownName(f"columns of {where}", str(pattern), known)
    return found


def _quick(general: Table, own: Table) -> Table:
    """Return how the smaller version differs: the experiment's own words and settings over those of the file."""
    return {**general, **own, "settings": {**general.get("settings", {}), **own.get("settings", {})}}


def _measures(content: Table, name: str, where: str) -> list[Measure]:
    """Return a measure; one at several rounds is a measure each."""
    told = {"name": name, **_entry(content, "measures", name, where)}
    rounds = told.get("at")
    if not isinstance(rounds, list):
        return [make(Measure, told, where=where)]
    return [make(Measure, {**told, "name": f"{told['name']} {n}", "at": n}, where=where) for n in rounds]
