"""What a client is asked to do, as plain data: choose -> fit -> report.

Frozen values and no closures, so that a task can be sent, hashed, logged and refused, and a client runs only code that
it already has. What leaves a client is in ``protocol.report``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from math import isfinite

import numpy as np

from coterie.errors import require as _require
from coterie.limits import BATCH, EPOCHS, LARGEST, PASS, ROUNDS, STEPS, check_most
from coterie.protocol.report import Report
from coterie.typed import check_types
from coterie.typing import Array


def standard_error(variance: Array, seen: Array, sizes: Array) -> Array:
    """Return the standard error of a mean over ``seen`` of ``sizes`` examples, drawn without replacement.

    ``variance`` is the mean squared deviation among the examples seen. The error is 0 once all are seen.

    >>> standard_error(np.array([4.0, 4.0]), np.array([5, 10]), np.array([10, 10])).round(4).tolist()
    [0.7071, 0.0]
    """
    error: Array = np.sqrt(np.maximum(variance, 0) * (1 - seen / sizes) / np.maximum(seen - 1, 1))
    return error


@dataclass(frozen=True)
class Loss:
    """Score a model by minus its mean loss on the client's train split (all of it, or the first ``examples``)."""

    weight: float = 1.0
    examples: int | None = None

    def __post_init__(self) -> None:
        _check_examples(self.examples)


@dataclass(frozen=True)
class Race:
    """Score models by minus their mean loss, as ``Loss`` does, and leave out early those that are clearly worse.

    They see ``first`` examples, then twice as many, and so on; a model leaves when it is more than ``bound`` standard
    errors behind the best. The reply says how many losses were evaluated.
    """

    examples: int | None = None
    first: int = 32
    bound: float = 5.0

    def __post_init__(self) -> None:
        _check_examples(self.examples)
        _require(self.first >= 2, "the first part of a race", self.first, "at least 2 examples")
        _require(isfinite(self.bound) and self.bound >= 0, "the bound of a race", self.bound, ">= 0")


@dataclass(frozen=True)
class BatchLoss:
    """Score a model by minus its loss on the minibatch of the first step: the mean, or with ``total`` the sum.

    The model runs in training mode, as it would in the step itself.
    """

    weight: float = 1.0
    total: bool = False


@dataclass(frozen=True)
class Agreement:
    """Score model k by how well a client's first step agrees with the model's last movement.

    The score is the cosine of minus the gradient on the minibatch of the first step with the movement, 0 where the
    model did not move; or, ``euclidean``, minus the distance of the step to the movement. ``printed`` takes the
    gradient itself, as the paper prints it. The models of the round before are the first references received.
    """

    weight: float = 1.0
    euclidean: bool = False
    printed: bool = False


@dataclass(frozen=True)
class Proximal:
    """Keep a client near the model it received by a penalty ``strength / 2 * |w - start|^2``."""

    strength: float

    def __post_init__(self) -> None:
        _check_strength("the proximal strength", self.strength)


@dataclass(frozen=True)
class Near:
    """Pull a client to the mean of all cluster models, the last reference, by ``strength / 2 * |w - mean|^2``.

    Knowledge sharing between clusters, thesis eq. 5.6; only the coordinates of ``part`` count.
    """

    strength: float
    part: str = "all"

    def __post_init__(self) -> None:
        _check_strength("the cks strength", self.strength)


@dataclass(frozen=True)
class Others:
    """Pull a client to other clusters' models by ``strength / 2 * sum_k shares[k] |w - T_k|^2`` (thesis eq. 5.5)."""

    strength: float
    shares: tuple[float, ...]
    part: str = "all"

    def __post_init__(self) -> None:
        _check_strength("the cks strength", self.strength)


SEEN = ("inputs", "outputs")
"""What a contrast may compare of the last layer."""


