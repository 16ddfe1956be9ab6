"""How long runs take, before they are run: examples passed through a network, times a calibrated cost.

One core of a machine with AVX-512 was the yardstick. While runs are made, the time left goes by what they really took.
"""

from __future__ import annotations

import re

from coterie.experiments.building import completed
from coterie.experiments.settings import Settings

EXAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar-10": 50_000, "digits": 1_438, "femnist": 68_000}
"""Train examples of data sets; 100,000 where it is not listed."""

MICROSECONDS = {
    "mlp": 15,
    "cnn": 110,
    "cnn-lcfl": 250,
    "cnn-joint": 150,
    "lenet": 60,
    "tiny-vgg": 350,
    "resnet34": 60_000,
    "logistic": 2,
}
"""Training on one example, on one core; 100 where it is not listed."""

FORWARD = 1 / 3
"""A pass without training, of one with it."""


def estimated_seconds(settings: Settings) -> float:
    """Return about how many seconds a run takes on one core."""
    full = completed(settings)
    clients, batch = full.clients or 50, full.batch
    examples = _examples(full, clients)
    each = examples / clients
    passed = full.steps * batch if full.steps else (full.epochs or 1) * each if full.epochs else 10 * batch
    asked = clients * full.participation
    text = str(full.algorithm)
    trained = asked * passed * _times(text) * full.rounds
    chosen = asked * each * _choices(full, text) * full.rounds
    compared = clients * examples * FORWARD if text.startswith("lcfl") else 0.0
    evaluations = 3 + full.rounds / full.eval_every
    tested = examples / 6 * FORWARD * evaluations * _times(text)
    return 1 + (trained + chosen + compared + tested) * _microseconds(full) / 1e6


def _examples(full: Settings, clients: int) -> float:
    total = EXAMPLES.get(full.data.partition("(")[0], 100_000)
    few = re.search(r"few\((\d+)\)", str(full.partition))
    groups = str(full.partition).partition("+")[0].count(",") + 1 if str(full.partition).startswith("rotation") else 1
    return min(total * groups, clients * int(few[1])) if few else total * groups


def _times(text: str) -> float:
    """Return how many models a client trains in a round."""
    members = re.search(r"members=(\d+)", text)
    models = int(members[1]) if members else 5 if "ensemble" in text else text.count(",") + 1 if "vote(" in text else 1
    return models * (2 if "+cam" in text else 1)


def _choices(full: Settings, text: str) -> float:
    """Return the passes over a client's data with which it chooses a model."""
    chooses = text.startswith("ifca") or "ifca" in text
    return int(full.clusters) * FORWARD if chooses and isinstance(full.clusters, int) else 0.0


def _microseconds(full: Settings) -> float:
    small = full.data == "digits"
    name = (full.model or ("mlp" if small else "cnn")).partition("(")[0]
    return MICROSECONDS.get(name, 100)
