"""Local training: every client trains one pass, alone or in lockstep with others, on minibatches drawn by address.

Every plan trains on the same minibatches, because they are drawn here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from coterie.engine.plan import Plan, Workers
from coterie.engine.pool import Pool
from coterie.engine.terms import NOTHING, Received
from coterie.engine.trainer import Batch, Trainer
from coterie.models.model import Model
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.typing import Array

DRAWN = 1 << 27
"""Row numbers that a group in lockstep may have drawn at a time: where passes are very long, groups are smaller."""

GATHERED = 1 << 20
"""About how many bytes of one client's examples are gathered at a time."""

PADDED = 1 << 20
"""About how many row numbers of a group are laid side by side at a time."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Who trains from which row, and where the results go: row i of ``out`` is for ``clients[i]``.

    A client's position is its index in ``clients``. ``placed`` says who had a cluster when the round began, ``kept``
    holds what clients keep between rounds. With ``sequential`` a pass starts from what is in ``out``. ``failures``
    collects, by position, why a client's training failed.
    """

    model: Model
    pool: Pool
    names: tuple[str, ...]
    sent: Sent
    rows: Array
    clients: Array
    key: Key
    out: Stack
    sequential: bool = False
    placed: Array = field(default_factory=lambda: np.ones(0, dtype=bool))
    kept: dict[str, Array] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def start(self, positions: int | Array) -> Stack:
        """Return the models from which a pass starts: those received, or the results of the pass before."""
        return self.out.take(positions) if self.sequential else self.sent.take(self.rows[positions])

    def batches(self, position: int, fit: Fit, number: int) -> Batches:
        """Draw the minibatches of one client in pass ``number``, from the half of its data that the pass is on."""
        client = self.clients[position]
        name, examples = self.names[client], int(self.pool.sizes[client])
        drawn = draw(examples, fit, self.key.generator(name, "batches", number))
        if fit.half is None:
            return drawn
        return Batches(half_of(examples, fit, self.key.generator(name, "halves"))[drawn.order], drawn.bounds)

    def dropout(self, position: int, number: int) -> int:
        """Return the seed of one client's dropout in pass ``number``."""
        return self.key.number(self.names[self.clients[position]], "dropout", number)

    def received(self, positions: int | Array) -> Received:
        """Return what the penalty terms of a pass may read."""
        device = self.pool.like.device
        models, buffers = (torch.from_numpy(part).to(device) for part in self.sent.models)
        references = models[:0] if self.sent.references is None else torch.from_numpy(self.sent.references.params)
        rows, placed = (torch.as_tensor(part[positions], device=device) for part in (self.rows, self.placed))
        return Received(models, buffers, references.to(device), rows, placed)

    def momentum(self, positions: int | Array, fit: Fit) -> Tensor:
        """Return the momenta that clients have kept, zero at first."""
        nothing = np.zeros(self.model.layout.size, self.sent.models.params.dtype)
        rows = np.stack([self.kept.get(name, nothing) for name in self._momentum_names(positions, fit)])
        return torch.from_numpy(rows[0] if isinstance(positions, int) else rows).to(self.pool.like.device)

    def rate(self, fit: Fit) -> float:
        """Return the learning rate of this round; before round 0 it is that of round 0."""
        return (self.model.default_lr if fit.lr is None else fit.lr) * fit.lr_decay ** max(self.key.round, 0)

    def keep(self, positions: int | Array, fit: Fit, trainer: Trainer) -> None:
        """Write the trained part into ``out``, and the momenta into ``kept`` where the pass keeps them."""
        layout = self.model.layout
        targets = [(self.out.params, layout.part(fit.part), trainer.params)]
        if layout.buffer_size:
            targets.append((self.out.buffers, layout.buffer_part(fit.part), trainer.buffers))
        for rows, part, values in targets:
            if isinstance(positions, int):  # torch's copy lets other threads run meanwhile
                torch.from_numpy(rows[positions])[part] = values.cpu()[part]
            else:
                where = (positions, part) if isinstance(part, slice) else np.ix_(positions, part)
                rows[where] = values.cpu().numpy()[..., part]
        if fit.keeps is not None:
            self.keep_momenta(positions, fit, np.atleast_2d(trainer.momentum(fit).cpu().numpy()))

    def keep_momenta(self, positions: int | Array, fit: Fit, momenta: Array) -> None:
        """Keep the momenta with which a pass ended; one that diverged is forgotten."""
        for name, row in zip(self._momentum_names(positions, fit), momenta, strict=True):
            self.kept.pop(name, None)
            if np.isfinite(row).all():
                self.kept[name] = row

    def _momentum_names(self, positions: int | Array, fit: Fit) -> list[str]:
        return [f"{fit.keeps}/{fit.part}/{self.names[client]}" for client in np.atleast_1d(self.clients[positions])]


