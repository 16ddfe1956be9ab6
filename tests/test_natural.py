"""Naturally federated sets: pickles that cannot run, windows that cannot leak, states that are no attribute."""

from __future__ import annotations

import codecs
import gzip
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.apportion import split_by_owner
from coterie.data.sources import fars, hapt
from coterie.data.sources import hapt as frames
from coterie.data.sources.fars import keel
from coterie.errors import DataError

SIGNALS = ["acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z"]


def text(word: str) -> bytes:
    raw = word.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def name(module: str, word: str) -> bytes:
    return f"c{module}\n{word}\n".encode()


def tuple_of(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def list_of(*parts: bytes) -> bytes:
    return b"](" + b"".join(parts) + b"e"


def dict_of(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + b"R"


def array(shape: tuple[int, ...], kind: str, content: bytes) -> bytes:
    start = call(name("_codecs", "encode"), text("b"), text("latin1"))
    made = call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), tuple_of(number(0)), start)
    dtype = call(name("numpy", "dtype"), text(kind), number(0), number(1))
    dtype += tuple_of(number(3), text("<"), b"N", b"N", b"N", number(-1), number(-1), number(0)) + b"b"
    return made + tuple_of(number(1), tuple_of(*map(number, shape)), dtype, b"I00\n", content) + b"b"


def numbers(values: np.ndarray) -> bytes:
    raw = call(name("_codecs", "encode"), text(values.tobytes().decode("latin1")), text("latin1"))
    return array(values.shape, values.dtype.str[1:], raw)


def index(words: list[str]) -> bytes:
    content = array((len(words),), "O8", list_of(*map(text, words)))
    pairs = dict_of((text("data"), content), (text("name"), b"N"))
    return call(name("pandas.core.indexes.base", "_new_Index"), name("pandas.core.indexes.base", "Index"), pairs)


def reconstructed(module: str, word: str) -> bytes:
    return call(name("copy_reg", "_reconstructor"), name(module, word), name("__builtin__", "object"), b"N")


def frame(columns: dict[str, np.ndarray]) -> bytes:
    """The opcodes that pandas 1 wrote for a table of floats and whole numbers, under protocol 2."""
    names = list(columns)
    floats = [c for c in names if columns[c].dtype.kind == "f"]
    assert names[: len(floats)] == floats
    cuts = ((0, len(floats)), (len(floats), len(names)))
    blocks = [
        dict_of(
            (text("values"), numbers(np.stack([columns[c] for c in names[start:stop]]))),
            (text("mgr_locs"), call(name("__builtin__", "slice"), number(start), number(stop), number(1))),
        )
        for start, stop in cuts
    ]
    rows = call(
        name("pandas.core.indexes.base", "_new_Index"),
        name("pandas.core.indexes.range", "RangeIndex"),
        dict_of((text("start"), number(0)), (text("stop"), number(len(columns[names[0]]))), (text("step"), number(1))),
    )
    layout = dict_of(
        (text("0.14.1"), dict_of((text("axes"), list_of(index(names), rows)), (text("blocks"), list_of(*blocks))))
    )
    manager = reconstructed("pandas.core.internals.managers", "BlockManager")
    manager += tuple_of(b"]", b"]", b"]", layout) + b"b"
    return reconstructed("pandas.core.frame", "DataFrame") + dict_of((text("_data"), manager)) + b"b"


