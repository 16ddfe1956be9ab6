"""Laws of every partition, over random data sets and arguments.

Each example carries a number of its own, so that a test can say who holds it and what its label was: train examples
are numbered from 0, test examples from ``FIRST_TEST``.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from coterie.data import Dataset, parse_partition
from coterie.data.apportion import mixes, top_up
from coterie.data.dataset import Owners
from coterie.data.partitions.registry import partitions
from coterie.errors import PartitionError

FIRST_TEST = 1_000_000
MINIMUM = 3

alphas = st.floats(0.02, 100).map(lambda value: float(f"{value:.3g}"))
groups = st.integers(1, 4)


def numbered(seed: int, classes: int, train: int, test: int, image: bool = True) -> Dataset:
    """A data set of uneven classes, every one of them in train and in test."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(classes, 5.0))

    def labels(count: int) -> np.ndarray:
        y = np.concatenate([np.arange(classes), rng.choice(classes, count - classes, p=chances)])
        return rng.permutation(y)

    def examples(first: int, count: int) -> np.ndarray:
        shape = (count, 1, 2, 2) if image else (count, 1)
        return np.broadcast_to(np.arange(first, first + count).reshape(-1, *[1] * (len(shape) - 1)), shape)

    x_train, x_test = (part.astype(np.float32) for part in (examples(0, train), examples(FIRST_TEST, test)))
    return Dataset("numbered", x_train, labels(train), x_test, labels(test), classes)


def with_owners(data: Dataset, clients: int = 12) -> Dataset:
    """The same data set as if it came from so many people, example after example."""
    train, test = (np.arange(len(y)) % clients for y in (data.y_train, data.y_test))
    return replace(data, owners=Owners(tuple(f"person {i}" for i in range(clients)), train, test))


datasets = st.builds(
    numbered,
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 8),
    train=st.integers(150, 600),
    test=st.integers(60, 200),
)
of_ten_classes = st.builds(
    numbered, seed=st.integers(0, 10_000), classes=st.just(10), train=st.integers(300, 900), test=st.integers(150, 400)
)
of_47_classes = st.builds(
    numbered, seed=st.integers(0, 10_000), classes=st.just(47), train=st.integers(600, 900), test=st.integers(300, 400)
)

switches = st.sampled_from(["true", "false"])
texts = {
    "iid": st.just("iid"),
    "dirichlet": st.builds("dirichlet({},minimum=3)".format, alphas),
    "dirichlet equal": st.builds("dirichlet({},equal=true,minimum=3)".format, alphas),
    "dirichlet groups": st.builds("dirichlet({},{},groups={},minimum=3)".format, alphas, alphas, groups),
    "skewed": st.just("skewed(3,3,6,outer=1,inner=5,minimum=3)"),
    "classes": st.builds("classes({},minimum=3)".format, st.integers(1, 4)),
    "classes groups": st.builds(
        "classes({},{},groups={},minimum=3)".format, st.integers(2, 3), st.integers(1, 2), groups
    ),
    "shards": st.builds("shards({},minimum=3)".format, st.integers(1, 5)),
    "blocks": st.builds("blocks(overlap={},minimum=3)".format, switches),
    "blocks imbalanced": st.builds("blocks(overlap={},balanced=false,alpha={},minimum=3)".format, switches, alphas),
    "table": st.builds("table({},minimum=3)".format, st.sampled_from(["mnist", "fashion-mnist", "cifar-10"])),
    "table emnist": st.just("table(emnist,minimum=3)"),
    "table relabelled": st.builds("table({},relabel=true,minimum=3)".format, st.sampled_from(["mnist", "cifar-10"])),
    "rotation": st.sampled_from(["rotation(0,180,minimum=3)", "rotation(0,90,270,minimum=3)"]),
    "swap": st.builds("swap({},minimum=3)".format, st.integers(1, 6)),
    "permute": st.builds("permute({},minimum=3)".format, st.integers(1, 6)),
    "natural": st.just("natural"),
}
sets = {
    **dict.fromkeys(texts, datasets),
    **dict.fromkeys(("blocks", "blocks imbalanced", "table", "table relabelled", "swap", "permute"), of_ten_classes),
    "table emnist": of_47_classes,
    "natural": datasets.map(with_owners),
}
groupless = {"iid", "dirichlet", "dirichlet equal", "classes", "shards", "natural"}
renamed = {"table relabelled", "swap", "permute"}
label_blind = {"iid", "swap", "permute", "natural"}
one_view = [name for name in texts if name != "rotation"]
every = pytest.mark.parametrize("kind", texts)
quick = settings(max_examples=20, deadline=None)


def cut(data: Dataset, text: str, clients: int = 12, seed: int = 1, validation: float = 0.0):
    """The federation; where the partition depends on it that classes suffice, a case where they do not is left out.

    That ``top_up`` gives up only where no table exists is a law of its own, below.
    """
    try:
        return data.partition(text, clients=clients, seed=seed, validation=validation)
    except PartitionError as error:
        scarce = text.startswith("dirichlet") and "too few for all their holders" in str(error)
        if not scarce and not text.startswith(("classes", "shards")):
            raise
        reject()


