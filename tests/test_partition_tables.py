"""The class tables of the joint paper, on label arrays with the class counts of the published sets."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from coterie.data import Dataset
from coterie.errors import PartitionError

# How many train images of each class there are in MNIST; the other two sets have equally many of each.
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
# The margins that Fig. 2 prints next to its tables: totals of the groups A to D.
GROUP_TOTALS = {
    "mnist": (17500, 14500, 14500, 13500),
    "fashion-mnist": (14500, 15500, 14500, 15500),
    "cifar-10": (12498, 12500, 13334, 11668),
}
ABSENT = {
    "mnist": ((7, 9), (5, 8), (3, 8), (8, 9)),
    "fashion-mnist": ((5, 7), (3, 9), (5, 9), (7, 8)),
    "cifar-10": ((5, 8), (4, 6), (7, 9), (6, 8)),
}


def of_counts(name: str, train: tuple[int, ...], test: tuple[int, ...]) -> Dataset:
    """A data set with so many examples of each class; an example's one feature is its class."""
    labels = [np.repeat(np.arange(len(counts)), counts) for counts in (train, test)]
    x_train, x_test = (y[:, None].astype(np.float32) for y in labels)
    return Dataset(name, x_train, labels[0], x_test, labels[1], len(train))


def groups_by_classes(federated, classes: int, split: str = "train") -> np.ndarray:
    """Examples of each true class that each group holds."""
    part = getattr(federated, split)
    groups = np.repeat(federated.groups, part.sizes)
    table = np.zeros((federated.groups.max() + 1, classes), int)
    np.add.at(table, (groups, part.x[:, 0].astype(int)), 1)
    return table


@pytest.mark.parametrize(("name", "each"), [("fashion-mnist", 6000), ("cifar-10", 5000)])
def test_a_set_with_all_the_images_is_divided_as_printed(name, each):
    federated = of_counts(name, (each,) * 10, (1000,) * 10).partition("table", clients=80)
    held = groups_by_classes(federated, 10)
    assert tuple(held.sum(axis=1)) == GROUP_TOTALS[name]
    assert tuple(tuple(np.flatnonzero(row == 0)) for row in held) == ABSENT[name]
    assert np.bincount(federated.groups).tolist() == [20, 20, 20, 20]
    assert federated.notes == ()


def test_fashion_mnist_has_the_printed_cells():
    held = groups_by_classes(of_counts("fashion-mnist", (6000,) * 10, (1000,) * 10).partition("table", clients=80), 10)
    assert held[:, [0, 1, 2, 4, 6]].tolist() == [[1500] * 5] * 4
    assert held[:, 3].tolist() == [2000, 0, 2000, 2000]
    assert held[:, 5].tolist() == [0, 3000, 0, 3000]
    assert held[:, 7].tolist() == [0, 3000, 3000, 0]
    assert held[:, 8].tolist() == [2000, 2000, 2000, 0]
    assert held[:, 9].tolist() == [3000, 0, 0, 3000]


def test_cifar_10_has_the_printed_cells():
    held = groups_by_classes(of_counts("cifar-10", (5000,) * 10, (1000,) * 10).partition("table", clients=80), 10)
    assert held[:, :4].tolist() == [[1250] * 4] * 4
    assert held[:, 4].tolist() == [1666, 0, 1667, 1667]
    assert held[:, 5].tolist() == [0, 1666, 1667, 1667]
    assert held[:, 6].tolist() == [2500, 0, 2500, 0]
    assert held[:, 7].tolist() == [1666, 1667, 0, 1667]
    assert held[:, 8].tolist() == [0, 2500, 2500, 0]
    assert held[:, 9].tolist() == [1666, 1667, 0, 1667]


def test_mnist_is_scaled_down_where_it_has_too_few_and_leaves_the_surplus():
    federated = of_counts("mnist", MNIST, (1000,) * 10).partition("table", clients=80)
    held = groups_by_classes(federated, 10)
    assert tuple(tuple(np.flatnonzero(row == 0)) for row in held) == ABSENT["mnist"]
    assert held[:, 1].tolist() == [1500, 1500, 1500, 1500]
    assert held[:, 3].tolist() == [2000, 2000, 0, 2000]
    assert held[:, 7].tolist() == [0, 2000, 2000, 2000]
    assert held[:, 5].tolist() == [1807, 0, 1807, 1807]
    assert held[:, 8].tolist() == [5851, 0, 0, 0]
    assert sorted(held[:, 9]) == [0, 0, 2974, 2975]
    for scaled, total in ((0, 5923), (2, 5958), (4, 5842), (6, 5918)):
        assert held[:, scaled].sum() == total
        assert all(abs(count - Fraction(total, 4)) < 1 for count in held[:, scaled].tolist())
    assert federated.notes == (
        "the class table is scaled down where it asks for more than there is: class 0 has 5923 of 6000, "
        "class 2 has 5958 of 6000, class 4 has 5842 of 6000, class 5 has 5421 of 6000, class 6 has 5918 of 6000, "
        "class 8 has 5851 of 6000, class 9 has 5949 of 6000",
        f"{742 + 131 + 265} train and 0 test examples are unused: there are more than asked for of class 1, 3, 7",
    )


