"""Clustering once: distances, events, the rule, and those who come late. Numbers by hand or by a slow double loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.errors import UnknownName, UsageError
from coterie.experiments.checkpoint import save_state
from coterie.experiments.run_folder import load_state
from coterie.experiments.scores import round_diagnostics
from coterie.models.layout import Layout
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report, Sample
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server import one_shot as events
from coterie.server.clustering.clusterers import clusterers
from coterie.server.contract import Assignment
from coterie.server.distances import vectors as distances
from coterie.server.distances.separation import differ, separation_threshold
from coterie.server.distances.vectors import cross_losses, of_losses, of_parameters, of_updates, pairwise
from coterie.server.exchange import Meter
from coterie.server.one_shot import (
    OneShot,
    after,
    complete,
    follow,
    join_or_follow,
    joined,
    once,
    temperature,
    temperature_rises,
)
from coterie.server.start import first_state

KEY = Key(1, 0)
HALF = Fit(steps=1, batch=100, lr=0.25, momentum=0.0)
"""One step that takes a weight half of the way to the client's slope."""
SLOPES = (1.0, -1.0, 1.0, -1.0, 1.0, -1.0)


def begin(weight, clients, bias=0.0):
    one = first_state(Stack(np.array([[weight, bias]]), np.zeros((1, 0))), np.zeros(clients, dtype=np.int64))
    return replace(one, formed=False)


def whole(size):
    """The layout of a model that has no parts."""
    return Layout(size, 0, {"all": np.arange(size)}, {"all": np.arange(0)})


def made_up(params, layout=None, buffers=None):
    params = np.asarray(params, dtype=float)
    count = len(params)
    layout = layout or whole(params.shape[1])
    buffers = np.zeros((count, 0)) if buffers is None else buffers
    return Replies(layout, np.arange(count), np.zeros(count, int), np.ones(count, int), params, buffers)


@pytest.fixture
def toy(lines, simulator):
    return simulator(lines(SLOPES, (1, 2, 3, 4, 5, 6)), "linear", threads=1)


@pytest.fixture(scope="module")
def softmax(images, simulator):
    """Six clients in two groups with a softmax layer, each client's own model, and the door to them."""
    data = images((24, 30, 18, 36, 24, 27))
    sim = simulator(data, "logistic", threads=1)
    ask = Meter(sim, KEY).ask
    start = Stack(*(part[None] for part in sim.model.initial(1)))
    zeros, clients = np.zeros(6, dtype=np.int64), np.arange(6)
    return data, ask, ask(Task(fit=(Fit(steps=40, batch=16, lr=0.1),)), start, zeros, clients)


class TestDistances:
    @pytest.mark.parametrize("metric", ["cosine", "euclidean", "manhattan"])
    def test_blocks_of_columns_give_what_a_double_loop_gives(self, metric, monkeypatch):
        monkeypatch.setattr(distances, "BLOCK_BYTES", 8 * 5 * 3)
        rng = np.random.default_rng(0)
        params, start = rng.normal(size=(5, 10)), rng.normal(size=10)
        formulas = {
            "cosine": lambda u, v: 1 - u @ v / (np.linalg.norm(u) * np.linalg.norm(v)),
            "euclidean": lambda u, v: np.linalg.norm(u - v),
            "manhattan": lambda u, v: np.abs(u - v).sum(),
        }
        _, found = of_updates(metric)(made_up(params), np.tile(start, (5, 1)), None)
        for i in range(5):
            for j in range(5):
                wanted = formulas[metric](params[i] - start, params[j] - start)
                assert found[i, j] == pytest.approx(wanted, abs=1e-12)

    def test_cosine_is_of_updates_not_of_parameters(self):
        """Far from zero all parameters point the same way; what was added does not."""
        replies, starts = made_up([[101.0, 100.0], [99.0, 100.0]]), np.full((2, 2), 100.0)
        assert of_updates("cosine")(replies, starts, None)[1][0, 1] == pytest.approx(2.0)
        assert of_parameters("cosine")(replies, starts, None)[1][0, 1] < 1e-4

    def test_buffers_never_count(self):
        """A known public slip lets counters and running statistics into the updates."""
        one = made_up([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        other = made_up(one.params, buffers=np.random.default_rng(0).normal(size=(3, 50)) * 1e6)
        for measure in (of_updates("cosine"), of_parameters("euclidean")):
            assert np.array_equal(measure(one, np.zeros((3, 2)), None)[1], measure(other, np.zeros((3, 2)), None)[1])

    def test_an_update_of_zeros_is_at_distance_1_from_every_other(self):
        found = pairwise(iter([np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])]), 3, "cosine")
        assert found.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]

    def test_rounding_puts_no_cosine_distance_below_0_or_above_2(self):
        rows = np.random.default_rng(0).normal(size=(40, 50))
        found = pairwise(iter([np.concatenate([rows, 3 * rows, -7 * rows])]), 120, "cosine")
        assert found.min() == 0
        assert found.max() == 2

    @pytest.mark.parametrize("formula", [distances.between_models, distances.between_clients])
    def test_loss_distances_do_not_satisfy_the_triangle_inequality(self, formula):
        """The paper says that they do. Clients 0 and 1 serve each other badly, and client 2 well both ways."""
        losses = np.zeros((3, 3))
        losses[0, 1] = losses[1, 0] = 10
        assert formula(losses).tolist() == [[0, 20, 0], [20, 0, 0], [0, 0, 0]]

    def test_an_unknown_metric_is_refused(self):
        with pytest.raises(UnknownName, match="did you mean 'euclidean'"):
            of_updates("euclidian")
        with pytest.raises(UnknownName, match="unknown loss distance 'test'"):
            of_losses("test")


