"""Cross losses on growing samples: more examples are seen only for pairs of clients that may change a cluster.

After each step the clients are clustered by the losses so far, and again by other losses that are as plausible: each
with a random error of about its standard error. Two clients that are together in one clustering and apart in another
are open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from coterie.errors import require
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report, Sample
from coterie.protocol.task import standard_error
from coterie.seeding import Key
from coterie.server.clustering.clusterers import Clusterer, together
from coterie.server.contract import Ask
from coterie.server.distances.many_clients import refuse_many
from coterie.server.distances.vectors import KeyedMeasure, Measure, ask_losses, finite, loss_distance
from coterie.typing import Array

Formula = Callable[[Array], Array]


@dataclass(frozen=True)
class Sampling:
    """See ``first`` examples of every client under every model, then twice as many for open pairs, and so on.

    ``draws`` plausible matrices, with errors of ``bound`` standard errors, must give the same clusters. ``budget``:
    beyond the first part, at most this share of all evaluations, whatever is still open.
    """

    first: int = 8
    bound: float = 1.0
    draws: int = 10
    budget: float = 1.0

    def __post_init__(self) -> None:
        require(self.first >= 2, "first", self.first, "at least 2 examples")
        require(0 <= self.bound < np.inf, "bound", self.bound, ">= 0, a number of standard errors")
        require(self.draws >= 1, "draws", self.draws, "at least 1")
        require(0 < self.budget <= 1, "budget", self.budget, "in (0, 1], a share of all evaluations")


@dataclass(frozen=True)
class SampledLosses:
    """Estimates of ``L[i, j]``: mean and mean squared deviation over the first ``ends[i, j]`` examples of client i.

    ``sizes`` are the clients' train examples. ``reached`` is False for a client that no longer answers.
    """

    sizes: Array
    means: Array
    spreads: Array
    ends: Array
    reached: Array

    @staticmethod
    def empty(sizes: Array) -> SampledLosses:
        """Return estimates before any example is seen."""
        shape = (len(sizes), len(sizes))
        nothing = np.zeros(shape, dtype=np.int64)
        return SampledLosses(sizes, np.zeros(shape), np.zeros(shape), nothing, np.ones(len(sizes), dtype=bool))

    @property
    def seen(self) -> Array:
        """Return how many examples of client i were seen under model j."""
        count: Array = np.minimum(self.ends, self.sizes[:, None])
        return count

    @property
    def errors(self) -> Array:
        """Return the standard errors of the means, 0 where all examples were seen or the loss is infinite."""
        spreads = np.where(np.isfinite(self.means), self.spreads, 0)
        return standard_error(spreads, self.seen, self.sizes[:, None])

    @property
    def unfinished(self) -> Array:
        """Return the pairs of which more can be seen."""
        more: Array = (self.seen < self.sizes[:, None]) & self.reached[:, None]
        return more

    def of(self, clients: Array) -> SampledLosses:
        """Return the estimates of some of the clients under each other's models."""
        means, spreads, ends = (table[clients][:, clients] for table in (self.means, self.spreads, self.ends))
        return SampledLosses(self.sizes[clients], means, spreads, ends, self.reached[clients])

    def next_ends(self, first: int) -> Array:
        """Return where the next part of each pair ends: after ``first``, then after twice as many as were seen.

        A rest of fewer than ``first`` is included: a mean over one example would reveal that example's loss.
        """
        twice = np.where(self.ends == 0, first, 2 * self.ends)
        rest = self.sizes[:, None] - twice
        ends: Array = np.where((rest > 0) & (rest < first), 2 * twice, twice)
        return ends

    def ahead(self, wanted: Array, first: int) -> int:
        """Return how many evaluations the next part takes for these pairs."""
        return int((np.minimum(self.next_ends(first), self.sizes[:, None]) - self.seen)[wanted].sum())

    def add(self, clients: Array, models: Array, part: Sample, means: Array, spreads: Array) -> None:
        """Add the means and spreads of these clients on a part, under these models."""
        here = np.ix_(clients, models)
        old, new = self.seen[here], part.count(self.sizes[clients])[:, None]
        share = new / (old + new)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(np.isfinite(means), means, np.inf) - self.means[here]
            between = share * (1 - share) * apart**2
            self.spreads[here] = self.spreads[here] + share * (spreads - self.spreads[here]) + between
            self.means[here] = np.where(np.isfinite(apart), self.means[here] + share * apart, np.inf)
        self.ends[here] = part.end


