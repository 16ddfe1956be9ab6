"""A run says how often clients saw their data, and whether the loss still falls."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.experiments.learning import Epochs, learning, learning_lines, loss_fall
from coterie.protocol.task import Fit

NAMES = ("bern", "chur")


def seen(history, fit, sizes=(20, 100)):
    return Epochs(fit, np.array(sizes), lambda number: np.array([0, 1]), NAMES).seen(history).tolist()


def test_epochs_are_minibatches_times_their_size_over_the_examples():
    fit = Fit(steps=10, batch=32)
    # bern sees 10 x 20 of 20 examples a round, chur 10 x 32 of 100.
    assert seen([{"round": r, "steps": 20} for r in range(3)], fit) == pytest.approx([30, 9.6])


def test_clients_that_did_not_answer_have_seen_nothing():
    history = [{"round": 0, "steps": 20}, {"round": 1, "steps": 10, "missing": {"bern": "late"}}]
    assert seen(history, Fit(steps=10, batch=10)) == pytest.approx([5, 2])


def test_a_warm_up_of_several_rounds_counts_as_often_as_it_took_steps():
    assert seen([{"round": 4, "steps": 100}], Fit(steps=10, batch=10)) == pytest.approx([25, 5])


def test_steps_and_epochs_together_are_whichever_is_less():
    fit = Fit(steps=4, epochs=2, batch=10)
    assert (fit.minibatches(20), fit.minibatches(100)) == (4, 4)
    assert (fit.minibatches(10), fit.minibatches(5)) == (2, 2)
    assert fit.times(2) == Fit(steps=8, epochs=4, batch=10)
    assert seen([{"round": 0, "steps": 8}], fit) == pytest.approx([2, 0.4])


@pytest.mark.parametrize(
    ("losses", "fall"),
    [
        ([1.0] * 10 + [0.5] * 5, (0.5, 5)),
        ([1.0, 1.0, 1.0, 1.0], (0.0, 2)),
        ([1.0, 1.0, 2.0, 2.0], (-1.0, 2)),
        ([1.0, 0.5, 0.2], None),
        ([1.0, None, 1.0, 0.5, 0.5], (0.5, 2)),
        ([0.0] * 6, None),
    ],
)
def test_the_loss_of_the_last_rounds_is_compared_with_those_before(losses, fall):
    assert loss_fall([{"loss": loss} for loss in losses]) == (None if fall is None else pytest.approx(fall))


def test_only_a_loss_that_falls_is_worth_a_line():
    assert learning_lines({"loss_fall": 0.019, "loss_fall_rounds": 5}) == []
    assert learning_lines({"loss_fall": -0.5, "loss_fall_rounds": 5}) == []
    (line,) = learning_lines({"loss_fall": 0.12, "loss_fall_rounds": 4})
    assert line == "the train loss still fell by 12% over the last 4 rounds: more --rounds may help"


def test_clients_that_never_trained_do_not_count():
    assert learning([], np.array([0.0, 3.0, 5.0, 10.0]))["epochs_seen"] == {"min": 3.0, "median": 5.0, "max": 10.0}
    assert learning([], np.zeros(2)) == {}


def test_a_run_counts_the_epochs_of_those_it_asked():
    clients = ct.load("digits").partition("iid", 10, seed=1)
    run = ct.run("fedavg", clients, "logistic", rounds=6, participation=0.5, steps=5, batch=16)
    found = run.summary["epochs_seen"]
    # 5 of 10 clients a round: 30 turns of 5 x 16 examples, by whoever was drawn.
    sizes = clients.train.sizes
    assert found["min"] >= 80 / sizes.max()
    assert found["max"] <= 6 * 80 / sizes.min()
    # Half of the clients see 80 of their examples, so that all clients see half as much on average.
    assert all(40 / sizes.max() <= record["epochs"] <= 40 / sizes.min() for record in run.history)
    assert run.summary["loss_fall_rounds"] == 3
    assert run.summary["loss_fall"] > 0