class TestCrossLosses:
    @pytest.fixture
    def outputs_by_hand(self, softmax):
        """The outputs for client i's examples under client j's model and the true classes, written out."""
        data, _, replies = softmax
        layout, table = replies.layout, {}
        for j in range(6):
            weight = replies.params[j, layout.part("head_weight")].reshape(4, 64).astype(float)
            bias = replies.params[j, np.setdiff1d(layout.numbers("head"), layout.numbers("head_weight"))]
            for i in range(6):
                x, y = data.train.of(i)
                outputs = x.reshape(len(x), 64) @ weight.T + bias
                table[i, j] = list(zip(outputs, y, strict=True))
        return table

    @pytest.fixture
    def by_hand(self, outputs_by_hand):
        """L[i, j], the mean cross entropy of client i's examples under client j's model."""
        return self.table(outputs_by_hand, lambda row, k: np.log(np.exp(row - row[k]).sum()))

    @staticmethod
    def table(outputs, loss):
        return np.array([[np.mean([loss(*example) for example in outputs[i, j]]) for j in range(6)] for i in range(6)])

    @pytest.mark.parametrize("block", [1, 64 << 20])
    def test_they_are_those_of_a_double_loop_in_blocks_of_any_size(self, softmax, by_hand, block, monkeypatch):
        monkeypatch.setattr(distances, "BLOCK_BYTES", block)
        _, ask, replies = softmax
        np.testing.assert_allclose(cross_losses(replies, ask), by_hand, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("bounded", "loss"),
        [
            ("zero-one", lambda row, k: float(row.argmax() != k)),
            ("clipped", lambda row, k: min(1.0, np.log(np.exp(row - row[k]).sum()) / np.log(4))),
        ],
    )
    def test_bounded_losses_are_those_of_a_double_loop(self, softmax, outputs_by_hand, bounded, loss):
        _, ask, replies = softmax
        found = cross_losses(replies, ask, Report(params=None, losses=True, bounded=bounded))
        np.testing.assert_allclose(found, self.table(outputs_by_hand, loss), atol=1e-5)
        assert 0 <= found.min() < 0.3 < 0.7 < found.max() <= 1, "models must be good for some and bad for others"

    @pytest.mark.parametrize("cross", ["exact", "sampled(first=4)"])
    @pytest.mark.parametrize("loss", ["zero-one", "clipped"])
    def test_lcfl_finds_the_groups_by_bounded_losses(self, images, simulator, train, cross, loss):
        data = images((60,) * 8)
        done = train(f"lcfl(loss={loss},cross={cross})", simulator(data, threads=1), 2, fit=Fit(steps=40, lr=0.1))
        assert adjusted_rand_score(data.groups, done[-1].state.labels) == 1

    def test_squared_errors_are_clipped_at_1_and_cannot_be_0_or_1(self, toy, train):
        """The squared loss of slope 1 under the weights 0.5 and -1 is 0.25 and 4, of slope -1 it is 2.25 and 0."""
        ask = Meter(toy, KEY).ask
        stack = Stack(np.array([[0.5, 0.0], [-1.0, 0.0]], np.float32), np.zeros((2, 0), np.float32))
        zeros, everyone = np.zeros(6, dtype=np.int64), np.arange(6)
        found = ask(Task(report=Report(None, losses=True, bounded="clipped")), stack, zeros, everyone).losses
        np.testing.assert_allclose(found, [[0.25, 1], [1, 0]] * 3, atol=1e-6)
        with pytest.raises(UsageError, match="loss is zero-one and the target a number; it must be clipped, or none"):
            ask(Task(report=Report(None, losses=True, bounded="zero-one")), stack, zeros, everyone)
        with pytest.raises(UsageError, match="loss is zero-one and the target a number"):
            train("lcfl(loss=zero-one,warmup=9)", toy, 1)

    def test_an_unknown_loss_is_refused(self):
        with pytest.raises(UnknownName, match="unknown bounded loss 'zero-1'; did you mean 'zero-one'"):
            ct.lcfl(loss="zero-1", cross="sampled")
        with pytest.raises(UsageError, match=r"report\.bounded is 'hinge'; it must be zero-one or clipped"):
            Report(params=None, losses=True, bounded="hinge")
        with pytest.raises(
            UsageError, match=r"report\.bounded is clipped; it must be None where no losses are reported"
        ):
            Report(bounded="clipped")

    def test_models_are_sent_in_blocks_of_so_many_bytes(self, softmax, monkeypatch):
        _, ask, replies = softmax
        one, sent = replies.models().nbytes // 6, []
        monkeypatch.setattr(distances, "BLOCK_BYTES", 4 * one + one // 2)

        def listen(task, stack, labels, clients, references=None):
            sent.append(len(stack))
            return ask(task, stack, labels, clients, references)

        cross_losses(replies, listen)
        assert sent == [4, 2]

    def test_both_distances_follow_their_equations(self, softmax):
        _, ask, replies = softmax
        L = np.random.default_rng(0).normal(size=(6, 6))

        def made(task, stack, labels, clients, references=None):
            told = np.abs(L - L.diagonal()[:, None]) if task.report.differences else L
            return replace(ask(task, stack, labels, clients, references), losses=told)

        for name, formula in {
            "data": lambda i, j: abs(L[i, i] - L[i, j]) + abs(L[j, i] - L[j, j]),
            "models": lambda i, j: abs(L[i, i] - L[j, i]) + abs(L[i, j] - L[j, j]),
        }.items():
            kept, found = of_losses(name)(replies, None, made)
            assert len(kept) == 6
            np.testing.assert_allclose(found, [[formula(i, j) for j in range(6)] for i in range(6)], atol=1e-12)

    def test_a_client_that_does_not_answer_cannot_be_measured(self, softmax):
        _, ask, replies = softmax

        def deaf(task, stack, labels, clients, references=None):
            return ask(task, stack, labels[clients != 2], clients[clients != 2])

        kept, found = of_losses()(replies, None, deaf)
        assert kept.clients.tolist() == [0, 1, 3, 4, 5]
        others = np.ix_(kept.clients, kept.clients)
        np.testing.assert_allclose(found, of_losses()(replies, None, ask)[1][others], atol=1e-9)

    @pytest.mark.parametrize(("losses", "differences"), [("data", True), ("models", False)])
    def test_only_losses_come_back_and_of_eq_2_only_differences_to_the_own_model(self, softmax, losses, differences):
        _, ask, replies = softmax
        asked = []

        def listen(task, stack, labels, clients, references=None):
            asked.append(task)
            return ask(task, stack, labels, clients, references)

        of_losses(losses)(replies, None, listen)
        assert asked == [Task(report=Report(params=None, losses=True, differences=differences))]

    @pytest.mark.parametrize("own", [1, 3000, 1 << 30])
    @pytest.mark.parametrize("block", [1, 3000, 64 << 20])
    def test_differences_are_those_of_a_double_loop_in_blocks_of_any_size(
        self, softmax, by_hand, block, own, monkeypatch
    ):
        """A model has 260 numbers: blocks of 1, 2 and 6 models, own models of 1, 2 and 6 clients."""
        monkeypatch.setattr(distances, "BLOCK_BYTES", block)
        monkeypatch.setattr(distances, "OWN_BYTES", own)
        _, ask, replies = softmax
        told = []

        def listen(task, stack, labels, clients, references=None):
            scored = ask(task, stack, labels, clients, references)
            told.append(scored.cost)
            return scored

        found = cross_losses(replies, listen, Report(params=None, losses=True, differences=True))
        np.testing.assert_allclose(found, np.abs(by_hand - by_hand.diagonal()[:, None]), rtol=1e-5, atol=1e-6)
        exchanges = {1: 6, 3000: 3}.get(block, 1)
        if own == 1 << 30:  # everybody is asked at once, and is sent its own model beside a block that is not all
            beside, model = exchanges * (exchanges > 1), 4 * 260
            assert len(told) == exchanges
            assert sum(cost.evaluations for cost in told) == (6 + beside) * replies.examples.sum()
            assert sum(cost.bytes_down for cost in told) == 6 * ((6 + beside) * model + 8 * exchanges)

    def test_a_difference_that_is_not_finite_counts_as_the_largest_and_the_own_is_0(self, softmax):
        _, ask, replies = softmax

        def broken(task, stack, labels, clients, references=None):
            found = ask(task, stack, labels, clients, references)
            losses = found.losses.copy()
            losses[0, [0, 1]] = np.nan
            return replace(found, losses=losses)

        found = cross_losses(replies, broken, Report(params=None, losses=True, differences=True))
        assert np.isfinite(found).all()
        assert found[0, 1] == found.max()
        assert not found.diagonal().any()

    def test_differences_of_samples_cannot_be_asked_for(self):
        """A sum of differences without a sign is not the difference of the sums."""
        with pytest.raises(
            UsageError, match=r"report\.differences is true; it must be false without losses, or with a"
        ):
            Report(params=None, losses=True, differences=True, sample=Sample(0, 8))

    def test_a_loss_that_is_not_finite_counts_as_the_largest(self, softmax):
        _, ask, replies = softmax

        def broken(task, stack, labels, clients, references=None):
            found = ask(task, stack, labels, clients, references)
            losses = found.losses.copy()
            losses[0, 1] = np.inf
            return replace(found, losses=losses)

        found = cross_losses(replies, broken)
        assert np.isfinite(found).all()
        assert found[0, 1] == found.max()


def test_the_same_function_with_other_parameters_moves_diffnorm_and_not_lcfl(softmax):
    """A constant vector added to the weights of all classes of a softmax layer changes no output (lcfl section IV)."""
    data, ask, replies = softmax
    params, shifted = replies.params.copy(), [0, 1, 4]
    weights = params[:, replies.layout.part("head_weight")].reshape(6, 4, 64)
    weights[shifted] += np.random.default_rng(0).normal(size=64).astype(np.float32)
    params[:, replies.layout.part("head_weight")] = weights.reshape(6, -1)
    other = replace(replies, params=params)
    parted, by = np.isin(np.arange(6), shifted), clusterers.build("kmedoids(2)")
    (plain, moved) = (of_losses()(r, None, ask)[1] for r in (replies, other))
    np.testing.assert_allclose(plain, moved, atol=1e-4)
    assert adjusted_rand_score(data.groups, by(moved, KEY)) == 1
    (plain, moved) = (of_parameters("euclidean")(r, None, ask)[1] for r in (replies, other))
    assert adjusted_rand_score(data.groups, by(plain, KEY)) == 1
    assert adjusted_rand_score(parted, by(moved, KEY)) == 1


class TestFollowing:
    def test_new_clusters_follow_the_mean_updates_where_no_client_is_in_both_samples(self):
        """Nobody of the second sample has a label: the numbers of the clusterer mean nothing."""
        likeness = np.array([[-0.2, 0.9], [0.8, 0.1]])
        assert join_or_follow(np.array([0, 0, 1]), np.full(3, UNPLACED), likeness)[0].tolist() == [1, 0]

    def test_both_kinds_of_likeness_count(self):
        """Two of the first cluster's three known members were in the old 0; its update may say otherwise, louder."""
        new, old = np.array([0, 0, 0, 1]), np.array([0, 0, 1, UNPLACED])
        for cosine, wanted in ((0.1, 0), (0.9, 1)):
            assert join_or_follow(new, old, np.array([[0.0, cosine], [0.0, 0.0]]))[0][0] == wanted

    def test_a_sample_of_one_group_that_was_parted_stays_in_it(self):
        """Both halves are most like the old 0; matched one to one, the second would get the number of the others."""
        numbers, parents = join_or_follow(
            np.array([0, 0, 0, 1]), np.full(4, UNPLACED), np.array([[0.9, 0.13], [0.75, 0.03]])
        )
        assert numbers.tolist() == [0, 0]
        assert parents == (0, 1), "the others keep their place"

    def test_a_third_cluster_goes_on_from_the_one_it_is_most_like(self):
        likeness = np.array([[0.9, 0.0], [0.0, 0.8], [-0.5, 0.7]])
        numbers, parents = join_or_follow(np.array([0, 1, 2]), np.full(3, UNPLACED), likeness)
        assert numbers.tolist() == [0, 1, 2]
        assert parents == (0, 1, 1)

    @pytest.mark.parametrize(
        ("participation", "seed"),
        [*product((0.1, 0.2, 0.3), range(1, 6)), *product((0.1,), (6, 7, 12))],
    )
    def test_few_shots_of_samples_do_not_mix_the_groups(self, seed, participation):
        """Matched through common clients alone, 0.1 and seed 1 ended with an adjusted Rand index of 0.57.

        In the second shots of 6, 7 and 12 all four clients are of one group: matched one to one they ended below 0.65.
        """
        clients = ct.load("digits").partition("rotation(0,180)", clients=40, seed=seed)
        shots = ct.ocfl_kmeans(clusters=2, shots=2, fit=Fit(steps=10))
        run = ct.run(shots, clients, model="mlp", rounds=8, seed=seed, participation=participation, eval_every=8)
        assert len(run.state.stack) == 2
        assert run.summary["ari"] == 1


class TestTemperature:
    def test_it_is_the_norm_as_a_share_of_the_largest(self):
        found = np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 2.0], [0.5, 2.0, 0.0]])
        assert temperature(found) == pytest.approx((2 * (1 + 0.25 + 4) / (3 * 2 * 4)) ** 0.5)
        assert temperature(found, p=1) == pytest.approx(2 * 3.5 / (3 * 2 * 2))

    def fires(self, toy, monkeypatch, series):
        """The rounds in which hand-made temperatures make the event happen."""
        left = iter(series)
        monkeypatch.setattr(events, "temperature", lambda distances, p: next(left))
        state, happened, seen = begin(0.3, 6), [], None
        replies = Meter(toy, KEY).ask(Task(fit=(HALF,)), state.stack, state.labels, np.arange(6))
        for t, value in enumerate(series):
            now, seen = temperature_rises()(seen, replace(state, round=t), replies)
            assert seen == value
            happened += [t] if now else []
        return happened

    @pytest.mark.parametrize(
        ("series", "wanted"),
        [((0.41, 0.39, 0.41), [2]), ((0.4, 0.5, 0.45), [1]), ((0.5, 0.5, 0.4), []), ((0.9,), [])],
    )
    def test_it_never_fires_in_round_0_and_only_at_a_rise(self, toy, monkeypatch, series, wanted):
        """The algorithm box of the paper begins at minus infinity, which would fire in round 0."""
        assert self.fires(toy, monkeypatch, series) == wanted

    @pytest.mark.parametrize("name", ["ocfl-hdbscan", "ocfl-meanshift", "ocfl-affinity", "ocfl-kmeans"])
    def test_the_round_of_the_rise_is_already_averaged_per_cluster_and_it_is_the_only_one(
        self, name, toy, train, monkeypatch
    ):
        left = iter([0.41, 0.39, 0.41])
        monkeypatch.setattr(events, "temperature", lambda distances, p: next(left))
        done = train(name, toy, 5, fit=HALF, state=begin(0.0, 6))
        assert [len(step.state.stack) for step in done] == [1, 1, 2, 2, 2]
        fired = done[2]
        assert fired.state.labels.tolist() == [0, 1, 0, 1, 0, 1]
        origin = fired.before.stack.params[0, 0]
        assert fired.state.stack.params[:, 0].tolist() == pytest.approx([(origin + 1) / 2, (origin - 1) / 2])
        assert [step.state.memory.seen for step in done] == [0.41, 0.39, 0.41, None, None]

    def test_two_answers_have_one(self, toy):
        """The slopes 1 and -1 pull a weight of 0.3 in opposite directions: as far apart as can be."""
        state = begin(0.3, 6)
        replies = Meter(toy, KEY).ask(Task(fit=(HALF,)), state.stack, state.labels[:2], np.arange(2))
        happens, seen = temperature_rises()(None, state, replies)
        assert not happens
        assert seen == pytest.approx(1.0)

    def test_with_one_answer_there_is_none(self, toy):
        state = begin(0.3, 6)
        replies = Meter(toy, KEY).ask(Task(fit=(HALF,)), state.stack, state.labels[:1], np.arange(1))
        assert temperature_rises()(0.5, state, replies) == (False, 0.5)

    @pytest.mark.parametrize("text", ["ocfl-kmeans", "ocfl-kmeans+cam"])
    def test_records_show_in_every_round_what_the_event_sees_until_the_clusters_form(
        self, text, images, simulator, train
    ):
        done = train(text, simulator(images(), "mlp(8)"), 6)
        shown = [round_diagnostics(step)["temperature"] for step in done]
        seen = [step.state.memory.seen for step in done]
        fired = [len(step.state.stack) for step in done].index(2)
        assert shown[: fired + 1] == seen[: fired + 1]
        assert seen[fired + 1 :] == [None] * (5 - fired)
        assert shown[:fired] == sorted(shown[:fired], reverse=True)
        assert all(0 < value < 1 for value in shown)

    def test_the_norm_must_be_one(self):
        with pytest.raises(UsageError, match=r"p is 0\.5; it must be at least 1"):
            temperature_rises(0.5)


