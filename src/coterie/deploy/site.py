"""A site: bytes come in, are checked against its policy, and what the task's report names goes out.

Whatever a message holds, the answer is a message: a problem in words that say nothing of this machine or its data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from coterie.data.federated import Federated
from coterie.deploy.audit import Audit, Line, task_summary
from coterie.deploy.networks import Networks
from coterie.deploy.policy import Policy
from coterie.errors import CoterieError, FederationError, Refused
from coterie.protocol.message import FIELDS, GROUPS, Arrays
from coterie.protocol.stack import UNPLACED
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire import requests as answering

TYPES = {"params": "F32", "buffers": "F32", "row": "I64"}
COMMON = {"common_params": "F32", "common_buffers": "F32"}
"""The arrays of a task's message, and the types of their numbers; the latter where a half is sent once for all."""

_PATH = re.compile(r"""(?<!\w)(?:[A-Za-z]:)?[\\/][^\s'",;:)]*""")


class _Shapes(NamedTuple):
    """What a message announces: how many models in all, of how many numbers, and how many of them serve the client."""

    models: int
    params: int
    buffers: int
    served: int


class _Reply(NamedTuple):
    """What goes back: arrays, and further words of the header."""

    arrays: Arrays
    words: dict[str, Any]


class Site:
    """One client of a federation, with its own data, policy and audit log. It answers one message at a time."""

    def __init__(self, name: str, data: Federated, policy: Policy, audit: Audit, threads: int = 1) -> None:
        if len(data) != 1:
            raise FederationError(f"the data of site {name!r} are of {len(data)} clients; a site is one")
        self.name, self.data, self.policy, self.audit = name, data, policy, audit
        self.networks = Networks(data, policy, threads)

    def answer(self, request: bytes) -> bytes:
        """The reply to a message, which has been written to the audit log when this returns."""
        return self._logged(len(request), lambda line: self._answer(request, line))

    def refuse(self, size: int, beginning: bytes) -> bytes | None:
        """The reply to a message that has too many bytes to be read on; None if it has not."""
        return self._logged(size, lambda _: _Reply({}, {})) if size > self.policy.largest_bytes else None

    def decline(self, request: bytes, why: str) -> bytes:
        """The reply to a message that is not looked at."""
        return codec.encode({}, problem=why)

    def turn_away(self, size: int, why: FederationError) -> bytes:
        """The reply to a message that cannot be opened."""

        def fail(_: Line) -> _Reply:
            raise why

        return self._logged(size, fail)

    def _logged(self, size: int, work: Callable[[Line], _Reply]) -> bytes:
        """What the work gives, or the problem that it meets, packed and written down."""
        begun, line = time.perf_counter(), _new_line(size)
        problem = None
        try:
            self.policy.check_size(size)
            arrays, words = work(line)
            line["outcome"] = "answered"
        except Exception as error:  # whatever went wrong, the server is told that something did, and no more
            arrays, words, problem = {}, {}, said(error)
            line |= {"outcome": "refused" if isinstance(error, Refused) else "failed", "reason": _reason(error)}
        reply = codec.encode(arrays, problem=problem, **words)
        line |= {"left": {name: list(array.shape) for name, array in arrays.items()}, "bytes_out": len(reply)}
        line["seconds"] = round(time.perf_counter() - begun, 3)
        try:
            self.audit.write(line)
        except FederationError:
            return codec.encode({}, problem="the site cannot write its audit log, so nothing leaves it")
        return reply

    def hello(self) -> answering.Hello:
        """Who this site is and what it holds, in numbers only."""
        data = self.data
        return answering.Hello(
            name=self.name,
            version=metadata.version("coterie"),
            shape=data.shape,
            classes=data.classes,
            class_names=data.class_names,
            **self._sizes(),
            unit=float(data.unit),
        )

    def _sizes(self) -> dict[str, int]:
        splits = {"train": self.data.train, "test": self.data.test, "validation": self.data.validation}
        return {name: 0 if split is None else len(split.y) for name, split in splits.items()}

    def _answer(self, request: bytes, line: Line) -> _Reply:
        """Check a message from the outside inwards, write down what it asks, and do it."""
        packed = codec.unwrap(request)
        header = packed.header
        kind, run = (codec.read_as(str, header.get(word), word) for word in ("kind", "run"))
        line |= {"kind": kind, "run": run}
        self.policy.check_run(run)
        if kind == "hello":
            return _Reply({}, {"site": asdict(self.hello())})
        if kind != "task":
            raise FederationError(f"the kind of the message is {kind!r}; this site knows hello and task")
        task = codec.read_as(Task, header.get("task"), "task")
        key = Key(*codec.read_as(tuple[int, int], header.get("key"), "key"))
        named = header.get("model")
        network = codec.read_as(
            answering.Network, {**named, "kind": "Network"} if isinstance(named, dict) else named, "model"
        )
        shapes = _shapes(packed, task)
        line |= {"round": key.round, "asked": task_summary(task), "model": network.text, "models": shapes.models}
        self.policy.check_task(task, shapes.models, shapes.served, self._sizes())
        engine = self.networks.engine(network, shapes.params, shapes.buffers)
        arrays = packed.arrays()
        _check_arrays(task, arrays)
        reply, problem = answering.answer(engine, task, arrays, key)
        if problem is not None:
            raise RuntimeError(problem)
        return _Reply(reply, {})


