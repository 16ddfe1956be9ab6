"""Sketches of the clients' models in some rounds, kept in the run folder for maps of clients and their similarities.

A sketch is a hundred numbers (see ``server.distances.sketches``) of a client's trained parameters, minus the mean of
the parameters from which clients began the round: as long as there is one model, a sketch of the client's update.
Rounds 1, 2, 3, 4, 6, 8, 12, 16, 24, ... are kept, and the last; of many clients a sample. So a run folder has 10 MB of
them at most for 1000 rounds, and which rounds these are does not depend on when a run was stopped and resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coterie.experiments.run_folder import SKETCHES, hash_of
from coterie.experiments.scores import starts_of
from coterie.protocol.replies import Sketching
from coterie.seeding import generator
from coterie.server.distances.sketches import sketcher, vectors
from coterie.server.loop import Round
from coterie.typing import Array

SIZE = 128
"""Numbers of a sketch: the cosine of two has a standard error of at most 0.09."""

MOST = 1000
"""Clients that have sketches; of more a sample is drawn."""


@dataclass(frozen=True)
class ClientSketches:
    """The sketches of ``clients`` (positions) after ``rounds`` (0 is the first): ``points (rounds, clients, SIZE)``.

    A client that did not answer in a round has NaN there.
    """

    clients: Array
    rounds: Array
    points: Array

    def pack(self) -> bytes:
        """Return the content of the file."""
        return save(vars(self), {"hash": self.hash()})

    def hash(self) -> str:
        """Return a hash of all numbers."""
        return hash_of(b"".join(np.ascontiguousarray(each).tobytes() for each in vars(self).values()))

    def before(self, number: int) -> ClientSketches:
        """Return what an uninterrupted run has before this round: no last round among those that are kept."""
        kept = (self.rounds < number) & np.array([is_kept(each) for each in self.rounds.tolist()], dtype=bool)
        return ClientSketches(self.clients, self.rounds[kept], self.points[kept])

    def with_round(self, number: int, points: Array) -> ClientSketches:
        """Return the sketches with those of one more round."""
        return ClientSketches(
            self.clients, np.append(self.rounds, np.int64(number)), np.concatenate([self.points, points[None]])
        )


def is_kept(number: int) -> bool:
    """Return whether the sketches of a round are kept wherever the run ends.

    >>> [number + 1 for number in range(40) if is_kept(number)]
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    """
    odd = number + 1
    while odd % 2 == 0:
        odd //= 2
    return odd in (1, 3)


def no_sketches(clients: int) -> ClientSketches:
    """Return the sketches of a run before its first round, with the sample of clients that will have some."""
    sample = np.arange(clients)
    if clients > MOST:
        sample = np.sort(generator(0, "sketched clients").choice(clients, MOST, replace=False))
    return ClientSketches(sample, np.zeros(0, np.int64), np.zeros((0, len(sample), SIZE), np.float32))


def add_round(known: ClientSketches, step: Round, is_last: bool) -> ClientSketches:
    """Return the sketches with those of a round, if it is one that is kept; one without models adds nothing."""
    numbers = range(step.before.round, step.state.round)
    if step.replies.params is None or not (is_last or any(map(is_kept, numbers))):
        return known
    return known.with_round(step.state.round - 1, sketches_of(step, known.clients))


def sketches_of(step: Round, clients: Array) -> Array:
    """Return the sketches of some clients in a round; a short model is filled up with zeros."""
    replies = step.replies.without(~np.isin(step.replies.clients, clients), {})
    found = np.full((len(clients), SIZE), np.nan, dtype=np.float32)
    if not len(replies):
        return found
    sketch = sketcher(len(replies.layout.numbers("all")), Sketching(size=SIZE))
    models = np.concatenate([sketch(block) for block in vectors(replies, None)])
    starts = starts_of(step.trained, replies)[:, replies.layout.part("all")].mean(axis=0, dtype=np.float64)
    rows = models - sketch(starts[None])
    places = np.searchsorted(clients, replies.clients)
    found[places, : rows.shape[1]] = rows
    found[places, rows.shape[1] :] = 0
    return found


def load_sketches(folder: Path) -> ClientSketches | None:
    """Return the sketches in a run folder; None if it has none, or if they are not what the run wrote."""
    path = folder / SKETCHES
    try:
        with safe_open(path, "np") as file:
            found = ClientSketches(*(file.get_tensor(name) for name in ("clients", "rounds", "points")))
            written = (file.metadata() or {}).get("hash")
    except (OSError, SafetensorError, ValueError, TypeError):
        return None
    right = found.points.shape == (len(found.rounds), len(found.clients), SIZE)
    return found if right and written == found.hash() else None


def shown_rounds(sketches: ClientSketches, most: int) -> Sequence[int]:
    """Return the places of at most ``most`` rounds: the first, the last, and some evenly between.

    >>> shown_rounds(ClientSketches(np.arange(2), np.array([0, 1, 2, 3, 5]), np.zeros((5, 2, SIZE))), 3)
    [0, 2, 4]
    """
    count = len(sketches.rounds)
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))}) if count else []


class Sketchbook:
    """The sketches of a run that is being trained, and which of them are not written yet; None: nothing is kept."""

    def __init__(self, known: ClientSketches | None) -> None:
        self.known = self._written = known

    def add(self, step: Round, is_last: bool) -> None:
        """Add a round."""
        if self.known is not None:
            self.known = add_round(self.known, step, is_last)

    def unwritten(self) -> bytes | None:
        """Return the content of the file if it has changed since this was asked last."""
        known, self._written, before = self.known, self.known, self._written
        return None if known is None or known is before else known.pack()


def begin_sketches(folder: Path | None, number: int, clients: int) -> Sketchbook:
    """Return the sketches with which a run begins, or that in a folder goes on, before a round.

    A damaged file is begun anew: what only pictures need keeps no run from going on.
    """
    found = None if folder is None else load_sketches(folder)
    return Sketchbook(no_sketches(clients) if found is None else found.before(number))
