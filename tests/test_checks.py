"""What a method's own rules may not return is refused by name, before it is averaged, saved or given to clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from coterie.errors import UsageError
from coterie.experiments.placement import _placed
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.server.checks import check_assignment, checked_weights
from coterie.server.contract import Algorithm, Assignment, Scores, State, least_loss, memory_type

SOFT = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])


def state(**more) -> State:
    """Three clients in two clusters."""
    stack = Stack(np.zeros((2, 4)), np.zeros((2, 0)))
    return State(stack, np.array([0, 1, -1]), 0, previous=stack, shares=np.ones(2) / 2, **more)


def method(weigh=None) -> Algorithm:
    return Algorithm(start=None, task=None, assign=None, name="mine", **({} if weigh is None else {"weigh": weigh}))


@dataclass(frozen=True)
class Loose:
    """A memory without a type of memories."""


@memory_type
@dataclass(frozen=True)
class Kept:
    """A memory that can be saved."""


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "NoneType; it must return an Assignment"),
        (Assignment([0, 1]), r"labels of shape \(2,\)"),
        (Assignment(np.array([0.0, 1.0, 1.0])), "type float64; it must be"),
        (Assignment(np.array([0, 1, 2])), "labels from 0 to 2; it must be -1 to 1"),
        (Assignment(np.array([-2, 1, 1])), "labels from -2 to 1"),
        (Assignment(np.array([0, 1, 1]), parents=(0,)), "labels from 0 to 1; it must be -1 to 0"),
        (Assignment(np.array([0, 1, 1]), memberships=SOFT[:2]), r"memberships of shape \(2, 2\)"),
        (Assignment(np.array([0, 1, 1]), memberships=SOFT * 2), "the row 1, 1; each must be shares"),
        (Assignment(np.array([0, 1, 1]), memberships=SOFT * np.nan), "the row nan, nan"),
        (Assignment(np.array([0, 1, 1]), memberships=SOFT - [[1.5, -1.5]]), "the row -1, 2"),
        (
            Assignment(np.array([0, 1, 1]), Loose()),
            "a Loose as memory; it must be a frozen dataclass with @memory_type",
        ),
        (Assignment(np.array([0, 1, 1]), object()), "a object as memory"),
    ],
)
def test_what_is_no_assignment_is_refused_with_the_name_of_the_method(found, why):
    with pytest.raises(UsageError, match=f"the assign rule of mine returned .*{why}"):
        check_assignment(method(), state(), found)


def test_what_is_an_assignment_is_taken():
    check_assignment(method(), state(), Assignment(np.array([0, 1, -1]), Kept()))
    check_assignment(method(), state(), Assignment(np.array([0, 1, -1]), {"rounds": 1}))
    check_assignment(method(), state(), Assignment(np.array([0, 4, -1]), parents=(0, 0, 0, 1, 1)))
    check_assignment(method(), state(memberships=SOFT), Assignment(np.array([0, 0, 1]), memberships=SOFT))


def test_soft_clusters_do_not_become_hard_unsaid():
    with pytest.raises(UsageError, match="no memberships, and clusters are soft"):
        check_assignment(method(), state(memberships=SOFT), Assignment(np.array([0, 1, 1])))


def replies(count: int) -> Replies:
    several = np.arange(count)
    return Replies(None, several, several, np.ones(count, int))


@pytest.mark.parametrize("weights", [np.ones(2), np.array([1.0, -1.0, 1.0]), np.array([1.0, np.nan, 1.0]), 1.0])
def test_what_is_no_weight_is_refused(weights):
    with pytest.raises(UsageError, match=r"the weigh rule of mine returned .*; it must be 3 numbers from 0"):
        checked_weights(method(lambda replies: weights), replies(3))


def test_a_newcomer_of_soft_clusters_needs_shares_and_gets_them():
    """The default rule scores clusters by minus losses, which are no shares of them."""
    assert method().place is least_loss
    losses = Scores(np.array([0]), np.array([[-0.3, -1.2]]))
    with pytest.raises(UsageError, match=r"place gave scores with the row -0\.3, -1\.2; each must be shares"):
        _placed(state(memberships=SOFT), losses)
    assert _placed(state(), losses).labels.tolist() == [0]
    shares = Scores(np.array([0]), np.array([[0.25, 0.75]]))
    assert _placed(state(memberships=SOFT), shares).memberships.tolist() == [[0.25, 0.75]]