def pickled(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def session(labels: list[int], first: float = 0.0) -> dict[str, np.ndarray]:
    """A table whose signals are their own sample numbers, so that a window says where it comes from."""
    time = np.arange(len(labels))
    signals = dict.fromkeys(SIGNALS, first + time)
    return {**signals, "sequence": time, "label": np.array(labels, np.int64)}


def activity_file(people: dict[int, list[dict[str, np.ndarray]]]) -> dict[str, bytes]:
    raw = dict_of(*((number(who), list_of(*map(frame, tables))) for who, tables in people.items()))
    return {hapt.FILE: gzip.compress(pickled(raw))}


def test_a_table_of_pandas_is_read_without_pandas():
    columns = {"a": np.array([1.5, -2.25, 7.0]), "b": np.array([0.1, 0.2, 0.3]), "label": np.array([3, -1, 2**40])}
    found = frames.columns(frames.unpickle(pickled(frame(columns))))
    assert list(found) == ["a", "b", "label"]
    for word, values in columns.items():
        assert np.array_equal(found[word], values)
        assert found[word].dtype == values.dtype


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harm",)


class Opening:
    def __reduce__(self):
        return open, ("harm", "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("harmful", [Harmful(), [1, {"deep": Opening()}], codecs.decode, print, np.float64(1)])
def test_a_pickle_that_names_anything_else_is_refused_and_nothing_runs(protocol, harmful, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"the pickle names .*\..*; it is refused and nothing in it is run"):
        frames.unpickle(pickle.dumps(harmful, protocol))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "raw",
    [
        # "builtins" is the name of Python 3 and "getattr" is not in the list; dots must not reach inside a module.
        pickled(name("builtins", "eval")),
        pickled(name("__builtin__", "getattr")),
        pickled(name("numpy", "core.multiarray._reconstruct.__globals__")),
        pickled(name("copy_reg", "_reconstructor.__init__")),
        b"\x80\x04" + b"\x8c\x05posix" + b"\x8c\x06system" + b"\x93.",
    ],
)
def test_names_are_compared_whole(raw):
    with pytest.raises(DataError, match="it is refused"):
        frames.unpickle(raw)


def test_a_pickle_cannot_change_what_a_name_stands_for():
    sly = name("numpy", "dtype") + dict_of((text("func"), number(1))) + b"b0" + name("numpy", "dtype")
    with pytest.raises(DataError, match="not a pickle"):
        frames.unpickle(pickled(sly))
    kept = frames.unpickle(pickled(call(name("numpy", "dtype"), text("f8"))))
    assert (kept.name, kept.arguments) == ("numpy.dtype", ("f8",))


def test_a_cut_pickle_is_refused():
    whole = pickled(frame({"a": np.arange(4.0), "label": np.arange(4)}))
    for stop in range(0, len(whole) - 1, 7):
        with pytest.raises(DataError, match="cut short"):
            frames.unpickle(whole[:stop])


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (pickled(dict_of((text("a"), number(1)))), "not a table as pandas pickles it"),
        (pickled(reconstructed("pandas.core.frame", "DataFrame")), "not a table as pandas pickles it"),
        (pickled(frame({"a": np.zeros(3, np.float64), "b": np.zeros(3, np.int64)})).replace(b"f8", b"c8"), "holds <c8"),
        (
            pickled(frame({"a": np.zeros(3), "b": np.zeros(3, int)})).replace(number(3) + b"t", number(4) + b"t"),
            r"shape \(1, 4\) holds 24 bytes",
        ),
    ],
)
def test_a_pickle_of_something_else_is_no_table(raw, complaint):
    with pytest.raises(DataError, match=complaint):
        frames.columns(frames.unpickle(raw))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 3000))
def test_windows_of_a_bout_lie_inside_it_and_share_no_sample_between_train_and_test(length):
    samples = {"train": set(), "test": set()}
    counts = {"train": 0, "test": 0}
    for split, first in hapt.starts(length):
        assert 0 <= first <= length - 128
        samples[split].update(range(first, first + 128))
        counts[split] += 1
    assert not samples["train"] & samples["test"]
    assert not samples["test"] or min(samples["test"]) > max(samples["train"])
    assert (counts["train"] > 0) == (length >= 128)
    assert (counts["test"] > 0) == (length >= 256)
    if length >= 640:
        assert 0.12 < counts["test"] / (counts["test"] + counts["train"]) < 0.25


@settings(max_examples=40, deadline=None)
@given(runs=st.lists(st.tuples(st.sampled_from([-1, 1, 3, 6, 7, 12]), st.integers(1, 600)), min_size=1, max_size=8))
def test_no_window_leaves_its_activity(runs):
    labels = np.repeat([label for label, _ in runs], [length for _, length in runs])
    for start, stop, label in hapt.bouts(labels, np.arange(len(labels))):
        assert 1 <= label <= 6
        assert (labels[start:stop] == label).all()
        assert start == 0 or labels[start - 1] != label
        assert stop == len(labels) or labels[stop] != label


