"""Records of rounds and the summary of a run, with numbers made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine

from coterie.api.run import Run
from coterie.data.federated import Split
from coterie.errors import FederationError, UsageError
from coterie.experiments.records import DataFacts, RoundRecorder
from coterie.experiments.run import run_settings
from coterie.experiments.scores import ask_gradients, check_gradients, gradient_diagnostics, round_diagnostics
from coterie.experiments.settings import Settings
from coterie.experiments.summary import majority_rate, summarise
from coterie.models.combined import additive
from coterie.models.layout import Layout
from coterie.models.zoo import build_model
from coterie.protocol.replies import Cost, Replies
from coterie.protocol.stack import Stack
from coterie.runtimes.simulator import Simulator
from coterie.server.contract import State
from coterie.server.loop import Round

ALL = np.arange(2)
LAYOUT = Layout(2, 0, {"all": ALL, "head_weight": ALL}, {"all": np.arange(0), "head_weight": np.arange(0)})
UNIFORM = Split(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), np.array([0, 1]))
ASKED = Settings("a", model="m", rounds=50)


def stack_of(*rows):
    params = np.array(rows, np.float32)
    return Stack(params, np.zeros((len(params), 0), np.float32))


def facts_of(count, groups=None, **more):
    names = tuple(f"client-{i}" for i in range(count))
    sizes = np.full(count, 10)
    truth = None if groups is None else np.array(groups)
    return DataFacts("d", "p", names, (1,), 2, sizes, sizes, groups=truth, uniform=UNIFORM, **more)


def state_of(models, labels, number=0, **more):
    stack = stack_of(*models)
    return State(stack, np.array(labels), number, previous=stack, shares=np.full(len(stack), 1 / len(stack)), **more)


def round_of(models, labels, params, after=None, examples=None, layout=LAYOUT, **more):
    """Clients that trained from the models of ``labels`` to ``params``, and were put ``after`` that."""
    before = state_of(models, labels)
    clients = np.arange(len(labels))
    sizes = np.full(len(labels), 10) if examples is None else np.array(examples)
    trained = stack_of(*params)
    replies = Replies(layout, clients, before.labels, sizes, trained.params, trained.buffers)
    state = replace(before, labels=before.labels if after is None else np.array(after), round=1)
    return Round(before, state, replies, Cost(), there=clients, **more)


def evaluated_as(rows, labels):
    """Replies of clients about their test splits: accuracy, macro-F1, loss, examples."""
    return Replies(LAYOUT, np.arange(len(rows)), np.array(labels), np.full(len(rows), 10), metrics=np.array(rows))


def record_of(number, **values):
    empty = {"bytes_down": 0, "bytes_up": 0, "evaluations": 0, "steps": 0, "seconds": 1.0}
    scores = dict.fromkeys(("accuracy", "macro_f1", "worst", "p10", "std", "pf1"), 0.5)
    return {"round": number, **empty, **scores, **values}


def summary_of(records, facts=None, asked=ASKED):
    facts = facts_of(4) if facts is None else facts
    state = state_of([[0, 0]], [0] * len(facts.names), len(records))
    return summarise(records, asked, facts, state, np.arange(len(facts.names)))


class TestTheLearningGap:
    def test_a_round_s_gap_is_between_the_means_and_not_the_mean_of_gaps(self):
        # Own tests 0.9 and 0.1, the common test 0.2 and 0.6: the means are 0.5 and 0.4, the gaps 0.7 and 0.5.
        def judge(models, uniform, used):
            return np.array([[0, 0.2, 0, 0], [0, 0.6, 0, 0]])[used]

        step = round_of([[0, 0], [1, 1]], [0, 1], [[0, 0], [1, 1]])
        found = RoundRecorder(facts_of(2), judge, 1).describe(
            step, evaluated_as([[1, 0.9, 0, 10], [1, 0.1, 0, 10]], [0, 1]), None
        )
        assert (found["pf1"], found["gf1"]) == pytest.approx((0.5, 0.4))
        assert found["gap"] == pytest.approx(0.1)

    def test_a_run_s_gap_is_between_the_means_over_its_rounds(self):
        # |0.5 - 0.4| of the means; the mean of the rounds' own gaps is 0.5.
        found = summary_of([record_of(0, pf1=0.2, gf1=0.6, gap=0.4), record_of(1, pf1=0.8, gf1=0.2, gap=0.6)])
        assert (found["pf1"], found["gf1"], found["gap"]) == pytest.approx((0.5, 0.4, 0.1))

    def test_both_sides_are_of_the_same_rounds(self):
        found = summary_of([record_of(0, pf1=0.1), record_of(1, pf1=0.3), record_of(2, pf1=0.8, gf1=0.5, gap=0.3)])
        assert (found["pf1"], found["gf1"], found["gap"]) == pytest.approx((0.8, 0.5, 0.3))

    def test_without_a_common_test_there_is_no_gap(self):
        found = summary_of([record_of(0, pf1=0.1), record_of(1, pf1=0.3)])
        assert found["pf1"] == pytest.approx(0.2)
        assert found["gf1"] is found["gap"] is None


def clustered(number, sizes, ari, completeness, purity=0.5):
    scores = {"ari": ari, "ami": ari / 2, "nmi": 0.0, "homogeneity": 0.0, "completeness": completeness, "matched": 0.0}
    return record_of(number, clusters=sizes, purity=purity, **scores)


class TestTheMeansOverRounds:
    def test_an_event_in_round_2_of_50_gives_the_paper_s_0_96_in_all_three(self):
        before = [clustered(t, [4], 0.0, 1.0) for t in (0, 1)]
        after = [{**clustered(t, [2, 2], 1.0, 1.0, 1.0), "ami": 1.0} for t in range(2, 50)]
        found = summary_of([*before, *after], facts_of(4, [0, 0, 1, 1]))
        assert [found[f"mean_{name}"] for name in ("ari", "ami", "completeness")] == pytest.approx([0.96] * 3)
        assert found["completeness"] == 1
        assert found["rounds_to"] == 2

    def test_one_model_for_all_completes_nothing(self):
        found = summary_of([clustered(t, [4, 0], 0.0, 1.0) for t in range(3)], facts_of(4, [0, 0, 1, 1]))
        assert found["mean_completeness"] == 0
        assert found["completeness"] == 1
        assert found["rounds_to"] is None

    def test_one_model_for_one_group_is_right(self):
        found = summary_of([clustered(t, [4], 1.0, 1.0) for t in range(3)], facts_of(4, [7] * 4))
        assert [found[f"mean_{name}"] for name in ("ari", "ami", "completeness")] == [1, 0.5, 1]

    def test_rounds_in_which_nobody_is_placed_or_that_a_warm_up_counts_as_are_before_the_clusters(self):
        # Round 0 without labels; rounds 1 to 3 in one exchange: (0 + 0 + 0 + 0.8 + 0.6) / 5.
        records = [record_of(0, clusters=[0, 0]), clustered(3, [2, 2], 0.8, 0.5), clustered(4, [1, 3], 0.6, 1.0, 0.9)]
        found = summary_of(records, facts_of(4, [0, 0, 1, 1]))
        assert (found["mean_ari"], found["mean_ami"], found["mean_completeness"]) == pytest.approx((0.28, 0.14, 0.3))
        assert found["rounds_to"] == 4

    def test_without_true_groups_there_is_no_agreement(self):
        assert "mean_ari" not in summary_of([record_of(0, clusters=[4])])


@pytest.mark.parametrize(
    ("last", "reasons"),
    [({"a": "gone", "b": "slow", "c": "ill", "d": "late"}, "a: gone; b: slow; c: ill"), ({}, "none was asked")],
)
def test_where_nobody_evaluated_the_last_round_says_why_for_the_first_three(last, reasons):
    history = [{"round": 0, "unevaluated": {"a": "before"}}, {"round": 1, **({"unevaluated": last} if last else {})}]
    with pytest.raises(FederationError, match=f"nobody evaluated a model, .*; reasons: {reasons}$"):
        summarise(history, None, None, None, None)


@pytest.mark.parametrize(("weigh_by", "accuracy", "majority"), [("test", 0.5, 0.35), ("train", 0.75, 0.225)])
def test_clients_count_by_test_or_by_train_examples(weigh_by, accuracy, majority):
    # Accuracies 1 and 0 on 10 tests each; 30 and 10 train examples; 1 and 6 of the tests are of the majority class.
    facts = facts_of(2, majority_correct=np.array([1, 6]))
    facts = replace(facts, train=np.array([30, 10]))
    replies = replace(evaluated_as([[1, 1, 0, 10], [0, 0, 0, 10]], [0, 0]), examples=facts.train)
    recorder = RoundRecorder(facts, None, 1, weigh_by)
    found = recorder.describe(round_of([[0, 0]], [0, 0], [[0, 0], [1, 1]]), replies, replies)
    assert found["accuracy"] == found["validation_accuracy"] == accuracy
    assert majority_rate(facts, weigh_by, np.arange(2)) == pytest.approx(majority)


@pytest.mark.parametrize(
    ("until", "key", "wanted"),
    [
        ("accuracy=0.7", "rounds_to_accuracy", 2),
        ("ari=0.3", "rounds_to_ari", 1),
        ("macro_f1=1", "rounds_to_macro_f1", None),
    ],
)
def test_the_first_round_that_reached_the_goal_is_recorded(until, key, wanted):
    aris, accuracies = (0.0, 0.3, 0.1), (0.2, 0.6, 0.7)
    records = [
        {**clustered(t, [2, 2], ari, 0.0), "accuracy": accuracy}
        for t, (ari, accuracy) in enumerate(zip(aris, accuracies, strict=True))
    ]
    asked = replace(ASKED, until=until, rounds=3)
    found = summary_of(records, facts_of(4, [0, 0, 1, 1]), asked)
    assert (found["until"], found[key], found["rounds_to"]) == (until, wanted, None)
    assert found["stopped"] is False


class TestDiagnostics:
    def test_temperature_is_of_the_updates_from_where_each_client_started(self):
        # Updates (1, 0), (0, 2) and (-3, 0): cosine distances 1, 2 and 1, each twice; the most would be 6 times 2.
        step = round_of([[5, 5], [7, 7]], [0, 1, 0], [[6, 5], [7, 9], [2, 5]])
        assert round_diagnostics(step)["temperature"] == pytest.approx(((1 + 4 + 1) * 2 / (6 * 4)) ** 0.5)

    def test_a_client_without_a_cluster_started_from_the_mean_by_shares(self):
        # It was sent 0.75 (0, 0) + 0.25 (4, 4) = (1, 1), and went (1, 0) from there; the other went (0, 1).
        made = round_of([[0, 0], [4, 4]], [0, -1], [[0, 1], [2, 1]])
        before = replace(made.before, shares=np.array([0.75, 0.25]))
        found = round_diagnostics(replace(made, before=before))
        assert found["temperature"] == pytest.approx((2 * 1 / (2 * 4)) ** 0.5)
        assert "clusterability" not in found

    def test_fewer_than_two_answers_or_no_training_have_no_temperature(self):
        assert "temperature" not in round_diagnostics(round_of([[0, 0]], [0], [[1, 0]]))
        assert "temperature" not in round_diagnostics(round_of([[1, 2]], [0, 0], [[1, 2], [1, 2]]))

    @pytest.mark.parametrize(("limit", "most"), [("MOST_CLIENTS", 2), ("MOST_BYTES", 23)])
    def test_large_rounds_go_without(self, monkeypatch, limit, most):
        step = round_of([[0, 0]], [0, 0, 0], [[1, 0], [0, 1], [1, 1]])
        monkeypatch.setattr(f"coterie.experiments.scores.{limit}", most + 1)
        assert round_diagnostics(step)
        monkeypatch.setattr(f"coterie.experiments.scores.{limit}", most)
        assert round_diagnostics(step) == {}

    def test_fedavg_s_records_have_it_too(self, images, simulator, train):
        step = train("fedavg", simulator(images(), "mlp(8)"), 1)[0]
        unheard = step.replies.without(np.ones(8, dtype=bool), {})
        record = RoundRecorder(facts_of(8), None, 1).describe(step, unheard, None)
        updates = step.replies.params.astype(np.float64) - step.before.stack.params
        distances = [cosine(a, b) for a, b in combinations(updates, 2)]
        assert record["temperature"] == pytest.approx(np.sqrt(2 * np.sum(np.square(distances)) / (8 * 7 * 4)))

    def test_the_clustering_objective_is_the_mean_square_from_the_model_after_averaging(self):
        # From (0, 0), (3, 2) and (3, 2): 1, 4 and 4 + 9, by 10, 20 and 10 examples.
        made = round_of([[9, 9]], [0, 0, 0], [[1, 0], [3, 4], [5, 5]], after=[0, 1, 1], examples=[10, 20, 10])
        averaged = replace(made.state, stack=stack_of([0, 0], [3, 2]))
        assert round_diagnostics(replace(made, state=averaged))["clustering_objective"] == pytest.approx(220 / 40)

    def test_the_clustering_objective_of_wecfl_is_its_kmeans_inertia_by_examples(self, images, simulator, train):
        step = train("wecfl", simulator(images(), "mlp(8)"), 1)[0]
        heads, labels, sizes = step.replies.part("head_weight"), step.state.labels, step.replies.examples
        total = 0.0
        for k in set(labels.tolist()):
            inside = heads[labels == k].astype(np.float64)
            centre = np.average(inside, axis=0, weights=sizes[labels == k])
            total += (sizes[labels == k] * np.square(inside - centre).sum(axis=1)).sum()
        assert round_diagnostics(step)["clustering_objective"] == pytest.approx(total / sizes.sum(), rel=1e-5)

    def test_halves_are_measured_apart_and_everybody_is_one_cluster_of_the_global_half(self):
        # Cluster half: 1 and 3 about 2, and 5 alone. Global half: 1, 3 and -2 about 2/3, the last 8/3 away.
        layout = replace(LAYOUT, parts={**LAYOUT.parts, "global": ALL[:1], "cluster": ALL[1:]})
        step = round_of([[0, 0], [0, 0]], [0, 0, 1], [[1, 1], [3, 3], [-2, 5]], layout=layout)
        found = round_diagnostics(step)
        assert found["clusterability_cluster"] == pytest.approx(1 / 2)
        assert found["clusterability_global"] == pytest.approx((8 / 3) / (2 / 3))
        assert found["clusterability"] == pytest.approx(2**0.5 / 8**0.5)
        assert "clusterability_cluster" not in round_diagnostics(
            replace(step, replies=replace(step.replies, layout=LAYOUT))
        )


class TestGradients:
    """Client i's loss is (w - slope)^2 + b^2, so its gradient is (2 (w - slope), 2 b)."""

    @pytest.fixture
    def data(self, lines):
        return lines([1, 3, -1], [1, 3, 1])

    def test_they_are_taken_at_the_cluster_s_model(self, data, simulator):
        # Cluster 0 at (0, 0): (-2, 0) by 2 examples and (-6, 0) by 6, about -5; cluster 1 at (1, 1) has one client.
        state = state_of([[0, 0], [1, 1]], [0, 0, 1])
        found = gradient_diagnostics(state, ask_gradients(simulator(data, "linear"), state, 1, np.arange(3)))
        assert found["gradient_clusterability"] == pytest.approx(3 / 5, rel=1e-5)
        assert found["objective"] == pytest.approx((2 * 1 + 6 * 9 + 2 * 5) / 10, rel=1e-5)

    def test_both_halves_of_a_sum_have_theirs(self, data):
        # The sum has the same gradient in both halves: (-2, 0), (-6, 0), (4, 2), all about (-3.2, 0.4).
        federation = Simulator(data, additive(build_model("linear", data.shape, None)))
        state = state_of([[0, 0, 0, 0], [0, 0, 1, 1]], [0, 0, 1])
        found = gradient_diagnostics(state, ask_gradients(federation, state, 1, np.arange(3)))
        assert found["gradient_clusterability_cluster"] == pytest.approx(3 / 5, rel=1e-5)
        wanted = np.hypot(7.2, 1.6) / np.hypot(3.2, 0.4)
        assert found["gradient_clusterability_global"] == pytest.approx(wanted, rel=1e-5)
        assert found["objective"] == pytest.approx(6.6, rel=1e-5)

    def test_those_without_a_cluster_are_not_asked(self, data, simulator):
        federation = simulator(data, "linear")
        state = state_of([[0, 0], [1, 1]], [-1, 0, -1])
        assert ask_gradients(federation, state, 1, np.arange(3)).clients.tolist() == [1]
        assert ask_gradients(federation, state, 1, np.array([0, 2])) is None

    def test_they_are_measured_in_evaluated_rounds_if_asked_for_and_change_and_cost_nothing(self):
        plain = Settings(
            "wecfl+cam(warmup=0)", clients=8, clusters=2, partition="rotation(0,180)", rounds=5, eval_every=2
        )
        without, found = run_settings(plain), run_settings(replace(plain, diagnose=True))
        new = {"objective", *(f"gradient_clusterability{half}" for half in ("", "_cluster", "_global"))}
        timeless = new | {"seconds"}
        strip = [{k: v for k, v in record.items() if k not in timeless} for record in found.history]
        assert strip == [{k: v for k, v in record.items() if k != "seconds"} for record in without.history]
        assert [new <= record.keys() for record in found.history] == [False, True, True, True, True]

        def total_loss(client):
            x, y = map(torch.from_numpy, found.data.train.of(client))
            return float(
                torch.nn.functional.cross_entropy(Run(found).model_for(client)(x), y, reduction="sum").detach()
            )

        wanted = sum(map(total_loss, range(8))) / len(found.data.train.y)
        assert found.history[-1]["objective"] == pytest.approx(wanted, rel=1e-5)

    @pytest.mark.parametrize(
        ("limit", "most", "complaint"),
        [
            ("MOST_EXAMPLES", 9, "diagnose takes up to 9 examples a client, one has 10"),
            ("MOST_BYTES", 1 << 20, "diagnose takes up to 1 MB of gradients, these have 2"),
        ],
    )
    def test_what_is_too_large_to_compare_is_refused(self, monkeypatch, limit, most, complaint):
        layout = replace(LAYOUT, size=1 << 18)
        check_gradients(facts_of(2).train, layout)
        monkeypatch.setattr(f"coterie.experiments.scores.{limit}", most)
        with pytest.raises(UsageError, match=complaint):
            check_gradients(facts_of(2).train, layout)


def test_fine_tuned_models_have_no_gap():
    """PF1 would be of the models after, GF1 of those before."""
    settings = Settings("wecfl", clients=4, clusters=2, partition="rotation(0,180)", model="mlp(8)", rounds=1, steps=2)
    plain, tuned = (run_settings(replace(settings, algorithm=text)).summary for text in ("wecfl", "wecfl+finetune"))
    assert (plain["gf1"] is None, tuned["gf1"] is None, tuned["gap"]) == (False, True, None)


def test_those_who_were_asked_and_did_not_answer_count_as_asked():
    step = round_of([[0.0, 0.0]], [0, 0], [[1.0, 0.0], [0.0, 1.0]])
    step = replace(step, replies=replace(step.replies, missing={"client-2": "late", "client-3": "gone"}))
    assert RoundRecorder(facts_of(4), None, 1).describe(step, None, None, None)["asked"] == 4
