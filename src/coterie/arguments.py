"""Arguments that Python gives: a name that a function does not have, or a value of another type, is one line.

A decorated function looks at its arguments by its own annotations, as far as these are plain: numbers, texts, truth
values, paths, and lists and tables of them. What is made of parts, such as a model or clients, is looked at where it is
used.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_type_hints

from coterie.errors import UnknownName, UsageError
from coterie.typed import is_plain, typed_value

Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """Let a function refuse arguments that it does not have, or that are of another type than it declares.

    >>> @checked
    ... def brew(cups: int = 4): ...
    >>> brew(cup=3)
    Traceback (most recent call last):
    coterie.errors.UnknownName: unknown argument of brew 'cup'; did you mean 'cups'? known: cups
    >>> brew("3")
    Traceback (most recent call last):
    coterie.errors.UsageError: cups is '3'; it must be a whole number, such as 4
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = bound_arguments(function, function.__name__, args, kwargs)
        return function(*bound.args, **bound.kwargs)

    return cast(Function, call)


def bound_arguments(
    function: Callable[..., Any], called: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call by name, each of its type; ``called``: what the user calls the function."""
    signature, hints = _declared(function)
    names, takes_any = _single(signature), any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for name in () if takes_any else kwargs:
        if name not in names:
            raise UnknownName(f"argument of {called}", name, names)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{called}: {error}; its arguments are {', '.join(names)}") from None
    for name, value in bound.arguments.items():
        if name in hints:
            bound.arguments[name] = typed_value(name, value, hints[name], signature.parameters[name].default)
    return bound


@functools.cache
def _declared(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature of a function, and the types of its arguments that are plain.

    Annotations of a user's function that cannot be resolved declare nothing.
    """
    signature = inspect.signature(function)
    try:
        hints = get_type_hints(function)
    except Exception:  # an annotation of a user's function may fail in any way
        return signature, {}
    return signature, {name: hints[name] for name in _single(signature) if name in hints and is_plain(hints[name])}


def _single(signature: inspect.Signature) -> list[str]:
    """Return the names of the arguments that are one value each, and may be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in signature.parameters.values() if each.kind in kinds and each.name != "self"]
