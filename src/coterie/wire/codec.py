"""Pack messages into bytes and read them: arrays as safetensors, the task as JSON of known parts, no pickle.

Safetensors has no compression, so a message cannot grow when it is read: its arrays are no larger than its bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie.errors import FederationError, UsageError
from coterie.protocol.message import Arrays
from coterie.protocol.report import Describe, Report, Sample
from coterie.protocol.task import (
    Agreement,
    BatchLoss,
    Contrast,
    Fit,
    Loss,
    Near,
    Others,
    Proximal,
    Race,
    Task,
)
from coterie.terminal import line

SCORES = (Agreement, BatchLoss, Loss, Race)
_OTHERS = (Contrast, Describe, Fit, Near, Others, Proximal, Report, Sample, Task)
PARTS: dict[str, Any] = {part.__name__: part for part in (*_OTHERS, *SCORES)}
"""The parts that a decoded task may consist of, by name."""

LARGEST_HEADER = 1 << 24
"""The most bytes in the header of a message: far more than any task needs."""

LARGEST_NUMBER = 1 << 63
LONGEST_TEXT = 1000
LONGEST_PROBLEM = 500
MOST_PARTS = 100
MOST_VALUES = 1_000_000


def to_json(value: Any) -> Any:
    """Return a task, or a part of one, as JSON values; each part carries its name as ``kind``.

    >>> from_json(to_json(Task(fit=(Fit(steps=3),)))) == Task(fit=(Fit(steps=3),))
    True
    """
    if is_dataclass(value):
        return {"kind": type(value).__name__, **{f.name: to_json(getattr(value, f.name)) for f in fields(value)}}
    return [to_json(v) for v in value] if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """Return the task that JSON values describe; refuse an unknown part or a value of the wrong type."""
    name = value.get("kind") if isinstance(value, dict) else value
    if not isinstance(value, dict) or not isinstance(name, str) or name not in PARTS:
        raise FederationError(f"a message holds an unknown part {_excerpt(name)}; known: {', '.join(PARTS)}")
    return read_as(PARTS[name], value, "a message")


def read_as(wanted: Any, value: Any, where: str) -> Any:
    """Return the value of type ``wanted`` that JSON values describe; errors call it ``where``.

    The depth of the recursion is that of the type, whatever the message holds.

    >>> read_as(tuple[int, int], [1, 2], "the key")
    (1, 2)
    """
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    for option in options:
        if _matches(option, value):
            return _build(option, value, where)
    names = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise FederationError(f"{where} is {_excerpt(value)} in a message; it must be {names}; do the versions match?")


def _matches(option: Any, value: Any) -> bool:
    """Return whether a value is of a type, without looking into lists and parts; a bool is not a number."""
    if isinstance(option, type) and is_dataclass(option):
        return isinstance(value, dict) and value.get("kind") == option.__name__
    if get_origin(option) is tuple:
        return isinstance(value, list)
    if option is float:
        return type(value) in (int, float) and abs(value) < LARGEST_NUMBER and isfinite(value)
    if option is int:
        return type(value) is int and abs(value) < LARGEST_NUMBER
    return type(value) is option and (option is not str or len(value) <= LONGEST_TEXT)


def _build(option: Any, value: Any, where: str) -> Any:
    """Build the value of a type that it matches, part by part."""
    if is_dataclass(option):
        return _build_part(option, value)
    if get_origin(option) is not tuple:
        return value
    kinds = get_args(option)
    if kinds[-1] is not Ellipsis:
        if len(value) != len(kinds):
            raise FederationError(f"{where} has {len(value)} values in a message; it must have {len(kinds)}")
        return tuple(read_as(kind, each, where) for kind, each in zip(kinds, value, strict=True))
    most = MOST_PARTS if any(isinstance(each, dict) for each in value[:1]) else MOST_VALUES
    if len(value) > most:
        raise FederationError(f"{where} has {len(value)} values in a message; it may have {most} at most")
    return tuple(read_as(kinds[0], each, where) for each in value)


def _build_part(kind: Any, value: dict[str, Any]) -> Any:
    """Build a dataclass from its fields; refuse fields that it does not have."""
    hints = _hints(kind)
    unknown = [name for name in value if name not in hints and name != "kind"]
    if unknown:
        raise FederationError(f"a message holds a malformed {kind.__name__}: it has no {_excerpt(unknown[0])}")
    given = {n: read_as(hints[n], v, f"{n} of {kind.__name__}") for n, v in value.items() if n != "kind"}
    try:
        return kind(**given)
    except (TypeError, UsageError) as error:
        raise FederationError(f"a message holds a malformed {kind.__name__}: {error}; do the versions match?") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _excerpt(value: Any) -> str:
    """Return a short text for a value, for errors."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value) if not isinstance(value, int) or abs(value) < LARGEST_NUMBER else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."


def encode(arrays: Arrays, **header: Any) -> bytes:
    """Pack arrays and JSON values into bytes."""
    return save(arrays, metadata={"coterie": json.dumps(header)})


@dataclass(frozen=True)
class Packed:
    """A message with its header read and its arrays not; ``kinds`` holds the type and the shape of each array."""

    content: bytes
    header: dict[str, Any]
    kinds: dict[str, tuple[str, tuple[int, ...]]]

    def arrays(self) -> Arrays:
        """Read the arrays, which are exactly of the shapes in the header."""
        try:
            arrays: Arrays = load(self.content)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(self.content, error) from None
        if {name: array.shape for name, array in arrays.items()} != {n: shape for n, (_, shape) in self.kinds.items()}:
            raise _unreadable(self.content, "its arrays are not those of its header")
        return arrays


def unwrap(content: bytes) -> Packed:
    """Read the header of a message; raise an error for anything that ``encode`` did not pack."""
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= min(LARGEST_HEADER, len(content) - 8):
        raise _unreadable(content, f"its header has {length} bytes; the limit is {LARGEST_HEADER}, all in the message")
    try:
        table = json.loads(content[8 : 8 + length], parse_constant=_refuse_constant)
        header = json.loads(table.pop("__metadata__")["coterie"], parse_constant=_refuse_constant)
        kinds = {name: (each["dtype"], tuple(each["shape"])) for name, each in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(content, type(error).__name__) from None
    sizes = [size for _, shape in kinds.values() for size in shape]
    if not isinstance(header, dict) or not all(type(size) is int and size >= 0 for size in sizes):
        raise _unreadable(content, "its header is not one of coterie's")
    return Packed(content, header, kinds)


def decode(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and the header that ``encode`` packed; raise an error for anything else."""
    packed = unwrap(content)
    return packed.arrays(), packed.header


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _unreadable(content: bytes, why: object) -> FederationError:
    return FederationError(f"a message of {len(content)} bytes cannot be read: {line(why, 200)}")
