"""Partitions: text forms, what is refused and how, what is noted, and the shapes papers describe."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data import Dataset, load, parse_partition
from coterie.data.apportion import apportion, balance, share_out
from coterie.data.federated import with_validation
from coterie.data.partitions.base import Share, Shares, named
from coterie.data.partitions.feature_skew import turn
from coterie.data.partitions.registry import add_ons, partitions
from coterie.errors import DataError, PartitionError, UnknownName, UsageError


def toy(train: int = 320, test: int = 80, classes: int | None = 4, shape: tuple[int, ...] = (1, 4, 4)) -> Dataset:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(train + test, *shape)).astype(np.float32)
    y = np.arange(train + test) % classes if classes else rng.normal(size=train + test)
    return Dataset("toy", x[:train], y[:train], x[train:], y[train:], classes)


def counts(split, classes: int) -> np.ndarray:
    return np.stack([np.bincount(split.of(i)[1], minlength=classes) for i in range(len(split.sizes))])


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("iid", "iid"),
        (" dirichlet( 0.10 ) ", "dirichlet(0.1)"),
        ("dirichlet(alpha=0.1)", "dirichlet(0.1)"),
        ("dirichlet(0.1, 10.0)", "dirichlet(0.1,10)"),
        ("dirichlet(0.1,10,minimum=10,groups=4)", "dirichlet(0.1,10,groups=4)"),
        ("dirichlet(1,minimum=2,equal=TRUE)", "dirichlet(1,equal=true,minimum=2)"),
        ("classes(3,2)", "classes(3,2)"),
        ("rotation(0,90,22.5)", "rotation(0,90,22.5)"),
        ("skewed(10,20,outer=0.1)", "skewed(10,20)"),
        ("natural", "natural"),
        ("dirichlet(0.1,none)", "dirichlet(0.1)"),
        ("table(none)", "table"),
        ("table(mnist, relabel=true)", "table(mnist,relabel=true)"),
        ("blocks(balanced=true,alpha=1.0)", "blocks"),
        ("swap(2)", "swap"),
        ("permute(groups=3)", "permute(3)"),
        ("shards(each=2,minimum=10)", "shards(2)"),
        ("iid|noise(0,0.5) | label-noise(rate=0.20)", "iid+noise(0,0.5)+label-noise(0.2)"),
    ],
)
def test_one_partition_has_one_text(written, text):
    assert parse_partition(written).text == text
    assert parse_partition(text) == parse_partition(written)


@pytest.mark.parametrize(
    ("text", "clients", "complaint"),
    [
        ("iid", 40, r"40 clients x 10 examples need 400 .* toy has 320; use at most 32 clients"),
        ("iid(minimum=1)", 100, r"100 clients need a test example each and toy has 80; use at most 80"),
        ("iid(minimum=1)", 5000, r"5000 train examples and toy has 320"),
        ("iid", 0, r"clients=0 must be a whole number"),
        ("iid(minimum=0)", 4, r"minimum=0 must be"),
        ("dirichlet(0)", 4, r"alpha=0 must be greater than 0"),
        ("dirichlet(-1,10)", 4, r"alpha=-1 must be greater"),
        ("dirichlet(0.1,0)", 4, r"inner=0 must be greater"),
        ("dirichlet(nan)", 4, r"alpha=nan must be a finite number"),
        ("dirichlet(much)", 4, r"alpha=much must be a finite number"),
        ("dirichlet(0.1,10,equal=true)", 4, r"equal=True is for dirichlet\(alpha\)"),
        ("dirichlet(0.1,equal=no)", 4, r"equal=no must be true or false"),
        ("dirichlet(0.1,groups=4)", 4, r"groups=4 is for dirichlet\(outer,inner\)"),
        ("dirichlet(0.1,10)", 4, r"10 groups need as many clients and there are 4"),
        ("dirichlet(0.0001,10,groups=8)", 16, r"2000 draws of 8 groups .* use fewer groups"),
        ("classes(5)", 4, r"nobody can hold 5 classes of 4; use classes\(4\)"),
        ("classes(0)", 4, r"must be a whole number of at least 1"),
        ("classes(2.5)", 4, r"must be a whole number of at least 1"),
        ("classes(2,3)", 4, r"cannot hold 3 of its group's 2 classes; use classes\(3,2\)"),
        ("classes(2,groups=3)", 4, r"groups=3 is for classes\(c,n\)"),
        ("classes(3,2,groups=5)", 10, r"5 groups of 3 classes must differ and 4 classes allow at most 4"),
        ("rotation", 4, r"must be different, one per group"),
        ("rotation(0,360)", 4, r"must be different"),
        ("rotation(left)", 4, r"an angle=left must be a finite number"),
        ("rotation(0,90,180)", 2, r"3 groups need as many clients"),
        ("skewed(2,3)", 4, r"add up to 5 and there are 4 clients; use clients=5"),
        ("skewed", 4, r"group size=0 must be"),
        ("natural", 4, r"toy comes without clients"),
        ("rotation(0,90,minimum=0)", 4, r"minimum=0 must be"),
        ("blocks", 6, r"blocks divide 10 classes and toy has 4; use classes\(3,2\)"),
        ("blocks(alpha=2)", 6, r"alpha=2 is for blocks\(balanced=false\)"),
        ("blocks(balanced=false,alpha=0)", 6, r"alpha=0 must be greater than 0"),
        ("blocks(overlap=1)", 6, r"overlap=1 must be true or false"),
        ("table", 8, r"toy has 4 classes and there is no class table for it; use classes\(3,2\)"),
        ("table(mnist)", 8, r"table mnist has 10 classes and toy has 4; use classes\(3,2\)"),
        ("table(mnist,relabel=maybe)", 8, r"relabel=maybe must be true or false"),
        (
            "swap(4)",
            8,
            r"4 groups exchange 3 pairs .* 4 classes have 2; use at most 3 groups or permute\(4\)",
        ),
        ("swap(0)", 8, r"groups=0 must be a whole number"),
        ("swap", 1, r"2 groups need as many clients and there are 1; use more clients"),
        ("permute(25)", 30, r"25 groups need as many orders of the labels and 4 classes have 24; use fewer groups"),
        ("permute(1.5)", 8, r"groups=1.5 must be a whole number"),
        ("shards(0)", 8, r"the number of shards=0 must be"),
        ("shards(41)", 8, r"8 clients x 41 shards need 328 train examples and toy has 320; use at most shards\(40\)"),
        ("iid+quantity(0)", 4, r"sigma=0 must be greater than 0"),
        ("iid+quantity(101)", 4, r"sigma=101 must be from 0 to 100"),
        ("iid+quantity(1,minimum=0)", 4, r"minimum=0 must be"),
        ("iid+blur", 4, r"blur needs at least one level, and different ones; it has \(\), use blur\(0,1\)"),
        ("iid+blur(much)", 4, r"the blur=much must be a finite number"),
        ("iid+blur(-1)", 4, r"the blur=-1 must be from 0 to 4"),
        ("iid+blur(5)", 4, r"the blur=5 must be from 0 to 4"),
        ("iid+noise", 4, r"noise needs at least one level"),
        ("iid+noise(0.5,0.5)", 4, r"different ones; it has \(0.5, 0.5\)"),
        ("iid+noise(-0.1)", 4, r"the noise=-0.1 must be from 0 to 1e\+06"),
        ("iid+noise(0,1,2)", 2, r"3 levels of noise need as many clients, not 2; use fewer"),
        ("iid+stroke", 4, r"stroke needs at least one level"),
        ("iid+stroke(0.5)", 4, r"the stroke=0.5 must be a whole number of pixels"),
        ("iid+stroke(true)", 4, r"the stroke=True must be a whole number of pixels"),
        ("iid+stroke(-2)", 4, r"the stroke=-2 must be from -1 to 1"),
        ("iid+label-noise(1.1)", 4, r"rate=1.1 must be from 0 to 1"),
        ("iid+label-noise(nan)", 4, r"rate=nan must be a finite number"),
    ],
)
def test_what_cannot_be_is_refused_with_value_limit_and_remedy(text, clients, complaint):
    with pytest.raises(PartitionError, match=complaint) as caught:
        toy().partition(text, clients=clients)
    assert "\n" not in str(caught.value)


def test_rotation_needs_images_that_keep_their_shape():
    with pytest.raises(PartitionError, match=r"needs images .* shape \(5,\)"):
        toy(shape=(5,)).partition("rotation(0,90)", clients=4)
    with pytest.raises(PartitionError, match=r"use rotation\(0,180\)"):
        toy(shape=(1, 2, 3)).partition("rotation(0,90)", clients=4)
    assert toy(shape=(1, 2, 3)).partition("rotation(0,180)", clients=4).shape == (1, 2, 3)


def test_unknown_partitions_and_arguments_offer_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'dirichlet'"):
        parse_partition("dirichlt(0.1)")
    with pytest.raises(UnknownName, match="did you mean 'minimum'"):
        parse_partition("iid(minimun=3)")
    with pytest.raises(UsageError, match="dirichlet"):
        parse_partition("dirichlet")
    with pytest.raises(UnknownName, match="unknown class table 'mnits'; did you mean 'mnist'"):
        parse_partition("table(mnits)")
    with pytest.raises(UnknownName, match="unknown add-on of a partition 'swap'"):
        parse_partition("iid+swap")
    with pytest.raises(UsageError, match=r"write 'iid\+label-noise\(0.2\)'"):
        parse_partition("label-noise(0.2)")


def test_regression_targets_can_only_be_divided_without_looking_at_them():
    federated = toy(classes=None).partition("iid", clients=4, validation=0.1)
    assert federated.classes is None
    assert federated.train.y.dtype == np.float32
    for text in ("dirichlet(0.1)", "swap", "permute", "blocks", "table(mnist)", "shards(2)", "iid+label-noise(0.1)"):
        with pytest.raises(PartitionError, match="use the partition iid"):
            toy(classes=None).partition(text, clients=4)


@pytest.mark.parametrize("text", ["dirichlet(0.01)", "dirichlet(1,0.01,groups=2)"])
def test_a_top_up_is_noted(text):
    federated = toy().partition(text, clients=20)
    assert federated.train.sizes.min() == 10
    assert "were topped up to 10 train examples" in federated.notes[0]


def test_unused_classes_are_noted():
    federated = toy().partition("classes(1)", clients=3)
    unheld = set(range(4)) - set(federated.train.y)
    assert federated.notes == (f"80 train and 20 test examples are unused: nobody holds class {unheld.pop()}",)


def test_a_class_without_train_examples_is_left_out_and_noted():
    data = toy()
    labels = np.where(data.y_train == 3, 2, data.y_train)
    federated = Dataset("toy", data.x_train, labels, data.x_test, data.y_test, 4).partition("dirichlet(1)", clients=5)
    assert federated.notes == ("0 train and 20 test examples are unused: nobody holds class 3",)


def test_n_classes_are_held_equally_often():
    held = counts(toy().partition("classes(2)", clients=10).train, 4) > 0
    assert (held.sum(axis=1) == 2).all()
    assert (held.sum(axis=0) == 5).all()


def test_clients_of_a_group_share_its_classes():
    federated = toy(640, 160, classes=8).partition("classes(3,2,groups=4)", clients=12)
    held = counts(federated.train, 8) > 0
    assert (held.sum(axis=1) == 2).all()
    sets = [tuple(np.flatnonzero(held[federated.groups == g].any(axis=0))) for g in range(4)]
    assert [len(own) for own in sets] == [3, 3, 3, 3]
    assert len(set(sets)) == 4


def test_clients_of_a_dirichlet_group_resemble_each_other_more_than_others():
    federated = toy(2000, 400, classes=8).partition("dirichlet(0.1,100,groups=4)", clients=20)
    mixes = counts(federated.train, 8) / federated.train.sizes[:, None]
    apart = np.abs(mixes[:, None] - mixes[None]).sum(axis=-1)
    same = federated.groups[:, None] == federated.groups[None]
    assert apart[same].mean() < 0.3 * apart[~same].mean()


def test_the_smallest_group_has_its_share():
    for seed in range(10):
        federated = toy(2000, 400, classes=8).partition("dirichlet(0.1,10,groups=8)", clients=16, seed=seed)
        sizes = np.bincount(federated.groups, weights=federated.train.sizes)
        assert sizes.min() >= 0.3 * sizes.mean()


def test_skewed_groups_have_the_sizes_asked_for_and_clients_comparable_amounts():
    federated = toy(4000, 800, classes=8).partition("skewed(2,4,14)", clients=20)
    assert np.bincount(federated.groups).tolist() == [2, 4, 14]
    per_client = np.bincount(federated.groups, weights=federated.train.sizes) / [2, 4, 14]
    assert per_client.min() >= 0.3 * 200


def test_groups_are_as_equal_as_possible():
    federated = toy().partition("rotation(0,90,180)", clients=8)
    assert np.bincount(federated.groups).tolist() == [3, 3, 2]


def test_each_group_sees_the_images_turned_by_its_angle():
    data = toy(40, 8)
    federated = data.partition("rotation(0,90,180,minimum=1)", clients=3)
    for group, quarter_turns in enumerate((0, 1, 2)):
        x, y = federated.train.of(group)
        assert np.array_equal(x, np.rot90(data.x_train, quarter_turns, axes=(2, 3)))
        assert np.array_equal(y, data.y_train)


def test_other_angles_turn_the_same_way_as_right_ones():
    x = np.random.default_rng(0).normal(size=(2, 3, 9, 9)).astype(np.float32)
    y = np.zeros(2)
    nearly = turn(x, y, "train", 90.0001)[0]
    assert np.abs(nearly - turn(x, y, "train", 90)[0]).max() < 1e-3
    assert turn(x, y, "train", 30)[0].shape == x.shape
    assert np.array_equal(turn(x, y, "train", -90)[0], turn(x, y, "train", 270)[0])


def test_bytes_become_floats_from_minus_one_to_one():
    x = np.array([0, 51, 255] * 8, np.uint8).reshape(-1, 1, 1, 1)
    data = Dataset("bytes", x, np.zeros(24, int), x, np.zeros(24, int), 1)
    federated = data.partition("iid", clients=2)
    assert federated.train.x.dtype == np.float32
    assert np.allclose(np.unique(federated.train.x), [-1, -0.6, 1], atol=1e-6)


def test_digits_are_scaled_from_their_own_range():
    federated = load("digits").partition("dirichlet(0.1,10,groups=4)", clients=20)
    assert federated.shape == (1, 8, 8)
    assert federated.train.x.min() == -1
    assert federated.train.x.max() == 1
    assert federated.names[:2] == ("client-000", "client-001")


def test_validation_must_be_a_fraction_and_leave_something():
    with pytest.raises(DataError, match=r"validation=1.5 must be between 0 and 1"):
        toy().partition("iid", clients=4, validation=1.5)
    with pytest.raises(DataError, match=r"'client-000' has one train example"):
        toy(4, 4).partition("iid(minimum=1)", clients=4, validation=0.5)


def test_validation_of_a_client_depends_on_its_name_and_seed_only():
    everyone = toy().partition("iid", clients=4, validation=0.2)
    alone = with_validation(toy().partition("iid", clients=4).select([2]), 0.2, seed=1)
    assert everyone.validation.sizes.tolist() == [16, 16, 16, 16]
    assert np.array_equal(alone.validation.x, everyone.validation.of(2)[0])


def test_a_data_set_that_does_not_fit_together_is_refused():
    x, y = np.zeros((4, 2)), np.zeros(4, int)
    with pytest.raises(DataError, match="4 train examples but 3 labels"):
        Dataset("odd", x, y[:3], x, y, 1)
    with pytest.raises(DataError, match=r"\(2,\) in train and \(1,\) in test"):
        Dataset("odd", x, y, x[:, :1], y, 1)


def test_no_global_generator_is_read_or_moved():
    np.random.seed(3)
    before = toy().partition("dirichlet(0.5)", clients=5)
    state = np.random.get_state()[1].copy()
    np.random.seed(4)
    after = toy().partition("dirichlet(0.5)", clients=5)
    np.random.seed(3)
    assert np.array_equal(before.train.x, after.train.x)
    assert np.array_equal(state, np.random.get_state()[1])


def test_a_new_partition_is_one_short_function():
    @named
    def halves(*, swap: bool = False):
        def divide(data, clients, rng):
            parts = [Share(np.arange(i, 320, 2), np.arange(i, 80, 2)) for i in (0, 1)]
            return Shares(tuple(parts[::-1] if swap else parts))

        return divide

    federated = toy().partition(halves(swap=True), clients=2)
    assert federated.partition == "halves(swap=true)"
    assert federated.train.sizes.tolist() == [160, 160]


@pytest.mark.parametrize("catalogue", [partitions, add_ons], ids=["partitions", "add-ons"])
def test_every_partition_and_add_on_has_a_sentence(catalogue):
    for name in catalogue:
        assert catalogue.find(name).__doc__


def test_shares_add_up_and_ties_go_to_whoever_has_least():
    assert apportion(7, np.zeros(3)).tolist() == [0, 0, 0]
    assert share_out(np.array([1, 1, 1]), np.ones((3, 3))).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_balancing_reaches_both_margins():
    weights = balance(np.random.default_rng(0).random((6, 3)), np.full(6, 50), np.array([60, 90, 150]))
    assert np.allclose(weights.sum(axis=0), [60, 90, 150])
    assert np.allclose(weights.sum(axis=1), 50, atol=0.5)