def test_devices_of_a_group_have_equal_parts_of_each_class():
    federated = of_counts("cifar-10", (5000,) * 10, (1000,) * 10).partition("table", clients=80)
    for device in range(20, 40):
        counts = np.bincount(federated.train.of(device)[1], minlength=10)
        exact = np.array([1250, 1250, 1250, 1250, 0, 1666, 0, 1667, 2500, 1667]) / 20
        assert np.abs(counts - exact).max() < 1
        assert counts.sum() == 625


def test_test_images_of_a_class_follow_its_train_images():
    federated = of_counts("cifar-10", (5000,) * 10, (1000,) * 10).partition("table", clients=80)
    train, test = (groups_by_classes(federated, 10, split) for split in ("train", "test"))
    assert test.sum() == 10000
    # A client's part of a class is within one of its exact part, so that of a group's 20 clients within 20.
    assert np.abs(test - train / 5).max() < 20
    assert not test[train == 0].any()


def test_relabelling_numbers_the_classes_of_a_group_from_0():
    federated = of_counts("mnist", MNIST, (1000,) * 10).partition("table(relabel=true)", clients=8)
    assert federated.classes == 8
    for group, names in enumerate(([0, 1, 2, 3, 4, 5, 6, 8], [0, 1, 2, 3, 4, 6, 7, 9])):
        for split in (federated.train, federated.test):
            x, y = split.of(2 * group)
            assert np.array_equal(x[:, 0].astype(int), np.array(names)[y])
            assert np.array_equal(np.unique(y), np.arange(8))
    with_own = of_counts("mnist", MNIST, (1000,) * 10).partition("table", clients=8)
    assert with_own.classes == 10


def test_wrong_labels_of_a_relabelled_table_are_among_its_8_classes():
    federated = of_counts("mnist", MNIST, (1000,) * 10).partition("table(relabel=true)+label-noise(1)", clients=8)
    assert np.unique(federated.train.y).tolist() == list(range(8))


def test_a_table_is_used_on_another_set_in_its_proportions():
    federated = of_counts("letters", (120,) * 10, (40,) * 10).partition("table(mnist)", clients=5)
    held = groups_by_classes(federated, 10)
    assert held[:, 0].tolist() == [30, 30, 30, 30]
    assert held[:, 3].tolist() == [40, 40, 0, 40]
    assert held[:, 8].tolist() == [120, 0, 0, 0]
    assert np.bincount(federated.groups).tolist() == [2, 1, 1, 1]


def test_emnist_groups_lack_7_classes_each_as_evenly_as_can_be():
    federated = of_counts("emnist", (240,) * 47, (40,) * 47).partition("table", clients=200)
    held = groups_by_classes(federated, 47)
    lacking = held == 0
    assert lacking.sum(axis=1).tolist() == [7] * 8
    # 56 absences over 47 classes: nine classes are absent twice and the others once.
    assert sorted(lacking.sum(axis=0)) == [1] * 38 + [2] * 9
    assert len(np.unique(lacking, axis=0)) == 8
    for column, absent in zip(held.T, lacking.sum(axis=0), strict=True):
        assert column.sum() == 240
        assert all(abs(count - Fraction(240, 8 - int(absent))) < 1 for count in column[column > 0].tolist())
    assert np.bincount(federated.groups).tolist() == [25] * 8
    assert federated.notes == ()
    relabelled = of_counts("emnist", (240,) * 47, (40,) * 47).partition("table(relabel=true)", clients=200)
    assert relabelled.classes == 40
    assert relabelled.train.y.max() == 39


def test_variants_of_a_set_share_its_table_if_they_have_its_classes():
    federated = of_counts("emnist-balanced", (60,) * 47, (20,) * 47).partition("table", clients=8)
    assert (groups_by_classes(federated, 47) == 0).sum(axis=1).tolist() == [7] * 8
    for name, text in (("emnist-digits", "table"), ("digits", "table"), ("digits", "table(emnist)")):
        with pytest.raises(PartitionError, match=r"use table\(mnist\) or table\(fashion-mnist\) or table\(cifar-10\)"):
            of_counts(name, (60,) * 10, (20,) * 10).partition(text, clients=8)
