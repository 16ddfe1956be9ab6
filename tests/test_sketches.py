"""Many clients: sketches, samples and landmarks in the place of all pairs. The exact methods are the reference."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import coterie as ct
from coterie.errors import UsageError
from coterie.experiments.settings import Settings
from coterie.files import read_toml
from coterie.models.layout import Layout
from coterie.protocol.replies import Replies, Sketching
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Task
from coterie.reporting.progress import watch
from coterie.seeding import Key
from coterie.server import one_shot
from coterie.server.clustering.advice import on_distances
from coterie.server.clustering.by_sample import find_clusters, for_sample
from coterie.server.clustering.clusterers import agglomerative, clusterers, dbscan, hdbscan, kmedoids
from coterie.server.clustering.probe import probe
from coterie.server.descriptions import Descriptor, compared, differing
from coterie.server.distances.landmarks import of_landmark_losses
from coterie.server.distances.many_clients import Sampled, drawn
from coterie.server.distances.measures import by_updates, check_pairs
from coterie.server.distances.sketches import of_sketched_parameters, of_sketched_updates, projection
from coterie.server.distances.vectors import cosines, cross_losses, of_losses, of_updates
from coterie.server.exchange import Limits, Meter
from coterie.server.one_shot import medoids, temperature, temperature_of
from coterie.server.robust import krum

KEY = Key(1, 0)
FEW = Sketching(exact_clients=20, size=64, sample=20, seed=1)


def made_up(params, sketching=FEW):
    params = np.asarray(params, dtype=float)
    count, size = params.shape
    layout = Layout(size, 0, {"all": np.arange(size)}, {"all": np.arange(0)})
    rest = {"params": params, "buffers": np.zeros((count, 0)), "sketching": sketching}
    return Replies(layout, np.arange(count), np.zeros(count, int), np.ones(count, int), **rest)


def grouped(count=60, size=300, groups=3, noise=0.3, seed=0):
    """Vectors in orthogonal directions of their groups, and these groups."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(size, groups)))[0].T
    truth = rng.permutation(np.arange(count) % groups)
    return centres[truth] + noise * rng.normal(size=(count, size)) / np.sqrt(size), truth


