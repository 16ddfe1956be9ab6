"""The plan ``native``: passes of local training and evaluations as tasks of the compiled library."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from ctypes import Structure, byref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.engine.local_training import Work
from coterie.engine.plan import Workers
from coterie.engine.pool import Pool
from coterie.models.layout import Layout
from coterie.models.model import Model
from coterie.native.chain import Chain, Kind, chain_of
from coterie.native.library import Evaluation, Examples, Library, Slope, Training, find_library, is_switched_off
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Near, Others, Proximal, Term
from coterie.terminal import warn_once
from coterie.typing import Array

TRAINED, TRAINING = 1, 2
"""The bits of a layer's mode: its parameters are trained; it behaves as in training."""

PART = 96
"""Examples that an evaluation takes at a time: the activations of small networks stay in a core's cache."""

FAILURES = {
    1: "ValueError: Expected more than 1 value per channel when training",
    2: "MemoryError: the compiled engine found no memory",
}
"""What the library's answers mean; the first is what torch says of a minibatch too small for a batch normalisation."""


def native_for(model: Model, workers: Workers, device: torch.device) -> Native | None:
    """Return the network in the compiled library; None if there is no library, or the network is no plain chain."""
    chain = None if is_switched_off() or device.type != "cpu" else chain_of(model)
    library = None if chain is None else find_library()
    if chain is not None and library is None:
        warn_once(
            "coterie was installed without its compiled engine, so PyTorch trains, several times slower; with a C++ "
            "compiler, python -m coterie.native.compile makes it (COTERIE_NATIVE=off silences this)"
        )
    return None if chain is None or library is None else Native(library, chain, workers)


class Native:
    """A network's chain in the compiled library, which has a worker for each thread and precision."""

    def __init__(self, library: Library, chain: Chain, workers: Workers) -> None:
        self.library, self.chain, self.workers = library, chain, workers

    def can_train(self, work: Work, fit: Fit) -> bool:
        """Return whether the library reads these examples and knows all terms of a pass."""
        return takes(work.pool) and self.knows(fit) and len(work.model.layout.numbers(fit.part)) > 0

    def knows(self, fit: Fit) -> bool:
        """Return whether the library knows all terms of a pass."""
        return all(isinstance(term, Proximal | Near | Others) for term in fit.terms)

    def train(self, work: Work, fit: Fit, number: int) -> Array:
        """Train pass ``number`` of every client and return each client's mean minibatch loss."""
        one_pass = _Pass(self.chain, work, fit, number)
        self._share(self.library.train, one_pass.task, work.out.params.dtype)
        for position in np.flatnonzero(one_pass.status).tolist():
            work.failures[position] = FAILURES[int(one_pass.status[position])]
        if fit.keeps is not None:
            work.keep_momenta(np.arange(len(work.clients)), fit, one_pass.momenta)
        return one_pass.losses

    def outputs(self, stack: Stack, row: int, pool: Pool, where: Array) -> tuple[Tensor, Tensor]:
        """Return the outputs of one model for these rows of a pool, computed in this thread, and the truth."""
        found = np.empty((len(where), self.chain.model.target.width), stack.params.dtype)
        self._evaluate(stack, np.array([row]), pool, where, outputs=found)
        return torch.from_numpy(found), pool.y[torch.from_numpy(where)]

    def losses(self, stack: Stack, rows: Array, pool: Pool, where: Array) -> Array:
        """Return the losses of these models on these rows of a pool, ``(models, rows)``, computed in this thread."""
        found = np.empty((len(rows), len(where)), stack.params.dtype)
        self._evaluate(stack, rows, pool, where, losses=found)
        return found

    def slope(self, stack: Stack, pool: Pool, row: int, where: Array, dropout: int) -> tuple[float, Array]:
        """Return the loss of a model on a minibatch in training mode and its gradient, computed in this thread."""
        gradient, loss = np.zeros(self.chain.model.layout.size, stack.params.dtype), np.zeros(1)
        own = stack.take(slice(row, row + 1)).contiguous()
        task = _Task(Slope(_examples(pool), dropout_seed=dropout, count=len(where)))
        task.set(rows=_whole(where), params=own.params, buffers=own.buffers, gradient=gradient, loss=loss)
        status = self.library.slope(self._worker(stack.params.dtype), byref(task.structure))
        if status:
            raise ValueError(FAILURES[status])
        return float(loss[0]), gradient

    def _evaluate(self, stack: Stack, rows: Array, pool: Pool, where: Array, **results: Array) -> None:
        models = stack.contiguous()
        task = _Task(Evaluation(_examples(pool), count=len(where), part=PART, model_count=len(rows)))
        task.set(rows=_whole(where), models=_whole(rows), params=models.params, buffers=models.buffers, **results)
        task.set(next=np.zeros(1, np.int64), stop=np.zeros(1, np.int32))
        if self.library.evaluate(self._worker(stack.params.dtype), byref(task.structure)):
            raise MemoryError(FAILURES[2])

    def _share(self, function: Callable[..., int], task: _Task, dtype: np.dtype) -> None:
        """Let all threads work on one task; if this one is interrupted they stop after the client they are at."""
        task.set(next=np.zeros(1, np.int64), stop=np.zeros(1, np.int32))
        try:
            found = self.workers.map(
                lambda _: function(self._worker(dtype), byref(task.structure)), range(self.workers.count)
            )
        except BaseException:
            task.arrays["stop"][0] = 1
            raise
        if any(found):
            raise MemoryError(FAILURES[2])

    def _worker(self, dtype: np.dtype) -> int:
        """Return this thread's worker for a precision."""
        held: _Worker = self.workers.local(
            ("native", dtype), lambda: _Worker(self.library, self.chain, np.dtype(dtype).itemsize)
        )
        return held.address


