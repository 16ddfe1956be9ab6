"""The clients divided among Ray workers, each a process with the same engine: large simulations in one trust domain.

The numbers are those of the simulator: every draw has an address, and the plan is decided here for all workers.
Messages are pickled, so the workers must be trusted like this process itself.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.data.array_memory import allocate
from coterie.data.federated import Federated, Split
from coterie.engine.engine import SPILL, Engine
from coterie.engine.metrics import reported_shape
from coterie.engine.plan import count_threads, make_plan
from coterie.engine.pool import SpareBlock
from coterie.errors import FederationError, UsageError
from coterie.models.model import Model
from coterie.protocol import message
from coterie.protocol.client_function import declared_shape
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array

PATIENCE = 300
"""Seconds that workers may take to start; on a busy cluster they would wait without end."""

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


class Worker:
    """The engine in a Ray worker, on the data of its clients, with one thread."""

    def __init__(self, model: Model, data: Federated, spill: int) -> None:
        torch.set_num_threads(1)
        # A stack is in memory that all workers share, and the engine only reads it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        everybody = data.select(range(len(data)))
        self.engine = Engine(model, everybody, threads=1, spill=spill)

    def run(
        self, plan: str, task: Task, sent: Sent, rows: Array, clients: Array, key: Key
    ) -> tuple[message.Arrays, dict[str, str]]:
        """Return the rows of the clients that answered, and why the others did not."""
        self.engine.plan = plan
        reply = self.engine.run(task, sent, rows, clients, key)
        return {"clients": reply.clients, **message.up(reply)}, dict(reply.missing)


class Asked(NamedTuple):
    """An exchange with one worker: its clients' positions among all asked, their numbers in the worker, the reply."""

    positions: Array
    numbers: Array
    reply: Any


