"""Clusterers of a distance matrix: all by one contract, then what each alone must get right."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cut_tree
from scipy.spatial.distance import cdist
from sklearn.cluster import AffinityPropagation, MeanShift
from sklearn.metrics import adjusted_rand_score, silhouette_score

from coterie.errors import UnknownName, UsageError
from coterie.seeding import Key
from coterie.server.clustering import kmedoids
from coterie.server.clustering import methods as raw_clusters
from coterie.server.clustering import number_of_clusters as how_many
from coterie.server.clustering.clusterers import clusterers, renumbered, settled
from coterie.server.clustering.number_of_clusters import (
    by_gap,
    by_silhouette,
    clearest,
    scaled,
    silhouette,
    spread,
)
from coterie.textforms import parse

KEY = Key(1, 0)
NUMBERED = ("kmedoids", "agglomerative", "kmeans", "spectral")
EVERY = pytest.mark.parametrize("text", [*clusterers, *(f"{name}(3)" for name in NUMBERED), "kmedoids(by=gap)"])


def between(points):
    points = np.asarray(points, dtype=float).reshape(len(points), -1)
    return cdist(points, points)


@pytest.fixture(scope="module")
def groups():
    """24 points in three groups of 8, in a random order, and the truth."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]], 8, axis=0)
    order = rng.permutation(24)
    return between((centres + 0.3 * rng.normal(size=(24, 2)))[order]), order // 8


@EVERY
def test_every_clusterer_finds_three_groups(text, groups):
    distances, truth = groups
    assert adjusted_rand_score(truth, clusterers.build(text)(distances, KEY)) == 1


@EVERY
def test_clusters_are_numbered_by_their_first_members_and_labels_stay_with_their_rows(text, groups):
    distances, _ = groups
    labels = clusterers.build(text)(distances, KEY)
    assert labels.tolist() == renumbered(labels).tolist()
    order = np.random.default_rng(1).permutation(24)
    shuffled = clusterers.build(text)(distances[np.ix_(order, order)], KEY)
    assert adjusted_rand_score(labels[order], shuffled) == 1


@EVERY
def test_the_same_key_repeats_and_the_matrix_is_left_as_it_is(text, groups):
    distances = groups[0].copy()
    one, other = (clusterers.build(text)(distances, KEY) for _ in range(2))
    assert one.tolist() == other.tolist()
    assert np.array_equal(distances, groups[0])


@EVERY
@pytest.mark.parametrize("count", [1, 2, 5])
def test_points_that_coincide_are_one_cluster(text, count):
    assert clusterers.build(text)(np.zeros((count, count)), KEY).tolist() == [0] * count


@given(
    st.sampled_from([*clusterers, "kmedoids(2)", "agglomerative(cut=1)", "hdbscan(apart=true)"]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9),
)
def test_whatever_the_points_every_row_gets_a_number_without_gaps(text, points):
    labels = clusterers.build(text)(between(points), KEY)
    assert labels.shape == (len(points),)
    assert set(labels) == set(range(labels.max() + 1))


@pytest.mark.parametrize("name", NUMBERED)
def test_so_many_clusters_as_asked(name, groups):
    for count in (1, 2, 5):
        assert clusterers.build(f"{name}({count})")(groups[0], KEY).max() + 1 == count


