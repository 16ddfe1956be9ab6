"""Presets: a paper's values of settings and arguments, with their sources and the reasons where ours differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.errors import UsageError
from coterie.textforms import Call, Catalogue, Value, parse, parse_one, signature_of, with_arguments

ABOUT_DATA = ("data", "classes", "partition", "clients", "clusters", "model")
"""Settings that hold only for the data sets of the paper."""


@dataclass(frozen=True)
class Said:
    """A value in a paper, the source, and why ours is another (empty where it is the same)."""

    value: Value
    source: str
    why: str = ""


@dataclass(frozen=True)
class Argument:
    """A value of an argument of some algorithms or add-ons, ``unless`` it is combined with one of some others."""

    of: tuple[str, ...]
    name: str
    said: Said
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preset:
    """The settings of a paper: for all of its data sets, for each of them, and arguments of algorithms.

    The first of ``data`` is used where none is named. ``seeds`` is the number of seeds.
    """

    name: str
    settings: Mapping[str, Said]
    data: Mapping[str, Mapping[str, Said]]
    arguments: tuple[Argument, ...] = ()
    seeds: int | None = None

    def settings_for(self, data: str | None) -> dict[str, Said]:
        """Return the settings for a data set; for one that is not in the paper, the training of its first."""
        first = next(iter(self.data))
        if data is None:
            return {"data": Said(first, "its first"), **self.settings, **self.data[first]}
        known = _known(data, self.data)
        if known is not None:
            return {**self.settings, **self.data[known]}
        everything = {**self.settings, **self.data[first]}
        return {name: said for name, said in everything.items() if name not in ABOUT_DATA}

    def spell(self, text: str) -> str:
        """Return the text of an algorithm with the paper's arguments where the text gives none."""
        before = parse(text)
        calls = tuple(map(self._with_inner, before))
        names = {call.name for call in calls}
        values = {f"{call.name}.{each.name}": each.said.value for call in calls for each in self.of(call, names)}
        return with_arguments("+".join(map(str, calls)), values, _parts()) if values or calls != before else text

    def _with_inner(self, call: Call) -> Call:
        """Return the call with the paper's arguments also inside arguments that name algorithms, as in a vote."""
        inner = _algorithms_in(call)
        spelled = {name: self.spell(text) for name, text in inner.items()}
        return call if spelled == inner else Call(call.name, (), tuple({**_written(call), **spelled}.items()))

    def of(self, call: Call, beside: set[str]) -> Iterator[Argument]:
        """Yield the paper's arguments for a call that are not written in it; ``beside`` are the names of all calls."""
        for each in self.arguments:
            if call.name in each.of and not beside & set(each.unless) and each.name not in _written(call):
                yield each


def _parts() -> Catalogue:
    """Return all algorithms and add-ons; importing them takes seconds, and the names of papers need none of them."""
    from coterie.algorithms import parts

    return parts


def _known(data: str, known: Mapping[str, Any]) -> str | None:
    """Return the data set of a paper that a text names, whatever its arguments."""
    try:
        call = parse_one(data)
    except UsageError:  # a user's own folder
        return None
    spellings = (str(Call(call.name, call.args[:1])), call.name)
    return next((text for text in spellings if text in known), None)


def _written(call: Call) -> dict[str, Any]:
    """Return the arguments that are written in a call."""
    signature = signature_of(_parts().find(call.name))
    try:
        return signature.bind_partial(*call.args, **dict(call.kwargs)).arguments
    except TypeError:  # an error when the algorithm is built
        return dict(call.kwargs)


def _default(call: Call, name: str) -> Any:
    return signature_of(_parts().find(call.name)).parameters[name].default


def _algorithms_in(call: Call) -> dict[str, str]:
    """Return the arguments of a call, as written or by default, that name algorithms."""
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