def test_windows_are_made_of_each_persons_own_samples():
    # 400 samples: (400 - 128) // 64 + 1 = 5 windows fit, so one is for testing and starts at 400 - 128.
    sitting = [4] * 400
    walking = [-1] * 10 + [1] * 300 + [9] * 50 + [1] * 130
    people = {7: [session(sitting)], 2: [session(walking, first=10_000.0), session(sitting, first=20_000.0)]}
    arrays = hapt.activity_set(activity_file(people))
    assert arrays["x_train"].shape[1:] == (6, 128)
    assert arrays["x_train"].dtype == np.float32
    assert arrays["x_train"][:, 0, 0].tolist() == [
        *(10_010, 10_360),
        *(20_000, 20_064, 20_128),
        *(0, 64, 128),
    ]
    assert arrays["y_train"].tolist() == [0, 0, 3, 3, 3, 3, 3, 3]
    assert arrays["owners_train"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert arrays["x_test"][:, 0, 0].tolist() == [10_182, 20_272, 272]
    assert arrays["owners_test"].tolist() == [0, 0, 1]
    assert (np.diff(arrays["x_train"], axis=-1) == 1).all()


def test_a_gap_in_time_ends_a_bout():
    table = session([5] * 300)
    table["sequence"] = np.where(np.arange(300) < 140, np.arange(300), np.arange(300) + 1)
    starts = hapt.activity_set(activity_file({1: [table, session([5] * 256)]}))["x_train"][:, 0, 0]
    assert starts.tolist() == [0, 140, 0]


def test_people_become_clients_and_signals_are_standardised_by_train_alone():
    rng = np.random.default_rng(1)
    tables = {who: [session([label] * 400) for label in (1, 2)] for who in (1, 2)}
    for tabs in tables.values():
        for table in tabs:
            for word in SIGNALS:
                table[word] = rng.normal(5, 3, 400)
    arrays = hapt.activity_set(activity_file(tables))
    data = hapt.activity_data(arrays)
    for signal in range(6):
        train = arrays["x_train"][:, signal].astype(float)
        expected = (arrays["x_test"][:, signal] - train.mean()) / train.std()
        assert np.allclose(data.x_test[:, signal], expected, atol=1e-5)
    clients = data.partition()
    assert clients.names == ("person-01", "person-02")
    assert clients.classes == 6
    assert clients.test.sizes.tolist() == [2, 2]


def test_a_set_of_activities_without_windows_or_columns_is_refused():
    with pytest.raises(DataError, match="no stretch of an activity long enough"):
        hapt.activity_set(activity_file({1: [session([4] * 200)]}))
    table = {key: values for key, values in session([4] * 300).items() if key != "sequence"}
    with pytest.raises(DataError, match="no column 'sequence'"):
        hapt.activity_set(activity_file({1: [table]}))


ACCIDENTS = """@relation fars
@attribute CASE_STATE {Alabama,Guam,Vermont}
@attribute AGE real [0.0,99.0]
@attribute FACTOR {none,lane,speed,lane,other}
@attribute INJURY_SEVERITY {No_Injury,Fatal_Injury}
@data
"""


def accidents(rows: list[tuple[str, int, str, str]]) -> dict[str, bytes]:
    return {fars.FILE: (ACCIDENTS + "\n".join(",".join(map(str, row)) for row in rows) + "\n").encode()}


ROWS = [
    (state, age, ("none", "lane", "speed", "other")[age % 4], ("No_Injury", "Fatal_Injury")[age % 2])
    for state, ages in (("Vermont", range(20, 30)), ("Alabama", range(40, 60)))
    for age in ages
]


def test_states_become_owners_and_are_no_attribute():
    arrays = fars.accident_set(accidents(ROWS))
    assert arrays["owner_names"].tolist() == ["Alabama", "Vermont"]
    assert arrays["owners"].tolist() == [1] * 10 + [0] * 20
    assert arrays["x"].dtype == np.int16
    # A category that is declared twice counts once: none, lane, speed, other.
    assert arrays["widths"].tolist() == [0, 4]
    assert arrays["x"][:4].tolist() == [[20, 0], [21, 1], [22, 2], [23, 3]]
    assert arrays["y"].tolist() == [row[1] % 2 for row in ROWS]


def test_every_state_keeps_a_fifth_for_testing_and_numbers_are_scaled_by_train_alone():
    data = fars.accident_data(fars.accident_set(accidents(ROWS)))
    clients = data.partition()
    assert clients.names == ("Alabama", "Vermont")
    assert clients.train.sizes.tolist() == [16, 8]
    assert clients.test.sizes.tolist() == [4, 2]
    assert data.class_names == ("No Injury", "Fatal Injury")
    assert np.bincount(clients.test.of(0)[1]).tolist() == [2, 2]
    x = np.concatenate([data.x_train, data.x_test])
    assert x.shape == (30, 5)
    assert np.isclose(data.x_train[:, 0].mean(), 0, atol=1e-6)
    assert np.isclose(data.x_train[:, 0].std(), 1, atol=1e-6)
    # Ages are whole and differ, so their order in standard units is their order in years.
    ages = np.empty(30, int)
    ages[np.argsort(x[:, 0])] = sorted(row[1] for row in ROWS)
    assert np.array_equal(x[:, 1:], np.eye(4)[ages % 4])
    assert np.array_equal(np.concatenate([data.y_train, data.y_test]), ages % 2)


def test_a_constant_number_becomes_nought():
    rows = [("Alabama", 7, "none", ("No_Injury", "Fatal_Injury")[i % 2]) for i in range(10)]
    data = fars.accident_data(fars.accident_set(accidents(rows)))
    assert (data.x_train[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"<html>blocked</html>", "not a KEEL table"),
        (ACCIDENTS.encode() + b"Guam,7,none,No_Injury\nGuam,7,none", r"line 8 has 3 values for 4 columns"),
        (ACCIDENTS.encode() + b"Guam,7,none,No_Injury\n\nGuam,7,ice,No_Injury", r"line 9 .* not declare: 'ice'"),
        (ACCIDENTS.encode() + b"Guam,old,none,No_Injury", r"line 7 .* 'old'"),
        (ACCIDENTS.encode() + b"Guam,?,none,No_Injury", r"line 7 .* '\?'"),
    ],
)
def test_a_table_that_is_not_as_declared_names_the_line(raw, complaint):
    with pytest.raises(DataError, match=complaint):
        keel(raw)


