"""How far apart clients are: square matrices from what they sent. Parameters only, never buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from scipy.spatial.distance import cdist

from coterie.errors import UnknownName
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Report, Task
from coterie.seeding import Key
from coterie.server.contract import Ask
from coterie.typing import Array

BLOCK_BYTES = 64 << 20
"""Client models are read, and sent to be judged, in blocks of about this size."""

OWN_BYTES = 1 << 30
"""Where clients are sent their own models beside a block, so many bytes of these are read at a time."""

Measure = Callable[[Replies, Array, Ask], tuple[Replies, Array]]
"""``(replies, starts, ask) -> (replies that could be measured, their distances)``; ``starts`` are the parameters from
which each client trained."""

KeyedMeasure = Callable[[Key], Measure]
"""A measure for the round of a key: one that samples has something to draw."""

METRICS = ("cosine", "euclidean", "manhattan")


def plain(measure: Measure) -> KeyedMeasure:
    """A measure that draws nothing."""
    return lambda key: measure


def of_updates(metric: str) -> Measure:
    """Distances between what the clients added to the model they received."""
    check_metric(metric)
    return lambda replies, starts, ask: (replies, pairwise(columns(replies, starts), len(replies), metric))


def of_parameters(metric: str) -> Measure:
    """Distances between the clients' trained parameters."""
    check_metric(metric)
    return lambda replies, starts, ask: (replies, pairwise(columns(replies, None), len(replies), metric))


def of_losses(symmetric_in: str = "data", bounded: str | None = None) -> Measure:
    """Distances between clients by the losses of their models on each other's train data (lcfl eq. 2, or 6).

    Every client is sent every model, a block at a time. Clients that do not answer cannot be measured. Eq. 2 needs only
    how far each loss is from that of the own model, so nothing else is asked for; eq. 6 needs the losses themselves.
    """
    formula, alone = loss_distance(symmetric_in), symmetric_in == "data"
    report = Report(params=None, losses=True, bounded=bounded, differences=alone)

    def measure(replies: Replies, starts: Array, ask: Ask) -> tuple[Replies, Array]:
        losses = cross_losses(replies, ask, report)
        unheard = np.asarray(np.isnan(losses).any(axis=1))
        heard = ~unheard
        return replies.without(unheard, {}), formula(losses[heard][:, heard])

    return measure


def loss_distance(symmetric_in: str) -> Callable[[Array], Array]:
    """From cross losses to distances: of two models, on the data of both (eq. 2), or of two clients' data (eq. 6)."""
    formulas = {"data": between_models, "models": between_clients}
    if symmetric_in not in formulas:
        raise UnknownName("loss distance", symmetric_in, formulas)
    return formulas[symmetric_in]


