"""A network as Python gives it: a text, a module, a function that makes one, or a ``Model``."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from coterie.errors import ModelError
from coterie.models.hashing import hash_tensors
from coterie.models.model import UNCOPIED, Model
from coterie.models.refusals import refuse_odd
from coterie.models.rehearsal import rehearsed
from coterie.models.zoo import build_model, takes_shape, takes_vocabulary
from coterie.target import Target

Given = str | Model | nn.Module | Callable[..., nn.Module] | None

MADE_IN_PYTHON = "python:"
"""The text of a network that only Python can make again begins with this."""


def as_model(
    given: Given,
    shape: tuple[int, ...],
    classes: int | None,
    columns: int | None = None,
    vocabulary: int | None = None,
) -> Model:
    """Return the model for examples of one shape; None takes the default of the shape.

    ``columns`` and ``vocabulary`` are those of ``Model``. A module is where every run starts: its weights are kept. A
    function, called with nothing or with ``(shape, outputs)``, makes a new module for each seed; one with an argument
    ``vocabulary`` gets the number of tokens.

    >>> as_model(nn.Linear(3, 2), (3,), 2).layout.size
    8
    """
    if given is None or isinstance(given, str):
        if given is not None and given.startswith(MADE_IN_PYTHON):
            raise ModelError(f"model {given!r} was made in Python; give the module or the function as model=")
        return build_model(given, shape, classes, columns, vocabulary)
    if isinstance(given, Model):
        return given
    made = partial(Model, shape=tuple(shape), classes=classes, columns=columns, vocabulary=vocabulary)
    if isinstance(given, nn.Module):
        text = f"{MADE_IN_PYTHON}{type(given).__name__}"
        refuse_odd(given, text)  # a copy would no longer show what shares memory
        with made(text, lambda: given).blamed(UNCOPIED):
            kept = deepcopy(given)
        return _checked(made(type(given).__name__, lambda: deepcopy(kept)))
    if not callable(given):
        raise ModelError(f"model is a {type(given).__name__}; give a text, a torch.nn.Module or a function")
    name = getattr(given, "__qualname__", type(given).__name__)
    module = getattr(given, "__module__", "__main__")
    if module != "__main__" and "<" not in name and "." not in name:
        return build_model(
            f"{module}:{name}", shape, classes, columns, vocabulary
        )  # a text that the command line understands too
    function, short = given, name.replace("<lambda>", "lambda").rpartition(".")[2]
    arguments = (shape, Target(classes, columns).width) if takes_shape(function) else ()
    words = {"vocabulary": vocabulary} if takes_vocabulary(function) else {}
    return _checked(made(short, lambda: function(*arguments, **words)))


def _checked(given: Model) -> Model:
    """Return a model with a text made of its name and a hash of its layers, and of its weights if they are given."""
    name = given.text

    def made() -> nn.Module:
        module: Any = given.build()
        if not isinstance(module, nn.Module):
            raise ModelError(f"model {name!r} must be a torch.nn.Module, not {type(module).__name__}")
        return module

    first = replace(given, text=f"{MADE_IN_PYTHON}{name}", build=made)
    with torch.random.fork_rng(devices=[]), first.blamed(f"cannot be built for examples of shape {given.shape}"):
        torch.manual_seed(0)
        mark = fingerprint(first.module())
    return rehearsed(replace(first, text=f"{first.text}-{mark}").check())


def fingerprint(module: nn.Module) -> str:
    """Return a short hash of a module's layers and of all its numbers."""
    return hash_tensors(module.state_dict().items(), repr(module), length=8)
