"""Distances between clients: square matrices from parameters, updates and cross losses, never from buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import scipy

from coterie.errors import UnknownName
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.contract import Ask
from coterie.server.distances.many_clients import Distances
from coterie.typing import Array

BLOCK_BYTES = 64 << 20
"""Client models are read, and sent to be evaluated, in blocks of about this size."""

OWN_BYTES = 1 << 30
"""Bytes of clients' own models read at a time, where clients are sent these beside a block."""

Measure = Callable[[Replies, Array, Ask], tuple[Replies, Distances]]
"""``(replies, starts, ask) -> (replies that could be measured, their distances)``; ``starts`` are the parameters from
which each client trained."""

KeyedMeasure = Callable[[Key], Measure]
"""``key -> measure``: the measure of a round, with the key from which it may draw samples."""

METRICS = ("cosine", "euclidean", "manhattan")


def plain(measure: Measure) -> KeyedMeasure:
    """Use a measure that draws nothing."""
    return lambda key: measure


def of_updates(metric: str) -> Measure:
    """Measure distances between the clients' updates."""
    check_metric(metric)
    return lambda replies, starts, ask: (replies, pairwise(columns(replies, starts), len(replies), metric))


def of_parameters(metric: str) -> Measure:
    """Measure distances between the clients' trained parameters."""
    check_metric(metric)
    return lambda replies, starts, ask: (replies, pairwise(columns(replies, None), len(replies), metric))


def of_losses(symmetric_in: str = "data", bounded: str | None = None) -> Measure:
    """Measure distances by the losses of clients' models on each other's train data (lcfl eq. 2, or 6).

    Every client is sent every model, a block at a time. Clients that do not answer cannot be measured. Eq. 2 needs only
    the difference of each loss from the client's own, so nothing else is asked for; eq. 6 needs the losses themselves.
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
    """Return the formula from cross losses to distances: of two models (eq. 2), or of two clients' data (eq. 6)."""
    formulas = {"data": between_models, "models": between_clients}
    if symmetric_in not in formulas:
        raise UnknownName("loss distance", symmetric_in, formulas)
    return formulas[symmetric_in]


