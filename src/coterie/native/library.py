"""The compiled library: where it is, and its plain C interface (``source/interface.h``, field by field)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from coterie.typing import Array

SWITCH = "COTERIE_NATIVE"
"""The environment variable that turns the library off (``off``), or names an instruction set or a file of its own."""

FILE = Path(__file__).with_name("engine.so")
"""The library, compiled when the package is installed."""


class LayerSpec(Structure):
    """One layer; places are positions in the flat vectors, -1 where there is nothing."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "outputs", "kernel_height", "kernel_width", "stride_height")),
        *(
            (name, c_int64)
            for name in ("stride_width", "pad_height", "pad_width", "weight", "bias", "mean", "variance")
        ),
        *((name, c_int64) for name in ("groups", "whole_channels", "depth")),
        ("number", c_double),
        ("momentum", c_double),
    )


class ChainSpec(Structure):
    """A chain of layers for examples of one shape, and the loss of its outputs."""

    _fields_ = (
        ("layers", POINTER(LayerSpec)),
        *((name, c_int64) for name in ("count", "channels", "height", "width", "loss", "outputs")),
        ("parameters", c_int64),
        ("buffers", c_int64),
    )


class Examples(Structure):
    """The rows of a pool."""

    _fields_ = (("x", c_void_p), ("classes", c_void_p), ("targets", c_void_p))


def _fields(**kinds: str) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a structure, by kind: pointers, whole numbers, numbers, in the order given."""
    types = {"pointers": c_void_p, "integers": c_int64, "numbers": c_double}
    return tuple((name, types[kind.rstrip("_")]) for kind, names in kinds.items() for name in names.split())


class Training(Structure):
    """One pass of local training of many clients."""

    _fields_ = (
        ("examples", Examples),
        *_fields(
            integers="clients",
            pointers="first sizes steps seeds half_seeds dropout_seeds start_params start_buffers start_rows "
            "out_params out_buffers momenta losses status",
            integers_="batch half",
            numbers="lr momentum decay pull",
            integers__="adam anchors ranges",
            pointers_="strengths anchor_rows anchor_params range_anchor range_begin range_end modes",
            integers___="trained trained_buffers",
            pointers__="trained_begin trained_end buffer_begin buffer_end next stop",
        ),
    )


class Evaluation(Structure):
    """Losses and outputs of models on rows of a pool."""

    _fields_ = (
        ("examples", Examples),
        *_fields(
            pointers="rows",
            integers="count part",
            pointers_="params buffers models",
            integers_="model_count",
            pointers__="losses outputs next stop",
        ),
    )


class Slope(Structure):
    """The loss of one model on one minibatch in training mode, and its gradient."""

    _fields_ = (
        ("examples", Examples),
        ("rows", c_void_p),
        ("count", c_int64),
        ("params", c_void_p),
        ("buffers", c_void_p),
        ("dropout_seed", c_uint64),
        ("gradient", c_void_p),
        ("loss", c_void_p),
    )


class Library:
    """The functions of the compiled library; ``target`` is the instruction set in use."""

    def __init__(self, path: Path, wanted: str = "") -> None:
        found = ctypes.CDLL(str(path))
        self.wanted = wanted.encode()
        self.worker = _function(found.coterie_worker, c_void_p, POINTER(ChainSpec), c_int64, c_char_p)
        self.free = _function(found.coterie_worker_free, None, c_void_p)
        self.train = _function(found.coterie_train, c_int, c_void_p, POINTER(Training))
        self.evaluate = _function(found.coterie_evaluate, c_int, c_void_p, POINTER(Evaluation))
        self.slope = _function(found.coterie_slope, c_int, c_void_p, POINTER(Slope))
        self._permutation = _function(found.coterie_permutation, None, c_uint64, c_int64, c_void_p)
        self.target = _function(found.coterie_target, c_char_p, c_char_p)(self.wanted).decode()

    def permutation(self, seed: int, count: int) -> Array:
        """Return 0 .. count - 1 in the order that numpy's generator of this seed draws."""
        order = np.empty(count, dtype=np.int64)
        self._permutation(seed, count, order.ctypes.data)
        return order

    def draws_as_numpy(self) -> bool:
        """Return whether minibatches are those that numpy draws."""
        seeds = (0, 5, 2**32 + 1, 2**63 - 1)
        return all(
            np.array_equal(self.permutation(seed, 67), np.random.Generator(np.random.PCG64(seed)).permutation(67))
            for seed in seeds
        )


def _function(found: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    found.restype, found.argtypes = result, list(arguments)
    called: Callable[..., Any] = found
    return called


def is_switched_off() -> bool:
    """Return whether the environment turns the library off."""
    return os.environ.get(SWITCH, "").lower() in ("off", "0", "no")


def find_library() -> Library | None:
    """Return the compiled library; None if it is switched off, was not compiled, or draws otherwise than numpy."""
    return None if is_switched_off() else _load(os.environ.get(SWITCH, ""))


@cache
def _load(wanted: str) -> Library | None:
    own = wanted.endswith(".so")
    path = Path(wanted) if own else FILE
    if not path.exists():
        return None
    try:
        library = Library(path, "" if own else wanted)
    except (OSError, AttributeError):  # of another machine, or of an earlier version
        return None
    return library if library.draws_as_numpy() else None
