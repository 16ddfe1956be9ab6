"""What `coterie list` prints: the catalogues, and one entry with its arguments, defaults and source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.algorithms import RANGES, OfRounds, algorithms, parts
from coterie.algorithms import add_ons as algorithm_add_ons
from coterie.data import add_ons, partitions, sources
from coterie.errors import UnknownName
from coterie.experiments.papers import arguments_of, papers
from coterie.experiments.presets import Preset, Said
from coterie.experiments.settings import Settings
from coterie.models.zoo import models
from coterie.server.clustering.clusterers import clusterers
from coterie.server.robust import rules
from coterie.textforms import Catalogue, Value, first_line

CATALOGUES: dict[str, Catalogue] = {
    "algorithms": algorithms,
    "algorithm-add-ons": algorithm_add_ons,
    "data": sources,
    "partitions": partitions,
    "partition-add-ons": add_ons,
    "models": models,
    "clusterers": clusterers,
    "robust": rules,
    "papers": papers,
}

_GIVEN_BY_OPTIONS = algorithms.hidden


def overview(which: str) -> Table:
    """One catalogue as a table of names and sentences."""
    table = Table(title=which, title_justify="left", show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, function in CATALOGUES[which].entries.items():
        arguments = signature(function)
        table.add_row(name, Text.assemble(first_line(function), (f" {arguments}" if arguments else "", "dim")))
    return table


def entry(name: str) -> Text:
    """One entry: its arguments with defaults, all of its docstring, and what papers say; all entries of that name."""
    found = [_entry(which, name) for which, catalogue in CATALOGUES.items() if name in catalogue.entries]
    if not found:
        raise UnknownName("name", name, [*CATALOGUES, *(n for c in CATALOGUES.values() for n in c)])
    return Text("\n\n").join(found)


def _entry(which: str, name: str) -> Text:
    function = CATALOGUES[which].entries[name]
    shown = f"--as {name}" if which == "papers" else name + signature(function)
    told = Text.assemble((shown, "bold"), "\n\n", inspect.getdoc(function) or "")
    more = {"algorithms": searched, "algorithm-add-ons": searched, "papers": settings_of}
    return told.append(more[which](name)) if which in more else told


def searched(name: str) -> str:
    """What is known of an algorithm's arguments: the values that ``coterie tune`` searches, and what papers have.

    >>> print(searched("cks").strip())
    tune searches strength: 0.001, 0.01, 0.1, 1
    """
    known = {argument.rpartition(".")[2]: values for argument, values in RANGES.get(name, {}).items()}
    lines = [f"tune searches {each}: {_values(values)}" for each, values in known.items()]
    lines += [f"--as {paper}: {beside(name, each.name, each.said)}" for paper, each in arguments_of(name)]
    return "\n\n" + "\n".join(lines) if lines else ""


def settings_of(name: str) -> str:
    """A paper's settings, a line each: for all of its data sets, then for each, then arguments of algorithms."""
    preset: Preset = papers.build(name)
    lines = [beside("", each, said) for each, said in preset.settings.items()]
    lines += [f"{data}: {beside('', each, said)}" for data, own in preset.data.items() for each, said in own.items()]
    lines += [f"{', '.join(each.of)}: {beside(each.of[0], each.name, each.said)}" for each in preset.arguments]
    return "\n\n" + "\n".join([*lines, *([f"seeds {preset.seeds}"] if preset.seeds else [])])


def beside(owner: str, name: str, said: Said) -> str:
    """A paper's value of an argument of ``owner``, or of a setting, where it is said, and ours with a reason.

    >>> beside("lcfl", "warmup", Said(5, "table II", "clusters come sooner"))
    'warmup=5 (table II); ours 1: clusters come sooner'
    >>> beside("", "lr", Said(0.001, "section 3", "0.01 is faster"))
    'lr=0.001 (section 3); ours: 0.01 is faster'
    """
    own = default_of(owner, name)
    ours = "ours too" if not said.why else f"ours: {said.why}" if own is None else f"ours {own}: {said.why}"
    return f"{name}={str(said.value).lower()} ({said.source}); {ours}"


def default_of(owner: str, name: str) -> str | None:
    """Our default of an algorithm's argument, or of a setting where there is one that suits all data."""
    if owner:
        return str(inspect.signature(parts.find(owner)).parameters[name].default).lower()
    default = next(field.default for field in fields(Settings) if field.name == name)
    return None if default is None else str(default)


def _values(values: tuple[Value, ...] | OfRounds) -> str:
    return str(values) if isinstance(values, OfRounds) else ", ".join(map(str, values))


def signature(function: Callable[..., Any]) -> str:
    """The arguments that a text form takes, with their defaults.

    >>> from coterie.algorithms import wecfl
    >>> signature(wecfl)
    '(clusters=2, layer=head_weight, shots=none, weights=examples)'
    """
    words = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in _GIVEN_BY_OPTIONS:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"{name}...")
        elif parameter.default is parameter.empty:
            words.append(name)
        else:
            words.append(f"{name}={str(parameter.default).lower()}")
    return f"({', '.join(words)})" if words else ""
