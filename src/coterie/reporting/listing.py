"""What `coterie list` prints: the catalogues, and one entry with its arguments, defaults and source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from coterie.errors import UnknownName
from coterie.experiments.papers import arguments_of, papers
from coterie.experiments.presets import Preset, Said
from coterie.experiments.settings import Settings
from coterie.outside import find_outside, is_outside
from coterie.protocol.client_function import ClientFunction
from coterie.textforms import Catalogue, Value, first_line

if TYPE_CHECKING:
    from coterie.algorithms import OfRounds

CATALOGUES = {
    "algorithms": ("coterie.algorithms", "algorithms"),
    "algorithm-add-ons": ("coterie.algorithms", "add_ons"),
    "data": ("coterie.data.sources.registry", "sources"),
    "partitions": ("coterie.data.partitions.registry", "partitions"),
    "partition-add-ons": ("coterie.data.partitions.registry", "add_ons"),
    "models": ("coterie.models.zoo", "models"),
    "clusterers": ("coterie.server.clustering.clusterers", "clusterers"),
    "metrics": ("coterie.engine.metrics", "metrics"),
    "robust": ("coterie.server.robust", "rules"),
    "papers": ("coterie.experiments.papers", "papers"),
}
"""The module of each catalogue and its name there; one is imported when it is shown."""

_GIVEN_BY_SETTINGS = ("fit", "outputs", "y")
"""Arguments that no text gives: the local training of algorithms, and what a metric is computed from."""


def catalogue(which: str) -> Catalogue:
    """Return a catalogue, by the name that ``coterie list`` has for it."""
    module, name = CATALOGUES[which]
    found: Catalogue = getattr(import_module(module), name)
    return found


def overview(which: str) -> Table:
    """Return a table of the names of a catalogue, with a sentence each; metrics also with their facts."""
    heads, facts = _FACTS.get(which, ((), _no_facts))
    layout: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0)}
    table = Table(title=which, title_justify="left", show_header=bool(heads), **layout)
    table.add_column("", no_wrap=True, style="bold")
    for head in heads:
        table.add_column(head, no_wrap=True)
    table.add_column("")
    for name, function in catalogue(which).entries.items():
        arguments = signature(function)
        sentence = Text.assemble(first_line(function), (f" {arguments}" if arguments else "", "dim"))
        table.add_row(name, *facts(name), sentence)
    return table


def _no_facts(name: str) -> tuple[str, ...]:
    return ()


def _metric_facts(name: str) -> tuple[str, ...]:
    """Return which way a metric is better, its range and its unit."""
    from coterie.engine.metrics import METRICS

    found = METRICS[name]
    return found.better, found.range, found.unit.removeprefix("the ")


_FACTS: dict[str, tuple[tuple[str, ...], Callable[[str], tuple[str, ...]]]] = {
    "metrics": (("better", "range", "unit"), _metric_facts),
}
"""The facts that a list has beside names and sentences: their heads, and those of a name."""


def metric_in_words(name: str) -> str:
    """Return the facts of a metric as lines.

    >>> print(metric_in_words("mae").strip())
    better: lower
    range: 0 to inf, in the target's unit
    for: numbers
    """
    from coterie.engine.metrics import METRICS

    found = METRICS[name]
    unit = f", in {found.unit}" if found.in_unit else f" ({found.unit})" if found.unit else ""
    return f"\n\nbetter: {found.better}\nrange: {found.range}{unit}\nfor: {found.needs}"


def entry(name: str) -> Text:
    """Return all entries of a name: arguments with defaults, the docstring, and the values of papers.

    ``package.module:function`` is a user's own function.
    """
    if is_outside(name):
        return _users(name)
    found = [_entry(which, name) for which in CATALOGUES if name in catalogue(which)]
    if not found:
        raise UnknownName("name", name, [*CATALOGUES, *(each for which in CATALOGUES for each in catalogue(which))])
    return Text("\n\n").join(found)


def _users(name: str) -> Text:
    """Return the arguments and the docstring of a user's own function; those of a client function with its shape."""
    found = find_outside("function", name)
    if isinstance(found, ClientFunction):
        given = found.parameters.values()
        words = [each.name if each.default is each.empty else f"{each.name}={each.default}" for each in given]
        shape = f"A client function; its array is of shape ({', '.join(map(str, found.shape))})."
        text = inspect.cleandoc(found.function.__doc__ or "")
        return Text.assemble((f"{name}({', '.join(words)})", "bold"), f"\n\n{text}\n\n{shape}")
    return Text.assemble((name + signature(found), "bold"), "\n\n", inspect.getdoc(found) or "")