def test_no_clusterer_imports_the_package_under_the_gpl():
    code = (
        "import sys, numpy as np, coterie.cli.main; from coterie.seeding import Key;"
        "from coterie.server.clustering.clusterers import clusterers;"
        "[clusterers.build(name)(1 - np.eye(6), Key(1, 0)) for name in clusterers]; sys.exit('kmedoids' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_k_medoids_does_without_that_package(groups, monkeypatch):
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    assert adjusted_rand_score(groups[1], clusterers.build("kmedoids(3)")(groups[0], KEY)) == 1


def test_k_medoids_has_the_greedy_start_and_four_different_random_ones(groups, monkeypatch):
    asked, plain = [], kmedoids.swap
    monkeypatch.setattr(kmedoids, "swap", lambda *given: asked.append(given[1].tolist()) or plain(*given))
    clusterers.build("kmedoids(3)")(groups[0], KEY)
    assert asked[0] == kmedoids.build(groups[0], 3).tolist()
    assert len(asked) == len({tuple(sorted(start)) for start in asked}) == 5


@pytest.mark.parametrize("seed", [3, 11, 12, 18, 25, 30])
def test_k_medoids_reaches_the_least_sum_of_all_choices_of_medoids(seed):
    """From the greedy start alone it would not, on any of these."""
    distances = between(np.random.default_rng(seed).normal(size=(12, 2)))
    labels = clusterers.build("kmedoids(3)")(distances, KEY)
    reached = sum(distances[np.ix_(g, g)].sum(axis=1).min() for g in (np.flatnonzero(labels == k) for k in range(3)))
    least = min(distances[:, list(chosen)].min(axis=1).sum() for chosen in combinations(range(12), 3))
    assert reached == pytest.approx(least)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("kmedoids(2)", {(0, 1), (1, 2), (3, 4)}), ("agglomerative(2)", {(0, 1), (0, 2), (1, 2), (3, 4)})],
)
def test_clusters_hang_on_the_distances_to_medoids_or_on_all_inside(text, wanted):
    """Points at 0, 1, 3 around the one at 1, and at 20, 22 where the first is the medoid."""
    distances = between([0, 1, 3, 20, 22])
    ties = clusterers.build(text).ties(distances, np.array([0, 0, 0, 1, 1]))
    assert np.array_equal(ties, ties.T)
    assert {(int(i), int(j)) for i, j in np.argwhere(ties) if i < j} == wanted


def test_each_of_three_clusters_hangs_on_its_own_medoid():
    ties = clusterers.build("kmedoids(3)").ties(between([0, 1, 3, 20, 22, 50]), np.array([0, 0, 0, 1, 1, 2]))
    assert {(int(i), int(j)) for i, j in np.argwhere(ties) if i <= j} == {
        (0, 1),
        (1, 1),
        (1, 2),
        (3, 3),
        (3, 4),
        (5, 5),
    }


@EVERY
def test_nothing_is_drawn_from_the_generator_of_everybody(text, groups):
    before = np.random.get_state()[1].tolist(), np.random.get_state()[2]
    clusterers.build(text)(groups[0], KEY)
    assert (np.random.get_state()[1].tolist(), np.random.get_state()[2]) == before


@pytest.mark.parametrize(("text", "least"), [("kmedoids(4)", 4), ("kmedoids", 1), ("hdbscan", 1)])
def test_so_many_points_are_needed(text, least):
    assert clusterers.build(text).least_points == least


def test_mean_shift_tries_twelve_widths_from_near_rows_to_the_farthest(groups, monkeypatch):
    """Each is the same multiple of the one before; the twelfth would be followed by the largest distance of rows."""
    widths, plain = [], raw_clusters.peaks
    monkeypatch.setattr(raw_clusters, "peaks", lambda rows, width, *rest: widths.append(width) or plain(rows, width))
    clusterers.build("meanshift")(groups[0], KEY)
    apart = sorted(np.linalg.norm(a - b) for a, b in combinations(groups[0], 2))
    near = np.quantile(apart, 0.02)
    np.testing.assert_allclose(widths, [near * (apart[-1] / near) ** (i / 12) for i in range(12)])


