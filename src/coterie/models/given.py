"""A network as Python gives it: a text, a module, a function that makes one, or a ``Model``."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from coterie.errors import ModelError
from coterie.models.hashing import hash_tensors
from coterie.models.model import UNCOPIED, Model
from coterie.models.refusals import refuse_odd
from coterie.models.rehearsal import rehearsed
from coterie.models.zoo import build_model, takes_shape

Given = str | Model | nn.Module | Callable[..., nn.Module] | None

MADE_IN_PYTHON = "python:"
"""The text of a network that only Python can make again begins with this."""


def as_model(given: Given, shape: tuple[int, ...], classes: int | None) -> Model:
    """Return the model for examples of one shape; None takes the default of the shape.

    A module is where every run starts: its weights are kept. A function, called with nothing or with
    ``(shape, outputs)``, makes a new module for each seed.

    >>> as_model(nn.Linear(3, 2), (3,), 2).layout.size
    8
    """
    if given is None or isinstance(given, str):
        if given is not None and given.startswith(MADE_IN_PYTHON):
            raise ModelError(f"model {given!r} was made in Python; give the module or the function as model=")
        return build_model(given, shape, classes)
    if isinstance(given, Model):
        return given
    if isinstance(given, nn.Module):
        return _from_module(given, shape, classes)
    if not callable(given):
        raise ModelError(f"model is a {type(given).__name__}; give a text, a torch.nn.Module or a function")
    return _from_function(given, shape, classes)


def _from_module(given: nn.Module, shape: tuple[int, ...], classes: int | None) -> Model:
    name = type(given).__name__
    refuse_odd(given, f"{MADE_IN_PYTHON}{name}")  # a copy would no longer show what shares memory
    with Model(f"{MADE_IN_PYTHON}{name}", lambda: given, shape, classes).blamed(UNCOPIED):
        kept = deepcopy(given)
    return _checked(name, lambda: deepcopy(kept), shape, classes)


def _from_function(function: Callable[..., nn.Module], shape: tuple[int, ...], classes: int | None) -> Model:
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", "__main__")
    if module != "__main__" and "<" not in name and "." not in name:
        return build_model(f"{module}:{name}", shape, classes)  # a text that the command line understands too
    arguments = (shape, 1 if classes is None else classes) if takes_shape(function) else ()
    return _checked(name.replace("<lambda>", "lambda").rpartition(".")[2], lambda: function(*arguments), shape, classes)


def _checked(name: str, build: Callable[[], Any], shape: tuple[int, ...], classes: int | None) -> Model:
    """Return a model with a text made of its class and a hash of its layers, and of its weights if they are given."""

    def made() -> nn.Module:
        module = build()
        if not isinstance(module, nn.Module):
            raise ModelError(f"model {name!r} must be a torch.nn.Module, not {type(module).__name__}")
        return module

    first = Model(f"{MADE_IN_PYTHON}{name}", made, tuple(shape), classes)
    with torch.random.fork_rng(devices=[]), first.blamed(f"cannot be built for examples of shape {shape}"):
        torch.manual_seed(0)
        mark = fingerprint(first.module())
    return rehearsed(Model(f"{MADE_IN_PYTHON}{name}-{mark}", made, tuple(shape), classes).check())


def fingerprint(module: nn.Module) -> str:
    """Return a short hash of a module's layers and of all its numbers."""
    return hash_tensors(module.state_dict().items(), repr(module), length=8)
