"""What one client can do to the others: the norm bound, and robust rules in the place of the mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.errors import UsageError
from coterie.experiments import building
from coterie.experiments.records import facts_of
from coterie.experiments.run import run_settings
from coterie.experiments.session import Session
from coterie.experiments.settings import Settings, load_settings
from coterie.models.layout import Layout
from coterie.models.zoo import build_model
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.server.aggregate import average
from coterie.server.exchange import bounded, update_lengths
from coterie.server.robust import rules

TRAIN = Task(fit=(Fit(steps=1),))


class Boasting:
    """A federation in which some clients send a multiple of their update, whenever they are asked for models."""

    def __init__(self, inner, attackers, factor=100.0):
        self.inner, self.attackers, self.factor = inner, list(attackers), factor

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def ask(self, task, sent, labels, clients, key):
        replies = self.inner.ask(task, sent, labels, clients, key)
        if not task.fit or replies.params is None:
            return replies
        whole = task.report.params == "all"
        place = slice(None) if whole else replies.layout.part(task.report.params)
        starts, params = sent.rows.params[replies.rows][:, place], np.array(replies.params)
        lying = np.isin(replies.clients, self.attackers)
        params[lying] = starts[lying] + self.factor * (params[lying] - starts[lying])
        return replace(replies, params=params)


def replies_of(lengths, rows=None, examples=None, size=4):
    """Clients whose updates, all along the first coordinate from models at zero, have these lengths."""
    params = np.zeros((len(lengths), size), np.float32)
    params[:, 0] = lengths
    rows = np.zeros(len(lengths), int) if rows is None else np.asarray(rows)
    examples = np.full(len(lengths), 8) if examples is None else np.asarray(examples)
    layout = Layout(size, 0, {"all": np.arange(size)}, {"all": np.arange(0)})
    buffers = np.zeros((len(lengths), 0), np.float32)
    return Replies(layout, np.arange(len(lengths)), rows, examples, params, buffers)


def zeros(rows, size=4):
    return Stack(np.zeros((rows, size), np.float32), np.zeros((rows, 0), np.float32))


def left(replies, stack=None, task=TRAIN, factor=10.0, clusters=None):
    """What is left of replies; rows of the stack behind the clusters are the model of clients without one."""
    names, stack = tuple(f"client-{i}" for i in range(len(replies))), zeros(3) if stack is None else stack
    if clusters is None:
        return bounded(replies, task, Sent(stack), names, factor)
    sent = Sent(stack.take(slice(clusters)), unplaced=stack.take(slice(clusters, None)))
    rows = np.where(replies.rows >= clusters, UNPLACED, replies.rows)
    return bounded(replace(replies, rows=rows), task, sent, names, factor)


class TestTheNormBound:
    def test_an_update_of_more_than_ten_times_the_median_is_a_missing_row_with_that_reason(self):
        kept = left(replies_of([1, 2, 3, 20, 20.1]), factor=10)
        assert kept.clients.tolist() == [0, 1, 2, 3, 4]
        kept = left(replies_of([1, 2, 3, 30, 30.1]), factor=10)
        assert kept.clients.tolist() == [0, 1, 2, 3]
        assert kept.params[:, 0].tolist() == [1, 2, 3, 30]
        assert kept.missing["client-4"].startswith("sent an update of length 30.1; at most 30, 10 times what is usual")

    def test_zero_takes_all_and_a_smaller_factor_fewer(self):
        assert len(left(replies_of([1, 1, 1, 1000]), factor=0)) == 4
        assert len(left(replies_of([1, 1, 1, 3]), factor=2)) == 3

    def test_lengths_are_of_all_parameters_from_the_model_that_each_began_with(self):
        rng = np.random.default_rng(0)
        params, starts = rng.normal(size=(5, 7)).astype("f4"), rng.normal(size=(2, 7)).astype("f4")
        rows = np.array([1, 0, 1, 1, 0])
        pairs = [zip(params[i].tolist(), starts[k].tolist(), strict=True) for i, k in enumerate(rows)]
        slow = [sum((sent - start) ** 2 for sent, start in pair) ** 0.5 for pair in pairs]
        assert update_lengths(params, starts, rows).tolist() == pytest.approx(slow, rel=1e-12)

    def test_a_cluster_with_five_answers_has_its_own_median_and_one_with_fewer_that_of_the_round(self):
        lengths, rows = [1] * 6 + [50] * 5 + [11, 9], [0] * 6 + [1] * 5 + [2, 2]
        assert left(replies_of(lengths, rows)).clients.tolist() == list(range(13))  # the round's median is 9
        lengths, rows = [1] * 8 + [50] * 5 + [11, 9], [0] * 8 + [1] * 5 + [2, 2]
        assert left(replies_of(lengths, rows)).clients.tolist() == [*range(13), 14]  # the round's median is 1
        lengths, rows = [1] * 5 + [12] + [50] * 6, [0] * 6 + [1] * 6
        assert left(replies_of(lengths, rows)).clients.tolist() == [0, 1, 2, 3, 4, *range(6, 12)]

    def test_nothing_is_compared_where_fewer_than_three_answered(self):
        assert len(left(replies_of([1, 1000]))) == 2
        assert len(left(replies_of([1, 1, 1000]))) == 2

    def test_only_replies_to_a_training_with_parameters_are_compared(self):
        replies = replies_of([1, 1, 1, 1000])
        assert left(replies, task=Task()) is replies
        assert left(replace(replies, params=None), task=replace(TRAIN, report=Report(params=None))).params is None

    def test_where_most_updates_are_nothing_beside_the_models_a_hundredth_of_these_is_usual(self):
        stack = Stack(np.full((1, 4), 50, np.float32), np.zeros((1, 0), np.float32))  # a model of length 100
        for lengths, kept in (([0, 0, 0, 9], 4), ([0, 0, 0, 11], 3), ([1e-3, 1e-3, 1e-3, 9], 4)):
            replies = replies_of(lengths)
            assert len(left(replace(replies, params=replies.params + 50), stack)) == kept

    def test_a_client_without_a_cluster_may_go_five_times_as_far_as_to_the_farthest_cluster_model(self):
        stack = zeros(3)
        stack.params[:, 1] = 3, -5, 0  # two cluster models, and a row for those without a cluster
        lengths = [1, 1, 1, 24]
        replies = replies_of(lengths, [0, 0, 1, 2])
        params = replies.params + stack.params[replies.rows]
        assert len(left(replace(replies, params=params), stack, clusters=2)) == 4
        params[3, 0] = 26
        assert left(replace(replies, params=params), stack, clusters=2).clients.tolist() == [0, 1, 2]

    def test_those_without_a_cluster_are_not_measured_by_each_other_however_many_they_are(self):
        """Who was left out when the clusters formed has none: five liars would find their own lengths usual."""
        stack = zeros(2)
        stack.params[0, 1] = 0.1
        lengths, rows = [1] * 6 + [100] * 5, [0] * 6 + [1] * 5
        assert left(replies_of(lengths, rows), stack, clusters=1).clients.tolist() == list(range(6))
        assert len(left(replies_of(lengths, rows), stack, clusters=2)) == 11

    def test_who_takes_more_steps_than_the_median_may_go_as_many_times_as_far(self):
        task = Task(fit=(Fit(epochs=2, batch=10),))  # 2 and 40 steps
        for examples, kept in (([10, 10, 10, 200], 4), ([10, 10, 10, 30], 3)):
            assert len(left(replies_of([1, 1, 1, 100], examples=examples), task=task)) == kept
        assert len(left(replies_of([1, 1, 1, 100], examples=[10, 10, 10, 200]))) == 3


@pytest.mark.parametrize("text", ["fedavg", "ifca", "wecfl", "sattler", "lcfl(warmup=1)", "ifca+cam(warmup=1)"])
def test_a_boasting_client_is_missing_in_every_round_and_nobody_else_is(text, images, simulator, train):
    done = train(text, Boasting(simulator(images()), [3], 1000.0), 3)
    assert all(set(step.missing) == {"client-3"} for step in done), [step.missing for step in done]
    assert all("norm-bound" in why for step in done for why in step.missing.values())
    assert all(3 not in step.replies.clients for step in done)


def test_a_client_that_was_refused_is_not_heard_in_further_exchanges_of_the_round(images, simulator, train):
    """Those who cluster once ask the ones who did not answer again, alone: there is no median of one."""
    done = train("lcfl(warmup=0)", Boasting(simulator(images()), [3], 1000.0), 2)
    assert all(step.state.labels[3] == -1 for step in done)
    assert max(np.abs(step.state.stack.params).max() for step in done) < 5


@pytest.mark.parametrize(
    "text", ["local", "fedavg", "ifca", "wecfl", "fesem", "lcfl(warmup=1)", "sattler", "wecfl+cam(warmup=3)"]
)
def test_honest_clients_are_all_heard(text, images, simulator, train):
    done = train(text, simulator(images()), 6)
    assert not any(step.missing for step in done)


def test_where_nobody_shares_a_model_nothing_is_bounded(images, simulator, train):
    done = train("local", Boasting(simulator(images()), [3]), 2)
    assert not any(step.missing for step in done)


@pytest.mark.parametrize("text", ["ifca", "fesem", "wecfl", "sattler(minimum=2)", "ocfl-kmeans(clusters=2)"])
def test_honest_clients_that_come_late_are_heard(text, images):
    algorithm = ct.algorithms.build_algorithm(text, 2, Fit(steps=10, batch=8, lr=0.1))
    data = images(sizes=(24, 30, 18, 36, 24, 27, 33, 21) * 2)
    run = ct.run(algorithm, data, "mlp(16)", rounds=16, join="0.2@14", eval_every=16, threads=1)
    assert not [why for record in run.history for why in record.get("missing", {}).values() if "norm-bound" in why]


def test_the_bound_is_a_setting_of_a_run():
    assert Settings("fedavg").norm_bound == 10
    for value in (-1.0, 0.5, float("inf"), float("nan")):
        with pytest.raises(UsageError, match=r"norm-bound is .*; it must be a number of at least 1, or 0 to take all"):
            Settings("fedavg", norm_bound=value)


def test_bound_and_rule_are_flags_that_a_run_folder_keeps(tmp_path):
    few = ["--clients", "8", "--rounds", "1", "--threads", "1", "--steps", "1", "--quiet", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["run", "fedavg", *few, "--norm-bound", "3", "--robust", "trimmed(0.3)"])
    assert done.exit_code == 0, done.output
    kept = load_settings(tmp_path / "config.toml", {})
    assert (kept.norm_bound, kept.robust) == (3, "trimmed(0.3)")
    assert "geometric-median" in CliRunner().invoke(app, ["list", "robust"]).output


class TestOneOfForty:
    @staticmethod
    def honest_accuracy(attackers, **options):
        """The mean accuracy of the clients but the first on rotated digits."""
        settings = Settings("fedavg", rounds=10, threads=1, eval_every=10, **options)
        data = building.build_data(settings)
        model = build_model(settings.model, data.shape, data.classes)

        def reach(network):
            return Boasting(Simulator(data, network, settings.threads), attackers)

        done = Session(building.build_algorithm(settings), facts_of(data), model, settings, reach).train(
            None, False, None
        )
        rows = [row for row in done.trained.members if row["client"] != data.names[0]]
        return float(np.mean([row["accuracy"] for row in rows]))

    def test_costs_the_others_nothing_with_the_bound_and_much_without(self):
        peace = self.honest_accuracy([])
        assert peace > 0.7
        assert self.honest_accuracy([0]) > peace - 0.02
        assert self.honest_accuracy([0], norm_bound=0.0) < peace - 0.1


def a_cluster(members=7, size=11, buffers=3, seed=0):
    """Client models at random in five rows too many, and the rows of a cluster's members with their weights."""
    rng = np.random.default_rng(seed)
    models = Stack(*(rng.normal(size=(members + 5, n)).astype(np.float32) for n in (size, buffers)))
    rows = np.sort(rng.choice(members + 5, members, replace=False))
    return models, rows, rng.integers(1, 50, members).astype(float)


