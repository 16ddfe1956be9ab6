"""Add-ons: what blur, noise, strokes, wrong labels and quantity do to examples, by independent small references."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.data import Dataset, parse_partition
from coterie.data.dataset import Owners
from coterie.data.partitions.feature_skew import blurred, stroked
from coterie.data.partitions.label_noise import mislabel
from coterie.errors import PartitionError
from coterie.seeding import generator

RNG = generator(1)


def toy(train: int = 320, test: int = 80, shape: tuple[int, ...] = (1, 6, 6), classes: int | None = 4) -> Dataset:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(train + test, *shape)).astype(np.float32)
    y = np.arange(train + test) % (classes or 1)
    return Dataset("toy", x[:train], y[:train], x[train:], y[train:], classes)


def test_blur_spreads_a_point_as_a_gaussian_does():
    image = np.zeros((1, 1, 21, 21), np.float32)
    image[0, 0, 10, 10] = 1
    weights = [math.exp(-(d**2) / (2 * 1.5**2)) for d in range(-6, 7)]
    line = [w / sum(weights) for w in weights]
    expected = [[a * b for a in line] for b in line]
    seen = blurred(image, 1.5, RNG)
    assert np.allclose(seen[0, 0, 4:17, 4:17], expected, atol=1e-6)
    assert seen.dtype == np.float32


def test_blur_keeps_examples_and_channels_apart():
    images = np.zeros((3, 2, 7, 7), np.float32)
    images[1, 0] = 1
    seen = blurred(images, 2, RNG)
    assert np.allclose(seen[1, 0], 1, atol=1e-6)
    assert not seen[[0, 2]].any()
    assert not seen[1, 1].any()


@pytest.mark.parametrize(("width", "extreme"), [(1, max), (2, max), (-1, min), (-2, min)])
def test_strokes_grow_and_shrink_by_the_extreme_of_a_square(width, extreme):
    images = np.random.default_rng(2).normal(size=(2, 3, 6, 7)).astype(np.float32)
    seen = stroked(images, width, RNG)
    reach = abs(width)
    for example, channel, row, column in np.ndindex(images.shape):
        rows = range(max(0, row - reach), min(6, row + reach + 1))
        columns = range(max(0, column - reach), min(7, column + reach + 1))
        around = [images[example, channel, r, c] for r in rows for c in columns]
        assert seen[example, channel, row, column] == extreme(around)


def test_noise_has_the_deviation_asked_for_and_is_nobody_else_s():
    data = Dataset("flat", np.zeros((4000, 9)), np.zeros(4000, int), np.zeros((4000, 9)), np.zeros(4000, int), 1)
    federated = data.partition("iid+noise(0.5)", clients=4)
    parts = [split.of(i)[0] for split in (federated.train, federated.test) for i in range(4)]
    for part in parts:
        assert part.dtype == np.float32
        # 9000 values: the mean has deviation 0.005, the deviation itself about 0.004.
        assert abs(part.mean()) < 0.03
        assert abs(part.std() - 0.5) < 0.02
    for i, one in enumerate(parts):
        for other in parts[:i]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.06


def test_the_noise_of_one_level_is_louder_than_that_of_another():
    data = Dataset("flat", np.zeros((400, 9)), np.zeros(400, int), np.zeros((400, 9)), np.zeros(400, int), 1)
    federated = data.partition("iid+noise(0,0.1,1)", clients=7)
    levels = [federated.train.of(i)[0].std() for i in range(7)]
    assert np.digitize(levels, [0.01, 0.5]).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert federated.groups.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_images_are_needed_for_blur_and_stroke_and_not_for_noise():
    for text in ("iid+blur(1)", "iid+stroke(1)"):
        with pytest.raises(PartitionError, match=r"needs images and an example of toy has shape \(5,\); use .* noise"):
            toy(shape=(5,)).partition(text, clients=4)
    assert toy(shape=(5,), classes=None).partition("iid+noise(1)", clients=4).shape == (5,)


def test_two_add_ons_are_crossed_and_seen_in_order():
    federated = toy().partition("iid+blur(0,3)+noise(0,50)", clients=8)
    loud = np.array([federated.train.of(i)[0].std() > 10 for i in range(8)])
    assert federated.groups.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [int(loud[federated.groups == g].sum()) for g in (0, 1)] == [2, 2]
    blurred_last = toy().partition("iid+noise(50)+blur(3)", clients=8)
    assert blurred_last.train.x.std() < 15 < 40 < toy().partition("iid+blur(3)+noise(50)", clients=8).train.x.std()


@pytest.mark.parametrize("base", ["rotation(0,180)", "iid", "swap(2)"])
def test_levels_of_two_add_ons_are_crossed_in_every_group(base):
    """Not each client neither or both: every combination is as frequent as any other."""
    groups = toy().partition(base, clients=16).groups
    groups = np.zeros(16, int) if groups is None else groups
    federated = toy().partition(f"{base}+noise(0,50)+noise(0,5000)", clients=16)
    kinds = np.digitize([federated.train.of(i)[0].std() for i in range(16)], [10, 500])
    for group in np.unique(groups):
        counts = np.bincount(kinds[groups == group], minlength=3)
        assert (counts * 4).tolist() == [counts.sum(), counts.sum(), 2 * counts.sum()]


def test_wrong_labels_are_any_other_class_equally_often():
    y = np.full(30_000, 2)
    noisy = mislabel(y[:, None], y, "train", rate=0.5, classes=4, key=1, client=0)[1]
    counts = np.bincount(noisy, minlength=4)
    assert counts[2] == 15_000
    # 15000 draws among three: 5000 each, with a deviation of 58.
    assert np.abs(counts[[0, 1, 3]] - 5000).max() < 300


def test_small_clients_have_their_share_of_wrong_labels_on_average():
    y = np.zeros(20, int)
    wrong = [mislabel(y, y, "train", rate=0.01, classes=2, key=1, client=i)[1].sum() for i in range(2000)]
    assert set(wrong) == {0, 1}
    assert abs(np.mean(wrong) - 0.2) < 0.04


def test_label_noise_does_not_write_into_the_data_set():
    data = toy()
    before = data.y_train.copy()
    data.partition("iid+label-noise(1)", clients=1)
    assert np.array_equal(before, data.y_train)


def test_one_class_cannot_be_mistaken_for_another():
    with pytest.raises(PartitionError, match=r"label-noise needs another class and toy has 1; leave it out"):
        toy(classes=1).partition("iid+label-noise(0.5)", clients=4)


def test_logarithms_of_quantity_shares_are_half_normal():
    data = Dataset("long", np.zeros((90_000, 1)), np.zeros(90_000, int), np.zeros((9_000, 1)), np.zeros(9_000, int), 1)
    logs = -np.log(data.partition("iid+quantity(0.5,minimum=1)", clients=300).train.sizes / 300)
    # |z| has mean sqrt(2 / pi) and median 0.674; of 300 clients the estimates have deviations 0.035 and 0.045.
    assert abs(logs.mean() / 0.5 - np.sqrt(2 / np.pi)) < 0.12
    assert abs(np.median(logs) / 0.5 - 0.674) < 0.15


def test_quantity_leaves_small_owners_whole_and_keeps_names():
    data = toy(100, 20)
    owners = Owners(("anna", "bert"), np.r_[np.zeros(6, int), np.ones(94, int)], np.arange(20) % 2)
    owned = Dataset("owned", data.x_train, data.y_train, data.x_test, data.y_test, 4, owners=owners)
    for seed in range(10):
        federated = owned.partition("natural+quantity(3)", seed=seed)
        assert federated.names == ("anna", "bert")
        assert federated.train.sizes[0] == 6
        assert federated.train.sizes[1] >= 10


def test_few_keeps_at_most_so_many_and_the_mix_of_classes():
    federated = toy(480, 120, shape=(2,), classes=4).partition("iid+few(20)", clients=4)
    assert federated.train.sizes.tolist() == [20] * 4
    assert federated.test.sizes.tolist() == [5] * 4
    before = toy(480, 120, shape=(2,), classes=4).partition("iid", clients=4)
    for client in range(4):
        was, now = (np.bincount(one.train.of(client)[1], minlength=4) for one in (before, federated))
        assert np.abs(now - was / 6).max() <= 1
    assert federated.notes == ("400 train and 100 test examples are unused: at most 20 a client",)


def test_few_leaves_small_clients_whole():
    whole = toy(shape=(2,)).partition("iid", clients=8)
    federated = toy(shape=(2,)).partition("iid+few(1000)", clients=8)
    assert federated.train.sizes.tolist() == whole.train.sizes.tolist()
    assert federated.notes == whole.notes
    with pytest.raises(PartitionError, match=r"most"):
        toy(shape=(2,)).partition("iid+few(0)", clients=8)


def test_an_extreme_quantity_leaves_every_client_its_minimum():
    federated = toy(shape=(2,)).partition("iid+quantity(100)", clients=8)
    assert federated.train.sizes.tolist() == [10] * 8
    assert federated.test.sizes.tolist() == [1] * 8
    assert federated.notes == ("240 train and 72 test examples are unused: quantity skew",)


def test_a_quantity_that_drops_nothing_notes_nothing():
    federated = toy().partition("iid+quantity(0.0001)", clients=8)
    assert federated.train.sizes.tolist() == [40] * 8
    assert federated.notes == ()


def test_quantity_thins_clients_independently():
    data = toy()
    owners = Owners(tuple("abcdefgh"), np.arange(320) // 40, np.arange(80) // 10)
    owned = Dataset("owned", data.x_train, data.y_train, data.x_test, data.y_test, 4, owners=owners)
    shares = parse_partition("natural+quantity(100)").shares(owned, 8, seed=1)
    places = {tuple(share.train % 40) for share in shares.clients if len(share.train) == 10}
    assert len(places) == 8


def test_validation_labels_are_as_wrong_as_train_labels():
    data = toy()
    noisy = data.partition("iid+label-noise(1)", clients=2, validation=0.5)
    true = {x.tobytes(): y for x, y in zip(data.x_train, data.y_train, strict=True)}
    assert len(noisy.validation.y) == 160
    assert all(true[x.tobytes()] != y for x, y in zip(noisy.validation.x, noisy.validation.y, strict=True))
