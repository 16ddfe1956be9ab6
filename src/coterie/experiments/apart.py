"""What sets the clusters apart: the columns and classes in which the clients of a cluster differ from the others.

All that is needed of a client is its mean and mean squared deviation of every input and label (the client functions
``input_sums`` and ``label_sums``), so a federation can do it too where sites' policies list these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from coterie.client_functions import input_sums, label_sums
from coterie.data.tables.inputs import Input, inputs_of, labels_of
from coterie.errors import RunFolderError
from coterie.experiments.records import DataFacts
from coterie.experiments.run_folder import APART
from coterie.files import write_atomically
from coterie.protocol.client_function import ClientFunction
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.contract import State
from coterie.target import BINARY, Target
from coterie.typing import Array

FEWEST = 3
"""Clients that a cluster, and the rest, must have: fewer have no spread to judge a difference by."""

LEVEL = 0.95
"""The confidence of all intervals of a run together."""

MISSING = "(missing)"
"""What stands for the value of a category where it is missing."""

ROUNDING = 1e-6
"""A column with a smaller spread, or a share of missing values below this, is one of rounding errors."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much a cluster's clients differ from the others in one column, or in how often it has one value.

    ``cluster`` and ``rest`` are means over clients of the clients' means: in the table's units, or shares where
    ``is_share``. ``effect``, from ``low`` to ``high``, is their difference in standard deviations of all rows, and in
    shares where ``is_share``. ``strength`` is the difference in standard deviations, whatever the column.
    """

    column: str
    is_share: bool
    cluster: float
    rest: float
    effect: float
    low: float
    high: float
    strength: float

    @property
    def certain(self) -> bool:
        """Whether the interval excludes that there is no difference."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, kw_only=True)
