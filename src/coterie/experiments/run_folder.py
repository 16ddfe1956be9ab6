"""The run folder: what a run writes, atomically, so that a kill at any moment loses at most one round."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn

import numpy as np
import tomli_w

from coterie.errors import RunFolderError
from coterie.experiments.checkpoint import load_checkpoint, pack_state
from coterie.experiments.hashes import HASHES, Growing, as_lines, check_hash, damaged, hash_of, load_hashes, read_file
from coterie.files import parse_toml, write_atomically
from coterie.server.contract import State
from coterie.typing import Array

CONFIG, SCHEMA, ROUNDS, LABELS, STATE, BEFORE, SUMMARY, CLIENTS, MATRIX = (
    "config.toml",
    "schema.json",
    "rounds.jsonl",
    "labels.npy",
    "state.safetensors",
    "state.before.safetensors",
    "summary.json",
    "clients.csv",
    "distances.csv",
)
ALWAYS, SOMETIMES = (CONFIG, ROUNDS, LABELS, CLIENTS, SUMMARY), (SCHEMA, MATRIX)
"""Files of a finished run that have a line in ``hashes.txt``; checkpoints have one a round, and a hash within."""

FORMAT = 2
"""What ``config.toml`` says of a run folder that has hashes, so that none is taken for an older one."""


def load_state(path: Path, known: Mapping[str, str] | None = None) -> State:
    """The state that was saved; a damaged file is an error, and so is one that is not in the ``known`` hashes."""
    return load_known(path, known)[0]


def load_known(path: Path, known: Mapping[str, str] | None = None) -> tuple[State, dict[str, Array], str]:
    """Return the state of a checkpoint, what clients had kept, and its hash; a damaged file is an error.

    So is a sound one of another run: where the ``known`` hashes of a run folder have any of states, it must be there.
    """
    state, kept, value = load_checkpoint(path)
    states = _states(known or {})
    if states and states.get(f"{STATE}:{state.round}") != value:
        raise damaged(path, f"its hash is not that in {HASHES}")
    return state, kept, value


def _states(known: Mapping[str, str]) -> dict[str, str]:
    """The hashes of checkpoints: ``state.safetensors:3`` is the one after three rounds, whatever its file is called."""
    return {name: value for name, value in known.items() if name.startswith(f"{STATE}:")}


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def npy_bytes(array: Array) -> bytes:
    """An array as the content of an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def load_config(folder: Path) -> dict[str, Any]:
    """What ``config.toml`` says, with its tables of examples and versions; a damaged file is an error."""
    try:
        table = parse_toml(read_file(folder / CONFIG))
    except ValueError as error:
        raise damaged(folder / CONFIG, str(error)) from None
    for name in ("examples", "made_by"):
        if not isinstance(table.setdefault(name, {}), dict):
            raise damaged(folder / CONFIG, f"{name} is {table[name]!r} and must be a table")
    return table


def load_rounds(path: Path) -> list[dict[str, Any]]:
    """The records of all rounds; a line that is no record, as the last one after a kill, ends them."""
    return [record for _, record in _records(path)]


Records = list[tuple[bytes, dict[str, Any]]]


def _led_to(state: State, found: Records) -> int:
    """How many records led to a state: a warm-up's rounds may have one together."""
    return sum(record["round"] < state.round for _, record in found)


