"""Decorators that make a composition of parts a method or an add-on of the catalogue, named by its call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from coterie.algorithms.auto import AUTO, found_by_probe
from coterie.errors import UsageError
from coterie.protocol.task import Fit, Task
from coterie.server.contract import Algorithm, State
from coterie.textforms import text_of

Compose = TypeVar("Compose", bound=Callable[..., Algorithm])
Change = Callable[[Algorithm], Algorithm]
Configure = TypeVar("Configure", bound=Callable[..., Change])


def method(compose: Compose) -> Compose:
    """Name an algorithm by the text of the call that made it, and record the local training it was given.

    A method that changes the local training sets ``Algorithm.fit`` itself.
    """

    @functools.wraps(compose)
    def build(*args: Any, **kwargs: Any) -> Algorithm:
        bound = inspect.signature(compose).bind(*args, **kwargs)
        text = text_of(bound, compose.__name__.replace("_", "-"), leave_out=("fit",), keep=("clusters",))
        made = compose(*args, **kwargs)
        return replace(made, name=text, fit=bound.arguments.get("fit", Fit()) if made.fit == Fit() else made.fit)

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
        return replace(self.change(algorithm), name=f"{algorithm.name}+{self.name}")


def add_on(configure: Configure) -> Configure:
    """Name an add-on by the text of the call that made it."""

    @functools.wraps(configure)
    def build(*args: Any, **kwargs: Any) -> Named:
        bound = inspect.signature(configure).bind(*args, **kwargs)
        text = text_of(bound, configure.__name__.replace("_", "-"), leave_out=(), keep=())
        return Named(configure(*args, **kwargs), text)

    return cast(Configure, build)


def always(task: Task) -> Callable[[State], Task]:
    """Give the same task in every round."""
    return lambda state: task
