"""The page of a report: its sections, each of which can be replaced by its id, in one file that needs no other."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.errors import UsageError
from coterie.experiments.settings import Settings
from coterie.experiments.table_defaults import TABLES
from coterie.files import write_atomically
from coterie.reporting.apart_view import apart_table
from coterie.reporting.comparison import comparison
from coterie.reporting.figures.drawn import figures_side_by_side
from coterie.reporting.html import html_table
from coterie.reporting.html_tables import pairs, table
from coterie.reporting.markup import Child, Markup, element, join, trusted
from coterie.reporting.report.client_table import clients_body
from coterie.reporting.report.collecting import Content, RunContent, collect
from coterie.reporting.report.parts import Part, parts
from coterie.reporting.report.verdicts import verdict_body

APART_ROWS = 6
"""Differences of each cluster that a page shows."""


@dataclass(frozen=True)
class Section:
    """A section of a page; ``body`` is HTML."""

    id: str
    title: str
    body: str


def sections(content: Content) -> list[Section]:
    """Return the sections of a report, from the verdict to how to run it again."""
    drawn = [_figures(part) for part in parts(content)]
    found = [
        Section("verdict", "Verdict", verdict_body(content)),
        *([Section("table", "Methods", _methods(content))] if content.comparison is not None else []),
        *drawn,
        *_apart(content),
        Section("clients", "Clients", clients_body(content)),
        Section("cost", "Cost", _cost(content)),
        *_advice(content),
        Section("again", "How to run it again", _again(content)),
    ]
    return found


def _figures(part: Part) -> Section:
    said = element("p", part.missing, class_="missing") if part.missing else None
    return Section(part.id, part.title, join([figures_side_by_side(part.figures), said]))


def _methods(content: Content) -> Markup:
    assert content.comparison is not None, "it is there"
    rich = comparison(content.comparison.summaries, Console(file=io.StringIO(), width=10_000))
    return _scrolled(html_table(rich), "table of methods")


def _scrolled(inner: str, label: str) -> Markup:
    return element("div", trusted(inner), class_="scroll", tabindex=0, role="region", aria_label=label)


def _apart(content: Content) -> list[Section]:
    """Return what sets the clusters apart, for every run that says so."""
    runs = [run for some in content.runs.values() for run in some[:1] if run.apart is not None]
    if not runs:
        return []
    tables = [
        [
            element("h3", run.settings.algorithm) if content.is_comparison else None,
            _scrolled(
                html_table(apart_table(run.apart, APART_ROWS)), f"what sets clusters apart, {run.settings.algorithm}"
            ),
        ]
        for run in runs
        if run.apart is not None
    ]
    return [Section("apart", "What sets the clusters apart", join(tables))]


COSTS: Mapping[str, tuple[str, float]] = {
    "bytes_down": ("sent to clients, MB", 1e-6),
    "bytes_up": ("received from clients, MB", 1e-6),
    "models_down": ("models down per client and round (FedAvg: 1)", 1),
    "models_up": ("models up per client and round (FedAvg: 1)", 1),
    "models_stored": ("models that a client stores (FedAvg: 1)", 1),
    "steps": ("local steps of all clients", 1),
    "evaluations": ("examples x models evaluated to choose", 1),
    "seconds": ("seconds", 1),
    "peak_memory_mb": ("peak memory, MB", 1),
}
"""The costs of a run: their names in a summary, how a page calls them, and their scale."""


def _cost(content: Content) -> Markup:
    """Return the costs of a run, or of every method of a comparison beside each other."""
    costs: dict[str, Mapping[str, Any]] = {
        name: runs[0].summary or _so_far(runs[0]) for name, runs in content.runs.items()
    }
    rows = [
        (words, *(_amount(each.get(key), scale) for each in costs.values()))
        for key, (words, scale) in COSTS.items()
        if any(each.get(key) is not None for each in costs.values())
    ]
    if not content.is_comparison:
        return pairs((words, amount) for words, amount in rows)
    said = element("p", f"Of seed {content.run.settings.seed}.")
    return join([said, table(("", *costs), rows, "what every method costs")])


def _amount(value: Any, scale: float) -> str:
    """Return an amount with four digits, or more before the point.

    >>> _amount(64650000, 1e-6), _amount(477416, 1), _amount(None, 1)
    ('64.65', '477,416', '—')
    """
    if value is None:
        return "—"
    return f"{value * scale:,.4g}" if value * scale < 1e4 else f"{value * scale:,.0f}"


def _so_far(run: RunContent) -> dict[str, float]:
    """Return the costs of the rounds that are done."""
    summed = ("bytes_down", "bytes_up", "steps", "evaluations", "seconds")
    return {name: sum(float(record.get(name, 0)) for record in run.history) for name in summed}


def _advice(content: Content) -> list[Section]:
    """Return the advice on clusters, of runs that have one."""
    said: list[Child] = []
    for name, runs in content.runs.items():
        advice = (runs[0].summary or {}).get("advise")
        texts = [each["text"] for each in (advice, advice.get("certain")) if each is not None] if advice else []
        said += [element("p", f"{name}: {each}" if content.is_comparison else each) for each in texts]
    return [Section("advice", "Advice on clusters", join(said))] if said else []


def _again(content: Content) -> Markup:
    """Return the command that makes the run or the comparison again, its settings, and the versions behind it."""
    run, made = content.run, content.run.config["made_by"]
    in_words = run.config["examples"].get("words", True)
    words = (compare_command(content) if content.is_comparison else _run_command(run)).split(" --")
    flags = [words[0], *([" ", element("span", f"--{each}", class_="flag")] for each in words[1:])]
    said = element("pre", element("code", flags), tabindex=0)
    if not in_words:
        said = element("p", "The run was made in Python on data that no setting names: run the same program again.")
    settings = [(name, str(value)) for name, value in run.settings.table().items()]
    versions = [(name, str(value)) for name, value in made.items()]
    return join(
        [
            said,
            element("details", element("summary", "Settings"), pairs(settings)),
            element("details", element("summary", "Made by"), pairs(versions)),
        ]
    )


def _run_command(run: RunContent) -> str:
    return f"coterie run {shlex.quote(str(run.folder / 'config.toml'))}"


def compare_command(content: Content) -> str:
    """Return the command that makes a comparison again."""
    run = content.run
    seeds = sorted({each.settings.seed for runs in content.runs.values() for each in runs})
    flags = " ".join(setting_flags(run.settings))
    return f"coterie compare {' '.join(map(shlex.quote, content.runs))} --seeds {','.join(map(str, seeds))} {flags}"


def setting_flags(settings: Settings) -> list[str]:
    """Return the flags that give these settings, but for algorithm and seed.

    >>> setting_flags(Settings("wecfl", clusters=4, rounds=20, lr=0.5, seed=3))
    ['--clusters 4', '--lr 0.5']
    """
    defaults = {each.name: each.default for each in fields(Settings)}
    given = {
        name: value
        for name, value in settings.table().items()
        if name not in ("algorithm", "seed", "references")
        and (value != defaults[name] or (name in TABLES and "label" in settings.table()))
    }
    return [_flag(name, value) for name, value in given.items()]


def _flag(name: str, value: Any) -> str:
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{word}" if value else f"--no-{word}"
    return f"--{word} {shlex.quote(str(value))}"


def title_of(content: Content) -> str:
    """Return the title of a report."""
    run = content.run
    what = ", ".join(content.runs) if content.is_comparison else run.settings.algorithm
    return f"{what} on {run.settings.data}"


def page(title: str, found: Sequence[Section], *, top: Child = None, style: str = "", script: str = "") -> str:
    """Return the page with these sections; a live page has a line at the top, and style and script of its own."""
    links = element("ol", (element("li", element("a", each.title, href=f"#{each.id}")) for each in found))
    body = [
        element("a", "Skip to the report", href="#report", class_="skip"),
        element("header", element("h1", title), element("button", "Dark or light", type="button", data_theme=True)),
        top,
        element("nav", links, aria_label="Sections"),
        element("main", (section_markup(each) for each in found), id="report", tabindex=-1),
        element("div", id="tip", role="status", hidden=True),
        element("script", trusted(_file("script.js") + script)),
    ]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", trusted(_file("style.css") + style)),
    ]
    return f'<!doctype html>\n<html lang="en">{element("head", head)}\n{element("body", body)}</html>\n'


def section_markup(section: Section) -> Markup:
    """Return a section as an element of the page."""
    head = element("h2", section.title, id=f"{section.id}-head")
    body = element("div", trusted(section.body), class_="body")
    return element("section", head, body, id=section.id, aria_labelledby=f"{section.id}-head")


def _file(name: str) -> str:
    """Return the text of a file of this package."""
    return files("coterie.reporting.report").joinpath(name).read_text(encoding="utf-8")


def save_report(content: Content, path: Path) -> Path:
    """Write the report as one HTML file, and return its path."""
    try:
        write_atomically(path, page(title_of(content), sections(content)).encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another file") from None
    return path


def write_report(folder: Path, path: Path) -> Path:
    """Write the report of a run or a comparison as one HTML file."""
    return save_report(collect(folder), path)
