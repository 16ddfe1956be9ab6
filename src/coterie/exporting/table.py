"""Rows of a .csv file become numbers, and answers become a table, as schema.json beside this file says.

This file is in every exported folder. It needs numpy alone: neither coterie nor torch.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parent
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Words, in small or capital letters, that stand for a missing value."""

DATE = re.compile(r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(?::(\d{2})(?:\.\d{1,9})?)?)?(?:Z|[+-]\d{2}:?\d{2})?$")
"""A date as ISO 8601 writes it, perhaps with a time of day and an offset, which is left out."""

MARKS = {";": "semicolons", "\t": "tabs"}
"""What fields may not be separated by."""

SHOWN = 20
"""Problems of a file that are shown."""


class Column(NamedTuple):
    """A column of a file: its words without outer spaces, and the line of each."""

    words: list[str]
    lines: list[int]


class Problems(list[str]):
    """What cannot be used in a file, a line of text each, and ``notes`` on what is read all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def refuse(self, file: str | Path) -> None:
        """End the program with all problems, if there is any."""
        if self:
            more = [f"and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
            sys.exit("\n".join(f"error: {file}, {each}" for each in [*self[:SHOWN], *more]))


def read(file: str | Path | None = None, folder: Path = FOLDER) -> Any:
    """Return the input of the model, a row for each row of a .csv file; or the array of a .npy or .npz file.

    Without a name the file is the one that the command line names.
    """
    if file is None:
        file = sys.argv[1] if len(sys.argv) == 2 else sys.exit(f"usage: python {sys.argv[0]} FILE")
    schema = load_schema(folder)
    try:
        return _read_table(file, schema) if "features" in schema else read_array(file, schema["input"])
    except (OSError, ValueError, KeyError, EOFError, csv.Error, zipfile.BadZipFile) as error:
        sys.exit(f"error: {file} cannot be read: {_why(file, error, 'features' in schema)}")


def _why(file: str | Path, error: Exception, is_table: bool) -> str:
    """Say why a file cannot be read, and what to do."""
    wanted = "a .csv file in UTF-8" if is_table else "a .npy file, or a .npz file with x"
    if isinstance(error, FileNotFoundError):
        return f"there is no such file; check its name, or name {wanted}"
    if isinstance(error, IsADirectoryError):
        return f"it is a folder; name {wanted}"
    if isinstance(error, UnicodeDecodeError):
        with open(file, "rb") as content:
            kind = "a Parquet file" if content.read(4) == b"PAR1" else "not text in UTF-8"
        return f"it is {kind}; save it as {wanted}"
    if not is_table and not isinstance(error, OSError):
        return f"it holds no array of numbers; save it as {wanted}"
    return f"{' '.join(str(error).split())} ({type(error).__name__}); save it as {wanted}"


def _read_table(file: str | Path, schema: Mapping[str, Any]) -> Any:
    problems = Problems()
    columns = read_columns(file, [feature["name"] for feature in schema["features"]], problems)
    problems.refuse(file)
    parts = [encode(each, columns[each["name"]], schema, problems) for each in schema["features"]]
    problems.refuse(file)
    print(*(f"note: {note}\n" for note in problems.notes), sep="", end="", file=sys.stderr)
    return np.concatenate(parts, axis=1, dtype=np.float32)


def write(answers: Any, folder: Path = FOLDER) -> None:
    """Print the answers of the model as a .csv table; end quietly where the reader of the output has read enough."""
    output = load_schema(folder)["output"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    try:
        writer.writerow(header(output))
        writer.writerows(rows(answers, output))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it closes it
        sys.exit(1)


def load_schema(folder: Path) -> dict[str, Any]:
    """Return the content of schema.json."""
    found: dict[str, Any] = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
    return found


def header(output: Mapping[str, Any]) -> list[str]:
    """Return the columns of a table of answers.

    >>> header({"kind": "classes", "names": ["no", "yes"]})
    ['prediction', 'probability_no', 'probability_yes']
    >>> header({"kind": "numbers", "names": ["price"]})
    ['prediction']
    """
    kind, names = output["kind"], output["names"]
    chances = [f"probability_{name}" for name in names]
    if kind == "classes":
        return ["prediction", *chances]
    several = [f"prediction_{name}" for name in names] if len(names) > 1 else ["prediction"]
    return several + chances if kind == "labels" else several


def rows(answers: Any, output: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the answers row by row: what is predicted, then the probabilities, if there are any.

    >>> list(rows(np.array([[0.25, 0.75]]), {"kind": "classes", "names": ["no", "yes"]}))
    [['yes', '0.25', '0.75']]
    >>> list(rows(np.array([[0.25, 0.75]]), {"kind": "labels", "names": ["a", "b"]}))
    [[0, 1, '0.25', '0.75']]
    """
    kind, names = output["kind"], output["names"]
    for answer in answers:
        shown = [f"{value:.7g}" for value in answer.tolist()]
        if kind == "classes":
            yield [names[int(answer.argmax())], *shown]
        elif kind == "labels":
            yield [*(answer > 0.5).astype(int).tolist(), *shown]
        else:
            yield shown


