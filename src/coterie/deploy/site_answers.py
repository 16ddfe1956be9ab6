"""What a site answers to a request and what it refuses: bytes come in, are checked, and the task's report goes out.

A request is opened (``SealedSite``), checked against the policy, the site's data and its own arrays (``Site``), done by
an engine (``site_models``), and written to the audit log before the reply leaves. The reply to a request is a message:
the arrays that the report names, or a problem in words that reveal nothing about this machine or its data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.data.federated import Federated
from coterie.deploy.audit import Audit, AuditLine, task_summary
from coterie.deploy.model_store import ModelStore, check_version
from coterie.deploy.policy import MAJORITY, Policy
from coterie.deploy.site_delivery import Asked, keep
from coterie.deploy.site_models import SiteModels
from coterie.deploy.site_schema import UnreadTable
from coterie.errors import CoterieError, FederationError, Refused
from coterie.protocol.message import FIELDS, GROUPS, Arrays
from coterie.protocol.report import Report
from coterie.protocol.stack import UNPLACED
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire import requests as answering
from coterie.wire.requests import Network, Parcel, SiteDescription, Unread
from coterie.wire.schema_messages import COLUMNS_ASKED, SCHEMA_SENT, SUMS_ASKED

if TYPE_CHECKING:
    from coterie.wire.envelope import Channel

TYPES = {"params": "F32", "buffers": "F32", "row": "I64"}
COMMON = {"common_params": "F32", "common_buffers": "F32"}
"""The arrays of a task's message and their types; the latter only where one half of all models is sent once."""

_PATH = re.compile(r"""(?<!\w)(?:[A-Za-z]:)?[\\/][^\s'",;:)]*""")


class _Shapes(NamedTuple):
    """The number of models in a message, the size of each, and the number of models that the client works on."""

    models: int
    params: int
    buffers: int
    served: int


class _Reply(NamedTuple):
    """The arrays of a reply, and further entries of its header."""

    arrays: Arrays
    header: dict[str, Any]


