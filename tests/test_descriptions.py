"""Descriptions: what clients compute, against slow references; how they are compared; newcomers without labels."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import sqrt

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given as cases
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

import coterie as ct
from coterie import client_functions
from coterie.algorithms import build_algorithm
from coterie.cli.main import app
from coterie.data import load_client, load_own
from coterie.deploy.policy import Policy, Refused
from coterie.errors import DataError, FederationError, UnknownName, UsageError
from coterie.experiments.placement import load_trained, without_labels
from coterie.protocol.client_function import ClientData, client_function, declared_shape
from coterie.protocol.report import Describe, Report
from coterie.protocol.stack import UNPLACED, Sent
from coterie.protocol.task import Fit, Loss, Task
from coterie.seeding import Key, generator
from coterie.server.clustering.clusterers import clusterers
from coterie.server.contract import least_loss
from coterie.server.descriptions import (
    RIGHT,
    angles_between,
    differing,
    mean_moments,
    moments_apart,
    ranges_of_moments,
)

HERE = client_functions.HERE


def client(x, y, classes=None, **known):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(np.prod(x.shape[1:]), 5), torch.nn.ReLU())
    module.append(torch.nn.Linear(5, classes or 1))
    torch.manual_seed(0)
    for weights in module.parameters():
        torch.nn.init.normal_(weights)
    return ClientData(
        x, y, classes, make_model=module.eval, models=(), make_rng=lambda: np.random.default_rng(0), **known
    )


def some(seed=0, n=30, features=8, classes=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, features)).astype(np.float32) + 1, rng.integers(classes, size=n)


# References, written from the equations and by loops.


def slow_basis(x, p):
    """The first p left singular vectors of the matrix with one example a column, without arbitrary directions."""
    u, s, _ = np.linalg.svd(np.asarray(x, np.float64).reshape(len(x), -1).T, full_matrices=False)
    return u[:, : min(p, int((s > 1e-6 * s[0]).sum()))]


def slow_distance(one, other, p, classes, of):
    """The mean, over classes of which both have two examples, of an angle between what they span, in degrees."""
    found = []
    for label in range(classes):
        own = [x[y == label] for x, y in (one, other)]
        if min(map(len, own)) >= 2:
            angles = np.rad2deg(subspace_angles(*(slow_basis(x, p) for x in own)))
            found.append(min(angles) if of == "smallest" else sum(angles) / len(angles))
    return sum(found) / len(found) if found else 90.0


def slow_moments(rows):
    n = len(rows)
    mean = [sum(row[j] for row in rows) / n for j in range(len(rows[0]))]
    return mean, [sqrt(sum((row[j] - mean[j]) ** 2 for row in rows) / n) for j in range(len(rows[0]))]


def slow_chains(distances, factor):
    """Single linkage at ``factor`` times the elbow of the nearest neighbours' distances, by walking along chains."""
    m = len(distances)
    curve = sorted(min(distances[i][j] for j in range(m) if j != i) for i in range(m))
    below = [curve[0] + i * (curve[-1] - curve[0]) / (m - 1) - curve[i] for i in range(m)]
    eps = factor * (curve[below.index(max(below))] if max(below) > 1e-12 * curve[-1] else curve[-1]) * (1 + 1e-9)
    labels = [None] * m
    for i in range(m):
        walk = [i] if labels[i] is None else []
        while walk:
            a = walk.pop()
            if labels[a] is None:
                labels[a] = i
                walk += [b for b in range(m) if distances[a][b] <= eps]
    return labels


