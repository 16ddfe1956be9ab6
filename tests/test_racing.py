"""Races: the choice by all losses where nothing is dropped, a slow reference where something is, honest counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.algorithms import build_algorithm
from coterie.data.federated import Split
from coterie.engine.choice import race
from coterie.engine.local_training import Work
from coterie.engine.plan import Workers
from coterie.engine.pool import Pool
from coterie.errors import UsageError
from coterie.experiments import building
from coterie.experiments.settings import Settings
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Loss, Race, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.testing import Loopback

KEY = Key(seed=5, round=2)
WORKERS = Workers(2)
NOTHING = Report(params=None)


class Losses:
    """Made-up losses of every model on every example, and a count of how often each was asked for."""

    def __init__(self, table, offsets):
        self.table, self.offsets = table, offsets
        self.asked = np.zeros(table.shape, dtype=int)

    def __call__(self, row, where):
        np.add.at(self.asked[row], where, 1)
        return self.table[row, where]

    def of(self, client):
        return self.table[:, self.offsets[client] : self.offsets[client + 1]]


def work_for(sizes, models):
    parts = [(np.zeros((n, 1), np.float32), np.zeros(n, np.int64)) for n in sizes]
    split, stack = Split.join(parts), Stack(np.zeros((models, 1)), np.zeros((models, 0)))
    names, everyone = tuple(f"client-{i}" for i in range(len(sizes))), np.arange(len(sizes))
    pool = Pool(split, torch.empty(0))
    return Work(
        model=None,
        pool=pool,
        names=names,
        sent=Sent(stack),
        rows=everyone * 0,
        clients=everyone,
        key=KEY,
        out=stack,
    )


def noisy(sizes, means, noise=1.0, seed=0):
    """Losses with a common part, so that pairing pays, and an own part."""
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    table = rng.exponential(size=count) + np.array(means)[:, None] + noise * rng.normal(size=(len(means), count))
    return Losses(table, np.concatenate([[0], np.cumsum(sizes)]))


def slow_race(losses, name, rule):
    """One client's race by the definition: its row, and how many losses were looked at."""
    models, size = losses.shape
    order = KEY.generator(name, "race").permutation(size)
    left, looked, seen, part = list(range(models)), 0, 0, rule.first
    while len(left) > 1 and seen < size:
        looked += len(left) * (min(part, size) - seen)
        seen, part = min(part, size), part * 2
        rows = order[:seen]
        best = min(left, key=lambda k: losses[k, rows].mean())
        kept = []
        for k in left:
            apart = losses[k, rows] - losses[best, rows]
            error = apart.std(ddof=1) / seen**0.5 * (1 - seen / size) ** 0.5 if k != best else 0.0
            if apart.mean() <= rule.bound * error + 1e-12:
                kept.append(k)
        left = kept
    return min(left, key=lambda k: losses[k, order[:seen]].mean()), looked


