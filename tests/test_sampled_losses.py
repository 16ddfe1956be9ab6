"""Cross losses on growing samples: what is seen, what it says, when it is enough. Hand-made losses, slow references."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.errors import UnknownName, UsageError
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report, Sample
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task, standard_error
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.clustering.clusterers import Clusterer, clusterers
from coterie.server.contract import by_examples
from coterie.server.distances import sampled as sampled_losses
from coterie.server.distances.sampled import SampledLosses, Sampling, look, of_sampled_losses, plausible, still_open
from coterie.server.distances.vectors import loss_distance
from coterie.server.exchange import Meter
from coterie.server.one_shot import cluster_once
from coterie.server.start import first_state
from coterie.testing import Loopback

KEY = Key(3, 1)
TWO, BY_PAIRS = clusterers.build("kmedoids(2)"), clusterers.build("agglomerative(2)")


def by_hash(distances, clusters, seed):
    """Clusters that any change of any distance changes: nothing is sure before everything is seen."""
    number = int.from_bytes(hashlib.blake2b(distances.tobytes(), digest_size=8).digest(), "little")
    return np.array([number >> i & 1 for i in range(len(distances))])


restless = Clusterer(by_hash)


class Clients:
    """Clients with made-up losses: ``tables[i][j]`` are those of client i's examples under model j.

    ``asked`` counts how often each was evaluated; from its ``gone[i]``-th question on client i does not answer.
    """

    def __init__(self, tables, gone=None):
        self.tables, self.gone = tables, gone or {}
        self.asked = [np.zeros(table.shape, dtype=int) for table in tables]
        self.questions = np.zeros(len(tables), dtype=int)

    @property
    def replies(self):
        """Each client's trained model: its number."""
        count = len(self.tables)
        sizes = np.array([table.shape[1] for table in self.tables])
        models = np.arange(count, dtype=float)[:, None]
        return Replies(None, np.arange(count), np.zeros(count, int), sizes, models, np.zeros((count, 0)))

    def ask(self, task, models, labels, clients, references=None):
        part, models = task.report.sample, models.params[:, 0].astype(int)
        here = [i for i in clients if self.questions[i] < self.gone.get(i, 1000)]
        self.questions[clients] += 1
        seen = [self.tables[i][models, part.begin : part.end] for i in here]
        for i in here:
            self.asked[i][models, part.begin : part.end] += 1
        with np.errstate(invalid="ignore"):
            found = [np.array([f(s, axis=1) for s in seen]).reshape(-1, len(models)) for f in (np.mean, np.var)]
        return Replies(None, np.array(here, int), np.zeros(len(here), int), None, losses=found[0], spreads=found[1])

    def measure(self, clusterer=TWO, symmetric_in="data", **options):
        return of_sampled_losses(symmetric_in, clusterer, Sampling(**options))(KEY)(self.replies, None, self.ask)

    def exact(self, symmetric_in="data"):
        return loss_distance(symmetric_in)(np.array([table.mean(axis=1) for table in self.tables]))

    @property
    def evaluations(self):
        return sum(counts.sum() for counts in self.asked)


def grouped(sizes, groups, apart=2.0, noise=0.3, seed=0):
    """Losses 0 under models of the own group and ``apart`` under others, and noise that models of a group share."""
    rng, groups = np.random.default_rng(seed), np.asarray(groups)
    tables = []
    for size, group in zip(sizes, groups, strict=True):
        common = noise * rng.normal(size=(groups.max() + 1, size))[groups]
        tables.append(apart * (groups != group)[:, None] + common + noise * rng.normal(size=(len(groups), size)))
    return Clients(tables)


