"""Arrays and datasets given by Python: what becomes of examples and labels, and what is refused by name and row."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

import coterie as ct
from coterie.data.dataset import Dataset
from coterie.data.tables.reading import Reading
from coterie.errors import DataError, RunFolderError, UnknownName


def pair(seed=0, count=20, shape=(3,), labels=(0, 1)):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, *shape)), np.array(labels)[np.arange(count) % len(labels)]


def two(**changes):
    return {"bern": pair(1, **changes), "chur": pair(2, **changes)}


# ---- arrays ----


@pytest.mark.parametrize("labels", [(0, 1), (0.5, 1.5)], ids=["classes", "targets"])
@pytest.mark.parametrize("options", [{}, {"test": 0.4, "seed": 5}, {"validation": 0.25}])
def test_arrays_are_split_as_files_of_the_same_name(tmp_path, labels, options):
    for name, (x, y) in two(labels=labels).items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    files, arrays = ct.load_folder(tmp_path, **options), ct.from_arrays(two(labels=labels), **options)
    assert arrays.fingerprint() == files.fingerprint()
    for part in ("train", "test", *(["validation"] if "validation" in options else [])):
        assert np.array_equal(getattr(files, part).x, getattr(arrays, part).x)
        assert np.array_equal(getattr(files, part).y, getattr(arrays, part).y)
    assert arrays.words is None


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ((7, -1, 3), ("-1", "3", "7")),
        (("well", "ill"), ("ill", "well")),
        ((True, False), ("False", "True")),
        ((0, 10**12), ("0", "1000000000000")),
    ],
)
def test_classes_are_numbered_in_order_and_keep_their_names(labels, names):
    clients = ct.from_arrays(two(labels=labels))
    assert clients.class_names == names
    assert clients.classes == len(names)
    x, y = two(labels=labels)["bern"]
    for row, number in zip(*(array.tolist() for array in clients.train.of(0)), strict=True):
        (place,) = np.flatnonzero((x.astype(np.float32) == np.array(row, np.float32)).all(axis=1))
        assert str(y[place]) == names[number]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=6, unique=True), st.integers(0, 99))
def test_renumbered_classes_change_nothing_else(labels, seed):
    """The class of a row goes with its example, whatever numbers the user has for the classes."""
    plain = ct.from_arrays(two(labels=tuple(range(len(labels))), count=24), seed=seed)
    other = ct.from_arrays(two(labels=tuple(sorted(labels)), count=24), seed=seed)
    assert other.class_names == tuple(map(str, sorted(labels)))
    assert plain.fingerprint() == other.fingerprint()


def test_a_client_may_lack_classes_that_others_have():
    x, _ = pair()
    clients = ct.from_arrays({"bern": (x, ["a", "b"] * 10), "chur": (x, ["c"] * 20)})
    assert clients.class_names == ("a", "b", "c")
    assert set(clients.train.of(1)[1].tolist()) == {2}


def test_tensors_and_lists_are_taken_as_arrays_are():
    x, y = pair()
    given = {"array": (x, y), "tensor": (torch.tensor(x, requires_grad=True), torch.tensor(y)), "list": (x.tolist(), y)}
    for value in given.values():
        clients = ct.from_arrays({"bern": value, "chur": pair(2)})
        assert clients.fingerprint() == ct.from_arrays({"bern": (x, y), "chur": pair(2)}).fingerprint()
        assert clients.train.x.dtype == np.float32


def test_bytes_are_scaled_as_a_data_set_scales_them_and_other_numbers_are_not():
    image = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    y = np.arange(20) % 2
    parts = {"train": (image, y), "test": (image, y)}
    clients = ct.from_arrays({"bern": parts, "chur": parts})
    whole = Dataset("toy", image, y, image, y, classes=2).partition("iid", clients=1)
    assert {row.tobytes() for row in clients.train.of(0)[0]} == {row.tobytes() for row in whole.train.x}
    assert clients.train.x.min() >= -1
    assert clients.train.x.max() <= 1
    as_numbers = ct.from_arrays({"bern": (image.astype(np.int64), y), "chur": (image.astype(np.int64), y)})
    assert as_numbers.train.x.max() > 100
    with pytest.raises(DataError, match="'chur' has train examples that are numbers where 'bern' has bytes"):
        ct.from_arrays({"bern": (image, y), "chur": (image / 255, y)})


def test_parts_that_are_given_are_used_as_they_are():
    (x, y), (x2, y2) = pair(1), pair(2)
    parts = {"train": (x, y), "test": (x2[:5], y2[:5]), "validation": (x2[5:9], y2[5:9])}
    clients = ct.from_arrays({"bern": parts, "chur": parts}, test=0.9, validation=0.5)
    assert clients.train.sizes.tolist() == [20, 20]
    assert np.array_equal(clients.test.of(1)[0], x2[:5].astype(np.float32))
    assert clients.validation.sizes.tolist() == [4, 4]
    with pytest.raises(DataError, match="'chur' has no validation part, and 'bern' has one"):
        ct.from_arrays({"bern": parts, "chur": (x, y)})


def test_the_task_overrides_what_the_labels_look_like():
    assert ct.from_arrays(two(labels=(1, 2))).classes == 2
    assert ct.from_arrays(two(labels=(1, 2)), task="regression").classes is None
    assert ct.from_arrays(two(labels=(1.0, 2.0))).classes is None
    assert ct.from_arrays(two(labels=(1.0, 2.0)), task="classification").class_names == ("1", "2")
    with pytest.raises(DataError, match=r"row 1, is 1.5, which is not whole; .*task='regression'"):
        ct.from_arrays(two(labels=(1.0, 1.5)), task="classification")
    with pytest.raises(DataError, match="task=regression needs numbers"):
        ct.from_arrays(two(labels=("a", "b")), task="regression")
    with pytest.raises(UnknownName, match="did you mean 'regression'"):
        ct.from_arrays(two(), task="regresion")


def test_whole_numbers_and_floats_may_mix_once_the_task_is_given():
    mixed = {"bern": pair(1, labels=(1, 2)), "chur": pair(2, labels=(1.0, 3.0))}
    assert ct.from_arrays(mixed, task="regression").classes is None
    assert ct.from_arrays(mixed, task="classification").class_names == ("1", "2", "3")
    with pytest.raises(DataError, match="train of 'chur' are floats, and those in train of 'bern' are whole numbers"):
        ct.from_arrays(mixed)
    with pytest.raises(DataError, match="train of 'zug' are words"):
        ct.from_arrays({**mixed, "zug": pair(3, labels=("a", "b"))}, task="classification")


def test_true_groups_are_numbered_by_their_names_and_complete():
    clients = ct.from_arrays({1: pair(1), 2: pair(2), 3: pair(3)}, groups={1: "west", 2: "east", 3: "west"})
    assert clients.names == ("1", "2", "3")
    assert clients.groups.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="groups has no group for client 'chur'"):
        ct.from_arrays(two(), groups={"bern": 0})
    with pytest.raises(DataError, match="groups names 'zug', which is no client"):
        ct.from_arrays(two(), groups={"bern": 0, "chur": 0, "zug": 1})


def holed(where):
    x, y = pair()
    x[where] = np.nan
    return x, y


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({}, "an empty mapping; give a mapping from names"),
        ([pair()], "given as a list; give a mapping from names"),
        ({"bern": pair()[0]}, r"client 'bern' has a ndarray; give \(x, y\)"),
        ({"bern": {"test": pair()}}, "client 'bern' has no part 'train'"),
        ({"bern": {"trian": pair()}}, "unknown part of client 'bern' 'trian'; did you mean 'train'"),
        ({"bern": (*pair(), 1)}, r"client 'bern' has a tuple; give \(x, y\)"),
        ({"bern": (pair()[0], pair()[1][:3])}, "20 examples in x but 3 labels in y"),
        ({"bern": (pair()[0][:, 0], pair()[1])}, r"x of shape \(20,\) and y of \(20,\); reshape"),
        ({"bern": pair(shape=(0,))}, "client 'bern' has no examples"),
        ({"bern": ([[1, 2], [3]], [0, 1])}, "x of client 'bern' cannot be read as an array"),
        ({"bern": ([["a"], ["b"]], [0, 1])}, "holds <U1, not numbers; encode it as numbers, or use ct.from_frame"),
        ({"bern": (pair()[0], [None] * 20)}, "labels in train of 'bern' are of object"),
        ({"bern": pair(), "chur": holed(7)}, "x of client 'chur' has a NaN or infinite value in row 7, counted from 0"),
        ({"bern": (pair()[0] * 1e300, pair()[1])}, "NaN or infinite value in row 0"),
        ({"bern": (pair()[0], [0.5] * 19 + [np.inf])}, "y of client 'bern' has a NaN or infinite value in row 19"),
        ({"bern": {"train": pair(), "test": holed(2)}}, "x of client 'bern' in test has a NaN .* row 2"),
        (
            {"bern": pair(), "chur": pair(shape=(4,))},
            r"'chur' has train examples of shape \(4,\) where 'bern' has \(3,\)",
        ),
        ({"bern": pair(), "chur": pair(labels=("a", "b"))}, "train of 'chur' are words, .* 'bern' are whole numbers"),
        ({"bern": {"train": pair(), "test": pair(labels=(0.5,))}}, "test of 'bern' are floats"),
        ({"bern": pair(labels=(3,))}, "all labels are 3; at least 2 classes"),
        ({"bern": pair(labels=range(1001), count=1001)}, "1001 different labels; at most 1000"),
        ({"bern": pair(), "chur": pair(count=1), "zug": pair(count=1)}, "too few examples .*: 'chur', 'zug'; give"),
        ({1: pair(), "1": pair()}, "two clients are named '1'"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_in_one_line(clients, message):
    with pytest.raises((DataError, UnknownName), match=message) as caught:
        ct.from_arrays(clients)
    assert "\n" not in str(caught.value)


def test_clients_with_too_few_for_validation_are_all_named():
    few = {f"c{i}": pair(i, count=2) for i in range(7)}
    assert len(ct.from_arrays(few)) == 7
    with pytest.raises(DataError, match="'c0', 'c1', 'c2', 'c3', 'c4' and 2 more"):
        ct.from_arrays(few, validation=0.1)


# ---- datasets ----


class HuggingFace(list):
    """Rows that are mappings, and features that name the labels, as a dataset of Hugging Face has."""

    @property
    def features(self):
        return {"image": object(), "label": type("ClassLabel", (), {"names": ["ape", "bat", "cat"]})()}


class Partitioner:
    """What flwr-datasets' partitioners can do."""

    num_partitions = 3

    def load_partition(self, partition_id):
        return HuggingFace(pictures(seed=partition_id))


