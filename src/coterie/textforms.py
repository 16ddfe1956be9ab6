"""Text forms: how ``'wecfl(shots=10)+cks(strength=0.1)'`` becomes values, and catalogues of functions.

Algorithms, partitions, models and data sets are plain functions in catalogues. A text names one of them,
with arguments in parentheses, and may chain further calls with a joiner::

    name | name(value, ...) | name(key=value, ...) | call + call + ...

Values are numbers, ``true``/``false``, ``none``, bare words or further calls, which stay text. Where a name may stand,
``package.module:function`` names a function of a user's own package.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from coterie.errors import CoterieError, UnknownName, UsageError
from coterie.limits import LETTERS, NESTED, check_most
from coterie.outside import find_outside, is_outside, reason

Value = int | float | bool | str | None

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_:.\-]*")
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


def read_value(word: str) -> Value:
    """Return the value of a word: a number, true, false, none, or the word itself."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def parse(text: str, joiner: str = "+") -> tuple[Call, ...]:
    """Return the calls of a text, in order.

    >>> parse("wecfl(shots=10)+cks(strength=0.1)")[1].kwargs
    (('strength', 0.1),)
    >>> parse("rotation(0, 90)")[0].args
    (0, 90)
    >>> parse("vote(fedavg,wecfl(shots=3)+cks)")[0].args
    ('fedavg', 'wecfl(shots=3)+cks')
    >>> parse("lcfl(clusterer=agglomerative(cut=0.5,linkage=single))")[0].kwargs
    (('clusterer', 'agglomerative(cut=0.5,linkage=single)'),)
    """
    check_most(f"the length of {text[:20]!r}...", len(text), LETTERS, "shorten it")
    calls, rest = [], text.strip()
    while True:
        call, rest = _read_call(text, rest)
        calls.append(call)
        if not rest:
            return tuple(calls)
        if not rest.startswith(joiner):
            raise UsageError(f"cannot read {text!r} at {rest!r}; expected '{joiner}' or the end")
        rest = rest[len(joiner) :].strip()


def parse_one(text: str) -> Call:
    """Return the single call of a text."""
    calls = parse(text)
    if len(calls) != 1:
        raise UsageError(f"{text!r} chains {len(calls)} names; exactly one is expected here")
    return calls[0]


def _read_call(text: str, rest: str) -> tuple[Call, str]:
    """Return the call with which the rest of a text begins, and what follows it."""
    match = _NAME.match(rest)
    if not match:
        raise UsageError(f"cannot read {text!r} at {rest!r}; expected a name such as wecfl or wecfl(shots=10)")
    name, rest = match.group(), rest[match.end() :].strip()
    if not rest.startswith("("):
        return Call(name), rest
    words, rest = _inside(text, rest)
    args, kwargs = [], []
    for word in filter(None, map(str.strip, words)):
        key, equals, value = word.partition("=")
        if equals and "(" not in key:
            kwargs.append((key.strip(), read_value(value.strip())))
        elif kwargs:
            raise UsageError(f"cannot read {text!r}; the plain value {word!r} must stand before key=value arguments")
        else:
            args.append(read_value(word))
    return Call(name, tuple(args), tuple(kwargs)), rest.strip()


def _inside(text: str, rest: str) -> tuple[list[str], str]:
    """Return the words between a '(' and its ')', and the rest; a word may be a call with parentheses."""
    words, depth = [""], 0
    for place, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return words, rest[place + 1 :]
        check_most(f"the depth of parentheses in {text[:20]!r}...", depth, NESTED, "write it with fewer")
        if depth == 1 and letter == ",":
            words.append("")
        elif depth > 1 or letter != "(":
            words[-1] += letter
    raise UsageError(f"cannot read {text!r}; a '(' is never closed")


