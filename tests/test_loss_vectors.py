"""Clusters of loss vectors (clove), against references that try everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie.algorithms import build_algorithm
from coterie.errors import UsageError
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.loss_vectors import cheapest_models, cluster_losses
from coterie.server.start import first_state

RATE = 0.05
SLOPES, PAIRS = (1.0, 1.25, 0.75, -1.0, -1.25, -0.75, -0.875), (1, 2, 1, 3, 1, 2, 4)


def least_inertia(points, clusters):
    """The division of points of least inertia, by trying all."""
    best = None
    for labels in product(range(clusters), repeat=len(points)):
        total = 0.0
        for group in set(labels):
            own = [point for point, label in zip(points, labels, strict=True) if label == group]
            centre = sum(own) / len(own)
            total += sum(float(((point - centre) ** 2).sum()) for point in own)
        if best is None or total < best[0] - 1e-12:
            best = total, labels
    return best[1]


def least_cost(losses, groups):
    """The model of each group at the least sum of all clients' losses, by trying all."""

    def total(models):
        return sum(losses[i][models[group]] for i, group in enumerate(groups))

    return min(permutations(range(losses.shape[1])), key=total)


def slow_round(models, slopes, sizes):
    """One round with weights (w, b), client after client."""
    losses = np.array([[(w - slope) ** 2 + b**2 for w, b in models] for slope in slopes])
    groups = least_inertia(losses, len(models))
    of_group = least_cost(losses, groups)
    labels = [of_group[group] for group in groups]
    after = []
    for k, (w, b) in enumerate(models):
        own = [i for i in range(len(slopes)) if labels[i] == k]
        total = sum(sizes[i] for i in own)
        step = [(w - RATE * 2 * (w - slopes[i]), b - RATE * 2 * b) for i in own]
        after.append([sum(sizes[i] * s[j] for i, s in zip(own, step, strict=True)) / total for j in (0, 1)])
    return labels, after


@pytest.mark.parametrize("begun", [(3.0, 6.0), (0.4, -0.2), (-5.0, -0.1)])
def test_a_run_is_that_of_the_slow_reference(begun, lines, simulator, train):
    models = [[w, w / 4] for w in begun]
    state = first_state(Stack(np.array(models), np.zeros((2, 0))), np.full(7, UNPLACED))
    fit = Fit(steps=1, batch=100, lr=RATE, momentum=0.0)
    for done in train("clove", simulator(lines(SLOPES, PAIRS), "linear", threads=1), 8, fit=fit, state=state):
        labels, models = slow_round(models, SLOPES, PAIRS)
        assert done.state.labels.tolist() == labels
        np.testing.assert_allclose(done.state.stack.params, models, atol=1e-12)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32))
def test_no_other_matching_is_cheaper(clusters, clients, seed):
    rng = np.random.default_rng(seed)
    losses, groups = rng.random((clients, clusters)), rng.integers(clusters, size=clients)
    found = cheapest_models(losses, groups)
    assert sorted(found.tolist()) == list(range(clusters))
    best = np.array(least_cost(losses, groups))
    assert losses[np.arange(clients), found[groups]].sum() == pytest.approx(
        losses[np.arange(clients), best[groups]].sum()
    )


def test_losses_are_summed_so_that_a_large_group_comes_first():
    """Means would give the second model to the four: 1 + 3.5 is more than 2 + 1, but 4 + 3.5 is less than 8 + 1."""
    losses = np.array([[1.0, 2.0]] * 4 + [[1.0, 3.5]])
    groups = np.array([0, 0, 0, 0, 1])
    assert cheapest_models(losses, groups).tolist() == [0, 1]
    means = np.stack([losses[groups == g].mean(axis=0) for g in (0, 1)])
    assert cheapest_models(means, np.array([0, 1])).tolist() == [1, 0]


def test_groups_that_are_empty_take_what_is_left():
    """Where clients have equal losses k-means leaves a cluster empty; public code fails there."""
    assert prepared(np.full((3, 2), 0.7)).labels.tolist() in ([0, 0, 0], [1, 1, 1])


def prepared(losses, labels=None):
    """The state with which clients train that have these losses."""
    clients, clusters = losses.shape
    zeros = Stack(np.zeros((clusters, 2)), np.zeros((clusters, 0)))
    state = first_state(zeros, np.full(clients, UNPLACED) if labels is None else np.array(labels))
    everyone = np.arange(clients)

    def ask(task, models, rows, asked, references=None):
        return Replies(None, asked, rows, np.ones(clients), losses=losses)

    return cluster_losses(WeightedKMeans(clusters))(state, everyone, Key(1, 0), ask)


def test_a_client_whose_loss_is_infinite_stays_where_it_is():
    losses = np.array([[1.0, 5.0], [1.1, 5.1], [2.0, 3.5], [np.inf, 3.6]])
    assert prepared(losses).labels.tolist() == [0, 0, 1, UNPLACED]
    assert prepared(losses, [1, 1, 1, 0]).labels.tolist() == [0, 0, 1, 0]


@given(st.permutations(range(8)))
def test_permuting_clients_permutes_labels(order):
    rng = np.random.default_rng(0)
    losses = np.repeat(np.array([[1.0, 5.0], [2.0, 3.5]]), 4, axis=0) + 0.1 * rng.random((8, 2))
    assert prepared(losses).labels[order].tolist() == prepared(losses[order]).labels.tolist()


def test_different_random_starts_are_enough_where_ifca_merges_two_groups(train, simulator):
    """Seed 5 of the four rotations: two groups share a model of ifca, and never separate."""
    import coterie as ct

    data = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=5)
    federation = simulator(data, "mlp", threads=2)
    found = {
        text: adjusted_rand_score(
            data.groups, train(text, federation, 5, clusters=4, fit=Fit(), seed=5)[-1].state.labels
        )
        for text in ("clove", "ifca(start=random)")
    }
    assert found["clove"] == 1
    assert found["ifca(start=random)"] < 0.8


def test_a_sum_of_two_networks_is_refused():
    with pytest.raises(
        UsageError, match=r"cam cannot be added to clove.*, which finds clusters before clients train; take"
    ):
        build_algorithm("clove+cam")


def test_labels_found_before_training_are_no_moves_of_models(train, lines, simulator):
    """Which state clients trained with is part of the round: labels are new there, models are not."""
    state = first_state(Stack(np.array([[3.0, 0.1], [6.0, 0.1]]), np.zeros((2, 0))), np.full(7, UNPLACED))
    (done,) = train("clove", simulator(lines(SLOPES, PAIRS), "linear", threads=1), 1, state=state)
    assert (done.before.labels == UNPLACED).all()
    assert (done.trained.labels == done.replies.rows).all()
    np.testing.assert_array_equal(done.trained.stack.params, done.before.stack.params)
    assert replace(done, prepared=None).trained is done.before
