"""How long runs take, before they are run: examples passed through a network, times a calibrated cost.

The costs are those of one core with AVX-512 and the compiled engine (`benchmarks/reproduce_costs.py`). While runs are
made, the time left goes by what they really took.
"""

from __future__ import annotations

import re

from coterie.experiments.building import completed
from coterie.experiments.settings import Settings

EXAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar-10": 50_000, "digits": 1_438, "femnist": 68_000}
"""Train examples of data sets; 100,000 where it is not listed."""

MICROSECONDS = {
    "mlp": 30,
    "cnn": 190,
    "cnn-lcfl": 190,
    "cnn-joint": 1_050,
    "lenet": 41,
    "tiny-vgg": 300,
    "resnet34": 64_000,
    "logistic": 1,
}
"""Training on one example, on one core; 100 where it is not listed."""

FORWARD = 0.36
"""A pass without training, of one with it."""

RACE = 0.3
"""The evaluations of clients that choose by racing, of all."""

START = 0.5
"""Seconds of a run beside its passes: data, folder, records."""

JUDGED, MOST_JUDGED = 1000, 64
"""Examples on which every model in use is judged in an evaluated round, if there are not more models than that."""


def estimated_seconds(settings: Settings) -> float:
    """Return about how many seconds a run takes on one core."""
    full = completed(settings)
    clients, text = full.clients or 50, str(full.algorithm)
    examples = _examples(full, clients)
    asked, each = clients * full.participation, examples / clients
    trained = asked * _passed(full, each) * _times(text, full) * full.rounds
    chosen = asked * each * _choices(full, text) * full.rounds
    compared = clients * examples if text.startswith("lcfl") else 0.0
    tested = (examples / 6 * _members(text) + _judged(full, text, clients)) * _evaluations(full)
    return START + (trained + (chosen + compared + tested) * FORWARD) * _microseconds(full) / 1e6


def _passed(full: Settings, each: float) -> float:
    """Return the examples on which a client trains in a round; ``each`` are those that it has."""
    stepped = (full.steps or 10) * full.batch
    if full.epochs is None:
        return stepped
    return full.epochs * each if full.steps is None else min(full.epochs * each, stepped)


def _examples(full: Settings, clients: int) -> float:
    total = EXAMPLES.get(full.data.partition("(")[0], 100_000)
    few = re.search(r"few\((\d+)\)", str(full.partition))
    groups = str(full.partition).partition("+")[0].count(",") + 1 if str(full.partition).startswith("rotation") else 1
    return min(total * groups, clients * int(few[1])) if few else total * groups


def _evaluations(full: Settings) -> float:
    """Return how many rounds are evaluated: the last three always."""
    return min(full.rounds, 2 + full.rounds / full.eval_every)


def _members(text: str) -> int:
    """Return the models of an ensemble."""
    members = re.search(r"members=(\d+)", text)
    return int(members[1]) if members else 5 if "ensemble" in text else 2 if text.startswith("vote(") else 1


def _times(text: str, full: Settings) -> float:
    """Return how many times a client passes its examples in a round, as often as it trains several models."""
    contrast = FORWARD * _clusters(full) if "con-rep" in text else 0
    return _members(text) * ((2 if "+cam" in text else 1) + contrast)


def _clusters(full: Settings) -> int:
    return int(full.clusters) if isinstance(full.clusters, int) else 10


def _choices(full: Settings, text: str) -> float:
    """Return the passes over a client's data with which it chooses a model."""
    raced = RACE if full.choose == "race" else 1.0
    return _clusters(full) * raced if "ifca" in text else 0.0


def _judged(full: Settings, text: str, clients: int) -> int:
    """Return the examples on which models are judged in a round, all with the same ones."""
    one = text.startswith(("fedavg", "fedprox"))
    models = clients if text.startswith("local") else 1 if one else _clusters(full)
    return JUDGED * models if models <= MOST_JUDGED else 0


def _microseconds(full: Settings) -> float:
    small = full.data == "digits"
    name = (full.model or ("mlp" if small else "cnn")).partition("(")[0]
    return MICROSECONDS.get(name, 100)
