"""The run folder: the files of a run, written atomically, so that a kill at any time loses at most two rounds.

These are the round that is being trained and the one before it, whose checkpoint is written at the same time.

``hashes.txt`` tells a damaged folder from a sound one. A line is a name and a hash. Files that grow have a line for
every round: ``rounds.jsonl:3`` is its first three rounds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from tokenize import TokenError
from typing import Any, NoReturn

import numpy as np
import tomli_w

from coterie.errors import RunFolderError
from coterie.experiments.checkpoint import load_checkpoint, pack_state
from coterie.files import Background, parse_toml, write_atomically
from coterie.server.contract import State
from coterie.typing import Array

CONFIG, SCHEMA, ROUNDS, LABELS, STATE, PREVIOUS, SUMMARY, CLIENTS, MATRIX, APART, SKETCHES, HASHES = (
    "config.toml",
    "schema.json",
    "rounds.jsonl",
    "labels.npy",
    "state.safetensors",
    "state.before.safetensors",
    "summary.json",
    "clients.csv",
    "distances.csv",
    "apart.json",
    "sketches.safetensors",
    "hashes.txt",
)
REQUIRED, OPTIONAL = (CONFIG, ROUNDS, LABELS, CLIENTS, SUMMARY), (SCHEMA, MATRIX, APART, SKETCHES)
"""Files of a finished run with a line in ``hashes.txt``; checkpoints have a line for each round, and a hash inside."""

FORMAT = 2
"""The format in ``config.toml`` of run folders with hashes; older folders have neither."""

HASH_SIZE = 16
"""Bytes of a hash."""

Line = tuple[bytes, dict[str, Any]]
"""A line of ``rounds.jsonl``: its bytes and its record."""


# Reading the files of a run folder. A damaged file is refused.


def read_file(path: Path) -> bytes:
    """Return the content of a file of a run folder; refuse one that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror}") from None


def damaged(path: Path, why: str) -> RunFolderError:
    """Return the error for a damaged file without which a run cannot be resumed."""
    return RunFolderError(f"{path} is damaged ({why}); put it back from a copy, or delete the folder and run again")


def hash_of(content: bytes) -> str:
    """Return the hash of the content of a file."""
    return hashlib.blake2b(content, digest_size=HASH_SIZE).hexdigest()


def as_lines(hashes: Iterable[tuple[str, str]]) -> bytes:
    """Return names and hashes as lines of ``hashes.txt``."""
    return "".join(f"{name} {value}\n" for name, value in hashes).encode()


def load_hashes(folder: Path) -> dict[str, str]:
    """Return the last hash of every name in ``hashes.txt``; nothing if there is no such file."""
    if not (folder / HASHES).exists():
        return {}
    lines = read_file(folder / HASHES).decode(errors="replace").split("\n")
    return dict(line.split(" ", 1) for line in lines if " " in line)


def check_hash(path: Path, hashes: dict[str, str]) -> None:
    """Refuse a file that does not have its recorded hash."""
    if hash_of(read_file(path)) != hashes.get(path.name):
        raise damaged(path, f"its hash is not that in {HASHES}")


def load_config(folder: Path) -> dict[str, Any]:
    """Return the content of ``config.toml``, with its tables of examples and versions."""
    try:
        table = parse_toml(read_file(folder / CONFIG))
    except ValueError as error:
        raise damaged(folder / CONFIG, str(error)) from None
    for name in ("examples", "made_by"):
        if not isinstance(table.setdefault(name, {}), dict):
            raise damaged(folder / CONFIG, f"{name} is {table[name]!r} and must be a table")
    return table


def load_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the records of all rounds, up to the first line that is no record, such as a last line after a kill."""
    return [record for _, record in _load_lines(folder)]


def _load_lines(folder: Path) -> list[Line]:
    """Return the lines of ``rounds.jsonl`` up to the first that is no record of the next round."""
    if not (folder / ROUNDS).exists():
        return []
    lines: list[Line] = []
    for content in read_file(folder / ROUNDS).splitlines(keepends=True):
        record = _parse_object(content)
        number = None if record is None else record.get("round")
        if record is None or type(number) is not int or (lines and number != lines[-1][1]["round"] + 1):
            break
        lines.append((content, record))
    return lines


def _parse_object(content: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if the bytes are no object, or hold NaN or infinity."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        value = json.loads(content.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def load_labels(folder: Path) -> Array:
    """Return every client's label after every round, ``(rounds, clients)``."""
    if not (folder / LABELS).exists():
        return np.zeros((0, 0), dtype=np.int64)
    content = io.BytesIO(read_file(folder / LABELS))
    try:
        labels: Array = np.lib.format.read_array(content, allow_pickle=False)
    except (ValueError, TypeError, EOFError, OverflowError, MemoryError, SyntaxError, TokenError) as error:
        raise damaged(folder / LABELS, " ".join(str(error).split())) from None
    if labels.ndim != 2 or labels.dtype.kind not in "iu":
        raise damaged(folder / LABELS, f"it holds {labels.dtype} of shape {labels.shape}, not whole numbers by round")
    return labels.astype(np.int64)