class TestBases:
    @pytest.mark.parametrize("of", ["smallest", "mean"])
    @pytest.mark.parametrize("p", [1, 2, 3])
    def test_distances_are_those_of_the_slow_reference(self, of, p):
        people = [some(seed, n=12) for seed in range(4)]
        bases = np.stack([client_functions.class_bases(client(x, y, 3), p) for x, y in people])
        found = angles_between(of)(bases, bases)
        for i, one in enumerate(people):
            for j, other in enumerate(people):
                assert found[i, j] == pytest.approx(slow_distance(one, other, p, 3, of), abs=1e-4)

    def test_fewer_examples_than_directions_and_a_class_that_is_not_there(self):
        x, _ = some(n=6)
        bases = client_functions.class_bases(client(x, np.array([0, 0, 0, 0, 1, 2]), 4), 5)
        assert bases.shape == (4, 8, 5)
        assert (bases != 0).any(axis=1).sum(axis=1).tolist() == [4, 0, 0, 0]

    def test_no_example_is_sent_as_it_is(self):
        """The direction of a single example is that example; two are the least."""
        x, y = some(n=1)
        assert not client_functions.class_bases(client(x, y, 3)).any()
        assert not client_functions.basis(client(x, y, 3)).any()

    def test_directions_that_do_not_exist_are_left_out(self):
        x = np.repeat(some(n=2)[0], 5, axis=0)
        found = client_functions.basis(client(x, np.zeros(10), None), 4)[0]
        np.testing.assert_allclose(found.T @ found, np.diag([1, 1, 0, 0]), atol=1e-9)
        assert not client_functions.basis(client(np.zeros((5, 3)), np.zeros(5))).any()

    def test_a_real_target_has_one_class(self):
        x, y = some()
        own = client(x, y.astype(np.float32))
        np.testing.assert_array_equal(client_functions.class_bases(own), client_functions.basis(own))

    @cases(signs=st.lists(st.sampled_from([-1.0, 1.0]), min_size=9, max_size=9), seed=st.integers(0, 20))
    def test_signs_and_turns_of_a_basis_change_nothing(self, signs, seed):
        people = [client_functions.class_bases(client(*some(seed + i), 3), 3) for i in range(2)]
        turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
        other = people[0] * np.reshape(signs, (3, 1, 3)) @ turn
        for of in ("smallest", "mean"):
            apart = angles_between(of)
            np.testing.assert_allclose(apart(other[None], people[1][None]), apart(people[0][None], people[1][None]))

    @cases(order=st.permutations(range(4)))
    def test_permuted_clients_have_permuted_distances(self, order):
        bases = np.stack([client_functions.class_bases(client(*some(seed), 3)) for seed in range(4)])
        found = angles_between("smallest")(bases, bases)
        np.testing.assert_allclose(angles_between("smallest")(bases[order], bases[order]), found[np.ix_(order, order)])

    def test_only_common_classes_count_and_without_any_the_angle_is_right(self):
        e = np.eye(3)
        one, other = np.zeros((2, 2, 3, 1))
        one[0, :, 0], other[1, :, 0] = e[0], e[0]
        apart = angles_between("smallest")
        assert apart(one[None], other[None]) == RIGHT
        other[0, :, 0] = (e[0] + e[1]) / sqrt(2)
        assert apart(one[None], other[None]) == pytest.approx(45)
        assert apart(other[None], other[None]) == pytest.approx(0, abs=1e-5)

    def test_cosines_beyond_one_by_rounding_or_by_a_lie_are_angles_of_zero(self):
        u = np.full((1, 1, 3, 1), 1 / sqrt(3)) * (1 + 1e-9)
        for scale in (1, 1e10):
            assert angles_between("smallest")(scale * u, scale * u) == 0


class TestMoments:
    def test_they_are_those_of_the_slow_reference(self):
        own = client(*some(), 3)
        with torch.no_grad():
            latent = own.model[2](own.model[1](torch.from_numpy(own.x))).double().numpy()
        found = client_functions.class_moments(own, 7)
        assert found.shape == (4, 2, 7)
        for group, rows in enumerate([latent, *(latent[own.y == label] for label in range(3))]):
            np.testing.assert_allclose(found[group, :, :5], slow_moments(rows), atol=1e-5)
        assert not found[:, :, 5:].any()
        np.testing.assert_array_equal(client_functions.moments(own, 7), found[:1])

    def test_directions_are_orthonormal_and_the_same_for_everyone(self):
        wide = np.eye(20)
        seen = client_functions._seen_along(6, wide)
        np.testing.assert_allclose(seen.T @ seen, np.eye(6), atol=1e-12)
        np.testing.assert_array_equal(seen, client_functions._seen_along(6, wide))
        drawn = generator(0, "latent directions", 20, 6).normal(size=(20, 6))
        assert (np.diag(seen.T @ drawn) > 0).all(), "the signs are not those of a machine's library"

    def test_what_needs_no_labels_reads_none(self):
        x, _ = some()
        unread = client(x, None, 3)
        for function in (client_functions.moments, client_functions.basis):
            assert not function.labels
            function(unread)
        assert client_functions.class_moments.labels
        assert client_functions.class_bases.labels

    def test_a_class_with_one_example_counts_as_absent(self):
        x, _ = some(n=5)
        found = client_functions.class_moments(client(x, np.array([0, 0, 0, 0, 1]), 3))
        assert (found[:, 1, 0] >= 0).tolist() == [True, True, False, False]
        assert moments_apart(found[None], found[None]) == 0

    def test_absent_classes_have_no_part_in_ranges_and_centres(self):
        """The mark of an absent class, a deviation of -1, would stretch the range from 2 to 4 and pull the centre."""
        held, more, lacks = ([[[1.0], [1.0]]], [[[5.0], [3.0]]], [[[0.0], [-1.0]]])
        three = np.array([held, more, lacks])
        np.testing.assert_allclose(ranges_of_moments(three)[..., 0], [[4, 2]])
        centres = mean_moments(three, np.zeros((3, 3)), np.array([0, 0, 0]))
        np.testing.assert_allclose(centres[0, :, :, 0], [[3, 2]])
        assert (mean_moments(three[2:], np.zeros((1, 1)), np.array([0]))[0, 0, :, 0] == [0, -1]).all()
        np.testing.assert_allclose(ranges_of_moments(three[2:]), 1)


