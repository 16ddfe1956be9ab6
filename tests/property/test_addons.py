"""Laws of every add-on, over random data sets, arguments and partitions beneath it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import Dataset, parse_partition
from coterie.data.dataset import Owners
from coterie.data.partitions.registry import add_ons

CLIENTS = 12


def images(seed: int, train: int, test: int) -> Dataset:
    """Random images of 4x4 in ten classes, with twelve owners."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(train + test, 1, 4, 4)).astype(np.float32)
    y = rng.permutation(np.arange(train + test) % 10)
    owners = Owners(tuple("abcdefghijkl"), np.arange(train) % CLIENTS, np.arange(test) % CLIENTS)
    return Dataset("images", x[:train], y[:train], x[train:], y[train:], 10, owners=owners)


def listed(name: str, values) -> st.SearchStrategy[str]:
    """The text of an add-on with one to four different levels."""
    levels = st.lists(values, min_size=1, max_size=4, unique=True)
    return levels.map(lambda own: f"{name}({','.join(map(str, own))})")


def hundredths(high: int) -> st.SearchStrategy[float]:
    return st.integers(0, high).map(lambda value: value / 100)


datasets = st.builds(images, seed=st.integers(0, 10_000), train=st.integers(300, 600), test=st.integers(120, 300))
without_groups = ["iid", "dirichlet(0.5,minimum=3)", "classes(3,minimum=3)", "shards(2,minimum=3)", "natural"]
with_groups = [
    "dirichlet(1,10,groups=3,minimum=3)",
    "skewed(1,4,7,outer=5,minimum=3)",
    "classes(3,2,groups=4,minimum=3)",
    "blocks(balanced=false,minimum=3)",
    "table(mnist,relabel=true,minimum=3)",
    "rotation(0,90,minimum=3)",
    "swap(3)",
    "permute(5)",
]
bases = st.sampled_from(without_groups + with_groups)
texts = {
    "quantity": st.builds("quantity({},minimum=4)".format, hundredths(300).map(lambda value: value + 0.01)),
    "few": st.integers(1, 60).map("few({})".format),
    "blur": listed("blur", hundredths(400)),
    "noise": listed("noise", hundredths(200)),
    "stroke": listed("stroke", st.integers(-1, 1)),
    "label-noise": hundredths(100).map("label-noise({})".format),
}
leveled = ["blur", "noise", "stroke"]
every = pytest.mark.parametrize("kind", texts)
quick = settings(max_examples=20, deadline=None)


def same(left, right) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in (
            (left.train.x, right.train.x),
            (left.train.y, right.train.y),
            (left.test.x, right.test.x),
            (left.test.y, right.test.y),
        )
    )


def test_every_add_on_is_tested_here():
    assert set(texts) == set(add_ons)


@every
@quick
@given(base=bases, draw=st.data())
def test_the_text_of_a_partition_with_add_ons_names_it(kind, base, draw):
    written = f"{base}+{draw.draw(texts[kind])} | {draw.draw(texts['noise'])}"
    partition = parse_partition(written)
    assert parse_partition(partition.text) == partition
    assert [each.text.partition("(")[0] for each in partition.add_ons] == [kind, "noise"]


@every
@quick
@given(data=datasets, base=bases, draw=st.data())
def test_the_base_is_the_same_draw_with_and_without_an_add_on(kind, data, base, draw):
    plain = parse_partition(base).shares(data, CLIENTS, seed=1)
    changed = parse_partition(f"{base}+{draw.draw(texts[kind])}").shares(data, CLIENTS, seed=1)
    assert changed.names == plain.names
    assert changed.classes == plain.classes
    assert changed.notes[: len(plain.notes)] == plain.notes
    for before, after in zip(plain.clients, changed.clients, strict=True):
        if kind in ("quantity", "few"):
            assert np.isin(after.train, before.train).all()
            assert np.isin(after.test, before.test).all()
        else:
            assert np.array_equal(before.train, after.train)
            assert np.array_equal(before.test, after.test)


@every
@quick
@given(data=datasets, base=bases, draw=st.data(), seed=st.integers(0, 1000))
def test_a_seed_repeats_exactly(kind, data, base, draw, seed):
    text = f"{base}+{draw.draw(texts[kind])}"
    first, again = (data.partition(text, clients=CLIENTS, seed=seed) for _ in range(2))
    assert same(first, again)


@pytest.mark.parametrize("text", ["quantity(1)", "noise(0.5)", "label-noise(0.5)"])
@quick
@given(data=datasets, seed=st.integers(0, 1000))
def test_another_seed_draws_anew_even_on_clients_that_stay_the_same(text, data, seed):
    first, other = (data.partition(f"natural+{text}", clients=CLIENTS, seed=seed + i) for i in range(2))
    assert not same(first, other)


