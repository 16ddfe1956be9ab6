"""k-medoids: optima of swaps, beside all choices of medoids and beside the package of that name."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

import kmedoids as package  # GPL-3.0-or-later: a development dependency, compared with here and used nowhere else
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from coterie.server.clustering import kmedoids as module
from coterie.server.clustering.candidate_order import _stream, candidate_order
from coterie.server.clustering.kmedoids import ROUNDING, build, kmedoids, swap


def loss(distances, medoids):
    return distances[list(medoids)].min(axis=0).sum()


def after_the_best_swap(distances, medoids):
    """The least loss within one swap, by trying every one."""
    kept = [set(medoids) - {gone} for gone in medoids]
    others = set(range(len(distances))) - set(medoids)
    return min(loss(distances, [*rest, new]) for rest in kept for new in others or medoids)


def partition(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def scattered(points, seed, dimensions=2):
    cloud = np.random.default_rng(seed).normal(size=(points, dimensions))
    return cdist(cloud, cloud)


def on_a_grid(points, seed, side=0.1):
    """Many equal distances, points that coincide, and sums that rounding tells apart."""
    places = np.random.default_rng(seed).integers(0, 4, size=(points, 2)) * side
    return cdist(places, places)


def of_whole_numbers(points, seed):
    """No two distances are equal, the triangle inequality need not hold, and no sum is rounded."""
    drawn = np.triu(np.random.default_rng(seed).permutation(points**2).reshape(points, points) + 1.0, 1)
    return drawn + drawn.T


def groups(sizes, seed):
    """Far groups of nearby points, and which point is in which."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    cloud = 20 * np.eye(len(sizes))[truth] + np.random.default_rng(seed).normal(size=(len(truth), len(sizes)))
    return cdist(cloud, cloud), truth


SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from([scattered, on_a_grid, of_whole_numbers])


@st.composite
def cases(draw, kinds=KINDS, least=3, most=24):
    """Distances of one of the kinds and a number of clusters from 2."""
    points = draw(st.integers(least, most))
    return draw(kinds)(points, draw(SEEDS)), draw(st.integers(2, min(points, 9)))


@st.composite
def starts(draw, kinds=KINDS):
    """Distances, medoids to start from, an order of candidates."""
    distances, clusters = draw(cases(kinds))
    rng = np.random.default_rng(draw(SEEDS))
    return distances, rng.choice(len(distances), clusters, replace=False), rng.permutation(len(distances))


