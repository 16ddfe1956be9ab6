"""The AUROC of all clients' examples together, from histograms of scores: in a simulation and through bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import coterie as ct
from coterie.deploy.policy import Policy
from coterie.engine.metrics import find_metric, reported_shape
from coterie.engine.rankings import log_odds, pooled_auroc, score_histograms
from coterie.errors import FederationError, Refused
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.testing import Loopback
from coterie.wire import codec
from coterie.wire.reply_checks import read_reply

NOISE = {
    "even": lambda rng, n: rng.normal(size=n),
    "one tail": lambda rng, n: rng.gumbel(size=n),
    "both tails": lambda rng, n: rng.standard_t(4, size=n),
    "pushed to an end": lambda rng, n: rng.exponential(size=n),
    "ties": lambda rng, n: rng.normal(size=n),
}


def outputs_of(seed, noise, share, spread, count=4000):
    """Outputs of a network for two classes, of which the second has this share of the examples."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < share).astype(np.int64)
    scores = np.log(share / (1 - share)) + spread * (NOISE[noise](rng, count) + rng.uniform(0, 3) * (y - 0.5))
    return np.column_stack([np.zeros(count), np.round(scores, 1) if noise == "ties" else scores]), y


def summed(outputs, y, sites):
    parts = zip(np.array_split(outputs, sites), np.array_split(y, sites), strict=True)
    return sum(score_histograms(*part) for part in parts)


@pytest.mark.parametrize("share", [0.5, 0.2, 0.05, 0.02])
@pytest.mark.parametrize("noise", NOISE)
def test_it_is_within_a_hundredth_of_the_exact_one(noise, share):
    outputs, y = outputs_of(7, noise, share, spread=1.0)
    found = pooled_auroc(summed(outputs, y, 8))
    assert found.value == pytest.approx(roc_auc_score(y, outputs[:, 1]), abs=0.01)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(NOISE)),
    st.sampled_from([0.5, 0.1, 0.02]),
    st.sampled_from([0.01, 0.3, 1.0, 3.0]),
)
def test_it_never_errs_by_more_than_it_says(seed, noise, share, spread):
    outputs, y = outputs_of(seed, noise, share, spread, 500)
    y[:2] = 0, 1
    found = pooled_auroc(summed(outputs, y, 3))
    assert abs(found.value - roc_auc_score(y, outputs[:, 1])) <= found.error + 1e-12


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(3, 5), st.integers(1, 6))
def test_of_several_classes_it_is_the_mean_and_sites_do_not_matter(seed, classes, sites):
    rng = np.random.default_rng(seed)
    outputs, y = rng.normal(size=(600, classes)) * 2, rng.integers(0, classes - 1, 600)  # one class is absent
    found, odds = pooled_auroc(summed(outputs, y, sites)), log_odds(outputs)
    expected = np.mean([roc_auc_score(y == k, odds[k]) for k in range(classes - 1)])
    assert found.value == pytest.approx(expected, abs=0.01)
    assert np.array_equal(summed(outputs, y, sites), score_histograms(outputs, y))


def test_labels_absent_classes_and_outputs_that_are_no_numbers():
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(500, 3)), rng.integers(0, 2, (500, 3)).astype(np.float32)
    expected = roc_auc_score(y, outputs, average="macro")
    assert pooled_auroc(score_histograms(outputs, y)).value == pytest.approx(expected, abs=0.01)
    assert np.isnan(pooled_auroc(score_histograms(outputs[:, :2], np.zeros(500, int))).value)
    lost = score_histograms(np.full((4, 2), np.nan), np.array([0, 1, 0, 1]))
    assert (lost.sum(), pooled_auroc(lost).value) == (4, 0.5)


@pytest.fixture
def clients(images):
    return images(sizes=(20, 30, 25, 40))


def test_a_run_has_it_beside_the_mean_over_clients(clients):
    run = ct.run("fedavg", clients, rounds=2, metric="auroc_pooled")
    outputs, truth = [], []
    for i in range(len(clients)):
        x, y = clients.test.of(i)
        outputs.append(run.model_for(i)(torch.from_numpy(x)).detach().numpy())
        truth.append(y)
    exact, _ = find_metric("auroc")
    together = exact.function(np.concatenate(outputs), np.concatenate(truth))
    assert abs(run.summary["metric"] - together) <= run.summary["metric_error"] + 1e-6
    assert run.summary["metric_mean"] is not None
    assert run.history[-1]["metric"] == run.summary["metric"]
    assert "own auroc_pooled" in run.verdict["score"]


TASK = Task(report=Report(params=None, evaluate_on="test", metric="auroc_pooled"))


def asked(federation, clients):
    model, everyone = federation.model, np.arange(len(clients))
    stack = Stack(*(each[None] for each in model.initial(1)))
    return federation.ask(TASK, Sent(stack), np.zeros(len(clients), int), everyone, Key(1, 0))


def test_histograms_travel_and_nothing_else(clients):
    model = build_model("linear", clients.shape, clients.classes)
    here, there = asked(Simulator(clients, model, threads=1), clients), asked(Loopback(clients, model), clients)
    assert here.metric.shape == (4, *reported_shape("auroc_pooled", clients.target))
    np.testing.assert_array_equal(here.metric.sum(), there.metric.sum())
    rankings = here.metric.shape[1] // 200
    assert here.metric.sum(axis=1).tolist() == (clients.test.sizes * rankings).tolist()
    assert there.cost == here.cost


def test_counts_that_no_site_can_have_are_refused(clients):
    model = build_model("linear", clients.shape, clients.classes)
    stack = Stack(*(each[None] for each in model.initial(1)))
    measured = reported_shape("auroc_pooled", clients.target)
    sizes = message.Sizes(train=20, test=5)
    form = message.form(TASK, Sent(stack), model.layout, classes=clients.classes, sizes=sizes, measured=measured)
    good = {name: np.full(each.shape, each.low, each.kind) for name, each in form.items()}
    read_reply(codec.encode(good), form, TASK, np.array(0))
    bad = {**good, "metric": np.full(form["metric"].shape, 6.0)}
    with pytest.raises(FederationError, match=r"sent 6\.0 in metric; it must be 0 to 5"):
        read_reply(codec.encode(bad), form, TASK, np.array(0))


def test_a_site_gives_histograms_only_if_its_policy_lists_them():
    check = {"models": 1, "served": 1, "sizes": {"train": 50, "test": 50}}
    with pytest.raises(Refused, match="the metric auroc_pooled asks for histograms of scores; this site allows params"):
        Policy().check_task(TASK, **check)
    Policy(reports=("metrics", "histograms")).check_task(TASK, **check)
    Policy().check_task(replace(TASK, report=replace(TASK.report, metric="auroc")), **check)
