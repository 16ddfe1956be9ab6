"""Nasty files: each is refused with its name, its line and a remedy, or read right; and nothing is written."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.data.federated import Federated
from coterie.data.tables import csv as csv_reader
from coterie.data.tables.api import check_files, read_own
from coterie.data.tables.features import Number
from coterie.errors import DataError

HEADER = "age,sex,label\n"
ROWS = [(20 + i, "fm"[i % 2], ("no", "yes")[i % 3 == 0]) for i in range(12)]
GOOD = HEADER + "".join(f"{age},{sex},{label}\n" for age, sex, label in ROWS)


def rows_of(federated: Federated, client: str) -> list[tuple[object, ...]]:
    """What a client's arrays say, in the user's words, in any order."""
    place, schema = federated.names.index(client), federated.schema
    rows = []
    for split in (federated.train, federated.test):
        for x, y in zip(*split.of(place), strict=True):
            words: list[object] = []
            start = 0
            for feature in schema.features:
                part = x[start : start + feature.width]
                if isinstance(feature, Number):
                    words.append(round(float(part[0]) * feature.std + feature.mean, 3))
                else:
                    words.append(feature.values[int(np.argmax(part))] if part.any() else None)
                start += feature.width
            rows.append((*words, schema.classes[y] if schema.classes else round(float(y) * federated.unit, 3)))
    return sorted(rows, key=str)


def expected(*changed: tuple[int, tuple[object, ...]]) -> list[tuple[object, ...]]:
    """The rows of the good file, some of them changed."""
    rows: list[tuple[object, ...]] = [(float(age), sex, label) for age, sex, label in ROWS]
    for place, row in changed:
        rows[place] = row
    return sorted(rows, key=str)


def line(number: int, text: str) -> bytes:
    """The good file with one line, counted from 1, replaced."""
    lines = GOOD.splitlines()
    lines[number - 1] = text
    return ("\n".join(lines) + "\n").encode()


def parquet(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_parquet(stream)
    return stream.getvalue()


FRAME = pl.DataFrame(ROWS, schema=["age", "sex", "label"], orient="row")
LONG = HEADER + "".join(f"{i},id-{i},{'yes' if i % 2 else 'no'}\n" for i in range(40))

REFUSED: dict[str, tuple[bytes, str]] = {
    "a NaN": (line(4, "NaN,f,no"), r"chur\.csv, line 4: column 'age' is missing a value; fill it in, or use --missing"),
    "an empty field": (line(5, "23,,no"), r"line 5: column 'sex' is missing a value"),
    "a question mark": (line(5, "?,m,no"), r"line 5: column 'age' is missing a value"),
    "an infinity": (line(3, "inf,f,no"), r"line 3: column 'age' has the infinite or too large number inf; correct it"),
    "minus infinity": (line(3, "-Infinity,f,no"), r"line 3: column 'age' has the infinite or too large number -Inf"),
    "a number beyond all bounds": (line(3, "1e400,f,no"), r"line 3: column 'age' has the infinite or too large"),
    "a missing label": (line(6, "24,f,"), r"line 6: column 'label' is missing a value; fill it in"),
    "a word among numbers": (line(13, "old,m,no"), r"line 13: column 'age' has 'old' among its numbers; correct it"),
    "a decimal comma, unquoted": (line(7, "25,5,m,no"), r"line 7: has 4 fields where the header names 3; complete it"),
    "a decimal comma, quoted": (line(7, '"25,5",m,no'), r"line 7: column 'age' has '25,5' among its numbers"),
    "a short row": (line(8, "26,f"), r"line 8: has 2 fields where the header names 3"),
    "a short last row": (GOOD.encode() + b"99", r"line 14: has 1 fields where the header names 3"),
    "a short row in a file with quotes": (line(8, '26,"f"'), r"line 8: has 2 fields where the header names 3"),
    "a short row that a quoted comma makes up for": (
        line(8, "26,f").replace(b"21,m", b'21,"m,"'),
        r"line 8: has 2 fields where the header names 3",
    ),
    "a number whose square is beyond all bounds": (line(3, "1e200,f,no"), r"line 3: .* too large number 1e200"),
    "an empty file": (b"", r"chur\.csv: is empty; leave it out"),
    "only blank lines": (b"\n\n", r"chur\.csv, line 1: the header is blank; begin"),
    "only a header": (HEADER.encode(), r"chur\.csv: holds no rows; leave it out or add rows"),
    "one row": ((HEADER + "20,f,no\n").encode(), r"client 'chur' has 1 row; train and test need 2 at least; add rows"),
    "two columns of one name": (b"age,age,label\n1,2,no\n", r"columns 1 and 2 are both named 'age'; rename or remove"),
    "the same name after trimming": (b"age, age ,label\n1,2,no\n", r"columns 1 and 2 are both named 'age'"),
    "a column without name": (b",age,sex,label\n1,2,f,no\n", r"column 1 has no name; .*index=False"),
    "no label column": (
        b"age,sex,ill\n1,f,no\n",
        r"has no column 'label' but age, sex, ill; name another with --label",
    ),
    "nothing but labels": (b"label\nno\nyes\n", r"has no column besides the label; add columns"),
    "a column too few": (b"age,label\n1,no\n2,yes\n", r"has no column 'sex', which .*bern\.csv has; all need the same"),
    "a column too many": (
        b"age,sex,x,label\n1,f,2,no\n",
        r"has the column 'x', which .*bern\.csv has not; .*--ignore x",
    ),
    "bytes that are not UTF-8": (
        line(9, "28,f,caf\xe9").decode().encode("latin-1"),
        r"line 9: the byte 0xe9 is not UTF-8",
    ),
    "UTF-16": (GOOD.encode("utf-16"), r"chur\.csv, line 1: .*; save it as \.csv in UTF-8"),
    "NUL bytes": (line(9, "28,f\0,no"), r"line 9: holds NUL bytes"),
    "tabs for commas": (GOOD.replace(",", "\t").encode(), r"line 1: fields are separated by tabs; save it with commas"),
    "semicolons": (GOOD.replace(",", ";").encode(), r"line 1: fields are separated by semicolons; save it with commas"),
    "line ends of an old Macintosh": (GOOD.replace("\n", "\r").encode(), r"line 1: lines end with a carriage return"),
    "a Parquet file by another name": (
        parquet(FRAME),
        r"is a Parquet file by its content; give it the suffix \.parquet",
    ),
    "a quotation mark left open": (line(6, '24,"f,no'), r"line 6: a quotation mark is opened and never closed; close"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", r"chur\.csv, line 1: the byte 0x89 is not UTF-8"),
    "a missing value below an embedded line end": (
        line(3, '21,"m\nale",no').replace(b"25,m", b",m"),
        r"chur\.csv, line 8: column 'age' is missing",
    ),
    "a missing value below blank lines": (
        GOOD.replace("21,m", "\n\n21,m").replace("25,m", ",m").encode(),
        r"chur\.csv, line 9: column 'age' is missing",
    ),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "hospitals"
    place.mkdir()
    (place / "bern.csv").write_text(GOOD)
    return place


def refuse(path: Path, complaint: str, **options) -> None:
    """Loading and checking say the same, in one line, and write nothing."""
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(DataError, match=complaint) as caught:
        read_own(path, **options)
    assert "\n" not in str(caught.value)
    assert any(re.search(complaint, str(problem)) for problem in check_files(path, **options).problems)
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", REFUSED)
def test_a_nasty_csv_file_is_refused_with_its_line_and_a_remedy(folder, name):
    content, complaint = REFUSED[name]
    (folder / "chur.csv").write_bytes(content)
    refuse(folder, complaint)


READ: dict[str, tuple[bytes, list[tuple[object, ...]]]] = {
    "as it should be": (GOOD.encode(), expected()),
    "a byte-order mark": (b"\xef\xbb\xbf" + GOOD.encode(), expected()),
    "line ends of Windows": (GOOD.replace("\n", "\r\n").encode(), expected()),
    "no last line end": (GOOD.rstrip().encode(), expected()),
    "blank lines": (GOOD.replace("\n", "\n\n").encode() + b"\n\r\n", expected()),
    "a quoted header": (GOOD.replace(HEADER, '"age","sex","label"\n').encode(), expected()),
    "spaces around names and values": (GOOD.replace(",", " , ").encode(), expected()),
    "a quoted comma": (line(3, '21,"m, or f",no'), expected((1, (21.0, "m, or f", "no")))),
    "an embedded line end": (line(3, '21,"m\nor f",no'), expected((1, (21.0, "m\nor f", "no")))),
    "doubled quotation marks": (line(3, '21,"say ""m""",no'), expected((1, (21.0, 'say "m"', "no")))),
    "quotation marks inside a field": (line(3, '21,5" x 6",no'), expected((1, (21.0, '5" x 6"', "no")))),
    "other ways to write a number": (line(3, "+2.1e1,m,no"), expected()),
    "columns in another order": (
        ("label,sex,age\n" + "".join(f"{label},{sex},{age}\n" for age, sex, label in ROWS)).encode(),
        expected(),
    ),
    "words beyond ASCII": (line(3, "21,für,no"), expected((1, (21.0, "für", "no")))),
}