class TestElbow:
    @cases(seed=st.integers(0, 200), factor=st.sampled_from([1.0, 1.5, 2.0]))
    def test_chains_within_the_elbow_are_those_of_the_slow_reference(self, seed, factor):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(int(rng.integers(3, 14)), 2)) + 6 * rng.integers(0, 3, size=(1, 1))
        distances = np.linalg.norm(points[:, None] - points, axis=-1)
        wanted = slow_chains(distances.tolist(), factor)
        found = clusterers.build(f"dbscan(eps=elbow,factor={factor},apart=true)")(distances, Key(1, 0))
        assert adjusted_rand_score(wanted, found) == 1 or len(set(wanted)) == len(wanted)

    def test_equal_clients_are_one_cluster_and_equal_pairs_two(self):
        """A width of 0 would be refused by scikit-learn."""
        assert clusterers.build("dbscan(eps=elbow)")(np.zeros((3, 3)), Key(1, 0)).tolist() == [0, 0, 0]
        apart = 1.0 - np.kron(np.eye(2), np.ones((2, 2)))
        assert clusterers.build("dbscan(eps=elbow)")(apart, Key(1, 0)).tolist() == [0, 0, 1, 1]

    @pytest.mark.parametrize(
        ("text", "problem"), [("eps=knee", "eps is 'knee'"), ("eps=elbow,factor=0", "factor is 0")]
    )
    def test_other_words_and_factors_are_refused(self, text, problem):
        with pytest.raises(UsageError, match=problem):
            clusterers.build(f"dbscan({text})")


class TestAttributes:
    def test_equal_values_have_equal_codes_and_none_is_equal_to_nothing(self):
        codes = np.stack(
            [
                client_functions.attribute(client(*some(), 3, attributes=known), "region")
                for known in ({"region": "north"}, {"region": "south"}, {"region": "north", "size": "1"}, {}, {})
            ]
        )
        assert (codes == codes.astype(np.uint32)).all()
        assert differing(codes, codes).tolist() == [
            [0, 1, 0, 1, 1], [1, 0, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]
        ]  # fmt: skip

    def test_a_column_that_nobody_has_is_refused(self, train, images, simulator):
        with pytest.raises(UsageError, match=r"attribute\(regoin\) says nothing about any client"):
            train("given(regoin)", simulator(images()), 1)

    def test_what_is_given_is_no_advice(self, train, images, simulator):
        assert train("given", simulator(images()), 1)[0].state.advice is None
        assert train("pacfl", simulator(images()), 1)[0].state.advice["clusters"] == 2

    def test_as_many_values_as_clients(self, images):
        with pytest.raises(DataError, match="attribute 'region' has 2 values and there are 8 clients"):
            replace(images(), attributes={"region": ("north", "south")})

    def test_the_true_groups_of_a_partition_are_an_attribute_and_those_of_a_table_are_not(self, tmp_path):
        data = ct.load("digits").partition("rotation(0,180)", clients=6, seed=1)
        assert data.attributes == {"group": tuple(map(str, data.groups))}
        assert data.select([5, 0]).attributes["group"] == (str(data.groups[5]), str(data.groups[0]))
        table(tmp_path / "t.csv")
        assert load_own(tmp_path / "t.csv", client="site", label="ill", group="region", ignore="kind").attributes == {}

    def test_a_column_of_a_table_is_an_attribute_and_no_feature(self, tmp_path):
        table(tmp_path / "t.csv")
        data = load_own(tmp_path / "t.csv", client="site", label="ill", attribute="region,kind")
        assert data.attributes == {"region": ("north", "south", "north", "south"), "kind": ("a", "a", "a", "")}
        assert data.shape == (2,)
        assert data.words["attribute"] == "region,kind"

    def test_two_values_for_one_client_are_refused_with_their_row(self, tmp_path):
        frame = table(tmp_path / "t.csv")
        frame[5, "region"] = "east"
        frame.write_csv(tmp_path / "t.csv")
        with pytest.raises(
            DataError, match=r"more than one value for client .*; an attribute has one; leave region out"
        ):
            load_own(tmp_path / "t.csv", client="site", label="ill", attribute="region")

    def test_a_site_has_its_attribute_too(self, tmp_path):
        frame = table(tmp_path / "t.csv")
        schema = load_own(tmp_path / "t.csv", client="site", label="ill", attribute="region", ignore="kind").schema
        frame.filter(pl.col("site") == 2).drop("site").write_csv(tmp_path / "own.csv")
        data = load_client(tmp_path / "own.csv", "two", schema=schema, label="ill", attribute="region")
        assert data.attributes_of(0) == {"region": "north"}


