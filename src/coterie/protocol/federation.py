"""The one port to the clients: everything that server and experiments ask of a federation is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.federated import Split
    from coterie.models.model import Model


class Federation(Protocol):
    """Named clients that answer tasks: a simulator, Ray workers, sites behind bytes."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the clients' stable names; everywhere else a client is its position here."""

    @property
    def model(self) -> Model:
        """Return the network that the clients train."""

    @property
    def kept(self) -> dict[str, Array]:
        """Return what clients keep between rounds, by name, if it is in this process; a checkpoint must hold it."""

    def present(self, number: int) -> Array:
        """Return the positions of the clients that take part in a round, ascending."""

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Give clients a task on the models they need, and return what came back, a row for each that answered.

        ``rows`` names, for each of ``clients``, the row of ``sent`` that it works on, or ``(clients, members)`` the
        rows that serve it, where the report mixes outputs.
        """

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> Array | None:
        """Return the metrics of models on examples that belong to no client; None if that cannot be done here.

        ``rows`` are the rows to judge (all unless given); where a row is several numbers those models are mixed.
        """

    def close(self) -> None:
        """End what was started for this federation: workers, processes, connections."""