def slow_trimmed(values, cut):
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def slow_krum(points, f):
    """Krum by its definition, with loops: the numbers of the points with the least sum."""
    sums = []
    for i, one in enumerate(points):
        squares = sorted(
            sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for j, other in enumerate(points) if j != i
        )
        sums.append(sum(squares[: max(1, len(points) - f - 2)]))
    return [i for i, each in enumerate(sums) if each == min(sums)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two coordinates of seven members."""
    monkeypatch.setattr("coterie.server.robust.BLOCK_BYTES", 2 * 8 * 7)


@pytest.mark.usefixtures("small_blocks")
class TestRules:
    @pytest.mark.parametrize(("text", "cut"), [("median", 3), ("trimmed", 1), ("trimmed(0.3)", 2), ("trimmed(0)", 0)])
    def test_of_columns_are_those_of_a_loop_for_parameters_and_buffers(self, text, cut):
        models, rows, weights = a_cluster()
        for found, part in zip(rules.build(text)(models, rows, weights), models, strict=True):
            slow = [slow_trimmed([float(part[i, j]) for i in rows], cut) for j in range(part.shape[1])]
            assert found.shape == (1, part.shape[1])
            assert found[0].tolist() == pytest.approx(slow, rel=1e-6)
            assert found.dtype == part.dtype

    @pytest.mark.parametrize("f", [0, 1, 2, 4, 9])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_krum_takes_the_model_of_its_definition_and_its_buffers(self, f, seed):
        models, rows, weights = a_cluster(seed=seed)
        best = rows[slow_krum(models.params[rows].astype(float).tolist(), f)]
        assert len(best) == (1 if f < 4 else 2)
        for found, part in zip(rules.build(f"krum({f})")(models, rows, weights), models, strict=True):
            assert found[0].tolist() == pytest.approx(part[best].mean(axis=0).tolist(), rel=1e-6)

    def test_krum_of_two_is_their_mean(self):
        models = Stack(np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([[0.0], [8.0]]))
        found = rules.build("krum")(models, np.arange(2), np.array([9.0, 1.0]))
        assert found.params.tolist() == [[2, 4]]
        assert found.buffers.tolist() == [[4]]

    def test_the_geometric_median_is_where_the_weighted_sum_of_distances_is_least(self):
        models, rows, weights = a_cluster()
        points = models.params[rows].astype(float)

        def total(x):
            return float(weights @ np.linalg.norm(points - x, axis=1))

        best = minimize(total, points.mean(axis=0), method="BFGS", options={"gtol": 1e-9}).fun
        found = rules.build("geometric-median")(models, rows, weights)
        assert total(found.params[0]) == pytest.approx(best, rel=1e-5)
        assert total(np.average(points, axis=0, weights=weights)) > 1.001 * best

    def test_the_geometric_median_on_a_line_is_the_weighted_median_and_buffers_follow(self):
        models = Stack(np.array([[0.0], [1.0], [50.0]]), np.array([[5.0], [7.0], [9.0]]))
        found = rules.build("geometric-median")(models, np.arange(3), np.array([2.0, 2.0, 1.0]))
        assert found.params[0, 0] == pytest.approx(1, abs=1e-3)
        assert found.buffers[0, 0] == pytest.approx(7, abs=1e-3)

    @pytest.mark.parametrize("text", [name for name in rules if name != "mean"])
    def test_one_member_is_itself_and_equal_members_are_theirs(self, text):
        models, rows, weights = a_cluster()
        for members in (rows[:1], rows[[2, 2, 2]]):
            found = rules.build(text)(models, members, weights[: len(members)])
            for one, part in zip(found, models, strict=True):
                assert one[0] == pytest.approx(part[members[0]], rel=1e-6)

    @pytest.mark.parametrize("text", ["median", "trimmed(0.2)", "krum(2)", "geometric-median"])
    def test_two_of_ten_cannot_take_the_model_away(self, text):
        rng = np.random.default_rng(0)
        honest = rng.normal(size=(8, 40))
        models = Stack(np.concatenate([honest, np.full((2, 40), 1e4)]), np.zeros((10, 0)))
        found = rules.build(text)(models, np.arange(10), np.ones(10))
        assert np.linalg.norm(found.params[0] - honest.mean(axis=0)) < np.linalg.norm(honest, axis=1).max()

    def test_weights_count_in_the_geometric_median_alone(self):
        models, rows, weights = a_cluster()
        same = {
            text: np.array_equal(
                rules.build(text)(models, rows, weights).params, rules.build(text)(models, rows, weights * 0 + 1).params
            )
            for text in rules
            if text != "mean"
        }
        assert same == {"median": True, "trimmed": True, "krum": True, "geometric-median": False}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("trimmed(0.5)", r"trimmed: share is 0.5; it must be in \[0, 0.5\)"),
        ("krum(-1)", "krum: f is -1; it must be at least 0"),
        ("krum(1.5)", "f is 1.5; it must be a whole number"),
        ("medain", "did you mean 'median'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_limit(text, told):
    with pytest.raises(UsageError, match=told):
        Settings("fedavg", robust=text)


def test_the_rule_is_applied_cluster_by_cluster_and_an_empty_one_keeps_its_model():
    replies = replace(replies_of([1, 2, 9, 4, 5, 30, 7]), combine=rules.build("median"))
    labels, weights = np.array([0, 0, 0, 2, 2, 2, -1]), np.arange(1.0, 8.0)
    kept = zeros(3)
    kept.params[1] = 6
    made, shares = average(replies, labels, weights, kept)
    assert made.params[:, 0].tolist() == [2, 6, 5]
    assert shares.tolist() == pytest.approx([6 / 21, 0, 15 / 21])
    assert kept.params[1].tolist() == [6] * 4
    assert kept.params[0].tolist() == [0] * 4


def test_a_shared_part_is_by_the_same_rule_over_everyone_that_answered():
    replies = replies_of([1, 2, 9, 4, 5, 30, 7], size=2)
    layout = replace(replies.layout, parts={"all": np.arange(2), "global": np.array([1])})
    layout = replace(layout, buffer_parts={"all": np.arange(0), "global": np.arange(0)})
    params = replies.params.copy()
    params[:, 1] = 10, 20, 30, 40, 50, 60, 1000
    replies = replace(replies, layout=layout, params=params, combine=rules.build("median"))
    made, _ = average(replies, np.array([0, 0, 0, 1, 1, 1, -1]), np.ones(7), zeros(2, 2), "global")
    assert made.params.tolist() == [[2, 40], [5, 40]]


@pytest.mark.parametrize(
    "text", ["ifca", "wecfl+cam(warmup=1)", "ifca+cam(alternate=true)", "lcfl(warmup=1)", "sattler(minimum=1)"]
)
def test_every_mean_of_a_run_is_by_its_rule(text, images, simulator, train):
    """With a rule that takes the first member's model, a cluster model's head is a client's, or its old one."""

    def first(models, members, weights):
        return models.take(members[:1])

    done = train(text, simulator(images()), 4, combine=first)
    for step in done:
        part = step.replies.layout.part("head")
        sent = np.concatenate([step.replies.models().params, step.before.stack.params])[:, part]
        assert all((row == sent).all(axis=1).any() for row in step.state.stack.params[:, part])


@pytest.mark.parametrize("text", ["median", "trimmed(0.2)", "krum(1)", "geometric-median"])
def test_a_run_with_a_rule_learns(text):
    settings = Settings(
        "wecfl", rounds=8, clients=20, threads=1, eval_every=8, robust=text, clusters=2, partition="rotation(0,90)"
    )
    assert run_settings(settings).summary["accuracy"] > 0.7