@every
@quick
@given(data=datasets, base=bases, draw=st.data())
def test_a_client_s_examples_depend_on_its_own_share_alone(kind, data, base, draw):
    text = f"{base}+{draw.draw(texts[kind])}"
    federated = data.partition(text, clients=CLIENTS)
    shares = parse_partition(text).shares(data, CLIENTS, seed=1).clients
    for i in reversed(range(CLIENTS)):
        train = shares[i].view(data.x_train[shares[i].train], data.y_train[shares[i].train], "train")
        test = shares[i].view(data.x_test[shares[i].test], data.y_test[shares[i].test], "test")
        assert all(map(np.array_equal, train, federated.train.of(i)))
        assert all(map(np.array_equal, test, federated.test.of(i)))


@every
@quick
@given(data=datasets, base=bases, draw=st.data())
def test_groups_of_the_partition_stay_the_truth(kind, data, base, draw):
    plain = data.partition(base, clients=CLIENTS)
    text = draw.draw(texts[kind])
    changed = data.partition(f"{base}+{text}", clients=CLIENTS)
    levels = text.count(",") + 1
    if plain.groups is not None:
        assert np.array_equal(plain.groups, changed.groups)
    elif kind in leveled and levels > 1:
        assert changed.groups.tolist() == [i % levels for i in range(CLIENTS)]
    else:
        assert changed.groups is None


@pytest.mark.parametrize("base", with_groups)
def test_levels_are_spread_evenly_over_everyone_and_over_each_group(base):
    data = replace(images(3, 400, 200), x_train=np.zeros((400, 1, 4, 4)), x_test=np.zeros((200, 1, 4, 4)))
    federated = data.partition(f"{base}+noise(0,1,100)", clients=CLIENTS)
    deviations = [federated.train.of(i)[0].std() for i in range(CLIENTS)]
    levels = np.digitize(deviations, [0.1, 10])
    assert np.bincount(levels).tolist() == [4, 4, 4]
    for group in np.unique(federated.groups):
        assert np.ptp(np.bincount(levels[federated.groups == group], minlength=3)) <= 1


@quick
@given(data=datasets, base=bases, rate=hundredths(100))
def test_label_noise_makes_its_share_of_train_labels_wrong_and_no_test_label(data, base, rate):
    plain = data.partition(base, clients=CLIENTS)
    noisy = data.partition(f"{base}+label-noise({rate})", clients=CLIENTS)
    assert np.array_equal(plain.train.x, noisy.train.x)
    assert np.array_equal(plain.test.y, noisy.test.y)
    assert noisy.train.y.min() >= 0
    assert noisy.train.y.max() < noisy.classes
    for i, size in enumerate(plain.train.sizes.tolist()):
        wrong = int((plain.train.of(i)[1] != noisy.train.of(i)[1]).sum())
        assert math.floor(rate * size) <= wrong <= math.ceil(rate * size)


@pytest.mark.parametrize("kind", leveled)
@quick
@given(data=datasets, base=bases, draw=st.data())
def test_feature_skew_leaves_labels_and_level_0_as_they_are(kind, data, base, draw):
    plain = data.partition(base, clients=CLIENTS)
    changed = data.partition(f"{base}+{draw.draw(texts[kind])}", clients=CLIENTS)
    assert np.array_equal(plain.train.y, changed.train.y)
    assert np.array_equal(plain.test.y, changed.test.y)
    assert same(plain, data.partition(f"{base}+{kind}(0)", clients=CLIENTS))


@quick
@given(data=datasets, base=bases, sigma=hundredths(300), minimum=st.integers(1, 20))
def test_quantity_keeps_a_minimum_of_each(data, base, sigma, minimum):
    plain = parse_partition(base).shares(data, CLIENTS, seed=1)
    text = f"{base}+quantity({sigma + 0.01},minimum={minimum})"
    thin = parse_partition(text).shares(data, CLIENTS, seed=1)
    had, kept = (np.array([len(share.train) for share in shares.clients]) for shares in (plain, thin))
    assert (kept <= had).all()
    assert (kept >= np.minimum(had, minimum)).all()
    assert all(len(share.test) >= 1 for share in thin.clients)
    dropped = sum(len(share.test) for share in plain.clients) - sum(len(share.test) for share in thin.clients)
    notes = [f"{(had - kept).sum()} train and {dropped} test examples are unused: quantity skew"]
    assert list(thin.notes[len(plain.notes) :]) == (notes if (had - kept).any() or dropped else [])


@quick
@given(data=datasets, base=bases, sigma=hundredths(200))
def test_quantity_keeps_the_same_share_of_every_class(data, base, sigma):
    plain = parse_partition(base).shares(data, CLIENTS, seed=1)
    thin = parse_partition(f"{base}+quantity({sigma + 0.01})").shares(data, CLIENTS, seed=1)
    for before, after in zip(plain.clients, thin.clients, strict=True):
        for old, new, y in ((before.train, after.train, data.y_train), (before.test, after.test, data.y_test)):
            assert len(np.unique(new)) == len(new)
            counts = [np.bincount(y[rows], minlength=10) for rows in (old, new)]
            assert np.abs(counts[1] - counts[0] * len(new) / len(old)).max() < 1
