"""The run folder: what a run writes, atomically, so that a kill at any moment loses at most one round."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coterie.errors import RunFolderError
from coterie.models.layout import Array
from coterie.protocol.stack import Stack
from coterie.server.state import State

CONFIG, SCHEMA, ROUNDS, LABELS, STATE, BEFORE, SUMMARY = (
    "config.toml",
    "schema.json",
    "rounds.jsonl",
    "labels.npy",
    "state.safetensors",
    "state.before.safetensors",
    "summary.json",
)


KEPT = "kept/"
"""The names of what clients keep, in a checkpoint, begin with this."""


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or none of it: temporary file, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_state(path: Path, state: State, kept: Mapping[str, Array] | None = None) -> None:
    """A state as safetensors: arrays by name, JSON values and a hash of everything in the header.

    ``kept`` is what simulated clients keep to themselves between rounds.
    """
    arrays = {**_arrays(state), **{f"{KEPT}{name}": array for name, array in (kept or {}).items()}}
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = {"round": str(state.round), "memory": json.dumps(_values(state))}
    write_atomically(path, save(whole, metadata={**header, "hash": fingerprint(whole, header)}))


def _arrays(state: State) -> dict[str, Array]:
    members = {f"members.{i}.{k}": v for i, member in enumerate(state.members) for k, v in _arrays(member).items()}
    return {
        "params": state.stack.params,
        "buffers": state.stack.buffers,
        "previous.params": state.previous.params,
        "previous.buffers": state.previous.buffers,
        "labels": state.labels,
        "shares": state.shares,
        **{f"moments.{k}": v for k, v in state.moments.items()},
        **{f"memory.{k}": v for k, v in state.memory.items() if isinstance(v, np.ndarray)},
        **members,
    }


def _values(state: State) -> dict[str, Any]:
    """What is JSON in a state: its memory, whether its clusters have formed, and under an empty name its members."""
    own = {k: v for k, v in state.memory.items() if not isinstance(v, np.ndarray)}
    own |= {} if state.formed else {"formed": False}
    return {**own, "": [_values(member) for member in state.members]} if state.members else own


def load_state(path: Path) -> State:
    """The state that was saved; a damaged file is an error."""
    return load_checkpoint(path)[0]


def load_checkpoint(path: Path) -> tuple[State, dict[str, Array]]:
    """The state that was saved, and what clients had kept; a damaged file is an error."""
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            header = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise RunFolderError(f"checkpoint {path} cannot be read ({error}); delete the folder and run again") from None
    if header.pop("hash", None) != fingerprint(arrays, header):
        raise RunFolderError(f"checkpoint {path} is damaged (its hash is wrong); delete the folder and run again")
    kept = _under(KEPT, arrays)
    return _state(arrays, json.loads(header["memory"]), int(header["round"])), kept


def _state(arrays: Mapping[str, Array], values: dict[str, Any], number: int) -> State:
    inner, formed = values.pop("", []), values.pop("formed", True)
    return State(
        stack=Stack(arrays["params"], arrays["buffers"]),
        labels=arrays["labels"],
        round=number,
        previous=Stack(arrays["previous.params"], arrays["previous.buffers"]),
        shares=arrays["shares"],
        moments=_under("moments.", arrays),
        memory={**_under("memory.", arrays), **values},
        members=tuple(_state(_under(f"members.{i}.", arrays), own, number) for i, own in enumerate(inner)),
        formed=formed,
    )


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def npy_bytes(array: Array) -> bytes:
    """An array as the content of an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def load_rounds(path: Path) -> list[dict[str, Any]]:
    """The records of all rounds; a last line cut short by a kill is left out."""
    if not (path / ROUNDS).exists():
        return []
    records = []
    for line in (path / ROUNDS).read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def load_labels(path: Path) -> Array:
    """Every client's label after every round, ``(rounds, clients)``."""
    if not (path / LABELS).exists():
        return np.zeros((0, 0), dtype=np.int64)
    labels: Array = np.load(path / LABELS, allow_pickle=False)
    return labels


def load_summary(path: Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None."""
    if not (path / SUMMARY).exists():
        return None
    summary: dict[str, Any] = json.loads((path / SUMMARY).read_text())
    return summary


def fingerprint(arrays: Mapping[str, Array], header: Mapping[str, str]) -> str:
    """A hash over names, shapes and bytes of all arrays and over the header."""
    digest = hashlib.blake2b(json.dumps(dict(sorted(header.items()))).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class RunFolder:
    """One run on disk. ``create`` starts a new one, ``resume`` reads what is there."""

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None, made: Sequence[Path] = ()) -> None:
        self.path, self.config, self.made = path, config, made
        self.rounds: list[dict[str, Any]] = []
        self.labels: list[Array] = []
        self.kept: dict[str, Array] = {}

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """A new folder; one that already holds a run is never overwritten. It is a run from its first round on."""
        if (path / CONFIG).exists():
            raise RunFolderError(f"{path} already holds a run; continue it with --resume, or give another --out")
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / ROUNDS, b"")
            (path / ROUNDS).unlink()
        except OSError as error:
            raise RunFolderError(f"cannot write to {path}: {error.strerror}; give another --out") from None
        return cls(path, config, made)

    def abandon(self) -> None:
        """Take away the folders that were made for a run without any round; those that hold anything else stay."""
        if self.config is None:
            return
        (self.path / SCHEMA).unlink(missing_ok=True)
        with suppress(OSError):
            for folder in self.made:
                folder.rmdir()

    def resume(self) -> State | None:
        """The newest sound checkpoint that the records reach, records cut back to it; None if there is none yet."""
        for name in (SUMMARY, *(path.name for path in self.path.glob(".*.*"))):
            (self.path / name).unlink(missing_ok=True)
        rounds, labels = load_rounds(self.path), load_labels(self.path)
        known = rounds[: len(labels)]
        state = self._newest(known[-1]["round"] + 1 if known else 0)
        self.rounds = [r for r in known if state is not None and r["round"] < state.round]
        self.labels = list(labels[: len(self.rounds)])
        write_atomically(self.path / ROUNDS, "".join(_line(r) for r in self.rounds).encode())
        return state

    def _newest(self, recorded: int) -> State | None:
        """The state, or the one before where that is damaged or ahead of the records; what is bad is removed."""
        problem: RunFolderError | None = None
        for name in (STATE, BEFORE):
            path = self.path / name
            try:
                state, self.kept = load_checkpoint(path) if path.exists() else (None, {})
                if state is not None and state.round <= recorded:
                    return state
            except RunFolderError as error:
                problem = error
            if (self.path / BEFORE).exists() and name == STATE:
                path.unlink(missing_ok=True)
        if problem is not None:
            raise problem
        return None

    def add(self, record: dict[str, Any], labels: Array) -> None:
        """One more round: its record on disk at once, its labels with the next checkpoint."""
        if self.config is not None:
            write_atomically(self.path / CONFIG, tomli_w.dumps(self.config).encode())
            self.config = None
        with (self.path / ROUNDS).open("a") as file:
            file.write(_line(record))
        self.rounds.append(record)
        self.labels.append(labels)

    def checkpoint(self, state: State, kept: Mapping[str, Array] | None = None) -> None:
        """Labels, then state and what clients keep; the state before stays as a second line of defence."""
        write_atomically(self.path / LABELS, npy_bytes(np.array(self.labels)))
        if (self.path / STATE).exists():
            os.replace(self.path / STATE, self.path / BEFORE)
        save_state(self.path / STATE, state, kept)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary says that the run is complete."""
        write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())