class TestTheEstimates:
    @given(st.integers(0, 1000), st.lists(st.integers(3, 90), min_size=2, max_size=4), st.integers(2, 9))
    def test_part_after_part_gives_mean_and_variance_of_all_that_was_seen(self, seed, sizes, first):
        clients = grouped(sizes, [0] * len(sizes), seed=seed)
        known, end = SampledLosses.empty(clients.replies.examples), first
        while known.unfinished.any():
            look(known, known.unfinished, first, clients.replies, clients.ask)
            for i, table in enumerate(clients.tables):
                seen = table if sizes[i] - end < first else table[:, :end]
                assert known.seen[i].tolist() == [seen.shape[1]] * len(sizes)
                np.testing.assert_allclose(known.means[i], seen.mean(axis=1), atol=1e-12)
                np.testing.assert_allclose(known.spreads[i], seen.var(axis=1), atol=1e-12)
            end *= 2
        assert not known.errors.any()

    @pytest.mark.parametrize(
        ("size", "parts"), [(5, [5]), (8, [8]), (9, [9]), (15, [15]), (16, [8, 8]), (17, [8, 9]), (40, [8, 8, 16, 8])]
    )
    def test_no_part_is_smaller_than_the_first_unless_the_client_is(self, size, parts):
        """A mean over one example is that example's loss."""
        clients, lengths = grouped([size, 99], [0, 1]), []

        def listen(task, stack, labels, asked, references=None):
            lengths.extend(int(task.report.sample.count(np.array([size]))[0]) for i in asked if i == 0)
            return clients.ask(task, stack, labels, asked)

        known = SampledLosses.empty(clients.replies.examples)
        while known.unfinished.any():
            ahead = known.ahead(known.unfinished, 8)
            before = known.seen.sum()
            look(known, known.unfinished, 8, clients.replies, listen)
            assert known.seen.sum() - before == ahead
        assert lengths == parts

    def test_the_error_is_that_of_drawing_without_replacement(self):
        """Over all samples of 4 of ten numbers the mean squared error is on average what the sample itself says."""
        values = np.array([0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0])
        samples = np.array(list(combinations(values, 4)))
        wanted = np.mean((samples.mean(axis=1) - values.mean()) ** 2)
        assert np.mean(standard_error(samples.var(axis=1), 4, 10) ** 2) == pytest.approx(wanted)

    def test_only_what_is_wanted_is_seen_and_in_one_question_for_those_who_want_the_same(self):
        clients = grouped([20] * 4, [0, 0, 1, 1])
        known, wanted = SampledLosses.empty(clients.replies.examples), np.zeros((4, 4), dtype=bool)
        look(known, ~wanted, 5, clients.replies, clients.ask)
        wanted[[0, 2], 1] = wanted[3, 0] = True
        look(known, wanted, 5, clients.replies, clients.ask)
        assert np.array_equal(known.ends, np.where(wanted, 10, 5))
        assert clients.questions.tolist() == [2, 1, 2, 2]
        assert all(counts.max() == 1 for counts in clients.asked)