def of_sampled_losses(
    symmetric_in: str, clusterer: Clusterer, sampling: Sampling, bounded: str | None = None
) -> KeyedMeasure:
    """Measure distances by cross losses, estimated only as well as this clusterer needs them.

    Clients that never answer cannot be measured; one that stops answering keeps the estimates so far.
    """
    formula = loss_distance(symmetric_in)

    def keyed(key: Key) -> Measure:
        def measure(replies: Replies, starts: Array, ask: Ask) -> tuple[Replies, Array]:
            refuse_many(replies, "cross=sampled looks at all pairs", "leave it out, or raise exact-clients")
            known = SampledLosses.empty(replies.examples)
            look(known, np.ones_like(known.ends, dtype=bool), sampling.first, replies, ask, bounded)
            unheard = np.asarray((known.ends == 0).any(axis=1))
            replies, known = replies.without(unheard, {}), known.of(~unheard)
            most = sampling.budget * len(replies) * known.sizes.sum()
            for step in count() if len(replies) > 1 else ():
                wanted = still_open(known, formula, clusterer, key, sampling, step)
                if not wanted.any() or known.seen.sum() + known.ahead(wanted, sampling.first) > most:
                    break
                look(known, wanted, sampling.first, replies, ask, bounded)
            return replies, formula(finite(known.means))

        return measure

    return keyed


def look(
    known: SampledLosses, wanted: Array, first: int, replies: Replies, ask: Ask, bounded: str | None = None
) -> None:
    """Let every client evaluate the models that are ``wanted`` of it on the next part of its examples.

    Clients that need the same models for the same part are asked together.
    """
    before, after = known.ends.copy(), known.next_ends(first)
    for begin, end in np.unique(np.column_stack([before[wanted], after[wanted]]), axis=0).tolist():
        part = Sample(begin, end)
        report = Report(params=None, losses=True, sample=part, bounded=bounded)
        for clients, models in rectangles(wanted & (before == begin) & (after == end)):
            for rows, answered, scored in ask_losses(report, replies, clients, models, ask):
                assert scored.losses is not None, "the task asked for losses"
                assert scored.spreads is not None, "the task asked for losses on a sample"
                known.add(answered, rows, part, scored.losses, scored.spreads)
    known.reached[(wanted & (known.ends == before)).any(axis=1)] = False


def rectangles(wanted: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the rows that want the same columns, and those columns.

    >>> [(r.tolist(), c.tolist()) for r, c in rectangles(np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]]) > 0)]
    [([3], [1]), ([0, 2], [0, 2])]
    """
    kinds, which = np.unique(wanted, axis=0, return_inverse=True)
    for number, columns in enumerate(kinds):
        if columns.any():
            yield np.flatnonzero(which == number), np.flatnonzero(columns)


def still_open(
    known: SampledLosses, formula: Formula, clusterer: Clusterer, key: Key, sampling: Sampling, step: int = 0
) -> Array:
    """Return the pairs of which more should be seen: together in one plausible clustering, apart in another.

    These are pairs on which the clustering depends (``Clusterer.ties``). If all of them have been seen to the end, it
    is other pairs on which one clustering depends and another does not. If there are none of these, the sums that a
    ``central`` clusterer compares are known; for any other clusterer all pairs are open. A client's own model is seen
    on as many examples as any other. Every ``step`` draws new errors: with the same ones it would end too early.
    """
    losses, errors = finite(known.means), sampling.bound * known.errors
    now = formula(losses)
    labels = clusterer(now, key)
    ties, moved = clusterer.ties(now, labels), np.zeros(losses.shape, dtype=bool)
    loose = moved.copy()
    for draw in range(sampling.draws):
        distances = formula(losses + errors * plausible(labels, key.generator("plausible", step, draw)))
        other = clusterer(distances, key)
        loose |= clusterer.ties(distances, other) != ties
        moved |= together(other) != together(labels)
    wanted = np.zeros_like(moved)
    if moved.any():
        all_pairs = np.full_like(moved, not clusterer.central)
        kinds = (pairs & known.unfinished for pairs in (loose & moved, loose, all_pairs))
        wanted = next((pairs for pairs in kinds if pairs.any()), wanted)
    wanted |= np.diag(wanted.any(axis=1)) & known.unfinished
    return wanted


def plausible(labels: Array, rng: np.random.Generator) -> Array:
    """Return errors of variance 1, half of it common to a client and all models of one cluster, which err alike."""
    alone, alike = rng.normal(size=(len(labels),) * 2), rng.normal(size=(len(labels), labels.max() + 1))
    errors: Array = (alone + alike[:, labels]) / np.sqrt(2)
    return errors
