"""Typed settings: a frozen dataclass declares names, types, limits and help; a table of values becomes one of it.

Whatever is wrong with a table is one ``UsageError`` that names the place, the value, the limit and the remedy.
pydantic checks the types, strictly: ``"3"`` is no number, and neither is ``true``. What Python gives is checked
likewise by ``check_types``, and arguments of functions by ``coterie.arguments``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache, reduce
from math import inf
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from coterie.errors import UnknownName, UsageError
from coterie.limits import check_most

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

Made = TypeVar("Made", bound="DataclassInstance")

Limit = Callable[[str, Any], None]
"""Refuse a value of a setting of this name."""

COMMAND_LINE = "the command line"
"""The place of values that a user has just typed, so that a message about a limit need not repeat it."""

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def option(default: Any, text: str = "", limit: Limit | None = None) -> Any:
    """Declare a field of a dataclass of settings: its default, its help and the values that it may have."""
    return field(default=default, metadata={"help": text, "limit": limit})


def at_least(low: float, most: float = inf, zero: str = "") -> Limit:
    """Return a limit for numbers; ``zero`` says what 0 means where it is allowed too.

    >>> at_least(1, most=1000, zero="for any")("bound", 0.5)
    Traceback (most recent call last):
    coterie.errors.UsageError: bound is 0.5; it must be a number of at least 1, or 0 for any
    """

    def check(name: str, value: float) -> None:
        if zero and value == 0:
            return
        if not low <= value < inf:
            wanted = f"a number of at least {low}, or 0 {zero}" if zero else f"at least {low}"
            raise UsageError(f"{name} is {value}; it must be {wanted}")
        check_most(name, value, most, f"lower it, or give 0 {zero}" if zero else "lower it")

    return check


def at_least_or(low: int, word: str) -> Limit:
    """Return a limit for whole numbers beside which one word is allowed.

    >>> at_least_or(1, "auto")("clusters", "many")
    Traceback (most recent call last):
    coterie.errors.UsageError: clusters is many; it must be a whole number of at least 1, or auto
    """

    check_number = at_least(low)

    def check(name: str, value: int | str) -> None:
        if isinstance(value, str):
            if value != word:
                raise UsageError(f"{name} is {value}; it must be a whole number of at least {low}, or {word}")
        else:
            check_number(name, value)

    return check


def within(interval: str) -> Limit:
    """Return a limit for numbers of an interval; an end with a square bracket is in it.

    >>> within("(0, 1]")("share", 0.0)
    Traceback (most recent call last):
    coterie.errors.UsageError: share is 0.0; it must be in (0, 1]
    """
    low, high = (float(number) for number in interval[1:-1].split(","))

    def check(name: str, value: float) -> None:
        enough = value >= low if interval[0] == "[" else value > low
        if not (enough and (value <= high if interval[-1] == "]" else value < high)):
            raise UsageError(f"{name} is {value}; it must be in {interval}")

    return check


def one_of(*names: str) -> Limit:
    """Return a limit for names."""

    def check(name: str, value: str) -> None:
        if value not in names:
            raise UnknownName(name, str(value), names)

    return check


def each_one_of(noun: str, *names: str) -> Limit:
    """Return a limit for lists of names; ``noun`` is what one of them is called."""

    def check(name: str, values: Iterable[str]) -> None:
        for value in values:
            one_of(*names)(noun, value)

    return check


def check_limits(settings: DataclassInstance, joiner: str = "_") -> None:
    """Refuse settings of which a value is of another type, or beyond its limit; None is not given.

    ``joiner`` joins words in a name.
    """
    check_types(settings, joiner)
    for each in fields(settings):
        limit, value = each.metadata.get("limit"), getattr(settings, each.name)
        if limit is not None and value is not None:
            limit(each.name.replace("_", joiner), value)


def check_types(settings: DataclassInstance, joiner: str = "_") -> None:
    """Refuse settings of which a value is of another type than its field declares, where the type is plain.

    Numbers of numpy become Python's. ``joiner`` joins words in a name.
    """
    hints = types_of(type(settings))
    for each in fields(settings):
        if is_plain(hints[each.name]):
            value = getattr(settings, each.name)
            found = typed_value(each.name.replace("_", joiner), value, hints[each.name], each.default)
            if found is not value:
                object.__setattr__(settings, each.name, found)


def make(kind: type[Made], table: Mapping[str, Any], *, where: str, noun: str = "setting", **given: Any) -> Made:
    """Make a value of a dataclass from a table, which is in the file or other place ``where``.

    Fields that are ``given`` cannot be set by the table. ``noun`` is what a name of the table is called in a message.
    """
    known = {each.name: each for each in fields(kind) if each.name not in given}
    for name in table:
        if name not in known:
            raise UnknownName(f"{noun} in {where}", name, known)
    hints = types_of(kind)
    values = {
        name: typed_value(f"{where}: {name}", value, hints[name], known[name].default) for name, value in table.items()
    }
    for name, each in known.items():
        if name not in table and each.default is MISSING and each.default_factory is MISSING:
            raise UsageError(f"{where} has no {name}; add {name} = {each.metadata.get('example', '...')}")
    try:
        return kind(**given, **values)
    except UsageError as error:
        if where == COMMAND_LINE:
            raise
        raise UsageError(f"{where}: {error}") from None


def typed_value(name: str, value: Any, hint: Any, default: Any = None) -> Any:
    """Return a value of a type, or refuse it by its name; a list becomes a tuple where the type is one.

    ``default`` is an example in the message. A number of numpy becomes one of Python.

    >>> typed_value("cups", "3", int | None, 4)
    Traceback (most recent call last):
    coterie.errors.UsageError: cups is '3'; it must be a whole number, such as 4
    """
    from pydantic import ValidationError  # takes a while to import, and a user who asks for help needs none of it

    try:
        return _adapter(hint).validate_python(value.item() if _is_scalar(value) else value)
    except ValidationError:
        raise UsageError(f"{name} is {shown(value)}; it must be {in_words(hint)}{_example(default)}") from None


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a number or word of numpy, or a tensor of one number."""
    return hasattr(value, "item") and getattr(value, "shape", None) == ()


