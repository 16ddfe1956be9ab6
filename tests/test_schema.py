"""A schema turns any later file into the arrays that the run would have had, or says what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from coterie.data.tables.api import load_own
from coterie.data.tables.features import Category, Number
from coterie.data.tables.schema import Schema
from coterie.errors import DataError

AGES = [31.5, 47.25, 52.0, 28.75, 60.5, 44.0, 39.5, 71.25, 66.0, 35.5]
CSV = "id,age,sex,ill\n" + "".join(f"p{i},{age},{'fm'[i % 2]},{('no', 'yes')[i % 2]}\n" for i, age in enumerate(AGES))
SCHEMA = Schema(
    features=(Number("age", 45.0, 12.5), Category("sex", ("f", "m"))),
    label="ill",
    classes=("no", "yes"),
    ignored=("id",),
    missing="error",
)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "bern.csv").write_text(CSV)
    return tmp_path / "bern.csv"


def test_numbers_words_and_labels_become_what_the_schema_says(file):
    x, y = SCHEMA.arrays(file)
    by_hand = [[(age - 45.0) / 12.5, float(i % 2 == 0), float(i % 2 == 1)] for i, age in enumerate(AGES)]
    assert np.array_equal(x, np.array(by_hand, np.float32))
    assert y.tolist() == [0, 1] * 5
    assert (x.dtype, y.dtype) == (np.float32, np.int64)


def test_the_rows_of_a_run_become_the_arrays_of_the_run_to_the_bit(file, tmp_path):
    federated = load_own(tmp_path, label="ill", ignore=["id"])
    federated.schema.save(tmp_path / "schema.json")
    schema = Schema.load(tmp_path / "schema.json")
    x, y = schema.arrays(file)
    run = [
        (*row, label)
        for split in (federated.train, federated.test)
        for row, label in zip(split.x, split.y, strict=True)
    ]
    later = [(*row, label) for row, label in zip(x, y, strict=True)]
    assert sorted(run) == sorted(later)
    assert schema == federated.schema


def test_a_run_under_a_given_schema_takes_it_as_it_is(file, tmp_path):
    federated = load_own(tmp_path, schema=SCHEMA)
    assert federated.schema == SCHEMA
    ages = np.concatenate([federated.train.x, federated.test.x])[:, 0]
    assert np.array_equal(np.sort(ages), np.sort(((np.array(AGES) - 45.0) / 12.5).astype(np.float32)))
    (tmp_path / "chur.csv").write_text(CSV.replace("sex", "gender"))
    with pytest.raises(
        DataError, match=r"chur\.csv: has no column 'sex' but id, age, gender, ill; the schema needs it"
    ):
        load_own(tmp_path, schema=SCHEMA)


def test_a_frame_a_parquet_file_and_a_csv_file_give_the_same_arrays(file, tmp_path):
    frame = pl.read_csv(file)
    frame.write_parquet(tmp_path / "bern.parquet")
    for source in (frame, tmp_path / "bern.parquet", str(file)):
        assert np.array_equal(SCHEMA.arrays(source)[0], SCHEMA.arrays(file)[0])


def test_unlabelled_files_give_features(file, tmp_path):
    frame = pl.read_csv(file)
    assert np.array_equal(SCHEMA.features_from(frame.drop("ill")), SCHEMA.arrays(frame)[0])
    assert np.array_equal(SCHEMA.features_from(frame), SCHEMA.arrays(frame)[0])
    with pytest.raises(DataError, match=r"the frame: has no column 'ill' but id, age, sex"):
        SCHEMA.arrays(frame.drop("ill"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "47.25,m",
            "47.25,x",
            r"line 3: column 'sex' has the value 'x', unseen when the schema was made from 'f', 'm'",
        ),
        ("47.25,m", "old,m", r"line 3: column 'age' has 'old' among its numbers"),
        ("47.25,m", ",m", r"line 3: column 'age' is missing a value"),
        ("47.25,m", "1e60,m", r"line 3: column 'age' has the infinite or too large number 1e60"),
        ("m,yes", "m,maybe", r"line 3: the label 'maybe' is none of the 2 classes, 'no', 'yes' \(and in 4 more rows\)"),
        ("age", "years", r"has no column 'age' but id, years, sex, ill; the schema needs it; add it"),
        ("id,", "key,", r"has the column 'key', unknown to the schema; remove it"),
    ],
)
def test_what_does_not_fit_is_named_with_file_line_and_remedy(file, old, new, complaint):
    file.write_text(CSV.replace(old, new))
    with pytest.raises(DataError, match=complaint) as caught:
        SCHEMA.arrays(file)
    assert "bern.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ignored_columns_may_be_there_or_not(file):
    assert np.array_equal(SCHEMA.arrays(pl.read_csv(file).drop("id"))[0], SCHEMA.arrays(file)[0])


def test_the_missing_rule_travels_with_the_schema(file):
    file.write_text(CSV.replace("47.25,m", ",?"))
    lenient = replace(SCHEMA, missing="mean")
    assert lenient.arrays(file)[0][1].tolist() == [0.0, 0.0, 0.0]
    file.write_text(CSV.replace("m,yes", "m,"))
    with pytest.raises(DataError, match=r"line 3: column 'ill' is missing a value .*; fill it in"):
        lenient.arrays(file)


def test_targets_are_scaled_as_in_the_run():
    schema = Schema(features=(Number("x", 0.0, 1.0),), label="price", target=Number("price", 100.0, 20.0))
    assert schema.arrays(pl.DataFrame({"x": [1, 2], "price": [90.0, 140.0]}))[1].tolist() == [-0.5, 2.0]


def test_a_schema_is_readable_json(tmp_path):
    SCHEMA.save(tmp_path / "schema.json")
    table = json.loads((tmp_path / "schema.json").read_text())
    assert table["features"][0] == {"name": "age", "kind": "number", "mean": 45.0, "std": 12.5}
    assert table["features"][1] == {"name": "sex", "kind": "category", "values": ["f", "m"]}
    assert table["classes"] == ["no", "yes"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"features": 3}', "\xff"])
def test_a_file_that_is_no_schema_says_so(tmp_path, content):
    (tmp_path / "schema.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"schema\.json is not a schema .*; name a run's schema\.json"):
        Schema.load(tmp_path / "schema.json")
    with pytest.raises(DataError, match=r"gone\.json cannot be read"):
        Schema.load(tmp_path / "gone.json")