def pictures(seed=0, mode="L", count=10):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
    return [{"image": Image.fromarray(each).convert(mode), "label": 2 * (i % 2)} for i, each in enumerate(pixels)]


def test_a_dataset_of_torch_gives_the_clients_of_its_arrays():
    arrays = {name: (x.astype(np.float32), y) for name, (x, y) in two().items()}
    sets = {name: TensorDataset(torch.tensor(x), torch.tensor(y)) for name, (x, y) in arrays.items()}
    assert ct.from_datasets(sets).fingerprint() == ct.from_arrays(arrays).fingerprint()
    half = {name: Subset(each, range(10)) for name, each in sets.items()}
    assert ct.from_datasets(half, groups={"bern": 0, "chur": 1}).train.sizes.tolist() == [8, 8]


def test_a_partitioner_gives_a_client_for_each_partition():
    clients = ct.from_datasets(Partitioner())
    assert clients.names == ("0", "1", "2")
    assert clients.shape == (1, 4, 5)
    assert clients.class_names == ("ape", "cat")
    assert ct.from_datasets(Partitioner(), names=["a", "b", "c"]).names == ("a", "b", "c")
    with pytest.raises(DataError, match="names has 2 names for 3 partitions"):
        ct.from_datasets(Partitioner(), names=["a", "b"])


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("P", 3), ("RGB", 3), ("RGBA", 4)])
def test_pictures_have_their_channels_first_and_are_scaled(mode, channels):
    rows = pictures(mode=mode)
    whole = {"train": rows, "test": rows}
    clients = ct.from_datasets({"bern": whole, "chur": whole})
    assert clients.shape == (channels, 4, 5)
    assert clients.train.x.min() >= -1
    assert clients.train.x.max() <= 1
    if mode == "RGB":
        pixel = np.asarray(rows[3]["image"])[1, 2, 0] / 127.5 - 1
        assert clients.train.of(0)[0][3, 0, 1, 2] == np.float32(pixel)


