"""Runs whose numbers can be derived by hand.

A client's loss is (w - slope)^2 + b^2, so one full-batch step of rate r moves w by -2 r (w - slope) and b by -2 r b.
With pull = 2 r: w <- (1 - pull) w + pull * slope.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.algorithms import wecfl
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.server.assign import Clustered
from coterie.server.merging import Merged
from coterie.server.serving import evaluate
from coterie.server.soft import Estimated
from coterie.server.start import first_state

RATE = 0.05
PULL = 2 * RATE
STEP = Fit(steps=1, batch=100, lr=RATE, momentum=0.0)
SLOPES = (1.0, 1.0, -1.0, -1.0)
PAIRS = (1, 2, 3, 6)
GROUPS = (0, 0, 1, 1)


@pytest.fixture
def federation(lines, simulator):
    return simulator(lines(SLOPES, PAIRS), "linear", threads=1)


def begin(rows, labels):
    """Round 0 with these weights; every bias is a quarter of its weight."""
    params = np.array([[w, w / 4] for w in rows])
    return first_state(Stack(params, np.zeros((len(rows), 0))), np.array(labels))


def pulled(weight, slope, steps=1):
    """Where ``steps`` full-batch steps take a weight."""
    for _ in range(steps):
        weight = weight - RATE * 2 * (weight - slope)
    return weight


def weights(done):
    return done.state.stack.params[:, 0].tolist()


class TestFedAvg:
    def test_it_goes_to_the_mean_of_the_slopes_by_examples(self, train, federation):
        mean = (1 * 1 + 2 * 1 - 3 * 1 - 6 * 1) / 12
        wanted = 2.0
        for done in train("fedavg", federation, 6, fit=STEP, state=begin([2.0], [0] * 4)):
            wanted = pulled(wanted, mean)
            assert weights(done) == pytest.approx([wanted], abs=1e-12)
        assert done.state.stack.params[0, 1] == pytest.approx(0.5 * (1 - PULL) ** 6, abs=1e-12)

    def test_it_ends_good_for_nobody(self, train, lines, simulator):
        even = simulator(lines(SLOPES, (1, 1, 1, 1)), "linear", threads=1)
        done = train("fedavg", even, 100, fit=STEP, state=begin([2.0], [0] * 4))[-1]
        assert weights(done) == pytest.approx([0.0], abs=1e-3)
        assert done.state.stack.params[0, 1] == pytest.approx(0.0, abs=1e-3)

    def test_two_local_steps_with_momentum(self, train, lines, simulator):
        """v1 = g0, w1 = w0 - r v1; v2 = 0.9 v1 + g1, w2 = w1 - r v2, with g = 2 (w - 1)."""
        alone = simulator(lines((1.0,), (1,)), "linear", threads=1)
        fit = Fit(steps=2, batch=100, lr=RATE, momentum=0.9)
        first = 3.0 - RATE * 2 * 2.0
        second = first - RATE * (0.9 * 2 * 2.0 + 2 * (first - 1))
        assert weights(train("fedavg", alone, 1, fit=fit, state=begin([3.0], [0]))[0]) == pytest.approx([second])

    def test_rates_that_decay_slow_the_pull(self, train, lines, simulator):
        alone = simulator(lines((1.0,), (1,)), "linear", threads=1)
        fit = Fit(steps=1, batch=100, lr=RATE, momentum=0.0, lr_decay=0.5)
        wanted, found = 3.0, train("fedavg", alone, 4, fit=fit, state=begin([3.0], [0]))
        for t, done in enumerate(found):
            wanted -= RATE * 0.5**t * 2 * (wanted - 1)
            assert weights(done) == pytest.approx([wanted], abs=1e-12)

    def test_the_loss_reported_is_that_of_the_model_received(self, train, federation):
        done = train("fedavg", federation, 1, fit=STEP, state=begin([2.0], [0] * 4))[0]
        assert done.replies.training_loss.tolist() == pytest.approx([1.25, 1.25, 9.25, 9.25])


class TestFedProx:
    def test_the_second_step_is_pulled_back_to_the_start(self, train, lines, simulator):
        alone = simulator(lines((1.0,), (1,)), "linear", threads=1)
        fit, strength = Fit(steps=2, batch=100, lr=RATE, momentum=0.0), 0.95
        first = pulled(3.0, 1.0)
        second = pulled(first, 1.0) - RATE * strength * (first - 3.0)
        done = train(f"fedprox(strength={strength})", alone, 1, fit=fit, state=begin([3.0], [0]))[0]
        assert weights(done) == pytest.approx([second], abs=1e-12)


class TestFedOpt:
    def test_one_round_of_adam(self, train, lines, simulator):
        alone = simulator(lines((1.0,), (1,)), "linear", threads=1)
        d = pulled(3.0, 1.0) - 3.0
        wanted = 3.0 + 0.01 * 0.1 * d / ((0.99 * 1e-6 + 0.01 * d * d) ** 0.5 + 1e-3)
        done = train("fedopt", alone, 1, fit=STEP, state=begin([3.0], [0]))[0]
        assert weights(done) == pytest.approx([wanted], abs=1e-12)


class TestLocal:
    def test_everyone_reaches_their_own_slope(self, train, federation):
        state = begin([2.0] * 4, [0, 1, 2, 3])
        wanted = [pulled(2.0, slope, steps=5) for slope in SLOPES]
        assert weights(train("local", federation, 5, fit=STEP, state=state)[-1]) == pytest.approx(wanted, abs=1e-12)


class TestIfca:
    def test_clients_choose_the_nearer_model_and_each_goes_its_way(self, train, federation):
        """(0.4 - 1)^2 < (-0.2 - 1)^2 although neither is near; the biases 0.1 and -0.05 are too small to matter."""
        up, down = 0.4, -0.2
        for done in train("ifca", federation, 5, fit=STEP, state=begin([up, down], [UNPLACED] * 4)):
            up, down = pulled(up, 1.0), pulled(down, -1.0)
            assert done.state.labels.tolist() == [0, 0, 1, 1]
            assert weights(done) == pytest.approx([up, down], abs=1e-12)
            assert done.state.shares.tolist() == pytest.approx([3 / 12, 9 / 12])

    def test_a_model_that_nobody_chooses_stays_as_it_is(self, train, federation):
        done = train("ifca", federation, 3, fit=STEP, state=begin([0.4, -0.2, 50.0], [UNPLACED] * 4))[-1]
        assert weights(done)[2] == 50.0
        assert done.state.shares[2] == 0

    def test_identical_starts_collapse_into_one_cluster(self, train, federation):
        """Why starts must differ: all tie and take the first, which any training then makes better than the second."""
        done = train("ifca", federation, 5, fit=STEP, state=begin([20.0, 20.0], [UNPLACED] * 4))
        average = train("fedavg", federation, 5, fit=STEP, state=begin([20.0], [0] * 4))
        for one, other in zip(done, average, strict=True):
            assert one.state.labels.tolist() == [0] * 4
            assert weights(one) == pytest.approx([weights(other)[0], 20.0], abs=1e-12)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_default_start_separates_the_groups_from_round_0(self, train, federation, seed):
        labels = train("ifca", federation, 1, fit=Fit(steps=10, batch=100, lr=0.1), seed=seed)[0].state.labels
        assert adjusted_rand_score(GROUPS, labels) == 1


class TestWecfl:
    def test_one_shared_start_finds_the_data_in_round_0(self, train, federation):
        """After one step all weights of a group are equal, so k-means has two points to tell apart."""
        for t, done in enumerate(train("wecfl", federation, 4, fit=STEP, state=begin([0.3], [0] * 4))):
            labels = done.state.labels
            assert adjusted_rand_score(GROUPS, labels) == 1, t
            wanted = [pulled(0.3, slope, steps=t + 1) for slope in (1.0, -1.0)]
            assert [weights(done)[labels[0]], weights(done)[labels[2]]] == pytest.approx(wanted, abs=1e-12)

    @pytest.mark.parametrize("text", ["wecfl", "fesem"])
    def test_all_clients_begin_from_the_one_model_that_fedavg_begins_from(self, train, federation, text):
        begun = [train(name, federation, 1, fit=STEP)[0].before.stack.params.tolist() for name in (text, "fedavg")]
        assert begun[0] == begun[1]

    def test_numbers_stay_with_their_clusters(self, train, federation):
        done = train("wecfl", federation, 6, fit=STEP, state=begin([0.3], [0] * 4))
        assert len({tuple(step.state.labels) for step in done}) == 1

    def test_different_starts_find_the_starts_and_not_the_data(self, train, federation):
        """Why all must start from one model: 5 and -5 stay farther apart than one step can move anyone."""
        starts = [0, 1, 0, 1]
        done = train("wecfl", federation, 5, fit=STEP, state=begin([5.0, -5.0], starts))
        for step in done:
            assert step.state.labels.tolist() == starts
        assert adjusted_rand_score(GROUPS, done[-1].state.labels) < 0.1

    def test_after_the_shots_clients_stay_where_they_are(self, train, federation):
        """The frozen labels are of the starts: rule and labels part from what clustering again would give."""
        starts = [0, 1, 0, 1]
        state = replace(begin([0.01, -0.01], starts), round=2, memory=Clustered(np.zeros((2, 1)), 2))
        free = train("wecfl(shots=3)", federation, 1, fit=STEP, state=state)[0]
        frozen = train("wecfl(shots=2)", federation, 3, fit=STEP, state=state)[-1]
        assert adjusted_rand_score(GROUPS, free.state.labels) == 1
        assert frozen.state.labels.tolist() == starts

    def test_someone_absent_when_the_clusters_form_joins_the_right_one_later(self, train, federation, flaky):
        """With pull 0.5 from the mean of the models, -0.2, to 0.4 and -0.6; the clusters are then near 1 and -1.

        From the first cluster's model it would find that start instead.
        """
        late, fit = flaky(federation, {t: [0, 3] for t in range(6)}), Fit(steps=1, batch=100, lr=0.25, momentum=0.0)
        done = train("wecfl", late, 7, fit=fit, state=begin([0.0], [0] * 4))
        assert done[-2].state.labels[[0, 3]].tolist() == [UNPLACED] * 2
        assert done[-1].replies.params[[0, 3], 0].tolist() == pytest.approx([0.4, -0.6], abs=0.01)
        assert adjusted_rand_score(GROUPS, done[-1].state.labels) == 1

    def test_someone_absent_during_all_shots_still_joins_the_right_one(self, train, federation, flaky):
        absent = flaky(federation, {t: [0, 3] for t in range(3)})
        done = train("wecfl(shots=2)", absent, 4, fit=STEP, state=begin([0.3], [0] * 4))
        assert done[-2].state.labels[[0, 3]].tolist() == [UNPLACED] * 2
        assert adjusted_rand_score(GROUPS, done[-1].state.labels) == 1

    def test_an_unplaced_client_is_tested_with_the_mean_by_examples(self, train, federation, flaky):
        """Pairs 2 and 3 answered: the mean weighs the two clusters 2 to 3; its bias is (1 - pull) * 0.075."""
        done = train("wecfl", flaky(federation, {0: [0, 3]}), 1, fit=STEP, state=begin([0.3], [0] * 4))[0]
        mean = (2 * pulled(0.3, 1.0) + 3 * pulled(0.3, -1.0)) / 5
        bias = (1 - PULL) * 0.3 / 4
        losses = evaluate(wecfl(), federation, done.state, seed=1).metrics[:, 2]
        wanted = [(mean - 1) ** 2 + bias**2, (mean + 1) ** 2 + bias**2]
        assert losses[[0, 3]].tolist() == pytest.approx(wanted, abs=1e-12)


class TestFesem:
    def test_it_differs_from_wecfl_where_sizes_do(self, train, lines, simulator):
        """After a step of pull 0.5 from 0 the weights are half the slopes: 0, 2 and 5.

        To join 2 and 5 or 0 and 2 is the question: by clients 4.5 against 2, by examples (100, 100 and 1 pairs)
        100 * 1 / 101 * 9 = 8.9 against 200.
        """
        sim = simulator(lines((0.0, 4.0, 10.0), (100, 100, 1)), "linear", threads=1)
        fit = Fit(steps=1, batch=1000, lr=0.25, momentum=0.0)

        def groups(text):
            labels = train(text, sim, 1, fit=fit, state=begin([0.0], [0] * 3))[0].state.labels
            return [bool(labels[0] == labels[1]), bool(labels[1] == labels[2])]

        assert groups("fesem") == [True, False]
        assert groups("wecfl") == [False, True]

    def test_its_means_are_by_examples_too(self, train, federation):
        done = train("fesem", federation, 1, fit=STEP, state=begin([0.3], [0] * 4))[0]
        assert sorted(done.state.shares) == pytest.approx([3 / 12, 9 / 12])


class TestClove:
    """Losses under the weights 3 and 6 (biases 0.75 and 1.5) are (4.5625, 27.25) for slope 1, (16.5625, 51.25) for -1.

    Everybody prefers the first model. Matched as they prefer, the clients lose 2 (4.5625 + 51.25) = 111.625 in all; the
    other way 2 (27.25 + 16.5625) = 87.625.
    """

    def test_where_all_clients_prefer_one_model_the_groups_are_still_told_apart(self, train, federation):
        near, far = 3.0, 6.0
        for done in train("clove", federation, 5, fit=STEP, state=begin([near, far], [UNPLACED] * 4)):
            near, far = pulled(near, -1.0), pulled(far, 1.0)
            assert done.state.labels.tolist() == [1, 1, 0, 0]
            assert weights(done) == pytest.approx([near, far], abs=1e-12)
            assert done.state.shares.tolist() == pytest.approx([9 / 12, 3 / 12])

    def test_ifca_collapses_from_the_same_start(self, train, federation):
        done = train("ifca", federation, 5, fit=STEP, state=begin([3.0, 6.0], [UNPLACED] * 4))[-1]
        assert done.state.labels.tolist() == [0] * 4

    def test_a_round_costs_all_models_down_and_one_to_and_fro(self, train, federation):
        """A model has two numbers of 8 bytes, a row 8; up go label, examples and losses, then also model and loss."""
        (done,) = train("clove", federation, 1, fit=STEP, state=begin([3.0, 6.0], [UNPLACED] * 4))
        assert done.cost.bytes_down == 4 * (2 * 16 + 8) + 4 * (16 + 8)
        assert done.cost.bytes_up == 4 * (8 + 8 + 2 * 8) + 4 * (8 + 8 + 16 + 8)
        assert (done.cost.evaluations, done.cost.steps) == (2 * 24, 4)

    def test_with_fewer_answers_than_clusters_nobody_moves(self, train, federation, flaky):
        few = flaky(federation, {1: {0, 1, 2}})
        first, second = train("clove", few, 2, fit=STEP, state=begin([3.0, 6.0], [UNPLACED] * 4))
        assert second.state.labels.tolist() == first.state.labels.tolist() == [1, 1, 0, 0]
        assert weights(second) == pytest.approx([pulled(3.0, -1.0, 2), weights(first)[1]], abs=1e-12)


class TestStoCFL:
    """The anchor has weight 0 and bias 0, so that updates are 2 r slope: cosines between clients are 1 or -1."""

    def start(self, everyone):
        anchor, everyone = (Stack(np.array([[w, 0.0]]), np.zeros((1, 0))) for w in (0.0, everyone))
        memory = Merged(anchor, everyone, np.zeros((0, 2)), np.zeros(0, np.int64))
        return replace(first_state(everyone, np.full(4, UNPLACED)), memory=memory)

    def test_clusters_are_pulled_to_the_model_of_all(self, train, federation):
        strength, up, down, everyone = 0.3, 2.0, 2.0, 2.0
        text = f"stocfl(strength={strength})"
        for done in train(text, federation, 5, fit=STEP, state=self.start(2.0)):
            up = pulled(up, 1.0) - RATE * strength * (up - everyone)
            down = pulled(down, -1.0) - RATE * strength * (down - everyone)
            everyone = pulled(everyone, (1 + 2 - 3 - 6) / 12)
            assert done.state.labels.tolist() == [0, 0, 1, 1]
            assert weights(done) == pytest.approx([up, down], abs=1e-12)
            assert done.state.memory.everyone.params[0, 0] == pytest.approx(everyone, abs=1e-12)

    def test_the_server_keeps_the_sum_of_updates_of_each_cluster(self, train, federation):
        memory = train("stocfl", federation, 3, fit=STEP, state=self.start(2.0))[-1].state.memory
        assert memory.counts.tolist() == [2, 2]
        np.testing.assert_allclose(memory.sums, [[2 * PULL, 0], [-2 * PULL, 0]], atol=1e-12)

    def test_someone_late_joins_a_cluster_without_moving_it_and_alone_begins_with_the_model_of_all(
        self, train, federation, flaky
    ):
        """Clients 2 and 3 come in round 1: their cluster begins where the model of all is by then."""
        late = flaky(federation, {0: {1, 2, 3}, 1: {0}})
        first, second = train("stocfl(strength=0)", late, 2, fit=STEP, state=self.start(2.0))
        assert first.state.labels.tolist() == [0, UNPLACED, UNPLACED, UNPLACED]
        one = pulled(2.0, 1.0)
        assert weights(first) == pytest.approx([one], abs=1e-12)
        assert second.state.labels.tolist() == [0, 0, 1, 1]
        assert weights(second) == pytest.approx([pulled(one, 1.0), pulled(one, -1.0)], abs=1e-12)


class TestFedSoft:
    """Under the weights 0.5 and -0.5 all points of slope 1 have the least loss with the first, of -1 with the second.

    Raised to 0.25 the shares (1, 0) are (1, 0.25) / 1.25 = (0.8, 0.2): clients begin from 0.8 * 0.5 - 0.2 * 0.5 = 0.3.
    """

    def start(self):
        state = begin([0.5, -0.5], [UNPLACED] * 4)
        return replace(state, memberships=np.full((4, 2), 0.5), memory=Estimated(np.full(4, -1)))

    def test_clients_train_their_mixtures_and_models_are_means_by_shares(self, train, federation):
        models = np.array([0.5, -0.5])
        shares = np.array([[0.8, 0.2]] * 2 + [[0.2, 0.8]] * 2)
        for done in train("fedsoft(smoothing=0.25)", federation, 4, fit=STEP, state=self.start()):
            trained = [pulled(share @ models, slope) for share, slope in zip(shares, SLOPES, strict=True)]
            counted = shares * np.array(PAIRS)[:, None]
            models = counted.T @ trained / counted.sum(axis=0)
            np.testing.assert_allclose(done.state.memberships, shares, atol=1e-12)
            assert weights(done) == pytest.approx(models.tolist(), abs=1e-12)
            assert done.state.labels.tolist() == [0, 0, 1, 1]
            assert done.state.shares.tolist() == pytest.approx((counted.sum(axis=0) / counted.sum()).tolist())

    def test_the_second_step_is_pulled_back_to_the_mixture(self, train, federation):
        """The penalty is the sum over both models; it is that of one distance, to the mixture."""
        two, strength, models = replace(STEP, steps=2), 0.9, np.array([0.5, -0.5])
        found = train(f"fedsoft(smoothing=0.25,strength={strength})", federation, 1, fit=two, state=self.start())[0]
        for share, slope, got in zip(found.state.memberships, SLOPES, found.replies.params[:, 0], strict=True):
            weight = share @ models
            for _ in range(2):
                weight -= RATE * (2 * (weight - slope) + strength * sum(share * (weight - models)))
            assert got == pytest.approx(weight, abs=1e-12)

    def test_shares_are_estimated_every_so_many_rounds(self, train, federation):
        done = train("fedsoft(interval=3)", federation, 7, fit=STEP, state=self.start())
        assert [step.cost.evaluations > 0 for step in done] == [True, False, False, True, False, False, True]
        assert done[-1].state.memory.rounds.tolist() == [6] * 4

    def test_someone_absent_when_shares_are_estimated_is_asked_when_it_is_back(self, train, federation, flaky):
        done = train("fedsoft(interval=9)", flaky(federation, {0: {2}}), 2, fit=STEP, state=self.start())
        assert done[0].state.labels.tolist() == [0, 0, UNPLACED, 1]
        assert done[0].state.memberships[2].tolist() == [0.5, 0.5]
        assert done[1].state.labels.tolist() == [0, 0, 1, 1]
        assert done[1].cost.evaluations == 2 * 6
