"""How much a number of examples counts that is only a client's own word: at most so many times what is usual."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from coterie.deploy.order import Order
from coterie.errors import UsageError
from coterie.experiments.resuming import meaning
from coterie.experiments.settings import Settings
from coterie.models.layout import Layout
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import average, uniform
from coterie.server.contract import by_examples
from coterie.server.exchange import bounded

FIT = Fit(steps=3, batch=8, lr=0.1)


class Claiming:
    """A federation in which one client says that it has so many examples."""

    def __init__(self, inner, client, size):
        self.inner, self.client, self.size = inner, client, size

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def ask(self, task, sent, labels, clients, key):
        replies = self.inner.ask(task, sent, labels, clients, key)
        return replace(replies, examples=np.where(replies.clients == self.client, self.size, replies.examples))


def replies_of(examples, rows=None, factor=5.0, lengths=None):
    """Clients with so many examples each, whose models at random began with these rows."""
    examples = np.asarray(examples)
    rows = np.zeros(len(examples), int) if rows is None else np.asarray(rows)
    params = np.random.default_rng(0).normal(size=(len(examples), 4)).astype(np.float32)
    if lengths is not None:
        params = np.outer(lengths, [1, 0, 0, 0]).astype(np.float32)
    layout = Layout(4, 0, {"all": np.arange(4)}, {"all": np.arange(0)})
    buffers = np.zeros((len(examples), 0), np.float32)
    return Replies(layout, np.arange(len(examples)), rows, examples, params, buffers, weight_bound=factor)


def slow_weights(examples, rows, factor):
    """The bound by its definition, a client at a time."""
    found = []
    for own, row in zip(examples, rows, strict=True):
        same = [other for other, at in zip(examples, rows, strict=True) if at == row]
        found.append(min(own, int(factor * median(same if len(same) >= 5 else examples))))
    return found


def zeros(rows):
    return Stack(np.zeros((rows, 4), np.float32), np.zeros((rows, 0), np.float32))


class TestWeights:
    @pytest.mark.parametrize("factor", [1, 2.5, 5])
    @pytest.mark.parametrize("seed", range(5))
    def test_are_at_most_so_many_times_the_median_of_the_cluster_or_of_all(self, factor, seed):
        rng = np.random.default_rng(seed)
        examples, rows = rng.zipf(1.3, 23).clip(1, 10**9), rng.choice(4, 23, p=[0.5, 0.3, 0.1, 0.1])
        slow = slow_weights(examples.tolist(), rows.tolist(), factor)
        assert slow != examples.tolist()
        assert by_examples(replies_of(examples, rows, factor)).tolist() == slow

    def test_are_the_examples_where_none_exceeds_the_bound_and_the_mean_is_the_plain_one(self):
        replies = replies_of([10, 20, 30, 40, 100], factor=5)
        plain = replace(replies, weight_bound=0.0)
        assert by_examples(replies).tolist() == [10, 20, 30, 40, 100]
        made = [average(each, each.rows, by_examples(each), zeros(1))[0].params for each in (replies, plain)]
        assert np.array_equal(*made)
        assert made[0][0] == pytest.approx(np.average(replies.params, axis=0, weights=replies.examples), rel=1e-6)

    def test_are_all_believed_where_the_bound_is_0_or_fewer_than_three_answered(self):
        assert by_examples(replies_of([1, 2, 10**9], factor=0)).tolist() == [1, 2, 10**9]
        assert by_examples(replies_of([1, 10**9])).tolist() == [1, 10**9]
        assert by_examples(replies_of([1, 2, 10**9])).tolist() == [1, 2, 10]

    def test_of_those_without_a_cluster_are_measured_by_all(self):
        found = by_examples(replies_of([10] * 6 + [10**9] * 5, [0] * 6 + [-1] * 5))
        assert found.tolist() == [10] * 6 + [50] * 5

    def test_that_are_uniform_stay_so(self):
        assert uniform(replies_of([1, 2, 10**9])).tolist() == [1, 1, 1]

    def test_of_a_cluster_are_its_share_of_the_whole(self):
        replies = replies_of([10] * 6 + [10**9], [0] * 5 + [1] * 2)
        shares = average(replies, replies.rows, by_examples(replies), zeros(2))[1]
        assert shares.tolist() == pytest.approx([50 / 110, 60 / 110])


def test_a_claim_does_not_lift_the_norm_bound_of_who_takes_epochs():
    """So many examples would be so many steps, and so many times as far."""
    task, names = Task(fit=(Fit(epochs=1, batch=10),)), tuple("abcde")
    for length, kept in ((49, 5), (51, 4)):
        replies = replies_of([10, 10, 10, 10, 10**9], lengths=[1, 1, 1, 1, length])
        assert len(bounded(replies, task, Sent(zeros(1)), names, 10.0)) == kept


METHODS = (
    "fedavg",
    "ifca",
    "wecfl",
    "lcfl(warmup=1)",
    "ocfl-kmeans(clusters=2)",
    "sattler(minimum=1,weights=examples)",
    "wecfl+cam(warmup=1)",
    "ifca+cam(alternate=true)",
    "wecfl+cks(others=true)",
    "ifca(clusters=auto)",
)


@pytest.mark.parametrize("text", METHODS)
def test_nothing_that_a_run_makes_depends_on_how_far_a_claim_is_beyond_the_bound(text, images, simulator, train):
    """Means, k-means, starts, shares of clusters: two claims beyond the bound give the same models and labels."""

    def last(size, bound):
        federation = Claiming(simulator(images(sizes=(24, 30, 18, 36, 24, 27)), threads=1), 3, size)
        number = None if "clusters" in text else 2
        return train(text, federation, 4, number, fit=FIT, weight_bound=bound)[-1].state

    one, other, believed = last(10**6, 5.0), last(10**9, 5.0), last(10**9, 0.0)
    assert np.array_equal(one.labels, other.labels)
    assert np.array_equal(one.stack.params, other.stack.params)
    assert np.array_equal(one.shares, other.shares)
    assert not np.array_equal(one.stack.params, believed.stack.params)


def test_the_bound_is_5_in_a_federation_and_none_in_a_simulation_unless_it_is_said():
    def order(**said):
        table = Settings("fedavg", **said).table()
        return Order(table, "out", "board", ("a", "b"), minimum=2, timeout=60.0).experiment()

    assert Settings("fedavg").weight_bound is None
    assert order().weight_bound == 5
    assert order(weight_bound=3.0).weight_bound == 3
    assert order(weight_bound=0.0).weight_bound == 0
    assert meaning(Settings("fedavg")) == meaning(Settings("fedavg", weight_bound=0.0))
    assert meaning(Settings("fedavg")) != meaning(Settings("fedavg", weight_bound=3.0))


@pytest.mark.parametrize("value", [-1.0, 0.5, float("inf"), float("nan")])
def test_a_bound_that_cannot_be_is_refused(value):
    with pytest.raises(UsageError, match=r"weight-bound is .*; it must be a number of at least 1, or 0 for any"):
        Settings("fedavg", weight_bound=value)
