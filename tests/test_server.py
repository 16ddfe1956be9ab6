"""The server's parts, each against numbers that are written out: optimisers, clustering, starts, the loop's door."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.algorithms import build_algorithm, fedavg
from coterie.errors import FederationError, UnknownName, UsageError
from coterie.protocol.replies import Cost
from coterie.protocol.report import Report
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Loss, Task
from coterie.seeding import Key
from coterie.server.aggregate import SERVERS, average, optimiser_named, server_optimiser, uniform
from coterie.server.assign import Clustered, as_trained, cluster_by_part, join_nearest, match, until
from coterie.server.clustering import weighted_kmeans
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.contract import Algorithm, Assignment, by_examples, replace_models
from coterie.server.exchange import Meter
from coterie.server.loop import Conditions, advance, participants, rounds
from coterie.server.serving import evaluate
from coterie.server.start import (
    BEGINNING,
    farthest_first,
    first_state,
    initial,
    model_per_client,
    one_model,
    random_models,
    unplaced,
)

KEY = Key(1, 0)
STEP = Fit(steps=1, batch=100, lr=0.1, momentum=0.0)


def stack_of(*rows, buffers=()):
    params = np.array(rows, dtype=np.float64)
    return Stack(params, np.tile(np.array(buffers, dtype=np.float64), (len(params), 1)))


class TestServerOptimisers:
    """Three rounds of two clusters against the formulas of Reddi et al.; cluster 1 is empty in the second round."""

    LR, MOMENTUM, BETA1, BETA2, TAU = 0.3, 0.5, 0.8, 0.9, 0.01
    MEANS = ((1.0, -2.0), (0.5, 0.25), (-1.0, 3.0))

    def run(self, server):
        """The models and moments after each round."""
        update = server_optimiser(server, self.LR, self.MOMENTUM, self.BETA1, self.BETA2, self.TAU)
        models, moments, seen = stack_of([0.2], [0.4]), {}, []
        for t, mean in enumerate(self.MEANS):
            answered = np.array([True, t != 1])
            means = np.where(answered, mean, models.params[:, 0])[:, None]
            models, moments = update(models, Stack(means, models.buffers), moments, answered)
            seen.append((models.params[:, 0], {name: rows[:, 0] for name, rows in moments.items()}))
        return seen

    def by_hand(self, server, start, means):
        """One number under one server optimiser, written directly."""
        x, m, v, path = start, 0.0, self.TAU**2, []
        for mean in means:
            d = mean - x
            if server == "sgd":
                m = self.MOMENTUM * m + d
                x = x + self.LR * m
            else:
                m = self.BETA1 * m + (1 - self.BETA1) * d
                if server == "adagrad":
                    v = v + d * d
                elif server == "adam":
                    v = self.BETA2 * v + (1 - self.BETA2) * d * d
                elif v > d * d:
                    v = v - (1 - self.BETA2) * d * d
                else:
                    v = v + (1 - self.BETA2) * d * d
                x = x + self.LR * m / (v**0.5 + self.TAU)
            path.append((x, m, v))
        return path

    @pytest.mark.parametrize("server", ["sgd", "adam", "yogi", "adagrad"])
    def test_three_rounds_follow_the_formula(self, server):
        found = self.run(server)
        always = self.by_hand(server, 0.2, [mean[0] for mean in self.MEANS])
        np.testing.assert_allclose([models[0] for models, _ in found], [x for x, _, _ in always], atol=1e-12)
        assert found[-1][1]["first"][0] == pytest.approx(always[-1][1])
        if server != "sgd":
            assert found[-1][1]["second"][0] == pytest.approx(always[-1][2])

    @pytest.mark.parametrize("server", ["sgd", "adam", "yogi", "adagrad"])
    def test_an_empty_cluster_keeps_its_model_and_moments_and_goes_on_from_them(self, server):
        (first, moments), (second, kept), (third, _) = self.run(server)
        assert second[1] == first[1]
        assert {name: rows[1] for name, rows in kept.items()} == {name: rows[1] for name, rows in moments.items()}
        path = self.by_hand(server, 0.4, [self.MEANS[0][1], self.MEANS[2][1]])
        assert third[1] == pytest.approx(path[-1][0], abs=1e-12)

    def test_buffers_are_averaged_not_optimised(self):
        update = server_optimiser("adam", 0.1, 0.0, 0.9, 0.99, 1e-3)
        models, _ = update(stack_of([0.0], buffers=[1.0]), stack_of([1.0], buffers=[5.0]), {}, np.array([True]))
        assert models.buffers.tolist() == [[5.0]]

    def test_sgd_at_rate_one_without_momentum_is_replacement(self):
        models, mean = stack_of([1.0], [2.0]), stack_of([-3.0], [7.0])
        update = server_optimiser("sgd", 1.0, 0.0, 0.9, 0.99, 1e-3)
        plain, _ = replace_models(models, mean, {}, np.array([True, True]))
        assert update(models, mean, {}, np.array([True, True]))[0].params.tolist() == plain.params.tolist()

    def test_an_unknown_optimiser_offers_the_nearest(self):
        with pytest.raises(UnknownName, match="did you mean 'adam'"):
            server_optimiser("adamm", 1.0, 0.0, 0.9, 0.99, 1e-3)

    def test_a_rate_of_zero_is_refused(self):
        with pytest.raises(UsageError, match=r"lr is 0\.0; it must be > 0"):
            server_optimiser("sgd", 0.0, 0.0, 0.9, 0.99, 1e-3)
        with pytest.raises(UsageError, match=r"tau is 0\.0; it must be > 0"):
            server_optimiser("adam", 1.0, 0.0, 0.9, 0.99, 0.0)

    @pytest.mark.parametrize("name", ["momentum", "beta1", "beta2"])
    @pytest.mark.parametrize("value", [1.0, -0.1])
    def test_what_is_kept_of_a_moment_is_less_than_all_and_not_below_nothing(self, name, value):
        given = {"momentum": 0.0, "beta1": 0.0, "beta2": 0.0}
        server_optimiser("adam", 1.0, **given, tau=1e-3)
        with pytest.raises(UsageError, match=rf"the server's {name} is {value}; it must be in \[0, 1\)"):
            server_optimiser("adam", 1.0, **{**given, name: value}, tau=1e-3)


class TestKMeans:
    POINTS = np.array([[0.0], [4.0], [10.0]])

    def test_weights_decide_which_points_belong_together(self):
        """To join the last two points or the first two is the question.

        Equal weights: {4, 10} costs 2 * 3^2 = 18 and {0, 4} costs 2 * 2^2 = 8. Weights 100, 100 and 1: {4, 10} costs
        100 * 1 / 101 * 6^2 = 35.6 and {0, 4} costs 200 * 2^2 = 800.
        """
        equal, _ = WeightedKMeans(2)(self.POINTS, np.array([1.0, 1.0, 1.0]), KEY, None)
        heavy, centres = WeightedKMeans(2)(self.POINTS, np.array([100.0, 100.0, 1.0]), KEY, None)
        assert equal[0] == equal[1] != equal[2]
        assert heavy[0] != heavy[1] == heavy[2]
        np.testing.assert_allclose(np.sort(centres[:, 0]), [0.0, (100 * 4 + 10) / 101], atol=1e-9)

    @pytest.fixture
    def cost(self):
        """The sum of squared distances that a clustering of forty points into eight reaches."""
        points = np.random.default_rng(1).normal(size=(40, 2))

        def reached(restarts, key, centres=None):
            labels, found = WeightedKMeans(8, restarts)(points, np.ones(40), key, centres)
            return ((points - found[labels]) ** 2).sum(), found

        return reached

    def test_previous_centres_are_used_where_they_do_better_than_fresh_ones(self, cost):
        best, centres = cost(50, KEY)
        fresh = [cost(1, Key(1, t))[0] for t in range(6)]
        assert max(fresh) > best + 1e-6, "the case must have something to gain"
        assert max(cost(1, Key(1, t), centres)[0] for t in range(6)) == pytest.approx(best)

    def test_previous_centres_are_dropped_where_fresh_ones_do_better(self, cost):
        poor = np.zeros((8, 2)) + 100 * np.arange(8)[:, None]
        for t in range(6):
            assert cost(5, Key(1, t), poor)[0] <= cost(5, Key(1, t))[0] + 1e-12

    def test_more_restarts_are_never_worse(self, cost):
        costs = [(cost(1, Key(1, t))[0], cost(5, Key(1, t))[0]) for t in range(6)]
        assert all(five <= one + 1e-12 for one, five in costs)
        assert any(five < one - 1e-6 for one, five in costs), "the case must have something to gain"

    def test_the_run_s_key_decides_the_draws(self, cost):
        one, same, other = (cost(1, key)[1] for key in (KEY, KEY, Key(2, 0)))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_fewer_than_one_cluster_is_refused(self):
        with pytest.raises(UsageError, match="clusters is 0"):
            WeightedKMeans(0)

    @pytest.fixture
    def many(self, monkeypatch):
        """Four groups of 500 points, more than decide between starts; and which group each is in."""
        monkeypatch.setattr(weighted_kmeans, "MANY", 300)
        truth = np.arange(2000) % 4
        noise = np.random.default_rng(3).normal(size=(2000, 6))
        return (5 * np.eye(4, 6)[truth] + noise).astype(np.float32), truth

    def test_of_many_points_a_sample_decides_where_to_start_and_all_are_clustered(self, many):
        points, truth = many
        weights = 1.0 + np.arange(2000) % 7
        labels, centres = WeightedKMeans(4)(points, weights, KEY, None)
        assert adjusted_rand_score(truth, labels) > 0.97
        for cluster in range(4):
            inside = labels == cluster
            mean = np.average(points[inside].astype(np.float64), axis=0, weights=weights[inside])
            np.testing.assert_allclose(centres[cluster], mean, rtol=1e-12)
        assert np.array_equal(labels, np.square(points[:, None] - centres).sum(axis=-1).argmin(axis=1))

    def test_among_many_too_previous_centres_are_used_where_they_do_better_than_fresh_ones(self, monkeypatch):
        monkeypatch.setattr(weighted_kmeans, "MANY", 300)
        truth = np.arange(2000) % 30
        points = (8 * np.eye(30)[truth] + np.random.default_rng(3).normal(size=(2000, 30))).astype(np.float32)

        def right(key, centres):
            return adjusted_rand_score(truth, WeightedKMeans(30, restarts=1)(points, np.ones(2000), key, centres)[0])

        keys = [Key(1, t) for t in range(6)]
        assert min(right(key, None) for key in keys) < 1, "the case must have something to gain"
        assert min(right(key, 8 * np.eye(30)) for key in keys) == 1


class TestMatch:
    @pytest.mark.parametrize(
        ("new", "old", "wanted"),
        [
            ([0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]),
            ([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]),
            ([2, 2, 2, 0, 0, 1], [0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1, 2]),
            ([0, 0, 0, 1, 1], [-1, -1, 1, 0, 0], [1, 1, 1, 0, 0]),
        ],
    )
    def test_new_clusters_take_the_numbers_of_the_old_ones_they_overlap_most(self, new, old, wanted):
        numbers = match(np.array(new), np.array(old), 3)
        assert numbers[new].tolist() == wanted
        assert sorted(numbers) == [0, 1, 2]

    def test_the_total_overlap_counts_not_the_first_come(self):
        """Greedy would give new 0 the number 0 (overlap 3) and leave new 1 nothing; 2 + 3 = 5 is better."""
        new = np.array([0, 0, 0, 0, 0, 1, 1, 1])
        old = np.array([0, 0, 0, 1, 1, 0, 0, 0])
        assert match(new, old, 2)[new].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


@pytest.fixture
def toy(lines, simulator):
    """Four clients with slopes 1, -1, 1, -1 and different sizes, one weight and one bias."""
    return simulator(lines((1, -1, 1, -1), (1, 2, 3, 4)), "linear", threads=1)


def state_of(rows, labels, **more):
    return replace(first_state(stack_of(*rows), np.array(labels)), **more)


def asked(federation, state, task, clients=None):
    clients = np.arange(len(federation.names)) if clients is None else np.asarray(clients)
    meter = Meter(federation, Key(1, state.round), state.shares)
    return meter.ask(task, state.stack, state.labels[clients], clients)


class TestAssign:
    def rule(self, weigh=by_examples):
        return cluster_by_part("head_weight", WeightedKMeans(2), weigh)

    def apply(self, rule, state, replies):
        return rule(state, replies, KEY, None)

    def test_keep_takes_the_label_that_each_client_worked_under(self, toy):
        state = state_of([[0.9, 0], [-0.8, 0]], [UNPLACED] * 4)
        replies = asked(toy, state, Task(choose=(Loss(),)), clients=[0, 1, 3])
        assert self.apply(as_trained(), state, replies).labels.tolist() == [0, 1, UNPLACED, 1]

    def test_clustering_one_shared_model_gives_every_cluster_that_model_to_go_on_from(self, toy):
        state = state_of([[0.3, 0.1]], [0] * 4)
        assignment = self.apply(self.rule(), state, asked(toy, state, Task(fit=(STEP,))))
        assert assignment.parents == (0, 0)
        assert assignment.labels.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])

    def test_remembered_centres_are_in_the_order_of_the_labels(self, toy):
        state = state_of([[-0.9, 0.0], [0.8, 0.0]], [1, 0, 1, 0])
        assignment = self.apply(self.rule(), state, asked(toy, state, Task(fit=(STEP,))))
        assert assignment.labels.tolist() == [1, 0, 1, 0]
        assert assignment.memory.centres[:, 0].tolist() == pytest.approx([-0.92, 0.84])

    def test_those_absent_keep_their_labels(self, toy):
        state = state_of([[-0.9, 0.0], [0.8, 0.0]], [1, 0, 0, 1])
        replies = asked(toy, state, Task(fit=(STEP,)), clients=[0, 1])
        assert self.apply(self.rule(), state, replies).labels.tolist() == [1, 0, 0, 1]

    def test_those_absent_when_one_shared_model_splits_have_no_cluster_yet(self, toy):
        state = state_of([[0.3, 0.1]], [0] * 4)
        labels = self.apply(self.rule(), state, asked(toy, state, Task(fit=(STEP,)), clients=[0, 1])).labels
        assert labels[2:].tolist() == [UNPLACED, UNPLACED]
        assert sorted(labels[:2]) == [0, 1]

    def test_with_fewer_answers_than_clusters_nobody_moves_and_nothing_splits(self, toy):
        state = state_of([[0.3, 0.1]], [0] * 4)
        assignment = self.apply(self.rule(), state, asked(toy, state, Task(fit=(STEP,)), clients=[2]))
        assert assignment.parents is None
        assert assignment.labels.tolist() == [0] * 4

    def test_more_clusters_than_clients_are_refused(self, toy):
        state = state_of([[0.3, 0.1]], [0] * 4)
        rule = cluster_by_part("head_weight", WeightedKMeans(5), uniform)
        with pytest.raises(UsageError, match="clusters is 5 for 4 clients"):
            self.apply(rule, state, asked(toy, state, Task(fit=(STEP,))))

    def test_a_latecomer_joins_the_nearest_centre_and_the_others_stay(self, toy):
        memory = Clustered(np.array([[-1.0], [1.0]]), 1)
        state = state_of([[-0.9, 0], [0.9, 0]], [0, 0, UNPLACED, UNPLACED], memory=memory)
        replies = asked(toy, state, Task(fit=(STEP,)), clients=[0, 2, 3])
        assert self.apply(join_nearest("head_weight"), state, replies).labels.tolist() == [0, 0, 1, 0]

    @pytest.mark.parametrize(("limit", "done", "moves"), [(2, 1, True), (2, 2, False), (None, 9, True)])
    def test_until_changes_the_rule_after_so_many_clusterings(self, toy, limit, done, moves):
        """Not after so many rounds: the round is 7 in every case."""
        memory = Clustered(np.array([[-1.0], [1.0]]), done)
        state = replace(state_of([[-0.9, 0], [0.9, 0]], [1, 1, 0, 0], memory=memory), round=7)
        replies = asked(toy, state, Task(fit=(replace(STEP, lr=0.45),)))
        labels = self.apply(until(limit, self.rule(), as_trained()), state, replies).labels.tolist()
        assert (labels != [1, 1, 0, 0]) == moves

    def test_a_rule_for_no_rounds_is_refused(self):
        with pytest.raises(UsageError, match="shots is 0; it must be at least 1, or none"):
            until(0, as_trained(), as_trained())


class TestStarts:
    def start(self, start, federation):
        return start(federation, Key(1, BEGINNING), Meter(federation, Key(1, BEGINNING)).ask)

    def test_one_model_holds_everyone(self, toy):
        state = self.start(one_model(), toy)
        assert len(state.stack) == 1
        assert state.labels.tolist() == [0] * 4

    def test_a_model_per_client_is_the_same_model_each(self, toy):
        state = self.start(model_per_client(), toy)
        assert state.labels.tolist() == [0, 1, 2, 3]
        assert np.unique(state.stack.params, axis=0).shape[0] == 1

    def test_every_algorithm_of_a_seed_begins_with_the_same_first_model(self, toy):
        states = [self.start(start, toy) for start in (one_model(), model_per_client(), random_models(3))]
        assert {tuple(state.stack.params[0]) for state in states} == {tuple(states[0].stack.params[0])}

    def test_random_models_differ_and_nobody_is_placed(self, toy):
        state = self.start(random_models(3), toy)
        assert len(np.unique(state.stack.params, axis=0)) == 3
        assert state.labels.tolist() == [UNPLACED] * 4 == [-1] * 4

    @pytest.mark.parametrize("seed", range(6))
    def test_farthest_first_finds_one_client_of_each_group(self, images, simulator, seed):
        sim = simulator(images((30,) * 9, groups=3), "mlp(8)", threads=1)
        key = Key(seed, BEGINNING)
        state = farthest_first(3, Fit(steps=30, batch=8))(sim, key, Meter(sim, key).ask)
        losses = sim.engine.cross_losses(state.stack, np.arange(9))
        assert len(np.unique(losses.argmin(axis=1))) == 3, "each start is best for the clients of its own group"
        assert (losses.argmin(axis=1)[:3] == losses.argmin(axis=1)[3:6]).all()

    def test_farthest_first_never_takes_a_client_that_did_not_answer(self, images, simulator, flaky):
        sim = simulator(images((30,) * 6, groups=3), "mlp(8)", threads=1)
        absent = {BEGINNING: [0, 3]}
        state = self.start(farthest_first(3, Fit(steps=30, batch=8)), flaky(sim, absent))
        losses = sim.engine.cross_losses(state.stack, np.arange(6))
        assert len(np.unique(state.stack.params, axis=0)) == 3
        assert set(losses.argmin(axis=1)[[1, 4]]) & set(losses.argmin(axis=1)[[2, 5]]) == set()

    def test_farthest_first_takes_nobody_twice_even_one_whose_data_cannot_be_learned(self, images, simulator):
        data = images((40,) * 5, groups=1)
        data.train.y[:40] = np.random.default_rng(0).integers(4, size=40)
        state = self.start(farthest_first(4, Fit(steps=20, batch=8)), simulator(data, "mlp(8)", threads=1))
        assert len(np.unique(state.stack.params, axis=0)) == 4

    @pytest.mark.parametrize("absent", [[0, 1, 2], [0, 1, 2, 3]])
    def test_farthest_first_wants_as_many_answers_as_clusters(self, toy, flaky, absent):
        with pytest.raises(FederationError, match=r"only \d of 4 clients answered before round 0.*start=random"):
            self.start(farthest_first(2, STEP), flaky(toy, {BEGINNING: absent}))

    def test_farthest_first_with_one_cluster_is_the_plain_start(self, toy):
        plain, state = (self.start(start, toy) for start in (one_model(), farthest_first(1, STEP)))
        assert np.array_equal(plain.stack.params, state.stack.params)

    @pytest.mark.parametrize("start", [random_models(5), farthest_first(5, STEP), random_models(0)])
    def test_impossible_numbers_of_clusters_are_refused(self, toy, start):
        with pytest.raises(UsageError, match=r"clusters is \d for 4 clients; it must be between 1 and 4"):
            self.start(start, toy)


class TestTheDoor:
    """What the loop sends, to whom, and what it counts."""

    def test_a_client_without_a_cluster_gets_the_mean_of_the_models_by_their_shares(self, toy):
        state = state_of([[1.0, 0.0], [3.0, 8.0]], [0, UNPLACED, 1, UNPLACED], shares=np.array([0.75, 0.25]))
        replies = asked(toy, state, Task())
        assert replies.params.tolist() == [[1.0, 0.0], [1.5, 2.0], [3.0, 8.0], [1.5, 2.0]]
        assert replies.rows.tolist() == [0, UNPLACED, 1, UNPLACED]

    def test_before_anyone_has_answered_all_models_count_the_same(self, toy):
        state = unplaced(toy, stack_of([1.0, 0.0], [3.0, 8.0]))
        assert asked(toy, state, Task()).params.tolist() == [[2.0, 4.0]] * 4
        nowhere = np.full(4, UNPLACED)
        assert Meter(toy, KEY).ask(Task(), state.stack, nowhere, np.arange(4)).params.tolist() == [[2.0, 4.0]] * 4

    def test_that_mean_is_no_cluster_model_for_those_who_compare_all(self, toy):
        """Losses (w - slope)^2 + b^2 under the two models, for the slopes 1 and -1; the mean travels as a reference."""
        state = state_of([[1.0, 0.0], [3.0, 0.0]], [0, UNPLACED, 1, UNPLACED])
        replies = asked(toy, state, Task(report=Report(params=None, losses=True)))
        np.testing.assert_allclose(replies.losses, [[0, 4], [4, 16], [0, 4], [4, 16]], atol=1e-12)

    def test_shares_are_those_of_the_examples_that_were_averaged(self, toy):
        state = state_of([[1.0, 0.0], [3.0, 8.0]], [0, 1, 0, 1])
        replies = asked(toy, state, Task(fit=(STEP,)), clients=[0, 1, 3])
        _, shares = average(replies, state.labels[[0, 1, 3]], by_examples(replies), state.stack)
        assert shares.tolist() == pytest.approx([1 / 7, 6 / 7])

    def test_a_client_that_never_gets_placed_does_not_change_any_model(self, toy):
        algorithm = replace(fedavg(fit=STEP), start=None)
        state = state_of([[1.0, 0.0], [3.0, 8.0]], [UNPLACED, 0, 1, UNPLACED])
        replies = asked(toy, state, Task(fit=(STEP,)))
        new = advance(algorithm, state, replies, as_trained()(state, replies, KEY, None))
        assert new.labels.tolist() == state.labels.tolist()
        assert new.stack.params[0].tolist() == pytest.approx(replies.params[1].tolist())
        assert new.stack.params[1].tolist() == pytest.approx(replies.params[2].tolist())

    def test_a_client_that_chooses_is_sent_every_model_and_no_mean(self, toy):
        state = unplaced(toy, stack_of([1.0, 0.0], [-1.0, 0.0]))
        assert asked(toy, state, Task(choose=(Loss(),))).rows.tolist() == [0, 1, 0, 1]

    def test_costs_of_all_exchanges_of_a_round_add_up(self, toy):
        meter = Meter(toy, KEY)
        stack, clients = stack_of([1.0, 0.0]), np.arange(4)
        costs = [meter.ask(Task(fit=(STEP,)), stack, clients * 0, clients).cost for _ in range(2)]
        assert meter.cost == costs[0] + costs[1]
        assert meter.cost.steps == 8

    def test_evaluation_reports_metrics_and_no_parameters(self, toy):
        state = state_of([[1.0, 0.0], [-1.0, 0.0]], [0, 1, 1, UNPLACED], shares=np.array([1.0, 0.0]))
        replies = evaluate(fedavg(), toy, state, seed=1)
        assert replies.params is None
        assert replies.metrics[:, 0].tolist() == pytest.approx([0.0, 0.0, 4.0, 4.0])

    def test_a_fresh_choice_before_the_test_takes_the_better_model(self, toy):
        state = state_of([[1.0, 0.0], [-1.0, 0.0]], [1, 0, 1, 0])
        algorithm = replace(fedavg(), serve=Task(choose=(Loss(),)))
        assert evaluate(algorithm, toy, state, seed=1).metrics[:, 0].tolist() == [0.0] * 4


class TestParticipants:
    def test_all_when_the_fraction_is_one(self):
        assert participants(5, 1.0, KEY).tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(("fraction", "count"), [(0.5, 5), (0.31, 3), (0.01, 1), (0.99, 10)])
    def test_so_many_distinct_ones_in_ascending_order(self, fraction, count):
        found = participants(10, fraction, KEY)
        assert len(found) == count
        assert (np.diff(found) > 0).all()
        assert found.min() >= 0
        assert found.max() < 10

    def test_they_differ_from_round_to_round_and_everyone_gets_a_turn(self):
        drawn = [tuple(participants(10, 0.3, Key(1, t))) for t in range(40)]
        assert len(set(drawn)) > 20
        assert set(np.concatenate(drawn)) == set(range(10))

    def test_the_same_key_draws_the_same_ones(self):
        assert np.array_equal(participants(100, 0.2, KEY), participants(100, 0.2, KEY))


class TestTheLoop:
    def test_too_few_answers_stop_the_run_with_counts_and_reasons(self, toy, flaky):
        federation = flaky(toy, {1: [0, 1, 2]})
        run = rounds(fedavg(fit=STEP), federation, seed=1, conditions=Conditions(min_clients=2))
        assert next(run).state.round == 1
        with pytest.raises(FederationError, match=r"only 1 of 4 clients answered in round 1, at least 2.*client-0"):
            next(run)

    def test_the_start_s_cost_is_counted_in_the_first_round(self, toy):
        fit = replace(STEP, steps=3)
        start = farthest_first(2, fit)
        algorithm = replace(fedavg(fit=fit), start=start, task=lambda state: Task(choose=(Loss(),), fit=(fit,)))
        first, second = islice(rounds(algorithm, toy, seed=1), 2)
        assert (first.cost.steps, second.cost.steps) == (24, 12)
        assert first.cost.evaluations == second.cost.evaluations + toy.data.train.sizes.sum()

    def test_a_rule_may_set_the_models_itself(self, toy):
        def assign(state, replies, key, ask):
            models = stack_of([5.0, 5.0], [6.0, 6.0])
            return Assignment(np.array([0, 1, 1, 0]), {"seen": 1}, parents=(0, 0), finish=lambda mean: models)

        algorithm = Algorithm(start=one_model(), task=lambda state: Task(fit=(STEP,)), assign=assign)
        state = next(rounds(algorithm, toy, seed=1)).state
        assert state.stack.params.tolist() == [[5.0, 5.0], [6.0, 6.0]]
        assert state.memory == {"seen": 1}

    def test_a_rule_need_not_remember_anything(self, toy):
        state = replace(state_of([[1.0, 0.0]], [0] * 4), memory=Clustered(np.zeros(2), 1))
        assert advance(fedavg(STEP), state, asked(toy, state, Task()), Assignment(state.labels)).memory is None

    def test_a_cluster_of_which_nobody_answered_does_not_follow_its_momentum(self, toy):
        """Cluster 0 goes by the mean of its clients' steps and half of its last movement; cluster 1 rests."""
        algorithm = replace(fedavg(STEP), update=server_optimiser("sgd", 1.0, 0.5, 0.0, 0.0, 1e-3))
        moments = {"first": np.array([[0.2, 0.0], [7.0, 7.0]])}
        state = replace(state_of([[0.0, 0.0], [3.0, 8.0]], [0, 1, 0, 1]), moments=moments)
        replies = asked(toy, state, Task(fit=(STEP,)), clients=[0, 2])
        new = advance(algorithm, state, replies, Assignment(state.labels))
        goes = np.average(replies.params, axis=0, weights=replies.examples) + np.array([0.1, 0.0])
        np.testing.assert_allclose(new.stack.params, [goes, [3.0, 8.0]], atol=1e-6)
        np.testing.assert_allclose(new.moments["first"], [goes, [7.0, 7.0]], atol=1e-6)

    def test_a_split_copies_the_moments_of_the_parent(self, toy):
        parents = (0, 1, 1)
        state = replace(state_of([[1.0, 0.0], [2.0, 0.0]], [0, 0, 1, 1]), moments={"first": np.array([[1.0], [2.0]])})
        replies = asked(toy, state, Task(fit=(STEP,)))
        algorithm = replace(fedavg(fit=STEP), update=lambda models, mean, moments, answered: (mean, moments))
        new = advance(algorithm, state, replies, Assignment(np.array([0, 0, 1, 2]), {}, parents=parents))
        assert new.moments["first"].tolist() == [[1.0], [2.0], [2.0]]
        assert new.previous.params.tolist() == [[1.0, 0.0], [2.0, 0.0], [2.0, 0.0]]

    def test_a_shared_half_is_the_same_in_every_cluster(self, images, simulator):
        sim = simulator(images((20, 30, 10, 15), shape=(1, 12, 12)), "cnn", threads=1)
        algorithm = replace(fedavg(), start=random_models(2), shared="body", task=lambda s: Task((Loss(),), (STEP,)))
        last = list(islice(rounds(algorithm, sim, seed=1), 2))[-1]
        body, buffers = sim.model.layout.part("body"), sim.model.layout.buffer_part("body")
        weights = last.replies.examples
        for row in last.state.stack.params[:, body]:
            np.testing.assert_allclose(
                row, np.average(last.replies.params[:, body], axis=0, weights=weights), atol=1e-6
            )
        for row in last.state.stack.buffers[:, buffers]:
            np.testing.assert_allclose(row, np.average(last.replies.buffers, axis=0, weights=weights), atol=1e-6)