def test_where_most_points_coincide_spectral_affinities_have_a_width_of_one(monkeypatch):
    seen, plain = [], raw_clusters._labels
    monkeypatch.setattr(raw_clusters, "_labels", lambda method, m: (seen.append(m), plain(method, m))[1])
    clusterers.build("spectral(2)")(between([0, 0, 0, 0, 3]), KEY)
    assert seen[0][0].tolist() == pytest.approx([1, 1, 1, 1, np.exp(-4.5)])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("agglomerative(cut=1,linkage=single)", [0, 0, 0, 0, 1]),
        ("agglomerative(cut=1,linkage=complete)", [0, 0, 1, 1, 2]),
        ("agglomerative(cut=1.9,linkage=complete)", [0, 0, 1, 1, 2]),
        ("agglomerative(cut=2,linkage=average)", [0, 0, 0, 0, 1]),
        ("agglomerative(cut=1.99,linkage=average)", [0, 0, 1, 1, 2]),
        ("agglomerative(cut=100)", [0] * 5),
        ("agglomerative(cut=0)", [0, 1, 2, 3, 4]),
        ("agglomerative(2,linkage=single)", [0, 0, 0, 0, 1]),
        ("dbscan(eps=1)", [0] * 5),
        ("dbscan(eps=1,apart=true)", [0, 0, 0, 0, 1]),
        ("dbscan(eps=0.5)", [0] * 5),
    ],
)
def test_points_at_0_1_2_3_and_10_by_hand(text, wanted):
    """Complete linkage merges {0,1} and {2,3} at 1, these at 3; average these at 2, the mean of 2, 3, 1 and 2."""
    assert clusterers.build(text)(between([0, 1, 2, 3, 10]), KEY).tolist() == wanted


def test_ward_from_distances_is_the_cut_of_least_squares():
    points = np.array([0.0, 1.0, 5.0, 6.5, 20.0])
    labels = clusterers.build("agglomerative(3,linkage=ward)")(between(points), KEY)

    def squares(found):
        return sum(((points[found == k] - points[found == k].mean()) ** 2).sum() for k in set(found))

    every = [np.array(found) for found in product(range(3), repeat=5) if len(set(found)) == 3]
    assert squares(labels) == pytest.approx(min(map(squares, every)))


def test_affinity_propagation_is_given_similarities(groups, monkeypatch):
    """A known public slip passes it distances; then the farthest would be the most alike."""
    seen, plain = [], raw_clusters._labels
    monkeypatch.setattr(raw_clusters, "_labels", lambda method, m: (seen.append(m), plain(method, m))[1])
    distances, truth = groups
    labels = clusterers.build("affinity")(distances, KEY)
    assert np.array_equal(seen[0], -distances)
    slip = plain(AffinityPropagation(affinity="precomputed", random_state=0), distances)
    assert adjusted_rand_score(truth, labels) == 1 > adjusted_rand_score(truth, slip)


@pytest.mark.parametrize("text", ["dbscan", "hdbscan", "optics"])
def test_the_methods_of_density_are_told_that_they_are_given_distances(text, groups, monkeypatch):
    """Rows as features would be another matrix."""
    seen, plain = [], raw_clusters._labels
    monkeypatch.setattr(
        raw_clusters, "_labels", lambda method, m: (seen.append((method.metric, m)), plain(method, m))[1]
    )
    clusterers.build(text)(groups[0], KEY)
    assert [metric for metric, _ in seen] == ["precomputed"]
    assert np.array_equal(seen[0][1], groups[0])


SCALE_FREE = ("agglomerative", "kmedoids", "kmeans", "meanshift", "affinity", "hdbscan", "spectral")


@pytest.mark.parametrize("text", SCALE_FREE)
@pytest.mark.parametrize("scale", [1e-9, 30.0])
def test_what_needs_no_threshold_does_not_depend_on_the_unit_of_distance(text, scale, groups):
    clusterer = clusterers.build(text)
    for distances in (groups[0], between(np.random.default_rng(4).normal(size=(15, 6)))):
        assert clusterer(scale * distances, KEY).tolist() == clusterer(distances, KEY).tolist()


@pytest.mark.parametrize("text", SCALE_FREE[:-1])
@pytest.mark.parametrize("seed", range(3))
def test_one_cloud_in_many_dimensions_is_one_cluster(text, seed):
    cloud = between(np.random.default_rng(seed).normal(size=(30, 50)))
    assert not clusterers.build(text)(cloud, KEY).any()