class TestOptima:
    @given(cases(most=8), SEEDS)
    def test_small_cases_end_between_the_best_of_all_choices_and_the_best_within_one_swap(self, case, seed):
        distances, clusters = case
        found = kmedoids(distances, clusters, seed)
        least = min(loss(distances, chosen) for chosen in combinations(range(len(distances)), clusters))
        assert least * (1 - ROUNDING) <= found.loss
        assert found.loss <= after_the_best_swap(distances, found.medoids) * (1 + ROUNDING)

    @given(st.lists(st.integers(2, 3), min_size=2, max_size=3).filter(lambda sizes: sum(sizes) <= 8), SEEDS)
    def test_far_groups_are_found_with_the_best_of_all_choices_of_medoids(self, sizes, seed):
        distances, truth = groups(sizes, seed)
        found = kmedoids(distances, len(sizes), seed)
        least = min(loss(distances, chosen) for chosen in combinations(range(len(distances)), len(sizes)))
        assert found.loss == pytest.approx(least, rel=ROUNDING)
        assert partition(found.labels) == partition(truth)

    @given(cases(least=12, most=60), SEEDS)
    def test_no_swap_lowers_the_loss(self, case, seed):
        found = kmedoids(*case, seed)
        assert found.loss <= after_the_best_swap(case[0], found.medoids) * (1 + ROUNDING)

    @given(starts())
    def test_nor_from_any_single_start(self, start):
        found = swap(*start)
        assert found.loss <= after_the_best_swap(start[0], found.medoids) * (1 + ROUNDING)
        assert found.loss <= loss(start[0], start[1]) * (1 + ROUNDING)

    @given(cases(), SEEDS)
    def test_a_further_start_never_ends_higher(self, case, seed):
        losses = [kmedoids(*case, seed, random_starts=number).loss for number in range(4)]
        assert losses == sorted(losses, reverse=True)

    @given(KINDS, st.integers(1, 20), SEEDS)
    def test_one_medoid_has_the_least_sum_and_as_many_as_points_are_all_of_them(self, kind, points, seed):
        distances = kind(points, seed)
        assert kmedoids(distances, 1, seed).loss == pytest.approx(distances.sum(axis=1).min())
        assert kmedoids(distances, points, seed).medoids.tolist() == list(range(points))

    def test_the_greedy_start_takes_the_point_that_lowers_the_loss_most_each_time(self):
        distances = scattered(30, seed=4)
        chosen = build(distances, 6).tolist()
        for number, medoid in enumerate(chosen):
            losses = {new: loss(distances, [*chosen[:number], new]) for new in set(range(30)) - set(chosen[:number])}
            assert medoid == min(losses, key=losses.get)

    def test_blocks_of_candidates_end_where_one_candidate_at_a_time_does(self):
        """Among 400 points, blocks are of 10 candidates at first and grow."""
        distances, order = scattered(400, seed=1), np.random.default_rng(2).permutation(400)
        medoids = list(order[:7])
        found = swap(distances, np.array(medoids), order)
        idle, turn = 0, 0
        while idle < 400:
            new, turn = order[turn % 400], turn + 1
            losses = [loss(distances, [*medoids[:m], new, *medoids[m + 1 :]]) for m in range(7)]
            helps = new not in medoids and min(losses) < loss(distances, medoids) * (1 - ROUNDING)
            idle = 0 if helps else idle + 1
            if helps:
                medoids[int(np.argmin(losses))] = new
        assert found.medoids.tolist() == sorted(medoids)


class TestSinglePrecision:
    """Candidates are ruled out in single precision: never one that helps, and at an optimum nearly all."""

    @given(starts(), st.sampled_from([0.0, ROUNDING]), st.sampled_from([1.0, 1e-300, 1e-30, 1e30, 1e300]))
    def test_whoever_helps_is_evaluated_exactly(self, start, least, unit):
        distances, medoids, order = start
        distances = distances * unit
        state = module._state(medoids, distances[medoids])
        changes, _ = module._exchanges(distances[order], state)
        helps = order[(changes < -least * state.loss) & ~np.isin(order, medoids)]
        kept = order[module._may_help(module.in_single(distances), state, order, least)]
        assert set(helps.tolist()) <= set(kept.tolist())

    def test_at_an_optimum_few_are(self):
        distances = scattered(400, seed=1)
        found = kmedoids(distances, 5, seed=1)
        state = module._state(found.medoids, distances[found.medoids])
        assert len(module._may_help(module.in_single(distances), state, np.arange(400), 0.0)) < 4

    @given(cases(), st.sampled_from([1e-300, 1e300]))
    def test_units_do_not_matter(self, case, unit):
        distances, clusters = case
        unit = 2.0 ** np.round(np.log2(unit))  # a power of two: no rounding
        assert build(distances * unit, clusters).tolist() == build(distances, clusters).tolist()
        one, other = (kmedoids(matrix, clusters, seed=1) for matrix in (distances, distances * unit))
        assert one.medoids.tolist() == other.medoids.tolist()