def test_costs_add_up_field_by_field():
    assert Cost(1, 2, 3, 4) + Cost(10, 20, 30, 40) == Cost(11, 22, 33, 44)


def test_initial_models_are_as_many_as_asked_and_differ(toy):
    assert len(np.unique(initial(toy, KEY, 4).params, axis=0)) == 4


def test_a_report_of_losses_needs_every_model_and_a_plain_one_only_its_own():
    assert Task(report=Report(losses=True)).receives_all
    assert not Task(fit=(STEP,)).receives_all


@pytest.mark.parametrize("text", ["fedprox+finetune", "fedprox-ensemble(members=2)+finetune", "wecfl+cks+finetune"])
def test_fine_tuning_is_plain_training_without_penalties(text):
    made = build_algorithm(text, None, Fit(steps=3))
    for member in (made, *made.members):
        assert member.serve.fit == (Fit(steps=3),)


def test_an_optimiser_that_is_only_named_is_as_its_paper_sets_it():
    """Reddi et al.: beta1 0.9, beta2 0.99, tau 1e-3 and no momentum."""
    models, mean = (Stack(np.array([[value, 1.0]]), np.zeros((1, 0))) for value in (0.0, 0.5))
    for name in SERVERS:
        one, other = optimiser_named(name, 0.1), server_optimiser(name, 0.1, 0.0, 0.9, 0.99, 1e-3)
        found, wanted = (update(models, mean, {}, np.array([True]))[0].params for update in (one, other))
        assert np.array_equal(found, wanted)
    assert optimiser_named(None, 0.1)(models, mean, {}, np.array([True]))[0] is mean


def test_a_state_says_how_many_clients_are_placed():
    stack = Stack(np.zeros((2, 1)), np.zeros((2, 0)))
    assert "4 clients, 3 placed" in repr(first_state(stack, np.array([0, 1, UNPLACED, 0])))