class ClusterApart:
    """One cluster beside all other clients: its differences, the largest first; none where it is too small to judge."""

    cluster: int
    clients: int
    others: int
    differences: tuple[Difference, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether there are enough clients on both sides."""
        return min(self.clients, self.others) >= FEWEST

    @property
    def certain(self) -> tuple[Difference, ...]:
        """The differences of which the sign is certain."""
        return tuple(each for each in self.differences if each.certain)


@dataclass(frozen=True, kw_only=True)
class Apart:
    """What sets the clusters apart. ``looked_at`` counts the columns and values, for which intervals are corrected.

    ``silent`` are the clients that gave no sums.
    """

    clusters: tuple[ClusterApart, ...]
    looked_at: int
    silent: tuple[str, ...] = ()
    level: float = LEVEL

    def save(self, folder: Path) -> None:
        """Write it as JSON into a run folder."""
        write_atomically(folder / APART, (json.dumps(asdict(self), indent=2, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Apart:
        """Read what ``save`` wrote."""
        try:
            table = json.loads((folder / APART).read_text(encoding="utf-8"))
            clusters = tuple(map(_cluster, table.pop("clusters")))
            return cls(clusters=clusters, silent=tuple(table.pop("silent")), **table)
        except OSError:
            what = f"{folder} does not say what sets its clusters apart"
            raise RunFolderError(f"{what}: it has fewer than two, or the run was made without it; run again") from None
        except (ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{folder / APART} is damaged ({error}); run again") from None


def _cluster(table: Mapping[str, Any]) -> ClusterApart:
    return ClusterApart(**{**table, "differences": tuple(Difference(**each) for each in table["differences"])})


@dataclass(frozen=True)
class ColumnSums:
    """Every client's mean of every column, ``(clients, columns)``, and of the squared deviations from that mean."""

    columns: tuple[Input, ...]
    means: Array
    squares: Array

    def scales(self, examples: Array) -> Array:
        """Return the standard deviation of each column over the rows of all clients."""
        middle = np.average(self.means, axis=0, weights=examples)
        scales: Array = np.sqrt(np.average(self.squares + (self.means - middle) ** 2, axis=0, weights=examples))
        return scales

    def take(self, columns: Sequence[int]) -> ColumnSums:
        """Return some of the columns."""
        return ColumnSums(tuple(self.columns[i] for i in columns), self.means[:, columns], self.squares[:, columns])

    def beside(self, other: ColumnSums) -> ColumnSums:
        """Return these columns and those of another table of the same clients."""
        means, squares = (np.hstack(pair) for pair in ((self.means, other.means), (self.squares, other.squares)))
        return ColumnSums((*self.columns, *other.columns), means, squares)


def find_apart(federation: Federation, state: State, facts: DataFacts, clients: Array) -> Apart | None:
    """Ask these clients for their sums, and return what sets the clusters apart; None if there are not two of them."""
    placed = clients[state.placed[clients]]
    if not 1 < len(np.unique(state.labels[placed])) < len(placed):
        return None
    questions = _questions(facts)
    answers = [_ask(federation, state, function, placed) for function, _ in questions]
    there = reduce(np.intersect1d, (each.clients for each in answers))
    silent = tuple(facts.names[i] for i in np.setdiff1d(placed, there))
    if not len(there):
        return Apart(clusters=(), looked_at=0, silent=silent)
    parts = [_sums_of(answer, columns, there) for answer, (_, columns) in zip(answers, questions, strict=True)]
    sums = without_repeats(reduce(ColumnSums.beside, parts))
    return replace(compare_clusters(sums, state.labels[there], facts.train[there]), silent=silent)


def _questions(facts: DataFacts) -> list[tuple[ClientFunction, tuple[Input, ...]]]:
    """Return what clients are asked for, and what the columns of their answers stand for.

    Of pixels and tokens, which have no meaning of their own, nothing is asked.
    """
    labels = (label_sums, label_columns(facts))
    rows = len(facts.shape) == 1 and facts.vocabulary is None
    return [(input_sums, input_columns(facts)), labels] if rows else [labels]


def input_columns(facts: DataFacts) -> tuple[Input, ...]:
    """Return what the inputs stand for; without a schema they have numbers."""
    if facts.schema is None:
        return tuple(Input(f"input {i}") for i in range(facts.shape[0]))
    return inputs_of(facts.schema)


def label_columns(facts: DataFacts) -> tuple[Input, ...]:
    """Return what the labels stand for; without a schema classes have numbers."""
    if facts.schema is not None:
        return labels_of(facts.schema)
    target = Target(facts.classes, facts.columns)
    if target.one_of is not None:
        return tuple(Input("class", str(number)) for number in range(target.one_of))
    if target.is_labels:
        return tuple(Input(f"label {number}", "1") for number in range(target.width))
    names = ["target"] if target.columns is None else [f"target {number}" for number in range(target.width)]
    return tuple(Input(name, std=facts.unit) for name in names)


def _ask(federation: Federation, state: State, function: ClientFunction, clients: Array) -> Replies:
    """Ask clients for a client function's array; the model that goes along plays no part, and no cost is counted."""
    rows, sent = np.zeros(len(clients), dtype=np.int64), Sent(state.stack.take(slice(1)))
    return federation.ask(Task(report=function.report()), sent, rows, clients, Key(0, state.round))


def _sums_of(answers: Replies, columns: tuple[Input, ...], there: Array) -> ColumnSums:
    """Return the sums of the clients that answered everything."""
    assert answers.description is not None, "a client function's array was asked for"
    means, squares = answers.description[np.isin(answers.clients, there)].transpose(1, 0, 2)
    return ColumnSums(columns, means, squares)


def without_repeats(sums: ColumnSums) -> ColumnSums:
    """Return the sums with the share of missing values of each category, and without what follows from other columns.

    Of a category with two values that is never missing, the first value says nothing that the second does not.
    """
    values: dict[str, list[int]] = {}
    for place, column in enumerate(sums.columns):
        if column.is_share:
            values.setdefault(column.column, []).append(place)
    repeated = set[int]()
    for name, places in values.items():
        missing = 1 - sums.means[:, places].sum(axis=1)
        if len(places) > 1 and missing.max() > ROUNDING:
            share = missing.clip(0, 1)[:, None]
            sums = sums.beside(ColumnSums((Input(name, MISSING),), share, share * (1 - share)))
        elif len(places) == BINARY:
            repeated.add(places[0])
    return sums.take([place for place in range(len(sums.columns)) if place not in repeated])


def compare_clusters(sums: ColumnSums, labels: Array, examples: Array) -> Apart:
    """Compare each cluster's clients with all others, column by column; columns that never vary are left out.

    Every client counts alike, because clients, not rows, were put into clusters. Intervals are Welch's, from the spread
    between clients, and hold for all columns of all clusters together (Bonferroni).
    """
    scales = sums.scales(examples)
    varies = np.flatnonzero(scales > ROUNDING)
    sums, scales = sums.take(varies.tolist()), scales[varies]
    numbers, sizes = np.unique(labels, return_counts=True)
    found = [
        ClusterApart(cluster=int(number), clients=int(size), others=len(labels) - int(size))
        for number, size in zip(numbers, sizes, strict=True)
    ]
    tail = (1 - LEVEL) / 2 / max(1, len(varies) * sum(each.judged for each in found))
    judged = (
        replace(each, differences=_differences(sums, scales, labels == each.cluster, tail)) if each.judged else each
        for each in found
    )
    return Apart(clusters=tuple(judged), looked_at=len(varies))


def _differences(sums: ColumnSums, scales: Array, inside: Array, tail: float) -> tuple[Difference, ...]:
    """Return the differences of the clients inside from the others: first those that are certain, the largest first."""
    inner, outer = sums.means[inside], sums.means[~inside]
    difference = inner.mean(axis=0) - outer.mean(axis=0)
    half = welch_half_width(inner, outer, tail)
    found = [
        _difference(column, inner[:, i].mean(), outer[:, i].mean(), half=half[i], scale=scales[i])
        for i, column in enumerate(sums.columns)
    ]
    strengths = np.abs(difference / scales)
    return tuple(found[i] for i in sorted(range(len(found)), key=lambda i: (not found[i].certain, -strengths[i])))


def _difference(column: Input, cluster: float, rest: float, *, half: float, scale: float) -> Difference:
    unit, most = (1.0, 1.0) if column.is_share else (scale, np.inf)
    effect = (cluster - rest) / unit
    return Difference(
        column=str(column),
        is_share=column.is_share,
        cluster=float(column.mean + column.std * cluster),
        rest=float(column.mean + column.std * rest),
        effect=float(effect),
        low=float(max(-most, effect - half / unit)),
        high=float(min(most, effect + half / unit)),
        strength=float((cluster - rest) / scale),
    )


def welch_half_width(one: Array, other: Array, tail: float) -> Array:
    """Return half the width of Welch's interval of the difference of two means, column by column.

    ``tail`` is the probability beyond each end.
    """
    middle = np.concatenate([one, other]).mean(axis=0)
    parts = [spread(side, middle) / len(side) for side in (one, other)]
    total = parts[0] + parts[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = total**2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(other) - 1))
    width: Array = -scipy.special.stdtrit(np.nan_to_num(freedom, nan=1.0), tail) * np.sqrt(total)
    return width


def spread(side: Array, middle: Array) -> Array:
    """Return the variance between clients; where all are equal, that with one more client at the mean of everybody.

    A few clients that are equal, as where each has one value of a column, do not show that all would be.

    >>> spread(np.array([[1.0, 1.0], [1.0, 3.0], [1.0, 2.0]]), np.array([0.5, 0.0])).tolist()
    [0.0625, 1.0]
    """
    variance = side.var(axis=0, ddof=1)
    found: Array = np.where(variance > ROUNDING**2, variance, (side.mean(axis=0) - middle) ** 2 / (len(side) + 1))
    return found