def _new_line(size: int) -> Line:
    """A line of the log on which nothing is known yet but the size of the message."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    empty = dict.fromkeys(("run", "kind", "round", "asked", "model", "models"))
    return {"time": now, **empty, "bytes_in": size, "outcome": None, "reason": None}


def _shapes(packed: codec.Packed, task: Task) -> _Shapes:
    """What the models of a message will be like once they are put together, before any of its arrays is made."""
    kinds, wanted = packed.kinds, {**TYPES, **(COMMON if task.sends == "cluster" else {})}
    beside = [prefix for prefix in GROUPS.values() if prefix and any(name.startswith(prefix) for name in kinds)]
    wanted |= {prefix + name: TYPES[name] for prefix in beside for name in FIELDS}
    types = {name: dtype for name, (dtype, _) in kinds.items()}
    if types != wanted:
        names = ", ".join(f"{str(name)[:20]} {str(dtype)[:20]}" for name, dtype in list(types.items())[:5])
        needed = ", ".join(f"{name} {dtype}" for name, dtype in wanted.items())
        raise FederationError(f"the arrays of the message are {names or 'none'}; this task has {needed}")
    params, buffers, row = (kinds[name][1] for name in TYPES)
    rows = 0
    for prefix in ("", *beside):
        some, others = (kinds[prefix + name][1] for name in FIELDS)
        if (
            len(some) != 2
            or len(others) != 2
            or some[0] != others[0]
            or (some[1:], others[1:])
            != (
                params[1:],
                buffers[1:],
            )
        ):
            raise FederationError(
                f"{prefix}params are of shape {some} and {prefix}buffers of {others}; both must be of as many rows "
                f"and as wide as params of shape {params} and buffers of {buffers}"
            )
        rows += some[0]
    if not rows:
        raise FederationError("params have no rows, and neither has any array beside them; there must be a model")
    if row[:1] != (1,) or len(row) > 2 or not 1 <= row[-1] <= rows:
        raise FederationError(f"row is of shape {row}; it must name one of the {rows} models, or several")
    common = [kinds[name][1] for name in COMMON if name in kinds]
    if any(len(shape) != 2 or shape[0] != 1 for shape in common):
        raise FederationError(f"what all models have in common is of shapes {common}; it must be one row")
    more = [shape[1] for shape in common] or [params[1], buffers[1]] * (task.sends == "global") or [0, 0]
    return _Shapes(rows, params[1] + more[0], buffers[1] + more[1], row[-1])


def _check_arrays(task: Task, arrays: Arrays) -> None:
    """Refuse rows that are not there, and models whose numbers are not finite."""
    models, references = (len(arrays.get(f"{GROUPS[group]}params", ())) for group in ("models", "references"))
    alone = len(arrays.get(f"{GROUPS['unplaced']}params", ()))
    if alone > 1:
        raise FederationError(f"there are {alone} models for a client without a cluster; there must be one, or none")
    asked, pinned = arrays["row"].ravel().tolist(), [row for _, row in task.pinned]
    least, most = (UNPLACED, models) if task.choose else (-alone, models + references)
    if not all(least <= row < most for row in asked) or not all(0 <= row < models for row in pinned):
        raise FederationError(
            f"a row is out of range; it must be {least} to {most - 1}, where pinned 0 to {models - 1}"
        )
    if (arrays["row"].ndim == 2) != (task.report.mix is not None):
        raise FederationError("row names several models only where their outputs are mixed")
    for name in arrays.keys() - {"row"}:
        if not np.isfinite(arrays[name]).all():
            raise FederationError(f"{name} hold numbers that are not finite; lower the learning rate")


def said(error: Exception) -> str:
    """What a server is told of an error: nothing of this machine's files, nothing that other packages say.

    >>> said(FederationError("cannot read /home/anna/x.npz; add it")), said(KeyError("secret"))
    ('cannot read (a path); add it', "the site could not do this (KeyError); the site's audit log says why")
    """
    if isinstance(error, CoterieError):
        return line(_PATH.sub("(a path)", " ".join(str(error).split())), codec.LONGEST_PROBLEM)
    return f"the site could not do this ({type(error).__name__}); the site's audit log says why"


def _reason(error: Exception) -> str:
    """What the site itself keeps of an error."""
    words = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
    return line(" ".join(words.split()), codec.LONGEST_PROBLEM)
