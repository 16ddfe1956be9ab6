"""What becomes of gaps, dates, declared categories and rows without a label, in files, frames and later tables."""

from __future__ import annotations

import datetime
import json
import math
import zlib

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from coterie.data import Reading
from coterie.data.tables.api import check_own, from_frame, load_client, load_own
from coterie.data.tables.cells import read_dates
from coterie.data.tables.features import Category, Date, Hashed, Number
from coterie.data.tables.schema import BUCKETS, Schema, make_schema
from coterie.data.tables.sums import Dates, Moments, Sums, merge
from coterie.errors import DataError

NAN = float("nan")


def rows_of(data: ct.Federated) -> np.ndarray:
    """Return all inputs, train rows first."""
    return np.concatenate([data.train.x, data.test.x])


def patients(**columns: list) -> pl.DataFrame:
    """Twenty patients of two hospitals, with a label and other columns."""
    return pl.DataFrame({"site": ["bern", "chur"] * 10, "ill": ["yes", "no", "no", "yes"] * 5, **columns})


def frame_schema(frame: pl.DataFrame, **options) -> Schema:
    schema = from_frame(frame, client="site", label="ill", **options).schema
    assert schema is not None
    return schema


# Gaps.


def test_an_indicator_says_where_a_number_or_a_word_is_missing():
    ages = [40.0, None, 60.0, 50.0] * 5
    frame = patients(age=ages, sex=["f", "m", None, "m"] * 5, full=list(range(20)))
    schema = frame_schema(frame, missing="indicator")
    age, sex, full = schema.features
    assert (age.indicator, sex.indicator, full.indicator) == (True, True, False)
    assert schema.width == 2 + 3 + 1
    x = schema.features_from(frame.drop("ill", "site"))
    assert x[:4, 1].tolist() == [0, 1, 0, 0]
    assert x[:4, 2:5].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert x[1, 0] == 0  # the mean
    assert x[0, 0] == pytest.approx((40 - age.mean) / age.std)


def test_with_the_mean_the_inputs_are_as_ever():
    frame = patients(age=[40.0, None, 60.0, 50.0] * 5)
    plain, marked = (frame_schema(frame, missing=how) for how in ("mean", "indicator"))
    x, more = (each.features_from(frame.select("age")) for each in (plain, marked))
    assert x.shape[1] == 1
    assert np.array_equal(x[:, 0], more[:, 0])


def test_only_gaps_of_train_rows_make_an_indicator():
    sums = Sums(rows=2, numbers={"age": Moments(2, 1.0, 2.0), "size": Moments(1, 5.0, 0.0)}, missing={"size": 1})
    schema = make_schema(sums, ["age", "size"], ("a", "b"), Reading(missing="indicator"))
    assert schema.features == (Number("age", 1.0, 1.0), Number("size", 5.0, 1.0, True))


def test_a_gap_without_an_indicator_is_the_mean_and_no_error():
    schema = Schema(features=(Number("age", 50.0, 10.0),), label="ill", classes=("no", "yes"), missing="indicator")
    assert schema.features_from(pl.DataFrame({"age": [None, 60.0]})).tolist() == [[0.0], [1.0]]


def test_a_word_never_seen_counts_as_missing_where_gaps_are_marked_and_is_refused_elsewhere():
    later = pl.DataFrame({"sex": ["f", "x"]})
    marked = Schema(features=(Category("sex", ("f", "m"), True),), label="ill", classes=("a", "b"), missing="indicator")
    assert marked.features_from(later).tolist() == [[1, 0, 0], [0, 0, 1]]
    for how in ("error", "mean"):
        strict = Schema(features=(Category("sex", ("f", "m")),), label="ill", classes=("a", "b"), missing=how)
        with pytest.raises(DataError, match=r"'x', unseen .* one with missing='indicator'"):
            strict.features_from(later)


def test_the_error_about_a_gap_names_both_remedies(tmp_path):
    patients(age=[40, None, 60, 50] * 5).write_csv(tmp_path / "all.csv")
    with pytest.raises(DataError, match=r"fill it in, or use missing='indicator' or missing='mean'$"):
        load_own(tmp_path / "all.csv", client="site", label="ill")