@dataclass(frozen=True)
class Contrast:
    """Draw a client to its cluster's model and away from the others (thesis eq. 4.3, 4.4).

    The penalty is ``strength * -log(exp(s_c / t) / sum_k exp(s_k / t))`` with s_k the cosine similarity to cluster
    model k ``of`` the parameters of ``part``, or of the last layer's ``inputs`` or ``outputs`` on a minibatch: one term
    of the mean cosines of ``each`` batch, or the mean of one term for each example.
    """

    strength: float
    temperature: float
    _: KW_ONLY
    of: str = "parameters"
    each: str = "batch"
    part: str = "all"

    def __post_init__(self) -> None:
        _require(self.of in ("parameters", *SEEN), "of", repr(self.of), f"parameters, {' or '.join(SEEN)}")
        _require(self.each in ("batch", "example"), "each", repr(self.each), "batch or example")
        _check_strength("the con strength", self.strength)
        _require(self.temperature > 0, "the con temperature", self.temperature, "> 0")
        good = 1 / LARGEST <= self.temperature <= LARGEST
        _require(good, "the con temperature", self.temperature, f"from {1 / LARGEST:g} to {LARGEST:g}")


SENDS = ("all", "cluster", "global")
"""What a client is sent of sums of two networks: whole rows; the cluster parts, and once the global part, which all
rows share; or the global part alone, because the cluster parts are zero."""