def _entry(which: str, name: str) -> Text:
    function = catalogue(which).find(name)
    shown = f"--as {name}" if which == "papers" else name + signature(function)
    text = Text.assemble((shown, "bold"), "\n\n", inspect.getdoc(function) or "")
    more = {"algorithms": searched, "algorithm-add-ons": searched, "papers": settings_of, "metrics": metric_in_words}
    return text.append(more[which](name)) if which in more else text


def searched(name: str) -> str:
    """Return the values of an algorithm's arguments that ``coterie tune`` searches, and those of papers.

    >>> print(searched("cks").strip())
    tune searches strength: 0.001, 0.01, 0.1, 1
    """
    from coterie.algorithms import RANGES

    known = {argument.rpartition(".")[2]: values for argument, values in RANGES.get(name, {}).items()}
    lines = [f"tune searches {each}: {_values(values)}" for each, values in known.items()]
    lines += [f"--as {paper}: {beside(name, each.name, each.said)}" for paper, each in arguments_of(name)]
    return "\n\n" + "\n".join(lines) if lines else ""


def settings_of(name: str) -> str:
    """Return a paper's settings, a line each: for all of its data sets, for each, and arguments of algorithms."""
    preset: Preset = papers.build(name)
    lines = [beside("", each, said) for each, said in preset.settings.items()]
    lines += [f"{data}: {beside('', each, said)}" for data, own in preset.data.items() for each, said in own.items()]
    lines += [f"{', '.join(each.of)}: {beside(each.of[0], each.name, each.said)}" for each in preset.arguments]
    return "\n\n" + "\n".join([*lines, *([f"seeds {preset.seeds}"] if preset.seeds else [])])


def beside(owner: str, name: str, said: Said) -> str:
    """Return a paper's value of an argument of ``owner``, or of a setting, its source, and ours with a reason.

    >>> beside("lcfl", "warmup", Said(5, "table II", "clusters come sooner"))
    'warmup=5 (table II); ours 1: clusters come sooner'
    >>> beside("", "lr", Said(0.001, "section 3", "0.01 is faster"))
    'lr=0.001 (section 3); ours: 0.01 is faster'
    """
    own = default_of(owner, name)
    ours = "ours too" if not said.why else f"ours: {said.why}" if own is None else f"ours {own}: {said.why}"
    return f"{name}={str(said.value).lower()} ({said.source}); {ours}"


def default_of(owner: str, name: str) -> str | None:
    """Return our default of an algorithm's argument, or of a setting where there is one that suits all data."""
    from coterie.algorithms import parts

    if owner:
        return str(inspect.signature(parts.find(owner)).parameters[name].default).lower()
    default = next(field.default for field in fields(Settings) if field.name == name)
    return None if default is None else str(default)


def _values(values: tuple[Value, ...] | OfRounds) -> str:
    return ", ".join(map(str, values)) if isinstance(values, tuple) else str(values)


def signature(function: Callable[..., Any]) -> str:
    """Return the arguments that a text form takes, with their defaults.

    >>> from coterie.algorithms import wecfl
    >>> signature(wecfl)
    '(clusters=2, layer=head_weight, shots=none, weights=examples)'
    """
    words = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in _GIVEN_BY_SETTINGS:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"{name}...")
        elif parameter.default is parameter.empty:
            words.append(name)
        else:
            words.append(f"{name}={str(parameter.default).lower()}")
    return f"({', '.join(words)})" if words else ""