class RayFederation:
    """A federation of clients in ``threads`` Ray workers with one thread each (default: all cores).

    Ray is started with the first exchange, unless ``RAY_ADDRESS`` names a cluster or the process has joined one, and
    ``close`` ends what was started. The data are in memory twice, here and in the workers. When a worker dies its
    clients are missing from one exchange; the next exchange starts another worker.
    """

    def __init__(
        self,
        data: Federated,
        model: Model,
        threads: int | None = None,
        *,
        plan: str = "auto",
        device: str = "cpu",
        spill: int = SPILL,
    ) -> None:
        self.ray = find_ray()
        if device != "cpu":
            raise UsageError(f"device is {device!r}; Ray workers compute on the cpu: use --runtime simulator")
        self.data, self.model, self.threads, self.plan, self.spill = data, model, threads, plan, spill
        if not self._is_joined():
            count_threads(threads)
        self.engine = Engine(model, data, plan=plan)
        self.homes: Array | None = None
        self._workers: dict[int, Any] = {}
        self._spare = SpareBlock()
        self._started = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the clients' names."""
        return self.data.names

    @property
    def kept(self) -> dict[str, Array]:
        """Return nothing: workers keep nothing between rounds."""
        return {}

    def present(self, number: int) -> Array:
        """Return the positions of all clients: everybody takes part in every round."""
        return np.arange(len(self.names))

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Let every worker run its clients; the models are sent once, to the memory that workers share."""
        homes = self._open()
        wanted = np.unique(homes[clients]).tolist()
        self._start(wanted)
        native = self.engine.native is not None and all(self.engine.native.knows(fit) for fit in task.fit)
        plan = make_plan(self.plan, self.engine.learner, len(clients), int(homes.max()) + 1, native=native).kind
        shared = self.ray.put(sent.contiguous())
        asked = {}
        for home in wanted:
            positions = np.flatnonzero(homes[clients] == home)
            numbers = np.searchsorted(np.flatnonzero(homes == home), clients[positions])
            reply = self._workers[home].run.remote(plan, task, shared, rows[positions], numbers, key)
            asked[home] = Asked(positions, numbers, reply)
        served = np.size(rows) // max(len(clients), 1)
        described = declared_shape(task.report.describe, self.model, len(sent.models))
        measured = reported_shape(task.report.metric, self.model.target)
        form = message.form(task, sent, self.model.layout, served=served, described=described, measured=measured)
        replies = message.drop_broken(self._collect(form, clients, asked), self.names)
        return replace(replies, cost=message.cost(task, sent, replies, len(clients)))

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> Array:
        """Return the metrics of models on examples that belong to no client, computed here."""
        return self.engine.judge(models, split, rows, mix)

    def close(self) -> None:
        """End the workers, and Ray if it was started here; another exchange would start them again."""
        for worker in self._workers.values() if self.ray.is_initialized() else ():
            self.ray.kill(worker)
        self._workers.clear()
        if self._started:
            self.ray.shutdown()
        self._started, self.homes = False, None

    def _is_joined(self) -> bool:
        """Return whether there is a Ray cluster to use; otherwise one must be started."""
        return bool(self.ray.is_initialized() or os.environ.get("RAY_ADDRESS"))

    def _open(self) -> Array:
        """Return the worker of every client; join or start Ray in the first call."""
        if self.homes is None:
            self.homes = deal(self.data.train.sizes, self._cluster())
        return self.homes

    def _cluster(self) -> int:
        """Join a Ray cluster, or start one; return the number of workers."""
        if not self._is_joined():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            count = count_threads(self.threads)
            self.ray.init(address="local", num_cpus=count, include_dashboard=False, **QUIET)
            self._started = True
            return count
        if not self.ray.is_initialized():
            self.ray.init(**QUIET)
            self._started = True
        most = int(self.ray.cluster_resources().get("CPU", 0))
        count = most if self.threads is None else self.threads
        if not 1 <= count <= most:
            raise UsageError(f"threads is {count}; it must be between 1 and {most} on this Ray cluster")
        return count

    def _start(self, wanted: Sequence[int]) -> None:
        """Start the wanted workers that are not there: at first all, later those that died."""
        assert self.homes is not None, "Ray is there before its workers"
        kind = self.ray.remote(num_cpus=1)(Worker)
        spill = self.spill // (int(self.homes.max()) + 1)
        ready = {}
        for home in set(wanted) - set(self._workers):
            shard = self.data.select(np.flatnonzero(self.homes == home).tolist())
            self._workers[home] = kind.remote(self.model, shard, spill)
            ready[home] = self._workers[home].__ray_ready__.remote()
        _, late = self.ray.wait(list(ready.values()), num_returns=len(ready), timeout=PATIENCE) if ready else ([], [])
        if late:
            raise FederationError(
                f"{len(late)} of {len(ready)} Ray workers did not start in {PATIENCE} s; is the cluster busy? "
                "lower --threads"
            )

    def _collect(self, form: message.Form, clients: Array, asked: Mapping[int, Asked]) -> Replies:
        """Return the rows of all clients in the order asked; models beyond the limit go to a temporary file."""
        rows: dict[str, Any] = {
            name: (self._spare.take if name == "params" else allocate)(
                (len(clients), *each.shape[1:]), each.kind, self.spill
            )
            for name, each in form.items()
        }
        missing: dict[str, str] = {}
        answered = np.zeros(len(clients), dtype=bool)
        for home, (positions, numbers, reply) in asked.items():
            found, lost = self._fetch(home, positions, reply, clients)
            missing |= lost
            there = positions[np.isin(numbers, found.pop("clients", ()))]
            answered[there] = True
            for name, part in found.items():
                rows[name][there] = part
        return Replies(self.model.layout, clients, **rows).without(~answered, missing)

    def _fetch(self, home: int, positions: Array, reply: Any, clients: Array) -> tuple[message.Arrays, dict[str, str]]:
        """Return the reply of a worker; if it died all its clients are missing, and it is forgotten."""
        failures = self.ray.exceptions
        try:
            found, missing = self.ray.get(reply)
        except failures.RayTaskError as error:
            raise error.cause from error
        except (failures.RayActorError, failures.ObjectLostError, failures.OutOfMemoryError) as error:
            self.ray.kill(self._workers.pop(home))
            return {}, dict.fromkeys((self.names[c] for c in clients[positions]), f"its Ray worker died: {_why(error)}")
        return dict(found), missing


def find_ray() -> Any:
    """Import ray, which is optional."""
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise UsageError("--runtime ray needs the ray package; pip install 'coterie[ray]'") from None


def deal(sizes: Array, workers: int) -> Array:
    """Return the worker of every client, dealt in turn from the largest to the smallest, so that loads are similar.

    >>> deal(np.array([10, 40, 20, 30]), 2).tolist()
    [1, 0, 0, 1]
    """
    homes = np.empty(len(sizes), dtype=np.int64)
    homes[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes)) % workers
    return homes


def _why(error: Exception) -> str:
    """Return the line of Ray's long message with the reason: the last if a worker could not start, else the first."""
    lines = str(error).strip().splitlines()
    return lines[-1 if getattr(error, "actor_init_failed", False) else 0]
