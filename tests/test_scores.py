"""Scores of rounds, by hand or by definition."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import coterie as ct
from coterie.data import Split
from coterie.experiments import records, summary
from coterie.experiments.records import count_moved, facts_of, finite
from coterie.experiments.scores import (
    agreement,
    client_scores,
    cluster_shape,
    clusterability,
    silhouette,
)
from coterie.protocol.replies import Cost
from coterie.protocol.stack import Stack
from coterie.server.loop import Round
from coterie.server.start import first_state


def test_accuracy_is_weighted_by_test_examples_and_the_worst_client_is_not():
    scores = client_scores(np.array([[0.5, 0.4, 1.0, 10], [1.0, 0.8, 0.5, 30]]), classes=3)
    assert scores["accuracy"] == pytest.approx(0.875)
    assert scores["macro_f1"] == pytest.approx(0.7)
    assert (scores["accuracy_mean"], scores["worst"], scores["pf1"]) == pytest.approx((0.75, 0.5, 0.6))


def test_regression_scores_pool_the_squared_errors():
    scores = client_scores(np.array([[1.0, 4.0, 1.0, 10], [4.0, 8.0, 4.0, 30]]), classes=None)
    assert scores["rmse"] == pytest.approx(np.sqrt(3.25))
    assert scores["r2"] == pytest.approx(1 - 3.25 / 7)
    assert scores["worst"] == 2


def test_clients_may_count_by_other_examples_than_those_of_their_tests():
    weights = np.array([30, 10])
    scores = client_scores(np.array([[0.5, 0.4, 1.0, 10], [1.0, 0.8, 0.5, 30]]), classes=3, weights=weights)
    assert (scores["accuracy"], scores["macro_f1"], scores["test_loss"]) == pytest.approx((0.625, 0.5, 0.875))
    assert (scores["accuracy_mean"], scores["pf1"]) == pytest.approx((0.75, 0.6))
    errors = client_scores(np.array([[1.0, 4.0, 1.0, 10], [4.0, 8.0, 4.0, 30]]), classes=None, weights=weights)
    assert errors["rmse"] == pytest.approx(np.sqrt(1.75))
    assert (errors["r2"], errors["test_loss"]) == pytest.approx((1 - 1.75 / 5, 1.75))


def test_purity_and_matching_differ_when_a_group_is_split():
    scores = agreement(np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1]))
    assert scores["purity"] == 1
    assert scores["matched"] == 0.75
    assert scores["homogeneity"] == 1
    assert scores["completeness"] < 1


def test_clients_without_a_cluster_do_not_count_against_the_truth():
    assert agreement(np.array([0, 1, -1]), np.array([0, 1, 1]))["ari"] == 1
    assert agreement(np.array([-1, -1]), np.array([0, 1])) == {}


def test_what_is_remembered_of_a_round_is_of_these_clusters_and_groups_and_cannot_be_changed():
    labels, groups = np.array([0, 0, 1, 1], np.int32), np.array([0, 0, 1, 1])
    agreement(labels, groups)["ari"] = 7.0
    assert agreement(labels, groups)["ari"] == 1
    assert agreement(labels, np.array([0, 1, 0, 1]))["ari"] == pytest.approx(-0.5)
    assert agreement(np.array([0, 1, 0, 1]), groups)["purity"] == 0.5


def test_collapse_shows_in_the_effective_number_of_clusters():
    even, collapsed = (cluster_shape(np.array(labels), 4) for labels in ([0, 1, 2, 3], [1, 1, 1, 1]))
    assert even["effective_clusters"] == pytest.approx(4)
    assert collapsed["effective_clusters"] == pytest.approx(1)
    assert collapsed["clusters"] == [0, 4, 0, 0]
    assert (even["largest_share"], collapsed["largest_share"]) == (0.25, 1)


def test_clusterability_is_the_largest_distance_in_units_of_the_mean():
    updates = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    labels, weights = np.array([0, 0, 1]), np.array([1.0, 1.0, 1.0])
    assert clusterability(updates, labels, weights) == pytest.approx(0.5)
    assert clusterability(updates, labels, np.array([3.0, 1.0, 1.0])) == pytest.approx(1.0)
    assert clusterability(updates[:1], labels[:1], weights[:1]) == 0
    assert clusterability(updates, np.array([0, 0, -1]), weights) == pytest.approx(0.5)
    assert clusterability(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.zeros(2, int), weights[:2]) == np.inf


def test_silhouette_is_undefined_for_one_cluster_or_one_client_each():
    points = np.array([[0.0], [0.1], [5.0], [5.1]])
    assert silhouette(points, np.array([0, 0, 1, 1])) > 0.9
    assert silhouette(points, np.zeros(4, int)) is None
    assert silhouette(points, np.arange(4)) is None


def test_the_majority_is_learned_from_train(images):
    train, test = (np.array(labels) for labels in ([0, 0, 1, 1, 1], [1, 1, 0, 1, 0, 1]))
    x = np.zeros((6, *images((2, 2)).shape), np.float32)
    splits = {"train": Split(x[:5], train, np.array([0, 3, 5])), "test": Split(x, test, np.array([0, 4, 6]))}
    assert facts_of(replace(images((2, 2)), **splits)).majority_correct.tolist() == [1, 1]


def test_a_summary_says_what_guessing_the_majority_would_give(images):
    data = images((6, 9, 12))
    run = ct.run(ct.fedavg(fit=ct.Fit(steps=1)), data, model="mlp(4)", rounds=1, threads=1)
    right = [(data.test.of(i)[1] == np.bincount(data.train.of(i)[1]).argmax()).sum() for i in range(3)]
    assert run.summary["majority"] == pytest.approx(sum(right) / len(data.test.y))


@pytest.mark.parametrize(
    ("before", "after", "clusters", "wanted"),
    [
        ([0, 1, 1, -1], [1, 1, 0, 0], (2, 2), 2),
        ([0, 1, 1, 0], [0, 1, 1, 0], (2, 2), 0),
        ([0, 0, 0, 0], [0, 1, 1, 0], (1, 2), 0),
    ],
)
def test_a_move_is_from_one_cluster_to_another_of_the_same_clusters(before, after, clusters, wanted):
    one, other = (
        first_state(Stack(np.zeros((count, 1)), np.zeros((count, 0))), np.array(labels))
        for count, labels in zip(clusters, (before, after), strict=True)
    )
    assert count_moved(Round(one, other, None, Cost(), there=np.arange(4))) == wanted


@pytest.fixture
def clustered(images, simulator, train):
    """A round of two clusters, the facts about its clients' data, and an evaluation that nobody answered."""
    data = images()
    step = train("wecfl", simulator(data), 2)[-1]
    return step, facts_of(data), step.replies.without(np.ones(8, dtype=bool), {})