def test_many_columns_with_gaps_are_one_note():
    gaps = {f"c{i}": [None if row < i else row for row in range(20)] for i in range(1, 6)}
    found = check_own(patients(**gaps), client="site", label="ill", missing="indicator")
    notes = [note for note in found.notes if "missing" in note]
    assert notes == [
        "5 columns have missing values, most of all 'c5' (25%); they become the train mean, and for words none of the "
        "values, with an input that says so"
    ]


# Dates.


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2000-01-01", 0.0),
        ("1999-12-31", -1.0),
        ("2000-03-01", 60.0),  # 2000 was a leap year
        ("2000-01-01 12:00", 0.5),
        ("2000-01-01T18:00:00", 0.75),
        ("2000-01-01T18:00:00.250Z", 0.75),
        ("2000-01-01 06:00:00+05:30", 0.25),  # the hour that people saw
        (" 2000-01-02 ", 1.0),
        ("2000-13-01", NAN),
        ("2001-02-29", NAN),
        ("2000-01-01 25:00", NAN),
        ("01.02.2000", NAN),
        ("20000101", NAN),
        ("2000", NAN),
    ],
)
def test_dates_are_read_as_iso_writes_them(text, days):
    assert read_dates(pl.Series([text.strip(), None])).tolist() == pytest.approx([days, NAN], nan_ok=True)


@given(st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)))
def test_every_date_has_the_days_that_python_counts(moment):
    moment = moment.replace(microsecond=0)
    since = (moment - datetime.datetime(2000, 1, 1)).total_seconds() / 86400
    for text in (str(moment), moment.isoformat()):
        assert read_dates(pl.Series([text]))[0] == pytest.approx(since, abs=1e-9)


def test_a_date_becomes_a_trend_and_places_in_year_week_and_day():
    mean, std = 10.0, 4.0
    schema = Schema(features=(Date("at", mean, std, True),), label="ill", classes=("a", "b"))
    x = schema.features_from(pl.DataFrame({"at": ["2000-01-04 06:00"]}))[0]
    days = 3.25
    angles = [2 * math.pi * days / 365.2425, 2 * math.pi * 3 / 7, 2 * math.pi * 0.25]
    by_hand = [(days - mean) / std, *(wave(angle) for angle in angles for wave in (math.sin, math.cos))]
    assert x.tolist() == pytest.approx(by_hand, abs=1e-6)


def test_dates_of_text_and_of_parquet_give_the_same_inputs(tmp_path):
    days = [datetime.date(2013, 1, 1) + datetime.timedelta(days=17 * i) for i in range(20)]
    moments = [datetime.datetime(2013, 1, 1, i % 24, 5) + datetime.timedelta(days=i) for i in range(20)]
    typed = patients(day=days, at=moments).with_columns(zoned=pl.col("at").dt.replace_time_zone("America/New_York"))
    text = patients(day=[str(day) for day in days], at=[str(each) for each in moments])
    text = text.with_columns(zoned=pl.Series([f"{each.isoformat()}-05:00" for each in moments]))
    typed.write_parquet(tmp_path / "all.parquet")
    text.write_csv(tmp_path / "all.csv")
    left, right = (load_own(tmp_path / f"all.{kind}", client="site", label="ill") for kind in ("parquet", "csv"))
    assert [type(each) for each in left.schema.features] == [Date] * 3
    assert [each.hours for each in left.schema.features] == [False, True, True]
    assert left.schema == right.schema
    assert np.array_equal(rows_of(left), rows_of(right))
    assert left.train.x.shape[1] == 5 + 7 + 7
    assert "column 'day' holds dates: its inputs are the day, the time of the year, and the weekday" in left.notes


def test_a_wrong_date_among_dates_is_an_error_with_its_line(tmp_path):
    days = [f"2013-01-{i + 1:02}" for i in range(20)]
    days[4] = "2013-02-30"
    patients(day=days).write_csv(tmp_path / "all.csv")
    with pytest.raises(DataError, match=r"line 6: column 'day' has '2013-02-30' among its dates; write it as 2013"):
        load_own(tmp_path / "all.csv", client="site", label="ill")


def test_gaps_in_dates_are_the_mean_with_an_indicator():
    days = ["2013-01-01", "2013-01-03", None, "2013-01-02"] * 5
    schema = frame_schema(patients(day=days), missing="indicator")
    x = schema.features_from(pl.DataFrame({"day": days}))
    assert x[2].tolist() == [0, 0, 0, 0, 0, 1]
    assert x[0, 5] == 0