def test_keys_are_found_or_named():
    rows = [{"signal": [1.0 * i, 2.0], "kind": i % 2, "note": "-"} for i in range(10)]
    assert ct.from_datasets({"bern": rows, "chur": rows}, x="signal", label="kind").shape == (2,)
    with pytest.raises(DataError, match=r"row 0, has no key x or features .* but signal, kind, note; name one .* x="):
        ct.from_datasets({"bern": rows})
    with pytest.raises(DataError, match="has no key knid but signal, kind, note; name one of them with label="):
        ct.from_datasets({"bern": rows}, x="signal", label="knid")


class Endless(IterableDataset):
    def __iter__(self):
        yield from iter(int, 1)


class LengthOnly(Endless):
    def __len__(self):
        return 5


UNEVEN = [(np.zeros(3), 0), (np.zeros(4), 1)]


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"train": [], "test": []}, "named train, test, which are parts and no clients"),
        ({"bern": Endless()}, r"client 'bern' has a Endless, without length .*list\(islice"),
        ({"bern": LengthOnly()}, r"LengthOnly that gives no row by number; give list\(islice"),
        ({"bern": pair()}, "client 'bern' has a tuple, not a dataset; arrays go through ct.from_arrays"),
        ({"bern": []}, "client 'bern' has an empty dataset"),
        ({"bern": [1, 2]}, r"client 'bern', row 0, is a int; a row must be \(x, y\)"),
        ({"bern": UNEVEN}, r"shape \(4,\) in row 1 and of \(3,\) in row 0"),
        ({"bern": [(np.zeros(3), [[0, 1]])] * 4}, r"row 0, has a label of shape \(1, 2\)"),
        ([1], "clients are given as a list"),
    ],
)
def test_datasets_that_cannot_be_used_are_refused_in_one_line(datasets, message):
    with pytest.raises(DataError, match=message) as caught:
        ct.from_datasets(datasets)
    assert "\n" not in str(caught.value)


