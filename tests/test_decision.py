"""From held-out losses to a decision: one model, clusters, local models, or none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.server.clustering.decision import CANNOT_TELL, CLUSTERS, GUESS, LOCAL, ONE, decide, gain

NOISE = np.random.default_rng(0).normal(size=(4, 20)) * 0.01


def losses_of(guess=1.0, one=0.5, local=0.6, clusters=None):
    """Losses of twenty clients around these means, with a little noise of their own."""
    means = {GUESS: guess, ONE: one, LOCAL: local, CLUSTERS: clusters}
    return {name: mean + NOISE[i] for i, (name, mean) in enumerate(means.items()) if mean is not None}


@pytest.mark.parametrize(
    ("means", "decision"),
    [
        ({}, ONE),
        ({"clusters": 0.55}, ONE),
        ({"clusters": 0.4}, CLUSTERS),
        ({"clusters": 0.4, "local": 0.4}, CLUSTERS),
        ({"clusters": 0.4, "local": 0.3}, LOCAL),
        ({"local": 0.3}, LOCAL),
        ({"clusters": 0.6, "local": 0.3}, LOCAL),
        ({"one": 1.0, "local": 1.2}, CANNOT_TELL),
        ({"one": 1.2, "local": 1.1, "clusters": 1.15}, CANNOT_TELL),
        ({"one": 1.2, "local": 1.1, "clusters": 0.7}, CLUSTERS),
    ],
)
def test_each_decision_follows_from_means_that_are_far_apart(means, decision):
    assert decide(losses_of(**means)).what == decision


def test_one_model_is_not_praised_where_a_gain_that_matters_is_possible():
    """Half of the clients gain a lot with local models, half lose as much: nobody can tell what the next would do."""
    found = losses_of(local=0.5)
    found[LOCAL] = found[ONE] + np.where(np.arange(20) % 2, 0.3, -0.31)
    assert decide(found).what == CANNOT_TELL
    assert "may matter or not" in decide(found).why


@pytest.mark.parametrize(("clusters", "decision"), [(0.46, ONE), (0.42, CLUSTERS)])
def test_a_sure_gain_of_less_than_a_tenth_does_not_matter(clusters, decision):
    """One model has a loss of 0.5 and has learnt 0.5, so that a gain of 0.04 is less than a tenth, and 0.08 is more."""
    found = losses_of(clusters=clusters)
    assert gain(found[CLUSTERS], found[ONE]).low > 0
    assert decide(found).what == decision


def test_few_clients_decide_nothing():
    found = {name: each[:3] for name, each in losses_of(clusters=0.4).items()}
    assert decide(found).what == CANNOT_TELL
    assert "3 clients are too few" in decide(found).why


def test_what_was_not_learnt_gives_no_advice_and_says_so():
    assert "not learnt anything" in decide(losses_of(one=1.0, local=1.0)).why


def test_a_gain_has_the_interval_of_the_paired_t_test():
    ours, theirs = NOISE[0] + 0.5, NOISE[1] + 0.52
    found = gain(ours, theirs)
    ends = stats.ttest_rel(theirs, ours).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert found.mean == pytest.approx((theirs - ours).mean())


@given(st.permutations(range(20)), st.sampled_from([0.3, 0.5, 0.7]), st.sampled_from([None, 0.3, 0.6]))
def test_the_order_of_clients_plays_no_part(order, local, clusters):
    found = losses_of(local=local, clusters=clusters)
    assert decide({name: each[list(order)] for name, each in found.items()}).what == decide(found).what


@given(st.integers(0, 10**6))
def test_clients_that_are_all_alike_are_seldom_split(seed):
    """Alternatives that are a little worse for everybody, as in iid data, never win."""
    rng = np.random.default_rng(seed)
    base = rng.normal(1.0, 0.2, size=30)
    losses = {GUESS: base + 1, ONE: base, LOCAL: base + rng.normal(0.1, 0.05, 30), CLUSTERS: base + 0.01}
    assert decide(losses).what == ONE
