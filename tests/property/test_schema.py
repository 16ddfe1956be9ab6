"""Sums of clients are the sums of their rows; schemas survive being written; blocks and files do not matter."""

from __future__ import annotations

import json
import math
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.tables import csv as csv_reader
from coterie.data.tables.features import Category, Number
from coterie.data.tables.files import open_table
from coterie.data.tables.schema import Schema
from coterie.data.tables.sums import Moments, RunningMoments, Sums, merge

offsets = st.sampled_from([0.0, 1.0, -1e3, 1e9, 1e12])
values = st.floats(-100, 100).map(lambda v: round(v, 3))
clients = st.lists(st.lists(values, max_size=8), min_size=1, max_size=6)
names = st.text(st.characters(codec="utf-8", exclude_characters='"\r\n\0', exclude_categories=["Cs", "Cc"]), min_size=1)


def exact(numbers: list[float]) -> tuple[Fraction, Fraction]:
    """The mean and the squared deviations, without rounding."""
    whole = [Fraction(number) for number in numbers]
    mean = sum(whole, Fraction()) / len(whole)
    return mean, sum(((number - mean) ** 2 for number in whole), Fraction())


def totals_of(parts: list[list[float]], blocks: int) -> list[Moments]:
    """Each client's moments, its rows going by in blocks, one client's after another's."""
    totals = RunningMoments(1, len(parts))
    longest = max(map(len, parts))
    rows = [(i, part[k]) for k in range(longest) for i, part in enumerate(parts) if k < len(part)]
    for start in range(0, len(rows), blocks):
        block = rows[start : start + blocks]
        totals.add(0, np.array([i for i, _ in block]), np.array([value for _, value in block]))
    return [totals.of(0, i) for i in range(len(parts))]


@given(clients, offsets, st.integers(1, 50))
def test_federated_sums_are_the_sums_of_all_rows_in_one_place(parts, offset, blocks):
    parts = [[value + offset for value in part] for part in parts]
    pooled = [value for part in parts for value in part]
    merged = merge(
        Sums(rows=len(part), numbers={"x": each}) for part, each in zip(parts, totals_of(parts, blocks), strict=True)
    )
    found = merged.numbers["x"]
    assert (merged.rows, found.count) == (len(pooled), len(pooled))
    if pooled:
        mean, squares = exact(pooled)
        assert abs(Fraction(found.mean) - mean) <= Fraction(1e-10) * max(1, abs(mean))
        std = math.sqrt(squares / len(pooled))
        assert abs(math.sqrt(found.squares / len(pooled)) - std) <= 1e-10 * max(1.0, std, abs(offset) * 1e-5)


@given(clients, offsets, st.integers(1, 50), st.integers(1, 50))
def test_the_size_of_blocks_changes_no_bit_of_a_clients_sums(parts, offset, one, another):
    parts = [[value + offset for value in part] for part in parts]
    assert totals_of(parts, one) == totals_of(parts, another)
    assert totals_of(parts, one) == [totals_of([part], another)[0] for part in parts]


@given(st.lists(values, min_size=1), offsets)
def test_a_constant_column_has_no_deviation_at_all(lengths, offset):
    parts = [[0.1 + offset] * (1 + i % 3) for i in range(len(lengths))]
    merged = merge(Sums(rows=1, numbers={"x": each}) for each in totals_of(parts, 2))
    assert merged.numbers["x"].squares == 0
    assert merged.numbers["x"].std == 1


moments = st.builds(Moments, st.integers(1, 9), values, st.floats(0, 100))
sums = st.builds(
    Sums,
    rows=st.integers(0, 99),
    numbers=st.dictionaries(st.sampled_from("abc"), moments),
    categories=st.dictionaries(st.sampled_from("de"), st.lists(names, unique=True).map(lambda v: tuple(sorted(v)))),
    classes=st.lists(names, unique=True).map(lambda v: tuple(sorted(v))),
    target=st.none() | moments,
)


@given(sums)
def test_sums_travel_as_json_without_loss(told):
    assert Sums.from_table(json.loads(json.dumps(told.table()))) == told


@given(st.lists(sums, min_size=1, max_size=4))
def test_merged_sums_know_every_value_of_every_client(many):
    merged = merge(many)
    assert set(merged.classes) == {name for each in many for name in each.classes}
    for column in "de":
        assert set(merged.categories.get(column, ())) == {v for each in many for v in each.categories.get(column, ())}
    counts = [each.target.count for each in many if each.target]
    assert (merged.target.count if merged.target else 0) == sum(counts)


numbers = st.builds(Number, names, st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
categories = st.builds(Category, names, st.lists(names, unique=True).map(tuple))
schemas = st.builds(
    Schema,
    features=st.lists(numbers | categories).map(tuple),
    label=st.just("label"),
    classes=st.none() | st.lists(names, unique=True).map(tuple),
    target=st.none() | st.builds(Number, st.just("label"), st.floats(-1e9, 1e9), st.floats(1e-9, 1e9)),
    missing=st.sampled_from(["error", "mean"]),
    ignored=st.lists(names).map(tuple),
)


@given(schemas)
@settings(max_examples=50)
def test_a_schema_survives_being_written(schema):
    with tempfile.TemporaryDirectory() as folder:
        schema.save(Path(folder) / "schema.json")
        assert Schema.load(Path(folder) / "schema.json") == schema


fields = st.text(st.sampled_from('ab1 ,"\n;'), max_size=6)


@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=12), st.integers(1, 40))
@settings(max_examples=60)
def test_any_text_comes_back_whole_from_a_file_in_blocks(rows, block):
    frame = pl.DataFrame(rows, schema=["one", "two"], orient="row")
    before = csv_reader.BLOCK
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        frame.write_csv(path, quote_style="always")
        csv_reader.BLOCK = block
        try:
            parts = list(open_table(path).blocks(["one", "two"]))
        finally:
            csv_reader.BLOCK = before
        content = path.read_text()
    read = [tuple(field or "" for field in row) for part in parts for row in part.frame.rows()]
    assert read == rows
    lines = [part.number_of(i) for part in parts for i in range(len(part.frame))]
    starts = [2]
    for one, two in rows[:-1]:
        starts.append(starts[-1] + 1 + one.count("\n") + two.count("\n"))
    assert lines == starts
    assert content.count("\n") == starts[-1] + sum(field.count("\n") for field in rows[-1])
