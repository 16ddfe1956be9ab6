"""Tasks beyond one label: several real targets, several labels, and tokens, from data to network and federation."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics as reference
from torch import nn

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.client_functions import label_counts
from coterie.data.dataset import Dataset
from coterie.data.tables.api import check_own, load_own, load_pooled
from coterie.deploy.audit import Audit
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.deploy.server_run import _checked_description, agree_on_data
from coterie.deploy.site_answers import Site
from coterie.engine import client_columns
from coterie.engine.evaluation import Predicted, bound, predicted, predictions
from coterie.engine.trainer import losses, mean_loss
from coterie.errors import CoterieError, DataError, FederationError, ModelError, PartitionError
from coterie.experiments.records import facts_of
from coterie.models.combined import mix_outputs
from coterie.models.zoo import build_model
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.reporting.data_view import facts
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.loop import rounds
from coterie.server.serving import evaluate
from coterie.target import Target
from coterie.testing import Loopback
from coterie.wire.requests import Network, described

REALS, LABELS = Target(None, 3), Target(2, 3)


def make_clients(kind, clients=6, size=40, seed=0):
    """Clients of two groups, whose targets (or labels) have opposite signs; tokens are classes by the token 5."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(4, 3))
    made = {}
    for i in range(clients):
        x = rng.normal(size=(size, 4))
        y = x @ weights * (-1) ** i
        if kind == "labels":
            y = (y > 0).astype(int)
        if kind == "tokens":
            x = rng.integers(0, 20, (size, 6))
            y = (x == 5).any(axis=1).astype(int)
        made[f"c{i}"] = (x, y)
    return ct.from_arrays(made, groups={f"c{i}": i % 2 for i in range(clients)}, tokens=kind == "tokens")


KINDS = ("reals", "labels", "tokens")


@pytest.fixture(scope="module", params=KINDS)
def data(request):
    return make_clients(request.param)


def network(data, text=None):
    return build_model(text, data.shape, data.classes, data.columns, data.vocabulary)


class TestLosses:
    OUT = torch.tensor([[0.0, 2.0, -1.0], [1.0, 0.0, 3.0]])

    def test_several_targets_have_the_mean_of_their_squared_errors(self):
        truth = torch.tensor([[1.0, 2.0, 1.0], [1.0, 3.0, 3.0]])
        assert losses(self.OUT, truth, REALS).tolist() == pytest.approx([5 / 3, 3.0])
        assert mean_loss(self.OUT, truth, REALS).item() == pytest.approx((5 / 3 + 3) / 2)

    def test_several_labels_have_the_mean_of_their_binary_cross_entropies(self):
        truth = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])

        def entropy(z, y):
            chance = 1 / (1 + math.exp(-z))
            return -math.log(chance if y else 1 - chance)

        by_hand = [
            sum(entropy(z, y) for z, y in zip(row, own, strict=True)) / 3
            for row, own in zip(self.OUT.tolist(), truth.tolist(), strict=True)
        ]
        assert losses(self.OUT, truth, LABELS).tolist() == pytest.approx(by_hand)
        assert mean_loss(self.OUT, truth, LABELS).item() == pytest.approx(sum(by_hand) / 2)

    def test_a_group_of_clients_has_a_loss_for_every_example(self):
        truth = torch.ones(2, 2, 3)
        assert losses(self.OUT.expand(2, 2, 3), truth, LABELS).shape == (2, 2)
        assert losses(self.OUT.expand(2, 2, 3), truth, REALS).shape == (2, 2)

    def test_a_bounded_loss_is_the_share_of_wrong_labels_or_entropy_in_units_of_a_guess(self):
        truth = np.array([[1, 1, 0], [0, 1, 1]])
        found = predicted(self.OUT, torch.from_numpy(truth).float(), LABELS)
        assert found.predictions.tolist() == [[0, 1, 0], [1, 0, 1]]
        assert bound(found, truth, "zero-one", LABELS).tolist() == pytest.approx([1 / 3, 2 / 3])
        clipped = bound(Predicted(np.array([math.log(2) / 2, 9.0]), found.predictions), truth, "clipped", LABELS)
        assert clipped.tolist() == pytest.approx([0.5, 1.0])

    def test_each_label_is_mixed_as_two_classes(self):
        """The reference is the mixture of two classes with the outputs (0, z): its difference is the log-odds."""
        members = [torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([[-0.5, -3.0, 1.0]]), torch.tensor([[4.0, 1.0, 0.0]])]
        for rule in ("logits", "softmax", "majority"):
            pairs = [torch.stack([torch.zeros(3), own[0]], 1) for own in members]
            two = mix_outputs(pairs, rule, Target(2))
            torch.testing.assert_close(mix_outputs(members, rule, LABELS), (two[:, 1] - two[:, 0]).unsqueeze(0))
        mean = mix_outputs(members, "majority", REALS)
        torch.testing.assert_close(mean, torch.stack(members).mean(0))


