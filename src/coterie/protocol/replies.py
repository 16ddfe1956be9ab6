"""The replies of the clients that answered, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

from coterie.models.layout import Layout
from coterie.protocol.stack import Stack
from coterie.typing import Array

ROWS = (
    *(
        "rows",
        "examples",
        "params",
        "buffers",
        "losses",
        "spreads",
        "metrics",
        "training_loss",
        "evaluations",
        "description",
    ),
    "metric",
)
"""The fields of ``Replies`` that have a row for each client, beside ``clients``."""

Combine = Callable[[Stack, Array, Array], Stack]
"""``(models, rows, weights) -> model``: combine the models of these rows into one."""


@dataclass(frozen=True)
class Sketching:
    """Up to how many clients a rule compares all pairs, and how it does with more: see ``server.distances.sketches``.

    ``size`` numbers describe a client then, ``sample`` clients are clustered, and the others join their clusters.
    ``seed`` is the run's, from which sketches and sample are drawn.
    """

    exact_clients: int = 5000
    size: int = 512
    sample: int = 1000
    seed: int = 0


@dataclass(frozen=True)
class Cost:
    """The cost of an exchange: bytes to and from all clients, examples x models evaluated, minibatch steps taken.

    ``bytes_stored`` is what one client had to hold at once: for two exchanges the larger number, not the sum.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    evaluations: int = 0
    steps: int = 0
    bytes_stored: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.evaluations + other.evaluations,
            self.steps + other.steps,
            max(self.bytes_stored, other.bytes_stored),
        )


@dataclass(frozen=True)
class Replies:
    """Rows of the clients that answered; ``missing`` says why others did not.

    ``clients`` are ascending positions, ``rows`` the row that each client worked on (its choice if it was asked to
    choose), ``examples`` its train size. ``params``, ``buffers`` (the reported part), ``losses (r, K)``, ``metrics``
    and ``training_loss`` (mean over its minibatches) are there when the task asked for them. The columns of ``metrics``
    are accuracy, macro-F1, loss, examples; for regression squared error, target variance, loss, examples. ``spreads``
    are the mean squared deviations of the losses on a sample, ``evaluations`` the losses that a race made,
    ``description`` the arrays of a client function, ``metric`` one more number of the evaluated model, infinite where
    undefined, or the counts from which one of all clients is made, ``(r, counts)``.
    ``params`` may be a memory map: read it by parts or by chunks of rows. ``combine`` replaces the weighted mean, and
    ``weight_bound`` is how many times the usual number of examples a client may count as; 0: no bound. ``sketching`` is
    how many clients are compared pair by pair.
    """

    layout: Layout
    clients: Array
    rows: Array
    examples: Array
    params: Array | None = None
    buffers: Array | None = None
    _: KW_ONLY
    losses: Array | None = None
    spreads: Array | None = None
    metrics: Array | None = None
    training_loss: Array | None = None
    evaluations: Array | None = None
    description: Array | None = None
    metric: Array | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    cost: Cost = Cost()
    combine: Combine | None = None
    weight_bound: float = 0
    sketching: Sketching = Sketching()

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        held = ", ".join(name for name in ROWS if getattr(self, name) is not None)
        return f"Replies({len(self)} clients answered, {len(self.missing)} are missing: {held})"

    def without(self, broken: Array, reasons: Mapping[str, str]) -> Replies:
        """Return the rows that are not ``broken``; the reasons, by client name, are added to ``missing``."""
        if not broken.any():
            return self
        rows = {name: getattr(self, name) for name in ("clients", *ROWS)}
        kept = {name: array[~broken] for name, array in rows.items() if array is not None}
        return replace(self, **kept, missing={**self.missing, **reasons})

    def models(self) -> Stack:
        """Return the whole trained models."""
        assert self.params is not None, "the task did not ask for parameters"
        assert self.buffers is not None, "the task did not ask for parameters"
        return Stack(self.params, self.buffers)

    def part(self, name: str) -> Array:
        """Return one part of each client's parameters, ``(r, size of the part)``."""
        return self.models().params[:, self.layout.part(name)]
