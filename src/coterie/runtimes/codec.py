"""Messages as bytes: arrays in safetensors, the task as JSON of known parts. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie.errors import FederationError
from coterie.protocol.message import Arrays
from coterie.protocol.sample import Sample
from coterie.protocol.task import Agreement, BatchLoss, Contrast, Fit, Loss, Near, Others, Proximal, Race, Report, Task

SCORES = (Agreement, BatchLoss, Loss, Race)
PARTS: dict[str, Any] = {p.__name__: p for p in (Contrast, Fit, Near, Others, Proximal, Report, Sample, Task, *SCORES)}
"""Everything that a decoded task may consist of."""


def to_json(value: Any) -> Any:
    """A task, or a part of one, as JSON values; a part carries its name.

    >>> from_json(to_json(Task(fit=(Fit(steps=3),)))) == Task(fit=(Fit(steps=3),))
    True
    """
    if is_dataclass(value):
        return {"kind": type(value).__name__, **{f.name: to_json(getattr(value, f.name)) for f in fields(value)}}
    return [to_json(v) for v in value] if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """The task that JSON values describe; an unknown part is refused."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if not isinstance(value, dict):
        return value
    name = value.get("kind")
    if name not in PARTS:
        raise FederationError(f"a message holds an unknown part {name!r}; known: {', '.join(PARTS)}")
    try:
        return PARTS[name](**{k: from_json(v) for k, v in value.items() if k != "kind"})
    except TypeError as error:
        raise FederationError(f"a message holds a malformed {name}: {error}; do the versions match?") from None


def encode(arrays: Arrays, **header: Any) -> bytes:
    """Arrays and JSON values as bytes."""
    return save(arrays, metadata={"coterie": json.dumps(header)})


def decode(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    """What ``encode`` packed; anything else is an error."""
    try:
        arrays: Arrays = load(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])["__metadata__"]["coterie"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise FederationError(f"a message of {len(content)} bytes cannot be read: {error}") from None
    decoded: dict[str, Any] = json.loads(header)
    return arrays, decoded