def parted(clients=60, groups=3, seed=0, features=8):
    """Clients whose groups name two clouds by directions of their own, far enough apart for every method."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(features, groups)))[0].T
    truth = rng.permutation(np.arange(clients) % groups)

    def client(group):
        x = rng.normal(size=(20, features))
        side = np.sign(x @ centres[group])
        return (x + side[:, None] * centres[group]).astype(np.float32), (side > 0).astype(np.int64)

    return ct.testing.federations.federated([client(g) for g in truth], [client(g) for g in truth], 2, truth)


CLUSTERERS = (
    *("kmedoids(clusters=3)", "kmeans(clusters=3)", "spectral(clusters=3)", "agglomerative(clusters=auto)"),
    *("agglomerative(cut=0.6)", "hdbscan", "meanshift"),
)
"""Without affinity: on all pairs of 300 dimensions, about equally far apart, it finds 1 to 41 clusters of three."""


class TestSketches:
    def test_vectors_that_are_shorter_than_a_sketch_are_compared_exactly(self):
        params, _ = grouped(size=50)
        starts = np.ones_like(params)
        for metric in ("cosine", "euclidean"):
            exact = of_updates(metric)(made_up(params), starts, None)[1]
            found = of_sketched_updates(metric)(made_up(params), starts, None)[1]
            np.testing.assert_allclose(found.among, exact[np.ix_(found.sample, found.sample)], atol=1e-6)
            np.testing.assert_allclose(found.away(slice(None)), exact[:, found.sample], atol=2e-6)

    def test_cosines_of_sketches_are_right_on_average_and_within_their_standard_error(self):
        rng, size, width = np.random.default_rng(1), 256, 5000
        one, other = (1 + rng.normal(size=(1, width)) for _ in range(2))  # sums without signs would be nearly parallel
        true, found = cosines(one, other)[0, 0], []
        for seed in range(200):
            matrix = projection(width, Sketching(size=size, seed=seed))
            found.append(cosines(one @ matrix, other @ matrix)[0, 0])
        expected = (1 - true**2) / np.sqrt(size)
        assert np.mean(found) == pytest.approx(true, abs=3 * expected / np.sqrt(200))
        assert np.std(found) == pytest.approx(expected, rel=0.2)

    def test_projections_depend_on_the_seed_and_on_nothing_else(self):
        first, again, other = (projection(1000, Sketching(size=32, seed=seed)).toarray() for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()

    def test_parameters_are_compared_without_starts(self):
        params, _ = grouped(size=10)
        found = of_sketched_parameters("euclidean")(made_up(params + 5), params + 5, None)[1]
        expected = np.linalg.norm(params[:, None] - params[found.sample], axis=-1)
        np.testing.assert_allclose(found.away(slice(None)), expected, atol=1e-5)

    def test_an_update_of_zeros_is_as_far_as_an_orthogonal_one(self):
        params, _ = grouped(size=40)
        params[7] = 0
        found = of_sketched_updates("cosine")(made_up(params), np.zeros_like(params), None)[1]
        np.testing.assert_allclose(np.delete(found.away(slice(7, 8)), np.flatnonzero(found.sample == 7)), 1)

    def test_manhattan_distances_are_refused_beyond_the_limit_with_number_limit_and_remedy(self):
        params, _ = grouped()
        with pytest.raises(UsageError, match=r"manhattan for 60 clients.*exact-clients \(20\).*cosine or euclidean"):
            by_updates("manhattan")(made_up(params), params, None)

    def test_many_clients_are_compared_without_a_matrix_of_all_pairs(self):
        """A matrix of 30,000 clients would have 7.2 GB."""
        replies = made_up(np.random.default_rng(0).normal(size=(30_000, 20)).astype(np.float32), Sketching(sample=200))
        starts = np.zeros((30_000, 20))
        tracemalloc.start()
        try:
            _, found = by_updates("cosine")(replies, starts, None)
            labels = find_clusters(kmedoids(3), found, KEY)
            temperature_of(replies, starts)
            medoids(found, labels)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 250e6

    def test_a_limit_that_the_memory_cannot_hold_is_refused(self):
        with pytest.raises(UsageError, match=r"all pairs of 1,000,000 clients needs about .* GB.*lower exact-clients"):
            check_pairs(1_000_000)


class TestSample:
    def test_up_to_the_limit_all_pairs_are_compared(self):
        params, _ = grouped()
        at = replace(FEW, exact_clients=60)
        found = by_updates("cosine")(made_up(params, at), 0 * params, None)[1]
        np.testing.assert_array_equal(found, of_updates("cosine")(made_up(params), 0 * params, None)[1])
        assert isinstance(by_updates("cosine")(made_up(params), 0 * params, None)[1], Sampled)

    def test_the_sample_is_no_larger_than_the_limit_and_differs_by_seed(self):
        assert len(drawn(1000, replace(FEW, sample=500))) == 20
        assert drawn(1000, FEW).tolist() == sorted(set(drawn(1000, FEW).tolist()))
        assert drawn(1000, FEW).tolist() != drawn(1000, replace(FEW, seed=2)).tolist()

    @pytest.mark.parametrize(("text", "size"), [("affinity", 50), *product(CLUSTERERS, (50, 300))])
    def test_clusters_are_those_of_all_pairs_on_20_of_20_seeds(self, text, size):
        clusterer = clusterers.build(text)
        for seed in range(20):
            params, truth = grouped(size=size, seed=seed)
            few = replace(FEW, exact_clients=30, sample=30, size=256, seed=seed)
            exact = clusterer(of_updates("cosine")(made_up(params), 0 * params, None)[1], KEY)
            found = by_updates("cosine")(made_up(params, few), 0 * params, None)[1]
            assert find_clusters(clusterer, found, KEY).tolist() == exact.tolist()
            assert len(set(zip(exact.tolist(), truth.tolist(), strict=True))) == 3

    def test_the_others_join_the_cluster_of_least_mean_distance(self):
        far = np.array([[0.0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0], [4, 4, 3, 9], [5, 5, 2, 4]])
        distances = Sampled(np.arange(4), far[:4], 6, lambda rows: far[rows], "hand", 4)
        assert find_clusters(agglomerative(2), distances, KEY).tolist() == [0, 0, 1, 1, 0, 1]
        assert distances.medoids(np.array([0, 0, 1, 1, 0, 1])) == [0, 2]

    def test_a_least_number_of_clients_shrinks_with_the_sample(self):
        distances = Sampled(np.arange(10), np.zeros((10, 10)), 100, lambda rows: np.zeros((1, 10)), "hand", 10)
        assert for_sample(hdbscan(members=40), distances).options["members"] == 4
        assert for_sample(hdbscan(members=5), distances).options["members"] == 2
        assert for_sample(dbscan(members=1), distances).options["members"] == 1
        assert for_sample(hdbscan(), distances) == hdbscan()

    def test_what_a_sample_cannot_show_is_refused(self):
        distances = Sampled(np.arange(10), np.zeros((10, 10)), 100, lambda rows: np.zeros((1, 10)), "hand", 10)
        with pytest.raises(UsageError, match=r"clusters is 11, and of 100 clients a sample of 10.*raise sketch-sample"):
            find_clusters(kmedoids(11), distances, KEY)
        with pytest.raises(UsageError, match=r"apart is set for 100 clients.*leave it out, or raise exact-clients"):
            find_clusters(hdbscan(apart=True), distances, KEY)

    def test_advice_is_about_the_sample(self):
        params, _ = grouped(count=90)
        found = by_updates("cosine")(made_up(params, replace(FEW, exact_clients=40, sample=40)), 0 * params, None)[1]
        assert on_distances(kmedoids(5), found, KEY)["clusters"] == 3


class TestTemperature:
    @pytest.mark.parametrize("p", [2.0, 3.0])
    def test_of_short_updates_it_is_that_of_all_pairs(self, p):
        params, _ = grouped(count=40, size=30, noise=1.0)
        params[3] = 0
        whole = replace(FEW, exact_clients=39, sample=40)
        exact = temperature(of_updates("cosine")(made_up(params), 0 * params, None)[1], p)
        close = 1e-9 if p == 2 else 0.02  # a sample of 39
        assert temperature_of(made_up(params, whole), 0 * params, p) == pytest.approx(exact, abs=close)

    def test_of_long_updates_it_is_near(self):
        params, _ = grouped(count=300, size=3000, noise=1.0)
        params[3] = 0
        exact = temperature(of_updates("cosine")(made_up(params), 0 * params, None)[1])
        params[3] = 0
        many = Sketching(exact_clients=299)
        found = [temperature_of(made_up(params, replace(many, seed=s)), 0 * params) for s in range(5)]
        np.testing.assert_allclose(found, exact, rtol=1e-3)


class TestLandmarks:
    @pytest.fixture
    def trained(self, simulator):
        sim = simulator(parted(30), "logistic", threads=1)
        ask = Meter(sim, KEY, limits=Limits(sketching=replace(FEW, exact_clients=12, sample=12))).ask
        start = Stack(*(part[None] for part in sim.model.initial(1)))
        zeros, clients = np.zeros(30, dtype=np.int64), np.arange(30)
        return ask, ask(Task(fit=(Fit(steps=10, batch=16, lr=0.1),)), start, zeros, clients)

    def test_the_sample_has_the_distances_of_lcfl_and_others_one_of_their_terms(self, trained):
        ask, replies = trained
        losses = cross_losses(replies, ask)
        for name, term in (
            ("data", np.abs(losses - np.diag(losses)[:, None])),
            ("models", np.abs(losses - np.diag(losses))),
        ):
            exact = of_losses(name)(replies, None, ask)[1]
            _, found = of_landmark_losses(name)(replies, None, ask)
            assert len(found.sample) == 12
            np.testing.assert_allclose(found.among, exact[np.ix_(found.sample, found.sample)], atol=1e-5)
            np.testing.assert_allclose(found.away(slice(None)), term[:, found.sample], atol=1e-5)

    def test_clients_that_do_not_answer_are_left_out_of_the_sample_too(self, trained):
        ask, replies = trained
        gone = [int(drawn(30, replies.sketching)[0]), 5]

        def deaf(task, models, labels, clients, references=None):
            there = ~np.isin(clients, gone)
            return ask(task, models, labels[there], clients[there], references and references.take(there))

        kept, found = of_landmark_losses("models")(replies, None, deaf)
        whole, everyone = of_landmark_losses("models")(replies, None, ask)
        assert sorted(set(whole.clients.tolist()) - set(kept.clients.tolist())) == sorted(gone)
        assert found.count == 28
        assert kept.clients[found.sample].tolist() == [c for c in everyone.sample.tolist() if c not in gone]
        columns = ~np.isin(everyone.sample, gone)
        np.testing.assert_allclose(found.away(slice(None)), everyone.away(slice(None))[kept.clients][:, columns])

    def test_sampled_examples_of_all_pairs_are_refused_beyond_the_limit(self):
        with pytest.raises(UsageError, match=r"60 clients are more than exact-clients \(20\).*cross=sampled"):
            ct.run("lcfl(cross=sampled)", parted(), "logistic", 2, exact_clients=20)


METHODS = {
    "ocfl-hdbscan": (3, 3),
    "ocfl-kmeans(clusters=3)": (3, 3),
    "lcfl(clusters=3)": (2, 3),
    "lcfl(clusters=3,losses=models)": (2, 3),
    "lcfl(clusters=3,start=medoid)": (2, 3),
    "gradcos(clusters=3)": (2, 3),
    "diffnorm(clusters=3)": (2, 3),
    "briggs": (2, 3),
    "sattler(minimum=1,eps1=1,eps2=0)": (3, 2),
}
"""Methods that compare all pairs, the rounds after which their clusters have formed, and groups (sattler: two)."""


class TestRuns:
    @pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("text", METHODS)
    def test_methods_find_the_clusters_of_all_pairs_on_every_seed(self, text, simulator, train, monkeypatch, seeds):
        """Sketches of 64 numbers of a model of 178, a sample of 30 of 60 clients. Advice takes long: it is left out."""
        monkeypatch.setattr(one_shot, "on_distances", lambda *known: None)
        count, groups = METHODS[text]
        for seed in range(seeds):
            sim = simulator(parted(seed=seed, groups=groups), "mlp(16)", threads=1)
            ways = (replace(FEW, exact_clients=limit, sample=30) for limit in (60, 30))
            exact, found = (
                train(text, sim, count, seed=seed, fit=Fit(steps=20, lr=0.1), sketching=each)[-1].state.labels
                for each in ways
            )
            assert len(set(zip(exact.tolist(), found.tolist(), strict=True))) == len(set(exact.tolist())) == groups

    def test_a_run_says_once_that_clusters_may_differ_and_records_the_options(self, tmp_path, capsys):
        settings = Settings("sattler(minimum=1,eps1=1,eps2=0)", rounds=5)
        with watch(settings) as progress:
            found = ct.run(
                settings.algorithm,
                parted(),
                "mlp(16)",
                5,
                out=tmp_path / "run",
                exact_clients=20,
                sketch=64,
                progress=progress,
                lr=0.1,
                steps=20,
            )
        (note,) = found.summary["notes"]
        assert note.startswith("more clients than exact-clients (20): 20 were clustered by sketches of 64 numbers")
        assert "\n" not in note
        assert sum("exact-clients" in line for line in capsys.readouterr().err.splitlines()) == 1
        assert sum("note" in record for record in found.history) > 1
        config = read_toml(tmp_path / "run" / "config.toml")
        assert (config["exact_clients"], config["sketch"], config["sketch_sample"]) == (20, 64, 1000)

    def test_no_note_where_all_pairs_were_compared(self):
        assert ct.run("gradcos(clusters=3)", parted(), "logistic", 2).summary["notes"] == []

    def test_of_many_clients_a_probe_asks_a_sample(self, simulator, monkeypatch):
        monkeypatch.setattr("coterie.server.clustering.probe.MOST_CLIENTS", 45)
        sim, asked = simulator(parted(90), "logistic", threads=1), set[int]()

        def ask(task, models, labels, clients, references=None):
            asked.update(clients.tolist())
            return Meter(sim, KEY).ask(task, models, labels, clients, references)

        assert probe(sim, KEY, ask, Fit(lr=0.1))["clusters"] == 3
        assert len(asked) == 45

    def test_options_have_limits(self):
        for name, value in (("exact_clients", 1), ("sketch", 15), ("sketch_sample", 1)):
            with pytest.raises(UsageError, match=rf"{name.replace('_', '-')} is {value}"):
                Settings("briggs", **{name: value})


class TestOtherPairs:
    def test_clients_with_equal_codes_are_together_however_rare_the_code(self):
        codes = np.zeros((60, 2))
        codes[:, 0] = 1 + np.arange(60) % 3
        codes[17] = 9
        answers = replace(made_up(np.zeros((60, 1))), description=codes)
        by = Descriptor(function="a:b", compare=differing, far=1.0, codes=True)
        found = compared(by, answers)
        labels = find_clusters(agglomerative(cut=0.5, linkage="single"), found.distances, KEY)
        assert labels.tolist() == [3 if i == 17 else i % 3 for i in range(60)]
        many = replace(answers, description=np.column_stack([1.0 + np.arange(60), np.zeros(60)]))
        with pytest.raises(UsageError, match=r"60 values.*exact-clients \(20\).*coarser"):
            compared(by, many)

    def test_descriptions_are_compared_with_a_sample(self):
        places = np.random.default_rng(0).permutation(np.repeat([0.0, 10.0, 20.0], 20))
        answers = replace(made_up(np.zeros((60, 1))), description=places[:, None])
        by = Descriptor(function="a:b", compare=lambda one, other: np.abs(one - other.T))
        found = compared(by, answers).distances
        assert isinstance(found, Sampled)
        labels = find_clusters(agglomerative(3), found, KEY)
        assert len(set(zip(labels.tolist(), places.tolist(), strict=True))) == 3

    def test_methods_that_need_all_pairs_refuse_in_one_line(self, simulator, train):
        sim = simulator(parted(30), "logistic", threads=1)
        with pytest.raises(UsageError, match=r"30 clusters are more than exact-clients \(20\).*lower participation"):
            train("stocfl", sim, 1, sketching=FEW)
        with pytest.raises(UsageError, match=r"a cluster has 5,001 clients.*up to 5,000.*median"):
            krum()(Stack(np.zeros((5001, 1)), np.zeros((5001, 0))), np.arange(5001), np.ones(5001))