class TestMetrics:
    OFFSETS = np.array([0, 7, 20])

    def test_of_several_labels_are_those_of_scikit_learn(self):
        rng = np.random.default_rng(3)
        truth, said = rng.integers(0, 2, (2, 20, 4))
        truth[:, 3] = said[:, 3] = 0  # a label that nobody has or is said to have does not count
        found = client_columns.multilabel(said, truth.astype(np.float32), np.ones(20), self.OFFSETS)
        for row, (start, stop) in zip(found, ((0, 7), (7, 20)), strict=True):
            own, other = truth[start:stop], said[start:stop]
            assert row[0] == pytest.approx(1 - reference.hamming_loss(own, other))
            assert row[1] == pytest.approx(reference.f1_score(own[:, :3], other[:, :3], average="macro"))
            assert row[3] == stop - start

    def test_a_client_without_any_label_that_is_told_so_is_served_perfectly(self):
        none = np.zeros((20, 2))
        assert client_columns.multilabel(none, none, np.zeros(20), self.OFFSETS)[:, :2].tolist() == [[1, 1], [1, 1]]

    def test_of_several_targets_are_means_over_targets(self):
        rng = np.random.default_rng(4)
        truth, said = rng.normal(size=(2, 20, 3))
        found = client_columns.regression(said, truth, np.ones(20), self.OFFSETS)
        for row, part in zip(found, (slice(0, 7), slice(7, 20)), strict=True):
            assert row[0] == pytest.approx(reference.mean_squared_error(truth[part], said[part]))
            assert row[1] == pytest.approx(truth[part].var(axis=0).mean())

    def test_the_majority_guesses_each_label_by_itself(self):
        x = np.zeros((4, 1))
        parts = {"train": (x, [[1, 0], [1, 0], [1, 1], [0, 0]]), "test": (x[:2], [[1, 0], [0, 0]])}
        data = ct.from_arrays({"a": parts, "b": parts})
        assert facts_of(data).majority_correct.tolist() == [1.5, 1.5]
        assert facts_of(data).uniform is None