def numbers(split, client: int) -> np.ndarray:
    x = split.of(client)[0]
    return x.reshape(len(x), -1)[:, 0].astype(int)


def held(split) -> np.ndarray:
    return np.concatenate([numbers(split, i) for i in range(len(split.sizes))])


def table(split, classes: int) -> np.ndarray:
    return np.stack([np.bincount(split.of(i)[1], minlength=classes) for i in range(len(split.sizes))])


def true_table(data: Dataset, split) -> np.ndarray:
    """Examples of each class that every client holds, by the data set's own labels."""
    y = np.concatenate([data.y_train, data.y_test])
    first = len(data.y_train) - FIRST_TEST
    rows = [numbers(split, i) for i in range(len(split.sizes))]
    return np.stack([np.bincount(y[own + first * (own >= FIRST_TEST)], minlength=data.classes) for own in rows])


def test_every_partition_is_tested_here():
    assert {name.split()[0] for name in texts} == set(partitions)


@every
@quick
@given(draw=st.data())
def test_the_text_of_a_partition_names_it(kind, draw):
    partition = parse_partition(draw.draw(texts[kind]))
    assert parse_partition(partition.text) == partition
    assert parse_partition(partition.text).text == partition.text


@pytest.mark.parametrize("kind", one_view)
@quick
@given(draw=st.data())
def test_no_example_is_doubled_and_none_lost_but_by_note(kind, draw):
    data = draw.draw(sets[kind])
    federated = cut(data, draw.draw(texts[kind]))
    for split, y, first in ((federated.train, data.y_train, 0), (federated.test, data.y_test, FIRST_TEST)):
        own = held(split)
        assert len(np.unique(own)) == len(own)
        assert np.isin(own - first, np.arange(len(y))).all()
        assert len(own) == len(y) or any("unused" in note for note in federated.notes)
        assert kind in renamed or np.array_equal(split.y, y[own - first])


@pytest.mark.parametrize("kind", sorted(renamed))
@quick
@given(draw=st.data())
def test_a_group_has_one_name_for_a_class_in_train_and_test_and_no_name_for_two(kind, draw):
    data = draw.draw(sets[kind])
    federated = cut(data, draw.draw(texts[kind]))
    for group in np.unique(federated.groups):
        members = federated.select(np.flatnonzero(federated.groups == group).tolist())
        true = np.concatenate([data.y_train[held(members.train)], data.y_test[held(members.test) - FIRST_TEST]])
        pairs = np.unique(np.stack([true, np.concatenate([members.train.y, members.test.y])]), axis=1)
        assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]


@pytest.mark.parametrize("kind", [name for name in one_view if not name.startswith("classes")])
@quick
@given(draw=st.data())
def test_all_but_partitions_by_number_of_classes_use_every_example(kind, draw):
    data = draw.draw(sets[kind])
    federated = cut(data, draw.draw(texts[kind]))
    assert federated.train.sizes.sum() == len(data.y_train)
    assert federated.test.sizes.sum() == len(data.y_test)


@quick
@given(data=datasets, text=texts["rotation"], clients=st.integers(3, 15))
def test_rotation_shows_each_image_once_per_group_and_never_in_train_and_test(data, text, clients):
    federated = cut(data, text, clients)
    for group in np.unique(federated.groups):
        members = federated.select(np.flatnonzero(federated.groups == group).tolist())
        assert np.array_equal(np.sort(held(members.train)), np.arange(len(data.y_train)))
        assert np.array_equal(np.sort(held(members.test)), FIRST_TEST + np.arange(len(data.y_test)))
    assert not np.intersect1d(held(federated.train), held(federated.test)).size


@every
@quick
@given(draw=st.data())
def test_every_client_has_its_minimum(kind, draw):
    data = draw.draw(sets[kind])
    federated = cut(data, draw.draw(texts[kind]))
    assert len(federated) == 12
    assert federated.train.sizes.min() >= MINIMUM
    assert federated.test.sizes.min() >= 1


@pytest.mark.parametrize("kind", [name for name in one_view if name not in label_blind])
@quick
@given(draw=st.data())
def test_test_proportions_follow_train_within_rounding(kind, draw):
    data = draw.draw(sets[kind])
    federated = cut(data, draw.draw(texts[kind]))
    train, test = true_table(data, federated.train), true_table(data, federated.test)
    assert not test[train == 0].any()
    if not any("topped up to 1 test" in note for note in federated.notes):
        expected = train / np.maximum(train.sum(axis=0), 1) * test.sum(axis=0)
        assert np.abs(test - expected).max() < 1


@every
@quick
@given(draw=st.data(), seed=st.integers(0, 1000))
def test_a_seed_repeats_exactly_and_another_differs(kind, draw, seed):
    data = draw.draw(sets[kind])
    text = draw.draw(texts[kind])
    first, again, other = cut(data, text, seed=seed), cut(data, text, seed=seed), cut(data, text, seed=seed + 1)
    assert np.array_equal(first.train.x, again.train.x)
    assert np.array_equal(first.test.y, again.test.y)
    assert np.array_equal(first.train.offsets, again.train.offsets)
    assert kind == "natural" or not np.array_equal(held(first.train), held(other.train))


