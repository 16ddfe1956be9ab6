"""Users' own files: tables and arrays, damaged in their bytes or in what they say."""

from __future__ import annotations

import csv
import io
import shutil
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz import strange
from fuzz.judge import Case, command

ROWS = [(20 + i, "fm"[i % 2], ("no", "yes")[i % 3 == 0]) for i in range(12)]
HEADER = ("age", "sex", "label")
TINY = ("--rounds", "1", "--steps", "1", "--threads", "1", "--quiet", "--out", "out")


def table(rows: list[tuple[Any, ...]], header: tuple[Any, ...] = HEADER) -> bytes:
    """A table as the bytes of a csv file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode("utf-8", "surrogatepass")


def arrays(**named: Any) -> bytes:
    """Arrays as the bytes of an npz file."""
    file = io.BytesIO()
    np.savez(file, **named)
    return file.getvalue()


def pictures() -> dict[str, Any]:
    """Small pictures of two classes."""
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(30, 1, 4, 4)).astype(np.float32), "y": np.arange(30) % 2}


def write_good(folder: Path) -> None:
    """A folder ``own`` of two clients, a table of all clients and an archive of pictures."""
    (folder / "own").mkdir()
    for name in ("anna", "bert"):
        (folder / "own" / f"{name}.csv").write_bytes(table(ROWS))
    with_client = [(*row, f"c{i % 2}") for i, row in enumerate(ROWS * 2)]
    (folder / "one.csv").write_bytes(table(with_client, (*HEADER, "who")))
    (folder / "pictures.npz").write_bytes(arrays(**pictures()))


def prepare(place: Path) -> None:
    """The same table in a file of the kind that only a library writes."""
    import polars as pl

    pl.DataFrame(ROWS, schema=list(HEADER), orient="row").write_parquet(place / "good.parquet")


def make(rng: Random, prepared: Path) -> Case:
    """One damaged file in a folder of good ones, or alone, checked, shown or run on."""
    kind = rng.choice(("csv", "csv", "parquet", "npz", "npz"))
    folder = Path("own")
    folder.mkdir()
    good = {"csv": table(ROWS), "parquet": (prepared / "good.parquet").read_bytes(), "npz": arrays(**pictures())}[kind]
    for name in ("anna", "bert"):
        (folder / f"{name}.{kind}").write_bytes(good)
    name = rng.choice(("anna", "anna", "anna", _name(rng)))
    bad = folder / f"{name}.{rng.choice((kind, kind, kind, kind, 'csv', 'npz', 'parquet'))}"
    told = _damage(rng, kind, good, bad)
    target = str(rng.choice((folder, folder, bad)))
    extra = rng.choice(
        ([], [], [], ["--label", "age"], ["--missing", "mean"], ["--client", "sex"], ["--ignore", "age"])
    )
    divided = ["--partition", "iid(minimum=1)", "--clients", "2"] if target == str(bad) else []
    words = rng.choice(
        (
            ["data", "check", target, *extra],
            ["run", "fedavg", "--data", target, *TINY, *extra, *divided],
            ["data", "show", target, *extra, *divided],
        )
    )
    return Case(f"coterie {words!r} with {bad}: {told}", command(words), prints=words[1] == "check")


def _name(rng: Random) -> str:
    """A strange name that a file may have."""
    word = strange.text(rng).replace("/", "-").replace("\0", "")[:60]
    return word.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


def _damage(rng: Random, kind: str, good: bytes, bad: Path) -> str:
    """Write a damaged file, or something else in its place, and say what."""
    if rng.random() < 0.04:
        shutil.rmtree(bad) if bad.is_dir() else bad.unlink(missing_ok=True)
        bad.mkdir()
        return "a folder"
    made = {"csv": _rows, "npz": _archive}.get(kind, lambda rng: good)(rng)
    content = made if rng.random() < 0.6 else good
    for _ in range(rng.choice((0, 1, 1, 2)) if content is made and kind != "parquet" else rng.choice((1, 1, 2))):
        content = strange.damaged_bytes(rng, content)
    bad.write_bytes(content)
    return repr(content[:3000])


def _rows(rng: Random) -> bytes:
    """A table some of whose cells, or whose header, are strange."""
    rows: list[list[Any]] = [list(HEADER), *map(list, ROWS)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        row = rng.choice((0, *range(len(rows))))
        match rng.randrange(7):
            case 0:
                rows[row] = rows[row][:-1]
            case 1:
                rows[row] = [*rows[row], strange.text(rng)]
            case 2:
                rows = rows[: rng.randrange(4) + 1]
            case 3:
                for each in rows:
                    each.insert(0, strange.text(rng))
            case _:
                rows[row % len(rows)] = [
                    strange.text(rng) if rng.random() < 0.5 else cell for cell in rows[row % len(rows)]
                ]
        rows = rows or [[]]
    return table([tuple(row) for row in rows[1:]], tuple(rows[0]))


def _archive(rng: Random) -> bytes:
    """An archive whose arrays are of odd shapes, types and numbers, or whose members are no arrays."""
    named = pictures()
    for _ in range(rng.choice((1, 1, 2))):
        key = rng.choice(sorted(named))
        named[key] = _array(rng, named[key])
        if rng.random() < 0.2:
            named[rng.choice(("z", "x_test", "y_test", "x", "y", "a b"))] = named.pop(key)
        named = named or pictures()
    content = arrays(**named)
    if rng.random() < 0.2:
        file = io.BytesIO(content)
        with zipfile.ZipFile(file, "a", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            archive.writestr(
                rng.choice(("note.txt", "z.npy", "../up.npy", "deep/x.npy")), strange.damaged_bytes(rng, b"x")
            )
        content = file.getvalue()
    return content


def _array(rng: Random, good: Any) -> Any:
    """An array that is like a good one but for one thing."""
    shape = rng.choice(((), (0,), (30,), (1, 30), (30, 0), (30, 4, 4), (2, 4, 4, 1, 1), (1,), (30, 1, 4, 4)))
    match rng.randrange(7):
        case 0:
            return np.zeros(shape, rng.choice(("f4", "f8", "i8", "u1", "?", "c8", "U3", "S2", "M8[s]", "f2")))
        case 1:
            return np.array([{"a": 1}, None], dtype=object)
        case 2:
            return np.ones(good.shape).astype(rng.choice(("f2", "f8", "i4", "u8", "c16", "?", "U8", "i1")))
        case 3:
            return good[: rng.randrange(4)]
        case 4:
            return np.full(good.shape, rng.choice((np.nan, np.inf, 1e30, -1e30, 1e308, 0, -1, 2**31)))
    changed = (good.real if good.dtype.kind == "c" else good).astype(float).ravel()
    changed[rng.randrange(len(changed))] = rng.choice((np.nan, np.inf, -1, 0.5, 1e300, 2**40))
    return changed.reshape(good.shape)
