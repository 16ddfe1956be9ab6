"""Clusters that merge (stocfl), against a reference in lists and dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.errors import UsageError
from coterie.protocol.task import Fit
from coterie.server import merging
from coterie.server.merging import merged, products

RATE, STEPS, STRENGTH, THRESHOLD = 0.05, 3, 0.4, 0.9
SLOPES = (1.0, 1.4, -1.0, -0.8, 0.9, -1.3, 1.1, -1.2)
PAIRS = (1, 2, 3, 6, 2, 1, 4, 2)
FIT = Fit(steps=STEPS, batch=100, lr=RATE, momentum=0.0)


def walk(start, slope, strength=0.0, to=None):
    """Where a client's steps take (w, b)."""
    w, b = start
    for _ in range(STEPS):
        pull = (0.0, 0.0) if to is None else (w - to[0], b - to[1])
        w, b = w - RATE * (2 * (w - slope) + strength * pull[0]), b - RATE * (2 * b + strength * pull[1])
    return np.array([w, b])


def mean(rows, sizes):
    return sum(size * row for row, size in zip(rows, sizes, strict=True)) / sum(sizes)


class Slow:
    """The method, client by client; every cluster has its clients, its model, and how many clients trained it."""

    def __init__(self, anchor):
        self.anchor = self.everyone = np.array(anchor)
        self.clusters, self.updates = [], {}

    def similar(self, one, other):
        a, b = (np.mean([self.updates[c] for c in cluster["clients"]], axis=0) for cluster in (one, other))
        return float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))

    def merge(self):
        while len(self.clusters) > 1:
            pairs = [(a, b) for a in range(len(self.clusters)) for b in range(a + 1, len(self.clusters))]
            a, b = max(pairs, key=lambda pair: self.similar(self.clusters[pair[0]], self.clusters[pair[1]]))
            one, other = self.clusters[a], self.clusters[b]
            if self.similar(one, other) < THRESHOLD:
                return
            old = [each for each in (one, other) if each["old"]]
            if old:
                one["model"] = mean([each["model"] for each in old], [each["old"] for each in old])
            one["old"] += other["old"]
            one["clients"] += other["clients"]
            del self.clusters[b]

    def round(self, clients):
        for c in clients:
            if c not in self.updates:
                self.updates[c] = walk(self.anchor, SLOPES[c]) - self.anchor
                self.clusters.append({"clients": [c], "model": self.everyone, "old": 0})
        self.merge()
        for cluster in self.clusters:
            own = [c for c in clients if c in cluster["clients"]]
            if own:
                trained = [walk(cluster["model"], SLOPES[c], STRENGTH, self.everyone) for c in own]
                cluster["model"] = mean(trained, [PAIRS[c] for c in own])
            cluster["old"] = len(cluster["clients"])
        alone = [walk(self.everyone, SLOPES[c]) for c in clients]  # each from the same model, not one after the other
        self.everyone = mean(alone, [PAIRS[c] for c in clients])


@pytest.mark.parametrize("participation", [0.25, 0.5, 1.0])
def test_a_run_is_that_of_the_slow_reference(participation, lines, simulator, train):
    federation = simulator(lines(SLOPES, PAIRS), "linear", threads=1)
    text = f"stocfl(threshold={THRESHOLD},strength={STRENGTH})"
    slow = None
    for done in train(text, federation, 10, fit=FIT, participation=participation, norm_bound=0):
        slow = slow or Slow(done.before.stack.params[0].astype(float))
        slow.round(done.replies.clients.tolist())
        assert len(done.state.stack) == len(slow.clusters)
        for k, cluster in enumerate(slow.clusters):
            assert np.flatnonzero(done.state.labels == k).tolist() == sorted(cluster["clients"])
            np.testing.assert_allclose(done.state.stack.params[k], cluster["model"], atol=1e-5)
        np.testing.assert_allclose(done.state.memory.everyone.params[0], slow.everyone, atol=1e-5)
    assert adjusted_rand_score(np.sign(SLOPES)[done.state.labels >= 0], done.state.labels[done.state.labels >= 0]) == 1


def test_clusters_do_not_chain():
    """Directions 40 degrees apart, a threshold of 45: the public code, which never computes means again, finds one."""
    turned = np.deg2rad([0, 40, 80, 120])
    rows = np.column_stack([np.cos(turned), np.sin(turned)])
    assert merged(products(rows), np.cos(np.deg2rad(45))).tolist() == [0, 0, 1, 1]


