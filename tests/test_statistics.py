"""Intervals and tests: coverage by simulation, and equal to independent calculations by hand or by scipy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.experiments import statistics
from coterie.experiments.statistics import (
    gain,
    gains_over_first,
    holm,
    interval_over_clients,
    interval_over_seeds,
    signed_rank_test,
)

SCORES = {
    "even": (lambda rng, n: rng.normal(0.8, 0.05, n), 0.8),
    "skewed accuracies": (lambda rng, n: rng.beta(8, 2, n), 0.8),
    "nearly all right": (lambda rng, n: rng.beta(19, 1, n), 0.95),
    "skewed errors": (lambda rng, n: rng.exponential(1.0, n), 1.0),
    "of 30 examples": (lambda rng, n: rng.binomial(30, rng.beta(8, 2, n)) / 30, 0.8),
}
"""Scores of clients of several shapes, and their mean."""


def coverage_over_clients(draw, mean, count, weigh, tries, seed):
    rng, held = np.random.default_rng(seed), 0
    for _ in range(tries):
        low, high = interval_over_clients(draw(rng, count), np.zeros(count), weigh(rng, count))
        held += low <= mean <= high
    return held / tries


@pytest.fixture
def fewer_samples(monkeypatch):
    monkeypatch.setattr(statistics, "SAMPLES", 300)


class TestCoverage:
    """A share of 0.95 of 150 tries has a standard error of 0.018; the slow check has 3,000 tries. Seeds are fixed."""

    @pytest.mark.parametrize("count", [10, 20])
    @pytest.mark.parametrize("shape", ["even", "nearly all right", "of 30 examples"])
    def test_of_means_over_clients(self, fewer_samples, shape, count):
        draw, mean = SCORES[shape]
        held = coverage_over_clients(draw, mean, count, lambda rng, n: rng.uniform(30, 300, n), 150, seed=count)
        assert 0.95 - 0.05 <= held <= 0.95 + 0.05

    @pytest.mark.slow
    @pytest.mark.parametrize("count", [10, 20, 50])
    @pytest.mark.parametrize("shape", SCORES)
    def test_of_means_over_clients_with_many_tries(self, shape, count):
        draw, mean = SCORES[shape]
        for weigh in (lambda rng, n: np.ones(n), lambda rng, n: rng.uniform(30, 300, n)):
            held = coverage_over_clients(draw, mean, count, weigh, 3000, seed=count)
            least = 0.91 if shape == "skewed errors" else 0.93  # exponential, of 10 clients that count unequally
            assert least <= held <= 0.975

    def test_the_plain_bootstrap_would_not_do(self):
        """The negative control: the interval that was here before, with 10 clients."""
        rng, held, (draw, mean) = np.random.default_rng(0), 0, SCORES["nearly all right"]
        for _ in range(200):
            values = draw(rng, 10)
            low, high = np.percentile(values[rng.integers(0, 10, (500, 10))].mean(axis=1), [2.5, 97.5])
            held += low <= mean <= high
        assert held / 200 < 0.92

    @pytest.mark.parametrize("count", [3, 5, 10])
    @pytest.mark.parametrize("shape", ["even", "mean of 40 skewed clients"])
    def test_of_means_over_seeds(self, shape, count):
        rng, tries = np.random.default_rng(count), 1000
        drawn = rng.normal(size=(tries, count)) if shape == "even" else rng.beta(8, 2, (tries, count, 40)).mean(axis=2)
        mean = 0.0 if shape == "even" else 0.8
        held = np.mean([low <= mean <= high for low, high in map(interval_over_seeds, drawn)])
        assert 0.93 <= held <= 0.97


class TestIntervals:
    @given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.booleans())
    def test_the_standard_error_is_that_of_influences_one_client_at_a_time(self, seed, count, squared):
        rng = np.random.default_rng(seed)
        ours, theirs, weights = rng.random(count), rng.random(count), rng.uniform(1, 9, count)

        def change(w):
            if squared:
                return np.sqrt((w * ours**2).sum() / w.sum()) - np.sqrt((w * theirs**2).sum() / w.sum())
            return (w * (ours - theirs)).sum() / w.sum()

        step = 1e-6
        shifted = [change(weights * (1 + step * (np.arange(count) == i))) for i in range(count)]
        influences = (np.array(shifted) - change(weights)) / step
        found = statistics._change(np.ones((1, count)), statistics._sums(ours, theirs, weights, squared), squared)
        assert found.value[0] == pytest.approx(change(weights))
        expected = np.sqrt((influences**2).sum() * count / (count - 1))
        assert found.error[0] == pytest.approx(expected, rel=1e-3, abs=1e-6)

    def test_few_or_very_many_equal_clients_have_students_interval(self):
        for count in (2, 5, 1001):
            values = np.random.default_rng(count).random(count)
            found = interval_over_clients(values, np.zeros(count), np.ones(count))
            expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
            assert tuple(found) == pytest.approx(expected)
        assert interval_over_clients(np.ones(1), np.zeros(1), np.ones(1)) is None

    @pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
    @pytest.mark.parametrize("count", [10, 40])
    def test_where_few_clients_differ_samples_without_them_do_not_stretch_the_interval(self, count, share):
        """Their standard error is that of rounding alone, and a change divided by it is anything."""
        rng = np.random.default_rng(count)
        for _ in range(40):
            theirs = rng.integers(20, 36, count) / 36
            ours = np.where(rng.random(count) < share, rng.integers(20, 36, count) / 36, theirs)
            low, high = interval_over_clients(ours, theirs, rng.integers(5, 300, count))
            assert -1 <= low <= high <= 1

    def test_clients_of_unequal_size_have_fewer_degrees_of_freedom(self):
        """Of five clients, so few that it is Student's t alone; by hand (1 + 1 + 1 + 1 + 4)^2 / (4 + 16) - 1 = 2.2."""
        values, weights = np.array([0.5, 0.6, 0.8, 0.9, 0.7]), np.array([1, 1, 1, 1, 4])
        mean = np.average(values, weights=weights)
        error = np.sqrt((weights**2 * (values - mean) ** 2).sum() * 5 / 4) / 8
        found = interval_over_clients(values, np.zeros(5), weights)
        assert tuple(found) == pytest.approx(stats.t.interval(0.95, 2.2, mean, error))

    def test_one_client_that_outweighs_all_others_says_little(self):
        values = np.random.default_rng(0).random(20)
        equal = interval_over_clients(values, np.zeros(20), np.ones(20))
        heavy = interval_over_clients(values, np.zeros(20), np.where(np.arange(20) == 3, 1000.0, 1.0))
        assert heavy.high - heavy.low > equal.high - equal.low or heavy.low <= values[3] <= heavy.high

    @given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
    def test_over_seeds_it_is_students(self, values):
        low, high = interval_over_seeds(values)
        if np.std(values) > 1e-9:
            expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
            assert (low, high) == pytest.approx(expected, abs=1e-9)
        assert interval_over_seeds(values[:1]) is None