Score = Loss | Race | BatchLoss | Agreement
Term = Proximal | Near | Others | Contrast


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One pass of local training: from the received parameters, on one part of the model, the rest frozen.

    ``steps`` minibatches or ``epochs`` times through the client's data, whichever is less where both are given (10
    steps when neither is); ``lr`` None is the model's default; the rate in round t is ``lr * lr_decay ** t``. Optimiser
    state starts at zero every round.
    With ``pull`` every step is w <- (1 - pull) w + pull * start - lr * gradient: it also moves back towards the start.
    ``half``: only the first (0) or second (1) half of the client's examples, which are divided at random; the two
    halves under one key are disjoint. A single example is in both. ``draw``: which draw of minibatches it is, where a
    rule trains several times under one key. ``keeps``: the name under which the client keeps the momentum at the end of
    this pass; the next pass of that name begins with it.
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    lr: float | None = None
    momentum: float = 0.9
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    part: str = "all"
    terms: tuple[Term, ...] = ()
    pull: float = 0.0
    half: int | None = None
    draw: int = 0
    keeps: str | None = None

    def __post_init__(self) -> None:
        check_types(self, "-")
        _require(self.steps is None or self.steps >= 1, "steps", self.steps, "at least 1")
        _require(self.epochs is None or self.epochs >= 1, "epochs", self.epochs, "at least 1")
        _require(self.batch >= 1, "batch", self.batch, "at least 1")
        check_most("steps", self.steps, STEPS, "lower it, and take more rounds")
        check_most("epochs", self.epochs, EPOCHS, "lower it, and take more rounds")
        check_most("batch", self.batch, BATCH)
        check_most("lr", self.lr, LARGEST)
        check_most("weight-decay", self.weight_decay, LARGEST)
        _require(self.lr is None or (isfinite(self.lr) and self.lr > 0), "lr", self.lr, "a number > 0")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        _require(isfinite(self.weight_decay) and self.weight_decay >= 0, "weight-decay", self.weight_decay, ">= 0")
        _require(0 < self.lr_decay <= 1, "lr-decay", self.lr_decay, "in (0, 1]")
        _require(0 <= self.pull < 1, "pull", self.pull, "in [0, 1)")
        _require(self.half in (None, 0, 1), "half", self.half, "0 or 1, or none")
        _require(self.draw >= 0, "draw", self.draw, "at least 0")
        check_most("draw", self.draw, ROUNDS)
        kept = self.keeps is None or (self.optimizer == "sgd" and self.momentum > 0)
        _require(kept, "the momentum to keep", f"{self.momentum} of {self.optimizer}", "sgd's, above 0")
        _require(self.optimizer in ("sgd", "adam"), "optimizer", repr(self.optimizer), "sgd or adam")

    def times(self, factor: int) -> Fit:
        """Return a pass that is ``factor`` times as long.

        >>> Fit().times(3).steps, Fit(epochs=2).times(3).epochs
        (30, 6)
        """
        if self.epochs is None:
            return replace(self, steps=self.minibatches(0) * factor)
        return replace(self, epochs=self.epochs * factor, steps=None if self.steps is None else self.steps * factor)

    def minibatches(self, examples: int) -> int:
        """Return the number of minibatches of a client with this number of examples.

        >>> [Fit(steps=50, epochs=2, batch=10).minibatches(examples) for examples in (30, 1000)]
        [6, 50]
        """
        if self.epochs is None:
            return 10 if self.steps is None else self.steps
        steps = self.epochs * -(-self.distinct_examples(examples) // self.batch)
        return steps if self.steps is None else min(steps, self.steps)

    def examples_passed(self, examples: int) -> int:
        """Return the number of examples that a client sees in the pass, counted as often as they come.

        >>> Fit(steps=3, batch=2).examples_passed(5), Fit(epochs=2).examples_passed(5)
        (6, 10)
        """
        return self.minibatches(examples) * min(self.batch, self.distinct_examples(examples))

    def check(self, examples: int) -> None:
        """Refuse a pass that is too long for a client with this number of examples."""
        minibatches = f"{self.minibatches(examples):,} minibatches of {self.batch}"
        check_most(
            f"what a client with {examples} examples sees in {minibatches}",
            self.examples_passed(examples),
            PASS,
            "take fewer steps or epochs, and more rounds",
        )

    def distinct_examples(self, examples: int) -> int:
        """Return the number of different examples that a client uses.

        >>> Fit().distinct_examples(5), [Fit(half=half).distinct_examples(5) for half in (0, 1)]
        (5, [3, 2])
        """
        return examples if self.half is None else max(1, (examples + 1 - self.half) // 2)


@dataclass(frozen=True)
class Task:
    """Choose a model among those received, train it, report.

    ``choose``: the client takes the model of the highest weighted sum of scores, ties to the lowest number; empty: it
    takes the row that it was given. ``fit``: passes with disjoint parts, each from the *received* parameters, merged
    in the reply; empty: no training; ``sequential``: each from where the one before ended. The reply always holds the
    number of train examples. ``pinned``: clients, by name, that take a given row instead of choosing. ``sends`` is what
    travels of the rows.

    >>> Task(choose=(Loss(),)).receives_all, Task().receives_all
    (True, False)
    """

    choose: tuple[Score, ...] = ()
    fit: tuple[Fit, ...] = ()
    report: Report = Report()
    _: KW_ONLY
    sequential: bool = False
    pinned: tuple[tuple[str, int], ...] = ()
    sends: str = "all"

    def __post_init__(self) -> None:
        _require(self.sends in SENDS, "sends", repr(self.sends), " or ".join(SENDS))
        _require(
            bool(self.fit) or not self.looks_ahead, "fit", "empty", "a pass, because its first minibatch is scored"
        )
        _require(not self.races or len(self.choose) == 1, "choose", "a race and more", "a race alone")

    @property
    def races(self) -> bool:
        """Return whether a client chooses by a race."""
        return any(isinstance(score, Race) for score in self.choose)

    @property
    def looks_ahead(self) -> bool:
        """Return whether a client chooses by the minibatch of its first step."""
        return any(isinstance(score, BatchLoss | Agreement) for score in self.choose)

    @property
    def receives_all(self) -> bool:
        """Return whether a client must be sent every cluster model, or only its own."""
        compared = any(isinstance(term, Others | Contrast) for fit in self.fit for term in fit.terms)
        described = self.report.describe is not None and self.report.describe.all_models
        return bool(self.choose) or self.report.losses or compared or described


def _check_examples(examples: int | None) -> None:
    _require(examples is None or examples >= 1, "examples", examples, "at least 1, or none for all")


def _check_strength(name: str, value: float) -> None:
    _require(isfinite(value) and value >= 0, name, value, ">= 0")
    check_most(name, value, LARGEST)
