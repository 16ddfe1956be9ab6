"""What travels: exactly the arrays that a task sends down to a client and that the client sends up.

Communication cost is the size of these arrays, in every runtime alike. The task's own text (a few hundred bytes) and a
transport's framing are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import FederationError
from coterie.models.layout import Layout
from coterie.protocol.replies import ROWS, Cost, Replies
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Loss, Task
from coterie.typing import Array

Arrays = dict[str, Array]
Limit = float | tuple[float, ...]
"""A least or a largest number: one for all columns, or one for each."""

ABSURD = 1e10
"""No parameter of a sound model is larger than this."""

AT_ONCE = 1 << 20
"""Numbers of models that are looked at at once."""

DESCRIBED = 1e300
"""No number of a client function is larger than this."""

BROKEN = f"sent numbers that are not finite or above {ABSURD:g}; lower the learning rate"


class Field(NamedTuple):
    """An array of a reply: its shape and type, and the least and the largest number that it may hold."""

    shape: tuple[int, ...]
    kind: str
    low: Limit
    high: Limit

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.kind).itemsize

    def outside(self, array: Array) -> Array:
        """Return which entries are not numbers, or not within the limits.

        >>> Field((1, 2), "float64", 0.0, (1.0, math.inf)).outside(np.array([[1.5, 1.5], [math.nan, 0]])).tolist()
        [[True, False], [True, False]]
        """
        beyond: Array = ~((array >= self.low) & (array <= self.high))
        return beyond


Form = dict[str, Field]
"""Shape, type and range of the arrays of a reply, by name."""


class Sizes(NamedTuple):
    """How many examples of each split a client says it has; 0: unknown."""

    train: int = 0
    test: int = 0
    validation: int = 0


UNKNOWN_SIZES = Sizes()

FIELDS = ("params", "buffers")
GROUPS = {"models": "", "references": "reference_", "unplaced": "unplaced_"}
"""The stacks of ``Sent``, and how the names of their arrays begin in a message."""

SCORED = ("losses", "spreads", "metrics", "training_loss", "metric")


def down(task: Task, sent: Sent, row: int | Array, layout: Layout) -> Arrays:
    """Return what one client is sent: every model where the task needs them, otherwise its own; and references.

    ``row`` is the one that it works on, or several rows if their outputs are mixed. What all rows share is sent once.
    The message has it in the numbering of what the client receives.
    """
    received, own = _for_one(task, sent, np.asarray(row))
    arrays = {"row": np.array([own])}
    for group, prefix in GROUPS.items():
        stack: Stack | None = getattr(received, group)
        if stack is not None:
            part = _part(stack, layout, task.sends)
            arrays |= {prefix + name: rows for name, rows in zip(FIELDS, part, strict=True)}
    if task.sends == "cluster":
        first = received.rows.take(slice(1))
        common = _part(first, layout, "global")
        arrays |= {f"common_{name}": rows for name, rows in zip(FIELDS, common, strict=True)}
    return arrays


def _for_one(task: Task, sent: Sent, row: Array) -> tuple[Sent, Array]:
    """Return the rows that one client is sent, and its row among them."""
    if has_own(task, sent):
        return Sent(sent.models, sent.take(np.atleast_1d(row))), np.asarray(len(sent.models))
    if task.receives_all:
        return sent, row
    own = sent.take(np.atleast_1d(row))
    if (row < 0).any():
        return Sent(sent.models.take([]), sent.references, own), np.asarray(UNPLACED)
    return Sent(own, sent.references), np.arange(len(own)).reshape(row.shape)


def received(task: Task, arrays: Arrays, layout: Layout) -> Sent:
    """Return what ``down`` took apart, put together again; what does not travel is zero."""
    groups = {group: _whole(task, arrays, prefix, layout) for group, prefix in GROUPS.items()}
    assert groups["models"] is not None, "a message always has params"
    return Sent(groups["models"], groups["references"], groups["unplaced"])


def _whole(task: Task, arrays: Arrays, prefix: str, layout: Layout) -> Stack | None:
    """Return the whole rows of one group of arrays; None if the message has no such group."""
    if prefix + FIELDS[0] not in arrays:
        return None
    if task.sends == "all":
        return Stack(*(arrays[prefix + name] for name in FIELDS))
    if "global" not in layout.parts:
        raise FederationError("parts of models are sent, but the model is no sum of two; do the versions match?")
    sources = {prefix: task.sends, **({"common_": "global"} if task.sends == "cluster" else {})}
    wholes = []
    for name, size, parts in zip(
        FIELDS, (layout.size, layout.buffer_size), (layout.parts, layout.buffer_parts), strict=True
    ):
        whole = np.zeros((len(arrays[prefix + name]), size), arrays[prefix + name].dtype)
        for source, part in sources.items():
            values = arrays[source + name]
            if values.shape[1] != len(parts[part]):
                raise FederationError(f"{source}{name} have {values.shape[1]} columns; {part} has {len(parts[part])}")
            whole[:, parts[part]] = values
        wholes.append(whole)
    return Stack(*wholes)


def _part(stack: Stack, layout: Layout, part: str) -> Iterator[Array]:
    """Yield one part of parameters and of buffers, contiguous, as arrays must be that are packed."""
    for array, place in zip(stack, (layout.part(part), layout.buffer_part(part)), strict=True):
        yield np.ascontiguousarray(array[:, place])


def has_own(task: Task, sent: Sent) -> bool:
    """Return whether the references are the clients' own models, of which each client gets one."""
    return task.report.differences and sent.references is not None


