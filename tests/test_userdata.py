"""A user's own folder of arrays: what is read, and what is refused with the file's name and a remedy."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from coterie.data import array_memory, load_folder
from coterie.data.tables.api import load_own
from coterie.errors import DataError

X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.arange(20) % 4


def save(folder: Path, name: str, **arrays) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two clients in a folder of their own; the second brings its own test examples."""
    save(tmp_path / "hospitals", "bern", x=X, y=Y)
    return save(tmp_path / "hospitals", "aarau", x=X + 100, y=Y, x_test=X[:3] + 500, y_test=Y[:3])


def test_a_folder_becomes_a_federation_of_its_files_sorted_by_name(folder):
    federated = load_folder(folder)
    assert federated.data == "hospitals"
    assert federated.partition == "natural"
    assert federated.names == ("aarau", "bern")
    assert federated.classes == 4
    assert federated.groups is None
    assert federated.train.x.dtype == np.float32
    assert federated.train.y.dtype == np.int64


def test_own_test_examples_are_kept_and_others_set_aside_by_class(folder):
    federated = load_folder(folder)
    assert federated.train.sizes.tolist() == [20, 16]
    assert federated.test.sizes.tolist() == [3, 4]
    assert sorted(federated.test.of(1)[1]) == [0, 1, 2, 3]
    everything = np.concatenate([federated.train.of(1)[0], federated.test.of(1)[0]])
    assert np.array_equal(np.sort(everything[:, 0]), X[:, 0])


def test_the_split_depends_on_the_seed_and_the_clients_name_only(folder):
    first, again, other = load_folder(folder), load_folder(folder), load_folder(folder, seed=2)
    assert np.array_equal(first.test.x, again.test.x)
    assert not np.array_equal(first.test.of(1)[0], other.test.of(1)[0])
    (folder / "aarau.npz").unlink()
    assert np.array_equal(load_folder(folder).test.x, first.test.of(1)[0])


def test_validation_comes_from_what_remains_for_training(folder):
    federated = load_folder(folder, validation=0.25)
    assert federated.train.sizes.tolist() == [15, 12]
    assert federated.validation.sizes.tolist() == [5, 4]
    assert np.array_equal(federated.test.x, load_folder(folder).test.x)


def test_float_labels_are_targets_of_a_regression(tmp_path):
    federated = load_folder(save(tmp_path, "one", x=X, y=Y / 3))
    assert federated.classes is None
    assert federated.train.y.dtype == np.float32


def test_bytes_and_booleans_are_numbers_too_and_are_not_scaled(tmp_path):
    federated = load_folder(save(tmp_path, "one", x=X.astype(np.uint8), y=Y > 1))
    assert federated.classes == 2
    assert federated.train.x.max() > 30


def test_hidden_and_other_files_are_passed_over(folder):
    (folder / ".hidden.npz").write_bytes(b"not for us")
    (folder / "readme.txt").write_text("hello")
    assert len(load_folder(folder)) == 2


