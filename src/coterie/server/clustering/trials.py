"""Trials: models trained on one half of every client's data and judged on the other, for all, in clusters, alone.

They use tasks alone, so that real sites can do them under their policies: what leaves a client is a model trained on
one half, and the loss on the other half of the model that it was sent, or has trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np

from coterie.models.layout import Layout
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import average
from coterie.server.contract import Ask, by_examples
from coterie.typing import Array

SEEN, UNSEEN = 0, 1
"""The half on which models are trained, and the half on which they are judged."""

LEAST_ROUNDS, MOST_ROUNDS = 5, 20
"""In so many rounds one model learns before clients are compared: until its loss hardly falls, within these bounds."""

WINDOW, HARDLY = 3, 0.05
"""The loss hardly falls if in so many rounds it fell by less than this share of all it fell."""

CONSTANT = Fit(steps=20, batch=64, lr=0.5, momentum=0.5, part="head_bias", half=SEEN)
"""How the model that ignores its inputs is trained: the biases of its last layer, the rest is zero."""

CONSTANT_ROUNDS = 3


class HeldOut(NamedTuple):
    """The mean loss of a model on the examples that were held out, and their number."""

    loss: float
    examples: int


@dataclass(frozen=True)
class Learnt:
    """One model for all after its first rounds: how many these were, and whether its loss still fell."""

    model: Stack
    rounds: int
    falling: bool


@dataclass(frozen=True)
class Trials:
    """Trains and judges models on halves of the data of these clients, as a run trains them."""

    ask: Ask
    fit: Fit
    clients: Array
    draws: Iterator[int] = field(default_factory=partial(count, 1), repr=False)

    def learn(self, first: Stack) -> Learnt:
        """Train one model for all until its loss hardly falls."""
        model, losses = first, list[float]()
        for number in range(MOST_ROUNDS):
            replies = self._train(model, np.zeros_like(self.clients))
            model = average(replies, replies.rows, by_examples(replies), model)[0]
            assert replies.training_loss is not None, "training reports its loss"
            losses.append(
                float(np.average(replies.training_loss, weights=replies.examples)) if len(replies) else np.inf
            )
            if number + 1 >= LEAST_ROUNDS and hardly_falls(losses):
                return Learnt(model, number + 1, falling=False)
        return Learnt(model, MOST_ROUNDS, falling=True)

    def constant(self, layout: Layout, like: Stack) -> Stack | None:
        """Return a model that ignores its inputs; None if the network has no biases in its last layer."""
        if not len(layout.numbers("head_bias")):
            return None
        model = Stack(np.zeros_like(like.params), like.buffers)
        for draw in range(CONSTANT_ROUNDS):
            task = Task(fit=(replace(CONSTANT, draw=draw),))
            replies = self.ask(task, model, np.zeros_like(self.clients), self.clients)
            model = average(replies, replies.rows, by_examples(replies), model)[0]
        return model

    def go_on(self, models: Stack, labels: Array, rounds: int) -> Stack:
        """Train the models of clusters for some rounds more; ``labels``: the cluster of each of the clients."""
        for _ in range(rounds):
            replies = self._train(models, labels)
            models = average(replies, replies.rows, by_examples(replies), models)[0]
        return models

    def alone(self, model: Stack, rounds: int, half: int) -> Replies:
        """Let each client train alone on one half for as long as ``rounds`` rounds; return what came of it."""
        longer = replace(self.fit.times(rounds), half=half, draw=next(self.draws))
        return self.ask(Task(fit=(longer,)), model, np.zeros_like(self.clients), self.clients)

    def judge(self, models: Stack, labels: Array) -> dict[int, HeldOut]:
        """Return how each client that answered judges the model of its cluster on its unseen half."""
        replies = self.ask(
            Task(report=Report(params=None, evaluate_on="train", half=UNSEEN)), models, labels, self.clients
        )
        assert replies.metrics is not None, "the task asks for metrics"
        found = (HeldOut(loss, int(examples)) for loss, examples in replies.metrics[:, 2:4].tolist())
        return dict(zip(replies.clients.tolist(), found, strict=True))

    def _train(self, models: Stack, labels: Array) -> Replies:
        fit = replace(self.fit, half=SEEN, draw=next(self.draws))
        return self.ask(Task(fit=(fit,)), models, labels, self.clients)


def hardly_falls(losses: list[float]) -> bool:
    """Return whether a loss has hardly fallen in the last rounds, compared with all that it has fallen.

    >>> hardly_falls([2.0, 1.0, 0.6, 0.4, 0.3]), hardly_falls([2.0, 0.5, 0.42, 0.41, 0.4])
    (False, False)
    >>> hardly_falls([2.0, 0.42, 0.41, 0.405, 0.4])
    True
    """
    now, before = losses[-1], losses[-1 - WINDOW]
    return not before - now > HARDLY * (losses[0] - now)