def up(reply: Replies) -> Arrays:
    """Return what one client sends back: the fields of its reply, of one row, that the task asked for.

    A loss that is not a number is sent as an infinite one: the model is as bad, and the number has a range.
    """
    found = {name: getattr(reply, name) for name in ROWS}
    found |= {name: np.where(np.isnan(rows), np.inf, rows) for name in SCORED if (rows := found[name]) is not None}
    return {name: np.ascontiguousarray(rows) for name, rows in found.items() if rows is not None}


def form(
    task: Task,
    sent: Sent,
    layout: Layout,
    *,
    served: int = 1,
    classes: int | None = None,
    sizes: Sizes = UNKNOWN_SIZES,
    described: tuple[int, ...] = (),
    measured: tuple[int, ...] = (),
) -> Form:
    """Return shape, type and range of every array that one client sends back.

    ``served`` models are mixed where the report says so. The ranges are those of data with this number of ``classes``
    (None: a real target) and of a client of these ``sizes``. The row of a client that does not choose is the one it was
    sent. ``described`` is the declared shape of the client function's array, where the report names one, ``measured``
    that of the metric: a number, or counts of examples.

    >>> from coterie.models.layout import Layout
    >>> layout = Layout(3, 0, {"all": np.arange(3)}, {"all": np.arange(0)})
    >>> models = Stack(np.zeros((2, 3), np.float32), np.zeros((2, 0), np.float32))
    >>> form(Task(), Sent(models), layout)["params"]
    Field(shape=(1, 3), kind='float32', low=-10000000000.0, high=10000000000.0)
    """
    report, models = task.report, len(sent.models)
    whole, real, worst = "int64", "float64", math.inf if report.bounded is None else 1.0
    rows = (0, models - 1) if task.choose else (UNPLACED, _rows(sent) + served)
    found: Form = {"rows": Field((1, served) if report.mix else (1,), whole, *rows)}
    found["examples"] = Field((1,), whole, *_count(sizes.train))
    if report.params is not None:
        widths = len(layout.numbers(report.params)), len(layout.buffer_parts[report.params])
        for name, width, array in zip(FIELDS, widths, sent.models, strict=True):
            found[name] = Field((1, width), array.dtype.name, -ABSURD, ABSURD)
    if report.losses:
        found["losses"] = Field((1, models), real, 0.0, worst)
    if report.sample is not None:
        found["spreads"] = Field((1, models), real, 0.0, worst)
    if report.evaluate_on:
        examples = getattr(sizes, report.evaluate_on)
        halved = report.half is not None and examples
        found["metrics"] = _metrics(classes, int(report.distinct_examples(np.array(examples))) if halved else examples)
    if report.metric is not None:
        most = _count(getattr(sizes, report.evaluate_on or "test"))[1]
        found["metric"] = Field((1, *measured), real, *((0.0, most) if measured else (-DESCRIBED, math.inf)))
    if task.fit:
        found["training_loss"] = Field((1,), real, 0.0, math.inf)
    if task.races:
        found["evaluations"] = Field((1,), whole, 0, models * _count(sizes.train)[1])
    if report.describe is not None:
        found["description"] = Field((1, *described), real, -DESCRIBED, DESCRIBED)
    return found