class TestData:
    def test_several_columns_of_zeros_and_ones_are_labels_and_others_are_targets(self):
        x = np.zeros((10, 2))
        flags, numbers = np.eye(2)[np.arange(10) % 2], np.arange(20.0).reshape(10, 2)
        assert str(ct.from_arrays({"a": (x, flags)}).target) == "2 labels"
        assert str(ct.from_arrays({"a": (x, flags == 1)}).target) == "2 labels"
        assert str(ct.from_arrays({"a": (x, flags)}, task="regression").target) == "2 real targets"
        both = ct.from_arrays({"a": (x, flags), "b": (x, numbers)})
        assert str(both.target) == "2 real targets"
        assert both.train.y.shape == (16, 2)
        assert both.train.y.dtype == np.float32

    @pytest.mark.parametrize(
        ("y", "options", "message"),
        [
            (np.zeros((10, 1)), {}, r"reshape them to \(n, ...\) and \(n,\), or \(n, k\)"),
            (np.zeros((10, 2, 2)), {}, "reshape"),
            (np.full((10, 2), 0.5), {"task": "multilabel"}, "neither 0 nor 1"),
            (np.zeros((10, 2)), {"task": "classification"}, "use task multilabel"),
            (np.arange(10) % 2, {"task": "multilabel"}, "y has one label an example"),
            (np.array([["a", "b"]] * 10), {}, "several labels or targets are numbers"),
            (np.full((10, 2), np.nan), {}, "NaN or infinite value in row 0"),
        ],
    )
    def test_columns_that_cannot_be_used_are_refused_in_one_line(self, y, options, message):
        with pytest.raises(DataError, match=message) as caught:
            ct.from_arrays({"a": (np.zeros((10, 2)), y)}, **options)
        assert "\n" not in str(caught.value)

    def test_clients_with_other_numbers_of_columns_are_refused(self):
        x = np.zeros((10, 2))
        with pytest.raises(DataError, match="give as many for all"):
            ct.from_arrays({"a": (x, np.zeros((10, 2))), "b": (x, np.zeros((10, 3)))})

    def test_tokens_stay_whole_numbers_and_only_if_asked(self):
        x, y = np.arange(40).reshape(10, 4), np.arange(10) % 2
        tokens = ct.from_arrays({"a": (x, y), "b": (x[:, ::-1] + 2, y)}, tokens=True)
        assert tokens.train.x.dtype == np.int64
        assert tokens.vocabulary == 42
        plain = ct.from_arrays({"a": (x, y)})
        assert plain.train.x.dtype == np.float32
        assert plain.vocabulary is None

    def test_what_is_no_token_is_refused_in_one_line(self):
        y = np.arange(10) % 2
        for x in (np.full((10, 2), 0.5), np.full((10, 2), -1)):
            with pytest.raises(DataError, match="tokens are whole numbers from 0 on"):
                ct.from_arrays({"a": (x, y)}, tokens=True)
        data = ct.from_arrays({"a": (np.full((10, 2), 7), y)}, tokens=True)
        with pytest.raises(DataError, match=r"client 'a' has a token out of range in train row 0; tokens must be 0..6"):
            replace(data, vocabulary=7)
        with pytest.raises(DataError, match="tokens are int64"):
            replace(data, train=replace(data.train, x=data.train.x.astype(np.float32)))

    def test_a_label_other_than_0_and_1_is_refused(self):
        data = make_clients("labels")
        with pytest.raises(DataError, match="has a label out of range in train row 0; each must be 0 or 1"):
            replace(data, train=replace(data.train, y=data.train.y + 1))
        with pytest.raises(DataError, match="reshape"):
            replace(data, columns=2)

    def test_partitions_that_need_classes_or_numbers_are_refused_and_others_keep_the_kind(self):
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 9, (200, 4)), rng.integers(0, 2, (200, 3))
        whole = Dataset("notes", x, y, x, y, 2, columns=3, vocabulary=9, class_names=("a", "b", "c"))
        dealt = whole.partition("iid", 5, validation=0.2)
        assert (dealt.columns, dealt.vocabulary, dealt.train.x.dtype, dealt.train.y.shape[1]) == (3, 9, np.int64, 3)
        for how in ("dirichlet(0.1)", "classes(2)", "swap", "iid+label-noise(0.1)"):
            with pytest.raises(PartitionError, match="needs classes and notes has 3 labels; use the partition iid"):
                whole.partition(how, 5)
        for how in ("iid+noise(0,1)", "rotation(0,90)"):
            with pytest.raises(PartitionError, match="changes numbers and notes has tokens"):
                whole.partition(how, 4)
        with pytest.raises(DataError, match="has 3 labels; leave it out"):
            whole.only("a,b")

    def test_a_table_of_files_has_labels_and_tokens(self, tmp_path):
        rng = np.random.default_rng(0)
        for name in ("a", "b"):
            np.savez(tmp_path / f"{name}.npz", x=rng.integers(0, 9, (30, 4)), y=rng.integers(0, 2, (30, 3)))
        data = load_own(tmp_path, tokens=True, validation=0.2)
        assert (str(data.target), data.train.x.dtype, data.validation.y.shape[1]) == ("3 labels", np.int64, 3)
        assert data.vocabulary == 9
        assert str(load_own(tmp_path, task="regression").target) == "3 real targets"
        np.savez(tmp_path / "c.npz", x=rng.integers(0, 9, (30, 4)), y=rng.integers(0, 2, (30, 2)))
        with pytest.raises(DataError, match=r"c\.npz: has labels of shape"):
            load_own(tmp_path)

    def test_facts_say_how_frequent_labels_are(self):
        assert any(each.startswith("labels: 0 ") for each in facts(make_clients("labels")))
        assert "3 real targets an example" in facts(make_clients("reals"))