def columns(replies: Replies, starts: Array | None) -> Iterator[Array]:
    """Yield the clients' parameters (minus their starts) in double precision, a block of coordinates at a time."""
    part = replies.layout.part("all")
    params, begun = replies.models().params[:, part], None if starts is None else starts[:, part]
    width = max(1, BLOCK_BYTES // max(1, 8 * len(params)))
    for i in range(0, params.shape[1], width):
        block = params[:, i : i + width].astype(np.float64)
        yield block if begun is None else block - begun[:, i : i + width]


def pairwise(blocks: Iterator[Array], count: int, metric: str) -> Array:
    """Return distances between rows that come in blocks of columns; rows of zeros have cosine distance 1 to others.

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
            total += scipy.spatial.distance.cdist(block, block, "sqeuclidean" if metric == "euclidean" else "cityblock")
    if metric == "cosine":
        total = 1 - cosine_from_products(total)
    elif metric == "euclidean":
        total = np.sqrt(total)
    np.fill_diagonal(total, 0)
    return (total + total.T) / 2


def cosine_from_products(products: Array) -> Array:
    """Return cosine similarities from inner products; zero where a vector is zero."""
    norms = np.sqrt(np.diag(products))
    scale = np.outer(norms, norms)
    similar = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    return np.clip(similar, -1, 1)


def starts_from(models: Array, rows: Array) -> Array:
    """Return the models of these rows; where all are the same, without a copy for each client.

    >>> starts_from(np.array([[1.0], [2.0]]), np.array([1, 1, 1])).tolist()
    [[2.0], [2.0], [2.0]]
    """
    if len(rows) and (rows == rows[0]).all():
        return np.broadcast_to(models[rows[0]], (len(rows), models.shape[1]))
    return models[rows]


def cross_losses(replies: Replies, ask: Ask, report: Report = Report(params=None, losses=True)) -> Array:
    """Return ``L[i, j]``: client i's report on client j's model, NaN for clients that do not answer.

    That is a mean train loss, or its difference from that of the client's own model. Losses that are not finite count
    as the largest finite one.
    """
    everyone = np.arange(len(replies))
    losses = np.full((len(replies), len(replies)), np.nan)
    for models, answered, scored in ask_losses(report, replies, everyone, everyone, ask):
        assert scored.losses is not None, "the task asked for losses"
        losses[np.ix_(answered, models)] = np.where(np.isfinite(scored.losses), scored.losses, np.inf)
    if report.differences:
        np.fill_diagonal(losses, 0)
    return finite(losses)


def ask_losses(
    report: Report, replies: Replies, clients: Array, models: Array, ask: Ask, most: int | None = None
) -> Iterator[tuple[Array, Array, Replies]]:
    """Let some clients evaluate the models of others, and yield the replies to each block of models.

    Clients and models are rows of ``replies``; each block comes with the rows of the clients that answered. ``most``:
    clients that are asked at once, at most.
    """
    stack = replies.models()
    size = max(1, stack.nbytes // max(1, len(stack)))
    at_once = min(OWN_BYTES // size if report.differences else len(clients), len(clients) if most is None else most)
    for rows, some in product(parts(models, BLOCK_BYTES // size), parts(clients, at_once)):
        begun, own = np.zeros(len(some), dtype=np.int64), None
        if report.differences:
            begun, own = own_rows(rows, stack, some)
        block = stack.take(rows).contiguous()
        scored = ask(Task(report=report), block, begun, replies.clients[some], own)
        if len(scored):
            yield rows, np.searchsorted(replies.clients, scored.clients), scored


def own_rows(rows: Array, stack: Stack, clients: Array) -> tuple[Array, Stack | None]:
    """Return the row of each client's own model: among the models sent, or if some are not there, as a reference."""
    if np.isin(clients, rows).all():
        return np.searchsorted(rows, clients), None
    return len(rows) + np.arange(len(clients)), stack.take(clients)


def parts(numbers: Array, most: int) -> list[Array]:
    """Split numbers into parts of at most ``most``, and at least one.

    >>> [part.tolist() for part in parts(np.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    step = max(1, most)
    return [numbers[i : i + step] for i in range(0, len(numbers), step)]


def finite(losses: Array) -> Array:
    """Replace infinite losses by the largest finite one."""
    worst = losses[np.isfinite(losses)].max(initial=0.0)
    return np.where(np.isinf(losses), worst, losses)


def between_models(losses: Array) -> Array:
    """Return d(i, j) = |L_i(w_i) - L_i(w_j)| + |L_j(w_i) - L_j(w_j)|: how badly the other's model fits each client.

    >>> between_models(np.array([[5.0, 4.0], [3.0, 0.0]])).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    one_way = np.abs(np.diag(losses)[:, None] - losses)
    both: Array = one_way + one_way.T
    return both


def between_clients(losses: Array) -> Array:
    """Return d(i, j) = |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)|: how differently each model fits the two.

    This is lcfl eq. 6.

    >>> between_clients(np.array([[5.0, 4.0], [3.0, 0.0]])).tolist()
    [[0.0, 6.0], [6.0, 0.0]]
    """
    return between_models(losses.T)


def check_metric(metric: str) -> None:
    """Refuse a metric that is not known."""
    if metric not in METRICS:
        raise UnknownName("metric", metric, METRICS)


def cosines(rows: Array, others: Array) -> Array:
    """Return the cosine of each row with each of the others; 0 for rows of zeros.

    >>> cosines(np.array([[5.0, 0.0], [0.0, 0.0]]), np.array([[0.0, -9.0], [0.1, 0.0]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    tiny = np.finfo(np.float64).tiny
    wide = [part.astype(np.float64) for part in (rows, others)]
    one, other = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), tiny) for part in wide)
    found: Array = one @ other.T + 0.0
    return found
