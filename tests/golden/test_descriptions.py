"""Methods that cluster by descriptions: angles, moments and runs whose numbers can be derived by hand.

A client of ``axes`` holds points on one axis of the plane, with targets of one slope along it. Its loss is
(w_axis - slope)^2 + b^2, so one full-batch step of rate r moves that weight by -2 r (w - slope) and no other.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from coterie.data.federated import Federated, Split
from coterie.experiments.placement import Trained
from coterie.models.zoo import build_model
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.server.start import first_state

RATE = 0.05
PULL = 2 * RATE
STEP = Fit(steps=1, batch=100, lr=RATE, momentum=0.0)
ANGLES = (0, 0, 90, 90)
SLOPES = (1.0, 1.0, -1.0, -1.0)
PAIRS = (1, 2, 3, 6)


def federated(clients, classes=None, **known):
    names = tuple(f"client-{i}" for i in range(len(clients)))
    split = Split.join(clients)
    return Federated("made up", "by hand", names, split, split, classes, attributes=known)


def axes(angles=ANGLES, slopes=SLOPES, pairs=PAIRS, **known):
    """Client i holds ``pairs[i]`` times the points u and -u at an angle in degrees, with targets slope and -slope."""
    clients = []
    for angle, slope, count in zip(angles, slopes, pairs, strict=True):
        u = np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
        signs = np.tile([1.0, -1.0], count)
        clients.append(((signs[:, None] * u).astype(np.float32), (slope * signs).astype(np.float32)))
    return federated(clients, **known)


def begin(weights, clients=4):
    """Round 0 with one model of these two weights and no bias."""
    params = np.array([[*weights, 0.0]])
    state = first_state(Stack(params, np.zeros((1, 0))), np.zeros(clients, dtype=np.int64))
    return replace(state, formed=False)


def pulled(weight, slope, steps=1):
    for _ in range(steps):
        weight -= PULL * (weight - slope)
    return weight


def distances(done):
    return done.state.memory.formed.distances


class TestPacfl:
    def test_it_clusters_before_training_and_each_cluster_goes_its_way(self, train, simulator):
        """After t rounds one cluster has pulled the first weight to 1 and left the second; the other, the reverse.

        Had round 0 been averaged over everybody, both would have moved a part of the way.
        """
        sim = simulator(axes(), "linear", threads=1)
        for t, done in enumerate(train("pacfl(p=1)", sim, 4, fit=STEP, state=begin((0.3, 0.3)))):
            assert done.state.labels.tolist() == [0, 0, 1, 1]
            wanted = [[pulled(0.3, 1.0, t + 1), 0.3], [0.3, pulled(0.3, -1.0, t + 1)]]
            np.testing.assert_allclose(done.state.stack.params[:, :2], wanted, atol=1e-6)
            assert done.state.shares.tolist() == pytest.approx([3 / 12, 9 / 12])

    def test_the_distance_is_the_angle_in_degrees(self, train, simulator):
        data = axes((0, 30, 150, 90), (1.0,) * 4, (1,) * 4)
        found = distances(train("pacfl(p=1)", simulator(data, "linear", threads=1), 1, fit=STEP)[0])
        wanted = [[0, 30, 30, 90], [30, 0, 60, 60], [30, 60, 0, 60], [90, 60, 60, 0]]
        np.testing.assert_allclose(found, wanted, atol=1e-4)

    @pytest.mark.parametrize(("cut", "clusters"), [(1, 4), (20, 3), (50, 2), (90, 1)])
    def test_a_threshold_in_degrees_decides_the_number(self, train, simulator, cut, clusters):
        """The lines lie at 0, 10, 40 and 90 degrees: 10 apart, then 35 and 73 on average."""
        data = axes((0, 10, 40, 90), (1.0,) * 4, (1,) * 4)
        text = f"pacfl(p=1,clusterer=agglomerative(cut={cut}))"
        state = train(text, simulator(data, "linear", threads=1), 1, fit=STEP)[0].state
        assert len(state.stack) == len(set(state.labels.tolist())) == clusters

    def test_with_more_directions_than_half_the_features_all_spaces_meet(self, train, simulator):
        """Two planes of R^3 have a line in common: why p must be small for tables with few columns."""
        rng = np.random.default_rng(0)
        data = federated([(rng.normal(size=(9, 3)).astype(np.float32), np.ones(9, np.float32)) for _ in range(3)])
        sim = simulator(data, "linear", threads=1)
        smallest, mean = (distances(train(f"pacfl(p=2{more})", sim, 1, fit=STEP)[0]) for more in ("", ",angle=mean"))
        np.testing.assert_allclose(smallest, 0, atol=1e-4)
        assert mean[0, 1] > 1

    def test_one_absent_from_the_clustering_joins_its_own_cluster_and_not_another_s(self, train, simulator, flaky):
        """Client 0 is missing, so row 0 of the answers is client 1: its label must not go to client 0."""
        sim = flaky(simulator(axes((90, 0, 0, 90), (-1.0, 1.0, 1.0, -1.0)), "linear", threads=1), {0: [0]})
        first, second = train("pacfl(p=1)", sim, 2, fit=STEP, state=begin((0.3, 0.3)))
        assert first.state.labels.tolist() == [UNPLACED, 0, 0, 1]
        assert second.state.labels.tolist() == [1, 0, 0, 1]
        assert np.isnan(distances(first)[0]).all()

    def test_a_newcomer_goes_where_its_directions_are_and_not_where_the_loss_is_least(self, train, simulator):
        """Near the second axis with slope 0.3: the first cluster's weight there is still 0.3, the second's is not."""
        done = train("pacfl(p=1)", simulator(axes(), "linear", threads=1), 3, fit=STEP, state=begin((0.3, 0.3)))[-1]
        found = placed("pacfl(p=1)", done.state, axes((80,), (0.3,), (3,)))
        assert found.cluster == 1
        assert found.scores == pytest.approx((-80, -10), abs=1e-4)


def placed(text, state, newcomer, labelled=True, **known):
    from coterie.algorithms import build_algorithm

    model = build_model("linear", newcomer.shape, newcomer.classes)
    measure = "rmse" if newcomer.classes is None else "accuracy"
    rows = [{"cluster": str(k), measure: "1"} for k in range(len(state.stack))]
    state = replace(state, stack=Stack(*(part.astype(np.float32) for part in state.stack)))
    x, y = newcomer.train.of(0)
    trained = Trained(build_algorithm(text, 2, STEP), model, state, rows, 1)
    return trained.assign(x, y if labelled else None, known or None)


def points(*classes):
    """A client on the real line: one row of numbers for each class."""
    x = np.concatenate([np.array(own, np.float32) for own in classes])[:, None]
    return x, np.repeat(np.arange(len(classes)), [len(own) for own in classes])


BOTH, SWAPPED, ONE = points((0, 2), (4, 6)), points((4, 6), (0, 2)), points((0, 2), ())
AWAY = points((10, 12), (14, 16))


class TestFlux:
    """The last layer of a linear model has the examples themselves as inputs, so latent features are the numbers.

    0, 2, 4, 6 have mean 3 and deviation sqrt(5); 0, 2 have 1 and 1; 4, 6 have 5 and 1.
    """

    @pytest.fixture
    def done(self, train, simulator):
        data = federated([BOTH, SWAPPED, ONE, AWAY, BOTH, AWAY], 2)
        text = "flux(clusterer=kmedoids(clusters=3),warmup=1,dims=1)"
        return train(text, simulator(data, "linear", threads=1), 2, fit=STEP, clusters=None)

    def test_distances_are_of_the_groups_that_both_have(self, done):
        before, after = done
        assert not before.state.formed
        found = distances(after)
        assert found[0, 1] == pytest.approx(sqrt((0 + 4**2 + 4**2) / 3))
        assert found[0, 2] == pytest.approx(sqrt((2**2 + (sqrt(5) - 1) ** 2 + 0) / 2))
        assert found[0, 3] == pytest.approx(10)
        assert found[0, 4] == found[3, 5] == 0

    def test_a_divisor_of_each_moment_is_its_range(self, train, simulator):
        """Means of all are from 3 to 13, of the classes from 1 to 15 and 5 to 15; deviations of all are equal: 1."""
        data = federated([BOTH, AWAY, SWAPPED], 2)
        text = "flux(clusterer=kmedoids(clusters=2),warmup=0,dims=1,scale=true)"
        found = distances(train(text, simulator(data, "linear", threads=1), 1, fit=STEP, clusters=None)[0])
        assert found[0, 1] == pytest.approx(sqrt((1 + 1 + (10 / 14) ** 2) / 3))
        assert found[0, 2] == pytest.approx(sqrt((0 + (4 / 10) ** 2 + (4 / 14) ** 2) / 3))

    def test_centres_are_means_of_those_that_have_the_class(self, done):
        state = done[-1].state
        labels = state.labels.tolist()
        assert labels[0] == labels[2] == labels[4]
        assert len({labels[0], labels[1], labels[3]}) == 3
        centre = state.memory.formed.descriptions[labels[0], ..., 0]
        np.testing.assert_allclose(centre[0], [(3 + 1 + 3) / 3, (2 * sqrt(5) + 1) / 3])
        np.testing.assert_allclose(centre[1:], [[1, 1], [5, 1]])

    def test_a_newcomer_without_labels_is_placed_by_all_its_examples(self, done):
        state = done[-1].state
        newcomer = federated([points((11, 13), (13, 15))], 2)
        found = placed("flux(clusterer=kmedoids(clusters=3),warmup=1,dims=1)", state, newcomer, labelled=False)
        assert found.cluster == state.labels[3]
        assert found.scores[found.cluster] == pytest.approx(-abs(sqrt(5) - sqrt(2)))
        assert (found.served, found.warning) == (None, None)

    def test_labels_tell_apart_what_examples_alone_do_not(self, done):
        state = done[-1].state
        text = "flux(clusterer=kmedoids(clusters=3),warmup=1,dims=1)"
        newcomer = federated([SWAPPED], 2)
        with_labels, without = (placed(text, state, newcomer, labelled=each) for each in (True, False))
        assert with_labels.cluster == state.labels[1]
        assert with_labels.scores[state.labels[1]] == 0
        head = state.memory.formed.descriptions[:, 0, :, 0]
        wanted = -np.hypot(head[:, 0] - 3, head[:, 1] - sqrt(5))
        np.testing.assert_allclose(without.scores, wanted)


class TestGiven:
    VALUES = ("north", "south", "north", "south")

    def test_clusters_are_the_values_and_each_is_fedavg(self, train, lines, simulator):
        """North has slopes 1 and -1 with 1 and 3 pairs: mean -0.5; south 1 and -1 with 2 and 6: the same."""
        data = replace(lines(SLOPES, PAIRS), attributes={"region": self.VALUES})
        start = replace(begin((0.3,)), stack=Stack(np.array([[0.3, 0.0]]), np.zeros((1, 0))))
        for t, done in enumerate(
            train("given(region)", simulator(data, "linear", threads=1), 3, fit=STEP, state=start)
        ):
            assert done.state.labels.tolist() == [0, 1, 0, 1]
            assert done.state.stack.params[:, 0].tolist() == pytest.approx([pulled(0.3, -0.5, t + 1)] * 2)

    @pytest.fixture
    def done(self, train, simulator):
        data = axes(region=("north", "north", "south", ""))
        return train("given(region)", simulator(data, "linear", threads=1), 3, fit=STEP, state=begin((0.3, 0.3)))

    def test_one_without_a_value_waits_and_then_joins_where_its_loss_is_least(self, done):
        assert [step.state.labels.tolist() for step in done] == [[0, 0, 1, UNPLACED], [0, 0, 1, 1], [0, 0, 1, 1]]

    @pytest.mark.parametrize(("value", "cluster"), [("north", 0), ("south", 1), ("east", 1), (None, 1)])
    def test_a_newcomer_s_value_decides_and_the_loss_where_it_is_unknown(self, done, value, cluster):
        """Its data are those of the second cluster, whatever it says."""
        known = {} if value is None else {"region": value}
        assert placed("given(region)", done[-1].state, axes((90,), (-1.0,), (3,)), **known).cluster == cluster
