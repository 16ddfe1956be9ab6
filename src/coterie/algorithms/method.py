"""Decorators that make a composition of parts a method or an add-on of the catalogue, named by its call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from coterie.algorithms.auto import AUTO, found_by_probe
from coterie.arguments import bound_arguments
from coterie.errors import UsageError
from coterie.protocol.task import Fit, Task
from coterie.server.contract import Algorithm, State
from coterie.textforms import text_of

Compose = TypeVar("Compose", bound=Callable[..., Algorithm])
Change = Callable[[Algorithm], Algorithm]
Configure = TypeVar("Configure", bound=Callable[..., Change])


def method(compose: Compose, name: str | None = None) -> Compose:
    """Name an algorithm by the text of the call that made it, and record the local training it was given.

    A method that changes the local training sets ``Algorithm.fit`` itself. Where the call gives no ``fit``, the
    algorithm can be made again with another one (``Algorithm.refitted``). ``name``: what the text calls it, if that is
    not the name of the function.
    """
    called, signature = name or _name_of(compose), inspect.signature(compose)

    @functools.wraps(compose)
    def build(*args: Any, **kwargs: Any) -> Algorithm:
        bound = bound_arguments(compose, called, args, kwargs)
        text = text_of(bound, called, leave_out=("fit",), keep=("clusters",))
        made = compose(*bound.args, **bound.kwargs)
        if not isinstance(made, Algorithm):
            raise UsageError(f"{text} gives a {type(made).__name__}; a method must return a coterie.Algorithm")
        fit = bound.arguments.get("fit", Fit()) if made.fit == Fit() else made.fit
        open_fit = "fit" in signature.parameters and "fit" not in bound.arguments
        refitted = (lambda other: build(*args, **kwargs, fit=other)) if open_fit else None
        return replace(made, name=text, fit=fit, refitted=refitted)

    return cast(Compose, build)


def finds_number(compose: Compose) -> Compose:
    """Let ``clusters=auto`` of a method be the number that a probe finds; the method itself sees a number."""
    signature = inspect.signature(compose)

    @functools.wraps(compose)
    def build(*args: Any, **kwargs: Any) -> Algorithm:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        clusters, fit = bound.arguments["clusters"], bound.arguments["fit"]
        if isinstance(clusters, int):
            return compose(*args, **kwargs)
        if clusters != AUTO:
            raise UsageError(f"clusters is {clusters}; it must be at least 1, or {AUTO}")
        return found_by_probe(fit, lambda number: compose(**{**bound.arguments, "clusters": number}))

    return cast(Compose, build)


@dataclass(frozen=True)
class Named:
    """An add-on with the text of the call that made it, which becomes part of an algorithm's name."""

    change: Change
    name: str

    def __call__(self, algorithm: Algorithm) -> Algorithm:
        """Return the changed algorithm, named ``algorithm+add-on``."""
        again = algorithm.refitted
        refitted = None if again is None else (lambda fit: self(again(fit)))
        return replace(self.change(algorithm), name=f"{algorithm.name}+{self.name}", refitted=refitted)


def add_on(configure: Configure, name: str | None = None) -> Configure:
    """Name an add-on by the text of the call that made it; ``name`` is what the text calls it, as for ``method``."""
    called = name or _name_of(configure)

    @functools.wraps(configure)
    def build(*args: Any, **kwargs: Any) -> Named:
        bound = bound_arguments(configure, called, args, kwargs)
        text = text_of(bound, called, leave_out=(), keep=())
        change = configure(*bound.args, **bound.kwargs)
        if not callable(change):
            raise UsageError(
                f"{text} gives a {type(change).__name__}; an add-on must return a function from algorithm to algorithm"
            )
        return Named(change.change if isinstance(change, Named) else change, text)

    return cast(Configure, build)


def _name_of(function: Callable[..., Any]) -> str:
    """Return what a text calls a function: its name in the catalogue, or ``package.module:function`` of a user's own.

    A script's own functions cannot be imported by others and have their plain name.
    """
    if function.__module__.partition(".")[0] in ("coterie", "__main__"):
        return function.__name__.replace("_", "-")
    return f"{function.__module__}:{function.__qualname__}"


def always(task: Task) -> Callable[[State], Task]:
    """Give the same task in every round."""
    return lambda state: task
