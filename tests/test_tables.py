"""A user's tables: the same federation from files, one table or Parquet; scaled by train rows; checked before use."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.data import array_memory
from coterie.data.array_memory import allocate, row_blocks, take_rows
from coterie.data.federated import Federated, Split
from coterie.data.tables import csv as csv_reader
from coterie.data.tables import files
from coterie.data.tables.api import check_own, load_own, load_pooled
from coterie.data.tables.rows import split_rows
from coterie.errors import DataError, UnknownName

CITIES = ("aarau", "bern", "chur")


def table(rows: int = 90) -> pl.DataFrame:
    """Patients of three hospitals, in no order, with a number, a category and a label."""
    rng = np.random.default_rng(3)
    return pl.DataFrame(
        {
            "hospital": [CITIES[i] for i in rng.integers(3, size=rows)],
            "age": rng.normal(50, 10, rows),
            "sex": [("f", "m")[i] for i in rng.integers(2, size=rows)],
            "label": [("ill", "well")[i] for i in rng.integers(2, size=rows)],
        }
    )


def folder_of(frame: pl.DataFrame, place: Path, suffix: str) -> Path:
    """One file per hospital."""
    place.mkdir()
    for name in frame["hospital"].unique():
        own = frame.filter(pl.col("hospital") == name).drop("hospital")
        if suffix == "csv":
            own.write_csv(place / f"{name}.csv")
        else:
            own.write_parquet(place / f"{name}.parquet")
    return place


def same(left: Federated, right: Federated) -> bool:
    """Whether two federations have the same clients with the same arrays, to the bit."""
    pairs = [(left.train, right.train), (left.test, right.test)]
    if left.validation is not None and right.validation is not None:
        pairs.append((left.validation, right.validation))
    arrays = [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in ("x", "y", "offsets")]
    return left.names == right.names and all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in arrays)


@pytest.fixture
def one(tmp_path) -> Path:
    table().write_csv(tmp_path / "all.csv")
    return tmp_path / "all.csv"


def test_a_folder_of_csv_or_parquet_files_and_one_table_are_the_same_federation(one, tmp_path):
    federated = load_own(one, client="hospital", validation=0.2)
    table().write_parquet(tmp_path / "all.parquet")
    assert federated.names == CITIES
    assert same(federated, load_own(tmp_path / "all.parquet", client="hospital", validation=0.2))
    for suffix in ("csv", "parquet"):
        other = load_own(folder_of(table(), tmp_path / suffix, suffix), validation=0.2)
        assert same(federated, other)
        assert other.schema.features == federated.schema.features


@pytest.mark.parametrize("size", [30, 64, 1000])
def test_the_size_of_the_blocks_changes_nothing(one, tmp_path, monkeypatch, size):
    table().write_parquet(tmp_path / "all.parquet")
    federated = load_own(one, client="hospital")
    monkeypatch.setattr(csv_reader, "BLOCK", size)
    monkeypatch.setattr(files, "ROWS", size // 7)
    assert same(federated, load_own(one, client="hospital"))
    assert same(federated, load_own(tmp_path / "all.parquet", client="hospital"))


def test_other_clients_rows_in_between_change_nothing(one, tmp_path):
    table().sort("hospital", maintain_order=True).write_csv(tmp_path / "sorted.csv")
    assert same(load_own(one, client="hospital"), load_own(tmp_path / "sorted.csv", client="hospital"))


def test_numbers_are_standardised_by_all_clients_train_rows_and_categories_are_one_hot(one):
    federated = load_own(one, client="hospital")
    known = {round(row["age"], 6): row for row in table().iter_rows(named=True)}
    number, category = federated.schema.features
    ages = federated.train.x[:, 0] * number.std + number.mean
    trained = [known[min(known, key=lambda age: abs(age - value))] for value in ages]
    true = [row["age"] for row in trained]
    assert number.mean == pytest.approx(statistics.fmean(true), rel=1e-12)
    assert number.std == pytest.approx(statistics.pstdev(true), rel=1e-12)
    assert category.values == ("f", "m")
    for x, y, row in zip(federated.train.x, federated.train.y, trained, strict=True):
        assert x[1:].tolist() == ([1, 0] if row["sex"] == "f" else [0, 1])
        assert ("ill", "well")[y] == row["label"]


def test_each_client_sets_a_fifth_aside_by_class(one):
    federated = load_own(one, client="hospital")
    for i, name in enumerate(CITIES):
        own = table().filter(pl.col("hospital") == name)
        assert len(federated.test.of(i)[1]) == round(len(own) * 0.2)
        for k, label in enumerate(("ill", "well")):
            share = (own["label"] == label).mean() * len(federated.test.of(i)[1])
            assert abs((federated.test.of(i)[1] == k).sum() - share) < 1


def test_a_clients_split_is_its_own_affair(one, tmp_path):
    folder = folder_of(table(), tmp_path / "three", "csv")
    alone = tmp_path / "alone"
    alone.mkdir()
    (folder / "bern.csv").rename(alone / "bern.csv")
    single, everyone = load_own(alone), load_own(one, client="hospital")
    one_feature, another = single.schema.features[0], everyone.schema.features[0]
    ages = single.test.x[:, 0] * one_feature.std + one_feature.mean
    among = everyone.test.of(1)[0][:, 0] * another.std + another.mean
    assert np.allclose(ages, among, atol=1e-4)


def test_clients_with_the_same_rows_draw_apart(tmp_path):
    for name in ("bern", "chur"):
        (tmp_path / f"{name}.csv").write_text("x,label\n" + "\n".join(f"{i},{'ab'[i % 2]}" for i in range(60)))
    federated, other = load_own(tmp_path), load_own(tmp_path, seed=2)
    assert not np.array_equal(federated.test.of(0)[0], federated.test.of(1)[0])
    assert not np.array_equal(federated.test.of(0)[0], other.test.of(0)[0])


def test_test_rows_never_touch_the_scaling(tmp_path):
    place = tmp_path / "a.csv"
    rows = [f"{i},{'ab'[i % 2]}" for i in range(40)]
    place.write_text("x,label\n" + "\n".join(rows))
    plain = load_pooled(place)
    aside = {round(float(x)) for x in _raw(plain.x_test, place)}
    place.write_text("x,label\n" + "\n".join(f"{1e6 if i in aside else i},{'ab'[i % 2]}" for i in range(40)))
    assert np.array_equal(load_pooled(place).x_train, plain.x_train)


def _raw(x, place):
    values = np.arange(40.0)
    kept = load_own(_alone(place)).schema.features[0]
    assert set(np.round(x[:, 0] * kept.std + kept.mean)) <= set(values)
    return x[:, 0] * kept.std + kept.mean


def _alone(place: Path) -> Path:
    folder = place.parent / "alone"
    folder.mkdir(exist_ok=True)
    (folder / place.name).write_bytes(place.read_bytes())
    return folder


def test_validation_comes_from_the_train_rows_and_not_into_the_scaling(one):
    plain, federated = load_own(one, client="hospital"), load_own(one, client="hospital", validation=0.25)
    assert (federated.train.sizes + federated.validation.sizes).tolist() == plain.train.sizes.tolist()
    assert federated.test.y.tolist() == plain.test.y.tolist()
    assert abs(float(federated.train.x[:, 0].mean())) < 1e-6
    assert abs(float(federated.validation.x[:, 0].mean())) > 1e-6


def test_missing_numbers_become_the_train_mean_and_missing_words_no_value(tmp_path):
    words = ["red", "blue", "NA"]
    rows = [f"{'' if i % 4 == 0 else i},{words[i % 3]},{'ab'[i % 2]}" for i in range(24)]
    (tmp_path / "a.csv").write_text("x,colour,label\n" + "\n".join(rows))
    federated = load_own(tmp_path, missing="mean")
    x = np.concatenate([federated.train.x, federated.test.x])
    assert (x[:, 0] == 0).sum() == 6
    assert (x[:, 1:].sum(axis=1) == 0).sum() == 8
    assert federated.schema.missing == "mean"
    assert federated.notes[:2] == (
        "column 'x' has 6 missing values, which become the train mean",
        "column 'colour' has 8 missing values, which become none of its values",
    )
    assert abs(float(federated.train.x[:, 0].sum())) < 1e-5


def test_targets_are_standardised_and_the_unit_says_what_one_is(tmp_path):
    (tmp_path / "a.csv").write_text("x,price\n" + "\n".join(f"{i},{100 + 2.5 * i}" for i in range(20)))
    federated = load_own(tmp_path, label="price")
    target = federated.schema.target
    assert federated.classes is None
    assert federated.train.y.dtype == np.float32
    prices = np.concatenate([federated.train.y, federated.test.y]) * federated.unit + target.mean
    assert np.allclose(np.sort(prices), [100 + 2.5 * i for i in range(20)], atol=1e-4)
    trained = federated.train.y * federated.unit + target.mean
    assert federated.unit == pytest.approx(statistics.pstdev(map(float, trained)), rel=1e-5)
    assert not federated.class_names


def test_errors_and_reports_of_files_name_arguments_in_python_and_flags_on_the_command_line(tmp_path):
    rows = [[str(i), "" if i % 5 else "1", "ab"[i % 2]] for i in range(40)]
    (tmp_path / "bern.csv").write_text("\n".join(map(",".join, [["id", "shoe size", "label"], *rows])) + "\n")
    with pytest.raises(DataError, match=r"use missing='indicator' or missing='mean'$") as told:
        load_own(tmp_path)
    assert "--" not in str(told.value)
    assert (
        "use --missing indicator or --missing mean" in CliRunner().invoke(app, ["data", "check", str(tmp_path)]).output
    )
    assert not any("--" in each for each in check_own(tmp_path).findings())
    (tmp_path / "chur.csv").write_text("id,shoe size,sole width,label\n1,2,3,a\n")
    (tmp_path / "thun.csv").write_text("id,shoe size\n1,2\n")
    with pytest.raises(DataError, match=r"or ignore='sole width' \(and \d+ more: ct\.check_own lists them\)$"):
        load_own(tmp_path)


def test_the_task_overrides_what_the_label_looks_like(tmp_path):
    (tmp_path / "a.csv").write_text("x,whole,label\n" + "\n".join(f"{i},{i % 3},{i % 3}.0" for i in range(30)))
    assert load_own(tmp_path).classes is None
    assert load_own(tmp_path, task="classification").class_names == ("0", "1", "2")
    assert load_own(tmp_path, label="whole").classes == 3
    assert load_own(tmp_path, label="whole", task="regression").classes is None


def test_the_group_column_is_no_feature_and_must_be_one_per_client(one, tmp_path):
    frame = table().with_columns(
        pl.col("hospital").replace({"aarau": "north", "bern": "south", "chur": "north"}).alias("region")
    )
    frame.write_csv(tmp_path / "grouped.csv")
    federated = load_own(tmp_path / "grouped.csv", client="hospital", group="region")
    assert federated.groups.tolist() == [0, 1, 0]
    assert same(federated, load_own(one, client="hospital"))
    broken = frame.with_columns(pl.Series([*frame["region"][:-1], "west"]).alias("region"))
    broken.write_csv(tmp_path / "grouped.csv")
    with pytest.raises(
        DataError, match=r"line 91: column 'region' has more than one value for client '\w+'; a client has"
    ):
        load_own(tmp_path / "grouped.csv", client="hospital", group="region")


def test_a_row_without_client_is_named(one):
    one.write_text(one.read_text().replace("chur,", ",", 1))
    line = 1 + next(i for i, row in enumerate(one.read_text().splitlines()) if row.startswith(","))
    with pytest.raises(DataError, match=rf"all\.csv, line {line}: column 'hospital' is missing a value; fill it in"):
        load_own(one, client="hospital")


def test_ignored_columns_may_hold_anything(tmp_path):
    frame = table().with_columns(pl.lit("2024-01-01").str.to_date().alias("day"))
    frame.write_parquet(tmp_path / "all.parquet")
    federated = load_own(tmp_path / "all.parquet", client="hospital", ignore=["day", "sex"])
    assert federated.shape == (1,)
    assert federated.schema.ignored == ("day", "sex", "hospital")


def test_booleans_are_categories_in_either_kind_of_file(tmp_path):
    frame = pl.DataFrame({"smoker": [True, False] * 10, "label": [0, 1] * 10})
    for name, write in (("p.parquet", frame.write_parquet), ("c.csv", frame.write_csv)):
        write(tmp_path / name)
        assert load_pooled(tmp_path / name).x_train.sum(axis=1).tolist() == [1.0] * 16


def test_a_pooled_table_is_divided_by_any_partition(one):
    dataset = load_pooled(one, ignore=["hospital"])
    assert dataset.class_names == ("ill", "well")
    assert len(dataset.y_train) == 72
    assert dataset.partition("dirichlet(1,minimum=2)", clients=4).train.sizes.sum() == 72


def test_a_pooled_npz_file_is_taken_as_it_is(tmp_path):
    np.savez(tmp_path / "one.npz", x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    dataset = load_pooled(tmp_path / "one.npz")
    assert sorted(np.concatenate([dataset.x_train, dataset.x_test])[:, 0].tolist()) == list(range(0, 40, 2))


@pytest.mark.parametrize(
    ("options", "kind", "complaint"),
    [
        ({}, DataError, r"all\.csv is one file; name the column of its clients with client="),
        (
            {"client": "town"},
            DataError,
            r"has no column 'town' but hospital, age, sex, label; name another with client=",
        ),
        (
            {"client": "Hospitl"},
            DataError,
            r"but hospital, age, sex, label; did you mean 'hospital'\? name another with client=",
        ),
        (
            {"client": "hospital", "label": "labell"},
            DataError,
            r"has no column 'labell' .*; did you mean 'label'\? name another with label=",
        ),
        (
            {"client": "hospital", "ignore": "agee"},
            DataError,
            r"has no column 'agee' .*; did you mean 'age'\? correct ignore=",
        ),
        (
            {"client": "hospital", "missing": "drop"},
            UnknownName,
            "unknown value of missing 'drop'; known: error, indicator, mean",
        ),
        ({"client": "hospital", "task": "ranking"}, UnknownName, "unknown value of task 'ranking'"),
        ({"client": "hospital", "test": 0}, DataError, "test=0 must be between 0 and 1"),
        ({"client": "hospital", "validation": 1}, DataError, "validation=1 must be between 0 and 1"),
        (
            {"client": "label"},
            DataError,
            "column 'label' is named twice, by label and by client; name a column once",
        ),
        (
            {"client": "hospital", "ignore": ["label"]},
            DataError,
            "column 'label' is named twice, by label and by ignore; name a column once",
        ),
    ],
)
def test_what_is_asked_for_must_make_sense(one, options, kind, complaint):
    with pytest.raises(kind, match=complaint):
        load_own(one, **options)


def test_many_columns_are_named_and_the_rest_are_counted(tmp_path):
    names = [f"column {i}" for i in range(40)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n")
    with pytest.raises(DataError, match=r"has no column 'town' but column 0, .* column 29 and 10 more; name another"):
        load_own(tmp_path / "wide.csv", client="town", label="column 1")


def test_a_path_that_leads_nowhere_says_so(tmp_path, one):
    with pytest.raises(DataError, match=r"there is no file or folder .*nowhere; name a folder that"):
        load_own(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"there is no file .*nowhere\.csv; name a"):
        load_own(tmp_path / "nowhere.csv", client="hospital")
    with pytest.raises(DataError, match=r"no file or folder .*al\.csv; did you mean 'all\.csv'\? name a folder"):
        load_own(tmp_path / "al.csv")
    with pytest.raises(DataError, match=r"there is no file .*ALL\.CSV; did you mean 'all\.csv'\? name a"):
        load_own(tmp_path / "ALL.CSV", client="hospital")
    with pytest.raises(DataError, match=r"there is no file .*new\.csv; name a"):
        load_own(tmp_path / "new.csv", client="hospital")
    with pytest.raises(DataError, match=r"is a folder; name one file"):
        load_pooled(tmp_path)
    with pytest.raises(DataError, match=r"client=hospital is for data that come with clients"):
        load_pooled(one, client="hospital")
    with pytest.raises(DataError, match=r"all\.txt is of a kind that is not read"):
        load_pooled(one.rename(tmp_path / "all.txt"))


def test_a_check_tells_the_facts_and_writes_nothing(one, tmp_path):
    check = check_own(one, client="hospital")
    ill = int((table()["label"] == "ill").sum())
    assert check.good
    assert (check.clients, check.rows, check.features, check.inputs) == (3, 90, 2, 3)
    assert check.counts == (("ill", ill), ("well", 90 - ill))
    assert check.majority == max(ill, 90 - ill) / 90
    assert check.rarest == min(check.counts, key=lambda pair: pair[1])
    assert check.lines()[0] == "3 clients, 90 rows, 2 features (3 inputs)"
    assert check.lines()[-1] == "no problem found; 1 warning"  # each has six test rows
    assert [file.name for file in tmp_path.iterdir()] == ["all.csv"]
    with pytest.raises(UnknownName, match="unknown option 'lable'; did you mean 'label'"):
        check_own(one, lable="x")


def test_a_check_of_arrays_lists_every_bad_file(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((20, 3)), y=np.arange(20) % 2)
    assert check_own(tmp_path).lines()[0] == "1 clients, 20 rows, 3 features (3 inputs)"
    np.savez(tmp_path / "b.npz", x=np.ones((20, 2)), y=np.arange(20) % 2)
    np.savez(tmp_path / "c.npz", x=np.ones((20, 3)))
    assert [Path(problem.file).name for problem in check_own(tmp_path).problems] == ["b.npz", "c.npz"]


def test_rare_classes_large_majorities_and_idle_columns_are_noted(tmp_path):
    rows = [f"{i},7,{'yes' if i < 4 else 'no'},{i % 7 if i % 2 else 'x'}" for i in range(100)]
    (tmp_path / "a.csv").write_text("x,same,label,code\n" + "\n".join(rows))
    federated = load_own(tmp_path)
    assert federated.notes == (
        "column 'same' is constant in the train rows, so nothing can be learned from it",
        "column 'code' is taken as a category: 50 of 100 are numbers",
        "96% of the examples are of class 'no'; judge by --metric auroc",
        "class 'yes' has 4 examples",
    )
    assert not federated.train.x[:, 1].any()


def test_large_arrays_live_in_a_file_without_name(one, monkeypatch, tmp_path):
    federated = load_own(one, client="hospital", validation=0.2)
    monkeypatch.setattr(array_memory, "LIMIT", 100)
    monkeypatch.setattr(array_memory, "BLOCK", 64)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "room"))
    (tmp_path / "room").mkdir()
    large = load_own(one, client="hospital", validation=0.2)
    assert same(federated, large)
    assert isinstance(large.train.x.base, np.memmap)
    assert same(federated.select([2, 0]), large.select([2, 0]))
    assert not list((tmp_path / "room").iterdir())


def test_room_that_cannot_be_had_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"the examples need 0\.0 GB in .* set TMPDIR"):
        allocate((100, 3), np.float32, limit=10)


def test_space_is_taken_before_it_is_needed(monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DataError, match=r"cannot get it \(No space left on device\); set TMPDIR to a larger place"):
        allocate((100, 3), np.float32, limit=10)


def test_rows_are_gathered_block_by_block(monkeypatch):
    monkeypatch.setattr(array_memory, "BLOCK", 40)
    array = np.arange(60.0).reshape(20, 3)
    rows = np.array([19, 0, 7, 7, 3])
    assert np.array_equal(take_rows(array, rows), array[rows])
    assert [part.stop - part.start for part in row_blocks(array)] == [1] * 20
    assert row_blocks(array[:0]) == []


def test_a_bad_value_far_down_is_found_and_placed(monkeypatch):
    monkeypatch.setattr(array_memory, "BLOCK", 64)
    x = np.zeros((50, 4), np.float32)
    x[47, 2] = np.nan
    good = Split(np.zeros((2, 4), np.float32), np.zeros(2, int), np.array([0, 1, 2]))
    with pytest.raises(DataError, match="client 'b' has a NaN or infinite feature in train row 7; clean"):
        Federated("d", "p", ("a", "b"), Split(x, np.zeros(50, int), np.array([0, 40, 50])), good, 2)


def test_two_clients_of_one_name_are_refused():
    split = Split(np.zeros((2, 4), np.float32), np.zeros(2, int), np.array([0, 1, 2]))
    with pytest.raises(DataError, match="two clients are named 'a'; client names must be unique"):
        Federated("d", "p", ("a", "a"), split, split, 2)
    with pytest.raises(DataError, match="1 names but 2 clients in the train split; give a name for each"):
        Federated("d", "p", ("a",), split, split, 2)


def test_a_file_that_grows_while_it_is_read_is_refused(one, monkeypatch):
    def later(*args):
        one.write_text(one.read_text() + "bern,50,f,ill\n")
        return split_rows(*args)

    monkeypatch.setattr("coterie.data.tables.api.split_rows", later)
    with pytest.raises(DataError, match=r"all\.csv: had 90 rows and now 91; leave it alone"):
        load_own(one, client="hospital")


def test_a_column_with_a_large_mean_keeps_its_digits(tmp_path):
    values = [1e9 + (-1) ** i for i in range(40)]
    (tmp_path / "a.csv").write_text("x,label\n" + "\n".join(f"{v!r},{'ab'[i // 2 % 2]}" for i, v in enumerate(values)))
    federated = load_own(tmp_path)
    assert np.allclose(np.abs(federated.train.x), 1.0, atol=0.2)
    assert len(np.unique(federated.train.x)) == 2
    assert math.isclose(federated.schema.features[0].mean, 1e9, rel_tol=1e-9)
