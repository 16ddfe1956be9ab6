"""Messages between a server and its sites: damaged requests, replies and introductions, in bytes or in structure."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from coterie.algorithms import build_algorithm
from coterie.data.federated import Federated, Split
from coterie.deploy.audit import Audit, audit_table, read_audit
from coterie.deploy.model_store import ModelStore
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.deploy.server_run import carry_out
from coterie.deploy.site_answers import Site
from coterie.deploy.status import StatusBoard, status_table
from coterie.errors import CoterieError
from coterie.experiments.settings import Settings
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import BatchLoss, Contrast, Fit, Loss, Proximal, Race, Task
from coterie.seeding import Key
from coterie.server.loop import rounds
from coterie.wire import codec
from coterie.wire import requests as answering
from coterie.wire.remote import PackedReplies, Remote
from coterie.wire.reply_checks import read_reply
from fuzz import strange
from fuzz.judge import Case

NAMES = ("anna", "bert", "carl")
TASKS = (
    Task(),
    Task(choose=(Loss(),), fit=(Fit(steps=1, batch=8),)),
    Task(choose=(Race(first=4),), fit=(Fit(steps=1),)),
    Task(choose=(BatchLoss(),), fit=(Fit(steps=1),)),
    Task(fit=(Fit(steps=1, terms=(Proximal(0.1),)), Fit(epochs=1, part="head"))),
    Task(fit=(Fit(steps=1, terms=(Contrast(1.0, 0.5),)),)),
    Task(report=Report(None, losses=True)),
    Task(report=Report(None, evaluate_on="test")),
    Task(report=Report("head", losses=True, bounded="clipped")),
)
LONGEST = 1000


class _Wrong(Exception):
    """Something got through that should not have."""


def prepare(place: Path) -> None:
    """Nothing is needed."""


def make(rng: Random, prepared: Path) -> Case:
    """Make a request to a site, a reply of one, or a whole run in which some replies are damaged."""
    return rng.choice((_request, _request, _reply, _reply, _run, _training))(rng)


def _data() -> Federated:
    rng = np.random.default_rng(1)
    splits = [
        Split.join([(rng.normal(size=(size, 1, 4, 4)).astype(np.float32), np.arange(size) % 3) for size in sizes])
        for sizes in ((24, 30, 18), (6, 6, 6))
    ]
    return Federated("made up", "by hand", NAMES, *splits, 3, groups=np.zeros(3, int))


def _site(client: int = 0) -> Site:
    own = _data().select([client])
    policy, audit = Policy(least_examples=1, largest_mb=8), Audit(f"audit-{client}.jsonl")
    return Site(own.names[0], own, policy, audit, store=ModelStore(Path(f"models-{client}")))


def _asked(rng: Random) -> tuple[Task, Sent, Any, bytes]:
    """A task, the models it is about, and the request that says so."""
    task, data = rng.choice(TASKS), _data()
    model = build_model("mlp(4)", data.shape, data.classes)
    stack = Stack(*(np.stack([part] * 3) for part in model.initial(1)))
    sent = Sent(stack.take([0, 1]), stack.take([2])) if task.receives_all and rng.random() < 0.5 else Sent(stack)
    row = -1 if task.choose else 0
    arrays = message.down(task, sent, row, model.layout)
    return task, sent, model, answering.pack_task("run", task, Key(1, 0), model, arrays)


def _delivery() -> bytes:
    """A model that is handed over."""
    data, task = _data(), Task(report=Report(params=None))
    model = build_model("mlp(4)", data.shape, data.classes)
    sent = Sent(Stack(*(part[None] for part in model.initial(1))))
    arrays = message.down(task, sent, 0, model.layout)
    parcel = answering.Parcel("run-round-1-0a", "fedavg", 1, 0, 1, 3)
    return answering.pack_delivery(answering.pack_task("run", task, Key(1, 0), model, arrays), parcel)


def _request(rng: Random) -> Case:
    packed = rng.choice((*(lambda: _asked(rng)[3],) * 3, _delivery, lambda: answering.pack_hello("run")))()
    bad = _damaged(rng, packed)

    def work() -> int:
        site = _site()
        reply = site.answer(bad)
        problem = codec.decode(reply)[1]["problem"]
        if problem is not None:
            _one_line(problem)
        _readable(site.audit.path)
        return 0

    return Case(f"a site is asked {bad[:4000]!r}", work, keeps=False)


def _reply(rng: Random) -> Case:
    task, sent, model, packed = _asked(rng)
    good = _site().answer(packed)
    bad = _damaged(rng, good)
    row = np.asarray(-1 if task.choose else 0)
    told = message.Sizes(24, 6, 0) if rng.random() < 0.5 else message.UNKNOWN_SIZES
    wanted = message.form(task, sent, model.layout, classes=model.classes, sizes=told)

    def work() -> int:
        try:
            arrays = read_reply(bad, wanted, task, row)
        except CoterieError as error:
            _one_line(str(error))
            return 0
        _legal(arrays, wanted, task.choose != ())
        return 0

    return Case(f"a site replies {bad[:4000]!r} to {task}", work, keeps=False)


def _legal(arrays: message.Arrays, wanted: message.Form, chose: bool) -> None:
    """Check every number again, in another way than the program does."""
    for name, field in wanted.items():
        if name == "rows" and not chose:
            continue
        array = arrays[name]
        low, high = (np.broadcast_to(limit, field.shape).tolist() for limit in (field.low, field.high))
        found = zip(array.ravel().tolist(), np.ravel(low).tolist(), np.ravel(high).tolist(), strict=True)
        if array.shape != field.shape or any(math.isnan(n) or not least <= n <= most for n, least, most in found):
            raise _Wrong(f"{name} is {array} where {field} was asked for")


def _run(rng: Random) -> Case:
    """Train two rounds with sites of which one sends damaged replies."""
    name, lying = rng.choice(("fedavg", "ifca", "wecfl", "lcfl", "sattler", "ifca+cam", "joint")), rng.randrange(3)

    def exchange(requests: Mapping[int, bytes]) -> PackedReplies:
        replies = {place: sites[place].answer(content) for place, content in requests.items()}
        return PackedReplies({p: _damaged(rng, reply) if p == lying else reply for p, reply in replies.items()}, {})

    sites = [_site(place) for place in range(3)]

    def work() -> int:
        data = _data()
        algorithm = build_algorithm(name, 2, Fit(steps=1))
        network = algorithm.network(build_model("mlp(4)", data.shape, data.classes))
        try:
            for done in islice(rounds(algorithm, Remote(NAMES, network, exchange), seed=1), 2):
                if not np.isfinite(done.state.stack.params).all():
                    raise _Wrong("a model is not finite")
                for why in done.missing.values():
                    _one_line(why)
        except CoterieError as error:
            _one_line(str(error))
        return 0

    return Case(f"two rounds of {name} in which {NAMES[lying]} damages its replies", work, keeps=False)


class _Sites:
    """Sites that are reached through bytes, the first of which damages its description."""

    def __init__(self, rng: Random, names: tuple[str, ...]) -> None:
        self.rng, self.names, self.sites = rng, names, [_site(place) for place in range(len(names))]

    def connected(self) -> dict[str, int]:
        """Return all sites."""
        return {name: place for place, name in enumerate(self.names)}

    def __call__(self, requests: Mapping[int, bytes]) -> PackedReplies:
        replies = {place: self.sites[place].answer(content) for place, content in requests.items()}
        hello = all(b"task" not in content[:400] for content in requests.values())
        return PackedReplies(
            {p: self._lie(p, reply) if hello and p == 0 else reply for p, reply in replies.items()}, {}
        )

    def _lie(self, place: int, reply: bytes) -> bytes:
        site = strange.damaged_value(self.rng, json.loads(json.dumps(asdict(self.sites[place].hello()))))
        return (
            codec.encode({}, problem=None, site=_plain(site)) if self.rng.random() < 0.8 else _damaged(self.rng, reply)
        )


def _plain(value: Any) -> Any:
    """Return a value without NaN and infinities, as JSON can hold it."""
    return json.loads(json.dumps(value).replace("NaN", "null").replace("-Infinity", "0").replace("Infinity", "1"))


def _training(rng: Random) -> Case:
    """Make a whole run of a federation of one or three sites, with its status and its folder."""
    names = NAMES[: rng.choice((1, 1, 3))]
    settings = Settings(rng.choice(("fedavg", "wecfl", "ifca")), model="mlp(4)", rounds=1, steps=1, clusters=1)
    minimum = rng.choice((1, len(names)))
    order = Order(settings.table(), "out", "status.json", names, minimum=minimum, timeout=5.0, patience=0.0)

    def work() -> int:
        sites, board = _Sites(rng, names), StatusBoard(Path("status.json"), order.run, order.out, names)
        try:
            carry_out(order, sites, board)
        except CoterieError as error:
            _one_line(str(error))
        _render(status_table(board.status, {}), titled=True)
        return 0

    return Case(
        f"{settings.algorithm} in a federation of {names}, the first of which lies about itself", work, keeps=False
    )


def _damaged(rng: Random, packed: bytes) -> bytes:
    """Damage the bytes, the header or the arrays of a message."""
    kind = rng.randrange(4)
    if kind == 0:
        return strange.damaged_bytes(rng, packed)
    arrays, header = codec.decode(packed)
    if kind == 1 and arrays:
        name = rng.choice(sorted(arrays))
        arrays = {**arrays, name: _array(rng, arrays[name])}
    else:
        for _ in range(rng.choice((1, 1, 2))):
            found = strange.damaged_value(rng, header)
            header = found if isinstance(found, dict) else header
    return codec.encode({name: np.ascontiguousarray(array) for name, array in arrays.items()}, **_words(header))


def _words(header: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in header.items() if name != "arrays"}


def _array(rng: Random, good: Any) -> Any:
    match rng.randrange(5):
        case 0:
            return np.zeros(rng.choice(((), (0,), (1,), (3,), (1, 1), (3, 0), (1, 10_000))), good.dtype)
        case 1:
            return good.astype(rng.choice(("f2", "f8", "i4", "u8", "?", "i1")))
        case 2:
            return np.concatenate([good, good]) if good.ndim else good
    changed = good.copy().ravel()
    if len(changed):
        number = rng.choice((np.nan, np.inf, -np.inf, 1e30, -1.0, 2.0, 1e9))
        changed[rng.randrange(len(changed))] = number if changed.dtype.kind == "f" else int(rng.choice((-2, 7, 2**40)))
    return changed.reshape(good.shape)


def _one_line(problem: Any) -> None:
    """Check that a problem is one short printable line."""
    if not isinstance(problem, str) or len(problem) > LONGEST or not problem.isprintable():
        raise _Wrong(f"the problem is {str(problem)[:200]!r}, of {len(str(problem))} letters")


def _readable(log: Path) -> None:
    """Check that the log has one line, which can be read and shown."""
    (line,) = log.read_bytes().splitlines()
    (read,) = read_audit(log)
    if read.get("outcome") not in ("answered", "refused", "failed") or not line.isascii():
        raise _Wrong(f"the audit log holds {line[:200]!r}")
    _render(audit_table([read]))


def _render(table: Any, titled: bool = False) -> None:
    """Check that a table is shown without control characters."""
    from rich.console import Console

    with open(os.devnull, "w", encoding="utf-8") as file:
        console = Console(file=file, width=120, record=True)
        console.print(table)
    shown = console.export_text()
    if not shown.replace("\n", "").isprintable():
        raise _Wrong(f"a table is shown as {shown[:500]!r}")