@pytest.mark.parametrize("name", READ)
def test_an_odd_csv_file_is_read_right(folder, name):
    content, rows = READ[name]
    (folder / "chur.csv").write_bytes(content)
    federated = read_own(folder)
    assert rows_of(federated, "chur") == rows
    assert rows_of(federated, "bern") == expected()
    assert check_files(folder).good


LABELS: dict[str, tuple[list[str], tuple[str, ...] | None]] = {
    "negative": (["-1", "1"], ("-1", "1")),
    "sorted as numbers": (["10", "9", "2"], ("2", "9", "10")),
    "huge": (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993")),
    "zeros in front": (["01", "2"], ("1", "2")),
    "booleans": (["True", "False"], ("False", "True")),
    "words and numbers": (["1", "b"], ("1", "b")),
    "floats": (["0.5", "1.0"], None),
}


@pytest.mark.parametrize("name", LABELS)
def test_any_words_and_whole_numbers_are_classes_and_floats_are_targets(tmp_path, name):
    words, classes = LABELS[name]
    own = [words[i % len(words)] for i in range(12)]
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"{i},{word}\n" for i, word in enumerate(own)))
    federated = read_own(tmp_path)
    assert federated.classes == (None if classes is None else len(classes))
    assert federated.class_names == (classes or ())
    if classes:
        names = [classes[y] for y in np.concatenate([federated.train.y, federated.test.y])]
        assert sorted(names) == sorted(str(int(word)) if name == "zeros in front" else word for word in own)


