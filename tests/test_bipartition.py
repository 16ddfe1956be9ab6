"""Recursive splits: when, into what, and under which numbers. All numbers by hand.

A client's loss is (w - slope)^2 and a step of rate 0.25 takes a weight half of the way to the slope.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.errors import UnknownName, UsageError
from coterie.models.layout import Layout
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attendance, Attended
from coterie.seeding import Key
from coterie.server.bipartition import Stationary, bipartition
from coterie.server.clustering.clusterers import agglomerative
from coterie.server.contract import by_examples, least_loss
from coterie.server.start import first_state

HALF = Fit(steps=1, batch=100, lr=0.25, momentum=0.0)
SLOPES = (3.0, -1.0, 1.0, -3.0, 1.0, 3.0, -3.0, -1.0)


def begin(rows, labels):
    params = np.array([[w, 0.0] for w in rows])
    return first_state(Stack(params, np.zeros((len(rows), 0))), np.array(labels))


@pytest.fixture
def toy(lines, simulator):
    return simulator(lines(SLOPES, (1,) * 8), "linear", threads=1)


def made_up(params):
    params = np.asarray(params, dtype=float)
    count = len(params)
    layout = Layout(params.shape[1], 0, {"all": np.arange(params.shape[1])}, {"all": np.arange(0)})
    return Replies(layout, np.arange(count), np.zeros(count, int), np.ones(count, int), params, np.zeros((count, 0)))


class TestStationary:
    """Updates (3, 0), (-2, 0), (-2, 0): the mean has norm 1/3, the largest 3."""

    UPDATES = np.array([[13.0, 5.0], [8.0, 5.0], [8.0, 5.0]])
    STARTS = np.tile([10.0, 5.0], (3, 1))

    @pytest.mark.parametrize(
        ("eps1", "eps2", "relative", "largest", "wanted"),
        [
            (0.34, 2.9, False, 99.0, True),
            (0.33, 2.9, False, 99.0, False),
            (0.34, 3.0, False, 99.0, False),
            (0.12, 0.5, True, 5.9, True),
            (0.11, 0.5, True, 5.9, False),
            (0.12, 0.5, True, 6.0, False),
        ],
    )
    def test_the_mean_must_rest_and_somebody_must_pull(self, eps1, eps2, relative, largest, wanted):
        assert Stationary(eps1, eps2, relative)(made_up(self.UPDATES), self.STARTS, largest) is wanted

    def test_relative_thresholds_do_not_depend_on_the_scale(self):
        for scale in (1e-3, 1.0, 1e3):
            updates = made_up(self.STARTS + scale * (self.UPDATES - self.STARTS))
            assert Stationary(0.12, 0.5)(updates, self.STARTS, 5.9 * scale)


@pytest.mark.parametrize("seed", range(4))
def test_single_linkage_is_the_bipartition_of_least_largest_similarity(seed):
    updates = np.random.default_rng(seed).normal(size=(7, 3))
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    similar = unit @ unit.T
    halves = [np.array((0, *rest)) for rest in product((0, 1), repeat=6) if any(rest)]
    least = min(similar[np.ix_(h == 0, h == 1)].max() for h in halves)
    found = agglomerative(2, linkage="single")(1 - similar, Key(1, 0))
    assert similar[np.ix_(found == 0, found == 1)].max() == pytest.approx(least)


class TestSattler:
    def test_nested_splits_name_the_clients_not_their_places_in_the_cluster(self, toy, train):
        """The whole rests at 0: positive and negative slopes part in round 1, at means 1 and -1.

        In round 2 the half of 3 and 1 is at 1 and moves by 0.5 of at most 1 (0.5 > 0.35). In round 3 it is at 1.5 and
        moves by 0.25 of at most 0.75 (1/3 < 0.35), and 0.75 > 0.35 * 1.5, the largest update ever: it parts, and so
        does the other. Public code returns places within the cluster from the second split on.
        """
        done = train("sattler(minimum=0)", toy, 6, fit=HALF, state=begin([0.0], [0] * 8))
        assert [len(step.state.stack) for step in done] == [1, 2, 2, 4, 4, 4]
        assert done[1].state.labels.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]
        assert done[1].state.stack.params[:, 0].tolist() == pytest.approx([1.0, -1.0])
        assert done[2].state.stack.params[:, 0].tolist() == pytest.approx([1.5, -1.5])
        assert done[3].state.labels.tolist() == [0, 1, 2, 3, 2, 0, 3, 1]
        assert done[3].state.stack.params[:, 0].tolist() == pytest.approx([2.25, -1.25, 1.25, -2.25])

    def test_a_split_is_in_two_where_there_are_three_directions(self):
        """Of 0, 30 and 180 degrees the first two are nearest to each other."""
        angles = np.radians([0, 0, 30, 30, 180, 180])
        replies = made_up(np.column_stack([np.cos(angles), np.sin(angles)]))
        rule = bipartition(
            Stationary(9.0, 0.0, relative=False),
            minimum=0,
            linkage="average",
            weigh=by_examples,
            fit=HALF,
            place=least_loss,
        )
        found = rule(replace(begin([0.0], [0] * 6), round=1), replies, Key(1, 1), None)
        assert found.labels.tolist() == [0, 0, 0, 0, 1, 1]

    @pytest.mark.parametrize("minimum", [0, 1, 4])
    def test_not_before_the_minimum_of_rounds_is_over(self, minimum, toy, train):
        done = train(f"sattler(minimum={minimum})", toy, 7, fit=HALF, state=begin([0.0], [0] * 8))
        assert next(t for t, step in enumerate(done) if len(step.state.stack) > 1) == minimum + 1

    def test_two_clients_are_never_parted(self, lines, simulator, train):
        sim = simulator(lines((1.0, -1.0), (1, 1)), "linear", threads=1)
        assert len(train("sattler(minimum=0)", sim, 4, fit=HALF, state=begin([0.0], [0, 0]))[-1].state.stack) == 1

    def test_clients_that_agree_are_never_parted(self, lines, simulator, train):
        sim = simulator(lines((2.0,) * 6, (1,) * 6), "linear", threads=1)
        assert len(train("sattler(minimum=0)", sim, 12, fit=HALF, state=begin([0.0], [0] * 6))[-1].state.stack) == 1

    @pytest.mark.parametrize("seed", range(4))
    def test_members_that_were_not_drawn_are_asked_when_a_cluster_splits(self, seed, toy, train):
        text = "sattler(minimum=0,eps1=0.99,eps2=0)"
        done = train(text, toy, 8, fit=HALF, state=begin([0.0], [0] * 8), participation=0.5, seed=seed)
        split = next(step for step in done if len(step.state.stack) == 2)
        assert len(split.replies) == 4
        assert split.cost.steps == 8
        assert (split.state.labels != UNPLACED).all()
        halves = split.state.labels
        assert adjusted_rand_score(np.array(SLOPES) > split.before.stack.params[0, 0], halves) == 1
        for half in (0, 1):
            weight = np.mean(
                [(split.before.stack.params[0, 0] + SLOPES[c]) / 2 for c in np.flatnonzero(halves == half)]
            )
            assert split.state.stack.params[half, 0] == pytest.approx(weight)

    def test_those_absent_from_a_split_join_the_half_that_serves_them_and_others_keep_theirs(self, toy, train, flaky):
        federation = flaky(toy, {1: [0, 7], 2: [1]})
        text = "sattler(minimum=0,eps1=0.3)"
        done = train(text, federation, 4, fit=HALF, state=begin([0.0], [0] * 8))
        assert done[1].state.labels.tolist() == [UNPLACED, 0, 1, 0, 1, 1, 0, UNPLACED]
        assert done[2].state.labels.tolist() == [1, 0, 1, 0, 1, 1, 0, 0]

    def test_absolute_thresholds_are_the_paper_s(self, toy, train):
        """The whole rests, and the largest update from 0 is 1.5: not above 1.6, but above 1.4."""
        for eps2, clusters in ((1.6, 1), (1.4, 2)):
            text = f"sattler(eps1=0.4,eps2={eps2},relative=false,minimum=0)"
            done = train(text, toy, 2, fit=HALF, state=begin([0.0], [0] * 8))[-1]
            assert len(done.state.stack) == clusters

    def test_clients_count_the_same_unless_asked_otherwise(self, lines, simulator, train):
        sim = simulator(lines((1.0, 1.0, -1.0), (1, 4, 1)), "linear", threads=1)
        for text, mean in (("sattler", 1 / 3), ("sattler(weights=examples)", 4 / 6)):
            done = train(text, sim, 1, fit=HALF, state=begin([0.0], [0] * 3))[0]
            assert done.state.stack.params[0, 0] == pytest.approx(mean / 2)

    def test_impossible_values_are_refused(self):
        with pytest.raises(UsageError, match=r"eps1 is -1; it must be >= 0"):
            ct.sattler(eps1=-1)
        with pytest.raises(UsageError, match="minimum is -1; it must be at least 0"):
            ct.sattler(minimum=-1)
        with pytest.raises(UnknownName, match="did you mean 'single'"):
            ct.sattler(linkage="singl")

    def test_shuffled_clients_are_parted_alike(self, lines, simulator, train):
        order = np.random.default_rng(0).permutation(8)
        slopes = np.array(SLOPES)[order]
        sim = simulator(lines(slopes, (1,) * 8), "linear", threads=1)
        done = train("sattler(minimum=0)", sim, 5, fit=HALF, state=begin([0.0], [0] * 8))[-1]
        assert adjusted_rand_score(slopes, done.state.labels) == 1
        assert sorted(np.bincount(done.state.labels)) == [2, 2, 2, 2]

    def test_the_largest_update_is_remembered(self, toy, train):
        done = train("sattler", toy, 3, fit=replace(HALF, lr_decay=0.5), state=begin([0.0], [0] * 8))
        assert [step.state.memory.length for step in done] == pytest.approx([1.5] * 3)

    def test_one_long_update_early_in_the_run_does_not_stop_the_splits(self, toy, train):
        """Beyond the others, within the norm bound: what is measured by it would never again be large enough."""

        class Jumping:
            def __init__(self, inner):
                self.inner = inner

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def ask(self, task, sent, labels, clients, key):
                replies = self.inner.ask(task, sent, labels, clients, key)
                jump = (
                    5
                    * (replies.params - sent.rows.params[labels])
                    * ((replies.clients == 0) & (key.round == 0))[:, None]
                )
                return replace(replies, params=replies.params + jump.astype(replies.params.dtype))

        state = begin([0.0], [0] * 8)
        done = train("sattler(minimum=0)", Jumping(toy), 8, fit=HALF, state=state)
        assert not done[0].missing
        assert done[0].state.memory.length == pytest.approx(1.5)
        assert [len(step.state.stack) for step in done[:3]] == [1, 2, 3]


@pytest.mark.parametrize(("least", "clusters"), [("none", 2), (-1, 2), (0.74, 2), (0.76, 1)])
def test_halves_that_are_not_clear_are_left_together(least, clusters, lines, simulator, train):
    """Slopes 1, 1, 1, -1 at weight 1/2: the mean rests; silhouettes are 1, 1, 1 and 0 (a single client), mean 3/4."""
    sim = simulator(lines((1.0, 1.0, 1.0, -1.0), (1,) * 4), "linear", threads=1)
    state = replace(begin([0.5], [0] * 4), round=1)
    done = train(f"sattler(minimum=0,least={least})", sim, 1, fit=HALF, state=state)[0]
    assert done.state.labels.tolist() == [0, 0, 0, clusters - 1]


def test_a_cluster_of_which_only_two_can_be_reached_is_not_parted(toy, train):
    gone = dict.fromkeys(toy.names[2:], 1)
    leaving = Attended(toy, Attendance(toy.names, leaves=gone))
    done = train("sattler(minimum=0)", leaving, 4, fit=HALF, state=begin([0.0], [0] * 8))
    assert [len(step.state.stack) for step in done] == [1] * 4
