"""Text forms: how ``'wecfl(shots=10)+cks(strength=0.1)'`` becomes values, and how catalogues are listed.

Algorithms, partitions, models and data sets are plain functions in catalogues. A text names one of them,
with arguments in parentheses, and may chain further calls with a joiner::

    name | name(value, ...) | name(key=value, ...) | call + call + ...

Values are numbers, ``true``/``false``, ``none`` or bare words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import UnknownName, UsageError

Value = int | float | bool | str | None

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_:.\-]*")
_WORDS: dict[str, Value] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Call:
    """One name with its arguments, as written.

    >>> str(Call("mlp", (512, 128)))
    'mlp(512,128)'
    """

    name: str
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        words = [_write(v) for v in self.args] + [f"{k}={_write(v)}" for k, v in self.kwargs]
        return f"{self.name}({','.join(words)})" if words else self.name


def _write(value: Value) -> str:
    for word, meaning in _WORDS.items():
        if value is meaning:
            return word
    return str(value)


def _read(word: str) -> Value:
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def parse(text: str, joiner: str = "+") -> tuple[Call, ...]:
    """The calls that a text names, in order.

    >>> parse("wecfl(shots=10)+cks(strength=0.1)")[1].kwargs
    (('strength', 0.1),)
    >>> parse("rotation(0, 90)")[0].args
    (0, 90)
    """
    calls, rest = [], text.strip()
    while True:
        call, rest = _parse_one(text, rest)
        calls.append(call)
        if not rest:
            return tuple(calls)
        if not rest.startswith(joiner):
            raise UsageError(f"cannot read {text!r} at {rest!r}; expected '{joiner}' or the end")
        rest = rest[len(joiner) :].strip()


def parse_one(text: str) -> Call:
    """The single call that a text names."""
    calls = parse(text)
    if len(calls) != 1:
        raise UsageError(f"{text!r} chains {len(calls)} names; exactly one is expected here")
    return calls[0]


def _parse_one(text: str, rest: str) -> tuple[Call, str]:
    match = _NAME.match(rest)
    if not match:
        raise UsageError(f"cannot read {text!r} at {rest!r}; expected a name such as wecfl or wecfl(shots=10)")
    name, rest = match.group(), rest[match.end() :].strip()
    if not rest.startswith("("):
        return Call(name), rest
    inside, closed, rest = rest[1:].partition(")")
    if not closed:
        raise UsageError(f"cannot read {text!r}; a '(' is never closed")
    args, kwargs = [], []
    for word in filter(None, (w.strip() for w in inside.split(","))):
        key, equals, value = word.partition("=")
        if equals:
            kwargs.append((key.strip(), _read(value.strip())))
        elif kwargs:
            raise UsageError(f"cannot read {text!r}; the plain value {word!r} must stand before key=value arguments")
        else:
            args.append(_read(word))
    return Call(name, tuple(args), tuple(kwargs)), rest.strip()


@dataclass(frozen=True)
class Catalogue:
    """Named functions of one kind, listed by ``coterie list``.

    >>> tiny = Catalogue("shape", {"square": lambda side=1: side * side})
    >>> tiny.build("square(3)")
    9
    """

    kind: str
    entries: Mapping[str, Callable[..., Any]] = field(repr=False)
    wide: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def find(self, name: str) -> Callable[..., Any]:
        """The function of that name; an unknown name is an error that offers the nearest."""
        if name not in self.entries:
            raise UnknownName(self.kind, name, self.entries)
        return self.entries[name]

    def build(self, text: str | Call, **given: Any) -> Any:
        """Call the named function with the arguments of the text.

        ``given`` are arguments the caller knows (``clusters``, ``fit``): passed where the function takes them
        and the text does not say otherwise.
        """
        call = parse_one(text) if isinstance(text, str) else text
        function = self.find(call.name)
        signature = inspect.signature(function)
        kwargs = dict(call.kwargs)
        unknown = [k for k in kwargs if k not in signature.parameters]
        if unknown:
            raise UnknownName(f"argument of {call.name}", unknown[0], signature.parameters)
        try:
            bound = signature.bind_partial(*call.args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{call}: {error}; `coterie list {call.name}` shows its arguments") from None
        extra = {k: v for k, v in given.items() if k in signature.parameters and k not in bound.arguments}
        try:
            return function(*call.args, **kwargs, **extra)
        except TypeError as error:
            raise UsageError(f"{call}: {error}; `coterie list {call.name}` shows its arguments") from error


def first_line(function: Callable[..., Any]) -> str:
    """The sentence that a catalogue shows for a function."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
