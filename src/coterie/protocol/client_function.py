"""Client functions: what a client computes from its train data, and models, as one array of a declared shape.

A task names one (``Report.describe``) and the array is all that leaves the client. The function is code of a package
that is installed at the client; a site of a federation runs only those that its policy lists, to the letter.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import UsageError
from coterie.outside import find_outside, is_outside
from coterie.protocol.message import DESCRIBED
from coterie.protocol.report import Describe, Report
from coterie.textforms import Call, Value, parse_one
from coterie.typing import Array

if TYPE_CHECKING:
    from torch import nn

    from coterie.models.model import Model

SIZES = ("classes", "features", "latent", "models", "parameters")
"""Words that may stand in a declared shape: the number of classes (or labels, or targets), of numbers in one example,
of inputs of the model's last layer, of cluster models, of parameters. ``classes+1`` is one more."""

LARGEST = 1 << 24
"""The most numbers that a client function may give."""


@dataclass(frozen=True)
class ClientData:
    """What a client function sees of one client.

    x, y      its train examples; y are class numbers, or targets, ``(n, k)`` of several labels or targets
    classes   the number of classes, None for a real target
    model     the model that it was sent, or has just trained, in evaluation mode
    models    all cluster models, if the function is declared with ``all_models``
    rng       a generator of the client's own, addressed by seed, round and name
    attributes  what is known of the client, by the name of the column
    """

    x: Array
    y: Array
    classes: int | None
    _: KW_ONLY
    make_model: Callable[[], nn.Module]
    models: tuple[nn.Module, ...]
    make_rng: Callable[[], np.random.Generator]
    attributes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def model(self) -> nn.Module:
        """Return the client's model; it is built when it is first read, which most functions never do."""
        return self.make_model()

    @cached_property
    def rng(self) -> np.random.Generator:
        """Return the client's generator, at its beginning when it is first read."""
        return self.make_rng()


@dataclass(frozen=True)
class ClientFunction:
    """A function of ``ClientData`` and further arguments, the shape of the array that it gives, and what it needs.

    The shape consists of numbers, of the words in ``SIZES``, and of names of the function's own arguments. ``name`` is
    ``package.module:function``.
    """

    function: Callable[..., Array] = field(repr=False)
    name: str
    shape: tuple[int | str, ...]
    _: KW_ONLY
    all_models: bool = False
    labels: bool = True

    def __call__(self, client: ClientData, *args: Any, **kwargs: Any) -> Array:
        """Compute the array of one client."""
        return self.function(client, *args, **kwargs)

    def report(self, *args: Value, **kwargs: Value) -> Report:
        """Return the report that asks clients for this function's array, with these arguments, and nothing else.

        >>> from coterie.client_functions import label_counts
        >>> label_counts.report().describe.function
        'coterie.client_functions:label_counts'
        """
        if "<" in self.name:
            raise UsageError(f"{self.name} is defined inside a function; define it at the top of a module")
        text = str(Call(self.name, args, tuple(kwargs.items())))
        return Report(params=None, describe=Describe(text, self.all_models))

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the arguments that a text may give: all but the client's data."""
        (_, *others) = inspect.signature(self.function).parameters.items()
        return dict(others)


def client_function(
    *shape: int | str, all_models: bool = False, labels: bool = True
) -> Callable[[Callable[..., Array]], ClientFunction]:
    """Declare a function that clients may be asked for, with the shape of its array.

    ``all_models``: it reads all cluster models, so that all are sent. ``labels=False``: it does not read ``client.y``,
    so that it can describe newcomers whose examples have no labels.

    >>> @client_function("classes")
    ... def label_counts(client):
    ...     return np.bincount(client.y, minlength=client.classes)
    >>> label_counts.shape
    ('classes',)
    """

    def declare(function: Callable[..., Array]) -> ClientFunction:
        name = f"{function.__module__}:{function.__qualname__}"
        made = ClientFunction(function, name, shape, all_models=all_models, labels=labels)
        for size in shape:
            if isinstance(size, str) and _word(size)[0] not in (*SIZES, *made.parameters):
                known = ", ".join((*SIZES, *made.parameters))
                raise UsageError(f"the shape of {function.__name__} has {size!r}; it may have numbers and {known}")
        return made

    return declare


def find_client_function(text: str) -> tuple[ClientFunction, Call]:
    """Import the client function that ``package.module:function(arguments)`` names, and check the arguments."""
    call = parse_one(text)
    if not is_outside(call.name):
        raise UsageError(f"client function {text!r} is no name of a function; write package.module:function")
    found = find_outside("client function", call.name)
    if not isinstance(found, ClientFunction):
        raise UsageError(f"{call.name} is no client function; declare its shape with @coterie.client_function(...)")
    try:
        _bound(found, call)
    except TypeError as error:
        raise UsageError(f"client function {call!s}: {error}; it takes {', '.join(found.parameters)}") from None
    return found, call


def declared_shape(describe: Describe | None, model: Model, models: int) -> tuple[int, ...]:
    """Return the shape of the array that a report asks for, for a network and a number of cluster models."""
    if describe is None:
        return ()
    found, call = find_client_function(describe.function)
    known = {
        "classes": model.target.width,
        "features": math.prod(model.shape),
        "latent": model.latent if "latent" in found.shape else 0,
        "models": models,
        "parameters": model.layout.size,
    }
    given = _bound(found, call)
    sizes = tuple(size if isinstance(size, int) else _number(size, {**given, **known}) for size in found.shape)
    for size, word in zip(sizes, found.shape, strict=True):
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UsageError(f"{word} is {size} in the shape of {call}; it must be a whole number from 0 on")
    if math.prod(sizes) > LARGEST:
        raise UsageError(f"{call} gives arrays of shape {sizes}; at most {LARGEST:,} numbers may leave a client")
    return sizes


def compute(found: ClientFunction, call: Call, client: ClientData, shape: tuple[int, ...]) -> Array:
    """Compute the array of one client; refuse another shape, or numbers that are not finite."""
    array = np.asarray(found(client, *call.args, **dict(call.kwargs)), dtype=np.float64)
    if array.shape != shape:
        raise UsageError(f"{call} gave an array of shape {array.shape}; {shape} is declared")
    if not (np.abs(array) <= DESCRIBED).all():
        raise UsageError(f"{call} gave numbers that are not finite, or beyond {DESCRIBED:g}")
    return array


def _word(size: str) -> tuple[str, int]:
    """Return the word of a size, and what is added to it.

    >>> _word("classes"), _word("classes+1")
    (('classes', 0), ('classes', 1))
    """
    word, _, more = size.partition("+")
    return word, int(more) if more.isdecimal() else 0


def _number(size: str, known: Mapping[str, Any]) -> Any:
    """Return the number that a size of a declared shape stands for; an argument that is no number stays as it is."""
    word, more = _word(size)
    return known[word] + more if more else known[word]


def _bound(found: ClientFunction, call: Call) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included."""
    bound = inspect.Signature(list(found.parameters.values())).bind(*call.args, **dict(call.kwargs))
    bound.apply_defaults()
    return bound.arguments
