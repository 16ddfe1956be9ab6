"""What `coterie list` prints: the catalogues, and one entry with its arguments, defaults and source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.algorithms import RANGES, algorithms
from coterie.algorithms import add_ons as algorithm_add_ons
from coterie.catalogue import Catalogue, first_line
from coterie.data import add_ons, partitions, sources
from coterie.errors import UnknownName
from coterie.models.zoo import models
from coterie.server.clusterers import clusterers

CATALOGUES: dict[str, Catalogue] = {
    "algorithms": algorithms,
    "algorithm-add-ons": algorithm_add_ons,
    "data": sources,
    "partitions": partitions,
    "partition-add-ons": add_ons,
    "models": models,
    "clusterers": clusterers,
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
    """One entry: its arguments with defaults, all of its docstring, and the values of arguments that are searched."""
    for catalogue in CATALOGUES.values():
        if name in catalogue.entries:
            function = catalogue.entries[name]
            told = Text.assemble((name + signature(function), "bold"), "\n\n", inspect.getdoc(function) or "")
            return told.append(searched(name)) if catalogue in (algorithms, algorithm_add_ons) else told
    known = [*CATALOGUES, *(n for c in CATALOGUES.values() for n in c)]
    raise UnknownName("name", name, known)


def searched(name: str) -> str:
    """The values of an algorithm's arguments that ``coterie tune`` searches unless told others, a line each.

    >>> print(searched("cam").strip())
    tune searches pull: 0.001, 0.01, 0.1
    """
    known = {argument.rpartition(".")[2]: values for argument, values in RANGES.get(name, {}).items()}
    lines = [f"tune searches {each}: {', '.join(map(str, values))}" for each, values in known.items()]
    return "\n\n" + "\n".join(lines) if lines else ""


def signature(function: Callable[..., Any]) -> str:
    """The arguments that a text form takes, with their defaults.

    >>> from coterie.algorithms import wecfl
    >>> signature(wecfl)
    '(clusters=2, layer=head_weight, shots=none)'
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
