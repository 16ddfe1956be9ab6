"""Readers of published files, on small files of each format that the tests write themselves."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from coterie.data import fetch, load
from coterie.data.sources import emnist, medmnist
from coterie.data.sources import fetching as origins
from coterie.errors import DataError, UnknownName, UsageError

SIZES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch):
    def refuse(address, timeout):
        raise urllib.error.URLError("no route\nto host")

    monkeypatch.setattr(origins.urllib.request, "urlopen", refuse)


def written(classes: int, extra: int = 5, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Upright images of every class, and labels from 0."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, extra)])
    return rng.integers(0, 256, (len(y), 28, 28)).astype(np.uint8), y


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def gzip_zip(path: Path, variants: dict[str, int], first: dict[str, int] | None = None) -> Path:
    """NIST's archive of idx files: every image is stored by column, letters are labelled from 1."""
    with zipfile.ZipFile(path, "w") as archive:
        for variant, classes in variants.items():
            for split, seed in (("train", 3), ("test", 4)):
                x, y = written(classes, seed=seed)
                stored = np.stack([image.T for image in x])
                labels = y + (first or {"letters": 1}).get(variant, 0)
                archive.writestr(f"gzip/emnist-{variant}-{split}-images-idx3-ubyte.gz", idx_bytes(stored))
                archive.writestr(f"gzip/emnist-{variant}-{split}-labels-idx1-ubyte.gz", idx_bytes(labels))
    return path


def matlab_bytes(classes: int, first: int) -> bytes:
    """NIST's Matlab file: an image is a row of 784 bytes, column after column of the picture."""
    splits = {}
    for split, seed in (("train", 3), ("test", 4)):
        x, y = written(classes, seed=seed)
        rows = np.stack([image.flatten(order="F") for image in x])
        splits[split] = {"images": rows, "labels": (y + first)[:, None].astype(np.uint8)}
    stream = io.BytesIO()
    savemat(stream, {"dataset": {**splits, "mapping": np.zeros((classes, 2), np.uint8)}})
    return stream.getvalue()


@pytest.mark.parametrize("variant", SIZES)
def test_emnist_comes_upright_and_its_labels_from_nought(variant, tmp_path):
    path = gzip_zip(tmp_path / "gzip.zip", SIZES)
    data = load(f"emnist({variant}, file={path})")
    x, y = written(SIZES[variant])
    assert np.array_equal(data.x_train[:, 0], x)
    assert np.array_equal(data.y_train, y)
    assert np.array_equal(data.y_test, written(SIZES[variant], seed=4)[1])
    assert data.name == f"emnist-{variant}"
    assert data.classes == len(data.class_names) == SIZES[variant]
    assert data.partition("iid(minimum=1)", clients=3).train.x.min() == -1


@pytest.mark.parametrize("variant", ["letters", "digits"])
def test_emnist_of_matlab_is_the_same_as_of_idx(variant, tmp_path):
    idx = load(f"emnist({variant},file={gzip_zip(tmp_path / 'gzip.zip', SIZES)})")
    raw = matlab_bytes(SIZES[variant], first=1 if variant == "letters" else 0)
    (tmp_path / f"emnist-{variant}.mat").write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "matlab.zip", "w") as archive:
        archive.writestr(f"matlab/emnist-{variant}.mat", raw)
    for name in (f"emnist-{variant}.mat", "matlab.zip"):
        found = load(f"emnist({variant},file={tmp_path / name})")
        for part in ("x_train", "y_train", "x_test", "y_test"):
            assert np.array_equal(getattr(found, part), getattr(idx, part))
            assert getattr(found, part).dtype == getattr(idx, part).dtype


def test_the_merged_classes_are_the_papers():
    merged = "".join(emnist.VARIANTS["balanced"])
    assert merged == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    assert {name: len(classes) for name, classes in emnist.VARIANTS.items()} == SIZES