WHOLE: dict[str, tuple[str, dict[str, object], str]] = {
    "one class": ("x,label\n1,a\n2,a\n3,a\n", {}, r": all labels are 'a'; at least 2 classes"),
    "no label at all": ("x,label\n1,\n2,NA\n", {}, r": the label column 'label' has no value; name another"),
    "a column of decimal commas": (
        "x,sex,label\n" + "".join(f'{i},"{i},5",{i % 2}\n' for i in range(40)),
        {},
        r"column 'sex' looks like numbers with a decimal comma \('0,5'\) and has 40 different words in 40 rows; "
        r"write 1234\.56, or leave it out with --ignore sex",
    ),
    "a column of dates as elsewhere": (
        "x,sex,label\n" + "".join(f"{i},{1 + i % 20}.{1 + i // 20}.2021,{i % 2}\n" for i in range(40)),
        {},
        r"column 'sex' looks like dates \('1\.1\.2021'\) .*; write 2021-12-31, or leave it out with --ignore sex",
    ),
    "an id column": (LONG, {}, r": column 'sex' has 40 different words in 40 rows; leave it out with --ignore sex"),
    "an empty column": ("x,z,label\n1,,a\n2,,b\n3,NA,a\n", {"missing": "mean"}, r"column 'z' has no value at all"),
    "words to regress on": ("x,label\n1,a\n2,b\n", {"task": "regression"}, r"has words, such as 'a'; a regression"),
    "fractions to classify": (
        "x,label\n1,0.5\n2,1\n",
        {"task": "classification"},
        r"has 0\.5, which is not a whole number",
    ),
    "a date to regress on": (
        "x,label\n1,2021-12-30\n2,2021-12-31\n",
        {"task": "regression"},
        r"'label' looks like dates \('2021-12-30'\); save what is to be predicted, such as the days .* with --label$",
    ),
    "a date with too many values for classes": (
        "x,label\n" + "".join(f"1,{1000 + i}-12-31\n" for i in range(1500)),
        {},
        r"'label' looks like dates \('1000-12-31'\); save what is to be predicted, such as the days",
    ),
    "a date as elsewhere": (
        "x,label\n1,30.12.2021\n2,31.12.2021\n",
        {"task": "regression"},
        r"'label' looks like dates \('30\.12\.2021'\); save what is to be predicted, such as the days",
    ),
    "decimal commas to regress on": (
        'x,label\n1,"1234,56"\n2,"7,5"\n',
        {"task": "regression"},
        r"'label' looks like numbers with a decimal comma \('1234,56'\); write 1234\.56, or name another with --label",
    ),
    "too many words": (
        "x,label\n" + "".join(f"1,w{i}\n" for i in range(1500)),
        {},
        r"more than 1000 different values; that is too many for classes; name another with --label$",
    ),
    "too many words to regress on": (
        "x,label\n" + "".join(f"1,w{i}\n" for i in range(1500)),
        {"task": "regression"},
        r"has words, such as 'w0'; a regression needs numbers; name another with --label$",
    ),
    "too many classes": (
        "x,label\n" + "".join(f"1,{i}\n" for i in range(1500)),
        {},
        r"has more than 1000 different values; if it is a quantity, use --task regression",
    ),
    "a label with dirt": (
        "x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(30)) + "1,x\n",
        {},
        r"a\.csv, line 32: the label 'x' is none of the 2 classes, '0', '1'",
    ),
    "a column that is ignored and not there": ("x,label\n1,a\n2,b\n", {"ignore": ("y",)}, r"has no column 'y' but x"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_wrong_with_the_data_as_a_whole_is_refused(tmp_path, name):
    content, options, complaint = WHOLE[name]
    (tmp_path / "a.csv").write_text(content)
    refuse(tmp_path, complaint, **options)


PARQUET: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut short": (lambda: parquet(FRAME)[:-20], r"a\.parquet: is damaged or no \.parquet file .*; save it again"),
    "text": (lambda: GOOD.encode(), r"a\.parquet: is damaged or no \.parquet file"),
    "empty": (lambda: b"", r"a\.parquet: is empty"),
    "without rows": (lambda: parquet(FRAME.clear()), r"a\.parquet: holds no rows"),
    "durations": (
        lambda: parquet(FRAME.with_columns(pl.duration(hours=1).alias("stay"))),
        r"a\.parquet: column 'stay' holds Duration.*, neither numbers, words nor dates; .* --ignore stay",
    ),
    "lists": (lambda: parquet(FRAME.with_columns(pl.lit([1.0]).alias("wave"))), r"column 'wave' holds List\(Float64\)"),
    "a null": (
        lambda: parquet(FRAME.with_columns(pl.when(pl.col("age") != 22).then("age").alias("age"))),
        r"a\.parquet, row 3: column 'age' is missing a value",
    ),
    "a NaN": (
        lambda: parquet(FRAME.with_columns(pl.col("age").cast(pl.Float64).replace(23.0, np.nan))),
        r"a\.parquet, row 4: column 'age' is missing a value",
    ),
    "an infinity": (
        lambda: parquet(FRAME.with_columns(pl.col("age").cast(pl.Float64).replace(23.0, np.inf))),
        r"a\.parquet, row 4: column 'age' has the infinite or too large number inf",
    ),
}


@pytest.mark.parametrize("name", PARQUET)
def test_a_nasty_parquet_file_is_refused_with_its_row_and_a_remedy(tmp_path, name):
    make, complaint = PARQUET[name]
    (tmp_path / "a.parquet").write_bytes(make())
    refuse(tmp_path, complaint)


def test_words_that_are_too_many_only_together_are_refused(tmp_path):
    for name in "ab":
        rows = [f"{name}{i // 2},{'no' if i % 2 else 'yes'}" for i in range(1200)]
        (tmp_path / f"{name}.csv").write_text("word,label\n" + "\n".join(rows))
    refuse(tmp_path, r"column 'word' has more than 1000 different words in 2400 rows; if its values recur, declare it")


def test_a_pickle_in_an_npz_file_is_never_opened(tmp_path):
    (tmp_path / "a.npz").write_bytes(pickle.dumps({"x": 1}))
    refuse(tmp_path, r"a\.npz: is damaged or no \.npz file")


def test_a_folder_by_the_name_of_a_file_is_refused(folder):
    (folder / "chur.csv").mkdir()
    refuse(folder, r"chur\.csv: is not a file; rename or remove it")


def test_nothing_outside_the_folder_is_read(folder, tmp_path):
    (tmp_path / "elsewhere.csv").write_text(GOOD)
    (folder / "chur.csv").symlink_to(tmp_path / "elsewhere.csv")
    refuse(folder, r"chur\.csv: is a link to .*elsewhere\.csv, outside the folder; copy the file itself")
    (folder / "chur.csv").unlink()
    (folder / "chur.csv").symlink_to(folder / "gone.csv")
    refuse(folder, r"chur\.csv: is not a file")
    (folder / "chur.csv").unlink()
    (folder / "chur.csv").symlink_to(folder / "bern.csv")
    assert read_own(folder).names == ("bern", "chur")


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["chur.parquet"], r"holds bern\.csv and chur\.parquet; keep files of one kind"),
        (["bern.npz"], r"holds bern\.csv and bern\.npz; keep files of one kind"),
        (["bern.CSV"], r"holds bern\.CSV and bern\.csv, both of client 'bern'; rename one"),
    ],
)
def test_files_that_do_not_go_together_are_named(folder, names, complaint):
    for name in names:
        (folder / name).write_text(GOOD)
    with pytest.raises(DataError, match=complaint):
        read_own(folder)


