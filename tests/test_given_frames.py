"""Tables in memory: they give the arrays of a file of the same rows, whichever package holds them."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.errors import DataError, UnknownName

OPTIONS = {"client": "site", "label": "ill"}


def rows(count=60, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": rng.integers(20, 90, count),
            "bmi": rng.normal(25, 4, count),
            "sex": rng.choice(["f", "m"], count),
            "site": np.repeat(["zug", "bern", "chur"], -(-count // 3))[:count],
            "region": np.repeat(["east", "west", "east"], -(-count // 3))[:count],
            "ill": rng.choice(["no", "yes"], count),
        }
    )


def assert_same(one, other):
    for name in ("train", "test", "validation"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None)
        for array in ("x", "y", "offsets") if left is not None else ():
            assert np.array_equal(getattr(left, array), getattr(right, array))
            assert getattr(left, array).dtype == getattr(right, array).dtype
    for fact in ("names", "classes", "class_names", "schema", "unit", "notes"):
        assert getattr(one, fact) == getattr(other, fact)


class Stream:
    """A table of a package that nobody here knows, which has Arrow's C stream and nothing else."""

    def __init__(self, frame):
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema=None):
        return self.frame.__arrow_c_stream__(requested_schema)


class OldColumn:
    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return self.values

    def isna(self):
        return np.array([value is None or value != value for value in self.values.tolist()])


class OldPandas:
    """A pandas frame as it was before Arrow's C stream."""

    def __init__(self, columns):
        self.table = {name: OldColumn(np.asarray(values)) for name, values in columns.items()}
        self.columns, self.index = list(self.table), None

    def __getitem__(self, name):
        return self.table[name]

    def isna(self):
        raise AssertionError("asked column by column")


class PandasWithoutPyarrow(OldPandas):
    def __arrow_c_stream__(self, requested_schema=None):
        raise ImportError("Missing optional dependency 'pyarrow'")


def as_old(frame, kind=OldPandas):
    strings = {name for name in frame.columns if frame[name].dtype == pl.String}
    return kind({name: frame[name].to_numpy().astype(object if name in strings else None) for name in frame.columns})


def with_pandas(frame):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    return frame.to_pandas()


KINDS = {
    "polars": lambda frame: frame,
    "polars, lazy": lambda frame: frame.lazy(),
    "an unknown stream": Stream,
    "old pandas": as_old,
    "pandas without pyarrow": lambda frame: as_old(frame, PandasWithoutPyarrow),
    "pandas": with_pandas,
    "pandas with an index": lambda frame: with_pandas(frame).set_axis([f"row {i}" for i in range(len(frame))]),
    "pyarrow": lambda frame: pytest.importorskip("pyarrow").table(frame),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group": "region", "ignore": "sex", "test": 0.3, "validation": 0.2, "seed": 7},
        {"label": "bmi", "task": "regression", "ignore": ["region"]},
    ],
    ids=["classes", "every option", "regression"],
)
def test_a_frame_gives_the_arrays_of_a_file_of_its_rows(tmp_path, kind, options):
    rows().write_parquet(tmp_path / "rows.parquet")
    given = KINDS[kind](rows())
    assert_same(
        ct.from_frame(given, **{**OPTIONS, **options}),
        ct.load_own(tmp_path / "rows.parquet", **{**OPTIONS, **options}),
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(0, 5), st.booleans())
def test_any_rows_give_the_arrays_of_their_file(tmp_path_factory, count, seed, gaps):
    frame = rows(3 * count, seed)
    if gaps:
        frame = frame.with_columns(pl.when(pl.col("age") > 60).then(None).otherwise(pl.col("age")).alias("age"))
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame.write_parquet(path)
    options = {**OPTIONS, "missing": "mean"}
    try:
        expected = ct.load_own(path, **options)
    except DataError:
        with pytest.raises(DataError):
            ct.from_frame(Stream(frame), **options)
    else:
        assert_same(ct.from_frame(Stream(frame), **options), expected)


@pytest.mark.parametrize("kind", ["old pandas", "pandas without pyarrow", "pandas", "pyarrow"])
def test_missing_numbers_and_words_are_missing_in_every_kind_of_table(kind):
    frame = rows().with_columns(age=pl.Series([None, *np.arange(59.0)]), sex=pl.Series([None, *["f", "m"] * 29, "f"]))
    options = {**OPTIONS, "missing": "mean"}
    assert_same(ct.from_frame(KINDS[kind](frame), **options), ct.from_frame(frame, **options))
    with pytest.raises(DataError, match="row 1: column 'age' is missing a value"):
        ct.from_frame(KINDS[kind](frame), **OPTIONS)