def test_sums_of_dates_and_gaps_merge_as_if_pooled_and_survive_json():
    parts = [Sums(rows=2, dates={"at": Dates(Moments(2, 1.0, 2.0), Moments(2, 6.0, 0.0))}, missing={"at": 1})]
    parts.append(Sums(rows=1, dates={"at": Dates(Moments(1, 4.0, 0.0), Moments(1, 9.0, 0.0))}, missing={"sex": 2}))
    whole = merge(parts)
    assert whole.dates["at"] == Dates(Moments(3, 2.0, 8.0), Moments(3, 7.0, 6.0))
    assert whole.missing == {"at": 1, "sex": 2}
    assert Sums.from_table(json.loads(json.dumps(whole.table()))) == whole
    old = {name: value for name, value in whole.table().items() if name not in ("dates", "missing")}
    assert Sums.from_table(old).missing == {}


def test_a_folder_of_files_gives_the_schema_of_one_table(tmp_path):
    frame = patients(
        day=[f"2013-{i % 12 + 1:02}-07" for i in range(20)],
        age=[None, 3.0, 5.0, 8.0] * 5,
        zip=[str(3000 + i % 7) for i in range(20)],
    )
    frame.write_csv(tmp_path / "all.csv")
    (tmp_path / "each").mkdir()
    for (name,), own in frame.group_by("site"):
        own.drop("site").write_csv(tmp_path / "each" / f"{name}.csv")
    how = {"label": "ill", "missing": "indicator", "categorical": "zip"}
    one, many = load_own(tmp_path / "all.csv", client="site", **how), load_own(tmp_path / "each", **how)
    assert [type(each) for each in one.schema.features] == [Date, Number, Category]
    for left, right in zip(one.schema.features, many.schema.features, strict=True):
        assert left.width == right.width
    assert np.allclose(one.train.x, many.train.x)


# Whole numbers of few values.