def test_records_of_evaluated_rounds_say_how_the_clusters_look(clustered):
    step, facts, unheard = clustered
    replies, labels = step.replies, step.state.labels
    record = records.RoundRecorder(facts, None, 2).describe(step, unheard, None)
    updates = replies.params - step.before.stack.params[replies.rows]
    assert record["clusterability"] == pytest.approx(clusterability(updates, labels, replies.examples), rel=1e-5)
    assert record["silhouette"] == pytest.approx(silhouette(replies.part("head_weight"), labels), rel=1e-5)
    assert record["temperature"] > 0


def test_those_of_other_rounds_do_not(clustered):
    step, facts, _ = clustered
    record = records.RoundRecorder(facts, None, 2).describe(step, None, None)
    assert not {"clusterability", "silhouette", "clustering_objective", "temperature"} & set(record)
    assert {"moved", "clusters", "loss", "bytes_up"} <= set(record)


def test_with_someone_who_is_in_no_cluster_they_do_not(clustered):
    step, facts, unheard = clustered
    labels = np.where(np.arange(8) == 3, -1, step.state.labels)
    changed = replace(step, state=replace(step.state, labels=labels))
    assert not {"clusterability", "silhouette"} & set(
        records.RoundRecorder(facts, None, 2).describe(changed, unheard, None)
    )


@pytest.mark.parametrize(("platform", "held"), [("linux", 3 * 2**10), ("darwin", 3 * 2**20)])
def test_memory_is_in_megabytes_whatever_the_system_counts_in(platform, held, monkeypatch):
    monkeypatch.setattr(summary.sys, "platform", platform)
    monkeypatch.setattr(summary.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=held))
    assert summary.peak_memory_mb() == 3


def test_what_json_cannot_say_is_none():
    assert finite({"a": float("nan"), "b": float("inf"), "c": 1.0, "d": [1]}) == {
        "a": None,
        "b": None,
        "c": 1.0,
        "d": [1],
    }