class TestOnce:
    def run(self, rule, shots=1, when=None, state=None):
        seen, last = [], []

        def applied(state, replies, key, ask):
            seen.append(state.round)
            return rule(state)

        def then(state, replies, key, ask):
            last.append(state.round)
            return Assignment(state.labels, state.memory)

        assign = once(when or after(2), applied, then, shots)
        state = state or begin(0.0, 3)
        for t in range(6):
            found = assign(replace(state, round=t), made_up(np.zeros((3, 2))), KEY, None)
            state = replace(state, memory=found.memory)
        return seen, state.memory, last

    @pytest.mark.parametrize(("shots", "wanted"), [(1, [2]), (3, [2, 3, 4])])
    def test_the_rule_is_applied_in_so_many_rounds_and_never_again(self, shots, wanted):
        seen, memory, last = self.run(lambda state: Assignment(state.labels, state.memory), shots)
        assert seen == wanted
        assert memory == OneShot(shots=shots)
        assert last == list(range(wanted[-1] + 1, 6))

    def test_a_rule_that_cannot_be_applied_yet_is_tried_again(self):
        seen, memory, _ = self.run(lambda state: Assignment(state.labels, state.memory) if state.round == 4 else None)
        assert seen == [2, 3, 4]
        assert memory.shots == 1

    def test_impossible_numbers_are_refused(self):
        with pytest.raises(UsageError, match="shots is 0; it must be at least 1"):
            once(after(1), None, None, shots=0)
        with pytest.raises(UsageError, match="warmup is -1; it must be at least 0"):
            after(-1)