class TestTheRace:
    @given(st.integers(0, 1000), st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([4, 32]))
    def test_it_runs_as_the_slow_one_does(self, seed, bound, first):
        sizes, rule = (3, 40, 100, 333), Race(first=first, bound=bound)
        losses = noisy(sizes, (0.1, 0.0, 0.5, 0.05), seed=seed)
        found = race(rule, work_for(sizes, 4), losses, WORKERS)
        wanted = [slow_race(losses.of(c), f"client-{c}", rule) for c in range(4)]
        assert list(zip(found.scores.argmax(1).tolist(), found.evaluations.tolist(), strict=True)) == wanted

    def test_what_it_reports_is_what_it_looked_at_and_it_looks_only_once(self):
        sizes = (50, 200, 800)
        losses = noisy(sizes, (0.0, 0.3, 1.0, 3.0, 0.02))
        found = race(Race(), work_for(sizes, 5), losses, WORKERS)
        assert found.evaluations.tolist() == [losses.asked[:, a:b].sum() for a, b in ((0, 50), (50, 250), (250, 1050))]
        assert losses.asked.max() == 1
        assert found.evaluations.sum() < 0.7 * losses.asked.size

    @given(st.integers(0, 1000))
    def test_a_wide_bound_is_the_choice_by_all_losses(self, seed):
        sizes = (3, 31, 32, 33, 100)
        losses = noisy(sizes, (0.0, 0.0, 0.0), seed=seed)
        found = race(Race(bound=1e6), work_for(sizes, 3), losses, WORKERS)
        means = np.array([losses.of(c).mean(1) for c in range(5)])
        assert found.scores.argmax(1).tolist() == means.argmin(1).tolist()
        assert found.evaluations.tolist() == [3 * n for n in sizes]

    def test_a_client_with_few_examples_chooses_exactly_whatever_the_bound(self):
        losses = noisy((20, 32), (0.0, 0.0, 0.0))
        found = race(Race(bound=0.0), work_for((20, 32), 3), losses, WORKERS)
        assert found.scores.argmax(1).tolist() == [losses.of(c).mean(1).argmin() for c in range(2)]

    def test_one_that_is_clearly_better_has_won_after_the_first_part(self):
        found = race(Race(first=16), work_for((500,), 4), noisy((500,), (9.0, 9.0, 0.0, 9.0)), WORKERS)
        assert found.scores.argmax(1).tolist() == [2]
        assert found.evaluations.tolist() == [4 * 16]

    def test_pairing_tells_apart_what_examples_alone_would_not(self):
        """Losses of mean 50 and spread 50, one model 0.1 worse on every example: certain after the first part."""
        common = np.random.default_rng(0).exponential(50, size=400)
        found = race(Race(), work_for((400,), 2), Losses(np.stack([common + 0.1, common]), [0, 400]), WORKERS)
        assert found.scores.argmax(1).tolist() == [1]
        assert found.evaluations.tolist() == [2 * 32]

    def test_ties_go_to_the_lowest_number(self):
        losses = Losses(np.ones((3, 100)), [0, 100])
        assert race(Race(), work_for((100,), 3), losses, WORKERS).scores.argmax(1).tolist() == [0]

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_models_that_diverged_are_out_after_the_first_part(self, bad):
        losses = noisy((300, 300), (0.0, 0.0, 0.1))
        losses.table[0], losses.table[:, 300:] = bad, bad
        found = race(Race(), work_for((300, 300), 3), losses, WORKERS)
        assert found.scores.argmax(1).tolist() == [losses.of(0)[1:].mean(1).argmin() + 1, 0]
        assert losses.asked[0].sum() == 2 * 32
        assert found.evaluations[1] == 3 * 32

    def test_with_one_model_there_is_no_race(self):
        assert race(Race(), work_for((50,), 1), noisy((50,), (1.0,)), WORKERS).evaluations.tolist() == [0]

    def test_only_the_first_examples_run_where_so_many_are_named(self):
        losses = noisy((300, 40), (0.0, 0.0))
        race(Race(examples=100, bound=1e6), work_for((300, 40), 2), losses, WORKERS)
        assert np.flatnonzero(losses.asked[0]).tolist() == [*range(100), *range(300, 340)]

    @pytest.mark.parametrize(
        ("make", "problem"),
        [
            (lambda: Race(first=1), "first part of a race is 1; it must be at least 2"),
            (lambda: Race(bound=-1.0), "bound of a race is -1.0; it must be >= 0"),
            (lambda: Task(choose=(Race(), Loss())), "choose is a race and more; it must be a race alone"),
            (lambda: build_algorithm("ifca(choose=slow)"), "choose is 'slow'; it must be exact or race"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, make, problem):
        with pytest.raises(UsageError, match=problem):
            make()


@pytest.fixture(scope="module")
def digits(images):
    return images((90, 40, 150, 64, 33), shape=(1, 4, 4))


def models_of(sim, count=4):
    return Stack(np.stack([sim.model.initial(i)[0] for i in range(count)]), np.zeros((count, 0), np.float32))


def ask(federation, stack, rule=Race(bound=1.0)):  # noqa: B008 - a frozen value
    everyone = np.arange(len(federation.names))
    return federation.ask(Task(choose=(rule,), report=NOTHING), Sent(stack), everyone * 0, everyone, KEY)


class TestInTheEngine:
    def test_every_plan_number_of_threads_and_runtime_runs_the_same_race(self, digits, simulator):
        near = simulator(digits, "mlp(6)", threads=1)
        stack = models_of(near)
        wanted = ask(near, stack)
        others = [Simulator(digits, near.model, threads=2, plan=plan) for plan in ("lockstep", "workers")]
        for federation in (*others, Loopback(digits, near.model)):
            found = ask(federation, stack)
            assert found.rows.tolist() == wanted.rows.tolist()
            assert found.evaluations.tolist() == wanted.evaluations.tolist()
            assert found.cost == wanted.cost
        assert wanted.cost.evaluations == wanted.evaluations.sum() < 4 * digits.train.sizes.sum()

    @pytest.mark.parametrize("plan", ["native", "workers"])
    def test_what_is_counted_is_what_the_networks_were_given(self, digits, simulator, given_to, plan):
        sim = simulator(digits, "mlp(6)", threads=2, plan=plan)
        assert ask(sim, models_of(sim)).cost.evaluations == sum(given_to)
        given_to.clear()
        assert ask(sim, models_of(sim), Loss(examples=50)).cost.evaluations == sum(given_to)

    def test_a_wide_race_is_ifca_and_a_fast_one_finds_the_groups(self, images, simulator, train):
        sim = simulator(images((100, 120, 90, 140)), threads=1)
        exact, raced = train("ifca", sim, 4), train("ifca(choose=race)", sim, 4)
        for one, other in zip(exact, raced, strict=True):
            assert one.state.labels.tolist() == other.state.labels.tolist()
            assert np.array_equal(one.state.stack.params, other.state.stack.params)
        assert raced[-1].cost.evaluations < 0.5 * exact[-1].cost.evaluations
        assert raced[-1].cost.bytes_up == exact[-1].cost.bytes_up + 8 * 4


class TestTheSetting:
    @pytest.mark.parametrize(("text", "kind"), [("ifca", Race), ("ifca(choose=exact)", Loss)])
    def test_it_applies_unless_the_text_says_otherwise(self, text, kind):
        algorithm = building.build_algorithm(Settings(text, choose="race"))
        assert isinstance(algorithm.task(None).choose[0], kind)

    def test_methods_that_do_not_choose_do_not_mind(self):
        assert building.build_algorithm(Settings("wecfl", choose="race")).name == "wecfl"

    def test_a_wrong_word_is_refused(self):
        with pytest.raises(UsageError, match="choose is 'quick'; it must be exact or race"):
            building.build_algorithm(Settings("ifca", choose="quick"))