def test_without_the_least_silhouette_affinity_and_mean_shift_part_a_cloud():
    cloud = between(np.random.default_rng(0).normal(size=(30, 50)))
    for text in ("affinity(least=-1)", "meanshift(least=-1)", "meanshift(share=0.01)"):
        assert clusterers.build(text)(cloud, KEY).any()


def test_mean_shift_finds_groups_whose_share_it_was_not_told(groups):
    distances, truth = groups
    assert adjusted_rand_score(truth, clusterers.build("meanshift(share=0.6)")(distances, KEY)) < 1
    assert adjusted_rand_score(truth, clusterers.build("meanshift")(distances, KEY)) == 1
    near = np.repeat(10.0 * np.arange(5), 4) + np.tile([0.0, 0.1, 0.2, 0.3], 5)
    assert clusterers.build("meanshift")(between(near), KEY).tolist() == np.repeat(np.arange(5), 4).tolist()


def test_all_noise_is_no_split():
    far = between(3.0 ** np.arange(6))
    assert clusterers.build("dbscan(eps=0.1)")(far, KEY).tolist() == [0] * 6
    assert clusterers.build("dbscan(eps=0.1,apart=true)")(far, KEY).tolist() == [0] * 6


def test_noise_joins_the_cluster_of_least_mean_distance():
    """The point 6 is nearer to 4 than to 9, yet {0, 4} is farther on the whole (4) than {9, 10} (3.5)."""
    assert settled(np.array([0, 0, 1, 1, -1]), between([0, 4, 9, 10, 6]), apart=False)[-1] == 1


def test_hdbscan_wants_a_fifth_of_all_points_in_a_cluster():
    """Of 20 points a cluster needs 4: two pairs far away from two clouds of 8 are noise and join them."""
    rng = np.random.default_rng(0)
    points = [*rng.normal(size=8), *(50 + rng.normal(size=8)), -9.0, -9.1, 60.0, 60.1]
    assert clusterers.build("hdbscan")(between(points), KEY).max() == 1