@dataclass(frozen=True)
class Catalogue:
    """Named functions of one kind, listed by ``coterie list``.

    ``hidden`` arguments cannot be set by a text; a ``typed`` catalogue checks values of a text against annotations.
    ``adopt(function, name)`` makes a user's own function one of this kind; None: only the entries are known.

    >>> tiny = Catalogue("shape", {"square": lambda side=1: side * side})
    >>> tiny.build("square(3)")
    9
    """

    kind: str
    entries: Mapping[str, Callable[..., Any]] = field(repr=False)
    hidden: tuple[str, ...] = ()
    typed: bool = False
    adopt: Callable[[Callable[..., Any], str], Callable[..., Any]] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def find(self, name: str) -> Callable[..., Any]:
        """Return the function of a name; an unknown name is an error that offers the nearest."""
        if self.adopt is not None and is_outside(name):
            return self.adopt(find_outside(self.kind, name), name)
        if name not in self.entries:
            raise UnknownName(self.kind, name, self.entries)
        return self.entries[name]

    def arguments(self, name: str) -> list[str]:
        """Return the arguments that a text may give to a function."""
        return [each for each in signature_of(self.find(name)).parameters if each not in self.hidden]

    def build(self, text: Any, **given: Any) -> Any:
        """Call the named function with the arguments of the text; return what is no text, but made already, as it is.

        ``given`` are arguments the caller knows (``clusters``, ``fit``): passed where the function takes them
        and the text does not say otherwise.
        """
        if not isinstance(text, str | Call):
            return text
        call = parse_one(text) if isinstance(text, str) else text
        function = self.find(call.name)
        signature = signature_of(function)
        open_ = {name: p for name, p in signature.parameters.items() if name not in self.hidden}
        args, kwargs = call.args, dict(call.kwargs)
        unknown = [k for k in kwargs if k not in open_]
        if unknown:
            raise UnknownName(f"argument of {call.name}", unknown[0], open_)
        try:
            said = inspect.Signature(list(open_.values())).bind_partial(*call.args, **kwargs)
            extra = {k: v for k, v in given.items() if k in signature.parameters and k not in said.arguments}
            if next(iter(signature.parameters), None) in self.hidden:  # the text's first is not the function's
                args, kwargs = (), dict(said.arguments)
            signature.bind(*args, **kwargs, **extra)
        except TypeError as error:
            raise UsageError(f"{call}: {error}; `coterie list {call.name}` shows its arguments") from None
        for name, value in {**extra, **said.arguments}.items() if self.typed else ():
            _check_kind(call, name, value, signature.parameters[name])
        try:
            return function(*args, **kwargs, **extra)
        except CoterieError:
            raise
        except Exception as error:
            if not is_outside(call.name):
                raise
            raise UsageError(f"{self.kind} {str(call)!r} fails: {reason(error)}") from error


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a word"),
}


def _check_kind(call: Call, name: str, value: Any, parameter: inspect.Parameter) -> None:
    """Refuse a value of a text that is of none of the kinds in the function's annotation."""
    annotation = parameter.annotation
    kinds = (annotation.__name__ if isinstance(annotation, type) else str(annotation)).split(" | ")
    values = value if parameter.kind is parameter.VAR_POSITIONAL else (value,)
    if kinds[0] not in _KINDS:
        return
    types = tuple(each for kind in kinds if kind in _KINDS for each in _KINDS[kind][0])
    for each in values:
        if each is None and "None" in kinds:
            continue
        no_number = each != each or (isinstance(each, bool) and bool not in types)  # nan, and true where 1 may stand
        if no_number or not isinstance(each, types):
            wanted = " or ".join(_KINDS[kind][1] for kind in kinds if kind in _KINDS)
            raise UsageError(f"{call}: {name} is {each}; it must be {wanted}")


def with_arguments(text: str, values: Mapping[str, Value], catalogue: Catalogue) -> str:
    """Return a text with arguments set: ``name`` in the first call that takes it, ``call.name`` in that call.

    >>> tiny = Catalogue("shape", {"square": lambda side=1: side, "disc": lambda side=1, hole=0: side})
    >>> with_arguments("square+disc(hole=1)", {"hole": 2, "disc.side": 3}, tiny)
    'square+disc(hole=2,side=3)'
    """
    calls = list(parse(text))
    for name, value in values.items():
        owner, _, argument = name.rpartition(".")
        places = [i for i, c in enumerate(calls) if owner in ("", c.name) and argument in catalogue.arguments(c.name)]
        if not places:
            raise UnknownName(f"argument of {text}", name, [a for c in calls for a in catalogue.arguments(c.name)])
        old = calls[places[0]]
        calls[places[0]] = Call(old.name, old.args, tuple({**dict(old.kwargs), argument: value}.items()))
    return "+".join(map(str, calls))


@lru_cache(maxsize=512)
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, which takes longer to find out than a plan of hundreds of runs may take."""
    return inspect.signature(function)


def text_of(bound: inspect.BoundArguments, name: str, leave_out: tuple[str, ...], keep: tuple[str, ...]) -> str:
    """Return the text form of a call; arguments that have their default are left out unless they are in ``keep``.

    >>> def wecfl(clusters=2, shots=None, fit=None): ...
    >>> text_of(inspect.signature(wecfl).bind(shots=3, fit=1), "wecfl", ("fit",), ("clusters",))
    'wecfl(clusters=2,shots=3)'
    """
    defaults = {n: p.default for n, p in bound.signature.parameters.items() if n not in leave_out}
    values = {n: bound.arguments.get(n, default) for n, default in defaults.items()}
    said = {n: v for n, v in values.items() if v != defaults[n] or (n in keep and v is not None)}
    return str(Call(name, (), tuple(said.items())))


def first_line(function: Callable[..., Any]) -> str:
    """Return the sentence that a catalogue shows for a function."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