class Site:
    """One client of a federation, with its data, policy and audit log. It answers one message at a time.

    With a table that is not read yet, because it has no schema, it only takes part in agreeing on one. ``store`` keeps
    the models that are handed over, and ``tell`` shows a line to the site's operator.
    """

    def __init__(
        self,
        name: str,
        data: Federated | UnreadTable,
        policy: Policy,
        audit: Audit,
        *,
        threads: int = 1,
        store: ModelStore | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name, self.policy, self.audit, self.threads = name, policy, audit, threads
        self.store, self.tell = store, tell
        self.misfit: str | None = None  # why its table did not fit the schema that it was sent
        self.unread = data if isinstance(data, UnreadTable) else None
        if isinstance(data, Federated):
            self._read(data)

    def _read(self, data: Federated) -> None:
        """Take part with these data from now on."""
        if len(data) != 1:
            raise FederationError(f"the data of site {self.name!r} are of {len(data)} clients; a site is one")
        self.data, self.unread = data, None
        self.models = SiteModels(data, self.policy, self.threads)

    @property
    def what_it_has(self) -> str:
        """How many examples it has, or that its table waits for a schema."""
        if self.unread is not None:
            return "its table has no schema.json yet, so the first run begins by agreeing on one"
        return f"{len(self.data.train.y)} examples"

    def answer(self, request: bytes) -> bytes:
        """Return the reply to a message, after writing both to the audit log."""
        return self._logged(len(request), lambda entry: self._answer(request, entry))

    def refuse(self, size: int, beginning: bytes) -> bytes | None:
        """Return the reply to a message of ``size`` bytes if it is too large to be read; otherwise None."""
        return self._logged(size, lambda _: _Reply({}, {})) if size > self.policy.largest_bytes else None

    def decline(self, request: bytes, why: str) -> bytes:
        """Return the reply to a message that is not read at all."""
        return codec.encode({}, problem=why)

    def reject(self, size: int, why: FederationError) -> bytes:
        """Return the reply to a message that cannot be opened."""

        def fail(_: AuditLine) -> _Reply:
            raise why

        return self._logged(size, fail)

    def hello(self) -> SiteDescription:
        """Describe this site and its data, in numbers only."""
        data = self.data
        return SiteDescription(
            name=self.name,
            version=metadata.version("coterie"),
            shape=data.shape,
            classes=data.classes,
            class_names=data.class_names,
            **self._sizes(),
            unit=float(data.unit),
            columns=data.columns,
            vocabulary=data.vocabulary,
            majority=self._majority(),
        )

    def _majority(self) -> float | None:
        """Return how many test examples are of the most frequent train class, if the policy lets that out."""
        if MAJORITY not in self.policy.reports:
            return None
        from coterie.experiments.records import majority_correct  # it loads what only a server needs

        found = majority_correct(self.data)
        return None if found is None else float(found[0])

    def _logged(self, size: int, work: Callable[[AuditLine], _Reply]) -> bytes:
        """Do the work on a message, pack its result or its problem, and write the line of the audit log."""
        begun, entry = time.perf_counter(), _new_line(size)
        problem = None
        try:
            self.policy.check_size(size)
            arrays, header = work(entry)
            entry["outcome"] = "answered"
        except Exception as error:  # the server learns that something went wrong, and no more
            arrays, header, problem = {}, {}, problem_text(error)
            entry |= {"outcome": "refused" if isinstance(error, Refused) else "failed", "reason": _reason(error)}
        reply = codec.encode(arrays, problem=problem, **header)
        entry |= {"left": {name: list(array.shape) for name, array in arrays.items()}, "bytes_out": len(reply)}
        entry["seconds"] = round(time.perf_counter() - begun, 3)
        try:
            self.audit.write(entry)
        except FederationError:
            return codec.encode({}, problem="the site cannot write its audit log, so nothing leaves it")
        return reply

    def _sizes(self) -> dict[str, int]:
        splits = {"train": self.data.train, "test": self.data.test, "validation": self.data.validation}
        return {name: 0 if split is None else len(split.y) for name, split in splits.items()}

    def _answer(self, request: bytes, entry: AuditLine) -> _Reply:
        """Check a message from its header to its arrays, note in the log what it asks, and do it."""
        packed = codec.unwrap(request)
        kind, run = (codec.read_as(str, packed.header.get(word), word) for word in ("kind", "run"))
        entry |= {"kind": kind, "run": run}
        self.policy.check_run(run)
        answers = {
            "hello": self._answer_hello,
            "task": self._answer_task,
            "deliver": self._answer_delivery,
            COLUMNS_ASKED: self._answer_columns,
            SUMS_ASKED: self._answer_sums,
            SCHEMA_SENT: self._answer_schema,
        }
        if kind not in answers:
            raise FederationError(f"the kind of the message is {kind!r}; this site knows {', '.join(answers)}")
        return answers[kind](packed, entry)

    def _answer_hello(self, packed: codec.Packed, entry: AuditLine) -> _Reply:
        if self.unread is not None:
            return _Reply({}, {"wants_schema": asdict(Unread(self.name, metadata.version("coterie")))})
        return _Reply({}, {"site": asdict(self.hello())})

    def _answer_columns(self, packed: codec.Packed, entry: AuditLine) -> _Reply:
        entry["asked"] = "how many values of each column are numbers or missing"
        return _Reply({}, {"facts": self._table().columns(self.policy)})

    def _answer_sums(self, packed: codec.Packed, entry: AuditLine) -> _Reply:
        entry["asked"] = "means and deviations of numbers, words of categories, and classes"
        return _Reply({}, {"sums": self._table().sums(packed.header.get("kinds"), self.policy)})

    def _answer_schema(self, packed: codec.Packed, entry: AuditLine) -> _Reply:
        entry["asked"] = "whether the table fits the schema"
        try:
            data = self._table().take(packed.header.get("schema"))
        except FederationError as error:
            self.misfit = str(error)
            raise
        self._read(data)
        return _Reply({}, {})

    def _table(self) -> UnreadTable:
        """Return the table that is not read yet; refuse what concerns one where there is none."""
        if self.unread is None:
            raise FederationError("this site's examples are read already; it agrees on no other schema")
        return self.unread

    def _answer_task(self, packed: codec.Packed, entry: AuditLine) -> _Reply:
        return _Reply(self._open_task(packed, entry).do(), {})

    def _open_task(self, packed: codec.Packed, entry: AuditLine) -> Asked:
        """Return the task of a message and the engine that does it, after all checks."""
        if self.unread is not None:
            unknown = "this site's table has no schema yet; the next run that begins agrees on one"
            raise FederationError(self.misfit or unknown)
        header = packed.header
        task = codec.read_as(Task, header.get("task"), "task")
        key = Key(*codec.read_as(tuple[int, int], header.get("key"), "key"))
        network = answering.read_part(Network, header.get("model"), "model")
        shapes = _shapes(packed, task)
        entry |= {"round": key.round, "asked": task_summary(task), "model": network.text, "models": shapes.models}
        self.policy.check_task(task, shapes.models, shapes.served, self._sizes())
        engine = self.models.engine(network, shapes.params, shapes.buffers)
        arrays = packed.arrays()
        _check_arrays(task, arrays)
        return Asked(engine, task, arrays, key)

    def _answer_delivery(self, packed: codec.Packed, entry: AuditLine) -> _Reply:
        """Keep the model that serves this site, as a version of its own, and answer with a receipt."""
        parcel = answering.read_part(Parcel, packed.header.get("parcel"), "parcel")
        self.policy.check_delivery(len(packed.content))
        check_version(parcel.version)
        if self.store is None:
            raise FederationError("this site has no folder for models; start it with coterie federate client")
        asked = self._open_task(packed, entry)
        entry["asked"] = f"keep the model {parcel.version}"
        if replace(asked.task.report, mix=None) != Report(params=None):
            raise Refused("a model comes with a request for a report; this site keeps models and reports nothing then")
        reply = asked.do()
        receipt, news = keep(self.store, parcel, asked, entry["run"])
        self.tell(news)
        return _Reply(reply, {"receipt": asdict(receipt)})


@dataclass(frozen=True)
class SealedSite:
    """A site behind its channel to the server: it reads only what the server sealed for it, and signs its replies.

    Requests that cannot be opened are written to the audit log like all others.
    """

    site: Site
    channel: Channel

    def answer(self, request: bytes) -> bytes:
        """Return the sealed reply to a sealed request."""
        try:
            content = self.channel.open_request(request)
        except FederationError as error:
            return self.channel.reply(self.site.reject(len(request), error), request)
        return self.channel.reply(self.site.answer(content), request)

    def decline(self, request: bytes, why: str) -> bytes:
        """Return the sealed reply to a message that is not read at all."""
        return self.channel.reply(self.site.decline(request, why), request)

    def refuse(self, size: int, beginning: bytes) -> bytes | None:
        """Return the sealed reply to a message of ``size`` bytes if it is too large to be read; otherwise None."""
        reply = self.site.refuse(size - self.channel.overhead, beginning)
        return None if reply is None else self.channel.reply(reply, beginning)


def _new_line(size: int) -> AuditLine:
    """Return the line of the audit log for a message of which only the size is known."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    empty = dict.fromkeys(("run", "kind", "round", "asked", "model", "models"))
    return {"time": now, **empty, "bytes_in": size, "outcome": None, "reason": None}


def _shapes(packed: codec.Packed, task: Task) -> _Shapes:
    """Return the sizes of the models in a message from its header, before any array is read."""
    kinds, wanted = packed.kinds, {**TYPES, **(COMMON if task.sends == "cluster" else {})}
    beside = [prefix for prefix in GROUPS.values() if prefix and any(name.startswith(prefix) for name in kinds)]
    wanted |= {prefix + name: TYPES[name] for prefix in beside for name in FIELDS}
    types = {name: dtype for name, (dtype, _) in kinds.items()}
    if types != wanted:
        names = ", ".join(f"{str(name)[:20]} {str(dtype)[:20]}" for name, dtype in list(types.items())[:5])
        needed = ", ".join(f"{name} {dtype}" for name, dtype in wanted.items())
        raise FederationError(f"the arrays of the message are {names or 'none'}; this task has {needed}")
    params, buffers, row = (kinds[name][1] for name in TYPES)
    rows = sum(_rows(kinds, prefix, params, buffers) for prefix in ("", *beside))
    if not rows:
        raise FederationError("params have no rows, and neither has any array beside them; there must be a model")
    if row[:1] != (1,) or len(row) > 2 or not 1 <= row[-1] <= rows:
        raise FederationError(f"row is of shape {row}; it must name one of the {rows} models, or several")
    common = [kinds[name][1] for name in COMMON if name in kinds]
    if any(len(shape) != 2 or shape[0] != 1 for shape in common):
        raise FederationError(f"what all models have in common is of shapes {common}; it must be one row")
    more = [shape[1] for shape in common] or [params[1], buffers[1]] * (task.sends == "global") or [0, 0]
    return _Shapes(rows, params[1] + more[0], buffers[1] + more[1], row[-1])


def _rows(kinds: Mapping[str, Any], prefix: str, params: tuple[int, ...], buffers: tuple[int, ...]) -> int:
    """Return the number of rows of one group of arrays, which must be as wide as ``params`` and ``buffers``."""
    some, others = (kinds[prefix + name][1] for name in FIELDS)
    if (
        len(some) != 2
        or len(others) != 2
        or some[0] != others[0]
        or (some[1:], others[1:]) != (params[1:], buffers[1:])
    ):
        raise FederationError(
            f"{prefix}params are of shape {some} and {prefix}buffers of {others}; both must be of as many rows, and as "
            f"wide as params of shape {params} and buffers of {buffers}"
        )
    return int(some[0])


def _check_arrays(task: Task, arrays: Arrays) -> None:
    """Refuse rows that do not exist, and models with numbers that are not finite."""
    models, references, alone = (len(arrays.get(f"{prefix}params", ())) for prefix in GROUPS.values())
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


def problem_text(error: Exception) -> str:
    """Return the text of an error for the server, without paths of this machine or messages of other packages.

    >>> problem_text(FederationError("cannot read /home/anna/x.npz; add it")), problem_text(KeyError("secret"))
    ('cannot read (a path); add it', "the site could not do this (KeyError); the site's audit log says why")
    """
    if isinstance(error, CoterieError):
        return line(_PATH.sub("(a path)", " ".join(str(error).split())), codec.LONGEST_PROBLEM)
    return f"the site could not do this ({type(error).__name__}); the site's audit log says why"


def _reason(error: Exception) -> str:
    """Return the text of an error for the site's own audit log."""
    words = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
    return line(" ".join(words.split()), codec.LONGEST_PROBLEM)