def test_a_class_that_only_one_client_has_counts(folder):
    save(folder, "chur", x=X, y=np.full(20, 6))
    assert load_folder(folder).classes == 7


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"y": Y}, "has no array x; save it"),
        ({"x": X}, "has no array y; save it"),
        ({"x": X, "y": Y, "x_test": X}, "has no array y_test"),
        ({"x": X, "y": Y[:7]}, "has 20 examples in x but 7 in y"),
        ({"x": X[:0], "y": Y[:0]}, r"x is empty, of shape \(0, 2\); leave the file out"),
        ({"x": X[:1], "y": Y[:1]}, "has a single example, none to test on; add examples"),
        ({"x": np.where(X == 6, np.nan, X), "y": Y}, "x has a NaN or infinite value in row 3, counted from 0; clean"),
        ({"x": X * 1e40, "y": Y}, "x has a NaN or infinite value in row 0"),
        ({"x": X, "y": np.where(Y == 2, np.inf, Y)}, "y has a NaN or infinite value in row 2"),
        ({"x": X, "y": Y, "x_test": X * np.nan, "y_test": Y}, "x_test has a NaN"),
        ({"x": X, "y": Y - 1}, "y has the label -1 in row 0, counted from 0; classes count from 0"),
        ({"x": X[:, 0], "y": Y}, r"x has shape \(20,\) and y \(20,\); reshape them"),
        ({"x": X, "y": Y[:, None]}, r"y \(20, 1\); reshape them"),
        ({"x": X, "y": np.array(list("abcdefghijklmnopqrst"))}, "y holds <U1, not numbers; encode"),
        ({"x": X, "y": np.array([None] * 20)}, "holds Python objects, not plain arrays; save it again"),
        ({"x": X[:, :1], "y": Y}, r"has examples of shape \(1,\) where aarau.npz has \(2,\)"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, r"has test examples of shape \(1,\) and others of \(2,\)"),
        ({"x": X, "y": Y / 2}, "has float32 labels where aarau.npz has int64; save all as whole numbers"),
    ],
)
def test_a_bad_file_is_named_with_its_problem_and_remedy(folder, arrays, complaint):
    save(folder, "chur", **arrays)
    with pytest.raises(DataError, match=complaint) as caught:
        load_folder(folder)
    assert "chur.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04broken", pickle.dumps({"x": 1})])
def test_a_file_that_is_no_npz_is_named_and_never_unpickled(folder, content):
    (folder / "chur.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"chur\.npz: is damaged or no \.npz file .*; save it again"):
        load_folder(folder)


def test_a_file_that_is_cut_short_is_named(folder):
    whole = (folder / "bern.npz").read_bytes()
    (folder / "bern.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"bern\.npz: is damaged"):
        load_folder(folder)


def test_a_missing_or_empty_folder_names_the_remedy(tmp_path):
    with pytest.raises(
        DataError,
        match=r"there is no file or folder .*nowhere; name a folder that holds a \.npz, .* file per client",
    ):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no \.npz, \.csv or \.parquet file; put one per client there"):
        load_folder(tmp_path)


def test_the_test_fraction_must_be_a_fraction(folder):
    with pytest.raises(DataError, match="test=1 must be between 0 and 1"):
        load_folder(folder, test=1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"group": "region"}, r"group=region names a column, and \.npz files have none; leave it out"),
        ({"ignore": ["age"]}, r"ignore=\('age',\) names a column"),
        ({"task": "regression"}, r"y holds int64, which is a classification; save y as floats for a regression"),
    ],
)
def test_what_is_for_tables_is_refused_for_arrays(folder, options, complaint):
    with pytest.raises(DataError, match=complaint):
        load_own(folder, **options)


def test_arrays_beyond_the_limit_are_the_same_on_disk(folder, monkeypatch):
    before = load_folder(folder, validation=0.25)
    monkeypatch.setattr(array_memory, "LIMIT", 0)
    after = load_folder(folder, validation=0.25)
    for left, right in ((before.train, after.train), (before.test, after.test), (before.validation, after.validation)):
        assert np.array_equal(left.x, right.x)
        assert np.array_equal(left.y, right.y)


def test_one_class_and_wild_numbers_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has the one class 3; at least 2"):
        load_folder(save(tmp_path / "same", "a", x=X, y=np.full(20, 3)))
    with pytest.raises(DataError, match=r"has the label 4000 but only 4 classes; number them from 0"):
        load_folder(save(tmp_path / "wild", "a", x=X, y=np.where(Y == 3, 4000, Y)))


def test_rare_classes_are_noted(folder):
    save(folder, "chur", x=X, y=np.full(20, 6))
    assert load_folder(folder).notes == ()
    save(folder, "davos", x=X, y=np.where(np.arange(20) < 2, 7, 0))
    assert load_folder(folder).notes == ("class '7' has 2 examples",)