@pytest.mark.parametrize("linkage", ["average", "complete", "single", "ward"])
@pytest.mark.parametrize("equal", [False, True])
def test_merged_clusters_are_those_of_scipy_also_where_heights_are_equal(linkage, equal):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        matrix = between(rng.integers(0, 4, (20, 2)).astype(float) if equal else rng.normal(size=(20, 2)))
        tree = raw_clusters._tree(matrix, linkage)
        for count in (2, 3, 7, 19, 20):
            wanted = cut_tree(tree, n_clusters=count)[:, 0]
            assert raw_clusters.merged(matrix, count, 0, linkage).tolist() == wanted.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_the_silhouette_is_that_of_scikit_learn_bit_for_bit(seed):
    """Of clusters of one, of noise, of points that coincide."""
    rng = np.random.default_rng(seed)
    matrix = between(rng.integers(0, 3, (15, 2)).astype(float) if seed % 2 else rng.normal(size=(15, 2)))
    labels = rng.integers(-1, 2 + seed // 4, 15)
    assert silhouette(matrix, labels) == silhouette_score(matrix, labels, metric="precomputed")


class TestHowMany:
    def cloud(self, dimensions=40):
        return between(np.random.default_rng(2).normal(size=(20, dimensions)))

    @pytest.mark.parametrize("by", ["silhouette", "gap"])
    def test_one_cloud_is_one_cluster(self, by):
        assert clusterers.build(f"kmedoids(by={by})")(self.cloud(), KEY).tolist() == [0] * 20

    @pytest.mark.parametrize("seed", range(4))
    def test_the_gap_takes_the_fewest_within_an_error(self, seed):
        points = np.random.default_rng(seed).uniform(size=(20, 2))
        assert clusterers.build("kmedoids(by=gap,most=6)")(between(points), KEY).max() == 0

    def test_a_small_cloud_in_few_dimensions_needs_a_higher_threshold(self):
        assert clusterers.build("kmedoids")(self.cloud(2), KEY).max() > 0
        assert clusterers.build("kmedoids(least=0.6)")(self.cloud(2), KEY).max() == 0

    @pytest.mark.parametrize("by", ["silhouette", "gap"])
    def test_most_is_the_most(self, by, groups):
        assert clusterers.build(f"kmedoids(most=2,by={by})")(groups[0], KEY).max() <= 1
        assert clusterers.build(f"kmedoids(most=1,by={by})")(groups[0], KEY).max() == 0

    def test_a_clustering_that_parts_nothing_or_everything_is_never_the_clearest(self):
        clusterings = [np.zeros(4, int), np.arange(4), np.array([0, 0, 1, 1])]
        assert clearest(between([0, 1, 10, 11]), clusterings, 0.25) == 2
        assert clearest(between([0, 1, 10, 11]), clusterings[:2], 0.25) is None

    def test_the_gap_s_standard_error_by_hand(self, monkeypatch):
        """Gaps 0.85, 0.88 and 1; the largest is off by 0.1 in two references, so by 0.1 sqrt(1 + 1/2) = 0.122."""
        off, drawn, distances = {1: 0.0, 2: 0.05, 3: 0.1}, [], between(range(5))
        monkeypatch.setattr(how_many, "REFERENCES", 2)

        def made_up(matrix, labels):
            count = int(labels[0])
            if matrix is distances:
                return -{1: 0.85, 2: 0.88, 3: 1.0}[count]
            drawn.extend([] if any(matrix is one for one in drawn) else [matrix])
            return off[count] if matrix is drawn[0] else -off[count]

        monkeypatch.setattr(how_many, "spread", made_up)
        assert by_gap(distances, 3, lambda matrix, count: np.full(len(matrix), count), KEY) == 2
        assert all(1 < matrix.max() < 4 for matrix in drawn), "points in a box as long as the data"

    def test_the_highest_silhouette_wins_and_ties_go_to_the_fewest(self):
        distances = between([0, 0, 10, 10])
        tried = []

        def cut(matrix, count):
            tried.append(count)
            return np.array([0, 0, 1, 1]) if count != 3 else np.array([0, 1, 2, 2])

        assert by_silhouette(distances, 9, cut) == 2
        assert tried == [2, 3]

    def test_spread_is_the_sum_of_squares_about_the_means(self):
        points = np.array([0.0, 2.0, 7.0, 7.0, 10.0])
        labels = np.array([0, 0, 1, 1, 1])
        wanted = sum(((points[labels == k] - points[labels == k].mean()) ** 2).sum() for k in (0, 1))
        assert spread(between(points), labels) == pytest.approx(np.log(wanted))

    def test_scaling_gives_back_the_distances(self):
        distances = between(np.random.default_rng(0).normal(size=(7, 3)))
        points = scaled(distances)
        assert points.shape == (7, 3)
        np.testing.assert_allclose(cdist(points, points), distances, atol=1e-9)

    def test_the_gap_of_the_first_drop_would_miss_three_equidistant_groups(self, groups):
        def cut(matrix, count):
            return clusterers.build(f"kmedoids({count})")(matrix, KEY)

        assert by_gap(groups[0], 8, cut, KEY) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kmedoids(0)", "clusters is 0; it must be at least 1, or auto"),
        ("kmedoids(many)", "clusters is many; it must be at least 1, or auto"),
        ("kmedoids(most=0)", "most is 0"),
        ("kmedoids(by=elbow)", "unknown way to find the number of clusters 'elbow'"),
        ("kmedoids(2.5)", "it must be a whole number or a word"),
        ("agglomerative(linkage=averge)", "did you mean 'average'"),
        ("agglomerative(cut=-1)", r"cut is -1; it must be >= 0"),
        ("dbscan(eps=0)", r"eps is 0; it must be > 0"),
        ("hdbscan(members=1)", "members is 1; it must be at least 2, or none"),
        ("optics(members=0)", "members is 0"),
        ("affinity(damping=0.2)", r"damping is 0.2; it must be in \[0.5, 1\)"),
        ("meanshift(bandwidth=wide)", "bandwidth is wide; it must be sklearn, or none"),
        ("meanshift(share=0.5,bandwidth=sklearn)", "one of them is the width: leave the other out"),
        ("meanshift(share=0)", r"share is 0; it must be in \(0, 1\]"),
        ("kmedoid", "did you mean 'kmedoids'"),
    ],
)
def test_what_is_wrong_is_named_with_its_limit(text, told):
    with pytest.raises(UsageError, match=told):
        clusterers.build(text)