def test_without_an_argument_emnist_is_balanced(offline):
    with pytest.raises(DataError, match="cannot fetch emnist-balanced"):
        load("emnist")
    with pytest.raises(UnknownName, match=r"unknown variant of emnist 'leters'; did you mean 'letters'\?"):
        load("emnist(leters)")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_an_emnist_file_that_is_missing_cut_or_wrong_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot open .*nowhere\.zip \(No such file.*name the downloaded gzip\.zip"):
        load(f"emnist(letters,file={tmp_path / 'nowhere.zip'})")
    with pytest.raises(DataError, match=r"cannot open .*\(Is a directory\)"):
        load(f"emnist(letters,file={tmp_path})")
    path = gzip_zip(tmp_path / "gzip.zip", {"digits": 10})
    with pytest.raises(DataError, match=r"gzip\.zip: the archive has no emnist-letters-train-images-idx3-ubyte\.gz"):
        load(f"emnist(letters,file={path})")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        for name in emnist.idx_files("digits"):
            archive.writestr(name, b"not gzipped")
    with pytest.raises(DataError, match=r"plain\.zip is damaged or no gzip\.zip, .* \(Not a gzipped file"):
        load(f"emnist(digits,file={tmp_path / 'plain.zip'})")
    cut(path)
    with pytest.raises(DataError, match=r"gzip\.zip: the archive is cut short; name the downloaded gzip\.zip"):
        load(f"emnist(digits,file={path})")
    (tmp_path / "cut.mat").write_bytes(matlab_bytes(10, 0))
    cut(tmp_path / "cut.mat")
    with pytest.raises(DataError, match=r"cut\.mat"):
        load(f"emnist(digits,file={tmp_path / 'cut.mat'})")
    (tmp_path / "text.mat").write_text("hello " * 100)
    with pytest.raises(DataError, match=r"text\.mat"):
        load(f"emnist(digits,file={tmp_path / 'text.mat'})")
    savemat(tmp_path / "other.mat", {"weights": np.zeros(3)})
    with pytest.raises(DataError, match=r"other\.mat: no Matlab file of EMNIST \('dataset'\)"):
        load(f"emnist(digits,file={tmp_path / 'other.mat'})")


def test_labels_of_another_variant_are_refused(tmp_path):
    shifted = gzip_zip(tmp_path / "gzip.zip", {"digits": 10, "letters": 26}, first={"digits": 1, "letters": 0})
    with pytest.raises(DataError, match=r"train label 10 outside 0\.\.9; it is of another data set"):
        load(f"emnist(digits,file={shifted})")
    with pytest.raises(DataError, match=r"train label -1 outside 0\.\.25"):
        load(f"emnist(letters,file={shifted})")
    (tmp_path / "a.mat").write_bytes(matlab_bytes(10, 0))
    with pytest.raises(DataError, match=r"no train image is of class 10 of 47; it is of another data set"):
        load(f"emnist(balanced,file={tmp_path / 'a.mat'})")


def test_a_fetched_variant_is_checked_kept_under_its_name_and_said_to_be_unpinned(tmp_path, cache, monkeypatch):
    path = gzip_zip(tmp_path / "gzip.zip", SIZES)
    monkeypatch.setattr(emnist, "ADDRESS", path.as_uri())
    with pytest.raises(DataError, match=r"not the publisher's 58c8d27c78d21e728a6bc7b3cc06412e"):
        fetch("emnist(letters)")
    assert not list(cache.glob("*.npz"))
    monkeypatch.setattr(emnist, "MD5", hashlib.md5(path.read_bytes()).hexdigest())
    said: list[str] = []
    fetch("emnist(letters)", said.append)
    fetch("emnist(variant=digits)", said.append)
    assert said[-1] == "emnist-digits is ready"
    assert "not pinned yet; their sha256 is" in said[1]
    assert sorted(file.name for file in cache.glob("*.npz")) == ["emnist-digits.npz", "emnist-letters.npz"]
    path.unlink()
    assert np.array_equal(load("emnist(letters)").x_train[:, 0], written(26)[0])


@pytest.mark.parametrize(
    ("text", "address", "remedy"),
    [
        ("emnist(letters)", "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "emnist(letters,file=PATH)"),
        (
            "medmnist(tissuemnist)",
            "https://zenodo.org/records/10519652/files/tissuemnist.npz?download=1",
            "medmnist(tissuemnist,file=PATH)",
        ),
    ],
)
def test_an_address_out_of_reach_is_named_with_reason_and_remedy(text, address, remedy, offline, cache):
    with pytest.raises(DataError) as caught:
        load(text)
    message = str(caught.value)
    assert f"{address}: <urlopen error no route to host>" in message
    assert f"Download it elsewhere and name it as {remedy}" in message
    assert "\n" not in message
    assert not list(cache.glob("*.npz"))


def med_file(path: Path, channels: int, classes: int, **changes: np.ndarray) -> Path:
    rng = np.random.default_rng(8)
    shape = (28, 28) if channels == 1 else (28, 28, channels)
    arrays = {}
    for split, extra in (("train", 6), ("val", 2), ("test", 3)):
        y = np.concatenate([np.arange(classes), rng.integers(0, classes, extra)])
        arrays[f"{split}_images"] = rng.integers(0, 256, (len(y), *shape)).astype(np.uint8)
        arrays[f"{split}_labels"] = y[:, None].astype(np.uint8)
    np.savez(path, **{**arrays, **changes})
    return path


def test_medmnist_joins_train_and_validation_and_puts_channels_first(tmp_path):
    path = med_file(tmp_path / "pathmnist.npz", 3, 9)
    data = load(f"medmnist(pathmnist,file={path})")
    raw = np.load(path)
    assert data.name == "medmnist-pathmnist"
    assert data.x_train.shape == (15 + 11, 3, 28, 28)
    assert np.array_equal(data.x_train[3, 1], raw["train_images"][3, :, :, 1])
    assert np.array_equal(data.x_train[15 + 4, 2], raw["val_images"][4, :, :, 2])
    assert np.array_equal(data.y_train, [*raw["train_labels"][:, 0], *raw["val_labels"][:, 0]])
    assert np.array_equal(data.x_test[0, 0], raw["test_images"][0, :, :, 0])
    assert data.classes == 9
    grey = load(f"medmnist(tissuemnist,file={med_file(tmp_path / 'tissuemnist.npz', 1, 8)})")
    assert grey.x_train.shape[1:] == (1, 28, 28)


def test_every_medmnist_set_is_known_by_a_sum_and_its_classes():
    sums = [kind.md5 for kind in medmnist.KINDS.values()]
    assert len(set(sums)) == len(sums) == 11
    assert all(len(each) == 32 for each in sums)
    assert {kind.channels for kind in medmnist.KINDS.values()} == {1, 3}
    assert [len(medmnist.KINDS[name].class_names) for name in ("pathmnist", "tissuemnist", "organamnist")] == [9, 8, 11]


def test_medmnist_files_that_are_missing_cut_or_of_another_set_are_named(tmp_path):
    path = med_file(tmp_path / "pathmnist.npz", 3, 9)
    with pytest.raises(DataError, match=r"uint8 and shape \(3, 28, 28\), not of uint8 and \(1, 28, 28\)"):
        load(f"medmnist(tissuemnist,file={path})")
    with pytest.raises(DataError, match=r"train label 8 outside 0\.\.7"):
        load(f"medmnist(bloodmnist,file={path})")
    few = med_file(tmp_path / "few.npz", 3, 7)
    with pytest.raises(DataError, match=r"few\.npz: no train image is of class 7 of 9"):
        load(f"medmnist(pathmnist,file={few})")
    floats = med_file(
        tmp_path / "floats.npz", 1, 8, train_images=np.zeros((14, 28, 28)), val_images=np.zeros((10, 28, 28))
    )
    with pytest.raises(DataError, match=r"train images of float64"):
        load(f"medmnist(tissuemnist,file={floats})")
    short = med_file(tmp_path / "short.npz", 1, 8, train_labels=(np.arange(13) % 8)[:, None])
    with pytest.raises(DataError, match=r"24 train images but 23 labels"):
        load(f"medmnist(tissuemnist,file={short})")
    np.savez(tmp_path / "part.npz", train_images=np.zeros(3))
    with pytest.raises(DataError, match=r"the archive has no train_labels\.npy"):
        load(f"medmnist(pathmnist,file={tmp_path / 'part.npz'})")
    objects = med_file(tmp_path / "objects.npz", 1, 8, test_labels=np.array([object()] * 11))
    with pytest.raises(DataError, match=r"objects\.npz is damaged or no tissuemnist\.npz \(Object arrays"):
        load(f"medmnist(tissuemnist,file={objects})")
    cut(path)
    with pytest.raises(DataError, match=r"pathmnist\.npz is damaged or no pathmnist\.npz"):
        load(f"medmnist(pathmnist,file={path})")
    with pytest.raises(DataError, match="cannot open"):
        load(f"medmnist(pathmnist,file={tmp_path / 'none.npz'})")


def test_medmnist_needs_a_known_name():
    with pytest.raises(UnknownName, match="did you mean 'pathmnist'"):
        load("medmnist(pathmnst)")
    with pytest.raises(UsageError, match="missing a required argument"):
        load("medmnist")


Writers = dict[str, tuple[list[list[float]], list[int]]]


def sheets(counts: dict[str, int], seed: int = 5) -> Writers:
    rng = np.random.default_rng(seed)
    return {
        writer: ((rng.integers(0, 256, (count, 784)) / 255).tolist(), rng.integers(0, 62, count).tolist())
        for writer, count in counts.items()
    }


def leaf_file(path: Path, content: Writers) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "users": list(content),
        "num_samples": [len(y) for _, y in content.values()],
        "user_data": {writer: {"x": x, "y": y} for writer, (x, y) in content.items()},
    }
    path.write_text(json.dumps(table))
    return path


def test_writers_are_the_clients_of_femnist(tmp_path):
    train, more, test = sheets({"f2_b": 3}), sheets({"f1_a": 4}, 6), sheets({"f1_a": 1, "f2_b": 2}, 7)
    leaf_file(tmp_path / "train" / "all_data_0_train.json", train)
    leaf_file(tmp_path / "train" / "all_data_1_train.json", more)
    leaf_file(tmp_path / "test" / "all_data_0_test.json", test)
    data = load(f"femnist({tmp_path})")
    clients = data.partition()
    assert clients.names == ("f1_a", "f2_b")
    assert clients.train.sizes.tolist() == [4, 3]
    assert clients.test.sizes.tolist() == [1, 2]
    assert (data.name, data.classes) == ("femnist", 62)
    for split, writer, client in ((train, "f2_b", 1), (more, "f1_a", 0)):
        x, y = split[writer]
        assert np.allclose(clients.train.of(client)[0].reshape(-1, 784), 2 * np.array(x) - 1, atol=1e-6)
        assert clients.train.of(client)[1].tolist() == y
    assert clients.test.of(1)[1].tolist() == test["f2_b"][1]


@pytest.mark.parametrize("place", [".", "all_data"])
def test_a_folder_without_a_split_is_split_by_writer(place, tmp_path):
    content = sheets({"a": 10, "b": 5, "c": 2})
    leaf_file(tmp_path / place / "all_data_0.json", content)
    data = load(f"femnist({tmp_path})")
    clients = data.partition()
    assert clients.train.sizes.tolist() == [8, 4, 1]
    assert clients.test.sizes.tolist() == [2, 1, 1]
    for client, writer in enumerate(content):
        both = [*clients.train.of(client)[1], *clients.test.of(client)[1]]
        assert sorted(both) == sorted(content[writer][1])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(2, 12), min_size=1, max_size=6), files=st.integers(1, 3))
