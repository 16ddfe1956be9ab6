"""Blocks, swaps, permutations and shards: the shapes that papers describe, counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.data import Dataset


def toy(train: int = 600, test: int = 200, classes: int = 10) -> Dataset:
    """Equally many examples of each class; an example's features are its class and its number."""
    x = np.stack([np.arange(train + test) % classes, np.arange(train + test)], axis=1).astype(np.float32)
    y = np.arange(train + test) % classes
    return Dataset("toy", x[:train], y[:train], x[train:], y[train:], classes)


def counts(split, classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(split.of(i)[1], minlength=classes) for i in range(len(split.sizes))])


APART = ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9])
OVERLAPPING = ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [0, 6, 7, 8, 9])


@pytest.mark.parametrize(("clients", "each"), [(15, [12, 12, 12]), (30, [6, 6, 6])])
def test_balanced_blocks_divide_a_class_evenly_over_its_group(clients, each):
    federated = toy().partition("blocks", clients=clients)
    assert np.bincount(federated.groups).tolist() == [clients // 3] * 3
    table = counts(federated.train)
    for group, own in enumerate(APART):
        expected = np.zeros(10, int)
        expected[own] = each[group]
        assert (table[federated.groups == group] == expected).all()


def test_overlapping_blocks_divide_a_shared_class_over_both_groups():
    federated = toy().partition("blocks(overlap=true)", clients=15)
    table = counts(federated.train)
    for group, own in enumerate(OVERLAPPING):
        expected = np.zeros(10, int)
        expected[own] = 12
        # 60 examples of a class: 6 for each of ten clients where two groups have it, 12 for each of five where one has.
        expected[[c for c in own if c in (0, 3, 4, 6, 7)]] = 6
        assert (table[federated.groups == group] == expected).all()


@pytest.mark.parametrize(("clients", "sizes"), [(15, [3, 7, 5]), (30, [6, 14, 10]), (100, [20, 47, 33])])
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_imbalanced_blocks_have_20_47_and_33_percent_of_the_clients(clients, sizes, overlap):
    federated = toy().partition(f"blocks(overlap={overlap},balanced=false,minimum=2)", clients=clients)
    assert np.bincount(federated.groups).tolist() == sizes
    table = counts(federated.train)
    assert table.sum(axis=0).tolist() == [60] * 10
    for group, own in enumerate(OVERLAPPING if overlap == "true" else APART):
        others = np.setdiff1d(np.arange(10), own)
        assert not table[federated.groups == group][:, others].any()


def test_imbalanced_blocks_give_clients_mixes_that_a_small_alpha_makes_more_extreme():
    def spread(alpha: float) -> float:
        table = counts(toy(6000, 2000).partition(f"blocks(balanced=false,alpha={alpha})", clients=30).train)
        return float((table / table.sum(axis=1, keepdims=True)).max(axis=1).mean())

    assert spread(0.1) > spread(1) + 0.1 > spread(100) + 0.2


def renaming(federated, client: int, classes: int = 10) -> list[int]:
    """What a client calls each class, the same in train and test."""
    names = [-1] * classes
    for split in (federated.train, federated.test):
        for x, y in zip(*split.of(client), strict=True):
            assert names[int(x[0])] in (-1, int(y))
            names[int(x[0])] = int(y)
    return names


@pytest.mark.parametrize("groups", [1, 2, 4, 6])
def test_swapped_groups_exchange_one_pair_each_and_no_class_twice(groups):
    federated = toy().partition(f"swap({groups})", clients=6)
    moved: list[int] = []
    for client in range(6):
        names = renaming(federated, client)
        changed = [c for c in range(10) if names[c] != c]
        assert all(names[names[c]] == c for c in changed)
        assert len(changed) == (0 if federated.groups[client] == 0 else 2)
        if client == 0 or federated.groups[client] != federated.groups[client - 1]:
            moved += changed
    assert len(moved) == len(set(moved)) == 2 * (groups - 1)
    assert np.array_equal(np.unique(federated.groups), np.arange(groups))


def test_other_seeds_swap_other_pairs():
    names = {tuple(renaming(toy().partition("swap", clients=2, seed=seed), 1)) for seed in range(10)}
    assert len(names) > 5


@pytest.mark.parametrize(("classes", "groups"), [(10, 4), (3, 6), (2, 2), (4, 24)])
def test_permuted_groups_each_have_an_order_of_their_own(classes, groups):
    federated = toy(720, 240, classes).partition(f"permute({groups})", clients=groups)
    names = [renaming(federated, client, classes) for client in range(groups)]
    assert names[0] == list(range(classes))
    assert all(sorted(own) == list(range(classes)) for own in names)
    assert len(set(map(tuple, names))) == groups <= math.factorial(classes)


def test_labels_of_absent_classes_are_left_alone():
    data = toy()
    present = data.y_train % 3 == 0
    sparse = Dataset("sparse", data.x_train[present], data.y_train[present], data.x_test, data.y_test, 10)
    for text in ("swap(3)", "permute(3)"):
        federated = sparse.partition(text, clients=3)
        for client in range(3):
            names = renaming(federated, client)
            assert all(names[c] in (c, -1) for c in range(10) if c % 3)


def test_shards_are_pieces_of_the_sorted_set():
    # 600 sorted examples in 20 shards of 30: each class is two shards, none crosses a border.
    federated = toy().partition("shards(2)", clients=10)
    table = counts(federated.train)
    assert (table.sum(axis=1) == 60).all()
    assert np.isin(table, [0, 30, 60]).all()
    assert (table.sum(axis=0) == 60).all()
    assert (counts(federated.test) * 3 == table).all()


def test_the_shards_of_a_client_are_drawn_at_random():
    held = [counts(toy().partition("shards(2)", clients=10, seed=seed).train) > 0 for seed in range(5)]
    # Side by side, the two shards of a client would be of one class; at random, 18 of 19 pairs are of two.
    assert all(np.mean(own.sum(axis=1) == 2) > 0.5 for own in held)
    assert len({own.tobytes() for own in held}) == 5


def test_a_shard_may_cross_the_border_of_two_classes():
    # 600 sorted examples in 8 shards of 75: class 0 and 15 of class 1, the other 45 and 30 of class 2, and so on.
    table = counts(toy().partition("shards(1)", clients=8).train)
    assert (table.sum(axis=1) == 75).all()
    expected = [{0: 60, 1: 15}, {1: 45, 2: 30}, {2: 30, 3: 45}, {3: 15, 4: 60}]
    expected += [{5: 60, 6: 15}, {6: 45, 7: 30}, {7: 30, 8: 45}, {8: 15, 9: 60}]
    rows = [[piece.get(c, 0) for c in range(10)] for piece in expected]
    assert sorted(table.tolist()) == sorted(rows)


def test_shards_that_leave_a_client_short_are_topped_up():
    # 101 examples in 30 shards of 3 or 4: three small ones make 9.
    for seed in range(20):
        federated = toy(101, 60).partition("shards(3)", clients=10, seed=seed)
        assert federated.train.sizes.min() >= 10
        assert federated.train.sizes.sum() == 101


def test_three_classes_each_on_200_devices_is_the_classes_partition():
    federated = toy(8000, 2000).partition("classes(3)", clients=200)
    held = counts(federated.train) > 0
    assert (held.sum(axis=1) == 3).all()
    assert np.ptp(held.sum(axis=0)) <= 1