class TestWhatIsOpen:
    def known(self, spreads, seen=4):
        """Four clients, of ten examples each, two and two alike."""
        losses = 5.0 * (np.array([0, 0, 1, 1])[:, None] != np.array([0, 0, 1, 1]))
        ends = np.full((4, 4), seen)
        return SampledLosses(np.full(4, 10), losses, np.asarray(spreads, float), ends, np.ones(4, dtype=bool))

    def open(self, known, clusterer=BY_PAIRS, **options):
        return still_open(known, loss_distance("data"), clusterer, KEY, Sampling(**options))

    def test_nothing_where_nothing_is_uncertain(self):
        assert not self.open(self.known(np.zeros((4, 4)))).any()
        assert not self.open(self.known(np.full((4, 4), 1e9), seen=10)).any()
        assert not self.open(self.known(np.full((4, 4), 1e9)), bound=0.0).any()

    def test_a_client_that_may_be_elsewhere_with_all_with_whom_it_may_be(self):
        spreads = np.zeros((4, 4))
        spreads[3] = 400.0
        wanted = self.open(self.known(spreads))
        assert wanted[3].all()
        assert wanted[:, 3].all()
        assert np.array_equal(wanted, wanted.T)

    def test_what_is_far_apart_in_units_of_its_error_is_not(self):
        spreads = np.full((4, 4), 0.5)
        assert not self.open(self.known(spreads)).any()
        assert self.open(self.known(spreads), bound=40.0).any()

    def test_where_the_doubtful_are_known_the_others_are_open(self):
        """The clusterer puts client 0 apart if clients 2 and 3 are near each other; only those are uncertain."""
        known = self.known(np.zeros((4, 4)))
        known.spreads[2:, 2:], known.ends[:2], known.ends[:, :2] = 50.0, 10, 10
        by = Clusterer(lambda distances, clusters, seed: np.array([int(distances[2, 3] < 1), 0, 0, 0]))
        assert np.array_equal(self.open(known, by), known.unfinished)
        assert known.unfinished.any()

    @staticmethod
    def stars():
        """5 and 6 are around 0, 3 and 4 around 2, and client 1 is as far from both; four of ten examples were seen."""
        losses = np.full((7, 7), 5.0)
        for middle, *around in ((0, 5, 6), (2, 3, 4)):
            losses[np.ix_(around, around)] = 1.0
            losses[middle, around] = losses[around, middle] = 0.5
        losses[1] = losses[:, 1] = 2.0
        losses[np.diag_indices(7)] = 0.0
        return SampledLosses(np.full(7, 10), losses, np.zeros((7, 7)), np.full((7, 7), 4), np.ones(7, dtype=bool))

    @staticmethod
    def pairs(wanted):
        return {(int(i), int(j)) for i, j in np.argwhere(wanted) if i < j}

    @pytest.mark.parametrize("central", [False, True])
    def test_where_only_medoids_count_it_is_the_pairs_of_a_client_and_a_medoid_that_may_change(self, central):
        known = self.stars()
        known.spreads[1, [0, 2]] = 0.5
        near = Clusterer(lambda distances, clusters, seed: np.argmin(distances[:, [0, 2]], axis=1), central=central)
        wanted = self.open(known, near)
        assert self.pairs(wanted) == ({(0, 1), (1, 2)} if central else {(0, 1), *((1, i) for i in range(2, 7))})
        assert np.array_equal(wanted, wanted.T)
        assert np.array_equal(np.diag(wanted), wanted.any(axis=1))

    def test_those_that_move_come_first_then_medoids_then_the_sums_are_known(self):
        """Client 1 goes by what is between 3 and 4; whether 0 or 5 is in the middle changes nothing else."""
        known = self.stars()
        known.spreads[3, 4], known.spreads[0, 6] = 0.5, 9.0
        moods = Clusterer(lambda d, clusters, seed: np.array([0, int(d[3, 4] > 2), 1, 1, 1, 0, 0]), central=True)
        assert self.pairs(self.open(known, moods)) == {(0, 1), (1, 2), (1, 5)}
        known.ends[1] = known.ends[:, 1] = 10
        assert self.pairs(self.open(known, moods)) == {(0, 6), (5, 6)}
        known.ends[6] = known.ends[:, 6] = 10
        assert known.unfinished.any()
        assert not self.open(known, moods).any()

    def test_k_medoids_that_find_their_number_hang_on_more_than_medoids(self):
        assert TWO.central
        assert not clusterers.build("kmedoids").central

    def test_each_step_tries_other_errors(self):
        """A doubt that one set of errors misses is found by the next; with the same errors it would never be."""
        spreads = np.full((4, 4), 1.0)
        found = [
            still_open(self.known(spreads), loss_distance("data"), BY_PAIRS, KEY, Sampling(draws=1, bound=4.0), step)
            for step in range(30)
        ]
        assert 0 < sum(wanted.any() for wanted in found) < 30

    def test_plausible_errors_are_alike_for_the_models_of_a_cluster_and_only_at_one_client(self):
        draws = np.array([plausible(np.array([0, 0, 1]), KEY.generator(i)).ravel() for i in range(4000)])
        client, cluster = np.repeat(np.arange(3), 3), np.tile([0, 0, 1], 3)
        alike = (client[:, None] == client) & (cluster[:, None] == cluster)
        np.testing.assert_allclose(np.cov(draws.T), np.where(np.eye(9), 1.0, 0.5 * alike), atol=0.08)

    def test_one_that_no_longer_answers_is_not_asked(self):
        known = self.known(np.full((4, 4), 400.0))
        known.reached[1] = False
        wanted = self.open(known)
        assert not wanted[1].any()
        assert wanted[0].any()