@every
@quick
@given(draw=st.data())
def test_a_client_s_examples_depend_on_its_own_share_alone(kind, draw):
    data = draw.draw(sets[kind])
    text = draw.draw(texts[kind])
    federated = cut(data, text)
    shares = parse_partition(text).shares(data, 12, seed=1).clients
    for i in reversed(range(12)):
        for split, rows, x, y in (
            ("train", shares[i].train, data.x_train, data.y_train),
            ("test", shares[i].test, data.x_test, data.y_test),
        ):
            alone = shares[i].view(x[rows], y[rows], split)
            together = getattr(federated, split).of(i)
            assert all(map(np.array_equal, alone, together))


@every
@quick
@given(draw=st.data())
def test_true_groups_are_there_for_cluster_wise_partitions_only(kind, draw):
    data = draw.draw(sets[kind])
    federated = cut(data, draw.draw(texts[kind]))
    if kind in groupless:
        assert federated.groups is None
    else:
        assert federated.groups.shape == (12,)
        assert np.array_equal(np.unique(federated.groups), np.arange(federated.groups.max() + 1))


@every
@quick
@given(draw=st.data(), fraction=st.sampled_from([0.1, 0.3, 0.9]))
def test_validation_comes_from_train_and_only_from_there(kind, draw, fraction):
    data = draw.draw(sets[kind])
    text = draw.draw(texts[kind])
    plain, federated = cut(data, text), cut(data, text, validation=fraction)
    assert np.array_equal(plain.test.x, federated.test.x)
    for i, size in enumerate(plain.train.sizes):
        kept, aside = numbers(federated.train, i), numbers(federated.validation, i)
        assert len(aside) == np.clip(round(size * fraction), 1, size - 1)
        assert np.array_equal(np.sort(np.concatenate([kept, aside])), np.sort(numbers(plain.train, i)))


@quick
@given(data=datasets, alpha=alphas, clients=st.integers(2, 30))
def test_equal_dirichlet_gives_equal_sizes(data, alpha, clients):
    federated = cut(data, f"dirichlet({alpha},equal=true,minimum=1)", clients)
    assert np.ptp(federated.train.sizes) <= 1


@quick
@given(data=datasets, count=st.integers(1, 4), clients=st.integers(4, 15))
def test_n_classes_means_n_and_no_other(data, count, clients):
    federated = cut(data, f"classes({count},minimum=1)", clients)
    assert ((table(federated.train, data.classes) > 0).sum(axis=1) <= count).all()


@quick
@given(data=datasets, draw=st.data())
def test_groups_of_classes_differ_and_contain_their_clients(data, draw):
    text = draw.draw(texts["classes groups"])
    federated = cut(data, text)
    counts = table(federated.train, data.classes)
    owned = [tuple(np.flatnonzero(counts[federated.groups == g].sum(axis=0))) for g in np.unique(federated.groups)]
    assert all(len(own) <= int(text[8]) for own in owned)
    assert ((counts > 0).sum(axis=1) <= int(text[10])).all()


tables = st.integers(0, 100_000).map(
    lambda seed: np.random.default_rng(seed).poisson(np.random.default_rng(seed).gamma(0.3, 6, (5, 4)))
)


@settings(max_examples=200, deadline=None)
@given(counts=tables, least=st.integers(1, 8))
def test_a_top_up_fails_only_if_no_table_would_do(counts, least):
    allowed = mixes(counts) > 0
    needed = flow_network(counts.sum(axis=0), allowed, least)
    possible = maximum_flow(needed, 0, needed.shape[0] - 1).flow_value == least * len(counts)
    try:
        full = top_up(counts, mixes(counts), least, "train")
    except PartitionError:
        assert not possible
    else:
        assert np.array_equal(full.sum(axis=0), counts.sum(axis=0))
        assert full.min() >= 0
        assert full.sum(axis=1).min() >= least


def flow_network(totals: np.ndarray, allowed: np.ndarray, least: int) -> csr_matrix:
    """Source to classes to the clients that may hold them to sink."""
    clients, classes = allowed.shape
    network = np.zeros((clients + classes + 2,) * 2, np.int32)
    network[0, 1 : classes + 1] = totals
    network[1 : classes + 1, classes + 1 : -1] = allowed.T * 10_000
    network[classes + 1 : -1, -1] = least
    return csr_matrix(network)


@quick
@given(data=datasets, alpha=st.sampled_from([1e-6, 1e-3, 0.05]), clients=st.integers(2, 50))
def test_extreme_skew_ends_with_everyone_served_or_a_remedy(data, alpha, clients):
    try:
        federated = data.partition(f"dirichlet({alpha},minimum=3)", clients=clients)
    except PartitionError as error:
        assert re.search(r"minimum of 1 test examples.*use fewer clients", str(error))  # noqa: PT017
    else:
        assert federated.train.sizes.min() >= 3
        assert federated.train.sizes.sum() == len(data.y_train)
