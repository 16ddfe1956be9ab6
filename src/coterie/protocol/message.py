"""Exactly the arrays that travel, derived from the task; communication cost is their size, in every runtime alike.

The task's own text (a few hundred bytes) and a transport's framing are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import FederationError
from coterie.models.layout import Layout
from coterie.protocol.replies import ROWS, Cost, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Loss, Task
from coterie.typing import Array

Arrays = dict[str, Array]
Limit = float | tuple[float, ...]
"""A least or a largest number: one for all, or one for each column."""

ABSURD = 1e10
"""No parameter of a sound model is larger than this."""


class Field(NamedTuple):
    """An array of a reply: its shape and type, and the least and the largest number that it may hold."""

    shape: tuple[int, ...]
    kind: str
    low: Limit
    high: Limit

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * np.dtype(self.kind).itemsize

    def outside(self, array: Array) -> Array:
        """Which numbers are none, or not within the limits.

        >>> Field((1, 2), "float64", 0.0, (1.0, math.inf)).outside(np.array([[1.5, 1.5], [math.nan, 0]])).tolist()
        [[True, False], [True, False]]
        """
        beyond: Array = ~((array >= self.low) & (array <= self.high))
        return beyond


Form = dict[str, Field]
"""What the arrays of a reply are like, by name."""


class Sizes(NamedTuple):
    """How many examples of each split a client has told of; 0: it has not."""

    train: int = 0
    test: int = 0
    validation: int = 0


UNTOLD = Sizes()

FIELDS = ("params", "buffers")
SCORED = ("losses", "spreads", "metrics", "loss")
PARTS = {"rows": "all", "halves": "cluster", "global": "global"}
"""The part that travels of every row, by what a task sends."""


def down(task: Task, stack: Stack, row: int | Array, layout: Layout) -> Arrays:
    """What one client is sent: every model where the task needs them, otherwise its own; and references.

    ``row`` names the model it works on, or the several whose outputs are mixed; a client without a cluster works on one
    of the references, which it is sent twice. Of references that are the clients' own models it gets its own, last.
    What all rows share is sent once.
    """
    models, own = len(stack) - task.references, np.atleast_1d(row)
    sent, place = stack, np.asarray(row)
    if has_own(task):
        sent, place = stack.take([*range(models), *own]), np.asarray(models)
    elif not task.receives_all:
        place = np.where(own < models, np.arange(len(own)), len(own) + own - models).reshape(np.shape(row))
        sent = stack.take([*own, *range(models, len(stack))])
    common = _half(sent, layout, "global", 1) if task.sends == "halves" else {}
    rest = _half(sent, layout, PARTS[task.sends], len(sent))
    return {**rest, **{f"common_{name}": rows for name, rows in common.items()}, "row": np.array([place])}


def received(task: Task, arrays: Arrays, layout: Layout) -> Stack:
    """The rows that ``down`` took apart, put together again; what does not travel is zero."""
    if task.sends == "rows":
        return Stack(arrays["params"], arrays["buffers"])
    parts = {"": PARTS[task.sends], **({"common_": "global"} if task.sends == "halves" else {})}
    wholes = []
    for name, size, numbers in zip(FIELDS, (layout.size, layout.buffer_size), _both(layout), strict=True):
        whole = np.zeros((len(arrays[name]), size), arrays[name].dtype)
        for prefix, part in parts.items():
            sent = arrays[prefix + name]
            if sent.shape[1] != len(numbers[part]):
                raise FederationError(f"{prefix}{name} have {sent.shape[1]} columns; {part} has {len(numbers[part])}")
            whole[:, numbers[part]] = sent
        wholes.append(whole)
    return Stack(*wholes)


def _both(layout: Layout) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    if "global" not in layout.parts:
        raise FederationError("halves of models are sent, but the model is no sum of two; do the versions match?")
    return layout.parts, layout.buffer_parts


def _half(stack: Stack, layout: Layout, part: str, rows: int) -> Arrays:
    """One part of the first so many rows, in one piece each, as arrays must be that are packed."""
    places = (layout.part(part), layout.buffer_part(part))
    cut = zip(FIELDS, stack, places, strict=True)
    return {name: np.ascontiguousarray(array[:rows, place]) for name, array, place in cut}


def has_own(task: Task) -> bool:
    """Whether the references are the clients' own models, of which each gets one."""
    return task.report.differences and task.references > 0


def told(task: Task) -> Task:
    """The task as it is sent to one client, with as many references as it gets."""
    return replace(task, references=1) if has_own(task) else task


def up(reply: Replies) -> Arrays:
    """What one client sends back: the fields of its reply, of one row, that the task asked for.

    A loss that is not a number goes as an infinite one: the model is as bad, and the number has a range.
    """
    found = {name: getattr(reply, name) for name in ROWS}
    found |= {name: np.where(np.isnan(rows), np.inf, rows) for name in SCORED if (rows := found[name]) is not None}
    return {name: np.ascontiguousarray(rows) for name, rows in found.items() if rows is not None}