class TestTheMeasure:
    @pytest.mark.parametrize("symmetric_in", ["data", "models"])
    def test_where_nothing_is_sure_it_is_the_exact_matrix(self, symmetric_in):
        clients = grouped((30, 41, 64, 17, 5), (0, 1, 0, 1, 0))
        kept, found = clients.measure(restless, symmetric_in, first=4)
        assert kept.clients.tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(found, clients.exact(symmetric_in), atol=1e-12)
        assert all((counts == 1).all() for counts in clients.asked)

    def test_groups_that_are_plain_to_see_cost_the_first_part_only(self):
        clients = grouped((200,) * 12, np.arange(12) % 3, noise=0.1)
        _, found = clients.measure(clusterers.build("kmedoids(3)"), first=16)
        assert adjusted_rand_score(np.arange(12) % 3, clusterers.build("kmedoids(3)")(found, KEY)) == 1
        assert clients.evaluations == 12 * 12 * 16

    def test_only_the_doubtful_client_sees_more(self):
        """Client 0 is a little nearer to the first group; the others' places are plain."""
        clients = grouped((400,) * 9, (0, 0, 0, 0, 0, 1, 1, 1, 1), noise=0.1)
        near = np.array([1.0] * 4 + [1.25] * 4)
        clients.tables[0][1:] = np.random.default_rng(1).normal(size=(8, 400)) + near[:, None]
        for other in range(1, 9):
            clients.tables[other][0] = 1.0
        _, found = clients.measure(BY_PAIRS)
        seen = np.array([counts.sum(axis=1) for counts in clients.asked])
        assert TWO(found, KEY).tolist() == TWO(clients.exact(), KEY).tolist()
        assert seen[0].min() > 8
        assert (seen[1:, 1:][~np.eye(8, dtype=bool)] == 8).all()

    @pytest.mark.parametrize("symmetric_in", ["data", "models"])
    @pytest.mark.parametrize("seed", range(8))
    def test_its_clusters_are_those_of_the_exact_matrix(self, symmetric_in, seed):
        """Groups that eight examples do not show: the noise is as large as what is between them."""
        groups = np.arange(15) % 3
        clients, by = grouped((240,) * 15, groups, apart=1.0, noise=1.0, seed=seed), clusterers.build("kmedoids(3)")
        first = np.array([table[:, :8].mean(axis=1) for table in clients.tables])
        _, found = clients.measure(by, symmetric_in, first=8)
        exact = by(clients.exact(symmetric_in), KEY)
        assert by(found, KEY).tolist() == exact.tolist()
        assert 15 * 15 * 8 < clients.evaluations < 15 * 15 * 240
        assert all(counts.max() == 1 for counts in clients.asked)
        if seed == 0:
            assert by(loss_distance(symmetric_in)(first), KEY).tolist() != exact.tolist(), "the first part is enough"

    def test_the_errors_of_a_step_are_not_those_of_the_step_before(self, monkeypatch):
        tried, clients = [], grouped((60,) * 4, (0, 1, 0, 1))
        monkeypatch.setattr(
            sampled_losses, "plausible", lambda labels, rng: tried.append(e := plausible(labels, rng)) or e
        )
        clients.measure(restless, draws=2)
        assert len(tried) > 4
        assert len({errors.tobytes() for errors in tried}) == len(tried)

    @pytest.mark.parametrize(("by", "share"), [(TWO, 0.7), (BY_PAIRS, 0.9)])
    def test_where_there_are_no_groups_a_wide_bound_sees_nearly_all_or_its_budget(self, by, share):
        sizes, losses = (100,) * 10, np.random.default_rng(0).normal(size=(10, 10, 100))
        free, bound = Clients(losses), Clients(losses)
        _, found = free.measure(by, bound=4.0)
        assert free.evaluations > share * 10 * sum(sizes)
        assert by.central or by(found, KEY).tolist() == by(free.exact(), KEY).tolist()
        bound.measure(by, budget=0.25)
        assert 10 * 10 * 8 <= bound.evaluations <= 0.25 * 10 * sum(sizes)

    def test_the_first_part_is_seen_whatever_the_budget(self):
        clients = grouped((20,) * 4, (0, 1, 0, 1))
        clients.measure(restless, budget=0.1)
        assert clients.evaluations == 4 * 4 * 8

    def test_one_that_never_answers_cannot_be_measured(self):
        clients = grouped((50,) * 6, (0, 1, 0, 1, 0, 1))
        clients.gone[2] = 0
        kept, found = clients.measure()
        assert kept.clients.tolist() == [0, 1, 3, 4, 5]
        assert adjusted_rand_score([0, 1, 1, 0, 1], TWO(found, KEY)) == 1
        assert clients.questions[2] == 1

    def test_one_that_falls_silent_stays_as_far_as_it_is_known(self):
        clients = grouped((50, 60, 70, 80), (0, 1, 0, 1))
        clients.gone[1] = 1
        kept, found = clients.measure(restless)
        assert kept.clients.tolist() == [0, 1, 2, 3]
        assert clients.questions[1] == 2
        means = np.array([t[:, :8].mean(1) if i == 1 else t.mean(1) for i, t in enumerate(clients.tables)])
        np.testing.assert_allclose(found, loss_distance("data")(means), atol=1e-12)

    @pytest.mark.parametrize("bad", [np.inf, np.nan])
    @pytest.mark.parametrize("where", [0, 30])
    def test_a_loss_that_is_not_finite_counts_as_the_largest(self, bad, where):
        clients = grouped((50,) * 4, (0, 1, 0, 1))
        clients.tables[0][3, where] = bad
        _, found = clients.measure(restless)
        means = np.array([table.mean(axis=1) for table in clients.tables])
        means[0, 3] = means[np.isfinite(means)].max()
        np.testing.assert_allclose(found, loss_distance("data")(means), atol=1e-12)

    def test_a_loss_that_is_not_finite_is_certain(self):
        clients = grouped((50,) * 4, (0, 1, 0, 1))
        clients.tables[0][3, 5] = np.inf
        known = SampledLosses.empty(clients.replies.examples)
        look(known, known.unfinished, 16, clients.replies, clients.ask)
        assert known.errors[0, 3] == 0
        assert (np.delete(known.errors, 3) > 0).all()

    def test_nobody_and_one_client_are_not_compared(self):
        for count in (0, 1):
            kept, found = grouped((20,) * 2, (0, 1)), None
            kept.gone.update(dict.fromkeys(range(count, 2), 0))
            heard, found = kept.measure()
            assert len(heard) == count
            assert found.shape == (count, count)