def table(path):
    """Four sites of forty visits in two regions; the last has no kind."""
    rng = np.random.default_rng(0)
    site = np.arange(160) % 4
    frame = pl.DataFrame({"age": rng.normal(50, 10, 160), "dose": rng.uniform(0, 1, 160), "site": site})
    frame = frame.with_columns(
        region=pl.Series(np.where(site % 2, "south", "north")),
        kind=pl.Series(["a" if s < 3 else None for s in site]),
        ill=frame["dose"] + (0.3 * site % 2) > 0.5,
    )
    frame.write_csv(path)
    return frame


@cache
def rotated():
    """Forty clients of four groups; half of each group takes no part."""
    whole = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
    early = [int(i) for group in range(4) for i in np.flatnonzero(whole.groups == group)[:5]]
    return whole, whole.select(early), [i for i in range(40) if i not in early]


@cache
def trained(text):
    early = rotated()[1]
    return ct.run(ct.build_algorithm(text, 4), early, model="mlp(32)", rounds=4, seed=3, eval_every=4, threads=1)


CENTRES = ("hdbscan", "optics", "affinity", "agglomerative(clusters=4)", "dbscan(eps=elbow,factor=1.5)")
"""Clusterers that have no centres of their own."""


class TestRuns:
    @pytest.mark.parametrize("text", ["pacfl", "pacfl(by=all)", "flux", "given", "pacfl(clusterer=affinity)"])
    def test_groups_are_found_and_labelled_newcomers_go_there(self, text):
        """Affinity propagation takes similarities: given distances it would put the farthest together."""
        whole, early, late = rotated()
        run = trained(text)
        assert run.summary["ari"] == 1.0
        for i in late:
            known = {column: values[i] for column, values in whole.attributes.items()}
            found = run.assign(*whole.train.of(i), known)
            assert found.cluster == run.labels[early.groups == whole.groups[i]][0]
            assert found.served > 0.5

    @pytest.mark.parametrize("text", ["flux", "pacfl(by=all)", *(f"flux(clusterer={each})" for each in CENTRES)])
    def test_newcomers_without_labels_go_there_and_how_well_they_are_served_is_not_known(self, text):
        whole, early, late = rotated()
        run = trained(text)
        for i in late:
            found = run.assign(whole.train.of(i)[0])
            assert found.cluster == run.labels[early.groups == whole.groups[i]][0]
            assert (found.served, found.warning) == (None, None)

    @pytest.mark.parametrize("text", ["wecfl", "pacfl", "ifca"])
    def test_a_method_that_needs_labels_says_so_in_one_line(self, text):
        whole, _, late = rotated()
        told = f"^{text}.* cannot place a newcomer without labels; give y, or the labels in its file, or train with"
        with pytest.raises(UsageError, match=told):
            trained(text).assign(whole.train.of(late[0])[0])

    def test_a_late_client_is_placed_by_its_train_data_whatever_its_test_data_are(
        self, train, images, simulator, flaky
    ):
        data = images()
        other = replace(data.test, x=-data.test.x, y=3 - data.test.y)
        for text in ("pacfl", "flux(warmup=0)"):
            late = [flaky(simulator(each), {0: [2, 5]}) for each in (data, replace(data, test=other))]
            one, two = (train(text, each, 2) for each in late)
            assert one[0].state.labels[[2, 5]].tolist() == [UNPLACED] * 2
            assert one[1].state.labels.tolist() == two[1].state.labels.tolist()
            assert adjusted_rand_score(data.groups, one[1].state.labels) == 1

    def test_one_whose_description_fails_has_no_cluster_until_it_answers(self, train, images, simulator):
        """A client with one example of each class has no space to compare: it is placed by the least loss instead."""
        data = images()
        few = [i for i in range(len(data)) if i != 3]
        y = data.train.of(3)[1]
        first = [int(np.flatnonzero(y == label)[0]) for label in np.unique(y)]
        rows = [np.arange(a, b) for a, b in zip(data.train.offsets, data.train.offsets[1:], strict=False)]
        rows[3] = rows[3][first]
        data = replace(data, train=data.train.take(rows))
        done = train("pacfl", simulator(data), 3)
        assert done[0].state.labels[3] == UNPLACED
        assert done[-1].state.labels[3] != UNPLACED
        assert adjusted_rand_score(data.groups[few], done[-1].state.labels[few]) == 1

    def test_absurd_descriptions_break_nothing(self, train, images, simulator):
        """Whatever one client claims, distances are finite and the others are clustered."""
        data = images()

        class Liar:
            inner = simulator(data)

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def ask(self, task, *rest):
                replies = self.inner.ask(task, *rest)
                if replies.description is not None:
                    replies.description[0] = np.finfo(np.float64).max
                return replies

        for text in ("pacfl", "flux(clusterer=kmedoids(clusters=3),warmup=0)"):
            state = train(text, Liar(), 2)[-1].state
            assert np.isfinite(state.stack.params).all()
            assert np.isfinite(state.memory.formed.distances).all()

    @pytest.mark.parametrize(
        ("text", "kind", "problem"),
        [
            ("pacfl(p=0)", UsageError, "p is 0"),
            ("pacfl(angle=largest)", UnknownName, "unknown angle 'largest'"),
            ("pacfl(by=group)", UnknownName, "unknown space 'group'"),
            ("flux(dims=0)", UsageError, "dims is 0"),
            ("flux(fewest=1)", UsageError, "fewest is 1; it must be at least 2 examples of a class"),
            ("pacfl(fewest=1)", UsageError, "fewest is 1"),
            ("flux(warmup=-1)", UsageError, "warmup is -1"),
        ],
    )
    def test_arguments_that_make_no_sense_are_refused(self, text, kind, problem):
        with pytest.raises(kind, match=problem):
            build_algorithm(text)

    @pytest.mark.parametrize("column", ["a,b", "a=b", "2020", "true"])
    def test_a_column_that_no_task_can_name_is_refused(self, column):
        with pytest.raises(UsageError, match=f"column is '{column}'; it must be a word without"):
            ct.given(column)


