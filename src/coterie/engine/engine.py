"""The client's work, for one client or thousands: choose, fit, report.

The simulator runs it with all clients, a remote client with its own data: one implementation, so that a simulated
algorithm is the deployed one.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.data.federated import Federated, Split
from coterie.engine import client_columns
from coterie.engine.choice import Choice, choose
from coterie.engine.evaluation import (
    Evaluator,
    LossTable,
    RowsOf,
    bound,
    differences,
    loss_table,
    own_losses,
    predicted,
    rows_of_half,
    rows_of_sample,
)
from coterie.engine.features import learner_of, with_features
from coterie.engine.local_training import Work, train
from coterie.engine.metrics import Metric, find_metric, reported_shape
from coterie.engine.native import native_for, takes
from coterie.engine.plan import Workers, count_threads, make_plan
from coterie.engine.pool import Pool, SpareBlock
from coterie.errors import DataError, UsageError
from coterie.models.combined import mix_outputs
from coterie.models.model import Model
from coterie.models.trunk import Rest
from coterie.outside import reason
from coterie.protocol.client_function import ClientData, compute, declared_shape, find_client_function
from coterie.protocol.replies import Replies
from coterie.protocol.report import Describe, Report, check_bounded
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.target import Target
from coterie.terminal import line
from coterie.textforms import Call
from coterie.typing import Array

LONGEST_REASON = 300
"""The most letters of why a client function failed."""

SPILL = 1 << 30
"""Bytes of client models kept in memory; more than this goes to a temporary file."""


class _Fitted(NamedTuple):
    """The results of local training: a model and a loss for each client, and by position why some have failed."""

    models: Stack
    loss: Array
    failures: dict[int, str]


class _Served(NamedTuple):
    """A model, or several with mixed outputs, and the positions of the clients that it serves."""

    models: Stack
    positions: Array


class Engine:
    """Runs tasks on the data of the clients it holds.

    ``learner`` is the network that is trained and evaluated: the model, or with ``reuse`` the rest behind its frozen
    trunk, of which the features of every example are computed once.
    """

    def __init__(
        self,
        model: Model,
        data: Federated,
        threads: int | None = None,
        *,
        plan: str = "auto",
        device: str = "cpu",
        spill: int = SPILL,
        reuse: bool = True,
    ) -> None:
        self.model, self.data, self.plan, self.spill = model, data, plan, spill
        self.learner = learner_of(model, data) if reuse else model
        self.device = find_device(device)
        self.workers = Workers(count_threads(threads))
        self.native = native_for(self.learner, self.workers, self.device) if plan in ("auto", "native") else None
        self._spare = SpareBlock()
        self._pools: dict[tuple[str, torch.dtype], Pool] = {}
        self._judged: tuple[Split, Pool] | None = None
        self.kept: dict[str, Array] = {}
        """What clients keep to themselves between rounds, by name."""

    def run(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Let clients do a task: choose, fit, report.

        ``clients[i]`` works on the row of ``sent`` that ``rows[i]`` names, unless it chooses. Where the report mixes
        outputs, ``rows[i]`` are several, and each of these models is trained first if the task says so.
        """
        with self.model.blamed("fails on the clients' data") if self.model.is_users else nullcontext():
            asked = np.asarray(rows)
            choice = self._choose(task, sent, clients, key) if task.choose else Choice(asked)
            members, placed = np.atleast_2d(choice.rows.T), sent.names_cluster(np.atleast_2d(asked.T))
            fits = [
                self._fit(task, sent, own, had_cluster, clients, key)
                for own, had_cluster in zip(members if task.fit else (), placed, strict=False)
            ]
            replies = self._report(task, sent, choice, fits, clients, key)
            failures = {i: why for fit in fits for i, why in fit.failures.items()}
            if task.report.describe is not None:
                own = fits[0].models if fits else sent.take(choice.rows)
                described, failed = self._describe(task.report.describe, sent, own, clients, key)
                replies, failures = replace(replies, description=described), {**failures, **failed}
        broken = np.isin(np.arange(len(clients)), list(failures))
        return replies.without(broken, {self.data.names[clients[i]]: why for i, why in failures.items()})

    def _report(self, task: Task, sent: Sent, choice: Choice, fits: list[_Fitted], clients: Array, key: Key) -> Replies:
        """Return what the report names, of the models that clients trained, or else of those that their rows name."""
        report, layout, rows = task.report, self.model.layout, choice.rows
        trained, fields = [fit.models for fit in fits], dict[str, Any]()
        if report.params is not None:
            models = trained[0] if trained else sent.take(rows)
            fields["params"] = models.params[:, layout.part(report.params)]
            fields["buffers"] = models.buffers[:, layout.buffer_part(report.params)]
        if report.losses:
            table = self._reported_losses(task, sent, rows, clients, key)
            fields["losses"] = table.losses
            fields["spreads"] = table.spreads if report.sample else None
        if report.evaluate_on is not None:
            found = self._metrics(report, report.evaluate_on, sent, rows, clients, trained, key)
            fields["metrics"], fields["metric"] = found[:, :4], _named(found, report, self.model.target)
        if fits:
            fields["training_loss"] = np.mean([fit.loss for fit in fits], axis=0)
        examples = self._pool("train", sent.models).sizes[clients]
        return Replies(layout, clients, rows, examples, evaluations=choice.evaluations, **fields)

    def cross_losses(self, stack: Stack, clients: Array, examples: int | None = None) -> Array:
        """Return every model's mean loss on every client's train split (or its first ``examples``), ``(r, K)``."""
        pool, losses = self._pool("train", stack), partial(self._losses_of, stack)
        return loss_table(losses, len(stack), clients, lambda some: pool.rows_of(some, examples), self.workers).losses

    def judge(self, stack: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> Array:
        """Return the metrics of every model, or of these ``rows`` of the stack, on one set of examples, ``(K, 4)``.

        Where a row is several numbers the models of those numbers are mixed.
        """
        pool = self._judged_pool(split, self._like(stack))
        everything = pool.rows_of(np.array([0]))
        found = self.workers.map(
            lambda row: self._served_metrics(stack.take(np.atleast_1d(row)), mix, pool, everything)[0],
            np.arange(len(stack)) if rows is None else rows,
        )
        return np.array(found)

    def _choose(self, task: Task, sent: Sent, clients: Array, key: Key) -> Choice:
        """Let each client choose among the cluster models."""
        work = self._work(task, sent, np.zeros(len(clients), dtype=np.int64), clients, key)
        able = self.native is not None and takes(work.pool)
        plan = make_plan(self.plan, self.learner, len(clients), self.workers.count, native=able)
        slope = None
        if plan.kind == "native" and self.native is not None:
            slope = partial(self.native.slope, sent.models, work.pool)
        cross, losses = partial(self.cross_losses, sent.models, clients), partial(self._losses, sent.models)
        return choose(task, work, cross, losses, plan, self.workers, slope)

    def _fit(self, task: Task, sent: Sent, rows: Array, placed: Array, clients: Array, key: Key) -> _Fitted:
        """Run the passes of a task and merge their parts; collect who failed, and why."""
        self._check_passes(task)
        received = sent.rows
        shape = (len(clients), self.model.layout.size)
        out = Stack(self._spare.take(shape, received.params.dtype, self.spill), received.buffers[rows])
        loss = np.zeros(len(clients))
        work = replace(self._work(task, sent, rows, clients, key), out=out, placed=placed)
        if task.sequential or len(task.fit) > 1 or task.fit[0].part != "all":
            out.params[:] = received.params[rows]
        for number, fit in enumerate(task.fit):
            loss += self._train(work, fit, number + fit.draw) / len(task.fit)
        return _Fitted(out, loss, work.failures)

    def _train(self, work: Work, fit: Fit, number: int) -> Array:
        """Train one pass of every client by the plan that suits it, and return each client's mean minibatch loss."""
        able = self.native is not None and self.native.can_train(work, fit)
        plan = make_plan(self.plan, self.learner, len(work.clients), self.workers.count, native=able)
        if plan.kind == "native" and self.native is not None:
            return self.native.train(work, fit, number)
        return train(work, fit, number, plan, self.workers)

    def _check_passes(self, task: Task) -> None:
        """Refuse penalties on an empty part, and passes that overlap."""
        for term in (term for fit in task.fit for term in fit.terms):
            part = getattr(term, "part", "all")
            if term.strength and not len(self.model.layout.numbers(part)):
                raise UsageError(
                    f"the part {part!r} of model {self.model.text!r} is empty, so a penalty on it would do nothing; "
                    "choose another layer, or name a submodule head"
                )
        names = [slot.name for fit in task.fit for slot in self.model.slots_of(fit.part)]
        if len(set(names)) < len(names):
            parts = ", ".join(fit.part for fit in task.fit)
            raise UsageError(f"the passes train {parts}, which overlap; the parts of a task must be disjoint")

    def _work(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Work:
        return Work(
            model=self.learner,
            pool=self._pool("train", sent.models),
            names=self.data.names,
            sent=sent,
            rows=rows,
            clients=clients,
            key=key,
            out=sent.models.take([]),
            sequential=task.sequential,
            kept=self.kept,
        )

    def _reported_losses(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> LossTable:
        """Return the losses of the cluster models, on all train data or on a part of it."""
        report = task.report
        check_bounded(report.bounded, self.model.classes)
        pool = self._pool("train", sent.models)
        rows_of: RowsOf = pool.rows_of
        if report.sample is not None:
            rows_of = rows_of_sample(report.sample, pool, self.data.names, key)
        elif report.half is not None:
            rows_of = rows_of_half(report.half, pool, self.data.names, key)
        losses = partial(self._losses_of, sent.models, bounded=report.bounded)
        spreads = report.sample is not None
        table = loss_table(losses, len(sent.models), clients, rows_of, self.workers, spreads=spreads)
        if not report.differences:
            return table
        one = partial(self._losses, sent.rows, bounded=report.bounded)
        return differences(table, own_losses(table, rows, one, clients, rows_of, self.workers))

    def _losses_of(self, stack: Stack, rows: Array, where: Array, bounded: str | None = None) -> Array:
        """Return the losses of several models on these rows of the clients' train data, ``(models, rows)``."""
        pool = self._pool("train", stack)
        if self.native is not None and takes(pool) and bounded is None:
            return self.native.losses(stack, rows, pool, where)
        return np.stack([self._losses(stack, row, where, bounded) for row in rows.tolist()])

    def _losses(self, stack: Stack, row: int, where: Array, bounded: str | None = None) -> Array:
        """Return the loss of one model, as trained or ``bounded``, on these rows of the clients' train data."""
        pool = self._pool("train", stack)
        if self.native is not None and takes(pool) and bounded is None:
            own: Array = self.native.losses(stack, np.array([row]), pool, where)[0]
            return own
        found = predicted(*self._outputs(stack, row, pool, where), self.model.target)
        return found.losses if bounded is None else bound(found, pool.y.numpy()[where], bounded, self.model.target)

    def _describe(
        self, describe: Describe, sent: Sent, own: Stack, clients: Array, key: Key
    ) -> tuple[Array, dict[int, str]]:
        """Return the array of a client function for each client, and by position why it failed at some."""
        shape = declared_shape(describe, self.model, len(sent.models))
        function, call = find_client_function(describe.function)
        everyone = sent.models if describe.all_models else sent.models.take([])
        models = tuple(self.model.with_row(*row) for row in zip(*everyone, strict=True))
        found, failures = np.zeros((len(clients), *shape)), dict[int, str]()

        def one(position: int) -> None:
            x, y = self.data.train.of(clients[position])
            client = ClientData(
                x,
                y,
                self.model.classes,
                make_model=partial(self.model.with_row, own.params[position], own.buffers[position]),
                models=models,
                make_rng=partial(key.generator, self.data.names[clients[position]], "describe", describe.function),
                attributes=self.data.attributes_of(clients[position]),
            )
            try:
                found[position] = compute(function, call, client, shape)
            except Exception as error:  # a client function may fail in any way, and at some clients only
                failures[position] = line(f"{describe.function} failed: {reason(error)}", LONGEST_REASON)

        self.workers.map(one, range(len(clients)))
        return found, failures

    def _metrics(
        self, report: Report, split: str, sent: Sent, rows: Array, clients: Array, trained: list[Stack], key: Key
    ) -> Array:
        """Return each client's metrics on one of its splits, with its trained models or those that its row names."""
        pool, served = self._pool(split, sent.models), np.atleast_2d(rows.T).T
        if trained:
            own = [[models.take(slice(i, i + 1)) for models in trained] for i in range(len(clients))]
            jobs = [_Served(reduce(Stack.plus, models), np.array([i])) for i, models in enumerate(own)]
        else:
            shards = np.array_split(np.arange(len(clients)), self.workers.count)
            own_shards = [(r, s[(served[s] == r).all(1)]) for s in shards for r in np.unique(served[s], axis=0)]
            jobs = [_Served(sent.take(row), positions) for row, positions in own_shards]
        metric = None if report.metric is None else find_metric(report.metric)
        width = 0 if metric is None else math.prod(metric[0].shape(self.model.target))
        found = np.empty((len(clients), 4 + width))
        rows_of = pool.rows_of if report.half is None else rows_of_half(report.half, pool, self.data.names, key)
        parts = self.workers.map(
            lambda j: self._served_metrics(j.models, report.mix, pool, rows_of(clients[j.positions]), metric), jobs
        )
        for job, part in zip(jobs, parts, strict=True):
            found[job.positions] = part
        return found

    def _served_metrics(
        self,
        models: Stack,
        mix: str | None,
        pool: Pool,
        rows: tuple[Array, Array],
        metric: tuple[Metric, Call] | None = None,
    ) -> Array:
        """Return the metrics of clients that are served one model, or the mixture of several, and ``metric`` beside.

        ``rows``: on which rows of the pool, and the offset at which each client's begin.
        """
        where, offsets = rows
        target, truth = self.model.target, pool.y.numpy()[where]
        each = [self._outputs(models, row, pool, where) for row in range(len(models))]
        outputs = each[0][0] if mix is None else mix_outputs([own for own, _ in each], mix, target)
        found = client_columns.table(predicted(outputs, each[0][1], target), truth, offsets, target)
        if metric is None:
            return found
        named, call = metric
        values = outputs.cpu().numpy()
        own = [named.reported(values[start:stop], truth[start:stop], call) for start, stop in pairwise(offsets)]
        return np.column_stack([found, np.stack(own)])

    def _outputs(self, stack: Stack, row: int, pool: Pool, where: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs of one model for these rows of a pool, by this thread's evaluator, and the truth."""
        if self.native is not None and takes(pool):
            return self.native.outputs(stack, row, pool, where)
        like = pool.like
        evaluator: Evaluator = self.workers.local(("evaluate", like.dtype), lambda: Evaluator(self.learner, like))
        params, buffers = torch.from_numpy(stack.params[row]), torch.from_numpy(stack.buffers[row])
        return evaluator.outputs(params, buffers, pool, where)

    def _pool(self, split: str, stack: Stack) -> Pool:
        """Return the examples of a split in the precision of these models."""
        like = self._like(stack)
        if (split, like.dtype) not in self._pools:
            found: Split | None = getattr(self.data, split)
            if found is None:
                raise DataError(f"there is no {split} split; ask for one with --validation 0.1")
            self._pools[split, like.dtype] = self._new_pool(found, like)
        return self._pools[split, like.dtype]

    def _judged_pool(self, split: Split, like: torch.Tensor) -> Pool:
        """Return the examples of a split that belongs to no client; the last one is kept."""
        if self._judged is None or self._judged[0] is not split or self._judged[1].like.dtype != like.dtype:
            self._judged = split, self._new_pool(split, like)
        return self._judged[1]

    def _new_pool(self, split: Split, like: torch.Tensor) -> Pool:
        """Return the examples of a split, or their features if the learner takes these."""
        if not isinstance(self.learner, Rest):
            return Pool(split, like)
        return Pool(with_features(split, self.learner, like, self.workers), like)

    def _like(self, stack: Stack) -> torch.Tensor:
        """Return an empty tensor of the models' precision on the engine's device."""
        return torch.empty(0, dtype=torch.from_numpy(stack.params[:1]).dtype, device=self.device)


def _named(found: Array, report: Report, target: Target) -> Array | None:
    """Return the columns of the metric that a report names, behind the four that all have; None if it names none."""
    if report.metric is None:
        return None
    return found[:, 4:].reshape(len(found), *reported_shape(report.metric, target))


def find_device(name: str) -> torch.device:
    """Return a torch device that exists, and keeps the numbers it is given, which ``meta`` does not."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device {name!r} cannot be used here ({reason}); use --device cpu") from None
    return device