def shown(value: Any) -> str:
    """Return a value as a message shows it: shortened, on one line; by the name of its type where it has several.

    >>> shown("x" * 50)
    "'xxxxxxxxxxxx...xxxxxxxxxxxxx'"
    """
    text = reprlib.repr(value)
    return text if text.isprintable() else f"a {type(value).__name__}"


def is_plain(hint: Any) -> bool:
    """Return whether a type is of what a text or a file can hold: numbers, texts, truth values, paths, lists of them.

    >>> is_plain(int | str | None), is_plain(tuple[str, ...]), is_plain(Callable[[int], str])
    (True, True, False)
    """
    kinds = [inner for each in members_of(hint) for inner in (_items(each) or (each,))]
    return bool(kinds) and all(kind in _WORDS for kind in kinds)


def _items(hint: Any) -> tuple[Any, ...]:
    """Return the types of what a list or a table holds, none where a type is neither."""
    origin = get_origin(hint)
    holds = isinstance(origin, type) and issubclass(origin, tuple | Mapping)
    return tuple(each for each in get_args(hint) if each is not ...) if holds else ()


@cache
def types_of(kind: type[DataclassInstance]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    return get_type_hints(kind)


def members_of(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union other than None, or the one type that it is.

    >>> members_of(int | str | None), members_of(float)
    ((<class 'int'>, <class 'str'>), (<class 'float'>,))
    """
    return tuple(each for each in _alternatives(hint) if each is not NoneType)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def in_words(hint: Any) -> str:
    """Return what a user calls a type.

    >>> in_words(int | str | None), in_words(tuple[str, ...]), in_words(str | Mapping[str, int])
    ('a whole number or a text', 'a list of texts', 'a text or a table of whole numbers')
    """
    return " or ".join(map(_word, members_of(hint)))


def _word(hint: Any) -> str:
    if hint in _WORDS:
        return _WORDS[hint]
    inner = [_WORDS[each].removeprefix("a ") + "s" for each in get_args(hint) if each in _WORDS]
    container = "table" if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping) else "list"
    return f"a {container} of {inner[-1]}" if inner else f"a {container}"


def _example(default: Any) -> str:
    """Return the default as an example, where it is one."""
    if isinstance(default, tuple) and default and isinstance(default[0], str):
        return f', such as ["{default[0]}"]'
    return f", such as {default}" if isinstance(default, int | float) and not isinstance(default, bool) else ""


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(reduce(or_, map(_as_written, _alternatives(hint))), config=ConfigDict(strict=True))


def _as_written(hint: Any) -> Any:
    """Return the type of what a file holds for a type: a list for a tuple, a whole number also for a number."""
    from pydantic import Strict

    if get_origin(hint) is tuple:
        return Annotated[hint, Strict(False)]
    return int | float if hint is float else hint
