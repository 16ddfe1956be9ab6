"""A finished run to be used: which network serves which client, and what is known of it, for predictions and exports.

The clients' data are read again only where clients choose or fine-tune before they are tested; otherwise the run's
folder is enough, also for a federation's run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from coterie.data import Federated, Schema
from coterie.errors import FederationError, RunFolderError, UnknownName, UsageError
from coterie.experiments import building
from coterie.experiments.networks import network_of
from coterie.experiments.placement import FEDERATION, Trained, load_trained
from coterie.experiments.records import facts_of
from coterie.experiments.resuming import check_examples
from coterie.experiments.run_folder import CONFIG, SCHEMA, load_summary
from coterie.experiments.settings import Settings, in_words, load_settings
from coterie.models.given import Given
from coterie.runtimes.simulator import Simulator
from coterie.server.serving import Served, rows_that_serve, served_models


class Serving(NamedTuple):
    """A network that was served, by the position of one of its clients, and all clients that it serves, by position.

    ``cluster`` is their cluster, if they are served its model and no other.
    """

    clients: tuple[int, ...]
    cluster: int | None


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """The parts of a finished run from which its networks are made; ``find_data`` gives the clients' data if needed."""

    trained: Trained
    settings: Settings
    summary: Mapping[str, Any]
    schema: Schema | None
    class_names: Sequence[str]
    find_data: Callable[[], Federated]

    @property
    def names(self) -> tuple[str, ...]:
        """The clients of the run."""
        return tuple(str(row["client"]) for row in self.trained.members)

    @property
    def mix(self) -> str | None:
        """How the outputs of an ensemble become one; None if there is one model."""
        return self.trained.algorithm.serve.mix if self.trained.algorithm.members else None

    @property
    def is_by_cluster(self) -> bool:
        """Whether all clients of a cluster are served the same model: that of the cluster."""
        return not (
            self.trained.algorithm.serve.fit or self.mix is not None or self.trained.state.memberships is not None
        )

    @property
    def chooses_again(self) -> bool:
        """Whether clients choose again before a test; in a federation the choice of the last round is what is known."""
        return bool(self.trained.algorithm.serve.choose) and self.settings.data != FEDERATION

    @cached_property
    def served(self) -> Sequence[Served]:
        """The models that serve the clients, member by member, and the row of each client."""
        algorithm, state = self.trained.algorithm, self.trained.state
        if not (algorithm.serve.fit or self.chooses_again):
            stack, rows = rows_that_serve(state)
            return [Served(stack, column) for column in np.atleast_2d(rows.T)]
        settings, data = self.settings, self.find_data()
        federation = Simulator(data, self.trained.model, settings.threads, plan=settings.plan, device=settings.device)
        return served_models(algorithm, federation, state, settings.seed, np.arange(len(data)))

    def position(self, client: str) -> int:
        """Return the position of a client by its name."""
        if client not in self.names:
            raise UnknownName("client", client, self.names)
        return self.names.index(client)

    def network(self, position: int) -> nn.Module:
        """Return the network that serves the client at a position, in evaluation mode."""
        if min(member.rows[position] for member in self.served) < 0:
            raise FederationError(f"client {self.names[position]!r} has no model: it diverged; lower the learning rate")
        return network_of(self.trained.model, self.served, position, self.mix)

    def servings(self) -> list[Serving]:
        """Return every network that serves somebody once, in the order of clusters or of clients."""
        found: dict[tuple[int, ...], list[int]] = {}
        for position in range(len(self.names)):
            key = tuple(int(member.rows[position]) for member in self.served)
            if min(key) >= 0:
                found.setdefault(key, []).append(position)
        keys = sorted(found) if self.is_by_cluster else list(found)
        return [Serving(tuple(found[key]), self._cluster(key)) for key in keys]

    def serving_of(self, client: str) -> Serving:
        """Return the network of one client, for itself alone."""
        position = self.position(client)
        return Serving((position,), self._cluster(tuple(int(member.rows[position]) for member in self.served)))

    def serving_of_cluster(self, cluster: int) -> Serving:
        """Return the network of a cluster; refuse it where its clients have networks of their own."""
        if not self.is_by_cluster:
            why = "fine-tunes the models of clients" if self.trained.algorithm.serve.fit else "mixes several models"
            raise UsageError(
                f"cluster {cluster} has no model of its own: {self.settings.algorithm} {why}, so each client has "
                "another; name one with --client, or take --all"
            )
        known = {each.cluster: each for each in self.servings()}
        if cluster not in known:
            have = sorted(each for each in known if each is not None)
            raise UsageError(
                f"cluster {cluster} serves no client; the clusters that do are {', '.join(map(str, have))}"
            )
        return known[cluster]

    def _cluster(self, key: tuple[int, ...]) -> int | None:
        return key[0] if self.is_by_cluster and 0 <= key[0] < len(self.trained.state.stack) else None


def load_served_run(folder: Path, model: Given = None) -> ServedRun:
    """Load a finished run from its folder; ``model`` is its network, if no text names it."""
    trained = load_trained(folder, model)
    settings, summary, schema = load_settings(folder / CONFIG, {}), load_summary(folder), folder / SCHEMA
    assert summary is not None, "load_trained has refused an unfinished run"

    def find_data() -> Federated:
        if settings.data == FEDERATION:
            raise UsageError(
                f"{settings.algorithm} fine-tunes models on the clients' own data, and {folder} is a federation's run: "
                "only its sites have these models; coterie federate deliver hands them over"
            )
        if not in_words(folder / CONFIG):
            raise RunFolderError(f"{folder} was run on data that Python made; load it there with ct.load_run")
        data = building.build_data(settings)
        check_examples(folder, facts_of(data))
        return data

    return ServedRun(
        trained=trained,
        settings=settings,
        summary=summary,
        schema=Schema.load(schema) if schema.exists() else None,
        class_names=(),
        find_data=find_data,
    )