def _records(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Every line of the records, as it is and as what it says."""
    if not (path / ROUNDS).exists():
        return []
    found: list[tuple[bytes, dict[str, Any]]] = []
    for line in read_file(path / ROUNDS).splitlines(keepends=True):
        record = _read(line)
        number = None if record is None else record.get("round")
        if record is None or type(number) is not int or (found and number != found[-1][1]["round"] + 1):
            break
        found.append((line, record))
    return found


def _read(content: bytes) -> dict[str, Any] | None:
    """The object that these bytes are in JSON; None if they are no object, or hold what is no number."""
    try:
        value = json.loads(content.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def load_labels(path: Path) -> Array:
    """Every client's label after every round, ``(rounds, clients)``."""
    if not (path / LABELS).exists():
        return np.zeros((0, 0), dtype=np.int64)
    content = io.BytesIO(read_file(path / LABELS))
    try:
        labels: Array = np.lib.format.read_array(content, allow_pickle=False)
    except (ValueError, TypeError, EOFError, OverflowError, MemoryError, SyntaxError, TokenError) as error:
        raise damaged(path / LABELS, " ".join(str(error).split())) from None
    if labels.ndim != 2 or labels.dtype.kind not in "iu":
        raise damaged(path / LABELS, f"it holds {labels.dtype} of shape {labels.shape}, not whole numbers by round")
    return labels.astype(np.int64)


def load_summary(path: Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None; every file beside it must be as the run wrote it."""
    if not (path / SUMMARY).exists():
        return None
    check_finished(path)
    summary = _read(read_file(path / SUMMARY))
    if summary is None:
        raise _to_remake(path, SUMMARY)
    return summary


def check_finished(path: Path) -> None:
    """Refuse a finished run of which a file is not what it was; a run from before there were hashes is believed."""
    known = known_hashes(path)
    for name in sorted({*ALWAYS, *(n for n in SOMETIMES if (path / n).exists()), *_files(known)} if known else ()):
        if hash_of(read_file(path / name)) != known.get(name):
            raise _to_remake(path, name)


def known_hashes(path: Path) -> dict[str, str]:
    """The hashes of a run folder; none where it was begun before there were any."""
    known = load_hashes(path)
    if not known and (path / CONFIG).exists() and "format" in load_config(path)["made_by"]:
        raise damaged(path / HASHES, "it is empty or missing")
    return known


def check_begun(path: Path) -> dict[str, str]:
    """The hashes of a run folder, once its settings, and how tables became arrays, are those it was begun with."""
    known, _ = known_hashes(path), load_config(path)
    begun = {CONFIG, *({SCHEMA} & known.keys())} | ({SCHEMA} if (path / SCHEMA).exists() else set())
    for name in sorted(begun if known else ()):
        check_hash(path / name, known)
    return known


def _files(known: Mapping[str, str]) -> list[str]:
    return [name for name in known if ":" not in name]


def _to_remake(path: Path, name: str) -> RunFolderError:
    remedy = f"delete {path / SUMMARY} and go on (run --resume, or the same compare): what can be made again is"
    return RunFolderError(f"{path / name} is not what the run wrote (its hash in {HASHES} is another); {remedy}")


class RunFolder:
    """One run on disk. ``create`` starts a new one, ``resume`` reads what is there."""

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None, made: Sequence[Path] = ()) -> None:
        self.path, self.config, self.made = path, config, made
        self.rounds: list[dict[str, Any]] = []
        self.labels: list[Array] = []
        self.kept: dict[str, Array] = {}
        self.growing, self.saved, self.states = Growing(ROUNDS, LABELS), 0, dict[str, str]()

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """A new folder; one that already holds a run is never overwritten. It is a run from its first round on."""
        if (path / CONFIG).exists():
            raise RunFolderError(f"{path} already holds a run; continue it with --resume, or give another --out")
        if any((path / name).exists() for name in (ROUNDS, STATE, BEFORE, SUMMARY)):
            raise damaged(path / CONFIG, "it is missing, and what a run wrote is there")
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / HASHES, b"")
            (path / HASHES).unlink()
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
        """The newest sound checkpoint that sound records reach, all cut back to it; None if there is none yet.

        What cannot be gone on with is refused, and then nothing is changed.
        """
        for name in (ROUNDS, LABELS, STATE, BEFORE, SUMMARY, CLIENTS, MATRIX, HASHES):
            if (self.path / name).is_dir():
                raise damaged(self.path / name, "it is a folder")
        known, found, labels = check_begun(self.path), _records(self.path), load_labels(self.path)
        try:
            state = self._newest(found, labels, known)
            count = 0 if state is None else _led_to(state, found)
            self.rounds, self.labels = [record for _, record in found[:count]], list(labels[:count])
            self._cut_back()
            self.saved = 0 if state is None else state.round
        except OSError as error:
            raise RunFolderError(f"cannot write to {self.path}: {error.strerror}; make it writable") from None
        return state

    def _newest(self, found: Records, labels: Array, known: Mapping[str, str]) -> State | None:
        """The state, or the one before where that is damaged or what it follows from is; a bad one is removed."""
        problem: RunFolderError | None = None
        for path in (self.path / STATE, self.path / BEFORE):
            if not path.exists():
                continue
            try:
                state, self.kept, value = load_known(path, known)
                self._check_past(state, found, labels, known)
            except RunFolderError as error:
                problem = problem or error
                continue
            if path.name == BEFORE:
                (self.path / STATE).unlink(missing_ok=True)
            self.states = {**_states(known), f"{STATE}:{state.round}": value}
            return state
        if problem is not None:
            raise problem
        return None

    def _check_past(self, state: State, found: Records, labels: Array, known: Mapping[str, str]) -> None:
        """Refuse records and labels that are not those of the rounds that led to this state."""
        count = _led_to(state, found)
        lines = [line for line, _ in found]
        if not count or found[count - 1][1]["round"] + 1 != state.round:
            raise damaged(self.path / ROUNDS, f"its records end after {count} of {state.round} rounds")
        if labels.shape[0] < count or labels.shape[1] != len(state.labels):
            raise damaged(self.path / LABELS, f"its shape is {labels.shape}, not {(count, len(state.labels))}")
        growing = Growing(ROUNDS, LABELS)
        hashes = dict(pair for each in zip(lines[:count], labels[:count], strict=True) for pair in growing.add(*each))
        for name, value in hashes.items() if known else ():
            if name.endswith(f":{count}") and known.get(name) != value:
                raise damaged(self.path / name.partition(":")[0], f"its hash is not that in {HASHES}")

    def _cut_back(self) -> None:
        """Records, labels and hashes of the rounds that are left; what says that the run is complete goes first."""
        for path in (self.path / SUMMARY, *(path for path in self.path.glob(".*.*") if path.is_file())):
            path.unlink(missing_ok=True)
        lines = [_line(record).encode() for record in self.rounds]
        write_atomically(self.path / ROUNDS, b"".join(lines))
        if self.labels:
            write_atomically(self.path / LABELS, npy_bytes(np.array(self.labels)))
        past = [pair for line, row in zip(lines, self.labels, strict=True) for pair in self.growing.add(line, row)]
        begun = [(name, hash_of(read_file(self.path / name))) for name in (CONFIG, *self._schema())]
        write_atomically(self.path / HASHES, as_lines([*begun, *past, *self.states.items()]))

    def _schema(self) -> list[str]:
        return [SCHEMA] if (self.path / SCHEMA).exists() else []

    def add(self, record: dict[str, Any], labels: Array) -> None:
        """One more round: its record and its hashes on disk at once, its labels with the next checkpoint."""
        if self.config is not None:
            self._begin(self.config)
            self.config = None
        line = _line(record).encode()
        self._append(ROUNDS, line)
        self._append(HASHES, as_lines(self.growing.add(line, labels)))
        self.rounds.append(record)
        self.labels.append(labels)

    def _begin(self, config: Mapping[str, Any]) -> None:
        """The settings, which make the folder a run's, and before them their hash."""
        content = tomli_w.dumps(config).encode()
        tables = [(name, hash_of(read_file(self.path / name))) for name in self._schema()]
        write_atomically(self.path / HASHES, as_lines([(CONFIG, hash_of(content)), *tables]))
        write_atomically(self.path / CONFIG, content)

    def _append(self, name: str, content: bytes) -> None:
        with (self.path / name).open("ab") as file:
            file.write(content)

    def checkpoint(self, state: State, kept: Mapping[str, Array] | None = None) -> None:
        """The hash of the state, labels, then state and what clients keep; the state before stays in reserve.

        A state that is saved already is not saved again: it would take the place of the one before.
        """
        if state.round == self.saved:
            return
        content, value = pack_state(state, kept)
        self._append(HASHES, as_lines([(f"{STATE}:{state.round}", value)]))
        for name in (ROUNDS, HASHES):
            with (self.path / name).open("rb") as file:
                os.fsync(file.fileno())
        write_atomically(self.path / LABELS, npy_bytes(np.array(self.labels)))
        if (self.path / STATE).exists():
            os.replace(self.path / STATE, self.path / BEFORE)
        write_atomically(self.path / STATE, content)
        self.saved = state.round

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The hashes of all files, then the summary, which says that the run is complete."""
        content = (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()
        records = "".join(map(_line, self.rounds)).encode()
        whole = {ROUNDS: records, LABELS: npy_bytes(np.array(self.labels)), SUMMARY: content}
        whole |= {name: read_file(self.path / name) for name in (CLIENTS, MATRIX) if (self.path / name).exists()}
        self._append(HASHES, as_lines((name, hash_of(each)) for name, each in whole.items()))
        write_atomically(self.path / SUMMARY, content)