def columns(replies: Replies, starts: Array | None) -> Iterator[Array]:
    """The clients' parameters (less where they started) in double precision, a block of coordinates at a time."""
    part = replies.layout.part("all")
    params, begun = replies.models().params[:, part], None if starts is None else starts[:, part]
    width = max(1, BLOCK_BYTES // max(1, 8 * len(params)))
    for i in range(0, params.shape[1], width):
        block = params[:, i : i + width].astype(np.float64)
        yield block if begun is None else block - begun[:, i : i + width]


def pairwise(blocks: Iterator[Array], count: int, metric: str) -> Array:
    """Distances between rows that come in blocks of columns; a row of zeros has cosine distance 1 to every other.

    >>> rows = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    >>> pairwise(iter([rows[:, :1], rows[:, 1:]]), 3, "cosine").tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    >>> pairwise(iter([rows]), 3, "manhattan")[0].tolist()
    [0.0, 3.0, 4.0]
    """
    check_metric(metric)
    total = np.zeros((count, count))
    for block in blocks:
        if metric == "cosine":
            total += block @ block.T
        else:
            total += cdist(block, block, "sqeuclidean" if metric == "euclidean" else "cityblock")
    if metric == "cosine":
        total = 1 - cosine_from_products(total)
    elif metric == "euclidean":
        total = np.sqrt(total)
    np.fill_diagonal(total, 0)
    return (total + total.T) / 2


def cosine_from_products(products: Array) -> Array:
    """Cosine similarities from all inner products; zero where a vector is zero."""
    norms = np.sqrt(np.diag(products))
    scale = np.outer(norms, norms)
    similar = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    return np.clip(similar, -1, 1)


def cross_losses(replies: Replies, ask: Ask, report: Report = Report(params=None, losses=True)) -> Array:
    """``L[i, j]``: what client i reports of client j's model, NaN for clients that do not answer.

    That is a mean train loss, or how far it is from that of its own model. One that is not finite counts as the largest
    finite one.
    """
    everyone = np.arange(len(replies))
    losses = np.full((len(replies), len(replies)), np.nan)
    for models, places, scored in ask_losses(report, replies, everyone, everyone, ask):
        assert scored.losses is not None, "the task asked for losses"
        losses[np.ix_(places, models)] = np.where(np.isfinite(scored.losses), scored.losses, np.inf)
    if report.differences:
        np.fill_diagonal(losses, 0)
    return finite(losses)


def ask_losses(
    report: Report, replies: Replies, places: Array, models: Array, ask: Ask
) -> Iterator[tuple[Array, Array, Replies]]:
    """Let some of the clients judge the models of others, a block of models at a time.

    Clients and models are rows of ``replies``; each block comes with the rows of the clients that answered.
    """
    stack = replies.models()
    size = max(1, stack.nbytes // max(1, len(stack)))
    most = OWN_BYTES // size if report.differences else len(places)
    for rows, some in product(parts(models, BLOCK_BYTES // size), parts(places, most)):
        labels, own = np.zeros(len(some), dtype=np.int64), None
        if report.differences:
            labels, own = own_rows(rows, stack, some)
        block = stack.take(rows).contiguous()
        scored = ask(Task(report=report), block, labels, replies.clients[some], own)
        if len(scored):
            yield rows, np.searchsorted(replies.clients, scored.clients), scored


def own_rows(rows: Array, stack: Stack, places: Array) -> tuple[Array, Stack | None]:
    """Return the label of each client's own model: among the models sent, or if some are not there, as a reference."""
    if np.isin(places, rows).all():
        return np.searchsorted(rows, places), None
    return len(rows) + np.arange(len(places)), stack.take(places)


def parts(numbers: Array, most: int) -> list[Array]:
    """The same numbers in parts of at most so many, and at least one.

    >>> [part.tolist() for part in parts(np.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    step = max(1, most)
    return [numbers[i : i + step] for i in range(0, len(numbers), step)]


def finite(losses: Array) -> Array:
    """Losses with the largest finite one in the place of those that are infinite."""
    worst = losses[np.isfinite(losses)].max(initial=0.0)
    return np.where(np.isinf(losses), worst, losses)


def between_models(losses: Array) -> Array:
    """d(i, j) = |L_i(w_i) - L_i(w_j)| + |L_j(w_i) - L_j(w_j)|: how ill each is served by the other's model.

    >>> between_models(np.array([[5.0, 4.0], [3.0, 0.0]])).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    one_way = np.abs(np.diag(losses)[:, None] - losses)
    both: Array = one_way + one_way.T
    return both


def between_clients(losses: Array) -> Array:
    """d(i, j) = |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)|: how differently each model does on the two (lcfl eq. 6).

    >>> between_clients(np.array([[5.0, 4.0], [3.0, 0.0]])).tolist()
    [[0.0, 6.0], [6.0, 0.0]]
    """
    return between_models(losses.T)


def check_metric(metric: str) -> None:
    """Refuse a metric that is not known."""
    if metric not in METRICS:
        raise UnknownName("metric", metric, METRICS)


def cosines(rows: Array, others: Array) -> Array:
    """The cosine of each row with each of the others; 0 for rows of zeros.

    >>> cosines(np.array([[5.0, 0.0], [0.0, 0.0]]), np.array([[0.0, -9.0], [0.1, 0.0]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    tiny = np.finfo(np.float64).tiny
    wide = [part.astype(np.float64) for part in (rows, others)]
    one, other = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), tiny) for part in wide)
    found: Array = one @ other.T + 0.0
    return found