def test_another_table_is_not_taken_for_accidents():
    with pytest.raises(DataError, match="no column CASE_STATE; it has AGE, INJURY_SEVERITY"):
        fars.accident_set({fars.FILE: b"@attribute AGE real\n@attribute INJURY_SEVERITY {a}\n@data\n1,a\n"})
    with pytest.raises(DataError, match="not whole"):
        fars.accident_set(accidents([("Guam", 7.5, "none", "No_Injury")]))


@settings(max_examples=40, deadline=None)
@given(owners=st.lists(st.integers(0, 3), min_size=20, max_size=60), seed=st.integers(0, 99))
def test_setting_aside_by_owner_divides_every_owners_rows(owners, seed):
    every = np.array([*owners, 0, 0, 1, 1, 2, 2, 3, 3])
    y = np.random.default_rng(seed).integers(0, 3, len(every))
    train, test = split_by_owner("toy", ["a", "b", "c", "d"], every, y)
    assert sorted([*train, *test]) == list(range(len(every)))
    for owner in range(4):
        held = int((every == owner).sum())
        assert (every[test] == owner).sum() == max(1, round(0.2 * held))
    alone = split_by_owner("toy", ["a"], every[every == 0], y[every == 0])
    assert np.array_equal(np.flatnonzero(every == 0)[alone[1]], test[every[test] == 0])


def test_an_owner_with_one_example_has_none_to_test_on():
    with pytest.raises(DataError, match=r"b of toy has 1 examples, none to test on"):
        split_by_owner("toy", ["a", "b"], np.array([0, 0, 1]), np.zeros(3, int))