class TestTests:
    @given(st.integers(0, 2**32 - 1), st.integers(6, 40))
    def test_clients_are_tested_by_signed_ranks(self, seed, count):
        rng = np.random.default_rng(seed)
        ours, theirs = rng.random(count), rng.random(count)
        assert signed_rank_test(ours, theirs) == pytest.approx(stats.wilcoxon(ours, theirs).pvalue)
        assert signed_rank_test(ours, theirs) == pytest.approx(signed_rank_test(theirs, ours))
        assert signed_rank_test(ours, ours) is None

    @settings(max_examples=40)
    @given(st.lists(st.integers(-3, 3), min_size=2, max_size=8).filter(any))
    def test_ties_and_zeros_of_few_clients_are_counted_as_scipy_counts_them(self, changes):
        ours = np.array(changes, float)
        wanted = stats.wilcoxon(ours, zero_method="pratt", method=stats.PermutationMethod()).pvalue
        assert signed_rank_test(ours, np.zeros(len(ours))) == pytest.approx(wanted, abs=1e-12)

    @pytest.mark.parametrize("count", [10, statistics.EVERY_SIGN + 1])
    def test_where_signs_are_no_longer_counted_scipy_s_own_choice_is_taken(self, count):
        ours = np.array([0.0, 1, 1, -1, 2, 2, 3, -2, 4, 5, 5, 6, 7, -6][:count])
        wanted = stats.wilcoxon(ours, zero_method="pratt").pvalue
        assert signed_rank_test(ours, np.zeros(count)) == pytest.approx(wanted, abs=1e-12)

    def test_clients_with_equal_scores_are_ranked_and_count_for_neither_side(self):
        change = np.array([0.0, 0.0, 0.0, 0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7])
        pratt, dropped = (stats.wilcoxon(change, zero_method=way).pvalue for way in ("pratt", "wilcox"))
        assert signed_rank_test(change + 0.5, np.full(10, 0.5)) == pytest.approx(pratt)
        assert abs(pratt - dropped) > 0.01

    def test_under_no_difference_a_twentieth_is_significant(self):
        rng = np.random.default_rng(0)
        found = [signed_rank_test(*rng.random((2, 15))) for _ in range(200)]
        assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.1

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
    def test_holm_is_by_steps_from_the_smallest(self, values):
        found, order = holm(values), np.argsort(values, kind="stable")
        steps = [min(1.0, (len(values) - rank) * values[i]) for rank, i in enumerate(order)]
        expected = dict(zip(order.tolist(), np.maximum.accumulate(steps).tolist(), strict=True))
        assert found == pytest.approx([expected[i] for i in range(len(values))])
        assert all(corrected >= raw for corrected, raw in zip(found, values, strict=True))

    def test_a_comparison_without_p_does_not_count(self):
        assert holm([None, 0.02, None, 0.04]) == [None, 0.04, None, 0.04]
        assert holm([]) == []


class TestGains:
    SCORES: ClassVar = {
        "first": [0.5, 0.6, 0.55],
        "a": [0.6, 0.72, 0.65],
        "b": [0.5, 0.59, 0.56],
        "lost": [0.5, None, 0.6],
    }

    def test_p_values_are_paired_by_seed_and_corrected_for_all_methods(self):
        found = gains_over_first(self.SCORES, 100.0)
        assert list(found) == ["a", "b"]
        raw = {name: stats.ttest_rel(self.SCORES[name], self.SCORES["first"]).pvalue for name in found}
        assert {name: each.p for name, each in found.items()} == pytest.approx(raw)
        assert found["a"].p_holm == pytest.approx(min(1, 2 * raw["a"]))
        assert found["b"].p_holm == pytest.approx(raw["b"])
        assert found["a"].low == pytest.approx(interval_over_seeds([10, 12, 10]).low)
        assert gains_over_first({"first": [None], "a": [0.5]}, 1.0) == {}

    def test_where_smaller_is_better_signs_and_wins_turn_round(self):
        larger, smaller = gain([1.0, 2.0], [2.0, 4.0]), gain([1.0, 2.0], [2.0, 4.0], -1.0)
        assert (larger.mean, larger.wins) == (-1.5, 0)
        assert (smaller.mean, smaller.wins) == (1.5, 2)
        assert (smaller.low, smaller.high) == pytest.approx((-larger.high, -larger.low))
        assert gain([1.0], [2.0]).low is None