def test_it_does_not_matter_in_which_file_a_writer_is(counts, files, tmp_path_factory):
    content = sheets({f"w{i}": count for i, count in enumerate(counts)})
    one, many = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("many")
    leaf_file(one / "0.json", content)
    for place in range(files):
        own = {writer: sheet for i, (writer, sheet) in enumerate(content.items()) if i % files == place}
        leaf_file(many / f"{place}.json", own)
    left, right = load(f"femnist({one})"), load(f"femnist({many})")
    assert left.owners.names == right.owners.names
    for part in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(left, part), getattr(right, part))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("num_samples"), r"has no 'num_samples', which LEAF's files have"),
        (lambda t: t["user_data"].pop("a"), r"has no 'a'"),
        (lambda t: t.update(num_samples=[3, 2]), r"a writer of 3 examples has x of shape \(2, 784\)"),
        (lambda t: t.update(num_samples=[2]), r"is damaged or no file of LEAF"),
        (lambda t: t["user_data"]["a"].update(y=[1, 62]), r"a label is 62; all must be whole numbers 0\.\.61"),
        (lambda t: t["user_data"]["a"].update(y=[1, 0.5]), r"a label is 0\.5"),
        (lambda t: t["user_data"]["a"]["x"][0].__setitem__(5, 255), r"a pixel is 255\.0; all must be from 0 to 1"),
        (lambda t: t["user_data"]["a"]["x"][0].__setitem__(5, float("nan")), r"a pixel is nan"),
        (lambda t: t["user_data"]["a"]["x"][0].pop(), r"is damaged or no file of LEAF"),
        (lambda t: t["user_data"]["a"].update(x=None), r"a writer of 2 examples has x of shape \(\)"),
    ],
)
def test_a_leaf_file_that_does_not_fit_together_is_named(change, complaint, tmp_path):
    path = leaf_file(tmp_path / "0.json", sheets({"a": 2, "b": 2}))
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(DataError, match=rf"0\.json.*{complaint}"):
        load(f"femnist({tmp_path})")