def test_an_index_of_pandas_is_no_feature():
    frame = with_pandas(rows())
    shuffled = frame.sample(frac=1, random_state=1)
    assert ct.from_frame(shuffled, **OPTIONS).shape == ct.from_frame(frame, **OPTIONS).shape
    with pytest.raises(DataError, match="has no column 'site'"):
        ct.from_frame(frame.set_index("site"), **OPTIONS)


def test_a_frame_without_a_client_column_is_told_both_ways():
    with pytest.raises(DataError, match=r"with client=, or divide the rows with ct.load_pooled\(frame, ...\)"):
        ct.from_frame(rows(), label="ill")
    pooled = ct.load_pooled(rows(), label="ill", ignore="site,region")
    assert len(pooled.partition("iid", clients=2)) == 2
    assert pooled.words is None


@pytest.mark.parametrize(
    ("given", "kind"), [({"a": [1]}, "dict"), ([1], "list"), (None, "NoneType"), (np.zeros((2, 2)), "ndarray")]
)
def test_what_is_no_table_is_told_what_is(given, kind):
    with pytest.raises(DataError, match=f"^a {kind} is no table; give a pandas DataFrame, a polars .* pyarrow Table$"):
        ct.from_frame(given, client="a", label="b")


def test_a_path_is_sent_to_its_own_door():
    with pytest.raises(DataError, match=r"a str is no table; .*files go through ct.load_own"):
        ct.from_frame("rows.csv", client="a")


def test_a_stream_that_is_no_table_is_one_line():
    class Broken:
        def __arrow_c_stream__(self, requested_schema=None):
            raise ValueError("no\nstream\nhere")

    with pytest.raises(DataError, match=r"the Broken cannot be read as a table \(no\); give a pandas"):
        ct.from_frame(Broken(), **OPTIONS)


def test_words_and_numbers_in_one_column_of_an_old_frame_are_refused():
    mixed = OldPandas({"x": np.array([1, "a", None], object), "site": np.array(["a"] * 3, object)})
    with pytest.raises(DataError, match="column 'x' of the frame holds number and str values"):
        ct.from_frame(mixed, client="site", label="x")


def test_the_problems_of_a_frame_are_all_listed_and_named_by_row():
    broken = rows().with_columns(bmi=pl.Series([None, *range(59)]), age=pl.Series([None, *range(59)]))
    found = ct.check_own(broken, **OPTIONS)
    assert [(each.file, each.row) for each in found.problems] == [("the frame", 1), ("the frame", 1)]
    with pytest.raises(DataError, match=r"^the frame, row 1: column 'age' .* \(and 1 more: ct.check_own lists them\)$"):
        ct.from_frame(broken, **OPTIONS)
    assert ct.check_own(rows(), **OPTIONS).good


@pytest.mark.parametrize(
    ("change", "options", "remedy"),
    [
        ({"age": pl.Series([None, *range(59)])}, {}, "or use missing='indicator' or missing='mean'$"),
        ({"age": pl.Series([timedelta(days=1)] * 60)}, {}, "or ignore='age'$"),
        ({}, {"label": "outcome"}, "name another with label=$"),
        ({"ill": pl.Series(["yes"] * 60)}, {"task": "regression"}, "use task='classification'$"),
    ],
)
def test_a_remedy_for_a_frame_names_arguments_and_no_flags(change, options, remedy):
    with pytest.raises(DataError, match=remedy):
        ct.from_frame(rows().with_columns(**change), **{**OPTIONS, **options})


def test_an_unknown_option_of_a_frame_is_named():
    with pytest.raises(UnknownName, match="did you mean 'label'"):
        ct.from_frame(rows(), client="site", lable="ill")


def test_a_schema_turns_other_frames_into_arrays():
    schema = ct.from_frame(rows(), **OPTIONS).schema
    later = rows(9, seed=3).drop("ill", "site")
    assert np.array_equal(schema.features_from(Stream(later)), schema.features_from(later))
    again = ct.from_frame(rows(30, seed=4), schema=schema, **OPTIONS)
    assert again.schema == schema


def test_a_pandas_frame_with_mixed_or_repeated_columns_is_told_what_to_change():
    frame = with_pandas(rows())
    told = {
        "column 'age' of the frame holds number and str values; turn them into one kind": frame.assign(
            age=[1, "a"] * 30
        ),
        "column 'age' of the frame holds bool and number values; turn them into one kind": frame.assign(
            age=[True, 1] * 30
        ),
        "the frame has two columns named 'bmi'; rename or remove one": frame.rename(columns={"age": "bmi"}),
        "column 'age' of the frame holds object values, neither numbers, words nor dates; turn them into these, or "
        "leave the column out": frame.assign(age=[object()] * 60),
    }
    for said, broken in told.items():
        with pytest.raises(DataError) as caught:
            ct.from_frame(broken, **OPTIONS)
        assert str(caught.value) == said