class TestFollow:
    @pytest.mark.parametrize(
        ("new", "old", "clusters", "labels", "parents"),
        [
            ([0, 1, 0, 1], [0, 0, 0, 0], 1, [0, 1, 0, 1], (0, 0)),
            ([0, 0, 1, 1], [1, 1, 0, 0], 2, [1, 1, 0, 0], (0, 1)),
            ([0, 0, 1, 1, 2], [1, 1, 0, 0, 0], 2, [1, 1, 0, 0, 2], (0, 1, 0)),
            ([0, 0, 0, 1, 1], [0, 0, 1, 2, 2], 3, [0, 0, 0, 1, 1], (0, 2)),
            ([0, 1], [-1, -1], 2, [0, 1], (0, 1)),
        ],
    )
    def test_clusters_keep_the_numbers_of_those_they_overlap_most(self, new, old, clusters, labels, parents):
        numbers, found = follow(np.array(new), np.array(old), clusters)
        assert numbers[new].tolist() == labels
        assert found == parents


class TestGathering:
    def test_rows_of_both_replies_stay_with_their_clients(self, toy):
        state = begin(0.0, 6)
        ask = Meter(toy, KEY).ask

        def of(clients):
            return ask(Task(fit=(HALF,)), state.stack, state.labels[clients], np.array(clients))

        both, whole = joined(of([1, 4]), of([0, 2, 3, 5])), of([0, 1, 2, 3, 4, 5])
        assert both.clients.tolist() == [0, 1, 2, 3, 4, 5]
        np.testing.assert_allclose(both.params, whole.params, atol=1e-12)
        assert both.examples.tolist() == whole.examples.tolist()
        made = complete(of([1, 4, 5]), np.array([0, 1, 2, 4]), state.stack, state.labels, HALF, ask)
        assert made.clients.tolist() == [0, 1, 2, 4]
        np.testing.assert_allclose(made.params, whole.params[[0, 1, 2, 4]], atol=1e-12)


