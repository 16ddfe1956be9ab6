"""Checkpoints: the state of the server in one safetensors file, saved and loaded bit for bit.

Arrays are stored under their names, all other values as JSON in the header, with a hash over everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coterie.errors import RunFolderError
from coterie.files import write_atomically
from coterie.protocol.stack import Stack
from coterie.server.contract import MEMORY_TYPES, State
from coterie.typing import Array

KEPT = "kept/"
"""Names of arrays that clients keep between rounds begin with this."""

HEADER = "coterie"
"""The only key of a checkpoint's header: safetensors would write several keys in random order."""

FORMAT = 3
"""The format of checkpoints; 1 and 2, before version 0.2, stored the memory of assign rules without types."""

ARRAY, STACK, TYPE = "$array", "$stack", "$type"
"""Keys that mark, in the JSON of a memory, an array, a stack of models and a dataclass."""


def save_state(path: Path, state: State, kept: Mapping[str, Array] | None = None) -> None:
    """Write a state to a file atomically."""
    write_atomically(path, pack_state(state, kept)[0])


def pack_state(state: State, kept: Mapping[str, Array] | None = None) -> tuple[bytes, str]:
    """Return the bytes of a checkpoint of a state, and its hash.

    ``kept`` are the arrays that simulated clients keep between rounds.
    """
    arrays: dict[str, Array] = {f"{KEPT}{name}": array for name, array in (kept or {}).items()}
    values = _flatten(state, "", arrays)
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    header = {"format": str(FORMAT), "round": str(state.round), "values": json.dumps(values)}
    digest = fingerprint(arrays, header)
    return save(arrays, metadata={HEADER: json.dumps({**header, "hash": digest})}), digest


def load_checkpoint(path: Path) -> tuple[State, dict[str, Array], str]:
    """Return the state in a checkpoint, the arrays that clients kept, and its hash; refuse a damaged file."""
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            header = dict(file.metadata() or {})
        header = dict(json.loads(header[HEADER])) if HEADER in header else header
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise RunFolderError(f"checkpoint {path} cannot be read ({why}); delete the folder and run again") from None
    digest = fingerprint(arrays, {name: text for name, text in header.items() if name != "hash"})
    if header.get("hash") != digest:
        raise RunFolderError(f"checkpoint {path} is damaged (its hash is wrong); delete the folder and run again")
    if header.get("format") != str(FORMAT):
        raise RunFolderError(
            f"checkpoint {path} was written by another version of coterie (format {header.get('format', 'before 3')}, "
            f"this version reads {FORMAT}); resume the run with that version, or run it again with another --out"
        )
    state = _rebuild(arrays, json.loads(header["values"]), int(header["round"]), "")
    return state, _under(KEPT, arrays), digest


def fingerprint(arrays: Mapping[str, Array], header: Mapping[str, str]) -> str:
    """Return a hash over names, types, shapes and bytes of all arrays and over the header."""
    digest = hashlib.blake2b(json.dumps(dict(sorted(header.items()))).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _flatten(state: State, prefix: str, arrays: dict[str, Array]) -> dict[str, Any]:
    """Add the arrays of a state to ``arrays``, under names with a prefix, and return its other values as JSON."""
    stacks = {"": state.stack, "previous.": state.previous, "waiting.": state.waiting}
    for name, stack in stacks.items():
        if stack is not None:
            arrays |= {f"{prefix}{name}params": stack.params, f"{prefix}{name}buffers": stack.buffers}
    arrays |= {f"{prefix}labels": state.labels, f"{prefix}shares": state.shares}
    arrays |= {} if state.memberships is None else {f"{prefix}memberships": state.memberships}
    arrays |= {f"{prefix}moments.{name}": rows for name, rows in state.moments.items()}
    return {
        "formed": state.formed,
        "advice": state.advice,
        "memory": _as_json(state.memory, f"{prefix}memory", arrays),
        "members": [_flatten(member, f"{prefix}members.{i}.", arrays) for i, member in enumerate(state.members)],
    }


def _rebuild(arrays: Mapping[str, Array], values: Mapping[str, Any], number: int, prefix: str) -> State:
    """Return the state that ``_flatten`` was given; ``number`` is its round."""

    def stack(name: str) -> Stack:
        return Stack(arrays[f"{prefix}{name}params"], arrays[f"{prefix}{name}buffers"])

    members = enumerate(values["members"])
    return State(
        stack=stack(""),
        labels=arrays[f"{prefix}labels"],
        round=number,
        previous=stack("previous."),
        shares=arrays[f"{prefix}shares"],
        moments=_under(f"{prefix}moments.", arrays),
        memory=_from_json(values["memory"], arrays),
        advice=values["advice"],
        waiting=stack("waiting.") if f"{prefix}waiting.params" in arrays else None,
        members=tuple(_rebuild(arrays, own, number, f"{prefix}members.{i}.") for i, own in members),
        formed=values["formed"],
        memberships=arrays.get(f"{prefix}memberships"),
    )


def _as_json(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """Return the memory of an assign rule as JSON; add its arrays to ``arrays``, under names that begin with ``name``.

    >>> _as_json({"a": np.zeros(2), "b": [1, None]}, "memory", found := {}), list(found)
    ({'a': {'$array': 'memory.a'}, 'b': [1, None]}, ['memory.a'])
    """
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {ARRAY: name}
    if isinstance(value, Stack):
        return {STACK: {part: _as_json(rows, f"{name}.{part}", arrays) for part, rows in value._asdict().items()}}
    if is_dataclass(value) and not isinstance(value, type):
        if MEMORY_TYPES.get(type(value).__name__) is not type(value):
            raise TypeError(f"a rule remembers a {type(value).__name__}; put @memory_type on its class")
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {TYPE: type(value).__name__, "fields": _as_json(parts, name, arrays)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                raise TypeError(
                    f"a rule remembers a mapping with the key {key!r}; use strings that do not begin with $"
                )
        return {key: _as_json(part, f"{name}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part, f"{name}.{i}", arrays) for i, part in enumerate(value)]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"a rule remembers a {type(value).__name__}; use arrays, numbers, strings or a @memory_type")
    return value


def _from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the memory that ``_as_json`` was given."""
    if isinstance(value, list):
        return [_from_json(part, arrays) for part in value]
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        return arrays[value[ARRAY]]
    if STACK in value:
        return Stack(**_from_json(value[STACK], arrays))
    if TYPE in value:
        if value[TYPE] not in MEMORY_TYPES:
            raise RunFolderError(
                f"the run's assign rule remembers a {value[TYPE]}, which is not registered; import its module first"
            )
        return MEMORY_TYPES[value[TYPE]](**_from_json(value["fields"], arrays))
    return {key: _from_json(part, arrays) for key, part in value.items()}


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