@given(st.integers(1, 8), st.floats(-1, 1), st.integers(0, 2**32))
def test_what_remains_apart_is_less_similar_than_the_threshold(rows, threshold, seed):
    vectors = np.random.default_rng(seed).normal(size=(rows, 3))
    found = merged(products(vectors), threshold)
    means = np.stack([vectors[found == k].mean(axis=0) for k in range(found.max() + 1)])
    alike = np.corrcoef(np.column_stack([means, -means])) if len(means) > 1 else np.zeros((1, 1))
    assert (alike[~np.eye(len(means), dtype=bool)] < threshold + 1e-9).all()
    assert list(dict.fromkeys(found.tolist())) == list(range(found.max() + 1)), "numbers are in order of appearance"


@given(st.permutations(range(7)), st.integers(0, 100))
def test_permuting_clients_permutes_clusters(order, seed):
    vectors = np.random.default_rng(seed).normal(size=(7, 3))
    one, other = merged(products(vectors), 0.3)[order], merged(products(vectors[order]), 0.3)
    assert adjusted_rand_score(one, other) == 1


def test_blocks_of_coordinates_change_nothing(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(5, 40))
    whole = products(rows)
    monkeypatch.setattr(merging, "BLOCK_BYTES", 8 * 5 * 7)
    np.testing.assert_allclose(products(rows), whole, atol=1e-12)


def test_rows_of_zeros_are_similar_to_nothing():
    assert merged(products(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])), 0.1).tolist() == [0, 1, 2]


def test_four_rotations_are_found_from_a_fifth_of_the_clients_a_round():
    data = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
    done = ct.run(ct.stocfl(), data, rounds=20, seed=1, eval_every=20, participation=0.2, threads=2)
    seen = done.labels >= 0
    assert seen.sum() > 35
    assert adjusted_rand_score(data.groups[seen], done.labels[seen]) == 1


def test_a_newcomer_is_placed_by_its_update_of_the_anchor():
    whole = ct.load("digits").partition("rotation(0,90,180,270)", clients=24, seed=1)
    early = whole.select(range(20))
    done = ct.run(ct.stocfl(), early, model="mlp(32)", rounds=3, seed=3, eval_every=3, threads=1)
    for late in range(20, 24):
        found = done.assign(*whole.train.of(late))
        same = np.flatnonzero(early.groups == whole.groups[late])
        assert found.cluster == done.labels[same[0]]
        assert len(found.scores) == len(done.state.stack)
        assert found.scores[found.cluster] > 0.5 > sorted(found.scores)[-2]


@pytest.mark.parametrize("threshold", [-1.5, 2.0])
def test_impossible_thresholds_are_refused(threshold):
    with pytest.raises(UsageError, match=r"threshold is .*; it must be in \[-1, 1\]"):
        ct.stocfl(threshold)


def test_a_run_resumed_between_merges_equals_an_unbroken_one(tmp_path):
    data = ct.load("digits").partition("rotation(0,180)", clients=10, seed=1)
    options = {"model": "mlp(8)", "participation": 0.3, "threads": 1}
    whole = ct.run(ct.stocfl(), data, rounds=6, **options)
    ct.run(ct.stocfl(), data, rounds=2, out=tmp_path / "run", **options)
    again = ct.run(ct.stocfl(), data, rounds=6, out=tmp_path / "run", resume=True, **options)
    np.testing.assert_array_equal(whole.state.stack.params, again.state.stack.params)
    np.testing.assert_array_equal(whole.state.memory.sums, again.state.memory.sums)
    np.testing.assert_array_equal(whole.labels, again.labels)


class Deaf:
    """A federation in which one client does not hear the first exchange of a round, but those after it."""

    def __init__(self, inner, client):
        self.inner, self.client, self.heard = inner, client, set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def ask(self, task, sent, labels, clients, key):
        deaf = (clients == self.client) & (key.round not in self.heard)
        self.heard.add(key.round)
        return self.inner.ask(task, sent, labels[~deaf], clients[~deaf], key)


def test_someone_who_misses_the_anchor_trains_the_mean_of_the_clusters_and_counts_in_none(lines, simulator, train):
    """Of the clusters that have just been made: there was one model before the round, and there are two now."""
    federation = Deaf(simulator(lines(SLOPES, PAIRS), "linear", threads=1), 3)
    (done,) = train("stocfl", federation, 1, fit=FIT, norm_bound=0)
    assert done.state.labels[3] == -1
    assert len(done.trained.shares) == len(done.state.stack) == 2
    at = done.replies.clients.tolist().index(3)
    mean = done.trained.shares @ done.trained.stack.params
    pulled = walk(mean.astype(float), SLOPES[3])
    np.testing.assert_allclose(done.replies.params[at], pulled, atol=1e-5)