def load_state(path: Path, hashes: Mapping[str, str] | None = None) -> State:
    """Return the state in a checkpoint; see ``load_checked``."""
    return load_checked(path, hashes)[0]


def load_checked(path: Path, hashes: Mapping[str, str] | None = None) -> tuple[State, dict[str, Array], str]:
    """Return the state in a checkpoint, the arrays that clients kept, and its hash.

    Refuse a checkpoint of another run: if the ``hashes`` of the run folder have any of checkpoints, it must be one.
    """
    state, kept, digest = load_checkpoint(path)
    states = _state_hashes(hashes or {})
    if states and states.get(f"{STATE}:{state.round}") != digest:
        raise damaged(path, f"its hash is not that in {HASHES}")
    return state, kept, digest


def _state_hashes(hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of checkpoints: ``state.safetensors:3`` is that after three rounds, in whichever file it is."""
    return {name: value for name, value in hashes.items() if name.startswith(f"{STATE}:")}


def load_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a finished run, once all its files are checked; None if the run is not finished."""
    if not (folder / SUMMARY).exists():
        return None
    check_finished(folder)
    summary = _parse_object(read_file(folder / SUMMARY))
    if summary is None:
        raise _changed(folder, SUMMARY)
    return summary


NAMED = 5
"""Runs of a folder that are named where one of them is meant."""


def require_finished(folder: Path, *names: str) -> None:
    """Refuse a folder without a finished run, or without one of these files, and a finished run that was changed."""
    if not all((folder / name).exists() for name in (CONFIG, *names, SUMMARY)):
        raise no_finished_run(folder, *names)
    check_finished(folder)


def no_finished_run(folder: Path, *names: str) -> RunFolderError:
    """Return the error of a folder without a finished run: what it holds instead, and what to do."""
    lacking = [name for name in (CONFIG, *names, SUMMARY) if not (folder / name).exists()]
    within = [] if CONFIG not in lacking else sorted(str(path.parent) for path in folder.glob(f"*/*/{CONFIG}"))
    if within:
        more = f" and {len(within) - NAMED} more" if len(within) > NAMED else ""
        what, remedy = "but several runs", f"name one of them: {', '.join(within[:NAMED])}{more}"
    elif CONFIG in lacking:
        what, remedy = f"({CONFIG} is missing)", "name the folder of one"
    else:
        what, remedy = f"({lacking[0]} is missing)", f"finish it with run --resume --out {folder}"
    return RunFolderError(f"{folder} holds no finished run {what}; {remedy}")


def check_finished(folder: Path) -> None:
    """Refuse a finished run with a file that does not have its recorded hash; runs without hashes are accepted."""
    hashes = recorded_hashes(folder)
    if not hashes:
        return
    optional = (name for name in OPTIONAL if (folder / name).exists())
    for name in sorted({*REQUIRED, *optional, *(name for name in hashes if ":" not in name)}):
        if hash_of(read_file(folder / name)) != hashes.get(name):
            raise _changed(folder, name)


def _changed(folder: Path, name: str) -> RunFolderError:
    remedy = f"delete {folder / SUMMARY} and resume (run --resume, or the same compare) to make it again if possible"
    return RunFolderError(f"{folder / name} is not what the run wrote (its hash in {HASHES} is another); {remedy}")


def check_start(folder: Path) -> dict[str, str]:
    """Return the hashes of a run folder; refuse changed settings or a changed schema of tables."""
    hashes, _ = recorded_hashes(folder), load_config(folder)
    if hashes:
        schema = {SCHEMA} if SCHEMA in hashes or (folder / SCHEMA).exists() else set()
        for name in sorted({CONFIG} | schema):
            check_hash(folder / name, hashes)
    return hashes


def recorded_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of a run folder; none for a run that was begun before there were any."""
    hashes = load_hashes(folder)
    if not hashes and (folder / CONFIG).exists() and "format" in load_config(folder)["made_by"]:
        raise damaged(folder / HASHES, "it is empty or missing")
    return hashes


class RunningHashes:
    """The hashes of the records and the labels of a run, updated round by round."""

    def __init__(self) -> None:
        self.rounds = 0
        self.running = {name: hashlib.blake2b(digest_size=HASH_SIZE) for name in (ROUNDS, LABELS)}

    def add(self, line: bytes, labels: Array) -> list[tuple[str, str]]:
        """Add a round, and return the names and values of both hashes after it."""
        row = np.ascontiguousarray(labels, dtype=np.int64)  # labels may have another integer type before they are saved
        self.rounds += 1
        self.running[ROUNDS].update(line)
        self.running[LABELS].update(f"{row.shape}".encode() + row.tobytes())
        return [(f"{name}:{self.rounds}", running.hexdigest()) for name, running in self.running.items()]


@dataclass(eq=False)
class RunFolder:
    """The folder of a run that is being trained: ``create`` makes a new one, ``resume`` continues an existing one.

    ``rounds`` and ``labels`` are the records and labels of all rounds so far, ``kept`` the arrays that clients kept.
    """

    path: Path
    config: Mapping[str, Any] | None = None
    created: Sequence[Path] = ()
    rounds: list[dict[str, Any]] = field(default_factory=list)
    labels: list[Array] = field(default_factory=list)
    kept: dict[str, Array] = field(default_factory=dict)
    hashes: RunningHashes = field(default_factory=RunningHashes)
    state_hashes: dict[str, str] = field(default_factory=dict)
    saved_round: int = 0
    writing: Background = field(default_factory=Background)
    appending: Lock = field(default_factory=Lock)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """Create a folder; refuse one that holds a run. The settings are written with the first round."""
        if (path / CONFIG).exists():
            raise RunFolderError(f"{path} already holds a run; continue it with --resume, or give another --out")
        if any((path / name).exists() for name in (ROUNDS, STATE, PREVIOUS, SUMMARY)):
            raise damaged(path / CONFIG, "it is missing, and other files of a run are present")
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / HASHES, b"")
            (path / HASHES).unlink()
        except OSError as error:
            raise RunFolderError(f"cannot write to {path}: {error.strerror}; give another --out") from None
        return cls(path, config, created)

    def abandon(self) -> None:
        """Remove the folders that were created for a run without any round; keep those that hold other files."""
        if self.config is None:
            return
        (self.path / SCHEMA).unlink(missing_ok=True)
        with suppress(OSError):
            for folder in self.created:
                folder.rmdir()

    def resume(self) -> State | None:
        """Return the newest sound checkpoint with sound records before it; None if there is none.

        Cut all files back to it. If the folder cannot be resumed, refuse it and change nothing.
        """
        for name in (ROUNDS, LABELS, STATE, PREVIOUS, SUMMARY, CLIENTS, MATRIX, APART, SKETCHES, HASHES):
            if (self.path / name).is_dir():
                raise damaged(self.path / name, "it is a folder")
        hashes, lines, labels = check_start(self.path), _load_lines(self.path), load_labels(self.path)
        try:
            state = self._newest_state(lines, labels, hashes)
            count = 0 if state is None else _count_before(state, lines)
            self.rounds, self.labels = [record for _, record in lines[:count]], list(labels[:count])
            self._cut_back()
            self.saved_round = 0 if state is None else state.round
        except OSError as error:
            raise RunFolderError(f"cannot write to {self.path}: {error.strerror}; make it writable") from None
        return state

    def _newest_state(self, lines: list[Line], labels: Array, hashes: Mapping[str, str]) -> State | None:
        """Return the last checkpoint, or the previous one if the last, or a record before it, is damaged.

        A damaged last checkpoint is removed.
        """
        problem: RunFolderError | None = None
        for path in (self.path / STATE, self.path / PREVIOUS):
            if not path.exists():
                continue
            try:
                state, self.kept, digest = load_checked(path, hashes)
                self._check_past(state, lines, labels, hashes)
            except RunFolderError as error:
                problem = problem or error
                continue
            if path.name == PREVIOUS:
                (self.path / STATE).unlink(missing_ok=True)
            self.state_hashes = {**_state_hashes(hashes), f"{STATE}:{state.round}": digest}
            return state
        if problem is not None:
            raise problem
        return None

    def _check_past(self, state: State, lines: list[Line], labels: Array, hashes: Mapping[str, str]) -> None:
        """Refuse records and labels that are not those of the rounds before this state."""
        count = _count_before(state, lines)
        if not count or lines[count - 1][1]["round"] + 1 != state.round:
            raise damaged(self.path / ROUNDS, f"its records end after {count} of {state.round} rounds")
        if labels.shape[0] < count or labels.shape[1] != len(state.labels):
            raise damaged(self.path / LABELS, f"its shape is {labels.shape}, not {(count, len(state.labels))}")
        if not hashes:
            return
        running, last = RunningHashes(), list[tuple[str, str]]()
        for (content, _), row in zip(lines[:count], labels[:count], strict=True):
            last = running.add(content, row)
        for name, value in last:
            if hashes.get(name) != value:
                raise damaged(self.path / name.partition(":")[0], f"its hash is not that in {HASHES}")

    def _cut_back(self) -> None:
        """Write the records, labels and hashes of the rounds that are left; first remove the summary."""
        for path in (self.path / SUMMARY, *(path for path in self.path.glob(".*.*") if path.is_file())):
            path.unlink(missing_ok=True)
        lines = [_line(record) for record in self.rounds]
        write_atomically(self.path / ROUNDS, b"".join(lines))
        if self.labels:
            write_atomically(self.path / LABELS, npy_bytes(np.array(self.labels)))
        past = [pair for line, row in zip(lines, self.labels, strict=True) for pair in self.hashes.add(line, row)]
        start = [(CONFIG, hash_of(read_file(self.path / CONFIG))), *self._schema_hash()]
        write_atomically(self.path / HASHES, as_lines([*start, *past, *self.state_hashes.items()]))

    def _schema_hash(self) -> list[tuple[str, str]]:
        return [(SCHEMA, hash_of(read_file(self.path / SCHEMA)))] if (self.path / SCHEMA).exists() else []

    def add(self, record: dict[str, Any], labels: Array) -> None:
        """Add a round: write its record and hashes now, its labels with the next checkpoint.

        Before the first round write the settings, which make the folder a run's, and their hash.
        """
        if self.config is not None:
            content = tomli_w.dumps(self.config).encode()
            write_atomically(self.path / HASHES, as_lines([(CONFIG, hash_of(content)), *self._schema_hash()]))
            write_atomically(self.path / CONFIG, content)
            self.config = None
        line = _line(record)
        self._append(ROUNDS, line)
        self._append(HASHES, as_lines(self.hashes.add(line, labels)))
        self.rounds.append(record)
        self.labels.append(labels)

    def _append(self, name: str, content: bytes) -> None:
        with self.appending, (self.path / name).open("ab") as file:
            file.write(content)

    def checkpoint(self, state: State, kept: Mapping[str, Array] | None = None, sketches: bytes | None = None) -> None:
        """Begin to write the labels and a checkpoint, once the previous one is on disk; ``wait`` until it is there.

        A state that is saved already is not saved again: it would replace the previous checkpoint. ``sketches`` are
        written where they have changed.
        """
        if state.round != self.saved_round:
            self.writing.begin(partial(self._write, state, dict(kept or {}), list(self.labels), sketches))
            self.saved_round = state.round

    def wait(self) -> None:
        """Return when the last checkpoint is on disk; raise what kept it from being written."""
        self.writing.wait()

    def _write(self, state: State, kept: Mapping[str, Array], labels: Sequence[Array], sketches: bytes | None) -> None:
        """Write the labels and a checkpoint, and keep the previous checkpoint in reserve."""
        content, digest = pack_state(state, kept)
        self._append(HASHES, as_lines([(f"{STATE}:{state.round}", digest)]))
        for name in (ROUNDS, HASHES):
            with (self.path / name).open("rb") as file:
                os.fsync(file.fileno())
        write_atomically(self.path / LABELS, npy_bytes(np.array(labels)))
        if sketches is not None:
            write_atomically(self.path / SKETCHES, sketches)
        if (self.path / STATE).exists():
            os.replace(self.path / STATE, self.path / PREVIOUS)
        write_atomically(self.path / STATE, content)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the hashes of all files, then the summary, which marks the run as finished."""
        self.wait()
        content = (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()
        records = b"".join(map(_line, self.rounds))
        files = {ROUNDS: records, LABELS: npy_bytes(np.array(self.labels)), SUMMARY: content}
        others = (name for name in (CLIENTS, MATRIX, APART, SKETCHES) if (self.path / name).exists())
        files |= {name: read_file(self.path / name) for name in others}
        self._append(HASHES, as_lines((name, hash_of(each)) for name, each in files.items()))
        write_atomically(self.path / SUMMARY, content)


def _count_before(state: State, lines: Sequence[Line]) -> int:
    """Return the number of records before a state; several rounds of a warm-up may share one."""
    return sum(record["round"] < state.round for _, record in lines)


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def npy_bytes(array: Array) -> bytes:
    """Return the content of an ``.npy`` file with an array."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
