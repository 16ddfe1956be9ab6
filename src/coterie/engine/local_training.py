"""Which examples are in which minibatch: the same in every plan, because they are drawn here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from coterie.engine.plan import Plan, Workers
from coterie.engine.pool import Pool
from coterie.engine.terms import NOTHING, Received
from coterie.engine.trainer import Batch, Trainer
from coterie.models.layout import Coordinates
from coterie.models.model import Model
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.typing import Array

PADDED = 1 << 20
"""About how many row numbers of a group are laid side by side at a time."""


@dataclass(frozen=True)
class Batches:
    """Minibatch q is ``order[bounds[q]:bounds[q+1]]``: row numbers of the client's examples."""

    order: Array
    bounds: Array

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def rows(self, step: int) -> Array:
        """The row numbers of one minibatch."""
        part: Array = self.order[self.bounds[step] : self.bounds[step + 1]]
        return part


def draw(examples: int, fit: Fit, rng: np.random.Generator) -> Batches:
    """Walk through shuffled epochs, cut into minibatches; the last of an epoch may be smaller, none is padded.

    >>> b = draw(5, Fit(steps=4, batch=2), np.random.default_rng(0))
    >>> [len(b.rows(q)) for q in range(len(b))]
    [2, 2, 1, 2]
    """
    wanted, seen = fit.count(examples), fit.sees(examples)
    epoch = -(-seen // fit.batch)
    epochs = -(-wanted // epoch)
    order = np.concatenate([rng.permutation(seen) for _ in range(epochs)])
    ends = np.minimum(np.arange(1, epoch + 1) * fit.batch, seen)
    bounds = (ends[None, :] + seen * np.arange(epochs)[:, None]).ravel()[:wanted]
    return Batches(order, np.concatenate([[0], bounds]))


def halve(batches: Batches, examples: int, fit: Fit, rng: np.random.Generator) -> Batches:
    """The same minibatches among the examples of the half that the pass is confined to.

    >>> both = [Fit(steps=1, half=half) for half in (0, 1)]
    >>> found = [halve(draw(5, f, np.random.default_rng(0)), 5, f, np.random.default_rng(1)) for f in both]
    >>> sorted(np.concatenate([b.order for b in found]).tolist())
    [0, 1, 2, 3, 4]
    """
    return replace(batches, order=half_of(examples, fit, rng)[batches.order])


def half_of(examples: int, fit: Fit, rng: np.random.Generator) -> Array:
    """The examples of the half that the pass is confined to."""
    everything, seen = rng.permutation(examples), fit.sees(examples)
    half: Array = everything[-seen:] if fit.half else everything[:seen]
    return half


def pad(batches: list[Batches], starts: Array) -> Iterator[tuple[Array, Array]]:
    """Minibatches of G clients side by side: pool row numbers ``(G, B)`` and example weights that sum to 1, by step.

    A client whose batch is smaller, or who has finished, is padded with its first row at weight 0. Some steps are made
    at a time, so that a long pass takes no more room than a short one.
    """
    steps = max(len(b) for b in batches)
    width = max(int(np.diff(b.bounds).max()) for b in batches)
    some = max(1, PADDED // (width * len(batches)))
    for first in range(0, steps, some):
        yield from zip(*_padded(batches, starts, slice(first, min(first + some, steps)), width), strict=True)


def _padded(batches: list[Batches], starts: Array, steps: slice, width: int) -> tuple[Array, Array]:
    """Row numbers and weights ``(Q, G, B)`` of some steps."""
    shape = (steps.stop - steps.start, len(batches), width)
    rows, weights = np.broadcast_to(starts[None, :, None], shape).copy(), np.zeros(shape)
    for g, b in enumerate(batches):
        bounds = b.bounds[steps.start : steps.stop + 1]
        sizes = np.diff(bounds)
        filled = np.arange(width)[None, :] < sizes[:, None]
        if len(sizes):
            rows[: len(sizes), g][filled] = b.order[bounds[0] : bounds[-1]] + starts[g]
            weights[: len(sizes), g] = filled / sizes[:, None]
    return rows, weights


GATHERED = 1 << 20
"""About how many bytes of one client's examples are gathered in one go."""

DRAWN = 1 << 27
"""A group in lockstep has drawn so many row numbers at most: where passes are very long it is smaller."""


@dataclass(frozen=True)
class Work:
    """Who trains from which row, and where the results go: row i of ``out`` is for ``clients[i]``.

    ``placed`` says who had a cluster when the round began, ``kept`` holds what clients keep between rounds. With
    ``sequential`` a pass goes on from what is in ``out``. ``failures`` collects the reasons of those who failed.
    """

    model: Model
    pool: Pool
    names: tuple[str, ...]
    sent: Sent
    labels: Array
    clients: Array
    key: Key
    out: Stack
    sequential: bool = False
    placed: Array = field(default_factory=lambda: np.ones(0, dtype=bool))
    kept: dict[str, Array] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def start(self, places: int | Array) -> Stack:
        """What these clients' pass starts from: the models received, or what the pass before made of them."""
        return self.out.take(places) if self.sequential else self.sent.take(self.labels[places])

    def batches(self, place: int, fit: Fit, number: int) -> Batches:
        """The minibatches of the client at ``place`` in pass ``number``."""
        client = self.clients[place]
        name, examples = self.names[client], int(self.pool.sizes[client])
        drawn = draw(examples, fit, self.key.generator(name, "batches", number))
        return drawn if fit.half is None else halve(drawn, examples, fit, self.key.generator(name, "halves"))

    def dropout(self, place: int, number: int) -> int:
        """The address of what the client at ``place`` drops in pass ``number``."""
        return self.key.number(self.names[self.clients[place]], "dropout", number)

    def received(self, places: int | Array, fit: Fit) -> Received:
        """What these clients received that the terms of a pass may read; nothing where it has none."""
        if not fit.terms:
            return NOTHING
        device = self.pool.like.device
        models, buffers = (torch.from_numpy(part).to(device) for part in self.sent.models)
        references = models[:0] if self.sent.references is None else torch.from_numpy(self.sent.references.params)
        own, placed = (torch.as_tensor(part[places], device=device) for part in (self.labels, self.placed))
        return Received(models, buffers, references.to(device), own, placed)

    def momentum(self, places: int | Array, fit: Fit) -> Tensor | None:
        """What the passes of these clients go on with: nothing, or the momenta that they have kept, at first zero."""
        if fit.keeps is None:
            return None
        nothing = np.zeros(self.model.layout.size, self.sent.dtype)
        rows = np.stack([self.kept.get(drawer, nothing) for drawer in self._drawers(places, fit)])
        return torch.from_numpy(rows[0] if isinstance(places, int) else rows).to(self.pool.like.device)

    def keep_momentum(self, places: int | Array, fit: Fit, trainer: Trainer) -> None:
        """Keep the momenta with which these clients ended, where the pass says so."""
        if fit.keeps is not None:
            rows = np.atleast_2d(trainer.momentum(fit).cpu().numpy())
            for drawer, row in zip(self._drawers(places, fit), rows, strict=True):
                self.kept.pop(drawer, None)
                if np.isfinite(row).all():  # who went astray begins anew
                    self.kept[drawer] = row

    def _drawers(self, places: int | Array, fit: Fit) -> list[str]:
        return [f"{fit.keeps}/{fit.part}/{self.names[client]}" for client in np.atleast_1d(self.clients[places])]

    def rate(self, fit: Fit) -> float:
        """The learning rate of this round; what comes before round 0 does not decay backwards."""
        return (self.model.default_lr if fit.lr is None else fit.lr) * fit.lr_decay ** max(self.key.round, 0)

    def keep(self, places: int | Array, fit: Fit, params: Tensor, buffers: Tensor) -> None:
        """Write the trained part into the reply rows."""
        layout = self.model.layout
        _write(self.out.params, places, layout.part(fit.part), params)
        if layout.buffer_size:
            _write(self.out.buffers, places, layout.buffer_part(fit.part), buffers)


def _write(rows: Array, places: int | Array, part: Coordinates, values: Tensor) -> None:
    """Copy one part of the values to one row, or to several; torch's copy lets other threads go on meanwhile."""
    if isinstance(places, int):
        torch.from_numpy(rows[places])[part] = values.cpu()[part]
    else:
        rows[(places, part) if isinstance(part, slice) else np.ix_(places, part)] = values.cpu().numpy()[..., part]


def train(work: Work, fit: Fit, number: int, plan: Plan, workers: Workers) -> Array:
    """Train every client's pass ``number``; returns each one's mean minibatch loss."""
    count = len(work.clients)
    if plan.kind == "lockstep":
        together = groups(work, fit, plan.group)
        parts = workers.map(lambda places: _fit_group(work, fit, number, places, workers), together)
        loss = np.empty(count)
        loss[np.concatenate(together)] = np.concatenate(parts)
        return loss
    go = workers.here if plan.kind == "single" else workers.map
    return np.array(go(lambda place: _try_one(work, fit, number, place, workers), range(count)))


def _try_one(work: Work, fit: Fit, number: int, place: int, workers: Workers) -> float:
    """A client whose training fails is a missing row with a reason; the others go on."""
    try:
        return _fit_one(work, fit, number, place, workers)
    except (RuntimeError, ValueError) as error:
        work.failures[place] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return 0.0


def groups(work: Work, fit: Fit, size: int) -> list[Array]:
    """Clients in groups of about ``size`` with similar numbers of steps, so that few wait for the slowest."""
    sizes = work.pool.sizes[work.clients].tolist()
    order = np.argsort([-fit.count(n) for n in sizes], kind="stable")
    fitting = DRAWN // max((fit.walks(n) for n in sizes), default=1)
    return [np.sort(group) for group in np.array_split(order, -(-len(order) // max(1, min(size, fitting))))]


def desk(work: Work, workers: Workers, group: int | None = None) -> Trainer:
    """This thread's trainer for one client, or for a group of them."""
    like = work.pool.like
    trainer: Trainer = workers.desk(("train", group, like.dtype), lambda: Trainer(work.model, like, group))
    return trainer


def _fit_one(work: Work, fit: Fit, number: int, place: int, workers: Workers) -> float:
    like, trainer = work.pool.like, desk(work, workers)
    begin, client = work.start(place), work.clients[place]
    trainer.seed_dropout(work.dropout(place, number))
    trainer.buffers.copy_(torch.from_numpy(begin.buffers))
    start = torch.from_numpy(begin.params).to(like.device)
    feed = _feed_one(work.pool, work.batches(place, fit, number), int(work.pool.offsets[client]))
    loss = trainer.fit(start, fit, work.rate(fit), feed, work.received(place, fit), work.momentum(place, fit))
    work.keep(place, fit, trainer.params, trainer.buffers)
    work.keep_momentum(place, fit, trainer)
    return float(loss)


def _feed_one(pool: Pool, batches: Batches, first: int) -> Iterator[Batch]:
    """One client's minibatches, several of them gathered in one go: fewer turns of the interpreter that all share."""
    step = max(1, GATHERED * len(batches) // max(1, len(batches.order) * pool.example_bytes))
    for begin in range(0, len(batches), step):
        bounds = batches.bounds[begin : begin + step + 1].tolist()
        x, y = pool.take(batches.order[bounds[0] : bounds[-1]] + first)
        for a, b in pairwise(bounds):
            yield Batch(x[a - bounds[0] : b - bounds[0]], y[a - bounds[0] : b - bounds[0]])


def _fit_group(work: Work, fit: Fit, number: int, places: Array, workers: Workers) -> Array:
    like, trainer = work.pool.like, desk(work, workers, len(places))
    batches = [work.batches(place, fit, number) for place in places]
    start = torch.from_numpy(work.start(places).params).to(like.device)
    given = work.received(places, fit), work.momentum(places, fit)
    loss = trainer.fit(start, fit, work.rate(fit), feed(work, places, batches), *given)
    work.keep(places, fit, trainer.params, trainer.buffers)
    work.keep_momentum(places, fit, trainer)
    return loss.cpu().numpy().astype(np.float64)


def feed(work: Work, places: Array, batches: list[Batches]) -> Iterator[Batch]:
    """The minibatches of a group side by side."""
    for where, weights in pad(batches, work.pool.offsets[work.clients[places]]):
        x, y = work.pool.take(where)
        weight = torch.from_numpy(weights).to(work.pool.like)
        active = (weight.sum(1, keepdim=True) > 0).to(weight)
        yield Batch(x, y, weight, active)