METHODS = ("lcfl", "diffnorm", "gradcos", "briggs")


class TestMethods:
    @pytest.mark.parametrize("name", METHODS)
    def test_after_the_warm_up_each_cluster_begins_with_the_mean_of_its_members(self, name, toy, train):
        """Round 0 is FedAvg from 0 to half of the mean slope by examples, (1-2+3-4+5-6)/21; round 1 parts."""
        first, second = train(f"{name}(warmup=1)", toy, 2, fit=HALF, state=begin(0.0, 6))
        weight = -3 / 21 / 2
        assert first.state.stack.params[:, 0].tolist() == pytest.approx([weight])
        assert second.state.labels.tolist() == [0, 1, 0, 1, 0, 1]
        assert second.state.stack.params[:, 0].tolist() == pytest.approx([(weight + 1) / 2, (weight - 1) / 2])
        assert second.state.shares.tolist() == pytest.approx([9 / 21, 12 / 21])

    @pytest.mark.parametrize("name", METHODS)
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_all_clients_are_asked_in_the_round_of_clustering(self, name, seed, toy, train):
        done = train(f"{name}(warmup=1)", toy, 2, fit=HALF, state=begin(0.0, 6), participation=0.34, seed=seed)
        assert [len(step.replies) for step in done] == [2, 2]
        assert done[1].state.labels.tolist() == [0, 1, 0, 1, 0, 1]
        weight = done[0].state.stack.params[0, 0]
        assert done[1].state.stack.params[:, 0].tolist() == pytest.approx([(weight + 1) / 2, (weight - 1) / 2])
        assert done[1].cost.steps == 6

    @pytest.mark.parametrize(
        ("start", "wanted"), [("mean", [3.5 / 2, -1.0]), ("global", [0.0, 0.0]), ("medoid", [3.0 / 2, -1.0])]
    )
    def test_starts(self, start, wanted, lines, simulator, train):
        """After a step from 0 the weights are half the slopes 2, 3, 5.5 and -2, -2."""
        sim = simulator(lines((2.0, 3.0, 5.5, -2.0, -2.0), (1, 1, 1, 1, 1)), "linear", threads=1)
        text = f"diffnorm(warmup=0,start={start})"
        done = train(text, sim, 1, fit=HALF, state=begin(0.0, 5))[0]
        assert done.state.labels.tolist() == [0, 0, 0, 1, 1]
        assert done.state.stack.params[:, 0].tolist() == pytest.approx(wanted)

    def test_ocfl_s_server_optimiser_makes_the_first_models_of_the_clusters_too(self, toy, train):
        """From 0 the clusters' means are 0.5 and -0.5; half of the way is taken, also in the round of the rise."""
        state = replace(begin(0.0, 6), memory=OneShot(seen=0.0), round=1)
        text = "ocfl(clusterer=kmeans,server=sgd,server_lr=0.5)"
        done = train(text, toy, 1, fit=HALF, state=state)[0].state
        assert sorted(done.stack.params[:, 0].tolist()) == pytest.approx([-0.25, 0.25])
        assert set(done.moments) == {"first"}

    def test_a_server_optimiser_holds_in_a_single_cluster_too(self, lines, simulator, train):
        """All slopes are 1. The clusters have formed, if only one: half of each further movement is taken."""
        sim = simulator(lines((1.0,) * 4, (1, 1, 1, 1)), "linear", threads=1)
        done = train("lcfl(clusters=1,warmup=0,server=sgd,server_lr=0.5)", sim, 3, fit=HALF, state=begin(0.0, 4))
        assert [len(step.state.stack) for step in done] == [1, 1, 1]
        weights = [step.state.stack.params[0, 0] for step in done]
        assert weights == pytest.approx([0.5, 0.5 + 0.25 / 2, 0.625 + 0.1875 / 2])

    def test_a_server_optimiser_waits_for_the_clusters_and_begins_anew_in_each(self, toy, train):
        """Clusters begin with the mean of their members; then slopes 1 and -1 are half as far away as a step goes."""
        done = train("lcfl(warmup=1,server=sgd,server_lr=0.5)", toy, 4, fit=HALF, state=begin(0.0, 6))
        weight = -3 / 21 / 2
        formed = np.array([(weight + 1) / 2, (weight - 1) / 2])
        assert done[0].state.stack.params[:, 0].tolist() == pytest.approx([weight])
        assert [list(step.state.moments) for step in done] == [[], [], ["first"], ["first"]]
        assert done[1].state.stack.params[:, 0].tolist() == pytest.approx(formed)
        towards = (np.array([1.0, -1.0]) - formed) / 2
        assert done[2].state.moments["first"][:, 0].tolist() == pytest.approx(towards)
        assert done[2].state.stack.params[:, 0].tolist() == pytest.approx(formed + towards / 2)

    @pytest.mark.parametrize("losses", ["data", "models"])
    def test_iterations_make_the_models_that_are_compared_and_the_round_stays_what_it_is(self, losses, toy, train):
        """From 0 two steps lead to 3/4 of a slope, one to 1/2 of it.

        A slope's loss under such a model is 1/16 if it is its own, and 49/16 if not: a distance of 2 * 48/16 by either
        equation; by the models of the round it would be 2 * (9/4 - 1/4).
        """
        text = f"lcfl(warmup=0,losses={losses},iterations=2)"
        apart, plain = (train(each, toy, 1, fit=HALF, state=begin(0.0, 6))[0] for each in (text, "lcfl(warmup=0)"))
        assert apart.state.memory.formed.distances[0].tolist() == pytest.approx([0, 6, 0, 6, 0, 6], abs=1e-9)
        assert plain.state.memory.formed.distances[0].tolist() == pytest.approx([0, 4, 0, 4, 0, 4], abs=1e-9)
        assert apart.state.memory.formed.means.params[:, 0].tolist() == pytest.approx([0.75, -0.75])
        assert apart.state.labels.tolist() == [0, 1, 0, 1, 0, 1]
        assert apart.state.stack.params[:, 0].tolist() == pytest.approx([0.5, -0.5])
        assert (apart.cost.steps, plain.cost.steps) == (6 * 1 + 6 * 2, 6 * 1)
        assert apart.cost.bytes_down - plain.cost.bytes_down == 6 * (2 * 8 + 8)
        assert apart.cost.bytes_up - plain.cost.bytes_up == 6 * (2 * 8 + 3 * 8)

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_with_iterations_clusters_begin_with_the_mean_of_those_who_were_drawn(self, seed, toy, train):
        """Two of six are drawn, all are compared; a cluster of which nobody was drawn goes on from the one model."""
        done = train(
            "lcfl(warmup=0,iterations=3)", toy, 1, fit=HALF, state=begin(0.2, 6), participation=0.34, seed=seed
        )
        drawn = {SLOPES[client] for client in done[0].replies.clients}
        assert done[0].state.labels.tolist() == [0, 1, 0, 1, 0, 1]
        wanted = [(0.2 + slope) / 2 if slope in drawn else 0.2 for slope in (1.0, -1.0)]
        assert done[0].state.stack.params[:, 0].tolist() == pytest.approx(wanted)
        assert done[0].cost.steps == 2 * 1 + 6 * 3

    def test_as_many_iterations_as_steps_need_no_further_exchange(self, toy, train):
        one, other = (train(f"lcfl(warmup=0{each})", toy, 2, fit=HALF) for each in ("", ",iterations=1"))
        assert [step.cost for step in one] == [step.cost for step in other]
        assert np.array_equal(one[-1].state.stack.params, other[-1].state.stack.params)

    def test_iterations_that_cannot_be_are_refused(self):
        with pytest.raises(UsageError, match="iterations is 0; it must be at least 1"):
            ct.lcfl(iterations=0)

    def test_losses_part_what_directions_cannot(self, lines, simulator, train):
        """Slopes 1 and 4 pull the same way from 0, by cosine all are alike; their losses under each other are not."""
        sim = simulator(lines((1.0, 4.0, 1.0, 4.0), (1, 1, 1, 1)), "linear", threads=1)
        found = {
            name: train(f"{name}(warmup=0,clusters=auto)", sim, 1, fit=HALF, state=begin(0.0, 4))[0].state.labels
            for name in ("lcfl", "diffnorm", "gradcos")
        }
        assert found["lcfl"].tolist() == found["diffnorm"].tolist() == [0, 1, 0, 1]
        assert found["gradcos"].tolist() == [0, 0, 0, 0]

    def test_briggs_is_given_distances(self, lines, simulator, train):
        """Cosine distances are 0 within and 2 across; given similarities (1 and -1) it would merge the opposite."""
        sim = simulator(lines(SLOPES, (1,) * 6), "linear", threads=1)
        for cut, clusters in ((0.0, 2), (1.9, 2), (2.0, 1)):
            done = train(f"briggs(cut={cut},warmup=0)", sim, 1, fit=HALF, state=begin(0.0, 6))[0]
            assert len(done.state.stack) == clusters
        assert (
            adjusted_rand_score(np.array(SLOPES) > 0, train("briggs(warmup=0)", sim, 1, fit=HALF)[0].state.labels) == 1
        )

    @pytest.mark.parametrize(("metric", "linkage"), [("euclidean", "ward"), ("manhattan", "complete")])
    def test_briggs_by_other_metrics(self, metric, linkage, toy, train):
        text = f"briggs(metric={metric},linkage={linkage},cut=0.9,warmup=0)"
        assert train(text, toy, 1, fit=HALF, state=begin(0.0, 6))[0].state.labels.tolist() == [0, 1, 0, 1, 0, 1]

    def test_ward_needs_euclidean_distances(self):
        with pytest.raises(UsageError, match="metric is cosine; linkage=ward needs metric=euclidean"):
            ct.briggs(linkage="ward")

    def test_too_few_answers_postpone_the_clustering(self, toy, train, flaky):
        federation = flaky(toy, {0: [1, 2, 3, 4, 5]})
        first, second = train("lcfl(warmup=0)", federation, 2, fit=HALF, state=begin(0.0, 6))
        assert first.state.memory.shots == 0
        assert first.state.labels.tolist() == [0] * 6
        assert second.state.labels.tolist() == [0, 1, 0, 1, 0, 1]

    def test_other_texts_are_refused(self):
        with pytest.raises(UnknownName, match="unknown start 'medoids'; did you mean 'medoid'"):
            ct.lcfl(start="medoids")
        with pytest.raises(UnknownName, match="unknown server optimiser 'adm'"):
            ct.lcfl(server="adm")
        with pytest.raises(UnknownName, match="unknown weights 'example'"):
            ct.ocfl_hdbscan(weights="example")


