"""The parts of a preset: a paper's value of a setting or an argument, where it says so, and why ours is another."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.errors import UsageError
from coterie.textforms import Call, Catalogue, Value, parse, parse_one, with_arguments

ABOUT_DATA = ("data", "classes", "partition", "clients", "clusters", "model")
"""What a paper says of its own data sets alone."""


@dataclass(frozen=True)
class Said:
    """A value of a setting, where the paper says it, and why ours is another (nothing where it is the same)."""

    value: Value
    source: str
    why: str = ""


@dataclass(frozen=True)
class Argument:
    """A value of an argument of these algorithms or add-ons, ``unless`` one of some others stands beside it."""

    of: tuple[str, ...]
    name: str
    said: Said
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preset:
    """What a paper says: settings for all of its data sets, for each of them, and arguments of algorithms.

    The first of ``data`` is the one where none is named. ``seeds`` is how many there are.
    """

    name: str
    settings: Mapping[str, Said]
    data: Mapping[str, Mapping[str, Said]]
    arguments: tuple[Argument, ...] = ()
    seeds: int | None = None

    def settings_for(self, data: str | None) -> dict[str, Said]:
        """The settings for a data set; for one that the paper has not, how it trains on its first."""
        first = next(iter(self.data))
        if data is None:
            return {"data": Said(first, "its first"), **self.settings, **self.data[first]}
        known = _known(data, self.data)
        if known is not None:
            return {**self.settings, **self.data[known]}
        everything = {**self.settings, **self.data[first]}
        return {name: said for name, said in everything.items() if name not in ABOUT_DATA}

    def spell(self, text: str) -> str:
        """The text of an algorithm with the paper's arguments where the text has none of its own."""
        before = parse(text)
        calls = tuple(map(self._with_inner, before))
        names = {call.name for call in calls}
        values = {f"{call.name}.{each.name}": each.said.value for call in calls for each in self.of(call, names)}
        return with_arguments("+".join(map(str, calls)), values, _parts()) if values or calls != before else text

    def _with_inner(self, call: Call) -> Call:
        """The call with the paper's arguments inside those of its own that name algorithms, as the voters of a vote."""
        inner = _algorithms_in(call)
        spelled = {name: self.spell(text) for name, text in inner.items()}
        return call if spelled == inner else Call(call.name, (), tuple({**_written(call), **spelled}.items()))

    def of(self, call: Call, beside: set[str]) -> Iterator[Argument]:
        """The arguments that the paper gives to a call, beside others of these names, and that it has not."""
        for each in self.arguments:
            if call.name in each.of and not beside & set(each.unless) and each.name not in _written(call):
                yield each


def _parts() -> Catalogue:
    """Return all algorithms and add-ons; importing them takes seconds, and the names of papers need none of them."""
    from coterie.algorithms import parts

    return parts


def _known(data: str, known: Mapping[str, Any]) -> str | None:
    """The data set of a paper that a text names, whatever else the text says of it."""
    try:
        call = parse_one(data)
    except UsageError:  # a user's own folder
        return None
    spellings = (str(Call(call.name, call.args[:1])), call.name)
    return next((text for text in spellings if text in known), None)


def _written(call: Call) -> dict[str, Any]:
    """The arguments that the text of a call gives itself."""
    signature = inspect.signature(_parts().find(call.name))
    try:
        return signature.bind_partial(*call.args, **dict(call.kwargs)).arguments
    except TypeError:  # an error when the algorithm is built
        return dict(call.kwargs)


def _default(call: Call, name: str) -> Any:
    return inspect.signature(_parts().find(call.name)).parameters[name].default


def _algorithms_in(call: Call) -> dict[str, str]:
    """The arguments of a call, as written or by default, that name algorithms."""
    parts = _parts()
    if call.name not in parts:  # an error when the algorithm is built
        return {}
    given = _written(call)
    values = {name: given.get(name, _default(call, name)) for name in parts.arguments(call.name)}
    return {name: value for name, value in values.items() if isinstance(value, str) and _names_algorithm(value)}


def _names_algorithm(text: str) -> bool:
    from coterie.algorithms import algorithms

    try:
        return parse(text)[0].name in algorithms
    except UsageError:
        return False