def read_columns(file: str | Path, names: Sequence[str], problems: Problems) -> dict[str, Column]:
    """Return the named columns of a .csv file; its other columns are passed over."""
    with open(file, newline="", encoding="utf-8-sig") as text:
        lines, records = _records(csv.reader(text))
    head = [name.strip() for name in records[0]] if records else []
    absent = [repr(name) for name in names if name not in head]
    mark = next((word for mark, word in MARKS.items() if len(head) == 1 and mark in head[0]), None)
    if not records:
        problems.append("line 1: the file is empty; begin it with the names of its columns")
    elif absent and mark:
        problems.append(f"line 1: fields are separated by {mark}; save it with commas")
    elif absent:
        problems.append(f"line 1: there is no column {', '.join(absent)}; add {'it' if len(absent) == 1 else 'them'}")
    elif len(records) == 1:
        problems.append(f"line {lines[0]}: no rows follow the names of the columns; add some")
    for line, record in zip(lines[1:], records[1:], strict=True):
        if len(record) != len(head):
            problems.append(f"line {line}: has {len(record)} fields where the header names {len(head)}; complete it")
    if problems:
        return {}
    places = {name: head.index(name) for name in names}
    return {name: Column([record[at].strip() for record in records[1:]], lines[1:]) for name, at in places.items()}


def _records(reader: Any) -> tuple[list[int], list[list[str]]]:
    """Return the line on which each record begins, and its fields, without blank lines."""
    found, line = [], 1
    for record in reader:
        found.append((line, record))
        line = reader.line_num + 1
    full = [(line, record) for line, record in found if record]
    return [line for line, _ in full], [record for _, record in full]


def encode(feature: Mapping[str, Any], column: Column, schema: Mapping[str, Any], problems: Problems) -> Any:
    """Return the inputs of a column; with an indicator the last is 1 where there is no value that the model knows."""
    missing = np.array([word.lower() in MISSING for word in column.words], dtype=bool)
    if schema["missing"] == "error":
        has = f"column {feature['name']!r} has"
        problems.extend(_told(column, missing, has, "a missing value; fill it in or leave the row out"))
    x, unknown, told = ENCODERS[feature["kind"]](feature, column)
    forgiven = feature["kind"] == "category" and schema["missing"] == "indicator"
    if not forgiven:
        problems.extend(_told(column, unknown & ~missing, f"column {feature['name']!r} has", f"{told}; correct it"))
    elif (unknown & ~missing).any():
        problems.notes.append(_unseen(feature, column, unknown & ~missing))
    x = np.where((missing | unknown)[:, None], 0, x)
    return np.column_stack([x, missing | unknown]) if feature.get("indicator") else x


def encode_number(feature: Mapping[str, Any], column: Column) -> tuple[Any, Any, str]:
    """Return ``(value - mean) / std``, which values are none, and what to say of these.

    Whole numbers of few values have one more input for each value.
    """
    found = np.array([_number(word) for word in column.words], dtype=np.float64)
    with np.errstate(over="ignore"):
        scaled = ((found - feature["mean"]) / feature["std"]).astype(np.float32)
    values = np.array(feature.get("values", ()), dtype=np.float64)
    x = np.column_stack([scaled, found[:, None] == values])
    return x, ~np.isfinite(scaled), "where a number is needed that is not too large"