class TestTables:
    @pytest.fixture
    def frame(self):
        rng = np.random.default_rng(1)
        x, z = rng.normal(size=(2, 80))
        return pl.DataFrame(
            {
                "site": ["bern", "chur"] * 40,
                "x": x,
                "z": z,
                "load": 100 + 3 * x,
                "wind": 10 * z - 5,
                "ill": x > 0,
                "old": np.where(z > 0, "1.0", "0"),
                "word": ["red", "blue"] * 40,
            }
        )

    def test_each_target_is_standardised_by_its_own_train_rows_and_predicted_in_its_unit(self, frame):
        table = frame.select("site", "x", "z", "load", "wind")
        data = ct.from_frame(table, client="site", label=["load", "wind"])
        assert str(data.target) == "2 real targets"
        assert data.shape == (2,)
        np.testing.assert_allclose(data.train.y.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(data.train.y.std(axis=0), 1, atol=1e-6)
        assert data.unit == 1.0
        run = ct.run("fedavg", data, "linear", rounds=25, optimizer="sgd", steps=10)
        np.testing.assert_allclose(run.predict(table, "bern"), table.select("load", "wind").to_numpy(), atol=0.05)
        assert run.summary["r2"] > 0.999

    def test_truth_values_zeros_and_ones_are_labels_with_names(self, frame):
        data = ct.from_frame(frame.select("site", "x", "z", "ill", "old"), client="site", label="ill,old")
        assert (str(data.target), data.class_names) == ("2 labels", ("ill", "old"))
        assert set(np.unique(data.train.y)) == {0, 1}
        every = np.sort(np.concatenate([data.train.y.sum(axis=0), data.test.y.sum(axis=0)]).reshape(2, 2).sum(axis=0))
        assert every.tolist() == sorted([(frame["x"] > 0).sum(), (frame["z"] > 0).sum()])

    def test_a_schema_turns_later_files_into_the_same_arrays(self, frame, tmp_path):
        for label in ("load,wind", "ill,old"):
            table = frame.select("site", "x", "z", *label.split(","))
            data = ct.from_frame(table, client="site", label=label)
            data.schema.save(tmp_path / "schema.json")
            again = ct.Schema.load(tmp_path / "schema.json")
            assert again == data.schema
            same = ct.from_frame(table, client="site", schema=again)
            assert np.array_equal(same.train.y, data.train.y)
            x, y = again.arrays(table.drop("site"))
            assert (len(x), y.shape) == (80, (80, 2))

    @pytest.mark.parametrize(
        ("label", "task", "message"),
        [
            ("load,ill", None, "'ill' has 'true', which is no number|'ill' has 'false', which is no number"),
            ("load,old", None, "'old' has only 0 and 1, and 'load' has other numbers"),
            ("load,word", None, "which is no number; several labels must all be numbers, or all be 0 or 1"),
            ("load,wind", "multilabel", "each of several labels must be 0 or 1"),
            ("ill,old", "classification", "a classification has one; use task='multilabel'"),
            ("ill", "multilabel", "several labels need several columns"),
            ("ill,nothing", None, "has no column 'nothing'"),
            ("ill,ill", None, "named twice"),
            (" , ", None, "names no column"),
        ],
    )
    def test_a_mixture_is_refused_in_one_line(self, frame, label, task, message):
        with pytest.raises(CoterieError, match=message) as caught:
            ct.from_frame(frame, client="site", label=label, task=task)
        assert "\n" not in str(caught.value)

    def test_zeros_and_ones_beside_numbers_are_targets_if_asked(self, frame):
        data = ct.from_frame(
            frame.select("site", "x", "load", "old"), client="site", label="load,old", task="regression"
        )
        assert str(data.target) == "2 real targets"

    def test_a_field_that_is_no_label_is_refused_with_its_row(self, frame):
        data = ct.from_frame(frame.select("site", "x", "ill", "old"), client="site", label="ill,old")
        bad = frame.select("site", "x", "ill", "old").with_columns(old=pl.lit("maybe"))
        with pytest.raises(DataError, match="'old' has 'maybe', which is neither 0 nor 1"):
            ct.from_frame(bad, client="site", schema=data.schema)

    def test_tables_have_no_tokens(self, frame):
        with pytest.raises(DataError, match=r"tokens are for \.npz files and arrays"):
            ct.from_frame(frame, client="site", label="word", tokens=True)

    def test_a_check_and_a_pooled_table_know_several_labels(self, frame):
        table = frame.select("x", "z", "ill", "old")
        assert check_own(table, label="ill,old").problems == ()
        whole = load_pooled(table, label="ill,old")
        assert str(whole.partition("iid", 4).target) == "2 labels"
        with pytest.raises(PartitionError, match="has 2 labels; use the partition iid"):
            whole.partition("dirichlet(1)", 4)


class TestNetworks:
    @pytest.mark.parametrize("text", ["mlp(8)", "linear", "tabular(8)"])
    def test_the_catalogue_has_an_output_for_each(self, text):
        for columns, classes in ((3, 2), (3, None)):
            assert build_model(text, (4,), classes, columns).target.width == 3
        assert build_model("cnn", (1, 16, 16), 2, 5).slots[-1].shape == (5,)

    def test_a_bag_is_the_mean_of_its_embeddings_without_padding(self):
        model = build_model("bag(2)", (4,), 3, vocabulary=5)
        module = model.with_row(*model.initial(0))
        x = torch.tensor([[1, 3, 0, 0], [0, 0, 0, 0]])
        mean = (module.embedding.weight[1] + module.embedding.weight[3]) / 2
        torch.testing.assert_close(module(x)[0], module.head(mean))
        torch.testing.assert_close(module(x)[1], module.head.bias)
        assert model.layout.size == 5 * 2 + 2 * 3 + 3
        assert model.can_lockstep

    def test_networks_for_numbers_and_for_tokens_are_told_apart(self):
        with pytest.raises(ModelError, match=r"model 'mlp\(8\)' is for numbers and the examples are tokens; use bag"):
            build_model("mlp(8)", (4,), 3, vocabulary=5)
        with pytest.raises(ModelError, match="model 'bag' is for tokens and the examples are numbers"):
            build_model("bag", (4,), 3)
        assert build_model(None, (4,), 3, vocabulary=5).text == "bag"

    def test_a_vocabulary_beyond_all_memory_is_refused_before_anything_is_made(self):
        data = ct.from_arrays({"a": (np.full((4, 2), 10**12), np.arange(4) % 2)}, tokens=True)
        with pytest.raises(CoterieError, match="model 'bag' has 64,000,000,000,"):
            network(data)

    def test_a_users_network_gets_whole_numbers_and_the_vocabulary(self):
        seen = []

        def make(shape, outputs, vocabulary):
            seen.append((shape, outputs, vocabulary))
            return nn.Sequential(nn.Embedding(vocabulary, 3), nn.Flatten(), nn.Linear(3 * shape[0], outputs))

        data = make_clients("tokens", 3)
        run = ct.run("fedavg", data, make, rounds=1, lr=0.1)
        assert seen[0] == ((6,), 2, data.vocabulary)
        assert run.summary["rounds"] == 1

    def test_a_network_with_another_number_of_outputs_is_refused(self):
        with pytest.raises(ModelError, match=r"these data need \(3,\): make its last layer 3 wide"):
            ct.run("fedavg", make_clients("labels"), nn.Linear(4, 2), rounds=1)


class TestRuns:
    def test_all_plans_and_a_federation_of_bytes_train_the_same(self, data):
        model = network(data)
        task, key = Task(fit=(Fit(steps=5, batch=8, lr=0.1),)), Key(1, 0)
        stack = Stack(*(each[None] for each in model.initial(1)))
        everyone = np.arange(len(data))
        found = {}
        for plan in ("workers", "lockstep", "single", "native"):
            federation = Simulator(data, model, threads=2, plan=plan)
            found[plan] = federation.ask(task, Sent(stack), np.zeros(len(data), int), everyone, key)
        over_bytes = Loopback(data, model).ask(task, Sent(stack), np.zeros(len(data), int), everyone, key)
        for other in (found["lockstep"], found["single"], found["native"], over_bytes):
            np.testing.assert_allclose(other.params, found["workers"].params, atol=1e-5)
            np.testing.assert_allclose(other.training_loss, found["workers"].training_loss, rtol=1e-4)

    def test_tokens_stay_whole_numbers_under_models_of_double_precision(self):
        rng = np.random.default_rng(0)
        made = {name: (rng.integers(0, 9, (20, 4)), rng.normal(size=(20, 2))) for name in ("a", "b")}
        data = ct.from_arrays(made, tokens=True)
        model = network(data)
        stack = Stack(*(each[None].astype(np.float64) for each in model.initial(1)))
        task = Task(fit=(Fit(steps=3, batch=8, lr=0.1),), report=Report(evaluate_on="test"))
        reply = Simulator(data, model).ask(task, Sent(stack), np.zeros(2, int), np.arange(2), Key(1, 0))
        assert reply.params.dtype == np.float64
        assert np.isfinite(reply.metrics).all()

    def test_a_step_of_training_is_torchs(self):
        """One full-batch step of rate 1 on a linear net: start minus the gradient of the mean loss."""
        for kind, loss in (("reals", nn.MSELoss()), ("labels", nn.BCEWithLogitsLoss())):
            data = make_clients(kind, 2)
            model = network(data, "linear")
            params, buffers = model.initial(3)
            module = model.bind(torch.from_numpy(params.copy()), torch.from_numpy(buffers.copy()))
            x, y = map(torch.from_numpy, data.train.of(1))
            loss(module(x), y).backward()
            with torch.no_grad():
                for each in module.parameters():
                    each -= each.grad
            task = Task(fit=(Fit(epochs=1, batch=1000, lr=1.0, momentum=0.0),))
            stack = Stack(params[None], buffers[None])
            reply = Simulator(data, model).ask(task, Sent(stack), np.array([0]), np.array([1]), Key(1, 0))
            np.testing.assert_allclose(reply.params[0], model.flatten(module)[0], atol=1e-6)

    @pytest.mark.parametrize("text", ["wecfl(clusters=2)", "ifca(clusters=2)", "lcfl(clusters=2,loss=clipped)"])
    def test_groups_of_opposite_targets_are_found(self, text):
        for kind in ("reals", "labels"):
            run = ct.run(text, make_clients(kind, size=80), rounds=5, seed=2)
            assert run.summary["ari"] == 1.0, kind

    @pytest.mark.parametrize(
        "text",
        [
            "lcfl(clusters=2,loss=zero-one)",
            "fesem(clusters=2)+con-rep(strength=0.1,of=outputs)",
            "fedavg+finetune",
            "fedavg-ensemble(members=2)",
            "vote(fedavg,wecfl(clusters=2))",
            "wecfl(clusters=2)+cam",
        ],
    )
    def test_methods_that_look_at_outputs_run_on_labels(self, text):
        run = ct.run(text, make_clients("labels"), rounds=3)
        assert 0.3 < run.summary["accuracy"] <= 1
        assert run.summary["gf1"] is None

    def test_a_run_is_saved_loaded_continued_and_places_newcomers(self, data, tmp_path):
        run = ct.run("ifca(clusters=2)", data, rounds=3, out=tmp_path / "run")
        again = ct.load_run(tmp_path / "run", clients=data)
        x, y = data.test.of(0)
        assert np.array_equal(run.predict(x, 0), again.predict(x, 0))
        assert np.array_equal(run.predict(x, 0).shape, y.shape)
        placed = again.assign(*data.train.of(1))
        assert placed.measure == ("rmse" if data.classes is None else "accuracy")
        resumed = ct.run("ifca(clusters=2)", data, rounds=3, out=tmp_path / "run", resume=True)
        assert np.array_equal(resumed.state.stack.params, run.state.stack.params)
        with pytest.raises(DataError, match="the run's model needs"):
            run.assign(x, np.zeros((len(x), 7)))

    def test_probabilities_of_labels_are_each_ones_own(self):
        data = make_clients("labels")
        run = ct.run("wecfl(clusters=2)", data, rounds=3)
        chances = run.predict(data.test.x, 0, proba=True)
        assert ((chances > 0.5) == run.predict(data.test.x, 0)).all()
        assert not np.allclose(chances.sum(axis=1), 1)

    def test_tokens_beyond_the_vocabulary_are_refused(self):
        data = make_clients("tokens")
        run = ct.run("fedavg", data, rounds=1)
        with pytest.raises(DataError, match=r"x has tokens from 99 to 99; the run's are 0..19"):
            run.predict(np.full((1, 6), 99), 0)
        with pytest.raises(DataError, match="a token out of range"):
            run.assign(np.full((2, 6), 99), np.array([0, 1]))

    def test_labels_are_counted_by_no_client_function(self):
        data = make_clients("labels")
        task = Task(report=label_counts.report())
        stack = Stack(*(each[None] for each in network(data).initial(1)))
        reply = Simulator(data, network(data)).ask(task, Sent(stack), np.array([0]), np.array([0]), Key(1, 0))
        assert "several labels" in reply.missing["c0"]


class TestFederation:
    @pytest.fixture
    def site(self, data, tmp_path):
        own = data.select([0])
        return Site("c0", own, Policy(least_examples=1), Audit(tmp_path / "c0.jsonl"))

    def test_a_site_says_what_its_examples_are(self, site, data):
        about = site.hello()
        assert (about.columns, about.vocabulary, about.classes) == (data.columns, data.vocabulary, data.classes)

    def test_a_site_trains_models_of_its_kind_and_refuses_others(self, site, data):
        wanted = described(network(data))
        size = network(data).layout.size
        engine = site.models.engine(wanted, size, 0)
        assert engine.model.target == data.target
        others = [replace(wanted, columns=7), replace(wanted, vocabulary=10**9)]
        for other in others:
            with pytest.raises(FederationError, match="this site has"):
                site.models.engine(other, size, 0)

    def test_sites_must_agree(self, site, data):
        about = {"c0": site.hello(), "c1": replace(site.hello(), name="c1")}
        order = Order({"algorithm": "fedavg"}, "out", "board", ("c0", "c1"), minimum=2, timeout=60.0)
        assert agree_on_data(order, about).columns == data.columns
        assert agree_on_data(order, about).vocabulary == data.vocabulary
        larger = {**about, "c1": replace(about["c1"], vocabulary=500)}
        if data.vocabulary is None:
            with pytest.raises(FederationError, match="some sites have tokens and others numbers"):
                agree_on_data(order, larger)
        else:
            assert agree_on_data(order, larger).vocabulary == 500
        with pytest.raises(FederationError, match="c1 has columns 9 where c0 has"):
            agree_on_data(order, {**about, "c1": replace(about["c1"], columns=9)})

    @pytest.mark.parametrize("change", [{"columns": 1}, {"columns": 10**6}, {"vocabulary": 0}, {"vocabulary": 10**9}])
    def test_impossible_kinds_are_refused(self, site, change):
        about = json.loads(json.dumps(asdict(site.hello())))
        assert _checked_description("c0", about) == site.hello()
        with pytest.raises(FederationError, match="it must be from"):
            _checked_description("c0", {**about, **change})

    def test_evaluations_over_bytes_are_the_simulators(self, data):
        model, algorithm = network(data), build_algorithm("ifca(clusters=2)", 2, Fit(steps=3, batch=8, lr=0.1))
        found = []
        for federation in (Simulator(data, model, threads=1, plan="native"), Loopback(data, model)):
            *_, last = (step for step, _ in zip(rounds(algorithm, federation, 1), range(2), strict=False))
            found.append(evaluate(algorithm, federation, last.state, 1))
        np.testing.assert_allclose(found[0].metrics, found[1].metrics, atol=1e-6)


def test_predictions_and_reports_of_networks_over_the_wire_keep_their_form():
    assert predictions(torch.tensor([[1.0, -1.0, 0.2]]), REALS).tolist() == [pytest.approx([1.0, -1.0, 0.2])]
    there = Network("linear", "", (4,), 2, 3)
    assert described(there.build()) == there
    assert Report().params == "all"