class TestNewcomers:
    @pytest.mark.parametrize("name", [*METHODS, "ocfl-kmeans"])
    def test_those_absent_when_clusters_form_join_the_right_one_later(self, name, toy, train, flaky, monkeypatch):
        left = iter([0.4, 0.5])
        monkeypatch.setattr(events, "temperature", lambda distances, p: next(left))
        federation = flaky(toy, {1: [0, 3], 2: [0, 3]})
        done = train(name, federation, 4, fit=HALF, state=begin(0.0, 6))
        assert done[1].state.labels.tolist() == done[2].state.labels.tolist() == [UNPLACED, 0, 1, UNPLACED, 1, 0]
        assert done[3].state.labels.tolist() == [1, 0, 1, 0, 1, 0]

    def test_a_newcomer_s_update_is_from_the_model_of_the_firing_round(
        self, lines, simulator, train, flaky, monkeypatch
    ):
        """Slope 0.5 pulls up from the model of the firing round (about 0), as cluster 1 did, and joins it.

        From the mean of the cluster models, by now about 0.8, it would pull down, as cluster -1 did.
        """
        left = iter([0.4, 0.5])
        monkeypatch.setattr(events, "temperature", lambda distances, p: next(left))
        sim = simulator(lines((1.0, -1.0, 1.0, -1.0, 0.5), (9, 1, 9, 1, 1)), "linear", threads=1)
        fit = replace(HALF, lr=0.02)
        absent = flaky(sim, {t: [4] for t in range(60)})
        done = train("ocfl-kmeans", absent, 61, fit=fit, state=begin(0.0, 5))
        mean = done[-1].before.shares @ done[-1].before.stack.params[:, 0]
        assert mean > 0.6
        assert done[-1].before.labels.tolist() == [0, 1, 0, 1, UNPLACED]
        assert done[-1].state.labels.tolist() == [0, 1, 0, 1, 0]
        assert done[-1].cost.steps == 6

    def test_ocfl_clusters_those_that_were_drawn_and_the_others_join(self, toy, train):
        done = train("ocfl-kmeans", toy, 30, fit=HALF, state=begin(0.0, 6), participation=0.67)
        fired = next(step for step in done if len(step.state.stack) == 2)
        others = np.setdiff1d(np.arange(6), fired.replies.clients)
        assert (fired.state.labels[others] == UNPLACED).all()
        assert fired.cost.steps == 4
        assert adjusted_rand_score(np.array(SLOPES) > 0, done[-1].state.labels) == 1

    def test_a_second_shot_clusters_again_from_the_same_model(self, toy, train, flaky, monkeypatch):
        left = iter([0.4, 0.5])
        monkeypatch.setattr(events, "temperature", lambda distances, p: next(left))
        federation = flaky(toy, {1: [0, 3]})
        done = train("ocfl-kmeans(shots=2)", federation, 4, fit=HALF, state=begin(0.0, 6))
        assert done[1].state.labels.tolist() == [UNPLACED, 0, 1, UNPLACED, 1, 0]
        assert done[2].state.labels.tolist() == done[3].state.labels.tolist() == [1, 0, 1, 0, 1, 0]
        assert [step.cost.steps for step in done] == [6, 4, 12, 6]
        origin = done[1].before.stack.params
        assert np.array_equal(done[3].state.memory.formed.sent.params, origin)
        wanted = [(origin[0, 0] - 1) / 2, (origin[0, 0] + 1) / 2]
        assert done[3].state.memory.formed.means.params[:, 0].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("text", ["lcfl(warmup=2)", "ocfl-hdbscan", "sattler(minimum=1)"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_saved_before_in_and_after_the_event_goes_on_bit_for_bit(text, stop, images, simulator, train, tmp_path):
    sim = simulator(images(), threads=1)
    whole = train(text, sim, 5, participation=0.75)
    assert len(whole[-1].state.stack) > 1, "the event must lie in the run"
    save_state(tmp_path / "state", whole[stop - 1].state)
    resumed = train(text, sim, 5 - stop, participation=0.75, state=load_state(tmp_path / "state"))
    for one, other in zip(whole[stop:], resumed, strict=True):
        assert one.state.labels.tolist() == other.state.labels.tolist()
        assert np.array_equal(one.state.stack.params, other.state.stack.params)
        assert one.cost == other.cost


class TestSeparation:
    def test_it_is_the_bound_of_the_theorem_with_the_complexity_twice(self):
        chance = 2 * np.sqrt(np.log(2 / 0.05) / 200) + 2 * np.sqrt(np.log(2 / 0.05) / 800)
        found = separation_threshold(100, 400, 0.05, lambda n: 1 / np.sqrt(n))
        assert found == pytest.approx(chance + 2 * (0.1 + 0.05))
        found = separation_threshold(100, 400, 0.05, lambda n: 1 / np.sqrt(n), shared=True)
        assert found == pytest.approx(chance + 4 * (0.1 + 0.05))

    def test_delta_is_shared_by_the_pairs(self):
        shared, alone = separation_threshold(100, 400, 0.05, 0.0, pairs=10), separation_threshold(100, 400, 0.005, 0.0)
        assert shared == pytest.approx(alone)

    @pytest.mark.parametrize(("clients", "pairs"), [(2, 1), (4, 6)])
    @pytest.mark.parametrize(("factor", "wanted"), [(1 - 1e-9, 0), (1.0, 0), (1 + 1e-9, 2)])
    def test_all_pairs_are_compared_and_differ_only_above_the_threshold(self, clients, pairs, factor, wanted):
        """All two clients are ``limit`` apart: half of it is lost under the own model, all of it under any other."""
        limit = factor * separation_threshold(900, 900, 0.05, 0.0, pairs=pairs)
        found = differ(limit * (1 - np.eye(clients) / 2), np.full(clients, 900), 0.05, 0.0)
        assert found[~np.eye(clients, dtype=bool)].sum() == wanted * pairs

    def test_large_distances_mean_different_and_more_examples_tell_more(self):
        """By eq. 6: 0.15 + 0.15 between the first two, 0.45 + 0.45 between each of them and the third."""
        losses = np.array([[0.15, 0.0, 0.0], [0.0, 0.15, 0.0], [0.6, 0.6, 0.45]])
        few, many = (differ(losses, np.full(3, n), 0.05, 0.0) for n in (100, 10000))
        assert few.tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
        assert many.sum() == 6

    def test_a_client_that_has_hardly_trained_is_not_called_different(self):
        """The same data at both: the one model serves both badly, the other both well. By eq. 2 they are 1.6 apart."""
        losses = np.array([[0.9, 0.1], [0.9, 0.1]])
        assert distances.between_models(losses)[0, 1] > separation_threshold(60, 60, 0.05, 0.0)
        assert not differ(losses, np.array([60, 60]), 0.05, 0.0).any()

    def test_different_clients_are_told_apart_from_as_few_examples(self):
        assert differ(np.array([[0.1, 0.9], [0.9, 0.1]]), np.array([60, 60]), 0.05, 0.0).tolist() == [[0, 1], [1, 0]]

    def test_models_that_know_their_own_examples_by_heart_do_not_make_clients_differ(self):
        """Loss 0 on the own examples and 1 on all others, n of which any set may be learnt by heart.

        The supremum of mean(sign * loss) takes the examples of sign + and no others, so R(n) is 1/2; with R once in the
        threshold, as printed, clients of the same data would differ for sure as soon as they have 200 examples.
        """
        losses, sizes = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([200, 200])
        assert distances.between_clients(losses)[0, 1] == 2 <= separation_threshold(200, 200, 0.05, 0.5)
        assert not differ(losses, sizes, 0.05, 0.5).any()

    @pytest.mark.parametrize("fraction", [0.0, 0.3])
    def test_clients_of_the_same_data_are_hardly_ever_called_different(self, fraction):
        """Four clients, each takes the best of 64 random classifiers on its own examples, or (``fraction``) any one.

        Massart's lemma bounds the complexity of 64 losses in [0, 1] by sqrt(2 log(64) / n); labels are coins, so what
        a client gains on its own examples is chance. Over 400 draws at most 4 delta = 0.2 may be called different.
        """
        rng, size, wrong = np.random.default_rng(0), 40, 0
        for _ in range(400):
            lost = rng.integers(2, size=(4, size, 64)).mean(axis=1)
            taken = np.where(rng.random(4) < fraction, 0, lost.argmin(axis=1))
            wrong += differ(lost[:, taken], np.full(4, size), 0.05, np.sqrt(2 * np.log(64) / size)).any()
        assert wrong <= 0.2 * 400

    def test_without_fitting_the_rate_of_false_alarms_is_small_and_not_for_want_of_power(self):
        """Models of loss 0.5 made without anybody's data, R = 0: 2000 pairs of the same data, and 200 that differ."""
        rng, sizes = np.random.default_rng(1), np.array([60, 60])
        same = sum(differ(rng.binomial(60, 0.5, (2, 2)) / 60, sizes, 0.05, 0.0).any() for _ in range(2000))
        apart = sum(differ(rng.binomial(60, [[0.1, 0.9], [0.9, 0.1]]) / 60, sizes, 0.05, 0.0).any() for _ in range(200))
        assert same <= 0.2 * 2000
        assert apart == 200

    def test_losses_that_are_not_bounded_are_refused(self):
        with pytest.raises(UsageError, match=r"losses are 0 to 2.3; they must be in \[0, 1\]: clipped, or 0-1"):
            differ(np.array([[0.0, 2.3], [1.0, 0.0]]), np.array([9, 9]), 0.05, 0.0)

    @pytest.mark.parametrize(
        ("given", "told"), [((0, 9, 0.1), "n_i is 0"), ((9, 9, 0.0), "delta is 0.0"), ((9, 9, 1.0), "delta is 1.0")]
    )
    def test_impossible_values_are_refused(self, given, told):
        with pytest.raises(UsageError, match=told):
            separation_threshold(*given, 0.0)