@pytest.fixture(scope="module")
def data(images):
    return images((40, 23, 65, 31), shape=(1, 4, 4))


def models_of(federation, count=3):
    return Stack(np.stack([federation.model.initial(i)[0] for i in range(count)]), np.zeros((count, 0), np.float32))


def ask(federation, part, clients=(0, 1, 2, 3)):
    task, clients = Task(report=Report(params=None, losses=True, sample=part)), np.array(clients)
    return federation.ask(task, Sent(models_of(federation)), clients * 0, clients, KEY)


class TestInTheEngine:
    def test_the_reply_is_mean_and_variance_over_a_part_in_the_client_s_own_order(self, data, simulator):
        sim = simulator(data, "mlp(6)", threads=2)
        stack, found = models_of(sim), ask(sim, Sample(8, 24))
        for i, name in enumerate(data.names):
            order = KEY.generator(name, "sample").permutation(data.train.sizes[i])[8:24] + data.train.offsets[i]
            for j in range(3):
                losses = sim.engine._losses(stack, j, order).astype(float)
                assert found.losses[i, j] == pytest.approx(losses.mean(), abs=1e-6)
                assert found.spreads[i, j] == pytest.approx(losses.var(), abs=1e-6)

    def test_all_parts_together_are_the_exact_losses(self, data, simulator):
        sim = simulator(data, "mlp(6)")
        parts = [Sample(0, 9), Sample(9, 18), Sample(18, 99)]
        counts = np.array([part.count(data.train.sizes) for part in parts])
        losses = np.array([ask(sim, part).losses for part in parts])
        together = (losses * counts[:, :, None]).sum(0) / counts.sum(0)[:, None]
        np.testing.assert_allclose(together, sim.engine.cross_losses(models_of(sim), np.arange(4)), atol=1e-6)

    @pytest.mark.parametrize("plan", ["native", "workers"])
    def test_what_is_counted_is_what_the_networks_were_given(self, data, simulator, given_to, plan):
        found = ask(simulator(data, "mlp(6)", threads=2, plan=plan), Sample(16, 32))
        assert found.cost.evaluations == sum(given_to) == 3 * (16 + 7 + 16 + 15)

    def test_every_runtime_gives_the_same_and_costs_the_same(self, data, simulator):
        near = simulator(data, "mlp(6)", threads=1)
        far = Loopback(data, near.model)
        wanted = ask(near, Sample(16, 32))
        for federation in (far, Simulator(data, near.model, threads=2, plan="lockstep")):
            found = ask(federation, Sample(16, 32))
            np.testing.assert_allclose(found.losses, wanted.losses, atol=1e-6)
            np.testing.assert_allclose(found.spreads, wanted.spreads, atol=1e-6)
            assert found.cost == wanted.cost
        assert (far.payload.bytes_down, far.payload.bytes_up) == (wanted.cost.bytes_down, wanted.cost.bytes_up)
        assert wanted.cost.bytes_up == 4 * 8 * (2 + 2 * 3)

    def test_without_a_sample_no_spread_leaves_a_client(self, data, simulator):
        assert ask(simulator(data, "mlp(6)"), None).spreads is None

    def test_a_client_with_nothing_in_the_part_is_refused(self, data, simulator):
        with pytest.raises(UsageError, match="client 'client-1' has 23 train examples, and the sample begins after 23"):
            ask(simulator(data, "mlp(6)"), Sample(23, 46))