@pytest.mark.parametrize(
    "text", ["hdbscan(members=2)", "optics(2)", "affinity(damping=0.5)", "meanshift(share=1)", "agglomerative(cut=0)"]
)
def test_the_limit_itself_is_accepted(text, groups):
    assert len(clusterers.build(text)(groups[0], KEY)) == 24


def test_a_clusterer_is_a_value():
    assert clusterers.build("hdbscan(members=3)") == clusterers.build("hdbscan(3)") != clusterers.build("hdbscan(4)")
    with pytest.raises(AttributeError):
        clusterers.build("kmedoids").clusters = 3


class TestCallsInsideCalls:
    def test_an_inner_call_stays_text(self):
        (call,) = parse("lcfl(agglomerative(cut=0.5,linkage=single),warmup=2)")
        assert call.args == ("agglomerative(cut=0.5,linkage=single)",)
        assert call.kwargs == (("warmup", 2),)
        assert str(call) == "lcfl(agglomerative(cut=0.5,linkage=single),warmup=2)"

    def test_what_follows_is_still_read(self):
        first, second = parse("lcfl(clusterer=dbscan(eps=1)) + cks(strength=0.1)")
        assert first.kwargs == (("clusterer", "dbscan(eps=1)"),)
        assert second.name == "cks"

    @pytest.mark.parametrize("text", ["lcfl(clusterer=dbscan(eps=1)", "lcfl(", "a(b(c)"])
    def test_a_parenthesis_that_is_never_closed_is_an_error(self, text):
        with pytest.raises(UsageError, match="never closed"):
            parse(text)

    def test_an_unknown_inner_name_is_an_unknown_clusterer(self):
        from coterie.algorithms import build_algorithm

        with pytest.raises(UnknownName, match="unknown clusterer 'dbskan'; did you mean 'dbscan'"):
            build_algorithm("lcfl(clusterer=dbskan(eps=1))")


def test_the_published_mean_shift_is_that_of_scikit_learn():
    """Its own estimate of the width takes two groups for one where the width of the clearest clusters does not."""
    rng = np.random.default_rng(0)
    for centres in ([0.0, 0.5], [0.0, 3.0, 9.0]):
        points = np.concatenate([rng.normal(c, 0.3, 8) for c in centres])
        distances = np.abs(np.subtract.outer(points, points))
        found = clusterers.build("meanshift(bandwidth=sklearn)")(distances, KEY)
        assert adjusted_rand_score(MeanShift().fit(distances).labels_, found) == 1


@given(st.integers(0, 10_000), st.integers(2, 30), st.floats(0.02, 3.0))
def test_all_points_at_once_climb_as_one_after_the_other_in_scikit_learn(seed, count, share):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 2)) + 3 * rng.integers(3, size=(count, 1))
    matrix = cdist(points, points)
    width = share * matrix[np.triu_indices(count, 1)].mean()
    assert adjusted_rand_score(MeanShift(bandwidth=width).fit(matrix).labels_, raw_clusters.peaks(matrix, width)) == 1


@pytest.mark.parametrize("name", ["dbscan", "hdbscan", "optics"])
def test_noise_may_stay_apart_in_all_that_have_noise(name):
    assert [clusterers.build(f"{name}(apart={word})").apart for word in ("true", "false")] == [True, False]