def test_a_file_that_may_not_be_read_is_named(folder, monkeypatch):
    (folder / "chur.csv").write_text(GOOD)
    real = Path.open

    def locked(self, *args, **kwargs):
        if self.name == "chur.csv":
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", locked)
    with pytest.raises(DataError, match=r"chur\.csv: cannot be read \(Permission denied\); check its permissions"):
        read_own(folder)


def test_hidden_files_and_other_kinds_are_passed_over(folder):
    (folder / ".chur.csv").write_bytes(b"\0")
    (folder / "readme.txt").write_text("hello")
    assert read_own(folder).names == ("bern",)


def test_all_problems_are_listed_at_once_and_the_first_is_raised(folder):
    (folder / "aarau.csv").write_bytes(line(4, "NaN,,no"))
    (folder / "chur.csv").write_bytes(line(8, "26,f"))
    (folder / "davos.csv").write_bytes(b"age,sex\n1,f\n")
    problems = check_files(folder).problems
    assert [(Path(problem.file).name, problem.row) for problem in problems] == [
        ("davos.csv", None),
        ("chur.csv", 8),
        ("aarau.csv", 4),
        ("aarau.csv", 4),
    ]
    with pytest.raises(DataError, match=r"davos\.csv: .* \(and 3 more: coterie data check .*hospitals lists them\)"):
        read_own(folder)


def test_the_same_problem_in_many_rows_is_listed_once_with_how_often(folder, monkeypatch):
    monkeypatch.setattr(csv_reader, "BLOCK", 20)
    (folder / "chur.csv").write_text(GOOD.replace(",f,", ",,"))
    (problem,) = check_files(folder).problems
    assert problem.row == 2
    assert problem.what == "column 'sex' is missing a value (and in 5 more rows)"


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_label_of_many_digits_is_a_class_or_a_problem_of_its_own_row(tmp_path, digits):
    """Python reads no number of more than 4300 digits."""
    rows = [f"{20 + i},{'fm'[i % 2]},{i % 2}" for i in range(12)]
    (tmp_path / "own").mkdir()
    for name in ("anna", "bert"):
        (tmp_path / "own" / f"{name}.csv").write_text(
            "\n".join(["age,sex,label", *rows, f"20,f,{'9' * digits}"]) + "\n"
        )
    found = check_files(tmp_path / "own", task="classification")
    told = "\n".join(found.lines())
    assert f"{'9' * 19}" in told
    assert digits < 1000 or "line 14" in told
