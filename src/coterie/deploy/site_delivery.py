"""What a site does with a model that is handed over to it: make its own model of it, score it, and keep it.

What is kept is what the site was scored with: its cluster's model, after its own fine-tuning where the method
fine-tunes, or all members of an ensemble with the way in which their outputs are mixed. The score card is made here,
from the site's own test examples; no number of it leaves the site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from coterie.data.federated import Federated
from coterie.deploy.model_store import CARD, ModelStore
from coterie.engine.engine import Engine
from coterie.errors import FederationError
from coterie.protocol.message import FIELDS, Arrays, received
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Report, Task
from coterie.seeding import Key
from coterie.wire import requests as answering
from coterie.wire.requests import Parcel, Receipt, described

WEIGHTS, NETWORK, SCHEMA = "model.safetensors", "model.json", "schema.json"
"""The files of a version beside its card: the numbers, the network that they are of, and how tables become arrays."""

FEW = 30
"""With fewer test examples than this a score says little."""

THIS, GUESS, ONE, LOCAL = "this model", "guessing", "one model", "local model"
"""What a card compares."""

_HERE = np.array([0])


class Asked(NamedTuple):
    """A task that was checked, with the engine that does it and the arrays that came with it."""

    engine: Engine
    task: Task
    arrays: Arrays
    key: Key

    def do(self) -> Arrays:
        """Do the task, and return the arrays that its report names."""
        reply, problem = answering.answer(*self)
        if problem is not None:
            raise RuntimeError(problem)
        return reply


def keep(store: ModelStore, parcel: Parcel, asked: Asked, run: str) -> tuple[Receipt, str]:
    """Keep the model that serves this site as a version; return the receipt, and a line for the site's operator.

    ``asked`` is the task by which the site is served, as when it is evaluated.
    """
    engine, stack, mix = asked.engine, served_stack(*asked), asked.task.report.mix
    card = make_card(run, parcel, engine.data, score(engine, stack, mix, asked.key))
    current = store.add(parcel.version, lambda folder: write_version(folder, engine, stack, mix, card))
    held = "" if current else f", not in use: this site went back to {store.current()}"
    return Receipt(parcel.version, current), f"the model {parcel.version} is here{held}: {card_text(card)}"


def served_stack(engine: Engine, task: Task, arrays: Arrays, key: Key) -> Stack:
    """Return the models that serve this client: one, or all members of an ensemble; chosen and fine-tuned here."""
    sent, rows = received(task, arrays, engine.model.layout), np.atleast_2d(arrays["row"].T)
    whole = replace(task, report=Report(params="all"))
    stacks = [engine.run(whole, sent, row, _HERE, key).models().contiguous() for row in rows]
    if not all(len(stack) and np.isfinite(stack.params).all() for stack in stacks):
        raise FederationError("the model cannot be made here: its training fails or its numbers are not finite")
    first, *others = stacks
    for stack in others:
        first = first.plus(stack)
    return first


def score(engine: Engine, stack: Stack, mix: str | None, key: Key) -> float:
    """Return the accuracy on the test examples, or the root mean squared error in the units of the table."""
    rows = _HERE if mix is None else np.arange(len(stack))[None]
    task = Task(report=Report(params=None, metrics="test", mix=mix))
    metrics = engine.run(task, Sent(stack), rows, _HERE, key).metrics
    assert metrics is not None, "metrics were asked for"
    first = float(metrics[0, 0])
    return first if engine.data.classes is not None else float(engine.data.unit * np.sqrt(first))


def guessing(data: Federated) -> float | None:
    """Return the score of the most frequent class, or the mean, of the train examples; None where labels are several.

    >>> from coterie.data.federated import Split
    >>> train, test = (Split.join([(np.zeros((3, 1)), np.array(y))]) for y in ([1, 1, 0], [1, 0, 0]))
    >>> round(guessing(Federated("toy", "natural", ("bern",), train, test, 2)), 3)
    0.333
    """
    train, test = data.train.y, data.test.y
    if data.classes is None:
        return float(data.unit * np.sqrt(np.mean((test - train.mean(axis=0)) ** 2)))
    return float(np.mean(test == np.bincount(train).argmax())) if data.columns is None else None


def make_card(run: str, parcel: Parcel, data: Federated, scored: float) -> dict[str, Any]:
    """Return the score card: where the model is from, how it scores here beside others, and what is not known."""
    scores = {THIS: scored, GUESS: guessing(data), ONE: parcel.one_model, LOCAL: parcel.local_model}
    return {
        "site": data.names[0],
        "run": run,
        "received": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **{key: value for key, value in asdict(parcel).items() if key not in ("one_model", "local_model")},
        "measure": "rmse" if data.classes is None else "accuracy",
        "test_examples": len(data.test.y),
        "scores": scores,
        "not_known": [what for what, value in scores.items() if value is None],
    }


def card_text(card: Mapping[str, Any]) -> str:
    """Return a card in one sentence, for a console."""
    scores, measure = card["scores"], card["measure"]
    where = (
        "the mean of all clusters" if card["cluster"] is None else f"cluster {card['cluster']} of {card['clusters']}"
    )
    beside = ", ".join(f"{what} {scores[what]:.3g}" for what in (GUESS, ONE, LOCAL) if scores[what] is not None)
    unknown = f"; not known: {', '.join(card['not_known'])}" if card["not_known"] else ""
    few = f" (fewer than {FEW}: this says little)" if card["test_examples"] < FEW else ""
    return (
        f"{where}, {measure} {scores[THIS]:.3g} on {card['test_examples']} test examples{few}; "
        f"{beside or 'nothing to compare with'}{unknown}"
    )


def write_version(folder: Path, engine: Engine, stack: Stack, mix: str | None, card: object) -> None:
    """Write the files of a version into an empty folder."""
    save_file(dict(zip(FIELDS, stack, strict=True)), folder / WEIGHTS)
    for name, table in {NETWORK: {**asdict(described(engine.model)), "mix": mix}, CARD: card}.items():
        (folder / name).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if engine.data.schema is not None:
        engine.data.schema.save(folder / SCHEMA)