def months(rows: int, most: int = 12) -> pl.DataFrame:
    """Rows of two sites with a month, in turn, and a label."""
    return pl.DataFrame(
        {
            "month": [i % most + 1 for i in range(rows)],
            "ill": ["yes", "no", "no"] * (rows // 3),
            "site": ["bern", "chur"] * (rows // 2),
        }
    )


def test_whole_numbers_that_recur_have_an_input_for_each_value_too(tmp_path):
    data = from_frame(months(1800), client="site", label="ill")
    (month,) = data.schema.features
    assert month.values == tuple(map(str, range(1, 13)))
    x = data.schema.features_from(pl.DataFrame({"month": [3.0, 2.5, 99]}))
    assert x.shape == (3, 13)
    assert x[:, 0].tolist() == pytest.approx([(v - month.mean) / month.std for v in (3.0, 2.5, 99)])
    assert [np.flatnonzero(row[1:]).tolist() for row in x] == [[2], [], []]  # half a month and month 99 have no input
    (tmp_path / "each").mkdir()
    for (name,), own in months(1800).group_by("site", maintain_order=True):
        own.drop("site").write_csv(tmp_path / "each" / f"{name}.csv")
    assert load_own(tmp_path / "each", label="ill").schema.features[0].values == month.values  # six months each


@pytest.mark.parametrize(
    "frame",
    [
        months(600),  # too few rows for each value
        months(6000, most=33),  # too many values
        months(1800, most=2),  # 0 and 1 say all that two inputs would
        months(1800).with_columns(pl.col("month") + 0.5),
    ],
    ids=["few rows", "many values", "two values", "halves"],
)
def test_other_numbers_have_one_input(frame):
    assert frame_schema(frame).width == 1


# Declared categories.


def test_a_declared_column_is_a_category_whatever_it_holds():
    frame = patients(zip=[3000 + i % 3 for i in range(20)], day=["2013-01-01", "2013-01-02"] * 10)
    taken = frame_schema(frame)
    assert [type(each) for each in taken.features] == [Number, Date]
    declared = frame_schema(frame, categorical="zip, day")
    assert declared.features == (
        Category("zip", ("3000", "3001", "3002")),
        Category("day", ("2013-01-01", "2013-01-02")),
    )


def test_a_category_of_too_many_words_must_be_declared_and_then_shares_inputs(tmp_path):
    words = [f"N{i % 1500:05}" for i in range(3000)]
    frame = pl.DataFrame({"tail": words, "ill": ["yes", "no"] * 1500, "site": ["bern"] * 1500 + ["chur"] * 1500})
    with pytest.raises(DataError, match="declare it with categorical=; or leave it out with ignore='tail'"):
        from_frame(frame, client="site", label="ill")
    data = from_frame(frame, client="site", label="ill", categorical="tail")
    assert data.schema.features == (Hashed("tail", BUCKETS),)
    x = data.schema.features_from(pl.DataFrame({"tail": ["N00003", "never seen"]}))
    assert np.flatnonzero(x[0]).tolist() == [zlib.crc32(b"N00003") % BUCKETS]
    assert x.sum(axis=1).tolist() == [1, 1]
    assert any("'tail' has more than 1000 values" in note for note in data.notes)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"categorical": "zipp"}, "has no column 'zipp' .* correct categorical="),
        ({"categorical": "age", "ignore": "age"}, "'age' is named twice"),
        ({"categorical": "ill"}, "'ill' is named twice"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(options, complaint):
    with pytest.raises(DataError, match=complaint):
        from_frame(patients(age=list(range(20))), client="site", label="ill", **options)


# Rows without a label.


def test_rows_without_a_label_are_left_out_if_asked_and_others_keep_their_lines(tmp_path):
    frame = patients(age=list(range(20))).with_columns(
        ill=pl.when(pl.int_range(20) % 5 == 0).then(None).otherwise(pl.col("ill"))
    )
    path = tmp_path / "all.csv"
    frame.write_csv(path)
    with pytest.raises(DataError, match=r"line 2: column 'ill' is missing a value .* drop_missing_labels=True$"):
        load_own(path, client="site", label="ill")
    data = load_own(path, client="site", label="ill", drop_missing_labels=True)
    assert "4 rows without a label are left out" in data.notes
    kept = from_frame(frame.drop_nulls(), client="site", label="ill")
    assert np.array_equal(rows_of(data), rows_of(kept))
    assert data.schema == kept.schema
    broken = frame.with_columns(age=pl.when(pl.int_range(20) == 7).then(pl.lit("x")).otherwise(pl.col("age")))
    broken.write_csv(path)
    with pytest.raises(DataError, match="line 9: column 'age' has 'x'"):
        load_own(path, client="site", label="ill", drop_missing_labels=True)


def test_a_site_leaves_out_rows_without_a_label_by_the_schema_of_all(tmp_path):
    frame = patients(age=list(range(20)))
    schema = frame_schema(frame)
    own = frame.drop("site").with_columns(ill=pl.when(pl.int_range(20) < 3).then(None).otherwise(pl.col("ill")))
    own.write_csv(tmp_path / "bern.csv")
    data = load_client(tmp_path / "bern.csv", "bern", schema=schema, label="ill", drop_missing_labels=True)
    assert len(data.train.x) + len(data.test.x) == 17


# Files of schemas.


def test_a_schema_with_every_kind_of_column_is_kept_and_read_again(tmp_path):
    features = (
        Number("a", 1.0, 2.0, True),
        Number("b", 1.0, 2.0),
        Category("c", ("x", "y"), True),
        Hashed("d", 16),
        Date("e", 5.0, 2.0, True, True),
    )
    schema = Schema(features=features, label="ill", classes=("no", "yes"), missing="indicator")
    schema.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == schema
    assert schema.width == 2 + 1 + 3 + 16 + 8


def test_a_schema_saved_before_there_were_indicators_is_read(tmp_path):
    old = {
        "label": "ill",
        "classes": ["no", "yes"],
        "target": None,
        "missing": "mean",
        "ignored": [],
        "features": [
            {"name": "age", "kind": "number", "mean": 45.0, "std": 12.5},
            {"name": "sex", "kind": "category", "values": ["f", "m"]},
        ],
    }
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(old))
    schema = Schema.load(path)
    assert schema.features == (Number("age", 45.0, 12.5), Category("sex", ("f", "m")))
    schema.save(path)
    assert json.loads(path.read_text()) == old