class TestLabels:
    @given(cases(), SEEDS)
    def test_every_point_is_with_its_nearest_medoid_the_lowest_of_equals(self, case, seed):
        distances, clusters = case
        found = kmedoids(distances, clusters, seed)
        assert sorted(set(found.medoids.tolist())) == found.medoids.tolist()
        for point, label in enumerate(found.labels):
            row = distances[point, found.medoids]
            assert label == min(np.flatnonzero(row == row.min()))
        assert found.loss == pytest.approx(loss(distances, found.medoids))

    def test_a_point_between_two_medoids_goes_to_the_lower_one(self):
        places = np.array([0.0, 0.0, 0.0, 2.0, 4.0, 4.0, 4.0])
        found = kmedoids(np.abs(np.subtract.outer(places, places)), 2, seed=1)
        assert found.labels.tolist() == [0, 0, 0, 0, 1, 1, 1]

    def test_points_that_coincide_stay_together_though_there_are_more_medoids_than_places(self):
        places = np.array([0.0, 5.0, 0.0, 5.0, 0.0])
        found = kmedoids(np.abs(np.subtract.outer(places, places)), 4, seed=1)
        assert (len(found.medoids), found.loss) == (4, 0)
        assert partition(found.labels) == {frozenset({0, 2, 4}), frozenset({1, 3})}


class TestPermutations:
    @given(starts(kinds=st.just(of_whole_numbers)), SEEDS)
    def test_swaps_do_not_depend_on_the_numbers_of_points(self, start, seed):
        """The same start and the same order of candidates under other numbers: without rounding, the same medoids."""
        distances, medoids, order = start
        renamed = np.random.default_rng(seed).permutation(len(distances))
        old, new = np.argsort(renamed), swap(distances, medoids, order)
        other = swap(distances[np.ix_(old, old)], renamed[medoids], renamed[order])
        assert sorted(renamed[new.medoids]) == other.medoids.tolist()
        assert new.loss == other.loss
        assert partition(other.labels[renamed]) == partition(new.labels)

    @given(st.lists(st.integers(3, 9), min_size=2, max_size=5), SEEDS)
    def test_nor_do_far_groups(self, sizes, seed):
        distances, _ = groups(sizes, seed)
        order = np.random.default_rng(seed).permutation(len(distances))
        one = kmedoids(distances, len(sizes), seed)
        other = kmedoids(distances[np.ix_(order, order)], len(sizes), seed)
        assert sorted(order[other.medoids]) == one.medoids.tolist()
        assert partition(one.labels[order]) == partition(other.labels)


class TestSeeds:
    @given(cases(), SEEDS)
    def test_a_seed_repeats_and_the_matrix_is_left_as_it_is(self, case, seed):
        distances, clusters = case
        kept = distances.copy()
        one, other = kmedoids(distances, clusters, seed), kmedoids(distances, clusters, seed)
        assert (one.medoids.tolist(), one.labels.tolist(), one.loss) == (
            other.medoids.tolist(),
            other.labels.tolist(),
            other.loss,
        )
        assert np.array_equal(distances, kept)

    def test_integers_single_precision_and_columns_first_are_taken(self):
        whole = of_whole_numbers(20, seed=3)
        wanted = kmedoids(whole, 3, seed=1).labels.tolist()
        for given_as in (whole.astype(np.int64), whole.astype(np.float32), np.asfortranarray(whole)):
            assert kmedoids(given_as, 3, seed=1).labels.tolist() == wanted


def stops_short(distances, found):
    """Whether the package stopped at ties before an optimum, which it does now and then."""
    return after_the_best_swap(distances, found.medoids.tolist()) < found.loss * (1 - ROUNDING)


def counted(*start):
    """Where swaps lead, after how many swaps and passes."""
    with (
        patch.object(module, "_swapped", wraps=module._swapped) as swaps,
        patch.object(module, "_one_pass", wraps=module._one_pass) as passes,
    ):
        return swap(*start), swaps.call_count, passes.call_count