class TestWithoutLabels:
    def test_nothing_that_needs_labels_is_asked(self):
        def never(*_):
            raise AssertionError

        asks, allowed = without_labels(never), Describe(f"{HERE}:moments")
        for task in (
            Task(fit=(Fit(),), report=Report(describe=allowed)),
            Task(choose=(Loss(),), report=Report(describe=allowed)),
            Task(report=Report(params=None, losses=True, describe=allowed)),
            Task(report=Report(params=None, evaluate_on="train", describe=allowed)),
            Task(report=Report(params=None, describe=Describe(f"{HERE}:class_bases(3)"))),
            Task(),
        ):
            with pytest.raises(UsageError, match="without labels was asked for what needs them"):
                asks(task, None, None, None)

    def test_a_rule_that_falls_back_on_losses_is_stopped(self, lines, simulator):
        sim = simulator(lines((2.0,), (3,)), "linear", threads=1)
        run = ct.run(ct.flux(warmup=0), lines((2.0, 1.0, 1.0), (3, 3, 3)), model="linear", rounds=1, threads=1)
        bad = replace(
            run.results.trained, algorithm=replace(run.results.trained.algorithm, place_unlabelled=least_loss)
        )
        with pytest.raises(UsageError, match="give y"):
            bad.assign(sim.data.train.x)

    def test_one_that_is_like_no_cluster_is_not_placed(self):
        """Its examples lie on an axis that is at a right angle to everybody's."""
        rng = np.random.default_rng(0)
        flat = rng.normal(size=(4, 9, 3)).astype(np.float32)
        flat[:, :, 2] = 0
        splits = ct.Split.join([(x, x[:, 0]) for x in flat])
        data = ct.Federated("d", "natural", ("a", "b", "c", "d"), splits, splits, None)
        run = ct.run(ct.pacfl(2, by="all", p=2), data, model="linear", rounds=1, threads=1)
        with pytest.raises(FederationError, match="is like no cluster"):
            run.assign(np.array([[0, 0, 1.0], [0, 0, 2.0]], np.float32))


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