def train(work: Work, fit: Fit, number: int, plan: Plan, workers: Workers) -> Array:
    """Train pass ``number`` of every client and return each client's mean minibatch loss."""
    count = len(work.clients)
    if plan.kind == "lockstep":
        together = groups(work, fit, plan.group)
        parts = workers.map(lambda positions: _train_group(work, fit, number, positions, workers), together)
        loss = np.empty(count)
        loss[np.concatenate(together)] = np.concatenate(parts)
        return loss
    run = workers.here if plan.kind == "single" else workers.map
    return np.array(run(lambda position: _train_one(work, fit, number, position, workers), range(count)))


def groups(work: Work, fit: Fit, size: int) -> list[Array]:
    """Return the positions of clients in groups of about ``size`` with similar numbers of steps: few wait for long."""
    sizes = work.pool.sizes[work.clients].tolist()
    order = np.argsort([-fit.minibatches(n) for n in sizes], kind="stable")
    fitting = DRAWN // max((fit.examples_passed(n) for n in sizes), default=1)
    return [np.sort(group) for group in np.array_split(order, -(-len(order) // max(1, min(size, fitting))))]


def trainer_for(work: Work, workers: Workers, group: int | None = None) -> Trainer:
    """Return this thread's trainer for one client, or for a group of clients."""
    like = work.pool.like
    trainer: Trainer = workers.local(("train", group, like.dtype), lambda: Trainer(work.model, like, group))
    return trainer


def _train_one(work: Work, fit: Fit, number: int, position: int, workers: Workers) -> float:
    """Train one client alone; if it fails the reason is noted, and the others go on."""
    try:
        trainer, begin = trainer_for(work, workers), work.start(position)
        trainer.seed_dropout(work.dropout(position, number))
        trainer.buffers.copy_(torch.from_numpy(begin.buffers))
        start = torch.from_numpy(begin.params).to(work.pool.like.device)
        first = int(work.pool.offsets[work.clients[position]])
        batches = _batches_of_one(work.pool, work.batches(position, fit, number), first)
        return float(_fit(work, fit, trainer, position, start, batches))
    except (RuntimeError, ValueError) as error:
        work.failures[position] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return 0.0


def _train_group(work: Work, fit: Fit, number: int, positions: Array, workers: Workers) -> Array:
    """Train a group of clients in lockstep and return their losses."""
    trainer = trainer_for(work, workers, len(positions))
    drawn = [work.batches(position, fit, number) for position in positions]
    start = torch.from_numpy(work.start(positions).params).to(work.pool.like.device)
    loss = _fit(work, fit, trainer, positions, start, batches_of_group(work, positions, drawn))
    return loss.cpu().numpy().astype(np.float64)


def _fit(
    work: Work, fit: Fit, trainer: Trainer, positions: int | Array, start: Tensor, batches: Iterator[Batch]
) -> Tensor:
    """Train from ``start`` with what the pass reads and goes on from, keep the results and return the loss."""
    received = work.received(positions) if fit.terms else NOTHING
    momentum = None if fit.keeps is None else work.momentum(positions, fit)
    loss = trainer.fit(start, fit, work.rate(fit), batches, received=received, momentum=momentum)
    work.keep(positions, fit, trainer)
    return loss


@dataclass(frozen=True)
class Batches:
    """The minibatches of one client: number q is ``order[bounds[q]:bounds[q+1]]``, row numbers of its examples."""

    order: Array
    bounds: Array

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def rows(self, step: int) -> Array:
        """Return the row numbers of one minibatch."""
        part: Array = self.order[self.bounds[step] : self.bounds[step + 1]]
        return part


def draw(examples: int, fit: Fit, rng: np.random.Generator) -> Batches:
    """Cut shuffled epochs into minibatches; the last of an epoch may be smaller, none is padded.

    >>> b = draw(5, Fit(steps=4, batch=2), np.random.default_rng(0))
    >>> [len(b.rows(q)) for q in range(len(b))]
    [2, 2, 1, 2]
    """
    wanted, seen = fit.minibatches(examples), fit.distinct_examples(examples)
    epoch = -(-seen // fit.batch)
    epochs = -(-wanted // epoch)
    order = np.concatenate([rng.permutation(seen) for _ in range(epochs)])
    ends = np.minimum(np.arange(1, epoch + 1) * fit.batch, seen)
    bounds = (ends[None, :] + seen * np.arange(epochs)[:, None]).ravel()[:wanted]
    return Batches(order, np.concatenate([[0], bounds]))


def half_of(examples: int, fit: Fit, rng: np.random.Generator) -> Array:
    """Return the examples of the half of a client's data that a pass is confined to.

    >>> halves = [half_of(5, Fit(half=half), np.random.default_rng(1)) for half in (0, 1)]
    >>> sorted(np.concatenate(halves).tolist())
    [0, 1, 2, 3, 4]
    """
    everything, seen = rng.permutation(examples), fit.distinct_examples(examples)
    half: Array = everything[-seen:] if fit.half else everything[:seen]
    return half


def _batches_of_one(pool: Pool, batches: Batches, first: int) -> Iterator[Batch]:
    """Yield one client's minibatches; several are gathered at a time, which holds the interpreter less often."""
    step = max(1, GATHERED * len(batches) // max(1, len(batches.order) * pool.example_bytes))
    for begin in range(0, len(batches), step):
        bounds = batches.bounds[begin : begin + step + 1].tolist()
        x, y = pool.take(batches.order[bounds[0] : bounds[-1]] + first)
        for a, b in pairwise(bounds):
            yield Batch(x[a - bounds[0] : b - bounds[0]], y[a - bounds[0] : b - bounds[0]])


def batches_of_group(work: Work, positions: Array, batches: list[Batches]) -> Iterator[Batch]:
    """Yield the minibatches of a group of clients side by side."""
    for rows, weights in pad(batches, work.pool.offsets[work.clients[positions]]):
        x, y = work.pool.take(rows)
        weight = torch.from_numpy(weights).to(work.pool.like)
        active = (weight.sum(1, keepdim=True) > 0).to(weight)
        yield Batch(x, y, weight, active)


def pad(batches: list[Batches], starts: Array) -> Iterator[tuple[Array, Array]]:
    """Yield, step by step, pool row numbers ``(G, B)`` of G clients and example weights that sum to 1 for each.

    A client with a smaller minibatch, or that has finished, is padded with its first row at weight 0. A few steps are
    laid out at a time, so that a long pass takes no more memory than a short one.
    """
    steps = max(len(b) for b in batches)
    width = max(int(np.diff(b.bounds).max()) for b in batches)
    some = max(1, PADDED // (width * len(batches)))
    for first in range(0, steps, some):
        shape = (min(some, steps - first), len(batches), width)
        rows, weights = np.broadcast_to(starts[None, :, None], shape).copy(), np.zeros(shape)
        for g, b in enumerate(batches):
            bounds = b.bounds[first : first + shape[0] + 1]
            sizes = np.diff(bounds)
            filled = np.arange(width)[None, :] < sizes[:, None]
            if len(sizes):
                rows[: len(sizes), g][filled] = b.order[bounds[0] : bounds[-1]] + starts[g]
                weights[: len(sizes), g] = filled / sizes[:, None]
        yield from zip(rows, weights, strict=True)