class TestTheMethod:
    def test_what_is_open_is_decided_with_the_key_of_the_round_that_clusters(self, data, simulator):
        """A clusterer may draw: with another key its doubts would be those of another clustering."""
        keys = []

        class Listening(Clusterer):
            def __call__(self, distances, key):
                keys.append(key)
                return super().__call__(distances, key)

        sim, fit = simulator(data, "logistic", threads=1), Fit(steps=2)
        state = first_state(models_of(sim, 1), np.zeros(4, dtype=np.int64))
        door = Meter(sim, KEY).ask
        replies = door(Task(fit=(fit,)), state.stack, state.labels, np.arange(4))
        measure = of_sampled_losses("data", Listening(TWO.find, 2), Sampling())
        cluster_once(measure, TWO, by_examples, fit)(state, replies, KEY, door)
        assert len(keys) > 2
        assert set(keys) == {KEY}

    @pytest.mark.parametrize("losses", ["data", "models"])
    @pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
    def test_on_rotated_digits_it_finds_the_same_clusters_for_a_quarter_of_the_evaluations(
        self, losses, seed, simulator, train
    ):
        digits = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=seed)
        sim = simulator(digits, "logistic", threads=1)
        options = {"count": 2, "clusters": 4, "fit": Fit(), "seed": seed}
        exact, cheap = (train(f"lcfl(cross={c},losses={losses})", sim, **options)[-1] for c in ("exact", "sampled"))
        assert cheap.state.labels.tolist() == exact.state.labels.tolist()
        assert adjusted_rand_score(digits.groups, cheap.state.labels) == 1
        assert exact.cost.evaluations == 40 * digits.train.sizes.sum()
        assert cheap.cost.evaluations <= exact.cost.evaluations / 4
        assert np.array_equal(cheap.state.stack.params, exact.state.stack.params)

    @pytest.mark.parametrize("clusterer", ["agglomerative", "hdbscan", "spectral", "kmedoids"])
    def test_any_clusterer_may_decide_what_is_open(self, clusterer, images, simulator, train):
        data = images((120,) * 8)
        sim = simulator(data, "logistic", threads=1)
        options = {"clusters": "auto"} if clusterer == "kmedoids" else {}
        text = f"lcfl(warmup=0,clusterer={clusterer},cross=%s)"
        exact, cheap = (train(text % c, sim, 1, **options)[0] for c in ("exact", "sampled"))
        assert cheap.state.labels.tolist() == exact.state.labels.tolist()
        assert cheap.cost.evaluations <= exact.cost.evaluations

    def test_the_cost_of_a_round_is_that_of_its_samples(self, images, simulator, train):
        data = images((200,) * 6)
        sim = simulator(data, "logistic", threads=1)
        cheap = train("lcfl(warmup=0,cross=sampled(budget=0.1))", sim, 1)[0]
        assert cheap.cost.evaluations == 6 * 6 * 8
        assert adjusted_rand_score(data.groups, cheap.state.labels) == 1

    def test_samples_save_evaluations_and_never_bytes(self, images, simulator, train):
        """With one part all models go down once, as in the exact mode; a variance comes up beside each mean."""
        sim = simulator(images((200,) * 6), "logistic", threads=1)
        exact, one, more = (
            train(f"lcfl(warmup=0,clusters=5,cross={c})", sim, 1)[0].cost
            for c in ("exact", "sampled(budget=0.01)", "sampled")
        )
        assert one.bytes_down == exact.bytes_down < more.bytes_down
        assert one.bytes_up - exact.bytes_up == 6 * 6 * 8
        assert more.bytes_up > one.bytes_up
        assert one.evaluations < more.evaluations < exact.evaluations

    @pytest.mark.parametrize(
        ("make", "problem"),
        [
            (lambda: Sample(5, 5), "a sample is 5 to 5"),
            (lambda: Sample(-1, 5), "a sample is -1 to 5"),
            (lambda: Report(sample=Sample(0, 5)), "report.sample is .* where no losses are reported"),
            (lambda: ct.lcfl(cross="sampled(first=1)"), "first is 1; it must be at least 2"),
            (lambda: ct.lcfl(cross="sampled(first=few)"), "first is few; it must be a whole number"),
            (lambda: ct.lcfl(cross="sampled(bound=-1)"), "bound is -1"),
            (lambda: ct.lcfl(cross="sampled(draws=0)"), "draws is 0"),
            (lambda: ct.lcfl(cross="sampled(budget=0)"), "budget is 0"),
            (lambda: ct.lcfl(cross="sampled(budget=2)"), "budget is 2"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, make, problem):
        with pytest.raises(UsageError, match=problem):
            make()

    def test_unknown_words_offer_the_nearest(self):
        with pytest.raises(UnknownName, match="unknown way to find cross losses 'sample'; did you mean 'sampled'"):
            ct.lcfl(cross="sample")
        with pytest.raises(UnknownName, match="did you mean 'budget'"):
            ct.lcfl(cross="sampled(bugdet=0.2)")
