"""`check_algorithm` holds a user's own method to the contract, and notices what public code gets wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.errors import UsageError
from coterie.parts import Assignment, Scores, always, as_trained, memory_type, one_model, one_model_for, random_models
from coterie.testing import check_algorithm
from coterie.testing.contract import CHECKS, sentence_of, sentences

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def own_package(monkeypatch):
    """The faulty methods below, and those of the examples, as a user names them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setitem(sys.modules, "faulty", sys.modules[__name__])


def test_the_example_of_the_documents_keeps_the_contract():
    found = check_algorithm("own_method:by_labels")
    assert found, str(found)
    assert str(found).startswith("own_method:by_labels: 16 of 16 hold\n  holds   The same seed")


def test_every_check_is_a_sentence():
    assert len(set(sentences())) == len(CHECKS) == 16
    for sentence in sentences():
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "\n" not in sentence


def plain(fit, **parts):
    return replace(ct.Algorithm(start=one_model(), task=always(ct.Task(fit=(fit,))), assign=as_trained()), **parts)


def by_chance(fit=ct.Fit()):
    """Weigh clients by numbers without an address."""
    return plain(fit, weigh=lambda replies: np.random.default_rng().random(len(replies)) + 0.1)


def deaf(fit=ct.Fit()):
    """Start from the same models whatever the seed."""

    def start(federation, key, ask):
        return one_model()(federation, replace_seed(key), ask)

    def replace_seed(key):
        return type(key)(0, key.round)

    return plain(fit, start=start, task=lambda state: ct.Task(fit=(replace(fit, lr=1e-12),)))


def by_position(clusters: int = 2, fit=ct.Fit()):
    """Cluster by the order of the clients."""

    def assign(state, replies, key, ask):
        labels = np.arange(len(state.labels)) * clusters // len(state.labels)
        return Assignment(labels, parents=None if state.formed else (0,) * clusters, formed=True)

    return plain(fit, start=one_model_for(clusters), assign=assign)


@dataclass(frozen=True)
class Unregistered:
    """A memory that nobody can save."""

    rounds: int


@memory_type
@dataclass(frozen=True)
class Counted:
    """A memory that can be saved."""

    rounds: int


def forgetful(fit=ct.Fit()):
    """Remember a value that cannot be saved."""

    def assign(state, replies, key, ask):
        done = 0 if state.memory is None else state.memory.rounds
        return Assignment(state.labels, Unregistered(done + 1))

    return plain(fit, assign=assign)


def secretive():
    """Keep a count outside of the state."""
    seen = []

    def task(state):
        seen.append(state.round)
        return ct.Task(fit=(ct.Fit(steps=len(seen), batch=8, lr=0.05),))

    return plain(ct.Fit(), task=task)


def lost(clusters: int = 2, fit=ct.Fit()):
    """Place newcomers with one score too few."""

    def place(state, ask, clients):
        return Scores(clients, np.zeros((len(clients), max(len(state.stack) - 1, 0))))

    return plain(fit, start=random_models(clusters), task=always(ct.Task(choose=(ct.Loss(),), fit=(fit,))), place=place)


@memory_type
@dataclass(frozen=True)
class Middles:
    """The mean model of each cluster's clients when clusters formed."""

    of: np.ndarray


def hasty(clusters: int = 2, fit=ct.Fit()):
    """Form clusters of whoever has answered first, for good."""

    def assign(state, replies, key, ask):
        if state.formed:
            return Assignment(state.labels, state.memory)
        found, models = np.arange(len(replies)) % clusters, replies.models().params
        with np.errstate(invalid="ignore"):
            middles = [models[found == k].sum(axis=0) / (found == k).sum() for k in range(clusters)]
        labels = np.full(len(state.labels), 0)
        labels[replies.clients] = found
        return Assignment(labels, Middles(np.stack(middles)), parents=(0,) * clusters, formed=True)

    def place(state, ask, clients):
        heard = ask(ct.Task(fit=(fit,)), state.stack, np.zeros_like(clients), clients)
        middles = state.stack.params if state.memory is None else state.memory.of
        return Scores(heard.clients, -np.linalg.norm(heard.models().params[:, None] - middles, axis=2))

    return plain(fit, start=one_model_for(clusters), assign=assign, place=place)


def harmful(fit=ct.Fit()):
    """Go up the hill."""

    def update(models, mean, moments, answered):
        return type(models)(2 * models.params - mean.params, mean.buffers), moments

    return plain(fit, update=update)


def rude(fit=ct.Fit()):
    """Fail in the second round."""

    def task(state):
        if state.round:
            raise KeyError("the key")
        return ct.Task(fit=(fit,))

    return plain(fit, task=task)


@pytest.mark.parametrize(
    ("name", "sentence", "why"),
    [
        ("by_chance", "The same seed gives the same numbers", "round 1.stack.params differs by"),
        ("deaf", "Another seed gives other numbers", "seed 1 and seed 2 give the same models"),
        ("by_position", "Clients in another order have the same clusters", "became"),
        (
            "forgetful",
            "stopped, saved and resumed",
            "returned a Unregistered as memory; it must be a frozen dataclass with @memory_type",
        ),
        ("secretive", "The same seed gives the same numbers", "differs by"),
        ("lost", "A client that took no part is placed", "it has 1 scores for 2 clusters"),
        ("hasty", "that one client alone answers", "a newcomer's scores of the clusters are [[-"),
        ("harmful", "Training lowers the loss", "the mean loss went from"),
        ("rude", "Training lowers the loss", "KeyError: 'the key'"),
    ],
)
def test_a_faulty_method_is_found_out(name, sentence, why):
    found = check_algorithm(f"faulty:{name}")
    assert not found
    (problem,) = [text for line, text in found.problems.items() if sentence in line]
    assert why in problem
    assert f"BROKEN  {next(line for line in found.problems if sentence in line)}" in str(found)


def test_a_method_that_is_no_method_is_refused_at_once():
    with pytest.raises(UsageError, match="unknown algorithm 'wecf'"):
        check_algorithm("wecf")


def test_the_docstrings_are_what_is_said():
    assert sentence_of(CHECKS[0]) == next(iter(sentences()))


def test_a_number_of_clusters_that_a_method_cannot_take_is_refused_wherever_it_is_said():
    for text, clusters in (("faulty:hasty(clusters=auto)", None), ("faulty:hasty", "auto")):
        with pytest.raises(UsageError, match="clusters is auto; it must be a whole number"):
            build_algorithm(text, clusters, ct.Fit())