def _rows(sent: Sent) -> int:
    return sum(len(stack) for stack in (sent.models, sent.references, sent.unplaced) if stack is not None)


def _metrics(classes: int | None, examples: int) -> Field:
    """Return the range of metrics: accuracy and macro-F1 are shares, a squared error and a variance are not."""
    fewest, most = _count(examples)
    share = math.inf if classes is None else 1.0
    return Field((1, 4), "float64", (0.0, 0.0, 0.0, fewest), (share, share, math.inf, most))


def _count(examples: int) -> tuple[float, float]:
    """Return the least and the largest number of examples of a client that says it has this number, or none."""
    return (examples, examples) if examples else (1, math.inf)


def collect(layout: Layout, wanted: Form, answers: Mapping[int, Arrays], missing: Mapping[str, str]) -> Replies:
    """Return the replies of the clients that answered, by position, as one value; no rows where nobody did."""
    clients = sorted(answers)
    rows: dict[str, Any] = {
        name: np.concatenate(
            [np.zeros((0, *each.shape[1:]), each.kind), *(answers[client][name] for client in clients)]
        )
        for name, each in wanted.items()
    }
    return Replies(layout, np.array(clients, dtype=np.int64), **rows, missing=missing)


def drop_broken(replies: Replies, names: tuple[str, ...]) -> Replies:
    """Turn models with NaN, infinite or absurdly large numbers into missing rows with a reason.

    Losses and metrics are left as they are: a model that has diverged is still evaluated.
    """
    broken = np.zeros(len(replies), dtype=bool)
    for rows in (replies.params, replies.buffers):
        if rows is not None:
            some = max(1, AT_ONCE // max(1, rows.shape[1]))
            for i in range(0, len(rows), some):
                broken[i : i + some] |= ~(np.abs(rows[i : i + some]) <= ABSURD).all(axis=1)
    return replies.without(broken, {names[c]: BROKEN for c in replies.clients[broken]})


def cost(task: Task, sent: Sent, replies: Replies, asked: int) -> Cost:
    """Return what an exchange cost, from the task and the sizes of those who answered: the same in every runtime.

    Bytes of all ``down`` to the clients asked and all ``up`` from those that answered; examples x models that were
    evaluated for choices, reported losses and client functions of all models; minibatch steps. Loss and gradient at a
    model for a choice are one pass.
    """
    models, served = len(sent.models), replies.rows.shape[1] if task.report.mix else 1
    to_one = _bytes_to_one(task, sent, replies.layout, served)
    described = () if replies.description is None else replies.description.shape[1:]
    measured = () if replies.metric is None else replies.metric.shape[1:]
    wanted = form(task, sent, replies.layout, served=served, described=described, measured=measured)
    from_one = sum(field.nbytes for field in wanted.values())
    sizes, report, alike = replies.examples, task.report, np.unique(replies.examples, return_counts=True)
    looked_at = [score.examples for score in task.choose if isinstance(score, Loss)]
    looked_at += [task.fit[0].batch] if task.looks_ahead else []
    chosen = models * sum(int(np.minimum(sizes, most or np.inf).sum()) for most in looked_at)
    judged = models + (1 if has_own(task, sent) else 0)
    reported = judged * int(report.distinct_examples(sizes).sum()) if report.losses else 0
    if report.describe is not None and report.describe.all_models:
        reported += models * int(sizes.sum())
    raced = 0 if replies.evaluations is None else int(replies.evaluations.sum())
    steps = sum(int(many) * fit.minibatches(int(n)) for fit in task.fit for n, many in zip(*alike, strict=True))
    stored = to_one if asked else 0
    return Cost(asked * to_one, len(replies) * from_one, chosen + reported + raced, steps, stored)


def _bytes_to_one(task: Task, sent: Sent, layout: Layout, served: int) -> int:
    """Return the bytes of ``down`` for one client."""

    def width(part: str) -> int:
        numbers = (layout.parts[part], layout.buffer_parts[part])
        return sum(len(each) * array.itemsize for each, array in zip(numbers, sent.models, strict=True))

    if has_own(task, sent):
        rows = len(sent.models) + 1
    elif task.receives_all:
        rows = _rows(sent)
    else:
        rows = served + (0 if sent.references is None else len(sent.references))
    common = width("global") if task.sends == "cluster" else 0
    return rows * width(task.sends) + common + 8 * served
