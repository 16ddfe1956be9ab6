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

from coterie.data.federated import Federated
from coterie.deploy.model_store import CARD, ModelStore
from coterie.engine.engine import Engine
from coterie.errors import FederationError
from coterie.experiments.guessing import guesses_of
from coterie.experiments.networks import network_of
from coterie.exporting.card import FEW, GUESS, LOCAL, ONE, THIS, Card
from coterie.exporting.folder import SAFETENSORS, Export, write_files
from coterie.protocol.message import Arrays, received
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.serving import Served
from coterie.typing import Array
from coterie.wire import requests as answering
from coterie.wire.requests import Parcel, Receipt

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
    current = store.add(parcel.version, lambda folder: write_version(folder, asked, stack, card))
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
    """Return the score of these models on the test examples."""
    rows = _HERE if mix is None else np.arange(len(stack))[None]
    task = Task(report=Report(params=None, evaluate_on="test", mix=mix))
    metrics = engine.run(task, Sent(stack), rows, _HERE, key).metrics
    assert metrics is not None, "metrics were asked for"
    return _score_of(metrics, engine.data)


def guessing(data: Federated) -> float:
    """Return the score of the most frequent class, or of the mean, of the train examples."""
    return _score_of(guesses_of(data).metrics, data)


def _score_of(metrics: Array, data: Federated) -> float:
    """Return the accuracy, or the root mean squared error in the units of the table, from a row of metrics."""
    first = float(metrics[0, 0])
    return first if data.classes is not None else float(data.unit * np.sqrt(first))


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


def write_version(folder: Path, asked: Asked, stack: Stack, card: Mapping[str, Any]) -> None:
    """Write the files of a version into an empty folder: those of an exported model, and the score card."""
    data, model, mix = asked.engine.data, asked.engine.model, asked.task.report.mix
    members = [Served(stack, np.array([row])) for row in range(len(stack))]
    network = network_of(model, members, 0, mix)
    export = Export(
        network=network,
        model=model,
        card=_model_card(card, data, asked),
        schema=data.schema,
        class_names=data.class_names,
    )
    write_files(folder, export, SAFETENSORS)
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _model_card(card: Mapping[str, Any], data: Federated, asked: Asked) -> Card:
    """Return what the README of a version says."""
    tuned = "It was fine-tuned on the train examples of this site. " if asked.task.fit else ""
    mixed = "" if asked.task.report.mix is None else "The outputs of several models are mixed. "
    shared = f"Cluster {card['cluster']} of {card['clusters']} has {card['sites']} sites."
    return Card(
        title=f"site {card['site']}",
        algorithm=card["algorithm"],
        data="of a federation",
        rounds=card["rounds"],
        seed=asked.key.seed,
        clients=(card["site"],),
        cluster=card["cluster"],
        made=f"{tuned}{mixed}{'' if card['cluster'] is None else shared}".strip(),
        train=len(data.train.y),
        test=len(data.test.y),
        measure=card["measure"],
        smaller=data.classes is None,
        scores=card["scores"],
        settings=f"# run {card['run']} of the federation, version {card['version']}",
    )