def form(
    task: Task,
    stack: Stack,
    layout: Layout,
    served: int = 1,
    classes: int | None = None,
    sizes: Sizes = UNTOLD,
) -> Form:
    """Shape, type and range of every array that one client sends back.

    ``served`` models are mixed where the report says so. The ranges are those of data of so many ``classes`` (None: a
    real target) and of a client of these ``sizes``. The label of a client that does not choose is the place of its row
    in what it was sent.

    >>> from coterie.models.layout import Layout
    >>> layout = Layout(3, 0, {"all": np.arange(3)}, {"all": np.arange(0)})
    >>> form(Task(), Stack(np.zeros((2, 3), np.float32), np.zeros((2, 0), np.float32)), layout)["params"]
    Field(shape=(1, 3), kind='float32', low=-10000000000.0, high=10000000000.0)
    """
    report, models = task.report, len(stack) - task.references
    whole, real, worst = "int64", "float64", math.inf if report.bounded is None else 1.0
    rows = (0, models - 1) if task.choose else (-1, len(stack) + served)
    found: Form = {"labels": Field((1, served) if report.mix else (1,), whole, *rows)}
    found["examples"] = Field((1,), whole, *_count(sizes.train))
    if report.params is not None:
        widths = len(layout.numbers(report.params)), len(layout.buffer_parts[report.params])
        for name, width, array in zip(FIELDS, widths, stack, strict=True):
            found[name] = Field((1, width), array.dtype.name, -ABSURD, ABSURD)
    found |= {"losses": Field((1, models), real, 0.0, worst)} if report.losses else {}
    found |= {"spreads": Field((1, models), real, 0.0, worst)} if report.sample is not None else {}
    found |= {"metrics": _metrics(classes, getattr(sizes, report.metrics))} if report.metrics else {}
    found |= {"loss": Field((1,), real, 0.0, math.inf)} if task.fit else {}
    return found | ({"evaluations": Field((1,), whole, 0, models * _count(sizes.train)[1])} if task.races else {})


def _metrics(classes: int | None, examples: int) -> Field:
    """Accuracy and macro-F1 are shares, a squared error and a variance are not; then a loss and the examples."""
    fewest, most = _count(examples)
    share = math.inf if classes is None else 1.0
    return Field((1, 4), "float64", (0.0, 0.0, 0.0, fewest), (share, share, math.inf, most))


def _count(told: int) -> tuple[float, float]:
    """The least and the largest number of examples of a client that told of so many."""
    return (told, told) if told else (1, math.inf)


def collect(layout: Layout, wanted: Form, answers: Mapping[int, Arrays], missing: Mapping[str, str]) -> Replies:
    """The replies of the clients that answered, by position, as one value; no rows where nobody did."""
    clients = sorted(answers)
    rows: dict[str, Any] = {
        name: np.concatenate(
            [np.zeros((0, *each.shape[1:]), each.kind), *(answers[client][name] for client in clients)]
        )
        for name, each in wanted.items()
    }
    return Replies(layout, np.array(clients, dtype=np.int64), **rows, missing=missing)


def _width(part: str, stack: Stack, layout: Layout) -> int:
    """The bytes of one part of a row."""
    numbers = (layout.parts[part], layout.buffer_parts[part])
    return sum(len(each) * array.itemsize for each, array in zip(numbers, stack, strict=True))


def cost(task: Task, stack: Stack, replies: Replies, asked: int) -> Cost:
    """What an exchange cost, from the task and the sizes of those who answered: the same in every runtime.

    Bytes of all ``down`` to the clients asked and all ``up`` from those that answered; examples x models that were
    evaluated for choices and reported losses; minibatch steps. Loss and gradient at a model for a choice are one pass.
    """
    models, served = len(stack) - task.references, replies.labels.shape[1] if task.report.mix else 1
    rows = len(stack) if task.receives_all else served + task.references
    rows, judged = (models + 1, models + 1) if has_own(task) else (rows, models)
    once = _width("global", stack, replies.layout) if task.sends == "halves" else 0
    down = rows * _width(PARTS[task.sends], stack, replies.layout) + once + 8 * served
    up_bytes = sum(field.nbytes for field in form(task, stack, replies.layout, served).values())
    report = task.report
    sizes = replies.examples
    looked_at = [score.examples for score in task.choose if isinstance(score, Loss)]
    looked_at += [task.fit[0].batch] if task.looks_ahead else []
    seen = sum(int(np.minimum(sizes, most or np.inf).sum()) for most in looked_at)
    reported = judged * int(report.sees(sizes).sum()) if report.losses else 0
    steps = sum(fit.count(int(n)) for fit in task.fit for n in sizes)
    raced = 0 if replies.evaluations is None else int(replies.evaluations.sum())
    return Cost(asked * down, len(replies) * up_bytes, models * seen + reported + raced, steps)