class TestBesideThePackage:
    @given(cases())
    def test_the_greedy_start_is_the_same_bit_for_bit(self, case):
        """In ties too. Where nothing is left to lower, the package stops with fewer medoids."""
        theirs = package.pam_build(*case).medoids.tolist()
        assert build(*case).tolist()[: len(theirs)] == theirs
        assert len(theirs) == case[1] or loss(case[0], theirs) == 0

    @given(starts())
    def test_swaps_from_the_same_start_end_at_the_same_medoids_bit_for_bit(self, start):
        """In ties too. Labels are the same where no point is as near to two medoids."""
        distances, medoids, _ = start
        theirs = package.fasterpam(distances, medoids.astype(np.uint64), n_cpu=1)
        ours, swaps, passes = counted(distances, medoids, np.arange(len(distances)))
        if stops_short(distances, theirs):
            assert ours.loss < theirs.loss
        else:
            assert (ours.medoids.tolist(), ours.loss) == (sorted(theirs.medoids.tolist()), theirs.loss)
            assert swaps == theirs.n_swap
            assert passes <= theirs.n_iter + 1
            near = np.sort(distances[ours.medoids], axis=0)
            assert partition(ours.labels) == partition(theirs.labels) or (near[0] == near[1]).any()

    @given(cases(kinds=st.sampled_from([scattered, of_whole_numbers]), most=60), SEEDS)
    def test_the_best_of_five_starts_is_the_same_bit_for_bit(self, case, seed):
        """Its random starts, its orders of candidates, its sums."""
        theirs = [package.fasterpam(*case, init="build", random_state=seed, n_cpu=1)]
        theirs += [package.fasterpam(*case, init="random", random_state=seed + start, n_cpu=1) for start in range(4)]
        best, ours = min(theirs, key=lambda one: one.loss), kmedoids(*case, seed)
        if any(stops_short(case[0], one) for one in theirs):
            assert ours.loss <= best.loss
        else:
            assert (ours.medoids.tolist(), ours.loss) == (sorted(best.medoids.tolist()), best.loss)
            assert partition(ours.labels) == partition(best.labels)


class TestOrderOfCandidates:
    @given(st.integers(1, 200), SEEDS)
    def test_it_is_an_order_of_all_points_and_another_for_another_seed(self, points, seed):
        order = candidate_order(points, seed).tolist()
        assert sorted(order) == list(range(points))
        assert points < 20 or order != candidate_order(points, seed + 1).tolist()

    @pytest.mark.parametrize("points", [3, 11, 12, 40])
    def test_every_point_comes_first_about_equally_often(self, points):
        first = np.bincount([candidate_order(points, seed)[0] for seed in range(40 * points)], minlength=points)
        assert 15 < first.min() <= first.max() < 70

    @pytest.mark.parametrize("points", [5, 10, 11, 12, 13, 100])
    def test_swaps_are_as_many_as_the_package_makes_in_its_order(self, points):
        for seed in range(40):
            distances = of_whole_numbers(points, seed)
            theirs = package.fasterpam(distances, 3, init="random", random_state=seed, n_cpu=1)
            start = np.random.RandomState(seed).choice(points, 3, replace=False)
            ours, swaps, _ = counted(distances, start, candidate_order(points, seed))
            assert (ours.medoids.tolist(), swaps) == (sorted(theirs.medoids.tolist()), theirs.n_swap)

    @pytest.mark.parametrize("seed", [20733, 20977, 31866])
    def test_words_on_the_edge_are_drawn_from_as_the_package_does(self, seed):
        """Among 50,000 seeds these are of the few for which a second word is drawn; it moves 1,500 points' order."""
        distances = scattered(1500, seed=0)
        theirs = package.fasterpam(distances, 10, init="random", random_state=seed, n_cpu=1)
        start = np.random.RandomState(seed).choice(1500, 10, replace=False)
        ours = swap(distances, start, candidate_order(1500, seed))
        assert (ours.medoids.tolist(), ours.loss) == (sorted(theirs.medoids.tolist()), theirs.loss)

    def test_the_stream_is_chacha_with_twelve_rounds(self):
        """The first words for a key of zeros, test vector TC1 of draft-strombergson-chacha-test-vectors."""
        words = _stream(np.zeros(8, dtype=np.uint32), 16).astype("<u4").tobytes()
        assert words.hex().startswith("9bf49a6a0755f953811fce125f2683d5")