def test_names_are_for_partitioners_only():
    with pytest.raises(DataError, match="names are for a partitioner"):
        ct.from_datasets(two(), names=["a", "b"])


# ---- runs ----


def frame_door(seed):
    import polars as pl

    x, y = zip(*(pair(seed + i) for i in range(4)), strict=True)
    columns = dict(zip("abc", np.concatenate(x).T, strict=True))
    site = np.repeat(["bern", "chur", "genf", "zug"], 20)
    return ct.from_frame(pl.DataFrame({**columns, "site": site, "label": np.concatenate(y)}), client="site")


def arrays_door(seed):
    return ct.from_arrays({name: pair(seed + i) for i, name in enumerate(("bern", "chur", "genf", "zug"))})


def datasets_door(seed):
    rows = {name: list(zip(*pair(seed + i), strict=True)) for i, name in enumerate(("bern", "chur", "genf", "zug"))}
    return ct.from_datasets(rows)


@pytest.mark.parametrize("door", [frame_door, arrays_door, datasets_door])
def test_a_run_on_given_data_resumes_and_knows_other_data(tmp_path, door):
    whole = ct.run(ct.wecfl(clusters=2), door(1), rounds=3)
    ct.run(ct.wecfl(clusters=2), door(1), rounds=2, out=tmp_path / "run")
    again = ct.run(ct.wecfl(clusters=2), door(1), rounds=3, out=tmp_path / "run", resume=True)
    assert np.array_equal(again.state.stack.params, whole.state.stack.params)
    with pytest.raises(RunFolderError, match="was begun on other examples than these"):
        ct.run(ct.wecfl(clusters=2), door(50), rounds=4, out=tmp_path / "run", resume=True)


def test_the_shares_are_those_of_files():
    defaults = Reading()
    for door in (ct.from_arrays, ct.from_datasets):
        for name in ("task", "test", "validation", "seed"):
            assert signature(door).parameters[name].default == getattr(defaults, name)