class _Worker:
    """A worker of the library, freed with this object."""

    def __init__(self, library: Library, chain: Chain, size: int) -> None:
        address = library.worker(byref(chain.spec), size, library.wanted)
        if not address:
            raise MemoryError(FAILURES[2])
        self.address: int = address
        weakref.finalize(self, library.free, address)


class _Task:
    """A structure of the library and the arrays that it points to, which live as long."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.arrays: dict[str, Array] = {}

    def set(self, **arrays: Array) -> None:
        """Let fields of the structure point to arrays."""
        for name, array in arrays.items():
            assert array.flags.c_contiguous, f"{name} must lie in one piece"
            self.arrays[name] = array
            setattr(self.structure, name, array.ctypes.data)


def takes(pool: Pool) -> bool:
    """Return whether the library can read the examples of a pool where they are."""
    precise = pool.x.dtype == pool.like.dtype and pool.y.dtype in (torch.int64, pool.like.dtype)
    return precise and pool.as_is and pool.x.is_contiguous() and pool.y.is_contiguous()


def _examples(pool: Pool) -> Examples:
    truth = {"classes" if pool.y.dtype == torch.int64 else "targets": pool.y.data_ptr()}
    return Examples(pool.x.data_ptr(), **truth)


def _whole(numbers: Sequence[Any] | Array) -> Array:
    return np.ascontiguousarray(numbers, np.int64)


class _Pass:
    """One pass as a task of the library, with the arrays into which it writes."""

    def __init__(self, chain: Chain, work: Work, fit: Fit, number: int) -> None:
        count = len(work.clients)
        self.losses, self.status = np.zeros(count), np.zeros(count, np.int32)
        structure = Training(
            _examples(work.pool),
            clients=count,
            batch=fit.batch,
            half=-1 if fit.half is None else fit.half,
            lr=work.rate(fit),
            momentum=fit.momentum if fit.optimizer == "sgd" else 0.0,
            decay=fit.weight_decay,
            pull=fit.pull,
            adam=fit.optimizer == "adam",
        )
        self.task = _Task(structure)
        self.task.set(losses=self.losses, status=self.status)
        self._set_clients(work, fit, number)
        self._set_models(work, fit)
        self._set_part(chain, work.model.layout, fit.part)
        self._set_penalties(work, fit)
        if any(link.kind is Kind.DROPOUT for _, link in chain.links):
            seeds = [work.dropout(position, number) for position in range(count)]
            self.task.set(dropout_seeds=np.array(seeds, np.uint64))

    def _set_clients(self, work: Work, fit: Fit, number: int) -> None:
        """Set where each client's examples are, how many minibatches it sees, and the seeds of its draws."""
        sizes = work.pool.sizes[work.clients]
        names = [work.names[client] for client in work.clients]
        self.task.set(
            first=_whole(work.pool.offsets[work.clients]),
            sizes=_whole(sizes),
            steps=_whole([fit.minibatches(n) for n in sizes.tolist()]),
            seeds=np.array([work.key.number(name, "batches", number) for name in names], np.uint64),
        )
        if fit.half is not None:
            self.task.set(half_seeds=np.array([work.key.number(name, "halves") for name in names], np.uint64))

    def _set_models(self, work: Work, fit: Fit) -> None:
        """Set from which rows clients start, and where their results go."""
        rows = work.sent.rows.contiguous()
        begin, numbers = (work.out, np.arange(len(work.clients))) if work.sequential else (rows, work.rows % len(rows))
        self.task.set(start_params=begin.params, start_buffers=begin.buffers, start_rows=_whole(numbers))
        self.task.set(out_params=work.out.params, out_buffers=work.out.buffers)
        if fit.keeps is not None:
            self.momenta = work.momentum(np.arange(len(work.clients)), fit).numpy()
            self.task.set(momenta=self.momenta)

    def _set_part(self, chain: Chain, layout: Layout, part: str) -> None:
        """Set which ranges are trained, and how each layer behaves."""
        model = chain.model
        begin, end = _ranges(layout.numbers(part))
        first, last = _ranges(layout.numbers(part, buffers=True))
        self.task.structure.trained, self.task.structure.trained_buffers = len(begin), len(first)
        self.task.set(trained_begin=begin, trained_end=end, buffer_begin=first, buffer_end=last)
        inside = {slot.name for slot in model.slots_of(part)}
        modes = []
        for name, link in chain.links:
            trained = any(f"{name}.{inner}".lstrip(".") in inside for _, inner in link.tensors)
            still = link.kind is Kind.BATCH_NORM and part != "all" and name not in model.homes[part]
            modes.append(TRAINED * trained + TRAINING * (not still))
        self.task.set(modes=np.array(modes, np.int32))

    def _set_penalties(self, work: Work, fit: Fit) -> None:
        """Set the terms of the pass, each as ``strength / 2 * |w - anchor|^2`` on ranges of the parameters."""
        anchors = [anchor for term in fit.terms for anchor in _anchors(term, work)]
        if not anchors:
            return
        ranges = [
            (i, *pair)
            for i, a in enumerate(anchors)
            for pair in zip(*_ranges(work.model.layout.numbers(a.part)), strict=True)
        ]
        which, begin, end = map(_whole, zip(*ranges, strict=True))
        self.task.structure.anchors, self.task.structure.ranges = len(anchors), len(ranges)
        shape = (len(work.clients), len(anchors))
        rows = np.array([-1 if a.model is None else i for i, a in enumerate(anchors)])
        nothing = np.zeros(work.model.layout.size, work.out.params.dtype)
        self.task.set(
            strengths=np.ascontiguousarray(np.stack([a.strengths for a in anchors], axis=1), np.float64),
            anchor_rows=_whole(np.broadcast_to(rows, shape)),
            anchor_params=np.stack([nothing if a.model is None else a.model for a in anchors]),
            range_anchor=which,
            range_begin=begin,
            range_end=end,
        )