def encode_category(feature: Mapping[str, Any], column: Column) -> tuple[Any, Any, str]:
    """Return an input for each value, which is 1 for the value of the row and else 0."""
    places = {value: place for place, value in enumerate(feature["values"])}
    codes = np.array([places.get(word, -1) for word in column.words], dtype=np.int64)
    return codes[:, None] == np.arange(len(places)), codes < 0, "which the model has never seen"


def encode_hashed(feature: Mapping[str, Any], column: Column) -> tuple[Any, Any, str]:
    """Return an input for each of some buckets, which is 1 for the one that the hash of the word gives."""
    codes = np.array([zlib.crc32(word.encode()) % feature["buckets"] for word in column.words], dtype=np.int64)
    return codes[:, None] == np.arange(feature["buckets"]), np.zeros(len(codes), bool), ""


def encode_date(feature: Mapping[str, Any], column: Column) -> tuple[Any, Any, str]:
    """Return the standardised day, and sine and cosine of the place in the year, in the week and perhaps in the day."""
    days = np.array([_days(word) for word in column.words], dtype=np.float64)
    place = [days / 365.2425, np.floor(days) / 7, *([days] if feature.get("hours") else [])]
    waves = [wave(2 * np.pi * (each % 1)) for each in place for wave in (np.sin, np.cos)]
    scaled = (days - feature["mean"]) / feature["std"]
    return np.column_stack([scaled, *waves]), np.isnan(days), "where a date such as 2013-01-31 is needed"


ENCODERS = {"number": encode_number, "category": encode_category, "hashed": encode_hashed, "date": encode_date}
"""How a column becomes inputs, by the kind of the feature."""


def read_array(file: str | Path, expected: Mapping[str, Any]) -> Any:
    """Return the examples in a .npy file, or those named x in a .npz file."""
    with open(file, "rb") as content:
        loaded = np.load(content, allow_pickle=False)
        x = loaded if isinstance(loaded, np.ndarray) else loaded["x"]
    if list(x.shape[1:]) != list(expected["shape"]):
        sys.exit(f"error: {file} has examples of shape {x.shape[1:]}; the model needs {tuple(expected['shape'])}")
    return x.astype(expected["type"])


def _number(word: str) -> float:
    """Return the number that a word spells, infinity beyond 1e100, and NaN if it is none."""
    try:
        value = float(word if word.isascii() and "_" not in word else "nan")
    except ValueError:
        return float("nan")
    return value if abs(value) <= 1e100 or value != value else float("inf")


def _days(word: str) -> float:
    """Return a date, and perhaps a time as clocks showed it, as days since the beginning of 2000; NaN if it is none.

    >>> _days("2000-01-02"), _days("2000-01-01T06:00+02:00"), _days("2000-02-30")
    (1.0, 0.25, nan)
    """
    parts = DATE.match(word)
    try:
        found = parts and datetime.fromisoformat(f"{parts[1]} {parts[2] or '00:00'}")
    except ValueError:
        return float("nan")
    if not parts or not found or int(parts[3] or 0) > 60:
        return float("nan")
    return ((found - datetime(2000, 1, 1)).total_seconds() + int(parts[3] or 0)) / 86400


def _unseen(feature: Mapping[str, Any], column: Column, unseen: Any) -> str:
    """Say that a column has values that training never saw, and how they are read."""
    name, word, rows = feature["name"], column.words[int(unseen.argmax())], int(unseen.sum())
    have, they_are = ("row has", "it is") if rows == 1 else ("rows have", "they are")
    marked = feature.get("indicator")
    read_as = "missing" if marked else "none of its values, which training never saw either: rely on them less"
    return f"{rows} {have} a value of {name!r} that training never saw, such as {word!r}; {they_are} read as {read_as}"


def _told(column: Column, bad: Any, before: str, after: str) -> Iterable[str]:
    for row in np.flatnonzero(bad).tolist():
        yield f"line {column.lines[row]}: {before} {column.words[row]!r}, {after}"