class TestOnTheCommandLine:
    def test_arrays_without_labels(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        whole, early, late = rotated()
        run = ct.run(ct.flux(), early, model="mlp(16)", rounds=3, seed=2, out=tmp_path / "r", threads=1)
        np.savez("late.npz", x=whole.train.of(late[7])[0])
        found = json.loads(call("assign", "r", "--data", "late.npz", "--json").stdout)
        wanted = run.assign(whole.train.of(late[7])[0])
        assert (found["cluster"], found["served"]) == (wanted.cluster, None)
        assert found["scores"] == pytest.approx(wanted.scores, abs=1e-6)
        shown = " ".join(call("assign", "r", "--data", "late.npz").output.split())
        assert f"cluster {wanted.cluster} is the nearest; without labels nobody knows how well it serves" in shown
        assert load_trained(tmp_path / "r").assign(*whole.train.of(late[7])) == run.assign(*whole.train.of(late[7]))
        np.savez("none.npz", y=np.zeros(3, int))
        assert "has no array x" in call("assign", "r", "--data", "none.npz").output

    def test_tables_with_an_attribute_and_without_labels(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        frame = table("visits.csv")
        words = (
            "--data",
            "visits.csv",
            "--client",
            "site",
            "--label",
            "ill",
            "--ignore",
            "kind",
            "--rounds",
            "3",
            "--quiet",
        )
        for text, out in (("given(region)", "g"), ("flux(clusterer=kmedoids(clusters=2))", "f")):
            done = call("run", text, *words, "--attribute", "region", "--out", out)
            assert done.exit_code == 0, done.output
        own = frame.filter(pl.col("site") == 1).drop("site")
        own.write_csv("late.csv")
        own.with_columns(region=pl.lit("north")).write_csv("north.csv")
        own.drop("ill").write_csv("bare.csv")
        south, north = (
            json.loads(call("assign", "g", "--data", f, "--json").stdout) for f in ("late.csv", "north.csv")
        )
        assert south["cluster"] != north["cluster"]
        assert max(south["scores"]) == max(north["scores"]) == 0
        assert json.loads(call("assign", "f", "--data", "bare.csv", "--json").stdout)["served"] is None
        assert "cannot place a newcomer without labels" in " ".join(
            call("assign", "g", "--data", "bare.csv").output.split()
        )
        own.with_columns(region=pl.Series(["north", "south"] * 20)).write_csv("two.csv")
        assert "more than one value in column 'region'" in " ".join(
            call("assign", "g", "--data", "two.csv").output.split()
        )


class TestAtASite:
    def test_a_function_runs_only_if_the_policy_lists_it_to_the_letter(self):
        task = Task(report=Report(params=None, describe=Describe(f"{HERE}:class_bases(3)")))
        sizes = {"train": 50, "test": 10}
        Policy(functions=(f"{HERE}:class_bases(3)",)).check_task(task, 1, 1, sizes)
        for listed in ((), (f"{HERE}:class_bases(2)",), (f"{HERE}:class_bases",)):
            with pytest.raises(Refused, match="the client function is"):
                Policy(functions=listed).check_task(task, 1, 1, sizes)


def test_a_size_may_be_one_more_than_a_word(images, simulator):
    model = simulator(images()).model
    assert declared_shape(Describe(f"{HERE}:class_moments(7)"), model, 1) == (5, 2, 7)
    with pytest.raises(UsageError, match="has 'clases\\+1'"):
        client_function("clases+1")(lambda client: client.x)


def test_scores_of_some_who_need_another_rule_keep_the_order_of_clients(train, images, simulator):
    """Clients 1 and 2 have a value and 0 and 3 none: rows of two rules must not change places."""
    data = images((8, 8, 8, 8))
    before, after = (simulator(replace(data, attributes={"region": values})) for values in ("abab", ["", "b", "a", ""]))
    state = train("given(region)", before, 2)[-1].state

    def ask(task, models, labels, clients):
        return after.ask(task, Sent(models), labels, clients, Key(1, 0))

    found = build_algorithm("given(region)").place(state, ask, np.arange(4))
    assert found.clients.tolist() == [0, 1, 2, 3]
    assert found.clusters[1:3].tolist() == [1, 0]
    np.testing.assert_allclose(found.values[[0, 3]], least_loss(state, ask, np.array([0, 3])).values)