class _Anchor(NamedTuple):
    """A model to which clients are pulled, the start of each if None, how strongly each of them, and in which part."""

    strengths: Array
    model: Array | None = None
    part: str = "all"


def _anchors(term: Term, work: Work) -> list[_Anchor]:
    """Return the models to which a term pulls; terms about clusters leave clients alone that have none."""
    ones = np.ones(len(work.clients))
    if isinstance(term, Proximal):
        return [_Anchor(ones * term.strength)]
    if isinstance(term, Near):
        assert work.sent.references is not None, "a term near the mean needs it as the last reference"
        return [_Anchor(work.placed * term.strength, work.sent.references.params[-1], term.part)]
    assert isinstance(term, Others), "a pass with another term is not trained here"
    shares = [work.placed * (work.rows != k) * share * term.strength for k, share in enumerate(term.shares)]
    return [_Anchor(own, work.sent.models.params[k], term.part) for k, own in enumerate(shares)]


def _ranges(numbers: Array) -> tuple[Array, Array]:
    """Return where runs of adjacent numbers begin and end.

    >>> [part.tolist() for part in _ranges(np.array([2, 3, 4, 8]))]
    [[2, 8], [5, 9]]
    """
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    runs = [run for run in np.split(numbers, breaks) if len(run)]
    return _whole([run[0] for run in runs]), _whole([run[-1] + 1 for run in runs])