def test_leaf_folders_that_are_missing_cut_or_split_by_user_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere holds no \.json file; name the folder data that LEAF made"):
        load(f"femnist({tmp_path / 'nowhere'})")
    with pytest.raises(UsageError, match="missing a required argument: 'folder'"):
        load("femnist")
    path = leaf_file(tmp_path / "train" / "0.json", sheets({"a": 2, "b": 2}))
    leaf_file(tmp_path / "test" / "0.json", sheets({"a": 2}))
    with pytest.raises(DataError, match=r"writer 'b' of .* is in train or in test only; split with LEAF by sample"):
        load(f"femnist({tmp_path})")
    leaf_file(tmp_path / "train" / "1.json", sheets({"b": 2}))
    with pytest.raises(DataError, match=r"writer 'b' is in .*1\.json and in 0\.json; remove one"):
        load(f"femnist({tmp_path})")
    cut(path)
    with pytest.raises(DataError, match=r"0\.json is damaged or no file of LEAF"):
        load(f"femnist({tmp_path})")
    leaf_file(tmp_path / "single" / "0.json", sheets({"a": 3, "z": 1}))
    with pytest.raises(DataError, match="z of femnist has 1 examples, none to test on"):
        load(f"femnist({tmp_path / 'single'})")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "0.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=r"0\.json is damaged or no file of LEAF"):
        load(f"femnist({tmp_path / 'list'})")
